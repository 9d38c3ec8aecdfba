//! Validates kernels on first use: compares them with the reference when they first run on a
//! device.
//!
//! Compilers for GPUs of phones, and of new GPUs, sometimes miscompile a kernel or one form of it.
//! Each specialised kernel without a stored result is therefore checked once per device and driver:
//! for one node per kernel, [`Op::eval`](crate::graph::Op::eval) computes the results from the
//! operands that the device had. A variant that gives wrong results, does not build or is refused
//! at launch is quarantined, and the model is planned again without it. A wrong kernel without a
//! fallback is an error. Results apply to the kernels that ran: if the driver refuses images,
//! everything is planned again without them.

use super::judge;
use crate::backend::kernel::KernelSpec;
use crate::backend::verdicts::{self, Right};
use crate::backend::{Backend, BackendError, Caps, SharedBackend};
use crate::cache::Store;
use crate::error::{Error, Result, Stage};
use crate::executor::{Executor, Observed, Program, Room, specs};
use crate::note::Note;
use crate::plan::{Plan, Sample};
use crate::shape::Bindings;
use std::collections::HashSet;
use std::sync::Arc;

/// A node that the device computes wrongly.
struct Fault {
    node: String,
    kernels: Vec<KernelSpec>,
    why: String,
}

/// Results of comparing kernels with the reference.
struct Found {
    /// Number of compared kernels.
    judged: usize,
    /// Kernels that could not be compared.
    unjudged: Vec<String>,
    faults: Vec<Fault>,
    refused: Vec<Refused>,
}

impl Found {
    /// Returns the first fault as an error.
    fn right(self, caps: &Caps) -> Result<()> {
        let refused = self.refused.into_iter().map(|r| r.error);
        let faults = self.faults.iter().map(|fault| wrong(caps, fault));
        refused.chain(faults).next().map_or(Ok(()), Err)
    }
}

/// A variant that the driver refuses to launch.
struct Refused {
    kernel: KernelSpec,
    error: Error,
}

/// Progress callback: the numbers of compared and of all new kernels.
pub type Hear = Box<dyn FnMut(usize, usize) + Send>;

/// Validation of one model's kernels on one device, with notes for the user.
pub struct FirstUse {
    store: Option<Arc<Store>>,
    notes: Vec<Note>,
    checked: usize,
    hear: Option<Hear>,
}

impl std::fmt::Debug for FirstUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FirstUse, {} kernels checked, {:?}", self.checked, self.notes)
    }
}

impl FirstUse {
    /// Validates the kernels that `store` does not know on a device with `caps`; without a store,
    /// all.
    pub fn new(caps: &Caps, store: Option<Arc<Store>>) -> Self {
        Self {
            store,
            notes: known(caps).into_iter().collect(),
            checked: 0,
            hear: None,
        }
    }

    /// Sets the progress callback.
    pub fn heard_by(&mut self, hear: Hear) {
        self.hear = Some(hear);
    }

    /// Notes about kernels that are quarantined or could not be checked.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Number of kernels that were compared with the reference.
    pub fn checked(&self) -> usize {
        self.checked
    }

    /// Compiles the variants among the kernels of `plans`, before anything is uploaded. Returns
    /// whether some do not build; `backend` then quarantines them, and its plans must be made
    /// again.
    pub fn leaves_unbuilt(&mut self, backend: &mut SharedBackend, plans: &[Plan]) -> bool {
        let bad = unbuilt(backend, plans);
        self.leave(backend, bad)
    }

    /// Compares the unknown kernels of `program` with the reference. `observe` is called if there
    /// are any, or kernels that read images; it loads an executor and runs what [`Watch`] asks for.
    /// Returns `true` if everything is right. Otherwise `backend` quarantines the wrong variants,
    /// and its plans must be made again. A wrong kernel without a fallback is an error.
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
            // The plan used it although it was quarantined.
            found.right(program.caps())?;
        }
        Ok(false)
    }

    /// Quarantines the variants of the `bad` kernels, each with the reason. Returns `false` if all
    /// were quarantined before.
    fn leave(&mut self, backend: &mut SharedBackend, bad: Vec<(KernelSpec, String)>) -> bool {
        let mut any = false;
        for (spec, why) in bad {
            for variant in to_leave(&spec) {
                let caps = backend.caps();
                if caps.profile.is_quarantined(spec.kernel, &variant) {
                    continue;
                }
                self.notes.push(Note::KernelLeft {
                    variant: variant.clone(),
                    why: why.clone(),
                    device: caps.device.clone(),
                    driver: caps.driver.clone(),
                });
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

/// Number of kernels of `plans` without a stored result for a device with `caps`.
pub fn new_kernels(plans: &[Plan], caps: &Caps, store: Option<&Store>) -> usize {
    let right = store.map(|s| Right::new(s, caps));
    unknown(specs(plans), right.as_ref()).count()
}

/// Compares the unknown kernels of `program` with the reference, like [`FirstUse::is_right`]; the
/// first wrong one is an error. Returns `false` if the driver refuses images: other kernels ran
/// than planned, and neither are validated.
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

/// Bytes captured in a run at first; less if the device has no memory for that.
const ROOM: u64 = 256 << 20;
const LEAST_ROOM: u64 = 1 << 20;
const SHRINKS: u64 = 4;

/// What is to be captured in runs, and what was.
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

    /// Whether there is nothing to capture.
    pub fn is_empty(&self) -> bool {
        self.new.is_empty()
    }

    fn wants_sample(&self, plan: &Plan, sample: &Sample) -> bool {
        let steps = sample.steps.iter().filter_map(|s| plan.steps.get(*s));
        let mut kernels = steps.filter_map(|s| plan.kernels.get(s.kernel));
        kernels.any(|spec| self.new.contains(spec) && !self.done.contains(spec))
    }

    /// Whether a run of `plan` captures something.
    pub fn wants(&self, plan: &Plan) -> bool {
        plan.samples.iter().any(|s| self.wants_sample(plan, s))
    }

    /// Runs plan `index`, whose inputs must be written, and checks a node for each kernel not
    /// captured before. Returns whether another run is needed for the others.
    pub fn run(&mut self, executor: &mut Executor, index: usize, bindings: &Bindings) -> Result<bool> {
        let before = self.done.len();
        let wanted = |plan: &Plan, sample: &Sample| self.wants_sample(plan, sample);
        let observation = match executor.observe(index, bindings, self.room, &wanted) {
            Err(error) if matches!(error.backend(), Some(BackendError::OutOfMemory { .. })) => {
                log::debug!("no memory to capture nodes: {}", error.chain());
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

    /// Records that the launch of a variant was refused. After the first time another run is
    /// needed; after the second, further runs of `plan` are useless. Any other error is returned.
    fn refuse(&mut self, plan: Option<&Plan>, error: Error) -> Result<bool> {
        let Some(BackendError::Launch { kernel, .. }) = error.backend() else {
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

/// The `specs` that `right` does not know.
fn unknown<'s>(
    specs: impl IntoIterator<Item = &'s KernelSpec>,
    right: Option<&Right<'_>>,
) -> impl Iterator<Item = &'s KernelSpec> {
    specs
        .into_iter()
        .filter(move |spec| !right.is_some_and(|r| r.has(spec)))
}

/// Compares the kernels that `store` does not know with the reference, and stores which are right.
/// `None` if other kernels ran than planned, because the driver refuses images.
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
        log::debug!("checking {} kernels", new.len());
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

/// The variants of a kernel to quarantine first: only the subgroup width or images, if present,
/// since the other forms may be right without them.
fn to_leave(spec: &KernelSpec) -> Vec<String> {
    let outer = spec.outer_forms().next();
    outer.map_or_else(|| spec.variants(), |form| vec![form])
}

/// A note about the variants quarantined in earlier starts.
fn known(caps: &Caps) -> Option<Note> {
    let left = caps
        .profile
        .quarantined
        .iter()
        .map(|q| (q.variant.clone(), q.why.clone()));
    let variants: Vec<(String, String)> = left.collect();
    (!variants.is_empty()).then(|| Note::KernelsLeft {
        variants,
        device: caps.device.clone(),
        driver: caps.driver.clone(),
    })
}

/// A note about kernels that could not be compared.
fn unjudged(caps: &Caps, kernels: &[String]) -> Option<Note> {
    Some(Note::KernelsUnchecked {
        count: kernels.len(),
        first: kernels.iter().min()?.clone(),
        device: caps.device.clone(),
        driver: caps.driver.clone(),
    })
}

/// The variants behind a fault; an error if there are none.
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
            // Loading reports other errors, such as a lost device or too little memory; the kernel
            // may build another time.
            _ => None,
        });
    refused.collect()
}
