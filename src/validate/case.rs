//! Runs one operator case on a device: its plan in several forms, compared with the reference, with
//! guard zones around the memory that it may write.

use crate::backend::device_presets::Family;
use crate::backend::kernel::image::ImageKind;
use crate::backend::kernel::{Arg, Feature, KernelSpec};
use crate::backend::tunable::Tunable;
use crate::backend::{Backend, BackendError, Caps, DeviceProfile, SharedBackend, Simd, View};
use crate::error::{Error, ErrorKind, Result as LibResult};
use crate::executor::Executor;
use crate::graph::derive::derive;
use crate::graph::op::InferCx;
use crate::graph::op::case::Case;
use crate::graph::op::pointwise::{Expr, Pointwise};
use crate::graph::op::reshape::Reshape;
use crate::graph::pass::{DECOMPOSE, Pipeline};
use crate::graph::{Edit, Graph, Op, ValueId};
use crate::plan::{Options, Plan, Shared, Storage};
use crate::shape::{Bindings, Constraints, Dim, Fact, Known, Shape};
use crate::tensor::{DType, HostTensor};
use crate::validate::compare::{NORMED, PAIRS, TIES, bound, compare};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Byte for memory that was never written: NaN in every float type.
pub const POISON: u8 = 0xff;

/// Checks for writes outside of buffers; the error says where.
pub type Guards = Box<dyn Fn() -> Result<(), String>>;

/// A device that runs cases.
pub trait Bench {
    /// The device's capabilities.
    fn caps(&self) -> &Caps;

    /// A backend for one executor, whose views are aligned to `align`, and guards of its buffers.
    fn share(&self, align: u64) -> (Box<dyn Backend>, Guards);
}

impl Bench for SharedBackend {
    fn caps(&self) -> &Caps {
        Backend::caps(self)
    }

    /// Without guards: one arena holds nearly everything that is written.
    fn share(&self, align: u64) -> (Box<dyn Backend>, Guards) {
        (Box::new(self.aligned(align)), Box::new(|| Ok(())))
    }
}

/// How a scenario fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Kernels write wrong values, or to the wrong place.
    Wrong,
    /// A kernel does not build, needs more than the device has, or is refused at launch.
    Build,
    /// The device is lost.
    Lost,
    /// Anything that is not a kernel's fault: too little memory, a driver error, an operator that
    /// cannot be planned.
    Other,
}

/// A failure of a scenario on a device.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{why}")]
pub struct CaseError {
    /// How it fails.
    pub fault: Fault,
    /// What differs and by how much, or why it could not run.
    pub why: String,
    /// Kernels of the failing plan, if known.
    pub kernels: Vec<KernelSpec>,
}

impl CaseError {
    /// An error of kernels.
    fn wrong(why: impl Into<String>) -> Self {
        Self {
            fault: Fault::Wrong,
            why: why.into(),
            kernels: Vec::new(),
        }
    }
}

impl From<String> for CaseError {
    fn from(why: String) -> Self {
        Self {
            fault: Fault::Other,
            why,
            kernels: Vec::new(),
        }
    }
}

impl From<Error> for CaseError {
    fn from(e: Error) -> Self {
        let build = |e: &BackendError| {
            matches!(
                e,
                BackendError::Build { .. } | BackendError::Unsuited { .. } | BackendError::Launch { .. }
            )
        };
        let fault = match &e {
            Error::Device { source, .. } if build(source) => Fault::Build,
            e if e.kind() == ErrorKind::DeviceLost => Fault::Lost,
            _ => Fault::Other,
        };
        Self {
            fault,
            ..e.chain().into()
        }
    }
}

impl From<BackendError> for CaseError {
    fn from(e: BackendError) -> Self {
        Error::device(crate::error::Stage::Run, "a case", e).into()
    }
}

/// How much of a scenario is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Its first form.
    Quick,
    /// Every form, with weights whole and split.
    Whole,
    /// Everything, and also tiled kernels in each tile size, whether or not the device would choose
    /// them.
    Every,
}

/// An operator with operands, whose sizes may be symbols, and values of the symbols for several
/// runs of one plan.
#[derive(Debug)]
pub struct Scenario {
    /// The operator.
    pub op: Box<dyn Op>,
    /// One fact per operand. Operands with unknown contents are inputs of the graph.
    pub operands: Vec<Fact>,
    /// Largest values of the symbols.
    pub bounds: Bindings,
    /// Values of the symbols, and all operands, for each run.
    pub runs: Vec<(Bindings, Vec<HostTensor>)>,
    /// Factor on the error bound.
    pub slack: f64,
    /// Expected number of dispatches if no weight is split; `None` if it does not matter.
    pub dispatches: Option<usize>,
}

/// The operator's surroundings in the graph.
#[derive(Clone, Copy, Debug)]
struct Surroundings {
    /// The result is not a graph output: another operator reads it under another name, so it is
    /// stored like the plan's other floats.
    inner: bool,
    /// Operands are also outputs, so that nothing may overwrite them.
    keep: bool,
}

/// Rounds floats to the precision of `storage`.
fn rounded(t: &HostTensor, storage: DType) -> Result<HostTensor, String> {
    if t.dtype() != DType::F32 || storage != DType::F16 {
        return Ok(t.clone());
    }
    let data: Vec<f32> = t
        .f32s()
        .map_err(|e| e.to_string())?
        .iter()
        .map(|v| half::f16::from_f32(*v).to_f32())
        .collect();
    HostTensor::from_f32(t.shape(), &data).map_err(|e| e.to_string())
}

impl Scenario {
    /// A conformance case. If every operand is constant, which shape inference would fold, integers
    /// become known expressions instead, as in a model with symbols.
    pub fn of(case: &Case) -> Result<Self, String> {
        let tensors: Vec<HostTensor> = (1..)
            .zip(&case.inputs)
            .map(|(seed, i)| i.make(seed).map_err(|e| e.to_string()))
            .collect::<Result<_, _>>()?;
        let folds = case.inputs.iter().all(|i| i.is_const);
        let operands = case
            .inputs
            .iter()
            .zip(&tensors)
            .map(|(i, t)| {
                let mut fact = Fact::new(t.dtype(), Shape::fixed(t.shape()));
                if folds && t.dtype().is_int() {
                    let list = t.to_i64().map_err(|e| e.to_string())?;
                    fact.known = Known::Dims(list.into_iter().map(Dim::from).collect());
                } else if i.is_const {
                    fact = Fact::of(Arc::new(t.clone()));
                }
                Ok(fact)
            })
            .collect::<Result<_, String>>()?;
        Ok(Self {
            op: case.op.clone(),
            operands,
            bounds: Bindings::new(),
            runs: vec![(Bindings::new(), tensors)],
            slack: case.slack,
            dispatches: case.dispatches,
        })
    }

    /// The operator's results on the host.
    pub fn reference(&self, operands: &[HostTensor]) -> Result<Vec<HostTensor>, String> {
        let inputs: Vec<Option<&HostTensor>> = operands.iter().map(Some).collect();
        let results = self.op.eval(&inputs).map_err(|e| format!("reference: {e}"))?;
        if results.is_empty() {
            return Err("reference: expected a result".to_owned());
        }
        Ok(results)
    }

    /// Which of the operator's results are floats; empty if none can be derived, since the graph
    /// then reports the error.
    fn results(&self) -> Vec<bool> {
        let facts: Vec<Option<&Fact>> = self.operands.iter().map(Some).collect();
        let constraints = Constraints::default();
        let found = self.op.infer(&InferCx::new(&facts, &constraints));
        let found: Vec<bool> = found.iter().flatten().map(|fact| fact.dtype.is_float()).collect();
        if found.is_empty() { vec![false] } else { found }
    }

    /// Number of operators in `form` that read the result, each a dispatch of its own.
    fn readers(&self, form: Surroundings) -> usize {
        let floats = self.results().into_iter().filter(|float| *float);
        floats.filter(|_| form.inner).count()
    }

    fn graph(&self, form: Surroundings, storage: DType) -> LibResult<Graph> {
        let mut graph = Graph::default();
        let mut edit = Edit::new(&mut graph);
        let mut inputs = Vec::new();
        for (i, fact) in self.operands.iter().enumerate() {
            let mut fact = fact.clone();
            if let Known::Const(t) = &fact.known {
                fact = Fact::of(Arc::new(
                    rounded(t, storage).unwrap_or_else(|_| t.as_ref().clone()),
                ));
            }
            let data = fact.known == Known::No;
            let v = edit.add_value(&format!("x{i}"), Some(fact));
            if data {
                edit.add_input(v);
                if form.keep {
                    edit.add_output(v);
                }
            }
            inputs.push(Some(v));
        }
        let floats = self.results();
        let results: Vec<ValueId> = (0..floats.len())
            .map(|i| edit.add_value(&format!("y{i}"), None))
            .collect();
        edit.add_node("node", Vec::new(), self.op.clone(), inputs, results.clone());
        if form.inner {
            let axis = HostTensor::from_i64(&[1], &[0])
                .map_err(|e| crate::error::Error::other(crate::error::Stage::Run, e.to_string()))?;
            let axis = edit.add_const("axis", Arc::new(axis));
            for (i, (y, float)) in results.into_iter().zip(floats).enumerate() {
                let out = edit.add_value(&format!("out{i}"), None);
                let name = match float {
                    true => edit.add_value(&format!("name{i}"), None),
                    false => out,
                };
                let inputs = vec![Some(y), Some(axis)];
                edit.add_node(
                    &format!("alias{i}"),
                    Vec::new(),
                    Box::new(Reshape::Unsqueeze),
                    inputs,
                    vec![name],
                );
                if float {
                    let same = Pointwise {
                        name: "Identity".to_owned(),
                        expr: Expr::Input(0),
                    };
                    edit.add_node(
                        &format!("reader{i}"),
                        Vec::new(),
                        Box::new(same),
                        vec![Some(name)],
                        vec![out],
                    );
                }
                edit.add_output(out);
            }
        } else {
            results.into_iter().for_each(|y| edit.add_output(y));
        }
        derive(&mut graph)?;
        Ok(graph)
    }

    /// The graph of the operators into which the operator decomposes, if it does.
    fn parts(&self, form: Surroundings, storage: DType) -> LibResult<Graph> {
        let mut graph = self.graph(form, storage)?;
        // Values known as expressions have no producer, which a pass would refuse.
        let known = |f: &Fact| matches!(f.known, Known::Dims(_) | Known::Quotients(_));
        if self.operands.iter().any(known) {
            return Ok(graph);
        }
        let pipeline = Pipeline {
            passes: vec![DECOMPOSE],
            edit_limit: usize::MAX,
        };
        pipeline.run(&mut graph)?;
        Ok(graph)
    }

    fn options(&self, storage: DType) -> Options {
        Options {
            float: storage,
            bounds: self.bounds.clone(),
            ..Options::default()
        }
    }

    /// Upper bound on the number of terms in any sum: the largest axis or, for reductions over
    /// several axes, the size of the largest operand divided by that of the result.
    fn terms(tensors: &[HostTensor], result: &HostTensor) -> usize {
        let axis = tensors
            .iter()
            .flat_map(|t| t.shape().iter().copied())
            .max()
            .unwrap_or(1);
        let fold = tensors
            .iter()
            .map(|t| t.len() / result.len().max(1))
            .max()
            .unwrap_or(1);
        axis.max(fold)
    }
}

/// The number of dispatches of a plan of `scenario`.
pub fn plan(scenario: &Scenario, caps: &Caps) -> LibResult<usize> {
    let graph = scenario.graph(
        Surroundings {
            inner: false,
            keep: false,
        },
        DType::F16,
    )?;
    Ok(Plan::compile(&graph, caps, &scenario.options(DType::F16))?
        .steps
        .len())
}

/// The kernels of the plan that [`Depth::Quick`] runs.
pub fn quick_specs(scenario: &Scenario, caps: &Caps, storage: DType) -> LibResult<Vec<KernelSpec>> {
    let form = forms(storage).first().copied().unwrap_or(Surroundings {
        inner: false,
        keep: false,
    });
    let graph = scenario.parts(form, storage)?;
    Ok(Plan::compile(&graph, caps, &scenario.options(storage))?.kernels)
}

/// The kernels of all plans of `scenario` on a device with these capabilities.
pub fn specs(scenario: &Scenario, caps: &Caps) -> LibResult<Vec<KernelSpec>> {
    let mut all = Vec::new();
    for storage in [DType::F16, DType::F32] {
        for (inner, keep) in [(false, false), (false, true), (true, false), (true, true)] {
            let graph = scenario.parts(Surroundings { inner, keep }, storage)?;
            all.extend(Plan::compile(&graph, caps, &scenario.options(storage))?.kernels);
        }
    }
    Ok(all)
}

/// Gives every location in the arena its own memory, with a guard zone before the first and after
/// each.
pub fn spread(plan: &mut Plan, align: u64) -> Vec<Storage> {
    let guard = align.max(64);
    let mut next = guard;
    let mut moved: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    // A view moves with the tensor that contains it.
    let tensors = plan.tensors.clone();
    let whole = |offset: u64, len: u64| {
        let mut t = tensors.iter().find(|t| (t.offset, t.bytes) == (offset, len))?;
        while let Some(Shared::View(of)) = &t.shared {
            t = tensors.iter().find(|t| t.name == *of)?;
        }
        Some((t.offset, t.bytes))
    };
    let places = plan.steps.iter_mut().flat_map(|s| &mut s.args);
    let ports = plan.inputs.iter_mut().chain(&mut plan.outputs);
    for place in places.chain(ports.filter_map(|p| p.place.as_mut())) {
        if let Storage::Arena { offset, len, .. } = place {
            let (from, size) = whole(*offset, *len).unwrap_or((*offset, *len));
            let at = *moved.entry((from, size)).or_insert_with(|| {
                let at = next;
                next = (at + size + guard).next_multiple_of(align);
                at
            });
            *offset = at + (*offset - from);
        }
    }
    plan.memory.arena = next;
    moved
        .iter()
        .map(|((_, len), at)| Storage::Arena {
            tensor: 0,
            offset: *at,
            len: *len,
        })
        .collect()
}

/// Numbers of compute units for which matmuls use the largest, medium and smallest tiles.
pub const UNITS: [u32; 3] = [1, 8, 4096];

/// Whether the kernel normalises a row to halves.
fn norms_halves(spec: &KernelSpec) -> bool {
    let mut bound = spec.bound();
    spec.kernel.name == "matvec_e0m_mma" && bound.any(|(arg, _)| arg.name == "gain")
}

/// Describes the device as a GPU that shares the host's memory.
pub fn as_gpu(device: &mut DeviceProfile) {
    (device.simd, device.dedicated_memory) = (Simd::Gpu, false);
}

/// The device as kernel selection sees it: unchanged, with each number of compute `units` if local
/// memory is fast, and reading images of each kind that it has; with `phones` also as a GPU of each
/// family.
fn kinds(device: &dyn Bench, units: &[u32], phones: bool) -> Vec<Caps> {
    let caps = device.caps();
    let shared = units.iter().map(|units| {
        caps.clone().with(|device| {
            device.fast_local = true;
            device.compute_units = *units;
        })
    });
    let offered = caps.profile.images;
    let kinds = ImageKind::ALL.into_iter().filter(|kind| offered.offers(*kind));
    let by_image = kinds.map(|kind| {
        caps.clone().with(|device| {
            as_gpu(device);
            device.images.reads = Some(kind);
            device.view_align = device.view_align.max(offered.view_align(kind));
        })
    });
    // All relevant phone GPUs have half arithmetic.
    let able = phones && caps.profile.f16_math;
    let phones = Family::ALL.into_iter().filter(|_| able).map(|family| {
        caps.clone().with(|device| {
            as_gpu(device);
            device.set_family(Some(family));
        })
    });
    let whole = std::iter::once(caps.clone());
    whole.chain(shared).chain(by_image).chain(phones).collect()
}

/// The surroundings that are tried.
fn forms(storage: DType) -> &'static [Surroundings] {
    match storage {
        DType::F16 => &[
            Surroundings {
                inner: true,
                keep: false,
            },
            Surroundings {
                inner: true,
                keep: true,
            },
            Surroundings {
                inner: false,
                keep: false,
            },
        ],
        _ => &[
            Surroundings {
                inner: false,
                keep: false,
            },
            Surroundings {
                inner: false,
                keep: true,
            },
        ],
    }
}

/// Runs `scenario` with floats stored as `storage`. The error says what differs.
pub fn run(device: &dyn Bench, scenario: &Scenario, storage: DType, depth: Depth) -> Result<(), CaseError> {
    let forms = forms(storage);
    let forms = if depth == Depth::Quick { &forms[..1] } else { forms };
    // A weight above the device's binding limit is split; limits that no weight reaches change
    // nothing.
    let weight = scenario
        .operands
        .iter()
        .filter_map(Fact::as_const)
        .map(|t| t.byte_len() as u64)
        .max();
    let weight = weight.filter(|_| depth != Depth::Quick);
    let limits = weight.into_iter().flat_map(|w| [w / 2, w / 3, w / 5]).map(Some);
    let variants: Vec<_> = forms
        .iter()
        .map(|f| (f, None))
        .chain(limits.map(|l| (&forms[0], l)))
        .flat_map(|(form, limit)| {
            // Weight splits do not depend on the tile size, nor tile sizes on in-place operands.
            let units = match limit {
                _ if depth != Depth::Every => &[],
                Some(_) => &UNITS[1..2],
                None if form.keep => &[],
                None => &UNITS[..],
            };
            // Phones store halves.
            let phones = depth == Depth::Every && limit.is_none() && form.inner && !form.keep;
            let kinds = kinds(device, units, phones);
            kinds.into_iter().map(move |caps| (form, limit, caps))
        })
        .collect();
    let mut seen: Vec<String> = Vec::new();
    for (form, limit, mut caps) in variants {
        let graph = scenario.parts(*form, storage)?;
        caps.profile.max_view_bytes = limit.unwrap_or(caps.profile.max_view_bytes);
        if storage == DType::F32 {
            // Long grids along one axis are folded.
            caps.profile.max_grid = 3;
        }
        let plan = match Plan::compile(&graph, &caps, &scenario.options(storage)) {
            // The smallest part that a kernel accepts is larger.
            Ok(plan) if limit.is_some() && !plan.host.is_empty() => continue,
            Err(_) if limit.is_some() => continue,
            Ok(plan) => plan,
            Err(e) => return Err(e.into()),
        };
        let wanted = scenario.dispatches.filter(|_| limit.is_none());
        let own = plan.steps.len() - scenario.readers(*form).min(plan.steps.len());
        if let Some(n) = wanted.filter(|n| *n != own) {
            return Err(format!("{form:?}: {own} dispatches, expected {n}").into());
        }
        if own == 0 {
            return Err("the plan has no dispatch, so nothing is tested on a device"
                .to_owned()
                .into());
        }
        let what = plan
            .steps
            .iter()
            .map(|s| format!("{} {:?}", plan.kernels[s.kernel], plan.kernels[s.kernel].epilogue))
            .collect::<Vec<_>>()
            .join(", ");
        if seen.contains(&what) {
            continue;
        }
        let kernels = plan.kernels.clone();
        one_form(
            device,
            scenario,
            storage,
            &graph,
            plan,
            (form.inner, caps.profile.view_align),
        )
        .map_err(|e| CaseError {
            why: format!("{form:?}, views of {limit:?} bytes, {what}: {e}"),
            kernels,
            ..e
        })?;
        seen.push(what);
    }
    Ok(())
}

/// The tunable settings of the kernels that `scenario` uses on a device with `caps`, without
/// duplicates.
pub fn tunables(
    scenario: &Scenario,
    caps: &Caps,
    storage: DType,
) -> Result<Vec<&'static Tunable>, CaseError> {
    let graph = scenario.parts(forms(storage)[0], storage)?;
    let plan = Plan::compile(&graph, caps, &scenario.options(storage))?;
    let mut found: Vec<&'static Tunable> = Vec::new();
    for tuning in plan.steps.iter().filter_map(|s| s.tuning.as_ref()) {
        if found.iter().all(|t| t.kernel.name != tuning.tunable.kernel.name) {
            found.push(tuning.tunable);
        }
    }
    Ok(found)
}

/// The kernels that [`run_as`] runs.
///
/// # Errors
///
/// The scenario cannot be planned.
pub fn kernels(scenario: &Scenario, caps: &Caps, storage: DType) -> Result<Vec<KernelSpec>, CaseError> {
    let graph = scenario.parts(forms(storage)[0], storage)?;
    Ok(Plan::compile(&graph, caps, &scenario.options(storage))?.kernels)
}

/// Runs the first form of `scenario` with the kernels for a device with `caps`, which `device` must
/// be able to run.
pub fn run_as(device: &dyn Bench, scenario: &Scenario, storage: DType, caps: &Caps) -> Result<(), CaseError> {
    let form = forms(storage)[0];
    let graph = scenario.parts(form, storage)?;
    let plan = Plan::compile(&graph, caps, &scenario.options(storage))?;
    let kernels = plan.kernels.clone();
    one_form(
        device,
        scenario,
        storage,
        &graph,
        plan,
        (form.inner, caps.profile.view_align),
    )
    .map_err(|e| CaseError { kernels, ..e })
}

/// Bytes of `count` elements including padding.
fn padded(dtype: DType, count: usize) -> usize {
    (count * if dtype == DType::F16 { 2 } else { 4 })
        .next_multiple_of(8)
        .max(8)
}

/// Contents of the arena before or after a run.
struct Arena {
    view: View,
    bytes: Vec<u8>,
}

impl Arena {
    fn read(executor: &mut Executor) -> Result<Self, CaseError> {
        let view = executor.arena();
        let mut bytes = vec![0; usize::try_from(view.len).unwrap_or(0)];
        executor.backend().read(view, &mut bytes)?;
        Ok(Self { view, bytes })
    }

    fn write(&self, executor: &mut Executor) -> Result<(), CaseError> {
        Ok(executor.backend().write(self.view, &self.bytes)?)
    }
}

/// Element type and location of the input of the elementwise kernel that writes at byte `to` of the
/// arena.
fn read_for(plan: &Plan, to: u64) -> Option<(DType, usize, u64)> {
    let found = plan.steps.iter().find_map(|step| {
        let spec = plan.kernels.get(step.kernel)?;
        let all = || step.args.iter().zip(spec.bound());
        let writes = |(place, (arg, _)): (&Storage, (&Arg, DType))| {
            arg.role.writes() && matches!(place, Storage::Arena { offset, .. } if *offset == to)
        };
        (spec.kernel.name == "pointwise" && all().any(writes)).then(|| {
            all().find_map(|(place, (arg, dtype))| match place {
                Storage::Arena { offset, tensor, .. } if !arg.role.writes() => {
                    Some((dtype, *tensor, *offset))
                }
                _ => None,
            })
        })
    });
    found.flatten()
}

fn one_form(
    device: &dyn Bench,
    scenario: &Scenario,
    storage: DType,
    graph: &Graph,
    mut plan: Plan,
    (inner, align): (bool, u64),
) -> Result<(), CaseError> {
    if let Some(step) = plan.host.first() {
        return Err(format!("\"{}\" runs on the host: {}", step.name, step.why).into());
    }
    // The parts of an operator share memory, so guard zones would separate what belongs together,
    // and intermediate floats are stored.
    let in_parts = graph.nodes().all(|(_, n)| !n.op.dyn_eq(scenario.op.as_ref()));
    let places = if in_parts {
        Vec::new()
    } else {
        spread(&mut plan, align)
    };
    // Slots that some step writes: the whole slot may change, an output's only up to the padding.
    let mut written: HashMap<u64, u64> = HashMap::new();
    for step in &plan.steps {
        let spec = &plan.kernels[step.kernel];
        let shared = spec.shared().map(|a| a.name);
        for (place, (arg, _)) in step.args.iter().zip(spec.bound()) {
            let writes = arg.role.writes() || shared == Some(arg.name);
            if let (true, Storage::Arena { offset, len, .. }) = (writes, place) {
                written.insert(*offset, *len);
            }
        }
    }
    // Operands that are kept are also outputs, before the results.
    let from = graph.outputs().len().saturating_sub(scenario.results().len());
    let mut results = Vec::new();
    for v in &graph.outputs()[from..] {
        let name = &graph.value(*v).name;
        let port = plan
            .output(name)
            .ok_or_else(|| "the plan has no output port for the result".to_owned())?
            .clone();
        let Some(Storage::Arena { offset, tensor, .. }) = port.place else {
            return Err(format!("\"{name}\" is outside the arena").into());
        };
        // What a following operator reads is the result itself.
        let read = inner.then(|| read_for(&plan, offset)).flatten();
        let (stored, tensor, offset) = read.unwrap_or((port.device, tensor, offset));
        // A result inside another value is followed by the rest of that value.
        let shared = plan.tensors.get(tensor).and_then(|t| t.shared.as_ref());
        let is_part = matches!(shared, Some(Shared::View(_)));
        results.push((name.clone(), stored, (!is_part).then_some(offset)));
    }
    let any = |of: fn(&KernelSpec) -> bool| plan.kernels.iter().any(of);
    let pairs = if any(KernelSpec::multiplies_halves) {
        PAIRS
    } else {
        0.0
    };
    let normed = if any(norms_halves) { NORMED } else { 0.0 };
    let inputs = plan.inputs.clone();
    let by_image = plan.kernels.iter().any(|k| !k.images.is_empty());
    let (backend, guards) = device.share(align);
    let language = backend.caps().profile.language;
    let ties = if plan
        .kernels
        .iter()
        .any(|spec| spec.uses(language, Feature::PackedDot))
    {
        TIES
    } else {
        0.0
    };
    let images = backend.stats().images;
    let mut executor = Executor::new(backend, graph, vec![plan])?;
    let stats = executor.stats();
    if by_image && stats.images == images {
        return Err("the driver refused images that it has created before"
            .to_owned()
            .into());
    }
    for (bindings, operands) in &scenario.runs {
        let operands: Vec<HostTensor> = operands
            .iter()
            .map(|t| rounded(t, storage))
            .collect::<Result<_, _>>()?;
        let wanted = scenario.reference(&operands)?;
        for ((_, stored, at), wanted) in results.iter().zip(&wanted) {
            if let Some(at) = at {
                written.insert(*at, padded(*stored, wanted.len()) as u64);
            }
        }
        let mut first: Vec<HostTensor> = Vec::new();
        // NaN, which shows in sums, and large numbers of either sign, which show in a maximum.
        for (run, poison) in (1..).zip([POISON, 0x7b, 0xfb]) {
            let at = |e: String| CaseError::wrong(format!("run {run}, {bindings:?}: {e}"));
            let mut before = Arena {
                view: executor.arena(),
                bytes: Vec::new(),
            };
            before.bytes = vec![poison; usize::try_from(before.view.len).unwrap_or(0)];
            before.write(&mut executor)?;
            for (i, tensor) in operands.iter().enumerate() {
                let name = format!("x{i}");
                if graph.input(&name).is_some() {
                    executor.write(0, &name, tensor)?;
                }
            }
            before = Arena::read(&mut executor)?;
            for port in &inputs {
                let Some(Storage::Arena { offset, .. }) = port.place else {
                    continue;
                };
                let count: usize = port
                    .shape
                    .eval(bindings)
                    .map_err(|e| e.to_string())?
                    .iter()
                    .product();
                let from = usize::try_from(offset).unwrap_or(0)
                    + count * if port.device == DType::F16 { 2 } else { 4 };
                let to = usize::try_from(offset).unwrap_or(0) + padded(port.device, count);
                before.bytes[from..to].fill(poison);
            }
            before.write(&mut executor)?;
            executor.run(0, bindings)?;
            let mut found = Vec::new();
            for (name, ..) in &results {
                found.push(executor.read(0, name)?);
            }
            let after = Arena::read(&mut executor)?;
            if !in_parts {
                untouched(&before.bytes, &after.bytes, &written, &places).map_err(at)?;
            }
            for (((name, stored, _), wanted), found) in results.iter().zip(&wanted).zip(&found) {
                let stored = if in_parts { storage } else { *stored };
                let limit = (bound(stored, Scenario::terms(&operands, wanted)) + pairs + normed + ties)
                    * scenario.slack;
                let nmse = compare(wanted, found, limit).map_err(|e| at(format!("{name}: {e}")))?;
                log::debug!(
                    "{nmse:.2e} of {limit:.2e}: {:?}, {name} stored as {stored}",
                    scenario.op
                );
            }
            let bits = |all: &[HostTensor]| -> Vec<Option<Vec<u8>>> {
                all.iter().map(|t| t.bytes().ok().map(<[u8]>::to_vec)).collect()
            };
            if first.is_empty() {
                first = found;
            } else if bits(&first) != bits(&found) {
                return Err(at("the results differ from those of the first run".into()));
            }
        }
    }
    guards().map_err(CaseError::wrong)?;
    let now = executor.stats();
    if (now.compiles, now.recordings) != (stats.compiles, stats.recordings) {
        return Err("a run compiled or recorded something again".to_owned().into());
    }
    Ok(())
}

/// Fails if a byte outside of `written` (offset and length) has changed.
fn untouched(
    before: &[u8],
    after: &[u8],
    written: &HashMap<u64, u64>,
    places: &[Storage],
) -> Result<(), String> {
    let changed = before.iter().zip(after).enumerate().filter(|(_, (b, a))| b != a);
    for (i, _) in changed {
        let i = i as u64;
        if written.iter().any(|(at, len)| (*at..at + len).contains(&i)) {
            continue;
        }
        let slot = places.iter().filter_map(|p| match p {
            Storage::Arena { offset, len, .. } if *offset <= i => Some((*offset, *len)),
            _ => None,
        });
        let (at, len) = slot.max().unwrap_or((0, 0));
        let kind = if written.contains_key(&at) {
            "a result"
        } else {
            "an operand"
        };
        return Err(format!(
            "byte {} of the slot of {kind} of {len} bytes was written",
            i - at
        ));
    }
    Ok(())
}
