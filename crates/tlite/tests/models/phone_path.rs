//! The path to phones without a phone: `tlite` on a stand-in for the OpenCL library of an Adreno or
//! a Mali (`tests/standin`), over the driver of this machine.
//!
//! What is covered: priorities reach the driver, as properties of the context or of the queue; a
//! real model gives the tokens that it gives without the stand-in; a run in which a call fails
//! recovers with these tokens or ends with one typed error, soon after the failure; and a kernel
//! with wrong results is found at the start, which goes on with its twin or ends. Each of these is
//! a process of its own, which loads the stand-in by `OPENCL_DYLIB_PATH`, and its log is what is
//! asserted on. What the stand-in does itself is tested in `phone_path/standin.rs`: the checks of
//! properties, recordings, and that a kernel's results are spoilt where that is asked for.
//!
//! The model is that of `tests/references/llm.rs`, named by `TLITE_TEST_MODEL_DIR`.

mod command_buffers;
mod first_use;
mod play;
mod standin;
mod tune;

use play::{Outcome, Run};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tlite_standin::{Config, Delay, Fault, Profile, Slow, cl};
use tlite_testing::Text;
use tlite_testing::suite::Suite;
use transformer_lite::unstable::backend::opencl::PARTS_DIFFER;
use transformer_lite::unstable::backend::{self, BackendKind};
use transformer_lite::unstable::error::Stage;
use transformer_lite::unstable::graph::onnx::write::{ModelWriter, NodeSpec, Size};
use transformer_lite::unstable::tensor::DType;

/// Tokens of a whole answer; of one that only shows that the device is opened; and of one on a slow
/// device.
const TOKENS: usize = 16;
const ONE: usize = 1;
const FEW: usize = 4;

const PROFILES: [(&str, Profile); 2] = [("adreno", Profile::Adreno), ("mali", Profile::Mali)];

pub fn trials(suite: &mut Suite) {
    let model = std::env::var_os("TLITE_TEST_MODEL_DIR").map(PathBuf::from);
    if model.is_none() {
        suite.not_set("TLITE_TEST_MODEL_DIR names no folder with a model");
    }
    if let Err(e) = backend::list(BackendKind::OpenCl) {
        suite.no_device(&tlite_testing::Missing {
            backend: BackendKind::OpenCl.to_string(),
            why: e.to_string(),
        });
        return;
    }
    for (name, run) in standin::TRIALS {
        suite.add(format!("standin/{name}"), run);
    }
    for (name, run) in first_use::TRIALS {
        suite.add(format!("run/{name}"), run);
    }
    for (name, run) in tune::TRIALS {
        suite.add(format!("tune/{name}"), run);
    }
    suite.add("run/every_queue_has_the_priority", every_queue);
    suite.add("run/priorities_without_effect_are_told", without_effect);
    suite.add("run/cases_blame_what_is_wrong", cases_blame_what_is_wrong);
    suite.add(
        "run/cases_blame_no_kernel_for_the_device",
        cases_blame_no_kernel_for_the_device,
    );
    suite.add("run/models_of_one_name_share_no_cache", models_of_one_name);
    suite.add("run/one_of_two_devices_is_chosen", two_devices);
    for (name, code) in [
        ("none_found", cl::DEVICE_NOT_FOUND),
        ("a_number_of_0", cl::SUCCESS),
    ] {
        suite.add(format!("run/a_platform_without_device/{name}"), move || {
            no_device(code)
        });
    }
    if let Some(dir) = model {
        let model = Arc::new(Model::new(dir.join("e0m4")));
        for (name, run) in model_trials() {
            let model = Arc::clone(&model);
            suite.add(name, move || run(&model));
        }
    }
}

/// The model, and what is run of it once for several trials.
struct Model {
    folder: PathBuf,
    plain: OnceLock<Result<Run, String>>,
    adreno: OnceLock<Result<Run, String>>,
    mali: OnceLock<Result<Run, String>>,
    radeon: OnceLock<Result<Run, String>>,
}

impl Model {
    fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            plain: OnceLock::new(),
            adreno: OnceLock::new(),
            mali: OnceLock::new(),
            radeon: OnceLock::new(),
        }
    }

    /// `tokens` tokens with `config` and further options.
    fn run(&self, config: &Config, tokens: usize, more: &[&str]) -> Result<Run, String> {
        play::generate(&self.folder, config, tokens, more)
    }

    /// A whole answer through the stand-in, which only passes calls on. In the arithmetic of
    /// phones.
    fn plain(&self) -> Result<&Run, String> {
        let run = || self.run(&Config::default(), TOKENS, &play::FLOAT);
        self.plain.get_or_init(run).as_ref().map_err(Clone::clone)
    }

    /// A whole answer on a phone or a card, without faults.
    fn phone(&self, profile: Profile) -> Result<&Run, String> {
        let run = || self.run(&of(profile), TOKENS, &[]);
        let place = match profile {
            Profile::Adreno => &self.adreno,
            Profile::Mali => &self.mali,
            Profile::Radeon => &self.radeon,
        };
        place.get_or_init(run).as_ref().map_err(Clone::clone)
    }

    /// A run in which something failed must have ended as [`Self::agrees`] says, and soon: after
    /// the failure it took no longer than a whole run without one, twice that on a machine that is
    /// busy, and what a failure may take.
    fn recovers(&self, run: &Run, profile: Profile, tokens: usize) -> Outcome {
        self.agrees(run, tokens)?;
        run.recovered(2 * self.phone(profile)?.took)
    }

    /// `run` must have ended well, with the first `tokens` tokens of the plain answer.
    fn agrees(&self, run: &Run, tokens: usize) -> Outcome {
        let (wanted, found) = (self.plain()?.tokens()?, run.tokens()?);
        if found.len() == tokens && wanted.starts_with(&found) {
            return Ok(());
        }
        Err(format!(
            "tokens {wanted:?} wanted, of which {tokens}, {found:?} found"
        ))
    }
}

fn of(profile: Profile) -> Config {
    Config {
        profile: Some(profile),
        ..Config::default()
    }
}

type OnModel = fn(&Model) -> Outcome;
type ModelTrial = Box<dyn FnOnce(&Model) -> Outcome + Send>;

/// A dispatch of the last token fails, behind those that were told already.
fn fails_while_generating(model: &Model, profile: Profile) -> Outcome {
    let plain = ["--recording", "off", "--slice-ms", "0"];
    let run = model.run(&of(profile), TOKENS, &plain)?;
    model.agrees(&run, TOKENS)?;
    let all = run.count("clEnqueueNDRangeKernel ");
    let config = Config {
        faults: vec![Fault {
            call: "clEnqueueNDRangeKernel".to_owned(),
            kernel: None,
            nth: all.saturating_sub(50) as u64,
            code: cl::OUT_OF_RESOURCES,
            lost: false,
        }],
        ..of(profile)
    };
    let run = model.run(&config, TOKENS, &plain)?;
    run.failed("Launch", &["clEnqueueNDRangeKernel", "CL_OUT_OF_RESOURCES"])
}

fn model_trials() -> Vec<(String, ModelTrial)> {
    let mut all: Vec<(String, ModelTrial)> = Vec::new();
    let mut add = |name: &str, run: ModelTrial| all.push((format!("model/{name}"), run));
    let plain: [(&str, OnModel); 22] = [
        ("plain_is_without_the_stand_in", plain_is_without_the_stand_in),
        ("adreno_context_has_low_priority", adreno),
        ("mali_decodes_from_command_buffers", command_buffers::decode),
        ("mali_queue_has_low_priority", mali),
        ("adreno_products_read_images", images),
        ("adreno_products_read_images_of_rows", images_of_rows),
        ("mali_reads_buffers", no_images),
        ("device_lost_at_a_recording@adreno", lost_at_a_recording),
        ("priority_is_chosen", priority_is_chosen),
        ("drivers_without_hints_are_told_of", no_hints),
        ("a_wrong_variant_is_not_used", wrong_variant),
        ("a_wrong_form_is_not_used", wrong_form),
        ("a_wrong_image_form_is_not_used", wrong_image_form),
        ("refused_images_are_not_judged", refused_images_are_not_judged),
        ("a_lack_of_memory_is_no_verdict", short_of_memory),
        ("wrong_parts_are_not_used", wrong_in_parts),
        ("nothing_exceeds_a_slice_at_first", heavy_at_first),
        ("a_warm_start_in_slices_compiles_nothing", warm_in_slices),
        ("a_variant_that_does_not_build_is_not_used", unbuilt_variant),
        ("a_variant_that_is_not_launched_is_not_used", unlaunched_variant),
        ("a_persistent_kernel_is_not_launched", unlaunched_persistent),
        ("a_variant_is_launched_at_the_second_try", launched_at_last),
    ];
    for (name, run) in plain {
        add(name, Box::new(run));
    }
    let recorded_with = |options: [&'static str; 2]| -> ModelTrial {
        Box::new(move |model: &Model| recorded(model, &options))
    };
    add("adreno_decodes_from_recordings", recorded_with(UNCUT));
    add("adreno_decodes_from_recordings_in_slices", recorded_with(WIDE));
    for (name, call) in command_buffers::refused_calls() {
        let run = move |model: &Model| command_buffers::refused(model, &call);
        add(&format!("mali_command_buffers_are_refused/{name}"), Box::new(run));
    }
    for (name, from) in [("every", 1), ("one_of_a_recording", IMAGES_TRIED + 5)] {
        let run = move |model: &Model| images_are_refused(model, from);
        add(&format!("{name}_image_is_refused@adreno"), Box::new(run));
    }
    for (name, refusal) in recordings_refused() {
        let run = move |model: &Model| recordings_are_refused(model, &refusal);
        add(&format!("recordings_are_refused/{name}@adreno"), Box::new(run));
    }
    for kernel in [
        "matvec_e0m",
        "matmul_e0m",
        "attention",
        "rotary_append",
        "gather_e0m",
        "pointwise",
        "norm",
    ] {
        let run = move |model: &Model| wrong_kernel(model, kernel);
        add(&format!("a_wrong_kernel_is_an_error/{kernel}"), Box::new(run));
    }
    for (name, profile) in PROFILES {
        let run = move |model: &Model| hints_are_refused(model, profile);
        add(&format!("hints_are_refused@{name}"), Box::new(run));
        let run = move |model: &Model| builds_at_last(model, profile);
        add(
            &format!("a_kernel_builds_at_the_second_try@{name}"),
            Box::new(run),
        );
        let run = move |model: &Model| slow(model, profile);
        add(&format!("slow_device@{name}"), Box::new(run));
        let run = move |model: &Model| fails_while_generating(model, profile);
        add(
            &format!("out_of_resources_while_generating@{name}"),
            Box::new(run),
        );
        for (fault, case) in faults() {
            let run = move |model: &Model| fails(model, profile, &case);
            add(&format!("{fault}@{name}"), Box::new(run));
        }
    }
    all
}

/// Nothing is measured against the stand-in alone.
fn plain_is_without_the_stand_in(model: &Model) -> Outcome {
    let run = play::generate_without(&model.folder, TOKENS)?;
    model.agrees(&run, TOKENS)
}

fn adreno(model: &Model) -> Outcome {
    let run = model.phone(Profile::Adreno)?;
    model.agrees(run, TOKENS)?;
    if run.device()? != "QUALCOMM Adreno(TM)" {
        return Err(format!("ran on {}", run.device()?));
    }
    // CL_CONTEXT_PRIORITY_HINT_QCOM: CL_PRIORITY_HINT_LOW_QCOM; clocks are the driver's.
    run.all("clCreateContext ", "clCreateContext properties=40c9:40cc = 0")?;
    // CL_QUEUE_PROFILING_ENABLE, by which slices are measured; CL_QUEUE_RECORDABLE_QCOM.
    run.has("clCreateCommandQueue properties=1093:2 = 0")?;
    run.has("clCreateCommandQueue properties=1093:40000000 = 0")?;
    Ok(())
}

/// Each step of decoding but the first ones comes from recordings, which are made once.
fn recorded(model: &Model, options: &[&str]) -> Outcome {
    let run = model.run(&of(Profile::Adreno), TOKENS, options)?;
    model.agrees(&run, TOKENS)?;
    run.quiet()?;
    let (queued, made) = (
        run.count("clEnqueueRecordingQCOM "),
        run.count("clNewRecordingQCOM "),
    );
    if queued < TOKENS - 4 || made == 0 || made > queued / 2 {
        return Err(format!(
            "{made} recordings were queued {queued} times for {TOKENS} tokens"
        ));
    }
    Ok(())
}

fn mali(model: &Model) -> Outcome {
    let run = model.phone(Profile::Mali)?;
    model.agrees(run, TOKENS)?;
    if !run.device()?.contains("Mali") {
        return Err(format!("ran on {}", run.device()?));
    }
    run.all("clCreateContext ", "clCreateContext properties=none = 0")?;
    // CL_QUEUE_PRIORITY_KHR: CL_QUEUE_PRIORITY_LOW_KHR.
    let queue = "clCreateCommandQueueWithProperties properties=1093:2,1096:4 = 0";
    run.all("clCreateCommandQueue", queue)
}

/// Slices on a busy machine are cut anew, and then not recorded.
const UNCUT: [&str; 2] = ["--slice-ms", "0"];
/// Slices that nothing fills.
const WIDE: [&str; 2] = ["--slice-ms", "5000"];

/// Images that are made when a device is opened, to see whether they can be: three of each kind.
const IMAGES_TRIED: u64 = 6;

/// The form of `matvec_e0m` that takes weights of 4 bits in pairs, for arithmetic in halves.
const PAIRS: &str = "PAIRS";

/// An Adreno, in whose log lines about arguments name that form.
fn adreno_by_form() -> Config {
    Config {
        forms: vec![PAIRS.to_owned()],
        ..of(Profile::Adreno)
    }
}

/// The phone has arithmetic in halves, as the driver of this machine has or has not. All real ones
/// have it.
fn halves(profile: Profile) -> Result<bool, String> {
    let report = play::run(&["devices", "--json"], &of(profile))?.report()?;
    let mut devices = report["devices"].as_array().into_iter().flatten();
    let phone = devices.find(|d| d["backend"] == "opencl");
    phone
        .and_then(|d| d["f16_math"].as_bool())
        .ok_or_else(|| format!("no phone in {report}"))
}

/// Both kernel families of products with quantized weights are given images for their operand, and
/// nothing else, decoding from recordings included; but for the form in pairs, which reads buffers,
/// by eights. In halves this is that of all weights but the 8-bit ones of the head.
fn all_read_images(run: &Run) -> Outcome {
    for kernel in ["matvec_e0m", "matmul_e0m"] {
        let operand = format!("clSetKernelArg kernel={kernel} index=0 ");
        run.all(&operand, &format!("{operand}size=8 image=true = 0"))?;
    }
    let operand = format!("clSetKernelArg kernel=matvec_e0m form={PAIRS} index=0 ");
    if halves(Profile::Adreno)? {
        run.all(&operand, &format!("{operand}size=8 = 0"))?;
    } else if run.count(&operand) > 0 {
        return Err(format!("{PAIRS} where there is no arithmetic in halves"));
    }
    let recorded = run
        .lines("clEndRecordingQCOM ")
        .filter(|l| !l.contains(" by_image=0 "))
        .count();
    if recorded == 0 {
        return Err("nothing that reads an image is recorded".to_owned());
    }
    run.quiet()
}

/// By default, those of one axis.
fn images(model: &Model) -> Outcome {
    let run = model.run(&adreno_by_form(), TOKENS, &UNCUT)?;
    model.agrees(&run, TOKENS)?;
    let made = run.lines("clCreateImage ").skip(IMAGES_TRIED as usize).count();
    let wrong = run.lines("clCreateImage ").find(|l| !l.ends_with(" = 0"));
    if let Some(wrong) = wrong {
        return Err(format!("an image is refused: {wrong}"));
    }
    let of_parts = run
        .lines("clCreateImage type=10f6 format=10dd ")
        .filter(|l| !l.ends_with(" origin=0 = 0"));
    if made == 0 || of_parts.count() == 0 {
        return Err(format!("{made} images"));
    }
    // All are made with the recordings: more tokens take no more.
    let shorter = model.run(&of(Profile::Adreno), 2, &UNCUT)?;
    let fewer = shorter
        .lines("clCreateImage ")
        .skip(IMAGES_TRIED as usize)
        .count();
    if fewer != made {
        return Err(format!("{made} images for {TOKENS} tokens, {fewer} for 2"));
    }
    all_read_images(&run)
}

/// Those of two axes, whose rows and beginnings the stand-in checks.
fn images_of_rows(model: &Model) -> Outcome {
    let more = [&UNCUT[..], &["--images", "2d"]].concat();
    let run = model.run(&adreno_by_form(), TOKENS, &more)?;
    model.agrees(&run, TOKENS)?;
    let made: Vec<_> = run.lines("clCreateImage ").skip(IMAGES_TRIED as usize).collect();
    // CL_MEM_OBJECT_IMAGE2D of CL_HALF_FLOAT: 256 pixels of 8 bytes.
    let right = |l: &&str| {
        l.starts_with("clCreateImage type=10f1 format=10dd width=256 ")
            && l.contains(" row_pitch=2048 ")
            && l.ends_with(" = 0")
    };
    if made.is_empty() || !made.iter().all(right) {
        return Err(format!("{made:?}"));
    }
    all_read_images(&run)
}

fn no_images(model: &Model) -> Outcome {
    let run = model.phone(Profile::Mali)?;
    model.agrees(run, TOKENS)?;
    if let Some(line) = run.lines("clSetKernelArg ").find(|l| l.contains(" image=true")) {
        return Err(format!("a kernel reads an image: {line}"));
    }
    // The kernel of many rows for a Mali, in halves.
    let in_pairs = run.count("clEnqueueNDRangeKernel kernel=matmul_e0m_pairs ") > 0;
    let halves = halves(Profile::Mali)?;
    if in_pairs != halves {
        return Err(format!(
            "arithmetic in halves: {halves}; matmul_e0m_pairs: {in_pairs}"
        ));
    }
    Ok(())
}

/// Every image from this one on is refused.
fn refusals(from: u64) -> Vec<Fault> {
    let each = (from..from + 999).map(|nth| Fault {
        call: "clCreateImage".to_owned(),
        kernel: None,
        nth,
        code: cl::IMAGE_FORMAT_NOT_SUPPORTED,
        lost: false,
    });
    each.collect()
}

/// A driver that lists images and refuses them, from the first or from another one on, is worked
/// with without them, and that is said once.
fn images_are_refused(model: &Model, from: u64) -> Outcome {
    let config = Config {
        faults: refusals(from),
        ..adreno_by_form()
    };
    let run = model.run(&config, TOKENS, &[])?;
    model.recovers(&run, Profile::Adreno, TOKENS)?;
    let told = run.warnings("backend::opencl::image", &["Adreno"]);
    if told != 1 {
        return Err(format!("{told} warnings: {}", run.errors));
    }
    // After the first refusal of a recording none is asked for.
    let asked = run.count("clCreateImage ") as u64;
    let most = if from > IMAGES_TRIED { from } else { IMAGES_TRIED };
    if asked > most {
        return Err(format!("{asked} images are asked for"));
    }
    run.has("clSetKernelArg kernel=matvec_e0m index=0 size=8 = 0")
}

/// A phone whose driver refuses a call at the `nth` time.
fn refusing(profile: Profile, call: &str, nth: u64) -> Config {
    Config {
        faults: vec![Fault {
            call: call.to_owned(),
            kernel: None,
            nth,
            code: cl::INVALID_OPERATION,
            lost: false,
        }],
        ..of(profile)
    }
}

/// A call about recordings that fails, and how often it may be made.
struct Refused {
    call: &'static str,
    nth: u64,
}

fn recordings_refused() -> [(&'static str, Refused); 5] {
    let refused = |call, nth| Refused { call, nth };
    [
        // The queue of commands comes first.
        ("queue", refused("clCreateCommandQueue", 2)),
        ("new", refused("clNewRecordingQCOM", 1)),
        ("end", refused("clEndRecordingQCOM", 1)),
        ("enqueue", refused("clEnqueueRecordingQCOM", 1)),
        ("enqueue_of_the_fifth", refused("clEnqueueRecordingQCOM", 5)),
    ]
}

/// A driver that lists recordings and refuses one is worked with without them, and that is said
/// once.
fn recordings_are_refused(model: &Model, refused: &Refused) -> Outcome {
    let run = model.run(
        &refusing(Profile::Adreno, refused.call, refused.nth),
        TOKENS,
        &UNCUT,
    )?;
    model.recovers(&run, Profile::Adreno, TOKENS)?;
    let warnings: Vec<_> = run.errors.lines().filter(|l| l.contains("WARN")).collect();
    let told = run.warnings("backend::opencl::replay", &[refused.call]);
    if (warnings.len(), told) != (1, 1) {
        return Err(format!("one warning wanted, {warnings:?} found"));
    }
    // No call about recordings comes after the refusal, but those that free what was recorded.
    let injected = format!("inject {} ", refused.call);
    let after = run.lines("").skip_while(|l| !l.starts_with(&injected)).skip(2);
    let about = |l: &&str| l.contains("RecordingQCOM") && !l.starts_with("clReleaseRecordingQCOM ");
    match after.into_iter().find(about) {
        Some(line) => Err(format!("{line} after the refusal")),
        None => Ok(()),
    }
}

fn lost_at_a_recording(model: &Model) -> Outcome {
    let config = Config {
        faults: vec![Fault {
            call: "clEnqueueRecordingQCOM".to_owned(),
            kernel: None,
            nth: 2,
            code: cl::OUT_OF_RESOURCES,
            lost: true,
        }],
        ..of(Profile::Adreno)
    };
    let run = model.run(&config, TOKENS, &UNCUT)?;
    run.failed("Lost", &["CL_OUT_OF_RESOURCES"])
}

/// A model of one operator, for `tlite run`.
fn relu(dir: &Path) -> Result<String, String> {
    let shape = [Size::Fixed(4)];
    let mut model = ModelWriter::create(Stage::Convert, dir, "relu.onnx", "g").text()?;
    model.opset("", 18);
    model.add_input("x", DType::F32, &shape).text()?;
    model.add_output("y", DType::F32, &shape).text()?;
    let node = NodeSpec {
        domain: "",
        op: "Relu",
        name: "relu",
        inputs: &["x"],
        outputs: &["y"],
        attributes: &[],
    };
    model.add_node(node).text()?;
    model.finish().text()?;
    Ok(dir.join("relu.onnx").display().to_string())
}

/// The queue that measures times, too.
fn every_queue() -> Outcome {
    let dir = tempfile::tempdir().text()?;
    let model = relu(dir.path())?;
    let args = [
        "run",
        &model,
        "--random",
        "--profile",
        "--json",
        "--backend",
        "opencl",
        "--no-cache",
    ];
    let queue = "clCreateCommandQueueWithProperties properties=";
    // CL_QUEUE_PROFILING_ENABLE for slices and for profiles.
    for (slice, first) in [("8", 2), ("0", 0)] {
        let run = play::run(&[&args[..], &["--slice-ms", slice]].concat(), &of(Profile::Mali))?;
        run.notes_of_priority("low", 0)?;
        run.has(&format!("{queue}1093:{first},1096:4 = 0"))?;
        run.has(&format!("{queue}1093:2,1096:4 = 0"))?;
    }
    Ok(())
}

/// Two Adrenos, whose driver gives both one name.
fn models_of_one_name() -> Outcome {
    let dir = tempfile::tempdir().text()?;
    let model = relu(dir.path())?;
    let cache = dir.path().join("cache").display().to_string();
    let args = [
        "run",
        &model,
        "--random",
        "--json",
        "--backend",
        "opencl",
        "--cache-dir",
        &cache,
    ];
    let models = ["Adreno(TM) 740", "Adreno(TM) 750"];
    for (i, version) in models.into_iter().enumerate() {
        let config = Config {
            version: Some(version.to_owned()),
            ..of(Profile::Adreno)
        };
        let report = play::run(&args, &config)?.report()?;
        if !report["driver"].as_str().is_some_and(|d| d.contains(version)) {
            return Err(format!("no {version} in {report}"));
        }
        let devices = play::run(&["devices", "--json"], &config)?.report()?;
        let told = devices["devices"].as_array().into_iter().flatten();
        if !told
            .filter_map(|d| d["driver"].as_str())
            .any(|d| d.contains(version))
        {
            return Err(format!("no {version} in {devices}"));
        }
        let list = ["cache", "list", "--json", "--cache-dir", &cache];
        let list = play::run_without(&list)?.report()?;
        let files = list["files"].as_array().ok_or("no files")?;
        for model in &models[..=i] {
            let of_model = |f: &&serde_json::Value| {
                f["kind"] == "program" && f["driver"].as_str().is_some_and(|d| d.contains(model))
            };
            if files.iter().filter(of_model).count() == 0 {
                return Err(format!("nothing of {model} after {version}: {list}"));
            }
        }
    }
    Ok(())
}

/// A loader that is there with a platform that finds nothing, as on a phone whose driver an app may
/// not open.
fn no_device(code: i32) -> Outcome {
    let dir = tempfile::tempdir().text()?;
    let model = relu(dir.path())?;
    let config = Config {
        no_device: Some(code),
        ..of(Profile::Adreno)
    };
    let platform = "QUALCOMM Snapdragon(TM)";
    let run = play::run(
        &["run", &model, "--random", "--json", "--backend", "opencl"],
        &config,
    )?;
    run.failed_by(2, "NoDevice", &[platform])?;
    // A list without it is one that says so.
    let report = play::run(&["devices", "--json"], &config)?.report()?;
    let mut absent = report["absent"].as_array().into_iter().flatten();
    let told = absent.find(|a| a["backend"] == "opencl");
    match told.and_then(|a| a["why"].as_str()) {
        Some(told) if told.contains(platform) => Ok(()),
        _ => Err(format!("{platform} wanted: {report}")),
    }
}

/// Devices of one name are told apart by their number.
fn two_devices() -> Outcome {
    let dir = tempfile::tempdir().text()?;
    let model = relu(dir.path())?;
    let config = Config {
        twice: true,
        ..of(Profile::Mali)
    };
    let on = |device: &str| {
        let args = [
            "run",
            &model,
            "--random",
            "--json",
            "--backend",
            "opencl",
            "--no-cache",
            "--device",
            device,
        ];
        play::run(&args, &config)
    };
    on("mali")?.refused(2, "Usage", &["--device", "\"mali\"", "Mali-G720", "#1"])?;
    on("mali#3")?.refused(2, "Usage", &["--device", "\"mali\"", "2", "#3"])?;
    for device in ["mali#1", "mali#2"] {
        let run = on(device)?;
        if run.device()? != "Mali-G720" {
            return Err(format!("{device} is {}", run.device()?));
        }
        run.quiet()?;
    }
    Ok(())
}

/// On backends that have no priorities.
fn without_effect() -> Outcome {
    let dir = tempfile::tempdir().text()?;
    let model = relu(dir.path())?;
    let mut backends = vec!["opencl", "host"];
    if backend::list(BackendKind::Wgpu).is_ok() {
        backends.push("wgpu");
    }
    for backend in backends {
        let base = ["run", &model, "--random", "--json", "--backend", backend];
        let run = play::run_without(&[&base[..], &["--priority", "high"]].concat())?;
        run.notes_of_priority("high", 1)?;
        play::run_without(&base)?.quiet()?;
    }
    Ok(())
}

fn priority_is_chosen(model: &Model) -> Outcome {
    for (profile, priority, line) in [
        // With the highest clocks.
        (
            Profile::Adreno,
            "high",
            "clCreateContext properties=40c9:40ca,40c2:40c3 = 0",
        ),
        (
            Profile::Adreno,
            "normal",
            "clCreateContext properties=40c9:40cb = 0",
        ),
        (
            Profile::Mali,
            "high",
            "clCreateCommandQueueWithProperties properties=1093:2,1096:1 = 0",
        ),
        (
            Profile::Mali,
            "normal",
            "clCreateCommandQueueWithProperties properties=1093:2,1096:2 = 0",
        ),
    ] {
        let run = model.run(&of(profile), ONE, &["--priority", priority])?;
        model.agrees(&run, ONE)?;
        run.quiet()?;
        let call = line.split(' ').next().unwrap_or_default();
        run.all(&format!("{call} "), line)?;
    }
    Ok(())
}

/// A driver that lists none gets none, and a priority that was asked for is said to have no effect,
/// unless it is what drivers do.
fn no_hints(model: &Model) -> Outcome {
    for (priority, told) in [("low", true), ("high", true), ("normal", false)] {
        let more = [&play::FLOAT[..], &["--priority", priority]].concat();
        let run = model.run(&Config::default(), ONE, &more)?;
        model.agrees(&run, ONE)?;
        run.all("clCreateContext ", "clCreateContext properties=none = 0")?;
        run.all("clCreateCommandQueue", "clCreateCommandQueue properties=none = 0")?;
        run.notes_of_priority(priority, usize::from(told))?;
    }
    Ok(())
}

/// A driver that lists hints and refuses them is worked with without them, and that is said once.
fn hints_are_refused(model: &Model, profile: Profile) -> Outcome {
    let config = Config {
        refuse_hints: true,
        ..of(profile)
    };
    let run = model.run(&config, TOKENS, &["--priority", "low"])?;
    model.recovers(&run, profile, TOKENS)?;
    let (code, refusal) = match profile {
        Profile::Adreno => ("-64", "clCreateContext properties=40c9:40cc = -64"),
        Profile::Mali => (
            "-35",
            "clCreateCommandQueueWithProperties properties=1093:2,1096:4 = -35",
        ),
        Profile::Radeon => return Err("a graphics card has no hints".to_owned()),
    };
    run.has(refusal)?;
    run.has("clCreateContext properties=none = 0")?;
    run.has("clCreateCommandQueue properties=1093:2 = 0")?;
    let told = run.warnings("backend::opencl::priority", &[code]);
    if told != 1 {
        return Err(format!("{told} warnings: {}", run.errors));
    }
    run.notes_of_priority("low", 1)
}

/// A compiler that fails once changes nothing.
fn builds_at_last(model: &Model, profile: Profile) -> Outcome {
    let config = Config {
        faults: vec![Fault {
            call: "clBuildProgram".to_owned(),
            kernel: Some(model.phone(profile)?.last_kernel()?),
            nth: 1,
            code: cl::BUILD_PROGRAM_FAILURE,
            lost: false,
        }],
        ..of(profile)
    };
    let run = model.run(&config, FEW, &[])?;
    model.recovers(&run, profile, FEW)?;
    run.quiet()
}

/// The variant of a kernel that a decoder's norms have where local memory is fast.
const VARIANT: &str = "norm_row";

/// One start says that the variant is not used, and uses its twin; the next one knows and says so,
/// and checks nothing.
fn quarantined(model: &Model, config: &Config, variant: &str) -> Outcome {
    let dir = tempfile::tempdir().text()?;
    let cache = dir.path().join("cache").display().to_string();
    let profile = config.profile.ok_or("no phone")?;
    let run = || play::generate_cached(&model.folder, config, FEW, &cache, &[]);
    let first = run()?;
    model.recovers(&first, profile, FEW)?;
    let notes = first.notes_of_kernel(variant);
    if notes != 1 {
        return Err(format!("{notes} notes: {}", first.errors));
    }
    if first.number("kernels_checked")? == 0 {
        return Err("nothing was checked".to_owned());
    }
    let second = run()?;
    model.agrees(&second, FEW)?;
    second.unharmed()?;
    second.earlier(variant)?;
    let checked = second.number("kernels_checked")?;
    if checked > 0 {
        return Err(format!("{checked} kernels checked"));
    }
    Ok(())
}

fn wrong_variant(model: &Model) -> Outcome {
    let plain = model.phone(Profile::Radeon)?;
    model.agrees(plain, TOKENS)?;
    plain.quiet()?;
    if plain.count(&format!("clEnqueueNDRangeKernel kernel={VARIANT} ")) == 0 {
        return Err(format!("{VARIANT} is not used where it is right"));
    }
    let config = Config {
        corrupt: Some(VARIANT.to_owned()),
        ..of(Profile::Radeon)
    };
    quarantined(model, &config, VARIANT)
}

fn unbuilt_variant(model: &Model) -> Outcome {
    let config = Config {
        faults: refused_builds(VARIANT),
        ..of(Profile::Radeon)
    };
    quarantined(model, &config, VARIANT)
}

/// The first launches of a kernel are refused.
fn launches_refused(kernel: &str, count: u64) -> Vec<Fault> {
    let each = (1..=count).map(|nth| Fault {
        call: "clEnqueueNDRangeKernel".to_owned(),
        kernel: Some(kernel.to_owned()),
        nth,
        code: cl::OUT_OF_RESOURCES,
        lost: false,
    });
    each.collect()
}

/// The first launches of the variant are refused.
fn unlaunched(count: u64) -> Config {
    Config {
        faults: launches_refused(VARIANT, count),
        ..of(Profile::Radeon)
    }
}

/// Compiled, but not launched.
fn unlaunched_variant(model: &Model) -> Outcome {
    quarantined(model, &unlaunched(99), VARIANT)
}

/// A driver that refuses a launch once says nothing of the kernel.
fn launched_at_last(model: &Model) -> Outcome {
    let run = model.run(&unlaunched(1), FEW, &[])?;
    model.recovers(&run, Profile::Radeon, FEW)?;
    run.quiet()
}

/// Dispatches of which the driver does not launch the kernel that joins them run one by one.
fn unlaunched_persistent(model: &Model) -> Outcome {
    let kernel = "persistent";
    let run = |count: u64| {
        let config = Config {
            faults: launches_refused(kernel, count),
            ..Config::default()
        };
        model.run(&config, FEW, &["--recording", "persistent"])
    };
    let joined = format!("clEnqueueNDRangeKernel kernel={kernel} ");
    let (plain, refused) = (run(0)?, run(99)?);
    // They are where products go in bytes, for which a CPU has what the kernels ask for or not.
    #[cfg(target_arch = "x86_64")]
    let joins =
        std::arch::is_x86_feature_detected!("avx512f") && std::arch::is_x86_feature_detected!("avx512bw");
    #[cfg(not(target_arch = "x86_64"))]
    let joins = false;
    if (plain.count(&joined) > 0) != joins {
        return Err(format!("dispatches are joined {} times", plain.count(&joined)));
    }
    if !joins {
        return Ok(());
    }
    if plain.tokens()? != refused.tokens()? {
        return Err(format!(
            "tokens {:?} wanted, {:?} found",
            plain.tokens()?,
            refused.tokens()?
        ));
    }
    refused.recovered(2 * plain.took)?;
    match refused.warnings("backend::opencl::persistent", &["CL_OUT_OF_RESOURCES"]) {
        1.. => Ok(()),
        0 => Err(format!("no warning: {}", refused.errors)),
    }
}

/// Every build of a kernel is refused.
fn refused_builds(kernel: &str) -> Vec<Fault> {
    let each = (1..99).map(|nth| Fault {
        call: "clBuildProgram".to_owned(),
        kernel: Some(kernel.to_owned()),
        nth,
        code: cl::BUILD_PROGRAM_FAILURE,
        lost: false,
    });
    each.collect()
}

/// A form of a kernel that its define makes; without it the kernel is right.
fn wrong_form(model: &Model) -> Outcome {
    let config = Config {
        corrupt: Some("matvec_e0m".to_owned()),
        corrupt_text: Some("#define WHOLE".to_owned()),
        ..of(Profile::Mali)
    };
    quarantined(model, &config, "matvec_e0m WHOLE")
}

/// The form of a kernel that reads images is wrong; from buffers the kernel is right.
fn wrong_image_form(model: &Model) -> Outcome {
    let config = Config {
        corrupt: Some("matvec_e0m".to_owned()),
        corrupt_text: Some(BY_IMAGE.to_owned()),
        ..of(Profile::Adreno)
    };
    quarantined(model, &config, "matvec_e0m images")
}

/// In the programs of `matvec_e0m` that read an image.
const BY_IMAGE: &str = "#define IMAGE_X";

/// What ran in place of a kernel that reads images is no verdict on that kernel: a later start, in
/// which images are made, checks it.
fn refused_images_are_not_judged(model: &Model) -> Outcome {
    let dir = tempfile::tempdir().text()?;
    let cache = dir.path().join("cache").display().to_string();
    let run = |config: &Config| play::generate_cached(&model.folder, config, FEW, &cache, &[]);
    let refusing = Config {
        faults: refusals(IMAGES_TRIED + 1),
        ..of(Profile::Adreno)
    };
    let first = run(&refusing)?;
    model.recovers(&first, Profile::Adreno, FEW)?;
    // The program that ran was checked, too.
    let again = run(&refusing)?;
    model.recovers(&again, Profile::Adreno, FEW)?;
    if (first.number("kernels_checked")?, again.number("kernels_checked")?) == (0, 0) {
        return Err("nothing was checked".to_owned());
    }
    let third = run(&of(Profile::Adreno))?;
    model.agrees(&third, FEW)?;
    third.quiet()?;
    if third.number("kernels_checked")? == 0 {
        return Err("kernels that read images were not checked".to_owned());
    }
    // They are known from then on.
    match run(&of(Profile::Adreno))?.number("kernels_checked")? {
        0 => Ok(()),
        checked => Err(format!("{checked} kernels checked again")),
    }
}

/// A compiler that lacks memory once says nothing of the kernel: it is used, in that start and in
/// later ones.
fn short_of_memory(model: &Model) -> Outcome {
    let dir = tempfile::tempdir().text()?;
    let cache = dir.path().join("cache").display().to_string();
    let each = (1..=2).map(|nth| Fault {
        call: "clBuildProgram".to_owned(),
        kernel: Some(VARIANT.to_owned()),
        nth,
        code: OUT_OF_HOST_MEMORY,
        lost: false,
    });
    let failing = Config {
        faults: each.collect(),
        ..of(Profile::Radeon)
    };
    for (config, fails) in [(failing, true), (of(Profile::Radeon), false)] {
        let run = play::generate_cached(&model.folder, &config, FEW, &cache, &[])?;
        if fails {
            model.recovers(&run, Profile::Radeon, FEW)?;
        } else {
            model.agrees(&run, FEW)?;
        }
        run.quiet()?;
        if run.count(&format!("clEnqueueNDRangeKernel kernel={VARIANT} ")) == 0 {
            return Err(format!("{VARIANT} is not used"));
        }
    }
    Ok(())
}

/// `CL_OUT_OF_HOST_MEMORY`.
const OUT_OF_HOST_MEMORY: i32 = -6;

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

/// Quick cases on the card.
fn quick_cases(config: &Config) -> Result<Run, String> {
    let args = [
        "selftest",
        "--quick",
        "--json",
        "--backend",
        "opencl",
        "--no-cache",
    ];
    play::run(&args, config)
}

/// The number of cases that failed, and the variants that are not used for it.
fn left(report: &serde_json::Value) -> Result<(usize, Vec<String>), String> {
    let row = &report["devices"][0];
    let (failed, left) = (row["failed"].as_array(), row["quarantined"].as_array());
    let failed = failed.ok_or_else(|| format!("no list of what failed: {report}"))?;
    let left = left.ok_or_else(|| format!("no list of what is not used: {report}"))?;
    let names = left
        .iter()
        .filter_map(|q| Some(q["variant"].as_str()?.to_owned()));
    Ok((failed.len(), names.collect()))
}

/// The cases blame the variant that is wrong, and no other.
fn cases_blame_what_is_wrong() -> Outcome {
    let config = Config {
        corrupt: Some(VARIANT.to_owned()),
        ..of(Profile::Radeon)
    };
    let run = quick_cases(&config)?;
    match left(&run.json()?)? {
        (1.., names) if names == [VARIANT] => Ok(()),
        found => Err(format!("{found:?}")),
    }
}

/// A device that is lost ends the cases, and says nothing of any kernel; neither do refusals of
/// memory.
fn cases_blame_no_kernel_for_the_device() -> Outcome {
    let lost = Fault {
        call: "clEnqueueNDRangeKernel".to_owned(),
        kernel: Some(VARIANT.to_owned()),
        nth: 1,
        code: cl::DEVICE_NOT_AVAILABLE,
        lost: true,
    };
    let refused = Fault {
        call: "clEnqueueNDRangeKernel".to_owned(),
        kernel: Some(VARIANT.to_owned()),
        nth: 1,
        code: cl::MEM_OBJECT_ALLOCATION_FAILURE,
        lost: false,
    };
    for fault in [lost, refused] {
        let config = Config {
            faults: vec![fault.clone()],
            ..of(Profile::Radeon)
        };
        let run = quick_cases(&config)?;
        let (failed, names) = left(&run.json()?)?;
        if fault.lost {
            run.recovered(Duration::ZERO)?;
        }
        if failed != 1 || !names.is_empty() {
            return Err(format!(
                "{fault:?}: {failed} cases failed, {names:?} are not used"
            ));
        }
    }
    Ok(())
}

/// A kernel without a twin whose results are wrong ends the start.
fn wrong_kernel(model: &Model, kernel: &str) -> Outcome {
    let config = Config {
        corrupt: Some(kernel.to_owned()),
        ..of(Profile::Adreno)
    };
    let run = model.run(&config, TOKENS, &[])?;
    run.failed("Wrong", &[kernel, "Adreno"])
}

/// Every dispatch takes 1 ms longer, every wait half a second.
fn slow(model: &Model, profile: Profile) -> Outcome {
    let delay = |call: &str, ms| Delay {
        call: call.to_owned(),
        ms,
    };
    let config = Config {
        delays: vec![
            delay("clEnqueueNDRangeKernel", 1),
            delay("clEnqueueReadBuffer", 500),
            delay("clFinish", 500),
        ],
        ..of(profile)
    };
    let run = model.run(&config, FEW, &[])?;
    model.agrees(&run, FEW)?;
    run.endured(
        &["clEnqueueNDRangeKernel", "clEnqueueReadBuffer", "clFinish"],
        2 * model.phone(profile)?.took,
    )?;
    run.quiet()
}

/// A call that fails, and the error that the run must end with.
#[derive(Clone)]
struct Failing {
    call: &'static str,
    /// Only the calls about the kernel that a step ends with, or about its program.
    last_kernel: bool,
    nth: u64,
    code: i32,
    lost: bool,
    /// The variant of the error.
    variant: &'static str,
    /// What it carries.
    values: &'static [&'static str],
}

fn faults() -> Vec<(&'static str, Failing)> {
    let fault = |call, nth, code, lost, variant, values| Failing {
        call,
        last_kernel: false,
        nth,
        code,
        lost,
        variant,
        values,
    };
    vec![
        (
            "a_kernel_does_not_build",
            Failing {
                last_kernel: true,
                ..fault(
                    "clBuildProgram",
                    1,
                    cl::BUILD_PROGRAM_FAILURE,
                    false,
                    "Build",
                    &["source.cl:1:1"],
                )
            },
        ),
        (
            "a_kernel_is_not_launched",
            Failing {
                last_kernel: true,
                ..fault(
                    "clEnqueueNDRangeKernel",
                    1,
                    cl::OUT_OF_RESOURCES,
                    false,
                    "Launch",
                    &["clEnqueueNDRangeKernel", "CL_OUT_OF_RESOURCES"],
                )
            },
        ),
        (
            "device_lost_at_a_dispatch",
            fault(
                "clEnqueueNDRangeKernel",
                500,
                cl::DEVICE_NOT_AVAILABLE,
                true,
                "Lost",
                &["CL_DEVICE_NOT_AVAILABLE"],
            ),
        ),
        (
            "device_lost_at_a_read",
            fault(
                "clEnqueueReadBuffer",
                3,
                cl::OUT_OF_RESOURCES,
                true,
                "Lost",
                &["clEnqueueReadBuffer", "CL_OUT_OF_RESOURCES"],
            ),
        ),
        (
            "device_lost_at_an_upload",
            fault(
                "clEnqueueWriteBuffer",
                5,
                cl::DEVICE_NOT_AVAILABLE,
                true,
                "Lost",
                &["clEnqueueWriteBuffer"],
            ),
        ),
        (
            "no_context",
            fault(
                "clCreateContext",
                1,
                cl::DEVICE_NOT_AVAILABLE,
                true,
                "Device",
                &["clCreateContext", "CL_DEVICE_NOT_AVAILABLE"],
            ),
        ),
        (
            "no_memory",
            fault(
                "clCreateBuffer",
                2,
                cl::MEM_OBJECT_ALLOCATION_FAILURE,
                false,
                "OutOfMemory",
                &["CL_MEM_OBJECT_ALLOCATION_FAILURE"],
            ),
        ),
        // A limit on all buffers together, which is less than the weights.
        ("memory_limit", fault("", 0, 0, false, "OutOfMemory", &[])),
    ]
}

fn fails(model: &Model, profile: Profile, case: &Failing) -> Outcome {
    let kernel = if case.last_kernel {
        Some(model.phone(profile)?.last_kernel()?)
    } else {
        None
    };
    let mut config = of(profile);
    if case.call.is_empty() {
        config.memory_limit = Some(32 << 20);
    } else {
        // A build that fails is tried again, and a kernel has many forms: all fail.
        let last = if case.last_kernel { 99 } else { case.nth };
        let each = (case.nth..=last).map(|nth| Fault {
            call: case.call.to_owned(),
            kernel: kernel.clone(),
            nth,
            code: case.code,
            lost: case.lost,
        });
        config.faults = each.collect();
    }
    let run = model.run(&config, TOKENS, &[])?;
    run.failed(case.variant, case.values)
}
