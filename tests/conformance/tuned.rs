//! Sets of numbers that measuring may choose: a case of their kernel with each of them, the largest that another program runs for.

use crate::support::Device;
use std::collections::BTreeMap;
use transformer_lite::backend::image::{ImageKind, Images};
use transformer_lite::backend::tunable::{ANY, Tunable};
use transformer_lite::backend::{Caps, DeviceKind};
use transformer_lite::graph::op::{ALL, case::Case};
use transformer_lite::selftest::case::{self, Scenario};
use transformer_lite::tensor::{DType, HostTensor};

/// A case, what its kernels are chosen for, and a name.
pub struct Tuned {
    pub name: String,
    /// `None` where this set changes the kernels of none.
    case: Option<Case>,
    caps: Caps,
    storage: DType,
}

impl Tuned {
    pub fn run(&self, device: &Device) -> Result<(), String> {
        let _turn = device.turn();
        let case = self.case.as_ref().ok_or("no case runs otherwise with this set")?;
        let scenario = Scenario::of(case)?;
        case::run_as(device, &scenario, self.storage, &self.caps).map_err(|e| e.to_string())
    }
}

/// Every set but the defaults, on the device as it is and as a GPU; and those that read weights through images on one that has some.
pub fn trials(device: &Device) -> Vec<Tuned> {
    let gpu = Caps {
        kind: DeviceKind::Integrated,
        ..device.caps.clone()
    };
    let offered = device.caps.images;
    let kind = ImageKind::ALL.into_iter().find(|kind| offered.offers(*kind));
    let by_image = Caps {
        images: Images {
            reads: kind,
            ..offered
        },
        ..gpu.clone()
    };
    let mut all = Vec::new();
    for (what, caps) in [
        ("as it is", &device.caps),
        ("gpu", &gpu),
        ("gpu by image", &by_image),
    ] {
        let known = match what {
            "gpu" => caps.kind == device.caps.kind,
            "gpu by image" => kind.is_none(),
            _ => false,
        };
        if known {
            continue;
        }
        let mut cases: BTreeMap<&str, Vec<(&'static Tunable, DType, usize, Case)>> = BTreeMap::new();
        for case in ALL.iter().flat_map(|def| (def.cases)()) {
            let Ok(scenario) = Scenario::of(&case) else {
                continue;
            };
            for storage in [DType::F32, DType::F16] {
                // What cannot be planned is a failure of its own trial.
                for tunable in case::tunables(&scenario, caps, storage).unwrap_or_default() {
                    let own = cases.entry(tunable.kernel.name).or_default();
                    // Halves where the kernel takes nothing else.
                    if own.first().is_none_or(|(_, first, ..)| *first == storage) {
                        own.push((tunable, storage, elements(&scenario), case.clone()));
                    }
                }
            }
        }
        for (kernel, mut own) in cases {
            own.sort_by_key(|(_, _, elements, _)| std::cmp::Reverse(*elements));
            let Some(&(tunable, storage, ..)) = own.first() else {
                continue;
            };
            let choices = (tunable.choices)(caps).into_iter().skip(1);
            for choice in choices.filter(|c| what != "gpu by image" || tunable.is_by_image(c)) {
                let tuned = Caps {
                    tuned: vec![tunable.entry(ANY, &choice)],
                    ..caps.clone()
                };
                let kernels = |scenario: &Scenario, caps: &Caps| case::kernels(scenario, caps, storage).ok();
                // Of small cases the cut is often the same by any set.
                let differs =
                    |case: &Case| Scenario::of(case).is_ok_and(|s| kernels(&s, caps) != kernels(&s, &tuned));
                // On matrix units the width of weights decides how much of local memory a set takes.
                let by_width = tunable.kernel.variant.is_some();
                let mut chosen: Vec<(Option<i64>, Option<Case>)> = Vec::new();
                for (.., case) in own.iter().filter(|(.., case)| differs(case)) {
                    let width = width(case, &tuned, storage).filter(|_| by_width);
                    if chosen.iter().all(|(known, _)| *known != width) {
                        chosen.push((width, Some(case.clone())));
                    }
                    if !by_width {
                        break;
                    }
                }
                if chosen.is_empty() {
                    chosen.push((None, None));
                }
                for (_, case) in chosen {
                    let name = case.as_ref().map_or("no case".to_owned(), Case::name);
                    all.push(Tuned {
                        name: format!("tuned/{kernel}/{}/{what}/{name}", tunable.text(&choice)),
                        case,
                        caps: tuned.clone(),
                        storage,
                    });
                }
            }
        }
    }
    all
}

/// Bits of the weights of a case's kernels.
fn width(case: &Case, caps: &Caps, storage: DType) -> Option<i64> {
    let kernels = case::kernels(&Scenario::of(case).ok()?, caps, storage).ok()?;
    let mut widths = kernels.iter().filter_map(|spec| spec.defines.get("BITS"));
    widths.next().copied()
}

/// Elements of the operands of its largest run.
fn elements(scenario: &Scenario) -> usize {
    let run = |operands: &[HostTensor]| operands.iter().map(HostTensor::len).sum();
    scenario
        .runs
        .iter()
        .map(|(_, operands)| run(operands))
        .max()
        .unwrap_or(0)
}
