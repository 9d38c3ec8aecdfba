//! The inputs in `fuzz/regressions` as arguments of the command: each run ends by itself, in time
//! and within 4 GB of address space, with success or an error.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tlite_testing::gguf::Traits;
use tlite_testing::suite::Suite;
use tlite_testing::{Outcome, Tier, bounded, tiny_model};

const KILOBYTES: u32 = 4_000_000;

/// Alone each run takes less than 10 s; here it shares cores with other trials.
const MOST: Duration = Duration::from_secs(30);

/// What a target reads.
#[derive(Clone, Copy)]
enum Input {
    /// The file of this command.
    Model(&'static [&'static str]),
    /// The value of this option of `generate`.
    Option(&'static str),
    /// The chat template of `generate`.
    Template,
}

/// Files of one target, by name.
fn files(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(tlite_testing::ROOT)
        .join("fuzz/regressions")
        .join(target);
    let entries = std::fs::read_dir(&folder).expect("the target has regressions");
    let mut files: Vec<PathBuf> = entries.map(|e| e.expect("a readable folder").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files
}

/// Whether a model may be read: those named `ext_*` have data outside of their folder, beyond the
/// end of a file or in no file, except for two.
fn may_be_read(name: &str) -> bool {
    !name.starts_with("ext_") || matches!(name, "ext_filelink.onnx" | "ext_self.onnx")
}

/// A folder with what external data in `models` names: a pipe, and links to outside.
fn surroundings() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder for temporary files");
    let at = |name: &str| dir.path().join(name);
    for (name, target) in [
        ("passwd_link", "/etc/passwd"),
        ("link_out", "/etc"),
        ("proc_link", "/proc/self/mem"),
    ] {
        std::os::unix::fs::symlink(target, at(name)).expect("a link");
    }
    let made = std::process::Command::new("mkfifo").arg(at("fifo")).status();
    assert!(made.is_ok_and(|status| status.success()), "a pipe");
    dir
}

/// Runs the command with each file of a target.
fn all_end(target: &str, input: Input, more: &[&str]) -> Outcome {
    let (_dir, model) = tiny_model("llama", Traits::default());
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let generate = ["generate", &text(&model), "--prompt", "x", "--max-tokens", "2"];
    let around = surroundings();
    let mut wrong = Vec::new();
    for file in files(target) {
        let name = file.file_name().expect("a file has a name");
        let path = text(&around.path().join(name));
        std::fs::copy(&file, &path).map_err(|e| e.to_string())?;
        let args = match input {
            Input::Model(command) => [command, &[&path]].concat(),
            Input::Option(option) => [&generate[..], &[option, &path]].concat(),
            Input::Template => {
                let place = model.join("chat_template.jinja");
                std::fs::copy(&file, place).map_err(|e| e.to_string())?;
                generate.to_vec()
            }
        };
        let args = [&args, more].concat();
        let start = Instant::now();
        let output = bounded(KILOBYTES, &args);
        let (took, text) = (start.elapsed(), String::from_utf8_lossy(&output.stderr));
        let ended = match output.status.code() {
            Some(0) => may_be_read(&name.to_string_lossy()),
            code => matches!(code, Some(1 | 2)),
        };
        if !ended || text.contains("panicked") || took > MOST {
            wrong.push(format!(
                "{path} after {took:?}: {args:?}: {}: {text}",
                output.status
            ));
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("\n")),
    }
}

pub fn trials(suite: &mut Suite) {
    suite.add_in(Tier::Ci, "inspect", || {
        all_end("models", Input::Model(&["inspect"]), &[])
    });
    let devices = suite.devices();
    let names = devices.iter().map(|d| d.kind.name());
    for backend in names.chain(["reference"]) {
        for (target, input) in [
            ("models", Input::Model(&["run", "--random"])),
            ("template", Input::Template),
            ("schema", Input::Option("--json-schema")),
            ("lark", Input::Option("--grammar")),
        ] {
            // Texts are read before a backend is opened.
            let tier = match (target, backend) {
                ("models", _) | (_, "cpu") => Tier::Ci,
                _ => Tier::Nightly,
            };
            suite.add_in(tier, format_args!("{target}@{backend}"), move || {
                all_end(target, input, &["--backend", backend])
            });
        }
    }
}
