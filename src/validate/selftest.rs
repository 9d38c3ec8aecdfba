//! Runs the cases of all operators on a device.

use super::case::{self, Bench, CaseError, Depth, Fault, Scenario};
use crate::backend::kernel::KernelSpec;
use crate::backend::{Backend, Caps, QuarantineCause, Quarantined, SharedBackend, validation};
use crate::cache::Store;
use crate::cancel::Cancel;
use crate::graph::op::all;
use crate::graph::op::case::{Case, Input};
use crate::tensor::DType;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A failed case.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Failure {
    /// Operator, operands and storage type.
    pub case: String,
    /// What differs and by how much, or why the case could not run.
    pub why: String,
}

/// Results of the cases on a device.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Names of the passed cases: operator, operands and storage type.
    pub passed: Vec<String>,
    pub failed: Vec<Failure>,
    /// Kernel variants quarantined on the device, including those found by these cases.
    pub quarantined: Vec<Quarantined>,
    /// Duration of the test.
    pub took: Duration,
}

/// A case with a storage type.
struct Trial {
    case: Case,
    storage_type: DType,
}

impl Trial {
    fn name(&self) -> String {
        format!("{}/{}", self.case.name(), self.storage_type)
    }

    fn size(&self) -> usize {
        // Without elements, a case shows little.
        match self.case.inputs.iter().map(Input::elements).sum() {
            0 => usize::MAX - 1,
            size => size,
        }
    }

    fn specs(&self, caps: &Caps) -> Vec<KernelSpec> {
        let scenario = Scenario::of(&self.case);
        let specs = scenario.map(|s| case::kernels(&s, caps, self.storage_type));
        // Planning errors are reported when the case runs.
        specs.ok().and_then(Result::ok).unwrap_or_default()
    }
}

/// The cases that run on devices; if `quick`, the smallest case for each kernel that a device with
/// `caps` uses.
fn trials(caps: &Caps, quick: bool) -> Vec<Trial> {
    let cases = all().flat_map(|def| (def.cases)());
    let finite = caps.profile.keeps_special == Some(false);
    let cases = cases.filter(|case| case.host_only.is_none() && !(finite && case.has_special()));
    let storage_types = caps.profile.storage_types();
    let storage_types = &storage_types[..if quick { 1 } else { storage_types.len() }];
    let all = cases.flat_map(|case| {
        let of = move |storage_type: &DType| Trial {
            case: case.clone(),
            storage_type: *storage_type,
        };
        storage_types.iter().map(of).collect::<Vec<_>>()
    });
    if !quick {
        return all.collect();
    }
    let mut smallest: BTreeMap<&'static str, (usize, usize)> = BTreeMap::new();
    let all: Vec<Trial> = all.collect();
    for (i, trial) in all.iter().enumerate() {
        for spec in trial.specs(caps) {
            let place = smallest.entry(spec.kernel.name).or_insert((usize::MAX, i));
            *place = (*place).min((trial.size(), i));
        }
    }
    let chosen: BTreeSet<usize> = smallest.into_values().map(|(_, i)| i).collect();
    let kept = all.into_iter().enumerate().filter(|(i, _)| chosen.contains(i));
    kept.map(|(_, trial)| trial).collect()
}

/// The variants at fault in a failing case: the first variant without which `run` passes; otherwise
/// all variants, if `run` passes without all of them. Empty if `run` fails even without any
/// variant, or in a way that is not the fault of a kernel.
fn blame(
    device: &SharedBackend,
    name: &str,
    error: &CaseError,
    run: &dyn Fn(&SharedBackend) -> Result<(), CaseError>,
) -> Vec<Quarantined> {
    let cause = match error.fault {
        Fault::Wrong => QuarantineCause::WrongResults,
        Fault::Build => QuarantineCause::DoesNotBuild,
        Fault::Launch => QuarantineCause::LaunchRefused,
        Fault::Lost | Fault::Other => return Vec::new(),
    };
    let why = format!("fails {name}");
    let mut all: Vec<Quarantined> = Vec::new();
    for spec in &error.kernels {
        for variant in spec.variants() {
            if !all.iter().any(|known| known.variant == variant) {
                all.push(Quarantined::new(spec.kernel, &variant, cause, &why));
            }
        }
    }
    for variant in &all {
        if run(&device.without(variant.clone())).is_ok() {
            return vec![variant.clone()];
        }
    }
    let without = |device: SharedBackend, variant: &Quarantined| device.without(variant.clone());
    if all.len() < 2 || run(&all.iter().fold(device.clone(), without)).is_err() {
        return Vec::new();
    }
    let several = format!("{why}, as do others of {} variants", all.len());
    for variant in &mut all {
        variant.why.clone_from(&several);
    }
    all
}

/// Runs the cases on a device; if `quick`, one per kernel. A variant that makes a case fail is
/// quarantined for the remaining cases and in `store`. If the device is lost, the remaining cases
/// are skipped, and also once `cancel` is set. `on_progress` is called with the number of finished
/// cases and of all cases.
pub fn run(
    mut device: SharedBackend,
    store: Option<&Store>,
    quick: bool,
    cancel: &Cancel,
    on_progress: &mut dyn FnMut(usize, usize),
) -> Outcome {
    let start = Instant::now();
    let trials = trials(Backend::caps(&device), quick);
    let depth = if quick { Depth::Quick } else { Depth::Whole };
    let (mut passed, mut failed) = (Vec::new(), Vec::new());
    if quick {
        let specs: Vec<KernelSpec> = trials
            .iter()
            .flat_map(|t| t.specs(Backend::caps(&device)))
            .collect();
        device.compile_ahead(&specs.iter().collect::<Vec<_>>(), &mut |_| {});
    }
    for (done, trial) in trials.iter().enumerate() {
        on_progress(done, trials.len());
        if cancel.is_cancelled() {
            break;
        }
        let run = |device: &SharedBackend| {
            let scenario = Scenario::of(&trial.case)?;
            case::run(device as &dyn Bench, &scenario, trial.storage_type, depth)
        };
        let error = match run(&device) {
            // A driver that is temporarily short of a resource refuses a launch only once.
            Err(error) if matches!(error.fault, Fault::Build | Fault::Launch) => run(&device).err(),
            ran => ran.err(),
        };
        let Some(error) = error else {
            passed.push(trial.name());
            continue;
        };
        let blamed = blame(&device, &trial.name(), &error, &run);
        if let (Some(store), false) = (store, blamed.is_empty()) {
            validation::store_quarantined(store, Backend::caps(&device), &blamed);
        }
        for variant in blamed {
            device = device.without(variant);
        }
        let lost = error.fault == Fault::Lost;
        let mut why = error.why;
        let rest = trials.len() - done - 1;
        if lost && rest > 0 {
            why.push_str(&format!("; {rest} further cases were not run"));
        }
        failed.push(Failure {
            case: trial.name(),
            why,
        });
        if lost {
            break;
        }
    }
    on_progress(trials.len(), trials.len());
    Outcome {
        passed,
        failed,
        quarantined: Backend::caps(&device).profile.quarantined.clone(),
        took: start.elapsed(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_cases_have_every_kernel_of_a_device_and_are_few() {
        for caps in [
            Caps::generic_gpu(),
            Caps::generic_gpu().with(|device| device.fast_local = true),
        ] {
            let of = |quick| {
                let trials = trials(&caps, quick);
                let kernels: BTreeSet<&str> = trials
                    .iter()
                    .filter(|t| t.storage_type == DType::F16)
                    .flat_map(|t| t.specs(&caps))
                    .map(|s| s.kernel.name)
                    .collect();
                (trials.len(), kernels)
            };
            let ((few, some), (many, all)) = (of(true), of(false));
            assert_eq!(some, all);
            assert!(
                few <= all.len() && many > 10 * few,
                "{few} of {many} cases, {} kernels",
                all.len()
            );
            assert_eq!(all.contains("matmul_tiled"), caps.profile.fast_local);
        }
    }
}
