//! Flags of generic kernels: each makes another kernel of the file, so there are few.

use super::{kernels, root, stems};
use std::collections::{BTreeMap, BTreeSet};

/// Defines that are numbers; sources also test whether they are given.
const NUMBERS: &[&str] = &[
    "BITS", "FOLD", "HIGH", "LOW", "NORM", "RING", "RUN", "SPAN", "SPLIT", "TUPLE", "WINDOW",
];

/// The most flags of a generic kernel or helper.
const MAX_FLAGS: usize = 4;

/// Files with more flags: their number, and why they are not split.
const MANY_FLAGS: &[(&str, usize, &str)] = &[
    (
        "attention",
        6,
        "causal attention skips tiles of keys, with each form and width of keys and work-items",
    ),
    (
        "common/dot",
        5,
        "one product of bytes for each extension, and the order of loads",
    ),
    (
        "common/tile",
        6,
        "vector access of each operand is chosen separately",
    ),
];

/// Flags are the names that a file tests. Those of the framework (`HAS_B`, `IMAGE_X`, `IN_PLACE`,
/// `SOFT_HALF`, `FINITE_HALF`, and grids) and numbers do not count.
#[test]
fn generic_kernels_have_few_flags() {
    let mut flags: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let all_kernels = kernels();
    for (folder, extension) in [("cl", "cl"), ("shaders", "wgsl")] {
        for file in stems(folder, extension) {
            let path = root().join(format!("{folder}/{file}.{extension}"));
            let name = file.rsplit('/').next().unwrap_or_default();
            if all_kernels.get(name).is_some_and(|k| k.variant.is_some()) {
                continue;
            }
            let name = if file.starts_with("common/") { &file } else { name };
            let text = std::fs::read_to_string(path).unwrap();
            let tests = text.lines().filter_map(|line| {
                let (directive, name) = line.trim().split_once(' ')?;
                ["#ifdef", "#ifndef"].contains(&directive).then(|| name.trim())
            });
            let counts = |name: &&str| {
                !["HAS_", "IMAGE_"].iter().any(|p| name.starts_with(p))
                    && !["FINITE_HALF", "FOLDED", "IN_PLACE", "ROUNDS", "SOFT_HALF"].contains(name)
                    && !NUMBERS.contains(name)
            };
            let all = flags.entry(name.to_owned()).or_default();
            all.extend(tests.filter(counts).map(str::to_owned));
        }
    }
    let mut many = Vec::new();
    for (file, flags) in flags {
        if flags.len() > MAX_FLAGS {
            eprintln!("{file}: {flags:?}");
            many.push((file, flags.len()));
        }
    }
    let expected = MANY_FLAGS
        .iter()
        .map(|(file, flags, _)| ((*file).to_owned(), *flags));
    assert_eq!(many, expected.collect::<Vec<_>>());
}
