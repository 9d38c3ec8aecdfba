//! The command on the fake driver, of whose functions each fails at one call. A process for each
//! fault, and one after it on the same cache folder.

use super::spread;
use crate::phone_path::play::{self, Run};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tlite_fake_driver::{Config, Fault, Profile, cl};
use tlite_testing::suite::Suite;
use tlite_testing::{Outcome, Text, Tier, equal, speaking_model};
use transformer_lite::unstable::backend::BackendKind;
use transformer_lite::unstable::cache::{DEFAULT_LIMIT, Kind, Store};
use transformer_lite::unstable::devices;

/// In which runs a function is called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Every,
    /// Where kernels are new.
    Cold,
    Warm,
    /// On some phones, or only after another call has failed.
    Phone,
}

/// The functions that runs call.
const CALLS: [(&str, Place); 44] = [
    ("clBuildProgram", Place::Every),
    ("clCommandNDRangeKernelKHR", Place::Phone),
    ("clCreateBuffer", Place::Every),
    ("clCreateCommandBufferKHR", Place::Phone),
    ("clCreateCommandQueue", Place::Every),
    ("clCreateCommandQueueWithProperties", Place::Phone),
    ("clCreateContext", Place::Every),
    ("clCreateImage", Place::Phone),
    ("clCreateKernel", Place::Every),
    ("clCreateProgramWithBinary", Place::Warm),
    ("clCreateProgramWithSource", Place::Cold),
    ("clCreateSubBuffer", Place::Every),
    ("clEndRecordingQCOM", Place::Phone),
    ("clEnqueueCommandBufferKHR", Place::Phone),
    ("clEnqueueCopyBuffer", Place::Cold),
    ("clEnqueueFillBuffer", Place::Phone),
    ("clEnqueueNDRangeKernel", Place::Every),
    ("clEnqueueReadBuffer", Place::Every),
    ("clEnqueueRecordingQCOM", Place::Phone),
    ("clEnqueueWriteBuffer", Place::Every),
    ("clFinalizeCommandBufferKHR", Place::Phone),
    ("clFinish", Place::Every),
    ("clFlush", Place::Every),
    ("clGetDeviceIDs", Place::Every),
    ("clGetDeviceInfo", Place::Every),
    ("clGetEventInfo", Place::Phone),
    ("clGetEventProfilingInfo", Place::Phone),
    ("clGetExtensionFunctionAddressForPlatform", Place::Phone),
    ("clGetKernelInfo", Place::Every),
    ("clGetKernelWorkGroupInfo", Place::Every),
    ("clGetPlatformIDs", Place::Every),
    ("clGetPlatformInfo", Place::Every),
    ("clGetProgramBuildInfo", Place::Phone),
    ("clGetProgramInfo", Place::Cold),
    ("clNewRecordingQCOM", Place::Phone),
    ("clReleaseCommandBufferKHR", Place::Phone),
    ("clReleaseCommandQueue", Place::Every),
    ("clReleaseContext", Place::Every),
    ("clReleaseEvent", Place::Every),
    ("clReleaseKernel", Place::Every),
    ("clReleaseMemObject", Place::Every),
    ("clReleaseProgram", Place::Every),
    ("clSetKernelArg", Place::Every),
    ("clWaitForEvents", Place::Phone),
];

/// Calls of a function that fail, one in each run.
const IN_CI: u64 = 2;
const NIGHTLY: u64 = 40;

/// Where and how a model runs while calls fail.
struct Scenario {
    name: &'static str,
    profile: Option<Profile>,
    /// The cache folder holds what a run without faults has left; it is empty otherwise.
    warm: bool,
    reference: OnceLock<Result<Reference, String>>,
}

/// A run without faults.
struct Reference {
    model: PathBuf,
    cache: tempfile::TempDir,
    calls: BTreeMap<String, u64>,
    tokens: Vec<u64>,
    kernels: u64,
    took: Duration,
    _model: tempfile::TempDir,
}

pub fn trials(suite: &mut Suite) {
    if let Err(e) = devices::list(BackendKind::OpenCl) {
        suite.no_device(&tlite_testing::Missing {
            backend: BackendKind::OpenCl.to_string(),
            why: e.to_string(),
        });
        return;
    }
    for (name, profile, warm, tier) in [
        ("cold", None, false, Tier::Ci),
        ("warm", None, true, Tier::Ci),
        ("adreno", Some(Profile::Adreno), true, Tier::Nightly),
        ("mali", Some(Profile::Mali), true, Tier::Nightly),
    ] {
        let scenario = Arc::new(Scenario {
            name,
            profile,
            warm,
            reference: OnceLock::new(),
        });
        let all = Arc::clone(&scenario);
        suite.add_in(tier, format!("opencl/{name}/every_call_is_listed"), move || {
            all.every_call_is_listed()
        });
        for (call, place) in CALLS {
            let called = match place {
                Place::Every => true,
                Place::Cold => !warm || profile.is_some(),
                Place::Warm => warm,
                Place::Phone => profile.is_some(),
            };
            if !called {
                continue;
            }
            let scenario = Arc::clone(&scenario);
            suite.add_in(tier, format!("opencl/{name}/{call}"), move || {
                scenario.fails_at(call)
            });
        }
    }
}

/// Codes with which a call fails, and whether the device is lost then.
fn codes(call: &str) -> &'static [(i32, bool)] {
    match call {
        "clBuildProgram" => &[
            (cl::OUT_OF_HOST_MEMORY, false),
            (cl::OUT_OF_RESOURCES, false),
            (cl::BUILD_PROGRAM_FAILURE, false),
        ],
        _ => &[
            (cl::OUT_OF_RESOURCES, false),
            (cl::DEVICE_NOT_AVAILABLE, true),
            (cl::OUT_OF_HOST_MEMORY, false),
            (cl::INVALID_OPERATION, false),
        ],
    }
}

fn copy(from: &Path, to: &Path) -> Outcome {
    for entry in std::fs::read_dir(from).text()? {
        let entry = entry.text()?;
        std::fs::copy(entry.path(), to.join(entry.file_name())).text()?;
    }
    Ok(())
}

impl Scenario {
    fn config(&self, faults: Vec<Fault>) -> Config {
        Config {
            profile: self.profile,
            faults,
            ..Config::default()
        }
    }

    fn run(&self, model: &Path, cache: &Path, faults: Vec<Fault>) -> Result<Run, String> {
        let (model, cache) = (model.display().to_string(), cache.display().to_string());
        let options = ["--raw", "--prompt", "hello world", "--max-tokens", "4", "--json"];
        let place = ["--backend", "opencl", "--temperature", "0", "--cache-dir", &cache];
        play::run(
            &[&["generate", &model], &options[..], &place].concat(),
            &self.config(faults),
        )
    }

    fn reference(&self) -> Result<&Reference, String> {
        let make = || {
            let (kept, model) = speaking_model();
            let cache = tempfile::tempdir().text()?;
            let cold = self.run(&model, cache.path(), Vec::new())?;
            let run = match self.warm {
                true => self.run(&model, cache.path(), Vec::new())?,
                false => cold,
            };
            let calls = run.calls();
            Ok(Reference {
                calls: calls.iter().map(|(call, n)| ((*call).to_owned(), *n)).collect(),
                tokens: run.tokens()?,
                kernels: kernels(&run)?,
                took: run.took,
                model,
                cache,
                _model: kept,
            })
        };
        self.reference.get_or_init(make).as_ref().map_err(Clone::clone)
    }

    fn every_call_is_listed(&self) -> Outcome {
        let calls = &self.reference()?.calls;
        let listed = |call: &String| CALLS.iter().any(|(known, _)| known == call);
        let unknown: Vec<_> = calls.keys().filter(|call| !listed(call)).collect();
        equal(&unknown, &Vec::new())
    }

    fn fails_at(&self, call: &str) -> Outcome {
        let reference = self.reference()?;
        let Some(count) = reference.calls.get(call) else {
            let phone = self.profile.is_some();
            return equal(&phone, &true).map_err(|_| format!("{call} is not called"));
        };
        let most = match Tier::of_environment() {
            Tier::Nightly => NIGHTLY,
            _ => IN_CI,
        };
        let codes = codes(call);
        // So that neighbours in the list do not all fail by the same codes.
        let first = call.len();
        for (i, nth) in spread(*count, most).into_iter().enumerate() {
            let (code, lost) = codes[(first + i) % codes.len()];
            let fault = Fault {
                call: call.to_owned(),
                kernel: None,
                nth,
                code,
                lost,
            };
            self.fails(reference, fault)
                .map_err(|e| format!("{} {call} {nth} of {count}, {code}: {e}", self.name))?;
        }
        Ok(())
    }

    fn fails(&self, reference: &Reference, fault: Fault) -> Outcome {
        let cache = tempfile::tempdir().text()?;
        if self.warm {
            copy(reference.cache.path(), cache.path())?;
        }
        let run = self.run(&reference.model, cache.path(), vec![fault])?;
        // How often a phone's work is cut into slices depends on the time that it takes.
        if self.profile.is_none() || run.unharmed().is_err() {
            run.failed_or_recovered(&reference.tokens, 2 * reference.took)?;
        }
        let after = self.run(&reference.model, cache.path(), Vec::new())?;
        let sound = || {
            equal(&after.tokens()?, &reference.tokens)?;
            equal(&kernels(&after)?, &reference.kernels)?;
            after.quiet()?;
            equal(&results(cache.path())?, &results(reference.cache.path())?)
        };
        sound().map_err(|e| format!("after it: {e}"))
    }
}

/// What a cache folder says: the drivers that its files are for, and whether kernels or programs
/// are noted as anything but right.
fn results(cache: &Path) -> Result<(BTreeSet<String>, bool), String> {
    let store = Store::new(cache.to_owned(), DEFAULT_LIMIT);
    let (mut drivers, mut wrong) = (BTreeSet::new(), false);
    for entry in store.entries().text()? {
        let key = entry.key.ok_or("a file without a key")?;
        let result = store.get(entry.kind, &key);
        let right = [&b"right"[..], b"[]"].map(<[u8]>::to_vec).map(Some);
        wrong |= entry.kind == Kind::Verdict && !right.contains(&result);
        drivers.insert(key.driver);
    }
    Ok((drivers, wrong))
}

fn kernels(run: &Run) -> Result<u64, String> {
    Ok(run.number("kernels_compiled")? + run.number("kernels_cached")?)
}
