//! Validates kernels on their first run on a device: compares their results with the reference.
//!
//! Compilers for phone GPUs and for new GPUs sometimes miscompile a kernel or one form of it. Each
//! specialized kernel without a stored result is therefore validated once per device and driver.
//! For one node per kernel, [`Op::eval`](crate::graph::Op::eval) computes the results from the
//! operands that the device used. A variant that gives wrong results, does not build or is refused
//! at launch is quarantined, and the model is planned again without it. A wrong kernel without a
//! fallback is an error. Results apply only to the kernels that ran: if the driver refuses images,
//! the model is planned again without them.
//!
//! Drivers also report passing faults, such as a full disk, as failures of a kernel. Quarantined
//! variants are therefore stored only at the end of a start that succeeds: their fallbacks were
//! then built and launched by the same driver.

use super::validate_node;
use crate::backend::kernel::{Kernel, KernelSpec};
use crate::backend::validation::{self, ValidatedKernels};
use crate::backend::{Backend, BackendError, Caps, QuarantineCause, Quarantined, SharedBackend};
use crate::cache::Store;
use crate::error::{Error, Result, Stage};
use crate::executor::{Executor, Observed, Program, Room, specs};
use crate::fmt::count_text;
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
struct Findings {
    /// Number of kernels that were compared.
    validated: usize,
    /// Kernels that could not be compared.
    unvalidated: Vec<String>,
    faults: Vec<Fault>,
    refused: Vec<Refused>,
}

impl Findings {
    /// Returns the first fault as an error.
    fn into_result(self, caps: &Caps) -> Result<()> {
        let refused = self.refused.into_iter().map(|r| r.error);
        let faults = self.faults.iter().map(|fault| wrong_results(caps, fault));
        refused.chain(faults).next().map_or(Ok(()), Err)
    }
}

/// A variant that the driver refuses to launch.
struct Refused {
    kernel: KernelSpec,
    error: Error,
}

/// A kernel with variants to quarantine, the kind of failure, and what is wrong.
type Bad = (KernelSpec, QuarantineCause, String);

/// Progress callback: the number of kernels compared so far, and the number of all new kernels.
pub type OnProgress = Box<dyn FnMut(usize, usize) + Send>;

/// Validation of one model's kernels on one device, with notes for the user.
pub struct FirstRun {
    store: Option<Arc<Store>>,
    /// Variants quarantined in this start, not stored yet.
    found: Vec<Quarantined>,
    /// The variants among them that do not build: their generic kernels and errors.
    unbuilt: Vec<(&'static Kernel, BackendError)>,
    notes: Vec<Note>,
    validated: usize,
    on_progress: Option<OnProgress>,
}

impl std::fmt::Debug for FirstRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "FirstRun, {} kernels validated, {:?}",
            self.validated, self.notes
        )
    }
}

impl FirstRun {
    /// Prepares to validate the kernels for which `store` has no result on a device with `caps`;
    /// without a store, all kernels.
    pub fn new(caps: &Caps, store: Option<Arc<Store>>) -> Self {
        Self {
            store,
            found: Vec::new(),
            unbuilt: Vec::new(),
            notes: earlier_note(caps).into_iter().collect(),
            validated: 0,
            on_progress: None,
        }
    }

    /// Sets the progress callback.
    pub fn set_on_progress(&mut self, on_progress: OnProgress) {
        self.on_progress = Some(on_progress);
    }

    /// Notes about kernels that are quarantined.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Number of kernels that were compared with the reference.
    pub fn validated(&self) -> usize {
        self.validated
    }

    /// Compiles the variants among the kernels of `plans`, before anything is uploaded. Returns
    /// whether some do not build. `backend` then quarantines them, and the model must be planned
    /// again. If the generic kernel of such a variant does not build either, the compiler or its
    /// environment is at fault: the error is that of the first variant.
    pub fn quarantine_unbuilt(&mut self, backend: &mut SharedBackend, plans: &[Plan]) -> Result<bool> {
        let bad = self.compile_variants(backend, plans);
        if self.quarantine(backend, bad) {
            return Ok(true);
        }
        let unbuilt = std::mem::take(&mut self.unbuilt);
        let mut generic = specs(plans);
        generic.retain(|spec| unbuilt.iter().any(|(kernel, _)| kernel.name == spec.kernel.name));
        backend.compile_ahead(&generic, &mut |_| {});
        let mut generic = generic.into_iter();
        let broken = generic.find(|spec| matches!(backend.compile(spec), Err(BackendError::Build { .. })));
        let (Some(broken), Some((_, first))) = (broken, unbuilt.into_iter().next()) else {
            return Ok(false);
        };
        self.found.retain(|q| q.cause != QuarantineCause::DoesNotBuild);
        let what = format!("kernel {broken} does not build either");
        Err(Error::device(Stage::Plan, what, first))
    }

    /// Compiles the variants. Returns those that do not build.
    fn compile_variants(&mut self, backend: &mut SharedBackend, plans: &[Plan]) -> Vec<Bad> {
        let mut variants = specs(plans);
        variants.retain(|spec| !spec.variants().is_empty());
        if variants.is_empty() {
            return Vec::new();
        }
        backend.compile_ahead(&variants, &mut |_| {});
        let mut bad = Vec::new();
        for spec in variants {
            // Loading reports other errors, such as a lost device or too little memory. The kernel
            // itself may be correct.
            if let Err(e @ (BackendError::Build { .. } | BackendError::Unsuited { .. })) =
                backend.compile(spec)
            {
                log::debug!("{e}");
                let cause = QuarantineCause::DoesNotBuild;
                bad.push((spec.clone(), cause, "does not build".to_owned()));
                self.unbuilt.push((spec.kernel.generic(), e));
            }
        }
        bad
    }

    /// Compares the kernels of `program` without a stored result with the reference. Calls
    /// `observe` if there are any such kernels, or kernels that read images. `observe` loads an
    /// executor and runs the plans that [`Observer`] requests. Returns `true` if all kernels are
    /// correct. Otherwise `backend` quarantines the wrong variants, and the model must be planned
    /// again. A wrong kernel without a fallback is an error.
    pub fn validate(
        &mut self,
        backend: &mut SharedBackend,
        program: &Program,
        observe: &mut dyn FnMut(&mut Observer<'_>) -> Result<()>,
    ) -> Result<bool> {
        let on_progress = self.on_progress.as_mut();
        let Some(findings) = compare(program, self.store.as_deref(), observe, on_progress)? else {
            *backend = backend.without_images();
            return Ok(false);
        };
        self.validated += findings.validated;
        if findings.faults.is_empty() && findings.refused.is_empty() {
            log_unvalidated(&findings.unvalidated);
            self.store_found(program.caps());
            return Ok(true);
        }
        let refused = findings.refused.iter();
        let mut bad: Vec<_> = refused
            .map(|r| {
                let cause = QuarantineCause::LaunchRefused;
                (
                    r.kernel.clone(),
                    cause,
                    "is rejected by the driver at launch".to_owned(),
                )
            })
            .collect();
        for fault in &findings.faults {
            bad.extend(variants_at_fault(program.caps(), fault)?);
        }
        if !self.quarantine(backend, bad) {
            // The plan used it although it was quarantined.
            findings.into_result(program.caps())?;
        }
        Ok(false)
    }

    /// Stores the variants that this start has quarantined.
    fn store_found(&mut self, caps: &Caps) {
        let found = std::mem::take(&mut self.found);
        if let Some(store) = self.store.as_deref().filter(|_| !found.is_empty()) {
            validation::store_quarantined(store, caps, &found);
        }
    }

    /// Quarantines the variants of the `bad` kernels for this start. Returns `false` if all of them
    /// were already quarantined.
    fn quarantine(&mut self, backend: &mut SharedBackend, bad: Vec<Bad>) -> bool {
        let mut any = false;
        for (spec, cause, why) in bad {
            for variant in variants_to_quarantine(&spec) {
                let caps = backend.caps();
                if caps.profile.is_quarantined(spec.kernel, &variant) {
                    continue;
                }
                self.notes.push(Note::KernelQuarantined {
                    variant: variant.clone(),
                    why: why.clone(),
                    device: caps.device.clone(),
                    driver: caps.driver.clone(),
                });
                log::debug!("kernel {spec} {why}");
                let new = Quarantined::new(spec.kernel, &variant, cause, &why);
                self.found.push(new.clone());
                *backend = backend.without(new);
                any = true;
            }
        }
        any
    }
}

/// Number of kernels of `plans` without a stored result for a device with `caps`.
pub fn new_kernels(plans: &[Plan], caps: &Caps, store: Option<&Store>) -> usize {
    let validated = store.map(|s| ValidatedKernels::new(s, caps));
    unknown(specs(plans), caps, validated.as_ref()).count()
}

/// Compares the kernels of `program` with the reference, like [`FirstRun::validate`], but any wrong
/// kernel is an error. Returns `false` if the driver refuses images: the kernels that ran were not
/// the planned ones, and none are validated.
pub fn validate_all(
    program: &Program,
    store: Option<&Store>,
    observe: &mut dyn FnMut(&mut Observer<'_>) -> Result<()>,
) -> Result<bool> {
    let Some(findings) = compare(program, store, observe, None)? else {
        return Ok(false);
    };
    findings.into_result(program.caps()).map(|()| true)
}

/// Initial limit on the bytes captured per run; lowered if the device does not have enough memory.
const ROOM: u64 = 256 << 20;
const MIN_ROOM: u64 = 1 << 20;
const SHRINKS: u64 = 4;

/// The nodes to capture during runs, and the results for those captured.
pub struct Observer<'a> {
    unknown: &'a HashSet<&'a KernelSpec>,
    done: HashSet<KernelSpec>,
    compared: HashSet<KernelSpec>,
    faults: Vec<Fault>,
    /// Kernels whose launch was refused once, possibly for reasons outside the kernel.
    tried: HashSet<KernelSpec>,
    refused: Vec<Refused>,
    room: Room,
    on_progress: Option<&'a mut OnProgress>,
}

impl std::fmt::Debug for Observer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Observer of {} kernels", self.unknown.len())
    }
}

impl<'a> Observer<'a> {
    fn new(unknown: &'a HashSet<&'a KernelSpec>, on_progress: Option<&'a mut OnProgress>) -> Self {
        Self {
            unknown,
            on_progress,
            done: HashSet::new(),
            compared: HashSet::new(),
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
        self.unknown.is_empty()
    }

    fn wants_sample(&self, plan: &Plan, sample: &Sample) -> bool {
        let steps = sample.steps.iter().filter_map(|s| plan.steps.get(*s));
        let mut kernels = steps.filter_map(|s| plan.kernels.get(s.kernel));
        kernels.any(|spec| self.unknown.contains(spec) && !self.done.contains(spec))
    }

    /// Whether a run of `plan` would capture something.
    pub fn wants(&self, plan: &Plan) -> bool {
        plan.samples.iter().any(|s| self.wants_sample(plan, s))
    }

    /// Runs plan `index`, whose inputs must already be written, and checks a node for each kernel
    /// not captured before. Returns whether another run is needed for the remaining kernels.
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
                return Ok(less >= MIN_ROOM);
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

    /// Records that the launch of a variant was refused, and returns whether another run is needed.
    /// After a second refusal, further runs of `plan` are useless. Any other error is returned.
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
        let result = validate_node(observed);
        if let Some(on_progress) = &mut self.on_progress {
            let done = self.unknown.iter().filter(|spec| self.done.contains(**spec));
            on_progress(done.count(), self.unknown.len());
        }
        if result != Ok(false) {
            self.compared.extend(own.iter().cloned());
        }
        if let Err(why) = result {
            self.faults.push(Fault {
                node: observed.name.clone(),
                kernels: own,
                why,
            });
        }
    }
}

/// The `specs` without a stored result. Native kernels need none: no driver compiles them.
fn unknown<'s>(
    specs: impl IntoIterator<Item = &'s KernelSpec>,
    caps: &Caps,
    validated: Option<&ValidatedKernels<'_>>,
) -> impl Iterator<Item = &'s KernelSpec> {
    let compiles = caps.profile.language().is_some();
    specs
        .into_iter()
        .filter(move |spec| compiles && !validated.is_some_and(|v| v.contains(spec)))
}

/// Compares the kernels without a result in `store` with the reference, and stores which are
/// correct. Returns `None` if the driver refuses images: the kernels that ran were not the planned
/// ones.
fn compare(
    program: &Program,
    store: Option<&Store>,
    observe: &mut dyn FnMut(&mut Observer<'_>) -> Result<()>,
    on_progress: Option<&mut OnProgress>,
) -> Result<Option<Findings>> {
    let caps = program.caps();
    let kernels = program.kernels();
    let by_image = kernels.iter().any(|spec| !spec.images.is_empty());
    let mut validated = store.map(|s| ValidatedKernels::new(s, caps));
    let new: HashSet<&KernelSpec> = unknown(kernels, program.caps(), validated.as_ref()).collect();
    let mut observer = Observer::new(&new, on_progress);
    if by_image || !new.is_empty() {
        log::debug!("checking {} kernels", new.len());
        observe(&mut observer)?;
    }
    if by_image && program.refuses_images() {
        return Ok(None);
    }
    let Observer {
        compared,
        faults,
        refused,
        ..
    } = observer;
    let wrong: HashSet<&KernelSpec> = faults.iter().flat_map(|f| &f.kernels).collect();
    let (compared, unvalidated): (Vec<&KernelSpec>, Vec<&KernelSpec>) =
        new.into_iter().partition(|spec| compared.contains(*spec));
    if let Some(validated) = validated.as_mut().filter(|_| !compared.is_empty()) {
        let right = compared.iter().filter(|spec| !wrong.contains(**spec));
        validated.add(right.copied());
    }
    Ok(Some(Findings {
        validated: compared.len(),
        unvalidated: unvalidated.into_iter().map(ToString::to_string).collect(),
        faults,
        refused,
    }))
}

/// The variants of a kernel to quarantine first: only the form with a fixed subgroup size or with
/// images, if present, since the other forms may be correct without it.
fn variants_to_quarantine(spec: &KernelSpec) -> Vec<String> {
    let outer = spec.outer_forms().next();
    outer.map_or_else(|| spec.variants(), |form| vec![form])
}

/// A note about the variants quarantined in earlier runs.
fn earlier_note(caps: &Caps) -> Option<Note> {
    let left = caps
        .profile
        .quarantined
        .iter()
        .map(|q| (q.variant.clone(), q.why.clone()));
    let variants: Vec<(String, String)> = left.collect();
    (!variants.is_empty()).then(|| Note::KernelsQuarantined {
        variants,
        device: caps.device.clone(),
        driver: caps.driver.clone(),
    })
}

/// Logs kernels that could not be compared: their nodes read random weights, have no reference, or
/// compute nothing but zeros or NaN in these runs. The user can do nothing about it.
fn log_unvalidated(kernels: &[String]) {
    if let Some(first) = kernels.iter().min() {
        let count = count_text(kernels.len(), "new kernel");
        log::info!("{count} could not be validated, for example {first}: no results to compare");
    }
}

/// The variants at fault; an error if there are none.
fn variants_at_fault(caps: &Caps, fault: &Fault) -> Result<Vec<Bad>> {
    let variants = fault.kernels.iter().filter(|spec| !spec.variants().is_empty());
    let why = format!("gives wrong results ({})", fault.why);
    let variants: Vec<_> = variants
        .map(|spec| (spec.clone(), QuarantineCause::WrongResults, why.clone()))
        .collect();
    if !variants.is_empty() {
        return Ok(variants);
    }
    Err(wrong_results(caps, fault))
}

/// The error that reports a fault.
fn wrong_results(caps: &Caps, fault: &Fault) -> Error {
    let names: Vec<String> = fault.kernels.iter().map(ToString::to_string).collect();
    let wrong = BackendError::Wrong {
        kernel: names.join(" or "),
        device: format!("{} ({})", caps.device, caps.driver),
        why: fault.why.clone(),
    };
    Error::device(Stage::Plan, format!("checking node \"{}\"", fault.node), wrong)
}
