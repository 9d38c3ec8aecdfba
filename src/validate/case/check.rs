//! Runs a plan of a scenario. Checks that the results match the reference, that memory outside the
//! results is unchanged, and that further runs give the same results.

use super::memory::{Arena, Slot, padded, spread, unpadded, untouched};
use super::scenario::rounded;
use super::{Bench, CaseError, Guards, POISON, PlannedCase, Scenario};
use crate::backend::Stats;
use crate::backend::kernel::{Arg, Feature, KernelSpec, Language};
use crate::executor::Executor;
use crate::graph::Graph;
use crate::num;
use crate::plan::{Plan, Port, Shared, Storage};
use crate::shape::Bindings;
use crate::tensor::{DType, HostTensor};
use crate::validate::compare::{NORMED, PAIRS, TIES, bound, compare};
use std::collections::HashMap;

/// Contents of memory before each run. A NaN that is read by mistake shows up in sums; large
/// numbers of either sign show up in a maximum.
const POISONS: [u8; 3] = [POISON, 0x7b, 0xfb];

/// Runs the plan once for each run of its scenario.
pub(super) fn check(device: &dyn Bench, planned: PlannedCase<'_>) -> Result<(), CaseError> {
    let mut check = Check::set_up(device, planned)?;
    let scenario = check.scenario;
    for (bindings, operands) in &scenario.runs {
        check.check_run(bindings, operands)?;
    }
    check.finish()
}

/// A result of the operator.
struct ResultPort {
    name: String,
    stored: DType,
    /// Offset in the arena; `None` for a result inside another value, which no guard zone follows.
    offset: Option<u64>,
}

/// A loaded plan and the expectations for its runs.
struct Check<'a> {
    scenario: &'a Scenario,
    storage_type: DType,
    graph: Graph,
    executor: Executor,
    guards: Guards,
    inputs: Vec<Port>,
    results: Vec<ResultPort>,
    /// The plan runs the operators into which the operator decomposes. They share memory, so guard
    /// zones cannot separate all tensors, and intermediate floats are stored.
    is_decomposed: bool,
    slots: Vec<Slot>,
    /// Lengths of the ranges that steps may write, by offset in the arena.
    writable: HashMap<u64, u64>,
    /// Added to the error bound because of how the kernels compute.
    tolerance: f64,
    /// The backend's totals after loading.
    loaded: Stats,
}

impl<'a> Check<'a> {
    fn set_up(device: &dyn Bench, planned: PlannedCase<'a>) -> Result<Self, CaseError> {
        let PlannedCase {
            scenario,
            storage_type,
            form,
            graph,
            mut plan,
            align,
        } = planned;
        if let Some(step) = plan.host.first() {
            return Err(format!("\"{}\" runs on the host: {}", step.name, step.why).into());
        }
        let is_decomposed = graph.nodes().all(|(_, n)| !n.op.dyn_eq(scenario.op.as_ref()));
        let slots = match is_decomposed {
            true => Vec::new(),
            false => spread(&mut plan, align),
        };
        let results = result_ports(scenario, &graph, &plan, form.inner)?;
        let (inputs, writable) = (plan.inputs.clone(), written(&plan));
        let reads_images = plan.kernels.iter().any(|k| !k.images.is_empty());
        let (backend, guards) = device.share(align);
        let tolerance = tolerance(&plan, backend.caps().profile.language());
        let images = backend.stats().images;
        let executor = Executor::new(backend, &graph, vec![plan])?;
        let loaded = executor.stats();
        if reads_images && loaded.images == images {
            let refused = "the driver refused images that it has created before";
            return Err(refused.to_owned().into());
        }
        Ok(Self {
            scenario,
            storage_type,
            graph,
            executor,
            guards,
            inputs,
            results,
            is_decomposed,
            slots,
            writable,
            tolerance,
            loaded,
        })
    }

    /// Runs the plan several times with these operands, each time in memory with different initial
    /// contents.
    fn check_run(&mut self, bindings: &Bindings, operands: &[HostTensor]) -> Result<(), CaseError> {
        let operands = operands.iter().map(|t| rounded(t, self.storage_type));
        let operands: Vec<HostTensor> = operands.collect::<Result<_, _>>().map_err(|e| e.to_string())?;
        let wanted = self.scenario.reference(&operands)?;
        for (result, wanted) in self.results.iter().zip(&wanted) {
            if let Some(offset) = result.offset {
                let bytes = padded(result.stored, wanted.len());
                self.writable.insert(offset, num::wide(bytes));
            }
        }
        let mut first: Option<Vec<HostTensor>> = None;
        for (run, poison) in (1..).zip(POISONS) {
            let before = self.prepare(poison, bindings, &operands)?;
            self.executor.run(0, bindings)?;
            let found = self.read_results()?;
            let after = Arena::read(&mut self.executor)?;
            self.check_memory(&before, &after)
                .and_then(|()| self.check_results(&operands, &wanted, &found))
                .and_then(|()| same_bits(first.get_or_insert_with(|| found.clone()), &found))
                .map_err(|e| CaseError::wrong(format!("run {run}, {bindings:?}: {e}")))?;
        }
        Ok(())
    }

    /// Fills the arena with `poison` except for the operands, and returns its contents.
    fn prepare(
        &mut self,
        poison: u8,
        bindings: &Bindings,
        operands: &[HostTensor],
    ) -> Result<Arena, CaseError> {
        Arena::filled(&self.executor, poison)?.write(&mut self.executor)?;
        for (i, tensor) in operands.iter().enumerate() {
            let name = format!("x{i}");
            if self.graph.input(&name).is_some() {
                self.executor.write(0, &name, tensor)?;
            }
        }
        let mut arena = Arena::read(&mut self.executor)?;
        // Writing an input also fills its padding.
        for port in &self.inputs {
            let Some(Storage::Arena { offset, .. }) = port.storage else {
                continue;
            };
            let shape = port.shape.eval(bindings).map_err(|e| e.to_string())?;
            let count = shape.iter().product();
            let start: usize = num::exact(offset, "the offset of an input")?;
            let padding = start + unpadded(port.device, count)..start + padded(port.device, count);
            arena.bytes[padding].fill(poison);
        }
        arena.write(&mut self.executor)?;
        Ok(arena)
    }

    fn read_results(&mut self) -> Result<Vec<HostTensor>, CaseError> {
        let names = self.results.iter().map(|result| &result.name);
        let found = names.map(|name| self.executor.read(0, name));
        Ok(found.collect::<Result<_, _>>()?)
    }

    fn check_memory(&self, before: &Arena, after: &Arena) -> Result<(), String> {
        match self.is_decomposed {
            true => Ok(()),
            false => untouched(&before.bytes, &after.bytes, &self.writable, &self.slots),
        }
    }

    fn check_results(
        &self,
        operands: &[HostTensor],
        wanted: &[HostTensor],
        found: &[HostTensor],
    ) -> Result<(), String> {
        for ((ResultPort { name, stored, .. }, wanted), found) in self.results.iter().zip(wanted).zip(found) {
            let stored = if self.is_decomposed {
                self.storage_type
            } else {
                *stored
            };
            let rounding = bound(stored, Scenario::terms(operands, wanted));
            let limit = (rounding + self.tolerance) * self.scenario.slack;
            let nmse = compare(wanted, found, limit).map_err(|e| format!("{name}: {e}"))?;
            let op = &self.scenario.op;
            log::debug!("{nmse:.2e} of {limit:.2e}: {op:?}, {name} stored as {stored}");
        }
        Ok(())
    }

    /// Checks what can be checked only after all runs.
    fn finish(self) -> Result<(), CaseError> {
        (self.guards)().map_err(CaseError::wrong)?;
        let now = self.executor.stats();
        if (now.compiles, now.recordings) != (self.loaded.compiles, self.loaded.recordings) {
            return Err("a run compiled or recorded something again".to_owned().into());
        }
        Ok(())
    }
}

fn same_bits(first: &[HostTensor], found: &[HostTensor]) -> Result<(), String> {
    let same = |(a, b): (&HostTensor, &HostTensor)| a.bytes().ok() == b.bytes().ok();
    match first.iter().zip(found).all(same) {
        true => Ok(()),
        false => Err("the results differ from those of the first run".to_owned()),
    }
}

/// Slots that some step writes. All of a slot may change.
fn written(plan: &Plan) -> HashMap<u64, u64> {
    let mut written = HashMap::new();
    for step in &plan.steps {
        let spec = &plan.kernels[step.kernel];
        let shared = spec.shared().map(|a| a.name);
        for (storage, (arg, _)) in step.args.iter().zip(spec.bound()) {
            let writes = arg.role.writes() || shared == Some(arg.name);
            if let (true, Storage::Arena { offset, len, .. }) = (writes, storage) {
                written.insert(*offset, *len);
            }
        }
    }
    written
}

/// The results of the operator. If `inner`, they are the values that the next operator reads.
fn result_ports(
    scenario: &Scenario,
    graph: &Graph,
    plan: &Plan,
    inner: bool,
) -> Result<Vec<ResultPort>, CaseError> {
    // Kept operands are also graph outputs; they come before the results.
    let kept = graph.outputs().len().saturating_sub(scenario.results().len());
    let names = graph.outputs()[kept..].iter().map(|v| &graph.value(*v).name);
    let ports = names.map(|name| {
        let port = plan
            .output(name)
            .ok_or_else(|| "the plan has no output port for the result".to_owned())?;
        let Some(Storage::Arena { offset, tensor, .. }) = port.storage else {
            return Err(format!("\"{name}\" is outside the arena").into());
        };
        let read = inner.then(|| reader_input(plan, offset)).flatten();
        let (stored, tensor, offset) = read.unwrap_or((port.device, tensor, offset));
        let shared = plan.tensors.get(tensor).and_then(|t| t.shared.as_ref());
        let is_view = matches!(shared, Some(Shared::View(_)));
        Ok(ResultPort {
            name: name.clone(),
            stored,
            offset: (!is_view).then_some(offset),
        })
    });
    ports.collect()
}

/// Element type, tensor and offset of the input of the elementwise kernel that writes at byte `to`
/// of the arena.
fn reader_input(plan: &Plan, to: u64) -> Option<(DType, usize, u64)> {
    let found = plan.steps.iter().find_map(|step| {
        let spec = plan.kernels.get(step.kernel)?;
        let all = || step.args.iter().zip(spec.bound());
        let writes = |(storage, (arg, _)): (&Storage, (&Arg, DType))| {
            arg.role.writes() && matches!(storage, Storage::Arena { offset, .. } if *offset == to)
        };
        (spec.kernel.name == "pointwise" && all().any(writes)).then(|| {
            all().find_map(|(storage, (arg, dtype))| match storage {
                Storage::Arena { offset, tensor, .. } if !arg.role.writes() => {
                    Some((dtype, *tensor, *offset))
                }
                _ => None,
            })
        })
    });
    found.flatten()
}

/// Amount by which the arithmetic of the kernels raises the error bound.
fn tolerance(plan: &Plan, language: Option<Language>) -> f64 {
    let any = |of: &dyn Fn(&KernelSpec) -> bool| plan.kernels.iter().any(of);
    let terms = [
        (PAIRS, any(&KernelSpec::multiplies_halves)),
        (NORMED, any(&norms_halves)),
        (
            TIES,
            any(&|spec| language.is_some_and(|l| spec.uses(l, Feature::PackedDot))),
        ),
    ];
    terms.iter().filter(|(_, used)| *used).map(|(term, _)| term).sum()
}

/// Whether the kernel normalizes a row and rounds it to half precision.
fn norms_halves(spec: &KernelSpec) -> bool {
    let mut bound = spec.bound();
    matches!(spec.kernel.name, "matvec_e0m_mma" | "matmul_e0m_few")
        && bound.any(|(arg, _)| arg.name == "gain")
}
