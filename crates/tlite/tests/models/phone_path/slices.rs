//! Work in slices, so that other programs get their turn.

use super::play::{self, Outcome};
use super::{Add, FEW, Model, TOKENS, of};
use tlite_fake_driver::{Config, Profile, Slow};
use tlite_testing::Text;
use transformer_lite::unstable::backend::opencl::PARTS_DIFFER;

/// The trials of a model.
pub fn trials(add: &mut Add<'_>) {
    add("wrong_parts_are_not_used", Box::new(wrong_in_parts));
    add("nothing_exceeds_a_slice_at_first", Box::new(heavy_at_first));
    add(
        "a_warm_start_in_slices_compiles_nothing",
        Box::new(warm_in_slices),
    );
}

/// Programs for parts of grids are wrong: kernels run as a whole, which every start says, and only
/// the first one has to find out.
fn wrong_in_parts(model: &Model) -> Outcome {
    let dir = tempfile::tempdir().text()?;
    let cache = dir.path().join("cache").display().to_string();
    let config = Config {
        corrupt: Some(CUT.to_owned()),
        corrupt_text: Some("get_global_offset".to_owned()),
        ..cut_always()
    };
    for first in [true, false] {
        let run = play::generate_noting(&model.folder, &config, TOKENS, &cache)?;
        if first {
            model.recovers(&run, Profile::Adreno, TOKENS)?;
        } else {
            model.agrees(&run, TOKENS)?;
            run.unharmed()?;
        }
        if !run.errors.contains(PARTS_DIFFER) {
            return Err(format!("no warning: {}", run.errors));
        }
    }
    Ok(())
}

/// A kernel that is cut in every run of [`cut_always`], however fast the machine is that runs the
/// tests.
const CUT: &str = "matvec_e0m";

/// An Adreno on which no slice has room for all work-groups of [`CUT`].
fn cut_always() -> Config {
    Config {
        clock: vec![Slow {
            kernel: CUT.to_owned(),
            ns: 8_000_000 / ROOM,
            without: None,
        }],
        ..of(Profile::Adreno)
    }
}

/// A kernel of which a slice of 8 ms has room for so many work-groups.
const HEAVY: &str = "matmul_e0m";

const ROOM: u64 = 8;

/// Work-groups of a dispatch in the log.
fn groups(line: &str) -> Option<u64> {
    let product = |name: &str| {
        let (_, list) = line.split_once(&format!(" {name}=["))?;
        let (list, _) = list.split_once(']')?;
        list.split(',')
            .map(|n| n.parse::<u64>().ok())
            .product::<Option<u64>>()
    };
    Some(product("global")? / product("local")?.max(1))
}

/// No dispatch of a heavy kernel takes longer than a slice, be it the first.
fn heavy_at_first(model: &Model) -> Outcome {
    let config = Config {
        clock: vec![Slow {
            kernel: HEAVY.to_owned(),
            ns: 8_000_000 / ROOM,
            without: None,
        }],
        ..of(Profile::Adreno)
    };
    let dispatches = |slice_ms: &str| -> Result<Vec<u64>, String> {
        let more = ["--recording", "off", "--slice-ms", slice_ms];
        let run = model.run(&config, FEW, &more)?;
        model.agrees(&run, FEW)?;
        let start = format!("clEnqueueNDRangeKernel kernel={HEAVY} ");
        run.lines(&start)
            .map(|l| groups(l).ok_or_else(|| format!("no sizes in {l}")))
            .collect()
    };
    let (whole, cut) = (dispatches("0")?, dispatches("8")?);
    if whole.iter().all(|n| *n <= ROOM) {
        return Err(format!("no dispatch of {HEAVY} has more than {ROOM} work-groups"));
    }
    match cut.iter().max() {
        Some(most) if *most <= ROOM => Ok(()),
        most => Err(format!(
            "{most:?} work-groups at a time, a slice has room for {ROOM}"
        )),
    }
}

/// Programs for parts are stored as others are. Others than [`CUT`] may be cut where the machine is
/// busy, so a further start may compile some.
fn warm_in_slices(model: &Model) -> Outcome {
    let dir = tempfile::tempdir().text()?;
    let cache = dir.path().join("cache").display().to_string();
    let run = || play::generate_cached(&model.folder, &cut_always(), FEW, &cache, &[]);
    let mut compiled = Vec::new();
    while compiled.len() < 6 && compiled.last() != Some(&0) {
        let run = run()?;
        model.agrees(&run, FEW)?;
        compiled.push(run.number("kernels_compiled")?);
    }
    match compiled.as_slice() {
        [first, .., 0] if *first > 0 => Ok(()),
        _ => Err(format!("kernels compiled: {compiled:?}")),
    }
}
