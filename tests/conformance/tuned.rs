//! Sets of numbers that measuring may choose: cases of their kernel with each of them.

use crate::support::Device;
use std::collections::BTreeMap;
use transformer_lite::backend::tunable::ANY;
use transformer_lite::backend::{Caps, DeviceKind};
use transformer_lite::graph::op::{ALL, case::Case};
use transformer_lite::selftest::case::{self, Scenario};
use transformer_lite::tensor::DType;

/// Cases of a kernel that run with each set: what sets change, the sizes of a cut, most cases have the same of.
const CASES: usize = 1;

/// A case, what its kernels are chosen for, and a name.
pub struct Tuned {
    pub name: String,
    case: Case,
    caps: Caps,
}

impl Tuned {
    pub fn run(&self, device: &Device) -> Result<(), String> {
        let _turn = device.turn();
        let scenario = Scenario::of(&self.case)?;
        case::run_as(device, &scenario, DType::F32, &self.caps).map_err(|e| e.to_string())
    }
}

/// Every set but the defaults, on the device as it is and as a GPU.
pub fn trials(device: &Device) -> Vec<Tuned> {
    let gpu = Caps {
        kind: DeviceKind::Integrated,
        ..device.caps.clone()
    };
    let mut all = Vec::new();
    for (what, caps) in [("as it is", &device.caps), ("gpu", &gpu)] {
        if what == "gpu" && caps.kind == device.caps.kind {
            continue;
        }
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for case in ALL.iter().flat_map(|def| (def.cases)()) {
            let Ok(scenario) = Scenario::of(&case) else {
                continue;
            };
            // What cannot be planned is a failure of its own trial.
            let tunables = case::tunables(&scenario, caps, DType::F32).unwrap_or_default();
            for tunable in tunables {
                let count = counts.entry(tunable.kernel.name).or_default();
                *count += 1;
                if *count > CASES {
                    continue;
                }
                for choice in (tunable.choices)(caps).into_iter().skip(1) {
                    all.push(Tuned {
                        name: format!(
                            "tuned/{}/{}/{what}/{}",
                            tunable.kernel.name,
                            tunable.text(&choice),
                            case.name()
                        ),
                        case: case.clone(),
                        caps: Caps {
                            tuned: vec![tunable.entry(ANY, &choice)],
                            ..caps.clone()
                        },
                    });
                }
            }
        }
    }
    all
}
