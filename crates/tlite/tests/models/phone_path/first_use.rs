//! `tlite run` checks kernels where they first run on a device: outputs stay right without those
//! that are wrong, or the run ends.

use super::images::{IMAGES_TRIED, refusals};
use super::play::{self, Outcome, Run};
use super::quarantine::{VARIANT, refused_builds};
use super::{failing, of, with_faults};
use std::path::Path;
use tlite_fake_driver::{Config, Fault, Profile, cl};
use tlite_testing::Text;
use transformer_lite::unstable::backend::{QuarantineCause, Quarantined};
use transformer_lite::unstable::cache::{DEFAULT_LIMIT, Kind, Store};
use transformer_lite::unstable::error::Stage;
use transformer_lite::unstable::graph::onnx::write::{ModelWriter, NodeSpec, Size};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// A trial and its name.
type Named = (&'static str, fn() -> Outcome);

pub const TRIALS: [Named; 10] = [
    ("right_kernels_are_checked_once", right),
    ("a_wrong_variant_is_not_used", wrong_variant),
    ("a_variant_that_does_not_build_is_not_used", unbuilt_variant),
    ("a_lost_list_of_what_is_wrong_is_made_anew", lost_list),
    ("a_wrong_kernel_is_an_error", wrong_kernel),
    ("nothing_is_stored_if_nothing_builds", nothing_builds),
    ("nothing_is_stored_if_the_fallback_does_not_build", no_fallback),
    ("nothing_is_stored_if_the_start_fails", failing_start),
    ("quarantine_is_listed_and_ends", quarantine_ends),
    ("refused_images_are_not_validated", refused_images),
];

/// A norm, of which there is a variant, a product, whose operand a phone reads through images, and
/// a softmax.
fn write_model(dir: &Path) -> Result<String, String> {
    let mut model = ModelWriter::create(Stage::Convert, dir, "model.onnx", "g").text()?;
    model.opset("", 23);
    let rows = Size::Fixed(12);
    model
        .add_input("x", DType::F32, &[rows.clone(), Size::Fixed(512)])
        .text()?;
    model
        .add_output("y", DType::F32, &[rows, Size::Fixed(32)])
        .text()?;
    let numbers = |shape: &[usize]| {
        let count: usize = shape.iter().product();
        let data: Vec<f32> = (0..count).map(|i| ((i * 37 + 11) % 64) as f32 / 64.0).collect();
        HostTensor::from_f32(shape, &data).text()
    };
    model.add_initializer("scale", &numbers(&[512])?).text()?;
    model.add_initializer("weight", &numbers(&[512, 32])?).text()?;
    for (op, inputs, output) in [
        ("RMSNormalization", &["x", "scale"][..], "normed"),
        ("MatMul", &["normed", "weight"], "product"),
        ("Softmax", &["product"], "y"),
    ] {
        let node = NodeSpec {
            domain: "",
            op,
            name: output,
            inputs,
            outputs: &[output],
            attributes: &[],
        };
        model.add_node(node).text()?;
    }
    model.finish().text()?;
    Ok(dir.join("model.onnx").display().to_string())
}

/// A folder with the model, its outputs on the host, and a cache.
struct Place {
    dir: tempfile::TempDir,
    model: String,
}

impl Place {
    fn new() -> Result<Self, String> {
        let dir = tempfile::tempdir().text()?;
        let model = write_model(dir.path())?;
        let place = Self { dir, model };
        let wanted = place.at("wanted");
        let args = [
            "run",
            &place.model,
            "--random",
            "--json",
            "--backend",
            "reference",
        ];
        play::run_without(&[&args[..], &["--output-dir", &wanted]].concat())?.report()?;
        Ok(place)
    }

    fn at(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn store(&self) -> Store {
        Store::new(self.at("cache").into(), DEFAULT_LIMIT)
    }

    /// The model on the fake driver, its outputs compared with those of the host.
    fn run(&self, config: &Config) -> Result<Run, String> {
        let (wanted, cache) = (self.at("wanted"), self.at("cache"));
        let args = ["run", &self.model, "--random", "--json", "--backend", "opencl"];
        let more = ["--compare", &wanted, "--cache-dir", &cache];
        play::run(&[&args[..], &more].concat(), config)
    }
}

/// So many kernels were checked, of which none or some are wanted.
fn checked(run: &Run, some: bool) -> Outcome {
    match run.number("kernels_checked")? {
        n if (n > 0) == some => Ok(()),
        n => Err(format!("{n} kernels checked")),
    }
}

fn dispatches(run: &Run, kernel: &str) -> usize {
    run.count(&format!("clEnqueueNDRangeKernel kernel={kernel} "))
}

fn right() -> Outcome {
    let place = Place::new()?;
    for first in [true, false] {
        let run = place.run(&of(Profile::Radeon))?;
        run.quiet()?;
        checked(&run, first)?;
        // The run that checks, and the run itself.
        let found = dispatches(&run, VARIANT);
        if found != 1 + usize::from(first) {
            return Err(format!("{VARIANT} ran {found} times"));
        }
    }
    Ok(())
}

/// The run names the variant once.
fn named(run: &Run) -> Outcome {
    match run.notes_of_kernel(VARIANT) {
        1 => Ok(()),
        notes => Err(format!("{notes} notes: {}", run.errors)),
    }
}

/// The first run names the variant, which is not used, and gives what its twin does; the next one
/// knows, and checks nothing.
fn quarantined(config: &Config) -> Outcome {
    let place = Place::new()?;
    let first = place.run(config)?;
    checked(&first, true)?;
    named(&first)?;
    let second = place.run(config)?;
    checked(&second, false)?;
    second.earlier(VARIANT)?;
    second.unharmed()?;
    // The second is a whole run without failures.
    first.recovered(2 * second.took)?;
    match dispatches(&second, VARIANT) {
        0 => Ok(()),
        n => Err(format!("{VARIANT} ran {n} times")),
    }
}

fn wrong_variant() -> Outcome {
    quarantined(&Config {
        corrupt: Some(VARIANT.to_owned()),
        ..of(Profile::Radeon)
    })
}

/// Where the list is damaged or gone, and nothing else is, the variant is found wrong again. The
/// outputs stay right.
fn lost_list() -> Outcome {
    let config = Config {
        corrupt: Some(VARIANT.to_owned()),
        ..of(Profile::Radeon)
    };
    let place = Place::new()?;
    named(&place.run(&config)?)?;
    let entries = place.store().entries().text()?;
    let mut lists = entries.iter().filter(|e| e.kind == Kind::Quarantine);
    let list = lists.next().ok_or("no list of what is wrong")?;
    let whole = std::fs::read(&list.path).text()?;
    for damaged in [
        Some(&whole[..whole.len() / 2]),
        Some(b"nonsense".as_slice()),
        None,
    ] {
        match damaged {
            Some(bytes) => std::fs::write(&list.path, bytes).text()?,
            None => std::fs::remove_file(&list.path).text()?,
        }
        let run = place.run(&config)?;
        checked(&run, true)?;
        named(&run)?;
        place.run(&config)?.earlier(VARIANT)?;
    }
    Ok(())
}

fn unbuilt_variant() -> Outcome {
    quarantined(&Config {
        faults: refused_builds(VARIANT),
        ..of(Profile::Radeon)
    })
}

/// A start that fails because of these faults stores nothing, and a later one without them uses the
/// variant.
fn stores_nothing(faults: Vec<Fault>, corrupt: Option<&str>, error: &str, named: &[&str]) -> Outcome {
    let place = Place::new()?;
    let config = Config {
        corrupt: corrupt.map(str::to_owned),
        ..with_faults(Profile::Radeon, faults)
    };
    place.run(&config)?.failed(error, named)?;
    let stored = place.store().quarantined().text()?;
    if !stored.is_empty() {
        return Err(format!("{stored:?}"));
    }
    uses_variant(&place)
}

/// A start without faults uses the variant and says nothing.
fn uses_variant(place: &Place) -> Outcome {
    let run = place.run(&of(Profile::Radeon))?;
    run.report()?;
    run.quiet()?;
    match dispatches(&run, VARIANT) {
        0 => Err(format!("{VARIANT} is not used")),
        _ => Ok(()),
    }
}

/// A full disk, for example.
fn nothing_builds() -> Outcome {
    let all = failing("clBuildProgram", None, 1..=999, cl::BUILD_PROGRAM_FAILURE);
    stores_nothing(all, None, "Build", &[VARIANT])
}

/// The error is that of the variant, which comes first.
fn no_fallback() -> Outcome {
    let both = [refused_builds(VARIANT), refused_builds("norm")].concat();
    stores_nothing(both, None, "Build", &[VARIANT])
}

/// Another kernel, which has no fallback, gives wrong results.
fn failing_start() -> Outcome {
    stores_nothing(refused_builds(VARIANT), Some("softmax"), "Wrong", &["softmax"])
}

/// Makes what is stored of kernels so many days older.
fn age(store: &Store, days: u64) -> Outcome {
    for entry in store.entries().text()? {
        let Some(key) = entry.key.filter(|_| entry.kind == Kind::Quarantine) else {
            continue;
        };
        let bytes = store.get(Kind::Quarantine, &key).ok_or("no list")?;
        let mut list: Vec<Quarantined> = serde_json::from_slice(&bytes).text()?;
        list.iter_mut().for_each(|q| q.since -= days * 86_400);
        let bytes = serde_json::to_vec(&list).text()?;
        store.put(Kind::Quarantine, &key, &bytes);
    }
    Ok(())
}

/// What does not build is tried again after some days, wrong results last; and both are listed and
/// cleared.
fn quarantine_ends() -> Outcome {
    let unbuilt = with_faults(Profile::Radeon, refused_builds(VARIANT));
    let wrong = Config {
        corrupt: Some(VARIANT.to_owned()),
        ..of(Profile::Radeon)
    };
    for (config, cause) in [
        (unbuilt, QuarantineCause::DoesNotBuild),
        (wrong, QuarantineCause::WrongResults),
    ] {
        let place = Place::new()?;
        named(&place.run(&config)?)?;
        age(&place.store(), 6)?;
        let again = || place.run(&of(Profile::Radeon));
        again()?.earlier(VARIANT)?;
        let cache = place.at("cache");
        let args = ["devices", "--json", "--cache-dir", &cache];
        let devices = play::run(&args, &of(Profile::Radeon))?.report()?;
        let listed = &devices["devices"][0]["quarantined"][0];
        let wanted = serde_json::to_value(cause).text()?;
        if listed["variant"] != VARIANT || listed["cause"] != wanted {
            return Err(devices.to_string());
        }
        age(&place.store(), 2)?;
        if cause == QuarantineCause::WrongResults {
            again()?.earlier(VARIANT)?;
            play::run_without(&["cache", "clear", "--kind", "quarantine", "--cache-dir", &cache])?
                .ended_well()?;
        }
        uses_variant(&place)?;
    }
    Ok(())
}

/// A kernel without a twin.
fn wrong_kernel() -> Outcome {
    let config = Config {
        corrupt: Some("softmax".to_owned()),
        ..of(Profile::Mali)
    };
    let run = Place::new()?.run(&config)?;
    run.failed("Wrong", &["softmax", "\"y\""])
}

/// A kernel that reads buffers runs in the place of one that reads images: nothing is said of the
/// one that did not run.
fn refused_images() -> Outcome {
    let place = Place::new()?;
    let refusing = Config {
        faults: refusals(IMAGES_TRIED + 1),
        ..of(Profile::Adreno)
    };
    let first = place.run(&refusing)?;
    checked(&first, true)?;
    let told = first.warnings("backend::opencl::image", &["Adreno"]);
    if told != 1 {
        return Err(format!("{told} warnings: {}", first.errors));
    }
    let by_image = |run: &Run| run.lines("clSetKernelArg ").any(|l| l.contains(" image=true"));
    for some in [true, false] {
        let run = place.run(&of(Profile::Adreno))?;
        run.quiet()?;
        checked(&run, some)?;
        first.recovered(2 * run.took)?;
        if !by_image(&run) {
            return Err("no kernel reads an image".to_owned());
        }
    }
    Ok(())
}
