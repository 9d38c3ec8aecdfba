//! Runs of `tlite` as processes that load the fake driver, and what they leave behind.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tlite_fake_driver::{CONFIG, Config};
pub use tlite_testing::Outcome;
use tlite_testing::carries;
use transformer_lite::unstable::graph::op::all;

/// No run takes that long, on a busy machine either.
const LIMIT: Duration = Duration::from_secs(300);

/// After a failure nothing is left to be waited for.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

/// A run that has ended.
#[derive(Clone, Debug)]
pub struct Run {
    status: ExitStatus,
    output: String,
    /// What it said on standard error.
    pub errors: String,
    /// The fake driver's log; empty where it was not loaded.
    log: String,
    /// From start to end.
    pub took: Duration,
    /// When it had ended, since 1970.
    ended: Duration,
}

/// The fake driver as cargo built it with this program.
fn library() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let name = format!(
        "{}tlite_fake_driver{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    );
    let path = program.with_file_name(name);
    if path.is_file() {
        Ok(path)
    } else {
        Err(format!("there is no {}", path.display()))
    }
}

/// Warnings; not which kernels take more than a slice: on a busy machine all may. And the variants
/// of errors, beside their words.
const LOG: &str = "error,transformer_lite=warn,transformer_lite::note=off,transformer_lite::error=debug";

fn tlite(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tlite"));
    command.args(args).env("RUST_LOG", LOG);
    command
}

/// What generates `tokens` tokens greedily.
fn greedy(model: &Path, tokens: usize, more: &[&str]) -> Command {
    let mut command = tlite(&[
        "generate",
        "--prompt",
        "Why is the sky blue?",
        "--temperature",
        "0",
    ]);
    command
        .args([
            "--backend",
            "opencl",
            "--context",
            "128",
            "--json",
            "--max-tokens",
        ])
        .arg(tokens.to_string())
        .args(more)
        .arg(model);
    command
}

/// Generates greedily on the fake driver. An error only where the run does not end.
pub fn generate(model: &Path, config: &Config, tokens: usize, more: &[&str]) -> Result<Run, String> {
    on_stand_in(uncached(greedy(model, tokens, more)), config)
}

/// The same with a cache in this folder.
pub fn generate_cached(
    model: &Path,
    config: &Config,
    tokens: usize,
    cache: &str,
    more: &[&str],
) -> Result<Run, String> {
    let more = [&["--cache-dir", cache], more].concat();
    on_stand_in(greedy(model, tokens, &more), config)
}

/// Kernels are built in each run: a failure to build one is played.
fn uncached(mut command: Command) -> Command {
    command.arg("--no-cache");
    command
}

/// As on GPUs. Devices that are CPUs take activations in bytes otherwise, and answer in other
/// words.
pub const FLOAT: [&str; 2] = ["--act", "float"];

/// Generates greedily without the fake driver, in the arithmetic of phones.
pub fn generate_without(model: &Path, tokens: usize) -> Result<Run, String> {
    alone(uncached(greedy(model, tokens, &FLOAT)))
}

/// Any command on the fake driver. An error only where it does not end.
pub fn run(args: &[&str], config: &Config) -> Result<Run, String> {
    on_stand_in(tlite(args), config)
}

/// Any command without the fake driver.
pub fn run_without(args: &[&str]) -> Result<Run, String> {
    alone(tlite(args))
}

fn on_stand_in(mut command: Command, config: &Config) -> Result<Run, String> {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let log = dir.path().join("log");
    let config = Config {
        log: Some(log.clone()),
        ..config.clone()
    };
    let file = dir.path().join("config.json");
    let text = serde_json::to_vec(&config).map_err(|e| e.to_string())?;
    std::fs::write(&file, text).map_err(|e| e.to_string())?;
    command.env("OPENCL_DYLIB_PATH", library()?).env(CONFIG, file);
    let run = wait(command, dir.path(), &log)?;
    if run.log.is_empty() {
        return Err(format!("the fake driver was not loaded: {}", run.errors));
    }
    Ok(run)
}

fn alone(command: Command) -> Result<Run, String> {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    wait(command, dir.path(), &dir.path().join("log"))
}

fn wait(mut command: Command, dir: &Path, log: &Path) -> Result<Run, String> {
    let (output, errors) = (dir.join("stdout"), dir.join("stderr"));
    let create = |path: &Path| File::create(path).map_err(|e| e.to_string());
    command
        .stdin(Stdio::null())
        .stdout(create(&output)?)
        .stderr(create(&errors)?);
    let text = |path: &Path| std::fs::read(path).map(|b| String::from_utf8_lossy(&b).into_owned());
    let start = Instant::now();
    let mut process = command.spawn().map_err(|e| e.to_string())?;
    let status = loop {
        match process.try_wait().map_err(|e| e.to_string())? {
            Some(status) => break status,
            None if start.elapsed() > LIMIT => {
                let _gone = process.kill();
                let _reaped = process.wait();
                let said = text(&errors).unwrap_or_default();
                return Err(format!("runs for more than {LIMIT:?}: {said}"));
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    Ok(Run {
        status,
        output: text(&output).map_err(|e| e.to_string())?,
        errors: text(&errors).map_err(|e| e.to_string())?,
        log: text(log).unwrap_or_default(),
        took: start.elapsed(),
        ended: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
    })
}

impl Run {
    /// The report of a run that ended well.
    pub fn report(&self) -> Result<serde_json::Value, String> {
        if !self.status.success() {
            return Err(format!("ended with {}: {}", self.status, self.errors));
        }
        serde_json::from_str(&self.output).map_err(|e| format!("{e} in {}", self.output))
    }

    /// An error for a run that did not end well, whatever it wrote.
    pub fn ended_well(&self) -> Outcome {
        if self.status.success() {
            return Ok(());
        }
        Err(format!("ended with {}: {}", self.status, self.errors))
    }

    /// The tokens of the answer of a run that ended well.
    pub fn tokens(&self) -> Result<Vec<u64>, String> {
        let report = self.report()?;
        let tokens = report["tokens"].as_array().ok_or("no tokens")?;
        Ok(tokens.iter().filter_map(serde_json::Value::as_u64).collect())
    }

    /// A number in the report of a run that ended well.
    pub fn number(&self, name: &str) -> Result<u64, String> {
        let report = self.report()?;
        report[name]
            .as_u64()
            .ok_or_else(|| format!("no {name} in {report}"))
    }

    /// The device that a run that ended well says it ran on.
    pub fn device(&self) -> Result<String, String> {
        let report = self.report()?;
        report["device"]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| format!("no device in {report}"))
    }

    /// It ended well, and said that `--priority` has no effect so many times.
    pub fn notes_of_priority(&self, priority: &str, wanted: usize) -> Outcome {
        self.report()?;
        let option = format!("--priority {priority}");
        let found = self.notes().filter(|n| carries(n, &option)).count();
        if found == wanted {
            return Ok(());
        }
        Err(format!(
            "{wanted} notes of --priority {priority} wanted: {}",
            self.errors
        ))
    }

    /// It says once that an earlier start has left this variant, and nothing else.
    pub fn earlier(&self, variant: &str) -> Outcome {
        let (notes, named) = (self.notes().count(), self.notes_of_kernel(variant));
        if notes != 1 || named != 1 || self.errors.contains("WARN") {
            return Err(self.errors.clone());
        }
        Ok(())
    }

    /// What it noted of options and kernels: how far it had come names none. Without the fake
    /// driver, the one below it says that it is slow.
    fn notes(&self) -> impl Iterator<Item = &str> {
        let kernel = |l: &str| all().flat_map(|d| d.kernels).any(|k| carries(l, k.name));
        let slow = |l: &str| carries(l, "--backend cpu");
        let notes = self.errors.lines().filter(|l| l.starts_with("note: "));
        notes.filter(move |l| (l.contains(" --") || kernel(l)) && !slow(l))
    }

    /// How many notes name this variant of a kernel.
    pub fn notes_of_kernel(&self, variant: &str) -> usize {
        self.notes().filter(|n| carries(n, variant)).count()
    }

    /// How many warnings of this module of the library carry each of `values`.
    pub fn warnings(&self, module: &str, values: &[&str]) -> usize {
        let target = format!("transformer_lite::internal::{module}");
        let warnings = self.errors.lines().filter(|l| carries(l, "WARN"));
        let of_module = warnings.filter(|l| carries(l, &target));
        of_module.filter(|l| values.iter().all(|v| carries(l, v))).count()
    }

    /// No warning, and no note of an option without effect.
    pub fn quiet(&self) -> Outcome {
        if self.errors.contains("WARN") || self.notes().next().is_some() {
            return Err(self.errors.clone());
        }
        Ok(())
    }

    /// The log has `line`.
    pub fn has(&self, line: &str) -> Outcome {
        if self.log.lines().any(|l| l == line) {
            return Ok(());
        }
        let call = line.split(' ').next().unwrap_or_default();
        let others: Vec<_> = self.log.lines().filter(|l| l.starts_with(call)).take(5).collect();
        Err(format!("no {line:?} but {others:?}"))
    }

    /// The log has a line that starts with `start`, and all that do are `line`.
    pub fn all(&self, start: &str, line: &str) -> Outcome {
        self.has(line)?;
        let other = self.log.lines().find(|l| l.starts_with(start) && *l != line);
        other.map_or(Ok(()), |other| Err(format!("{other:?} beside {line:?}")))
    }

    /// The lines of the log that start with this text.
    pub fn lines<'a>(&'a self, start: &'a str) -> impl Iterator<Item = &'a str> {
        self.log.lines().filter(move |l| l.starts_with(start))
    }

    /// How many lines of the log start with this text.
    pub fn count(&self, start: &str) -> usize {
        self.lines(start).count()
    }

    /// The kernel that was dispatched last.
    pub fn last_kernel(&self) -> Result<String, String> {
        let dispatches = self.log.lines().rev();
        let mut names = dispatches.filter_map(|l| {
            l.strip_prefix("clEnqueueNDRangeKernel kernel=")?
                .split(' ')
                .next()
        });
        names.next().map(str::to_owned).ok_or("no dispatch".to_owned())
    }

    /// What a run of any end wrote as its report.
    pub fn json(&self) -> Result<serde_json::Value, String> {
        serde_json::from_str(&self.output).map_err(|e| format!("{e} in {}{}", self.output, self.errors))
    }

    /// Milliseconds since 1970 of the first line that says that a call was made to fail; of results
    /// that were made wrong, which forms of a kernel are in turn, the last one.
    fn injected(&self) -> Option<Duration> {
        let refused = |l: &&str| l.starts_with("inject ") && l.contains(" ms=") && !l.contains(" delay=");
        let wrong = self.lines("inject wrong results ").last();
        let line = wrong.or_else(|| self.log.lines().find(refused))?;
        let ms = line.rsplit_once(" ms=")?.1.parse().ok()?;
        Some(Duration::from_millis(ms))
    }

    /// It went on after a call that was made to fail, and ended within `whole`, the time of a run
    /// without failures, and that of a failure.
    pub fn recovered(&self, whole: Duration) -> Outcome {
        let injected = self.injected().ok_or("no call was made to fail")?;
        let took = self.ended.saturating_sub(injected);
        if took > whole + AFTER_FAILURE {
            return Err(format!("it took {took:?} to end after the failure"));
        }
        Ok(())
    }

    /// It ended well though calls were delayed, some of each of `calls`, and within `whole`, the
    /// time of a run without delays, that of a failure, and the delays.
    pub fn endured(&self, calls: &[&str], whole: Duration) -> Outcome {
        let of = |line: &str| -> Option<u64> {
            let (_, delay) = line.split_once(" delay=")?;
            delay.split(' ').next()?.parse().ok()
        };
        for call in calls {
            if self.lines(&format!("inject {call} ")).find_map(of).is_none() {
                return Err(format!("no {call} was delayed"));
            }
        }
        let delays: u64 = self.lines("inject ").filter_map(of).sum();
        if self.took > whole + AFTER_FAILURE + Duration::from_millis(delays) {
            return Err(format!("it took {:?} with {delays} ms of delays", self.took));
        }
        Ok(())
    }

    /// No call was made to fail, and no result was made wrong.
    pub fn unharmed(&self) -> Outcome {
        match self.lines("inject ").next() {
            Some(line) => Err(line.to_owned()),
            None => Ok(()),
        }
    }

    /// It ended by itself, soon after the failure, with exit code 1 and one error, which is one of
    /// `variant` and carries `values`; and without an answer.
    pub fn failed(&self, variant: &str, values: &[&str]) -> Outcome {
        self.failed_by(1, variant, values)
    }

    /// The same with another exit code: 2 for what the user asked for and is not there.
    pub fn failed_by(&self, code: i32, variant: &str, values: &[&str]) -> Outcome {
        self.refused(code, variant, values)?;
        let Some(injected) = self.injected() else {
            return Err(self.told("no call was made to fail"));
        };
        let took = self.ended.saturating_sub(injected);
        if took > AFTER_FAILURE {
            return Err(self.told(&format!("it took {took:?} to end after the failure")));
        }
        Ok(())
    }

    /// It ended by itself with this exit code and one error, which is one of `variant` and carries
    /// `values`; and without an answer.
    pub fn refused(&self, code: i32, variant: &str, values: &[&str]) -> Outcome {
        let wrong = |what: &str| Err(self.told(what));
        if self.status.code() != Some(code) {
            return wrong(&format!("exit code {code} wanted"));
        }
        self.failed_once()?;
        let (variants, said): (Vec<&str>, Vec<&str>) = self.errors.lines().partition(|l| is_variant(l));
        if !variants.iter().any(|l| carries(l, variant)) {
            return wrong(&format!("an error {variant} wanted"));
        }
        let said = said.join("\n");
        if let Some(value) = values.iter().find(|v| !carries(&said, v)) {
            return wrong(&format!("{value:?} wanted"));
        }
        Ok(())
    }

    /// It ended by itself with one typed error and without an answer.
    fn failed_once(&self) -> Outcome {
        let wrong = |what: &str| Err(self.told(what));
        if !matches!(self.status.code(), Some(1 | 2)) {
            return wrong("exit code 1 or 2 wanted");
        }
        if self.errors.contains("panicked") {
            return wrong("a panic");
        }
        if self.errors.lines().filter(|l| l.starts_with("error: ")).count() != 1 {
            return wrong("one error wanted");
        }
        if !self.errors.lines().any(is_variant) {
            return wrong("a typed error wanted");
        }
        if !self.output.is_empty() {
            return wrong("an answer beside an error");
        }
        Ok(())
    }

    /// A call was made to fail, and the run ended with these tokens within `whole`, the time of a
    /// run without failures, and that of a failure; or with one error within that of a failure.
    pub fn failed_or_recovered(&self, tokens: &[u64], whole: Duration) -> Outcome {
        if !self.status.success() {
            self.failed_once()?;
            return self.recovered(Duration::ZERO).map_err(|why| self.told(&why));
        }
        let found = self.tokens()?;
        if found != tokens {
            return Err(self.told(&format!("tokens {tokens:?} wanted")));
        }
        self.recovered(whole).map_err(|why| self.told(&why))
    }

    /// How often each function was called.
    pub fn calls(&self) -> BTreeMap<&str, u64> {
        let mut counts = BTreeMap::new();
        let calls = self.log.lines().filter_map(|l| l.split(' ').next());
        for call in calls.filter(|call| call.starts_with("cl")) {
            *counts.entry(call).or_default() += 1;
        }
        counts
    }

    /// What is wrong, with all that it said.
    fn told(&self, what: &str) -> String {
        format!("{what}; {}: {}{}", self.status, self.output, self.errors)
    }
}

/// The line of standard error that shows an error as the library has it.
fn is_variant(line: &str) -> bool {
    carries(line, "DEBUG") && carries(line, "transformer_lite::error")
}
