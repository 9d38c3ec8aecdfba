//! Test binaries whose trials follow from data: cases, files, models and devices.

use crate::{Device, Missing, Outcome, Tier, devices, required};
use libtest_mimic::{Arguments, Failed, Trial};
use std::cmp::Reverse;
use std::fmt::Display;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Trials of one subject. Their names begin with the subject's and `::`, as tests in a module do.
pub struct Suite {
    name: &'static str,
    trials: Vec<Trial>,
    times: Times,
    after: Option<After>,
}

/// How long each trial took, waiting for its device included.
type Times = Arc<Mutex<Vec<(Duration, String)>>>;

/// Trials whose times are printed, if they take a second or more.
const SLOWEST: usize = 10;

/// Runs after the trials. The flag is true where no trial of the suite was filtered out.
type After = Box<dyn FnOnce(bool) -> Outcome>;

impl Suite {
    pub fn add(&mut self, name: impl Display, run: impl FnOnce() -> Outcome + Send + 'static) {
        let trial = self.trial(name, run);
        self.trials.push(trial);
    }

    /// Adds a trial for this tier and those above. Below it is listed as ignored, with its kind.
    pub fn add_in(&mut self, tier: Tier, name: impl Display, run: impl FnOnce() -> Outcome + Send + 'static) {
        let kind = if tier == Tier::Nightly { "nightly" } else { "ci" };
        self.add_if(Tier::of_environment() >= tier, kind, name, run);
    }

    /// Adds a trial. Where it does not `run_here`, it is listed as ignored, with its kind.
    pub fn add_if(
        &mut self,
        run_here: bool,
        kind: &str,
        name: impl Display,
        run: impl FnOnce() -> Outcome + Send + 'static,
    ) {
        let trial = self.trial(name, run);
        self.trials.push(if run_here {
            trial
        } else {
            trial.with_kind(kind).with_ignored_flag(true)
        });
    }

    fn trial(&self, name: impl Display, run: impl FnOnce() -> Outcome + Send + 'static) -> Trial {
        let name = format!("{}::{name}", self.name);
        let times = Arc::clone(&self.times);
        Trial::test(name.clone(), move || {
            let start = Instant::now();
            let result = run();
            crate::lock(&times).push((start.elapsed(), name));
            Ok(result?)
        })
    }

    /// Adds a trial that stands for those that cannot run here: it fails where they must run, and
    /// is ignored elsewhere.
    pub fn left_out(&mut self, name: impl Display, why: &str, must_run: bool) {
        let (name, why) = (format!("{}::{name}", self.name), why.to_owned());
        let trial = Trial::test(name, move || Err(Failed::from(why)));
        self.trials.push(trial.with_ignored_flag(!must_run));
    }

    /// Leaves out trials for want of what an environment variable names. They must run where
    /// `REQUIRE_BACKENDS` is set.
    pub fn not_set(&mut self, why: &str) {
        self.left_out(format_args!("NOT TESTED: {why}"), why, !required().is_empty());
    }

    /// Opens all devices of all backends, and leaves out the trials of backends without a device.
    pub fn devices(&mut self) -> Vec<Device> {
        let (found, missing) = devices();
        for m in &missing {
            self.no_device(m);
        }
        found
    }

    /// Leaves out the trials of a backend.
    pub fn no_device(&mut self, missing: &Missing) {
        let name = format!("NO DEVICE FOR BACKEND {}: {}", missing.backend, missing.why);
        self.left_out(name, &missing.why, missing.is_required());
    }

    /// Names of the trials so far.
    pub fn names(&self) -> Vec<String> {
        let own = |t: &Trial| t.name()[self.name.len() + 2..].to_owned();
        self.trials.iter().map(own).collect()
    }

    /// What is checked when the trials have run.
    pub fn after(&mut self, check: impl FnOnce(bool) -> Outcome + 'static) {
        self.after = Some(Box::new(check));
    }
}

/// The name of a suite, and what fills it.
type Named = (&'static str, fn(&mut Suite));

/// Runs the trials of all suites that the command line asks for. The functions fill the suites of
/// these names. With a filter such as `llm::answers`, only the suite `llm` is filled, and those of
/// its trials run whose names contain `answers`.
pub fn run(suites: &[Named]) -> ExitCode {
    let mut arguments = Arguments::from_args();
    let named = arguments.filter.as_deref().and_then(|f| f.split_once("::"));
    let only = named.and_then(|(name, rest)| {
        let suite = suites.iter().find(|(suite, _)| *suite == name)?;
        Some((suite.0, rest.to_owned()))
    });
    let whole = arguments.skip.is_empty()
        && only
            .as_ref()
            .map_or(arguments.filter.is_none(), |(_, rest)| rest.is_empty());
    if let Some((_, rest)) = &only
        && !arguments.exact
    {
        arguments.filter = Some(rest.clone());
    }
    let (mut trials, mut checks) = (Vec::new(), Vec::new());
    let times = Times::default();
    for (name, fill) in suites {
        let prefix = format!("{name}::");
        let skipped = !arguments.exact && arguments.skip.iter().any(|s| prefix.contains(s));
        if only.as_ref().is_some_and(|(only, _)| only != name) || skipped {
            continue;
        }
        let mut suite = Suite {
            name,
            trials: Vec::new(),
            times: Arc::clone(&times),
            after: None,
        };
        fill(&mut suite);
        trials.append(&mut suite.trials);
        checks.extend(suite.after.map(|check| (name, check)));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    let mut passed = !conclusion.has_failed();
    print_slowest(&times);
    if !arguments.list {
        for (name, check) in checks {
            if let Err(why) = check(whole) {
                println!("FAILED: {name}: {why}");
                passed = false;
            }
        }
    }
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(101)
    }
}

fn print_slowest(times: &Times) {
    let mut times = crate::lock(times);
    times.retain(|(took, _)| took.as_secs() > 0);
    times.sort_unstable_by_key(|(took, _)| Reverse(*took));
    for (took, name) in times.iter().take(SLOWEST) {
        println!("{:6.1} s  {name}", took.as_secs_f64());
    }
}
