//! The path to phones without a phone: `tlite` with a fake driver in the place of the OpenCL
//! library of an Adreno or a Mali (`tests/fake_driver`), over the driver of this machine.
//!
//! What is covered: priorities reach the driver, as properties of the context or of the queue; a
//! real model gives the tokens that it gives without the fake driver; a run in which a call fails
//! recovers with these tokens or ends with one typed error, soon after the failure; and a kernel
//! with wrong results is found at the start, which goes on with its twin or ends. Each of these is
//! a process of its own, which loads the fake driver by `OPENCL_DYLIB_PATH`, and its log is what is
//! asserted on. What the fake driver does itself is tested in `phone_path/fake_driver.rs`: the
//! checks of properties, recordings, and that a kernel's results are spoilt where that is asked
//! for.
//!
//! The model is that of `tests/references/llm.rs`, named by `TLITE_TEST_MODEL_DIR`.

mod command_buffers;
mod devices;
mod fake_driver;
mod faults;
mod first_use;
mod images;
pub(crate) mod play;
mod priorities;
mod quarantine;
mod recordings;
mod slices;
mod tune;

use play::{Outcome, Run};
use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use tlite_fake_driver::{Config, Fault, Profile, cl};
use tlite_testing::Tier;
use tlite_testing::suite::Suite;
use transformer_lite::unstable::backend::BackendKind;

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
    if let Err(e) = transformer_lite::unstable::devices::list(BackendKind::OpenCl) {
        suite.no_device(&tlite_testing::Missing {
            backend: BackendKind::OpenCl.to_string(),
            why: e.to_string(),
        });
        return;
    }
    for (name, run) in fake_driver::TRIALS {
        suite.add(format!("fake_driver/{name}"), run);
    }
    for (name, run) in first_use::TRIALS {
        suite.add(format!("run/{name}"), run);
    }
    for (name, run) in tune::TRIALS {
        suite.add(format!("tune/{name}"), run);
    }
    suite.add("run/every_queue_has_the_priority", priorities::every_queue);
    suite.add(
        "run/priorities_without_effect_are_told",
        priorities::without_effect,
    );
    suite.add(
        "run/cases_blame_what_is_wrong",
        quarantine::cases_blame_what_is_wrong,
    );
    suite.add(
        "run/cases_blame_no_kernel_for_the_device",
        quarantine::cases_blame_no_kernel_for_the_device,
    );
    suite.add(
        "run/models_of_one_name_share_no_cache",
        devices::models_of_one_name,
    );
    suite.add("run/one_of_two_devices_is_chosen", devices::two_devices);
    for (name, code) in [
        ("none_found", cl::DEVICE_NOT_FOUND),
        ("a_number_of_0", cl::SUCCESS),
    ] {
        suite.add(format!("run/a_platform_without_device/{name}"), move || {
            devices::no_device(code)
        });
    }
    if let Some(dir) = model {
        let model = Arc::new(Model::new(dir.join("e0m4")));
        let mut groups = HashSet::new();
        for (name, run) in model_trials() {
            // Of trials that differ in a call, a kernel or a phone, one runs for each change.
            let group = name.split(['/', '@']).next().unwrap_or_default();
            let tier = match groups.insert(group.to_owned()) {
                true => Tier::Quick,
                false => Tier::Nightly,
            };
            let model = Arc::clone(&model);
            suite.add_in(tier, format!("model/{name}"), move || run(&model));
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

    /// A whole answer through the fake driver, which only passes calls on. In the arithmetic of
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

/// Takes the name and the code of a trial.
type Add<'a> = dyn FnMut(&str, ModelTrial) + 'a;

/// A call that is refused, and which of them.
struct Refused {
    call: &'static str,
    nth: u64,
}

/// The `nth` of these calls fails.
fn fault(call: &str, nth: u64, code: i32) -> Fault {
    Fault {
        call: call.to_owned(),
        kernel: None,
        nth,
        code,
        lost: false,
    }
}

/// These calls fail, of all or of those about a kernel.
fn failing(call: &str, kernel: Option<&str>, nths: RangeInclusive<u64>, code: i32) -> Vec<Fault> {
    let of_kernel = |nth| Fault {
        kernel: kernel.map(str::to_owned),
        ..fault(call, nth, code)
    };
    nths.map(of_kernel).collect()
}

fn with_faults(profile: Profile, faults: Vec<Fault>) -> Config {
    Config {
        faults,
        ..of(profile)
    }
}

fn model_trials() -> Vec<(String, ModelTrial)> {
    let mut all: Vec<(String, ModelTrial)> = Vec::new();
    let mut add = |name: &str, run: ModelTrial| all.push((name.to_owned(), run));
    add(
        "plain_is_without_the_stand_in",
        Box::new(plain_is_without_the_stand_in),
    );
    add("adreno_context_has_low_priority", Box::new(adreno));
    add("mali_queue_has_low_priority", Box::new(mali));
    add(
        "mali_decodes_from_command_buffers",
        Box::new(command_buffers::decode),
    );
    for (name, call) in command_buffers::refused_calls() {
        let run = move |model: &Model| command_buffers::refused(model, &call);
        add(&format!("mali_command_buffers_are_refused/{name}"), Box::new(run));
    }
    for trials in [
        priorities::trials,
        images::trials,
        recordings::trials,
        quarantine::trials,
        slices::trials,
        faults::trials,
    ] {
        trials(&mut add);
    }
    all
}

/// Nothing is measured against the fake driver alone.
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

/// A phone whose driver refuses a call at the `nth` time.
fn refusing(profile: Profile, call: &str, nth: u64) -> Config {
    with_faults(profile, vec![fault(call, nth, cl::INVALID_OPERATION)])
}
