//! Kernels are compared with the reference where they first run on a device.
//!
//! Compilers of phones' GPUs, and of new ones, are wrong now and then, for one kernel or one form of it. So each specialised kernel of which the
//! store knows nothing is compared with the reference, once for each device and driver: of one node for each kernel
//! [`Op::eval`](crate::graph::Op::eval) computes the results from the operands that the device had. A variant that is wrong, or does not
//! build, or is refused at its launch, is not used any more, and what is loaded is planned again without it. A kernel that has no twin is an error. Verdicts are of kernels that
//! ran: where the driver refuses images, all is planned again without them.

use super::judge;
use crate::backend::kernel::KernelSpec;
use crate::backend::verdicts::{self, Right};
use crate::backend::{Backend, BackendError, Caps, SharedBackend};
use crate::cache::Store;
use crate::error::{Error, Result, Stage};
use crate::executor::{Executor, Observed, Program, Room, specs};
use crate::plan::{Plan, Sample};
use crate::shape::Bindings;
use crate::units::count_text;
use std::collections::HashSet;
use std::sync::Arc;

/// A node that a device computes wrong.
struct Fault {
    node: String,
    kernels: Vec<KernelSpec>,
    why: String,
}

/// What comparing kernels with the reference has found.
struct Found {
    /// Kernels that were compared.
    judged: usize,
    /// Those that could not be.
    unjudged: Vec<String>,
    faults: Vec<Fault>,
    refused: Vec<Refused>,
}

impl Found {
    /// The first fault as an error.
    fn right(self, caps: &Caps) -> Result<()> {
        let refused = self.refused.into_iter().map(|r| r.error);
        let faults = self.faults.iter().map(|fault| wrong(caps, fault));
        refused.chain(faults).next().map_or(Ok(()), Err)
    }
}

/// A variant whose launch is refused.
struct Refused {
    kernel: KernelSpec,
    error: Error,
}

/// Is told how many of how many new kernels were compared.
pub type Hear = Box<dyn FnMut(usize, usize) + Send>;

/// The checks of kernels of one model on one device, and what there is to note of them.
pub struct FirstUse {
    store: Option<Arc<Store>>,
    notes: Vec<String>,
    checked: usize,
    hear: Option<Hear>,
}

impl std::fmt::Debug for FirstUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FirstUse, {} kernels checked, {:?}", self.checked, self.notes)
    }
}

impl FirstUse {
    /// Checks of the kernels that `store` does not know on a device with `caps`; without a store of all.
    pub fn new(caps: &Caps, store: Option<Arc<Store>>) -> Self {
        Self {
            store,
            notes: known(caps).into_iter().collect(),
            checked: 0,
            hear: None,
        }
    }

    /// From now on `hear` is told how far checks have come.
    pub fn heard_by(&mut self, hear: Hear) {
        self.hear = Some(hear);
    }

    /// Sentences about kernels that are not used, or could not be checked.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Kernels that were compared with the reference.
    pub fn checked(&self) -> usize {
        self.checked
    }

    /// Compiles the variants among the kernels of `plans`, before anything is uploaded. True where some do not build: `backend` does not use
    /// them any more, and its plans are to be made anew.
    pub fn leaves_unbuilt(&mut self, backend: &mut SharedBackend, plans: &[Plan]) -> bool {
        let bad = unbuilt(backend, plans);
        self.leave(backend, bad)
    }

    /// Compares the kernels of `program` that are not known with the reference. `observe` is called where there are such, or kernels that read images,
    /// which it makes by loading an executor; it runs what it has to by [`Watch`]. True where all is right; else `backend` does not use what
    /// is wrong any more, and its plans are to be made anew. An error for a wrong kernel without a twin.
    pub fn is_right(
        &mut self,
        backend: &mut SharedBackend,
        program: &Program,
        observe: &mut dyn FnMut(&mut Watch<'_>) -> Result<()>,
    ) -> Result<bool> {
        let hear = self.hear.as_mut();
        let Some(found) = compare(program, self.store.as_deref(), observe, hear)? else {
            *backend = backend.without_images();
            return Ok(false);
        };
        self.checked += found.judged;
        if found.faults.is_empty() && found.refused.is_empty() {
            self.notes.extend(unjudged(program.caps(), &found.unjudged));
            return Ok(true);
        }
        let refused = found.refused.iter();
        let mut bad: Vec<_> = refused
            .map(|r| (r.kernel.clone(), "is refused at its launch".to_owned()))
            .collect();
        for fault in &found.faults {
            bad.extend(blame(program.caps(), fault)?);
        }
        if !self.leave(backend, bad) {
            // It was planned with although it was left.
            found.right(program.caps())?;
        }
        Ok(false)
    }

    /// Uses the variants of kernels that are `bad`, each with the reason, no more. False where none was used before.
    fn leave(&mut self, backend: &mut SharedBackend, bad: Vec<(KernelSpec, String)>) -> bool {
        let mut any = false;
        for (spec, why) in bad {
            for variant in to_leave(&spec) {
                let caps = backend.caps();
                if caps.is_quarantined(spec.kernel, &variant) {
                    continue;
                }
                self.notes.push(format!(
                    "kernel {variant} {why} on {}; another one is used, which may be slower (details: `tlite selftest`)",
                    caps.device
                ));
                log::debug!("kernel {spec} {why}");
                *backend = backend.without(spec.kernel, &variant, &why);
                any = true;
            }
        }
        if let Some(store) = self.store.as_deref().filter(|_| any) {
            verdicts::keep_quarantined(store, backend.caps());
        }
        any
    }
}

/// Kernels of `plans` of which `store` knows nothing on a device with `caps`.
pub fn new_kernels(plans: &[Plan], caps: &Caps, store: Option<&Store>) -> usize {
    let right = store.map(|s| Right::new(s, caps));
    unknown(specs(plans), right.as_ref()).count()
}

/// Compares the kernels of `program` that `store` does not know with the reference, as [`FirstUse::is_right`] does; an error for the first that is
/// wrong. False where the driver refuses images: other kernels ran than were planned, and nothing is known of either.
pub fn all_right(
    program: &Program,
    store: Option<&Store>,
    observe: &mut dyn FnMut(&mut Watch<'_>) -> Result<()>,
) -> Result<bool> {
    let Some(found) = compare(program, store, observe, None)? else {
        return Ok(false);
    };
    found.right(program.caps()).map(|()| true)
}

/// Bytes that are copied aside in a run at first; where the device has no memory for that, less.
const ROOM: u64 = 256 << 20;
const LEAST_ROOM: u64 = 1 << 20;
const SHRINKS: u64 = 4;

/// What is to be observed, and what was.
pub struct Watch<'a> {
    new: &'a HashSet<&'a KernelSpec>,
    done: HashSet<KernelSpec>,
    judged: HashSet<KernelSpec>,
    faults: Vec<Fault>,
    /// Kernels whose launch was refused once, which may have had other reasons.
    tried: HashSet<KernelSpec>,
    refused: Vec<Refused>,
    room: Room,
    hear: Option<&'a mut Hear>,
}

impl std::fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watch of {} kernels", self.new.len())
    }
}

impl<'a> Watch<'a> {
    fn of(new: &'a HashSet<&'a KernelSpec>, hear: Option<&'a mut Hear>) -> Self {
        Self {
            new,
            hear,
            done: HashSet::new(),
            judged: HashSet::new(),
            faults: Vec::new(),
            tried: HashSet::new(),
            refused: Vec::new(),
            room: Room {
                together: ROOM,
                each: u64::MAX,
            },
        }
    }

    /// There is nothing to observe.
    pub fn is_empty(&self) -> bool {
        self.new.is_empty()
    }

    fn wants_sample(&self, plan: &Plan, sample: &Sample) -> bool {
        let steps = sample.steps.iter().filter_map(|s| plan.steps.get(*s));
        let mut kernels = steps.filter_map(|s| plan.kernels.get(s.kernel));
        kernels.any(|spec| self.new.contains(spec) && !self.done.contains(spec))
    }

    /// A run of `plan` has something to observe.
    pub fn wants(&self, plan: &Plan) -> bool {
        plan.samples.iter().any(|s| self.wants_sample(plan, s))
    }

    /// Runs plan `index`, whose inputs were written, and judges a node for each of the kernels that were not observed before. True where another run
    /// is needed for the others.
    pub fn run(&mut self, executor: &mut Executor, index: usize, bindings: &Bindings) -> Result<bool> {
        let before = self.done.len();
        let wanted = |plan: &Plan, sample: &Sample| self.wants_sample(plan, sample);
        let observation = match executor.observe(index, bindings, self.room, &wanted) {
            Err(Error::Device {
                source: why @ BackendError::OutOfMemory { .. },
                ..
            }) => {
                log::debug!("no memory to observe nodes: {why}");
                let less = self.room.together / SHRINKS;
                self.room = Room {
                    together: less,
                    each: less,
                };
                return Ok(less >= LEAST_ROOM);
            }
            Err(error) => return self.refuse(executor.plan(index), error),
            Ok(observation) => observation,
        };
        let plan = executor.plan(index);
        for (plan, observed) in plan
            .iter()
            .flat_map(|p| observation.nodes.iter().map(move |o| (p, o)))
        {
            self.take(plan, observed);
        }
        Ok(observation.more && self.done.len() > before)
    }

    /// Keeps that the launch of a variant was refused twice, of which no more runs of `plan` tell anything; after the first time another run is
    /// needed. Any other error is returned.
    fn refuse(&mut self, plan: Option<&Plan>, error: Error) -> Result<bool> {
        let Error::Device {
            source: BackendError::Launch { kernel, .. },
            ..
        } = &error
        else {
            return Err(error);
        };
        let mut kernels = plan.iter().flat_map(|p| &p.kernels);
        let variant = kernels.find(|spec| spec.to_string() == *kernel && !spec.variants().is_empty());
        let Some(kernel) = variant.cloned() else {
            return Err(error);
        };
        if self.tried.insert(kernel.clone()) {
            return Ok(true);
        }
        self.refused.push(Refused { kernel, error });
        Ok(false)
    }

    fn take(&mut self, plan: &Plan, observed: &Observed) {
        let own = observed.kernels.iter().filter_map(|k| plan.kernels.get(*k));
        let own: Vec<KernelSpec> = own.cloned().collect();
        self.done.extend(own.iter().cloned());
        let verdict = judge(observed);
        if let Some(hear) = &mut self.hear {
            let done = self.new.iter().filter(|spec| self.done.contains(**spec));
            hear(done.count(), self.new.len());
        }
        if verdict != Ok(false) {
            self.judged.extend(own.iter().cloned());
        }
        if let Err(why) = verdict {
            self.faults.push(Fault {
                node: observed.name.clone(),
                kernels: own,
                why,
            });
        }
    }
}

/// Those of `specs` that `right` does not know.
fn unknown<'s>(
    specs: impl IntoIterator<Item = &'s KernelSpec>,
    right: Option<&Right<'_>>,
) -> impl Iterator<Item = &'s KernelSpec> {
    specs
        .into_iter()
        .filter(move |spec| !right.is_some_and(|r| r.has(spec)))
}

/// Compares the kernels that `store` does not know with the reference; what is right is kept. `None` where other kernels ran than were planned, as
/// the driver refuses images.
fn compare(
    program: &Program,
    store: Option<&Store>,
    observe: &mut dyn FnMut(&mut Watch<'_>) -> Result<()>,
    hear: Option<&mut Hear>,
) -> Result<Option<Found>> {
    let caps = program.caps();
    let kernels = program.kernels();
    let by_image = kernels.iter().any(|spec| !spec.images.is_empty());
    let mut right = store.map(|s| Right::new(s, caps));
    let new: HashSet<&KernelSpec> = unknown(kernels, right.as_ref()).collect();
    let mut watch = Watch::of(&new, hear);
    if by_image || !new.is_empty() {
        log::debug!("{} kernels are checked", new.len());
        observe(&mut watch)?;
    }
    if by_image && program.refuses_images() {
        return Ok(None);
    }
    let Watch {
        judged,
        faults,
        refused,
        ..
    } = watch;
    let wrong: HashSet<&KernelSpec> = faults.iter().flat_map(|f| &f.kernels).collect();
    let (judged, unjudged): (Vec<&KernelSpec>, Vec<&KernelSpec>) =
        new.into_iter().partition(|spec| judged.contains(*spec));
    if let Some(right) = right.as_mut().filter(|_| !judged.is_empty()) {
        let found = judged.iter().filter(|spec| !wrong.contains(**spec));
        right.keep(found.copied());
    }
    Ok(Some(Found {
        judged: judged.len(),
        unjudged: unjudged.into_iter().map(ToString::to_string).collect(),
        faults,
        refused,
    }))
}

/// The variants of a kernel that are left first: the wave alone, or images, without which its other forms may be right.
fn to_leave(spec: &KernelSpec) -> Vec<String> {
    let outer = spec.outer_forms().next();
    outer.map_or_else(|| spec.variants(), |form| vec![form])
}

/// A note of the variants that earlier starts have left.
fn known(caps: &Caps) -> Option<String> {
    let names = caps
        .quarantined
        .iter()
        .map(|q| format!("{} {}", q.variant, q.why));
    let names: Vec<String> = names.collect();
    (!names.is_empty()).then(|| {
        format!(
            "kernels not used on {}, as earlier runs found: {}",
            caps.device,
            names.join("; ")
        )
    })
}

/// A note of kernels that could not be compared.
fn unjudged(caps: &Caps, kernels: &[String]) -> Option<String> {
    let first = kernels.iter().min()?;
    Some(format!(
        "{} could not be checked on {} and are used unchecked, such as {first}",
        count_text(kernels.len(), "kernel"),
        caps.device
    ))
}

/// The variants behind a fault; an error where there are none.
fn blame(caps: &Caps, fault: &Fault) -> Result<Vec<(KernelSpec, String)>> {
    let variants = fault.kernels.iter().filter(|spec| !spec.variants().is_empty());
    let why = format!("gives wrong results ({})", fault.why);
    let variants: Vec<_> = variants.map(|spec| (spec.clone(), why.clone())).collect();
    if !variants.is_empty() {
        return Ok(variants);
    }
    Err(wrong(caps, fault))
}

/// The error of a fault.
fn wrong(caps: &Caps, fault: &Fault) -> Error {
    let names: Vec<String> = fault.kernels.iter().map(ToString::to_string).collect();
    let wrong = BackendError::Wrong {
        kernel: names.join(" or "),
        device: format!("{} ({})", caps.device, caps.driver),
        why: fault.why.clone(),
    };
    Error::device(Stage::Plan, format!("checking node \"{}\"", fault.node), wrong)
}

/// The variants that do not build.
fn unbuilt(backend: &mut SharedBackend, plans: &[Plan]) -> Vec<(KernelSpec, String)> {
    let mut variants = specs(plans);
    variants.retain(|spec| !spec.variants().is_empty());
    if variants.is_empty() {
        return Vec::new();
    }
    backend.compile_ahead(&variants, &mut |_| {});
    let refused = variants
        .into_iter()
        .filter_map(|spec| match backend.compile(spec) {
            Err(e @ (BackendError::Build { .. } | BackendError::Unsuited { .. })) => {
                log::debug!("{e}");
                Some((spec.clone(), "does not build".to_owned()))
            }
            // Of anything else, as of a lost device or too little memory, loading tells: another time it may build.
            _ => None,
        });
    refused.collect()
}
