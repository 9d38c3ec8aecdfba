//! Limits on what a model, which is untrusted input, may consume, and how its files are read.
#![warn(missing_docs)]

use crate::error::{Error, Result, Stage};
use crate::files::read::MAX_TEXT_FILE;
use crate::quota::{self, Quota};
use std::str::FromStr;
use std::time::Duration;

/// Limits on what loading and running one model may consume. Exceeding one is an error of kind
/// [`ErrorKind::LimitExceeded`](crate::ErrorKind::LimitExceeded).
///
/// As text, limits are a list such as `memory=4G,time=30s,iterations=1000`; what it does not name
/// keeps its default.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// `memory`: bytes of tensors in host memory, the buffers of the backend `cpu` among them, that
    /// a model and its calls may hold at once. Mapped files do not count, files that are read do.
    /// `None` is half of the memory of the machine, or of the process if it has less.
    pub memory: Option<u64>,
    /// `time`: duration of each load and of each run. Text generation runs the model once per token
    /// and per part of a prompt. A request of a [`Batcher`](crate::Batcher) fails if a run takes
    /// longer, its wait for others included; other requests go on. `None` is unlimited.
    pub time: Option<Duration>,
    /// `iterations`: iterations of all ONNX `Loop` and `Scan` operators in one run.
    pub iterations: u64,
    /// `tokenizer`: bytes of `tokenizer.json`.
    pub tokenizer: u64,
    /// `template-steps`: instructions that rendering a chat template may take.
    pub template_steps: u64,
    /// `template-output`: bytes of a rendered chat template.
    pub template_output: usize,
    /// `files=read`: copies the files of the model into memory while it loads. The default,
    /// `files=map`, maps them: loading is faster and takes less memory, but as long as the model
    /// exists, no process may change the files. A change then changes results, and a file that is
    /// cut ends the process with SIGBUS.
    pub read_files: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: None,
            time: None,
            iterations: 1 << 20,
            tokenizer: MAX_TEXT_FILE,
            template_steps: 5_000_000,
            template_output: 16 << 20,
            read_files: false,
        }
    }
}

impl Limits {
    /// The names of the limits in text.
    pub const NAMES: [&str; 7] = [
        "memory",
        "time",
        "iterations",
        "tokenizer",
        "template-steps",
        "template-output",
        "files",
    ];

    /// The quota of a model within these limits.
    #[doc(hidden)]
    pub fn quota(&self) -> Quota {
        let memory = self.memory.unwrap_or_else(default_memory);
        Quota::new(memory, self.time, self.iterations)
    }
}

/// Fails in `stage` if the call on this thread was cancelled or has no time left.
pub(crate) fn check(stage: Stage) -> Result<()> {
    quota::check().map_err(|e| Error::exceeded(stage, e))
}

impl FromStr for Limits {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut limits = Self::default();
        if text.trim().is_empty() {
            return Ok(limits);
        }
        let mut set = Vec::new();
        for part in text.split(',').map(str::trim) {
            let Some((name, value)) = part.split_once('=') else {
                let what = format!("\"{part}\": expected NAME=VALUE, such as memory=4G");
                return Err(Error::usage("limits", what));
            };
            if set.contains(&name) {
                return Err(Error::usage("limits", format!("{name} is given twice")));
            }
            set.push(name);
            match name {
                "memory" => limits.memory = Some(number(name, value)?),
                "time" => limits.time = Some(duration(name, value)?),
                "iterations" => limits.iterations = number(name, value)?,
                "tokenizer" => limits.tokenizer = number(name, value)?,
                "template-steps" => limits.template_steps = number(name, value)?,
                "template-output" => {
                    limits.template_output = usize::try_from(number(name, value)?)
                        .map_err(|_| invalid(name, value, "a number that this machine can address"))?;
                }
                "files" => {
                    limits.read_files = match value {
                        "read" => true,
                        "map" => false,
                        _ => return Err(invalid(name, value, "read or map")),
                    }
                }
                _ => {
                    let what = format!("unknown limit \"{name}\"; expected {}", Self::NAMES.join(", "));
                    return Err(Error::usage("limits", what));
                }
            }
        }
        Ok(limits)
    }
}

fn invalid(name: &str, value: &str, expected: &str) -> Error {
    Error::usage(
        "limits",
        format!("{name}: \"{value}\" is not valid; expected {expected}"),
    )
}

/// A number, with a suffix `K`, `M` or `G` for powers of 1024.
fn number(name: &str, value: &str) -> Result<u64> {
    let (digits, factor) = match value.strip_suffix(['K', 'M', 'G']) {
        Some(digits) if value.ends_with('K') => (digits, 1u64 << 10),
        Some(digits) if value.ends_with('M') => (digits, 1 << 20),
        Some(digits) => (digits, 1 << 30),
        None => (value, 1),
    };
    let number: Option<u64> = digits.parse().ok();
    number
        .and_then(|n| n.checked_mul(factor))
        .ok_or_else(|| invalid(name, value, "a number such as 1000, 64K, 512M or 4G"))
}

/// A duration in seconds (`30s`) or milliseconds (`500ms`).
fn duration(name: &str, value: &str) -> Result<Duration> {
    let parse = |digits: &str, unit: fn(u64) -> Duration| digits.parse().ok().map(unit);
    value
        .strip_suffix("ms")
        .map(|digits| parse(digits, Duration::from_millis))
        .or_else(|| {
            value
                .strip_suffix('s')
                .map(|digits| parse(digits, Duration::from_secs))
        })
        .flatten()
        .ok_or_else(|| invalid(name, value, "a duration such as 30s or 500ms"))
}

/// Half of the memory that the machine has and the process may use, in bytes.
fn default_memory() -> u64 {
    /// Where the operating system does not say.
    const UNKNOWN: u64 = 16 << 30;
    usable_memory().unwrap_or(UNKNOWN) / 2
}

/// The memory that the machine has and the process may use, in bytes; `None` if the operating
/// system does not say.
pub(crate) fn usable_memory() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let all = [
        machine_memory(&read("/proc/meminfo")),
        address_space(&read("/proc/self/limits")),
        read("/sys/fs/cgroup/memory.max").trim().parse().ok(),
    ];
    all.into_iter().flatten().min()
}

/// The bytes of memory that `/proc/meminfo` states.
fn machine_memory(text: &str) -> Option<u64> {
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// The bytes of address space that `/proc/self/limits` states, if it is limited.
fn address_space(text: &str) -> Option<u64> {
    let limit = text
        .lines()
        .find_map(|line| line.strip_prefix("Max address space"))?;
    limit.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn limits_are_read_from_text() {
        let limits: Limits = "memory=4G, time=1500ms,iterations=7,files=read".parse().unwrap();
        let expected = Limits {
            memory: Some(4 << 30),
            time: Some(Duration::from_millis(1500)),
            iterations: 7,
            read_files: true,
            ..Limits::default()
        };
        assert_eq!(limits, expected);
        assert_eq!(
            "time=2s".parse::<Limits>().unwrap().time,
            Some(Duration::from_secs(2))
        );
        assert_eq!("".parse::<Limits>().unwrap(), Limits::default());
        for name in Limits::NAMES {
            for value in ["", "x", "-1", "99999999999999999999", "18014398509481984K"] {
                let error = format!("{name}={value}").parse::<Limits>().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Usage, "{name}={value}");
            }
        }
        for text in ["memory", "other=1", "=1", ",", "time=1s,", "memory=1,memory=1"] {
            assert_eq!(
                text.parse::<Limits>().unwrap_err().kind(),
                ErrorKind::Usage,
                "{text}"
            );
        }
    }

    #[test]
    fn memory_of_the_machine_and_the_process() {
        let meminfo = "MemTotal:       24689728 kB\nMemFree:  1 kB\n";
        assert_eq!(machine_memory(meminfo), Some(24_689_728 * 1024));
        assert_eq!(machine_memory("MemTotal: 9 pages"), None);
        let of = |limit: &str| {
            address_space(&format!(
                "Max address space         {limit}            unlimited            bytes\n"
            ))
        };
        assert_eq!([of("4096000000"), of("unlimited")], [Some(4_096_000_000), None]);
        assert!(default_memory() > 0);
    }
}
