//! `tlite tune` on phones: what only some devices have is among the sets that are measured, and
//! what is chosen is used.

use super::images::{IMAGES_TRIED, refusals};
use super::of;
use super::play::{self, Outcome, Run};
use tlite_fake_driver::{Config, Profile, Slow};
use tlite_testing::{gguf::Traits, tiny_model};
use transformer_lite::unstable::backend::kernel::subgroup_size::SubgroupSize;

/// A trial and its name.
type Named = (&'static str, fn() -> Outcome);

pub const TRIALS: [Named; 3] = [
    ("subgroup_sizes_are_tuned_where_supported", subgroup_sizes),
    ("the_fastest_subgroup_size_is_used", fastest_subgroup_size),
    ("refused_images_are_not_tuned", refused_images),
];

/// As many sets as the kernel of one row and that of many have with their default cuts and a
/// subgroup size, or weights by an image.
const SETS: &str = "6";

/// A tiny quantized decoder, and a cache.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Result<Self, String> {
        let (dir, model) = tiny_model("llama", Traits::default());
        let place = Self { dir };
        let quantized = place.at("e0m4");
        let model = model.display().to_string();
        let run = play::run_without(&["quantize", &model, "-o", &quantized])?;
        run.ended_well()?;
        Ok(place)
    }

    fn at(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// Measures so many sets.
    fn tune(&self, config: &Config, sets: &str) -> Result<Run, String> {
        let (model, cache) = (self.at("e0m4"), self.at("cache"));
        let args = ["tune", &model, "--json", "--act", "float", "--backend", "opencl"];
        play::run(
            &[
                &args[..],
                &["--cache-dir", &cache, "--seconds", "9999", "--sets", sets],
            ]
            .concat(),
            config,
        )
    }

    fn generate(&self, config: &Config) -> Result<Run, String> {
        let (model, cache) = (self.at("e0m4"), self.at("cache"));
        let args = [
            "generate",
            &model,
            "--raw",
            "--prompt",
            "hello world",
            "--max-tokens",
            "8",
        ];
        let more = [
            "--temperature",
            "0",
            "--json",
            "--backend",
            "opencl",
            "--cache-dir",
            &cache,
        ];
        play::run(&[&args[..], &more, &play::FLOAT].concat(), config)
    }

    /// What is kept is used, but no compiled program of an earlier run is.
    fn without_programs(&self) -> Outcome {
        let cache = self.at("cache");
        play::run_without(&["cache", "clear", "--kind", "program", "--cache-dir", &cache])?.ended_well()
    }
}

/// Programs that were built with this request.
fn built(run: &Run, size: &str) -> usize {
    run.count(&format!("clBuildProgram wave={size} = 0"))
}

/// The sets are right: what is not is passed over with a warning.
fn subgroup_sizes() -> Outcome {
    for (profile, some) in [(Profile::Adreno, true), (Profile::Mali, false)] {
        let place = Place::new()?;
        let run = place.tune(&of(profile), SETS)?;
        run.quiet()?;
        if run.number("measured")?.to_string() != SETS {
            return Err(format!("not {SETS} sets: {}", run.errors));
        }
        for codes in ["matvec_e0m index=1", "matmul_e0m index=1"] {
            let start = format!("clSetKernelArg kernel={codes} ");
            if run.lines(&start).any(|l| l.contains(" image=true")) != some {
                return Err(format!("{profile:?}: codes of {codes} by an image: {}", !some));
            }
        }
        for size in ["half", "full"] {
            // A kernel of each shape, of one row and of many.
            if (built(&run, size) > 1) != some {
                return Err(format!(
                    "{profile:?}: {} programs of a {size} wave",
                    built(&run, size)
                ));
            }
        }
        if run.lines("clBuildProgram ").any(|l| !l.ends_with(" = 0")) {
            return Err("a program was refused".to_owned());
        }
    }
    Ok(())
}

/// By a clock by which kernels without a half subgroup are slow.
fn fastest_subgroup_size() -> Outcome {
    let place = Place::new()?;
    let plain = place.generate(&of(Profile::Adreno))?;
    let slow = |kernel: &str| Slow {
        kernel: kernel.to_owned(),
        ns: 50_000_000,
        without: Some("qcom_reqd_sub_group_size(\"half\")".to_owned()),
    };
    let config = Config {
        clock: ["matvec_e0m", "matmul_e0m"].map(slow).into(),
        ..of(Profile::Adreno)
    };
    let run = place.tune(&config, SETS)?;
    let report = run.report()?;
    let shapes = report["shapes"].as_array().ok_or("no shapes")?;
    let best = |s: &serde_json::Value| {
        s["best"]
            .as_str()
            .is_some_and(|b| b.ends_with(&SubgroupSize::Half.to_string()))
    };
    if shapes.is_empty() || !shapes.iter().all(best) {
        return Err(format!("other sets are fastest: {report}"));
    }
    place.without_programs()?;
    let tuned = place.generate(&of(Profile::Adreno))?;
    tuned.quiet()?;
    if built(&tuned, "half") == 0 || built(&tuned, "full") > 0 {
        return Err(format!("{} programs of a half wave", built(&tuned, "half")));
    }
    if tuned.tokens()? != plain.tokens()? {
        return Err(format!("{:?} for {:?}", tuned.tokens()?, plain.tokens()?));
    }
    Ok(())
}

/// Where the driver refuses images other kernels run than were planned: they are planned without,
/// and then one that is wrong is found.
fn refused_images() -> Outcome {
    let place = Place::new()?;
    let slow = Slow {
        kernel: "matmul_e0m".to_owned(),
        ns: 50_000_000,
        without: Some("qcom_reqd_sub_group_size(\"half\")".to_owned()),
    };
    let form = slow.without.clone();
    let config = Config {
        corrupt: Some(slow.kernel.clone()),
        corrupt_text: form,
        clock: vec![slow],
        faults: refusals(IMAGES_TRIED + 1),
        ..of(Profile::Adreno)
    };
    let run = place.tune(&config, "1")?;
    let report = run.report()?;
    let best = |s: &serde_json::Value| {
        s["best"]
            .as_str()
            .is_some_and(|b| b.ends_with(&SubgroupSize::Half.to_string()))
    };
    let shapes = report["shapes"].as_array().ok_or("no shapes")?;
    let many = shapes.iter().filter(|s| s["kernel"] == "matmul_e0m");
    if many.clone().count() == 0 || many.into_iter().any(best) {
        return Err(format!("a kernel that is wrong is chosen: {report}"));
    }
    let set = ["matmul_e0m", "32", "4", "8"];
    let passed = run.warnings("llm::engine::tune", &set);
    if passed != 1 || built(&run, "half") == 0 {
        return Err(format!("{passed} times passed over: {}", run.errors));
    }
    let right = place.tune(&of(Profile::Adreno), "1")?;
    right.ended_well()?;
    run.recovered(2 * right.took)
}
