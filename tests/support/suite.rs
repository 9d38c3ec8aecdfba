//! Test binaries whose trials follow from data: cases, files, models and devices.

use crate::{Device, Missing, devices, required};
use libtest_mimic::{Arguments, Failed, Trial};
use std::fmt::Display;
use std::process::ExitCode;

/// Trials of one subject. Their names begin with the subject's and `::`, as tests in a module do.
pub struct Suite {
    name: &'static str,
    trials: Vec<Trial>,
    after: Option<After>,
}

/// Runs after the trials. The flag is true where no trial of the suite was filtered out.
type After = Box<dyn FnOnce(bool) -> Result<(), String>>;

impl Suite {
    /// Adds a trial.
    pub fn add(&mut self, name: impl Display, run: impl FnOnce() -> Result<(), String> + Send + 'static) {
        let name = format!("{}::{name}", self.name);
        self.trials.push(Trial::test(name, move || Ok(run()?)));
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
    pub fn after(&mut self, check: impl FnOnce(bool) -> Result<(), String> + 'static) {
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
    for (name, fill) in suites {
        let prefix = format!("{name}::");
        let skipped = !arguments.exact && arguments.skip.iter().any(|s| prefix.contains(s));
        if only.as_ref().is_some_and(|(only, _)| only != name) || skipped {
            continue;
        }
        let mut suite = Suite {
            name,
            trials: Vec::new(),
            after: None,
        };
        fill(&mut suite);
        trials.append(&mut suite.trials);
        checks.extend(suite.after.map(|check| (name, check)));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    let mut passed = !conclusion.has_failed();
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
