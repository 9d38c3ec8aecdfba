//! Files of kernels: their names, the words in them, and what descriptors declare of them.

use super::{is_probe, kernels, languages, root, source, sources, specs, stems};
use std::collections::BTreeSet;
use transformer_lite::unstable::backend::kernel::{Feature, KernelSpec, LINEAR, Language, Role};

#[test]
fn files_and_descriptors_pair_up() {
    let all = kernels();
    for language in Language::ALL {
        let own = all.values().filter(|k| languages(k).any(|l| l == language));
        let declared: BTreeSet<&str> = own.map(|k| k.name).collect();
        let files = sources(language);
        let names = files.iter().map(|file| file.rsplit('/').next().unwrap());
        assert_eq!(names.collect::<BTreeSet<_>>(), declared, "{language}");
        assert_eq!(files.len(), declared.len(), "{language}: names are unique");
    }
    // A kernel is in the same group in both languages.
    let [cl, wgsl] = Language::ALL.map(sources);
    for file in cl.symmetric_difference(&wgsl) {
        let name = file.rsplit('/').next().unwrap();
        assert_eq!(languages(all[name]).count(), 1, "{file}");
    }
    let (mut cl, mut wgsl) = (stems("cl/common", "cl"), stems("shaders/common", "wgsl"));
    let one = [
        ("cl", "cl", Language::OpenClC),
        ("shaders", "wgsl", Language::Wgsl),
    ];
    for ((folder, suffix, language), names) in one.into_iter().zip([OPENCL_ONLY, WGSL_ONLY]) {
        for name in names {
            let found = [cl.remove(*name), wgsl.remove(*name)];
            assert_eq!(found, [suffix == "cl", suffix == "wgsl"], "common/{name}");
            let path = root().join(format!("{folder}/common/{name}.{suffix}"));
            let text = std::fs::read_to_string(path).unwrap();
            let first = text.lines().next().unwrap();
            let gets = |s: &KernelSpec| s.expand(language).is_ok_and(|text| text.contains(first));
            assert!(specs().iter().any(gets), "no kernel gets common/{name}");
        }
    }
    assert_eq!(cl, wgsl);
    for name in cl {
        let line = format!("#include \"common/{name}\"");
        for language in Language::ALL {
            assert!(
                kernels().values().any(|k| source(k, language).contains(&line)),
                "no kernel includes common/{name}"
            );
        }
    }
}

/// Helpers of OpenCL C alone: PTX, and what the accessors call, for which WGSL has built-in
/// functions.
const OPENCL_ONLY: &[&str] = &["e0m_mma", "half", "mma"];

/// Helpers of WGSL alone: what OpenCL C has vectors and macros for.
const WGSL_ONLY: &[&str] = &["attention_scores", "pairs"];

/// Helpers that suit one language: CPU compilers make vectors of macros over any type, which WGSL
/// does not have; and accessors see operands in OpenCL C only within the kernel, so that a tile is
/// no function there, nor the bytes of a block.
const NOT_TWINS: &[&str] = &["bytes", "dot", "e0m", "tile"];

/// Common helpers have the same names in both languages.
#[test]
fn helpers_have_the_same_names() {
    for name in stems("cl/common", "cl")
        .iter()
        .filter(|n| !NOT_TWINS.contains(&n.as_str()) && !OPENCL_ONLY.contains(&n.as_str()))
    {
        let read = |path: String| std::fs::read_to_string(root().join(path)).unwrap();
        let cl = read(format!("cl/common/{name}.cl"));
        let wgsl = read(format!("shaders/common/{name}.wgsl"));
        let functions = |text: &str, before: &str| -> BTreeSet<String> {
            text.lines()
                .filter(|l| l.starts_with(before))
                .filter_map(|l| l.split_once('(')?.0.split_whitespace().last().map(str::to_owned))
                .collect()
        };
        let (mut a, b) = (functions(&cl, "inline "), functions(&wgsl, "fn "));
        // Every WGSL kernel has it.
        a.remove("is_nan");
        assert!(
            !a.is_empty() && a == b,
            "common/{name}: {a:?} in OpenCL C, {b:?} in WGSL"
        );
    }
}

fn without_comments(text: &str) -> String {
    text.lines()
        .map(|l| l.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
}

/// What no driver has to honour, or what is an extension.
const FORBIDDEN: &[&str] = &[
    "INFINITY",
    "NAN",
    "HUGE_VAL",
    "#pragma",
    "#extension",
    "enable f16",
    "enable subgroups",
    "requires ",
    "isnan",
    "isinf",
    "fast_",
    "native_",
    "cl_khr_",
    "cl_qcom",
    "cl_arm",
    "double",
    "half2",
    "subgroup",
    "sub_group",
];

#[test]
fn kernel_texts_hold_no_forbidden_words() {
    let mut files = 0;
    for (folder, extension) in [("cl", "cl"), ("shaders", "wgsl")] {
        for file in stems(folder, extension) {
            let entry = root().join(format!("{folder}/{file}.{extension}"));
            let text = std::fs::read_to_string(&entry).unwrap();
            let stem = entry.file_stem().and_then(|s| s.to_str());
            if kernels()
                .get(stem.unwrap_or_default())
                .is_some_and(|k| is_probe(k))
            {
                continue;
            }
            // Extensions of the language are for tensor cores and for half arithmetic, which
            // devices with them alone get.
            let tensor_cores = text.contains("enable wgpu_cooperative_matrix;");
            let warps = specs()
                .iter()
                .any(|s| Some(s.kernel.name) == stem && s.uses(Language::Wgsl, Feature::Subgroups));
            let pairs = specs()
                .iter()
                .any(|s| s.multiplies_halves() && Some(s.kernel.name) == stem);
            let of_halves = ["#pragma", "enable f16", "half2", "cl_khr_"];
            // Each form of a packed product is asked for on devices that list its extension.
            let packed = stem == Some("dot");
            let of_packed = ["#pragma", "cl_khr_", "cl_arm"];
            for (number, line) in text.lines().enumerate() {
                // Words of comments do no harm; accessors such as `vload_half2` are core.
                let code = line
                    .split("//")
                    .next()
                    .unwrap_or_default()
                    .replace("vload_half2", "")
                    .replace("vstore_half2", "")
                    .replace("vloada_half2", "")
                    .replace("vstorea_half2", "");
                for word in FORBIDDEN {
                    assert!(
                        !code.contains(word)
                            || tensor_cores && *word == "enable f16"
                            || warps && *word == "subgroup"
                            || pairs && of_halves.contains(word)
                            || packed && of_packed.contains(word),
                        "{}:{}: {word}: {line}",
                        entry.display(),
                        number + 1
                    );
                }
            }
            files += 1;
        }
    }
    assert!(files > 20);
    for spec in specs().iter().filter(|s| !is_probe(s.kernel)) {
        for language in languages(spec.kernel) {
            let text = without_comments(&spec.expand(language).unwrap());
            let tensor_cores = spec.uses(language, Feature::TensorCores);
            // OpenCL C defines its constants; a WGSL compiler may assume that there are none.
            let special = match language {
                Language::OpenClC => &[][..],
                Language::Wgsl => &["INFINITY", "NAN", "inff"],
            };
            for word in ["NaN", "#pragma", "enable "].iter().chain(special).copied() {
                let allowed = (tensor_cores || spec.multiplies_halves()) && word == "enable "
                    || spec.multiplies_halves() && word == "#pragma";
                assert!(
                    allowed || !text.contains(word),
                    "{spec}: {word} in the generated text"
                );
            }
        }
    }
}

/// What descriptors declare of their sources is what the sources hold.
#[test]
fn declarations_match_the_sources() {
    for kernel in kernels().values() {
        assert_eq!(
            kernel.is_linear,
            source(kernel, Language::Wgsl).contains(LINEAR),
            "{}",
            kernel.name
        );
    }
    for spec in specs() {
        let [cl, wgsl] = Language::ALL.map(|l| match languages(spec.kernel).any(|own| own == l) {
            true => without_comments(&spec.expand(l).unwrap()),
            false => String::new(),
        });
        let includes = |language, name: &str| {
            source(spec.kernel, language).contains(&format!("#include \"common/{name}\""))
        };
        let mut found = vec![
            (
                Language::OpenClC,
                Feature::TensorCores,
                includes(Language::OpenClC, "mma"),
            ),
            (
                Language::Wgsl,
                Feature::TensorCores,
                wgsl.contains("enable wgpu_cooperative_matrix;"),
            ),
            (Language::OpenClC, Feature::Subgroups, cl.contains("sub_group_")),
            (Language::Wgsl, Feature::Subgroups, wgsl.contains("subgroup")),
        ];
        // A measurement of halves or bytes that PTX or a built-in function makes uses no other.
        if !is_probe(spec.kernel) {
            found.extend([
                (Language::OpenClC, Feature::F16, cl.contains("cl_khr_fp16")),
                (Language::Wgsl, Feature::F16, wgsl.contains("enable f16;")),
                (
                    Language::OpenClC,
                    Feature::PackedDot,
                    includes(Language::OpenClC, "dot"),
                ),
                (
                    Language::Wgsl,
                    Feature::PackedDot,
                    includes(Language::Wgsl, "dot"),
                ),
            ]);
        }
        for (language, feature, holds) in found {
            assert_eq!(
                spec.uses(language, feature),
                holds,
                "{spec}: {language:?}, {feature:?}"
            );
        }
    }
}

/// [`Role::PartialOut`] declares it.
#[test]
fn operands_that_are_parts_are_not_read() {
    let all = kernels();
    for kernel in all.values() {
        for part in kernel.args.iter().filter(|a| a.role == Role::PartialOut) {
            for text in Language::ALL.map(|l| source(kernel, l)) {
                let code = text
                    .lines()
                    .map(|line| line.split("//").next().unwrap_or_default());
                let code: String = code.flat_map(|line| [line, "\n"]).collect();
                for read in ["_at(", "_at2(", "_at4(", "_run("] {
                    let read = format!("{}{read}", part.name);
                    let begins = |at: usize| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
                    let found = code.match_indices(&read).any(|(at, _)| begins(at));
                    assert!(!found, "{} reads {read}", kernel.name);
                }
            }
        }
    }
}
