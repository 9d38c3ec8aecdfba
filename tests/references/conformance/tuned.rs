//! Sets of numbers that measuring may choose: a case of their kernel with each of them, the largest
//! that another program runs for.

use std::collections::BTreeSet;
use tlite_testing::Device;
use transformer_lite::unstable::backend::Caps;
use transformer_lite::unstable::backend::kernel::KernelSpec;
use transformer_lite::unstable::backend::kernel::image::ImageKind;
use transformer_lite::unstable::backend::tunable::{ANY, Tunable};
use transformer_lite::unstable::graph::op::{all, case::Case};
use transformer_lite::unstable::tensor::{DType, HostTensor};
use transformer_lite::unstable::validate::case::{self, Scenario};

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

/// Every set but the defaults; and those that read weights through images on a device that has
/// some.
pub fn trials(device: &Device) -> Vec<Tuned> {
    let offered = device.caps.profile.images;
    let kind = ImageKind::ALL.into_iter().find(|kind| offered.offers(*kind));
    let by_image = device.caps.clone().with(|device| device.images.reads = kind);
    let all: Vec<(Case, Scenario)> = all()
        .flat_map(|def| (def.cases)())
        .filter_map(|case| Scenario::of(&case).ok().map(|scenario| (case, scenario)))
        .collect();
    let mut trials = Vec::new();
    for (what, caps) in [("as it is", &device.caps), ("by image", &by_image)] {
        if what == "by image" && kind.is_none() {
            continue;
        }
        for (storage, tunable, mut own) in tuned_cases(&all, caps) {
            let kernel = tunable.kernel.name;
            own.sort_by_key(|own| std::cmp::Reverse(elements(own.scenario)));
            // On tensor cores the width of weights decides how much of local memory a set takes.
            let widths: BTreeSet<Option<i64>> = match tunable.kernel.variant {
                Some(_) => own.iter().map(|own| own.width()).collect(),
                None => BTreeSet::from([None]),
            };
            let choices = (tunable.choices)(&caps.profile).into_iter().skip(1);
            for choice in choices.filter(|c| what != "by image" || tunable.is_by_image(c)) {
                let tuned = caps
                    .clone()
                    .with(|device| device.tuned = vec![tunable.entry(ANY, &choice)]);
                // Of small cases the cut is often the same by any set.
                let differs = |own: &&Own<'_>| {
                    case::kernels(own.scenario, &tuned, storage).is_ok_and(|found| found != own.kernels)
                };
                let of_width = |width: &Option<i64>| {
                    let mut same = own.iter().filter(|own| width.is_none() || own.width() == *width);
                    same.find(differs).map(|own| own.case)
                };
                let mut chosen: Vec<Option<&Case>> =
                    widths.iter().map(of_width).filter(Option::is_some).collect();
                if chosen.is_empty() {
                    chosen.push(None);
                }
                for case in chosen {
                    let name = case.map_or("no case".to_owned(), Case::name);
                    trials.push(Tuned {
                        name: format!("tuned/{kernel}/{}/{what}/{name}", tunable.text(&choice)),
                        case: case.cloned(),
                        caps: tuned.clone(),
                        storage,
                    });
                }
            }
        }
    }
    trials
}

/// A case whose kernels have numbers to choose, and these kernels by default.
struct Own<'a> {
    case: &'a Case,
    scenario: &'a Scenario,
    kernels: Vec<KernelSpec>,
}

impl Own<'_> {
    /// Bits of the weights.
    fn width(&self) -> Option<i64> {
        let mut widths = self.kernels.iter().filter_map(|spec| spec.defines.get("BITS"));
        widths.next().copied()
    }
}

/// The cases of each kernel with numbers to choose on a device with `caps`, where floats are stored
/// in halves only if the kernel takes nothing else.
fn tuned_cases<'a>(all: &'a [(Case, Scenario)], caps: &Caps) -> Vec<(DType, &'static Tunable, Vec<Own<'a>>)> {
    let mut found: Vec<(DType, &'static Tunable, Vec<Own<'a>>)> = Vec::new();
    for (case, scenario) in all {
        for storage in [DType::F32, DType::F16] {
            // What cannot be planned is a failure of its own trial.
            for tunable in case::tunables(scenario, caps, storage).unwrap_or_default() {
                let own = Own {
                    case,
                    scenario,
                    kernels: case::kernels(scenario, caps, storage).unwrap_or_default(),
                };
                let same = found
                    .iter_mut()
                    .find(|(_, t, _)| t.kernel.name == tunable.kernel.name);
                match same {
                    Some((first, _, all)) if *first == storage => all.push(own),
                    Some(_) => {}
                    None => found.push((storage, tunable, vec![own])),
                }
            }
        }
    }
    found
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
