//! Runs one operator case on a device and compares it with the reference. The case is planned in
//! several forms, and guard zones surround the memory that each plan may write.

use crate::backend::device_presets::Family;
use crate::backend::kernel::KernelSpec;
use crate::backend::kernel::image::ImageKind;
use crate::backend::tunable::Tunable;
use crate::backend::{Backend, Caps, SharedBackend};
use crate::error::Result as LibResult;
use crate::graph::Graph;
use crate::num;
use crate::plan::Plan;
use crate::shape::Fact;
use crate::tensor::DType;
pub use error::{CaseError, Fault};
pub use scenario::Scenario;
use scenario::Surroundings;

mod check;
mod error;
mod memory;
mod scenario;

/// Byte that marks memory never written: NaN in every float type.
pub const POISON: u8 = 0xff;

/// Checks for writes outside of buffers; the error contains the location.
pub type Guards = Box<dyn Fn() -> Result<(), String>>;

/// A device that runs cases.
pub trait Bench {
    fn caps(&self) -> &Caps;

    /// A backend for one executor whose views are aligned to `align`, and the guards of its
    /// buffers.
    fn share(&self, align: u64) -> (Box<dyn Backend>, Guards);
}

impl Bench for SharedBackend {
    fn caps(&self) -> &Caps {
        Backend::caps(self)
    }

    /// By default, buffers have no guards: nearly everything is written to one arena.
    fn share(&self, align: u64) -> (Box<dyn Backend>, Guards) {
        (Box::new(self.aligned(align)), Box::new(|| Ok(())))
    }
}

/// How many forms of a scenario are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    Quick,
    /// Every form, with weights whole and split.
    Whole,
    /// Every form, and also tiled kernels in each tile size, whether or not the device would choose
    /// them.
    Every,
}

/// A plan of a scenario.
struct PlannedCase<'a> {
    scenario: &'a Scenario,
    storage_type: DType,
    form: Surroundings,
    graph: Graph,
    plan: Plan,
    /// Alignment of views.
    align: u64,
}

impl<'a> PlannedCase<'a> {
    fn new(scenario: &'a Scenario, storage_type: DType, form: Surroundings, caps: &Caps) -> LibResult<Self> {
        let graph = scenario.parts(form, storage_type)?;
        let plan = Plan::compile(&graph, caps, &scenario.options(storage_type))?;
        Ok(Self {
            scenario,
            storage_type,
            form,
            graph,
            plan,
            align: caps.profile.view_align,
        })
    }

    /// The plan for the first surroundings.
    fn usual(scenario: &'a Scenario, storage_type: DType, caps: &Caps) -> LibResult<Self> {
        Self::new(scenario, storage_type, Surroundings::tried(storage_type)[0], caps)
    }

    /// Checks that the operator has at least one dispatch, and `wanted` dispatches if that is
    /// known.
    fn check_dispatches(&self, wanted: Option<usize>) -> Result<(), String> {
        let all = self.plan.steps.len();
        let own = all - self.scenario.readers(self.form).min(all);
        match wanted {
            Some(n) if n != own => Err(format!("{:?}: {own} dispatches, expected {n}", self.form)),
            _ if own == 0 => Err("the plan has no dispatch, so nothing is tested on a device".to_owned()),
            _ => Ok(()),
        }
    }

    /// The kernels of the plan's steps.
    fn steps(&self) -> String {
        let specs = self.plan.steps.iter().map(|s| &self.plan.kernels[s.kernel]);
        let steps: Vec<String> = specs.map(|spec| format!("{spec} {:?}", spec.epilogue)).collect();
        steps.join(", ")
    }

    /// Runs the plan and checks its results.
    fn check(self, device: &dyn Bench) -> Result<(), CaseError> {
        let kernels = self.plan.kernels.clone();
        check::check(device, self).map_err(|e| CaseError { kernels, ..e })
    }
}

/// The number of dispatches of a plan of `scenario`.
pub fn plan(scenario: &Scenario, caps: &Caps) -> LibResult<usize> {
    let graph = scenario.graph(Surroundings::ALONE, DType::F16)?;
    let plan = Plan::compile(&graph, caps, &scenario.options(DType::F16))?;
    Ok(plan.steps.len())
}

/// The kernels of the plan that [`Depth::Quick`] and [`run_as`] use.
pub fn kernels(scenario: &Scenario, caps: &Caps, storage_type: DType) -> LibResult<Vec<KernelSpec>> {
    Ok(PlannedCase::usual(scenario, storage_type, caps)?.plan.kernels)
}

/// Whether a node of the plan that [`kernels`] describes runs on the host.
pub fn runs_on_host(scenario: &Scenario, caps: &Caps, storage_type: DType) -> LibResult<bool> {
    let plan = PlannedCase::usual(scenario, storage_type, caps)?.plan;
    Ok(!plan.host.is_empty())
}

/// The kernels of all plans of `scenario` on a device with these capabilities.
pub fn specs(scenario: &Scenario, caps: &Caps) -> LibResult<Vec<KernelSpec>> {
    let mut all = Vec::new();
    for storage_type in [DType::F16, DType::F32] {
        for form in Surroundings::ALL {
            all.extend(PlannedCase::new(scenario, storage_type, form, caps)?.plan.kernels);
        }
    }
    Ok(all)
}

/// The tunable settings of the kernels that `scenario` uses on a device with `caps`, without
/// duplicates.
pub fn tunables(scenario: &Scenario, caps: &Caps, storage_type: DType) -> LibResult<Vec<&'static Tunable>> {
    let plan = PlannedCase::usual(scenario, storage_type, caps)?.plan;
    let mut found: Vec<&'static Tunable> = Vec::new();
    for tuning in plan.steps.iter().filter_map(|s| s.tuning.as_ref()) {
        if found.iter().all(|t| t.kernel.name != tuning.tunable.kernel.name) {
            found.push(tuning.tunable);
        }
    }
    Ok(found)
}

/// Numbers of compute units for which matmuls use the largest, medium and smallest tiles.
pub const UNITS: [u32; 3] = [1, 8, 4096];

/// Capabilities with which kernels are selected for the device: its own; with fast local memory and
/// each number of compute `units`; reading images of each kind that it offers; and, with `phones`,
/// as a GPU of each family.
fn kinds(device: &dyn Bench, units: &[u32], phones: bool) -> Vec<Caps> {
    let caps = device.caps();
    if caps.profile.language().is_none() {
        return vec![caps.clone()];
    }
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
            device.images.reads = Some(kind);
            device.view_align = device.view_align.max(offered.view_align(kind));
        })
    });
    // All relevant phone GPUs have half-precision arithmetic.
    let able = phones && caps.profile.f16_math;
    let phones = Family::ALL.into_iter().filter(|_| able).map(|family| {
        caps.clone().with(|device| {
            device.dedicated_memory = false;
            device.set_family(Some(family));
        })
    });
    let whole = std::iter::once(caps.clone());
    whole.chain(shared).chain(by_image).chain(phones).collect()
}

/// The surroundings, binding size limits and capabilities with which a scenario is planned. Weights
/// are split only if there is a limit.
fn variants(
    device: &dyn Bench,
    scenario: &Scenario,
    storage_type: DType,
    depth: Depth,
) -> Vec<(Surroundings, Option<u64>, Caps)> {
    let (tried, quick) = (Surroundings::tried(storage_type), depth == Depth::Quick);
    let forms = if quick { &tried[..1] } else { tried };
    let weights = scenario.operands.iter().filter_map(Fact::as_const);
    let largest = weights.map(|t| num::wide(t.byte_len())).max().filter(|_| !quick);
    let limits = largest.into_iter().flat_map(|w| [w / 2, w / 3, w / 5]);
    let whole = forms.iter().map(|form| (*form, None));
    let split = limits.map(|limit| (forms[0], Some(limit)));
    let all = whole.chain(split).flat_map(|(form, limit)| {
        // Weight splits are independent of the tile size, and tile sizes of in-place operands.
        let units = match limit {
            _ if depth != Depth::Every => &[],
            Some(_) => &UNITS[1..2],
            None if form.keep => &[],
            None => &UNITS[..],
        };
        // Phones store floats in half precision.
        let phones = depth == Depth::Every && limit.is_none() && form.inner && !form.keep;
        let kinds = kinds(device, units, phones).into_iter();
        kinds.map(move |caps| (form, limit, caps))
    });
    all.collect()
}

/// Runs `scenario` with floats stored as `storage_type`. The error describes what differs.
pub fn run(
    device: &dyn Bench,
    scenario: &Scenario,
    storage_type: DType,
    depth: Depth,
) -> Result<(), CaseError> {
    let mut seen: Vec<String> = Vec::new();
    for (form, limit, mut caps) in variants(device, scenario, storage_type, depth) {
        caps.profile.max_view_bytes = limit.unwrap_or(caps.profile.max_view_bytes);
        if storage_type == DType::F32 {
            // Grids that are too long for one axis are folded.
            caps.profile.max_grid = 3;
        }
        let planned = match PlannedCase::new(scenario, storage_type, form, &caps) {
            // The limit is below the smallest part that a kernel accepts.
            Ok(planned) if limit.is_some() && !planned.plan.host.is_empty() => continue,
            Err(_) if limit.is_some() => continue,
            planned => planned?,
        };
        let counts = limit.is_none() && !caps.profile.divides_work();
        planned.check_dispatches(scenario.dispatches.filter(|_| counts))?;
        let steps = planned.steps();
        if seen.contains(&steps) {
            continue;
        }
        planned.check(device).map_err(|e| CaseError {
            why: format!("{form:?}, views of {limit:?} bytes, {steps}: {e}"),
            ..e
        })?;
        seen.push(steps);
    }
    Ok(())
}

/// Runs the first form of `scenario` on `device`, with the kernels selected for `caps`. `device`
/// must be able to run them.
pub fn run_as(
    device: &dyn Bench,
    scenario: &Scenario,
    storage_type: DType,
    caps: &Caps,
) -> Result<(), CaseError> {
    PlannedCase::usual(scenario, storage_type, caps)?.check(device)
}
