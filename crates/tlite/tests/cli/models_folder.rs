//! The models folder: conversions on first use, by this process and others, and the commands about
//! it.

use crate::commands::send_interrupt;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tlite_testing::gguf::{File, Traits, tiny};
use tlite_testing::hugging_face::{Order, gptq};
use tlite_testing::{TWO_TOKENS, failed_in_a_line};
use transformer_lite::unstable::error::{Error, ErrorKind, Result};
use transformer_lite_convert::gguf::Value;
use transformer_lite_convert::models::{Entry, Event, FOLDER_VARIABLE, LAYOUT, ModelStore};

/// A folder with a models folder and a GGUF file.
struct Place {
    dir: tempfile::TempDir,
    store: ModelStore,
    gguf: PathBuf,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = ModelStore::new(dir.path().join("models"));
        let gguf = dir.path().join("tiny.gguf");
        std::fs::write(&gguf, model(0.0).bytes()).unwrap();
        Self { dir, store, gguf }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = tlite_testing::command();
        command.args(args).stdin(Stdio::null());
        command.env(FOLDER_VARIABLE, self.store.folder());
        command.env("RUST_LOG", tlite_testing::LOG);
        command.env("HF_HOME", self.path("hub"));
        command.env_remove("HF_HUB_CACHE");
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs a command that must succeed, and returns both its streams.
    #[track_caller]
    fn runs(&self, args: &[&str]) -> (String, String) {
        let output = self.run(args);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (out, notes) = (text(output.stdout), text(output.stderr));
        assert_eq!(output.status.code(), Some(0), "{args:?}: {notes}");
        (out, notes)
    }

    /// Runs a command that must fail as [`failed_in_a_line`] says.
    #[track_caller]
    fn fails(&self, args: &[&str], code: i32, variant: &str, values: &[&str]) {
        failed_in_a_line(&self.run(args), code, variant, values);
    }

    /// Everything in the models folder but lock files.
    fn contents(&self) -> Vec<String> {
        let list = std::fs::read_dir(self.store.folder());
        let names = list.into_iter().flatten().flatten();
        let mut names: Vec<String> = names
            .map(|item| item.file_name().into_string().unwrap())
            .filter(|name| name != ".locks")
            .collect();
        names.sort();
        names
    }
}

/// A tiny model with a weight of this value.
fn model(value: f32) -> File {
    let mut file = tiny("llama", Traits::default());
    let data = &mut file.tensor("output_norm.weight").data;
    data[..4].copy_from_slice(&value.to_le_bytes());
    file
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// What happened in `work`: `r` for reading a source, `c` for a conversion.
fn steps<T>(work: impl FnOnce(&mut dyn FnMut(Event<'_>)) -> Result<T>) -> (T, String) {
    let mut steps = String::new();
    let mut add = |step| {
        if !steps.ends_with(step) {
            steps.push(step);
        }
    };
    let result = work(&mut |event| match event {
        Event::Hashing { .. } => add('r'),
        Event::Begin { .. } => add('c'),
        _ => {}
    });
    (result.unwrap(), steps)
}

fn import(place: &Place, path: &Path) -> (Entry, String) {
    steps(|on_event| place.store.import(path, on_event))
}

#[test]
fn first_use_converts_and_the_second_does_not() {
    let place = Place::new();
    let args = [&["generate", text(&place.gguf)][..], &TWO_TOKENS].concat();
    let (first, notes) = place.runs(&args);
    assert!(notes.contains("converting tiny for its first use"), "{notes}");
    let written = |name: &str| {
        let metadata = std::fs::metadata(place.store.folder().join("tiny").join(name));
        metadata.unwrap().modified().unwrap()
    };
    let before = written("model.onnx");
    let (second, notes) = place.runs(&args);
    assert!(!notes.contains("converting"), "{notes}");
    assert_eq!((first, before), (second, written("model.onnx")));

    let [entry] = &place.store.entries().unwrap()[..] else {
        panic!("one entry")
    };
    let manifest = entry.manifest();
    assert_eq!((entry.name(), manifest.architecture.as_str()), ("tiny", "llama"));
    assert_eq!(
        (manifest.layout, manifest.source.as_str()),
        (LAYOUT, text(&place.gguf))
    );
    assert_eq!(
        manifest.source_bytes,
        std::fs::metadata(&place.gguf).unwrap().len()
    );
    assert!(manifest.bits >= 32.0 && manifest.parameters > 0, "{manifest:?}");
    assert_eq!(manifest.key.len(), 64);
    assert_eq!(place.contents(), ["tiny"]);
    let (_, steps) = import(&place, &place.gguf);
    assert_eq!(steps, "", "the file is not even read");
}

#[test]
fn every_command_takes_a_gguf_file() {
    let place = Place::new();
    let gguf = text(&place.gguf);
    let words = place.path("words.txt");
    std::fs::write(&words, "hello world hello world").unwrap();
    place.runs(&["inspect", gguf]);
    assert!(place.contents().is_empty(), "its header says enough");
    place.runs(&["inspect", gguf, "--nodes"]);
    place.runs(&[
        "bench",
        gguf,
        "--backend",
        "reference",
        "--prefill",
        "4",
        "--decode",
        "2",
        "--repeat",
        "1",
    ]);
    place.runs(&[
        "perplexity",
        gguf,
        "--backend",
        "reference",
        "--text",
        text(&words),
    ]);
    // These measure devices, and say so only after they found the model.
    for command in ["profile", "roofline", "tune"] {
        let e = place.run(&[command, gguf, "--backend", "reference"]);
        let e = String::from_utf8(e.stderr).unwrap();
        assert!(
            e.contains("reference") && !e.contains("tiny.gguf"),
            "{command}: {e}"
        );
    }
    let entry = place.store.find("tiny").unwrap().unwrap();
    let (first, _) = place.runs(&["inspect", text(entry.folder()), "--json"]);
    let (second, _) = place.runs(&["inspect", "tiny", "--json"]);
    assert_eq!(first, second);
}

#[test]
fn changed_content_is_converted_anew() {
    let place = Place::new();
    let (first, steps) = import(&place, &place.gguf);
    assert_eq!(steps, "rc");
    // Of the same size.
    std::fs::write(&place.gguf, model(0.5).bytes()).unwrap();
    let (second, steps) = import(&place, &place.gguf);
    assert_eq!(steps, "rc");
    assert_ne!(first.manifest().key, second.manifest().key);
    assert_eq!(place.contents(), ["tiny"], "nothing leads to the old one");

    // Touched, but the same.
    std::fs::write(&place.gguf, model(0.5).bytes()).unwrap();
    let (third, steps) = import(&place, &place.gguf);
    assert_eq!(
        (steps.as_str(), &third.manifest().key),
        ("r", &second.manifest().key)
    );
    let (_, steps) = import(&place, &place.gguf);
    assert_eq!(steps, "");
}

#[test]
fn entries_belong_to_contents() {
    let place = Place::new();
    let (first, _) = import(&place, &place.gguf);
    let copy = place.path("copy.gguf");
    std::fs::copy(&place.gguf, &copy).unwrap();
    let (entry, steps) = import(&place, &copy);
    assert_eq!((entry.folder(), steps.as_str()), (first.folder(), "r"));
    for path in [&copy, &place.gguf] {
        assert_eq!(import(&place, path).1, "", "both places are known");
    }
    // The entry stays as long as one of them leads to it.
    std::fs::write(&place.gguf, model(0.5).bytes()).unwrap();
    let (other, steps) = import(&place, &place.gguf);
    assert_eq!((steps.as_str(), place.contents().len()), ("rc", 2));
    assert!(other.name().starts_with("tiny-"), "{}", other.name());
    assert_eq!(import(&place, &copy).0.folder(), first.folder());
}

#[test]
fn another_layout_is_converted_anew() {
    let place = Place::new();
    let (entry, _) = import(&place, &place.gguf);
    let path = entry.folder().join("manifest.json");
    let manifest = std::fs::read_to_string(&path).unwrap();
    let old = manifest.replace(&format!("\"layout\": {LAYOUT}"), "\"layout\": 0");
    assert_ne!(manifest, old);
    let make_old = || std::fs::write(&path, &old).unwrap();
    make_old();
    assert_eq!(import(&place, &place.gguf).1, "rc");
    assert_eq!(place.contents(), ["tiny"]);
    make_old();
    let (_, steps) = steps(|on_event| place.store.resolve(Path::new("tiny"), on_event));
    assert_eq!(steps, "rc");
    make_old();
    std::fs::remove_file(&place.gguf).unwrap();
    let source = text(&place.gguf);
    place.fails(&["inspect", "tiny"], 2, "Usage", &["MODEL", "tiny", source]);
}

#[test]
fn checkpoints_are_converted_too() {
    let place = Place::new();
    let (_dir, folder) = gptq(4, 32, Order::Plain, false, "llama").0.write();
    let named = place.path("checkpoint");
    std::fs::rename(&folder, &named).unwrap();
    let (entry, steps) = import(&place, &named);
    assert_eq!((entry.name(), steps.as_str()), ("checkpoint", "rc"));
    assert!(entry.folder().join("tokenizer.json").is_file());
    assert_eq!(import(&place, &named).1, "");
    std::fs::write(named.join("generation_config.json"), "{}").unwrap();
    assert_eq!(import(&place, &named).1, "rc", "a file more");
    let (out, _) = place.runs(&["inspect", text(&named), "--json"]);
    assert!(out.contains("\"checkpoint\""), "{out}");
}

#[test]
fn paths_that_are_no_sources_stay() {
    let place = Place::new();
    let onnx = place.path("model.onnx");
    std::fs::write(&onnx, b"x").unwrap();
    let empty = place.path("empty");
    std::fs::create_dir(&empty).unwrap();
    for path in [&onnx, &empty, &place.dir.path().to_owned()] {
        let (resolved, steps) = steps(|on_event| place.store.resolve(path, on_event));
        assert_eq!((&resolved, steps.as_str()), (path, ""));
    }
    assert!(place.contents().is_empty());
}

#[test]
fn names_stand_for_entries() {
    let place = Place::new();
    let (entry, _) = import(&place, &place.gguf);
    for name in ["tiny", "TINY"] {
        let (folder, _) = steps(|on_event| place.store.resolve(Path::new(name), on_event));
        assert_eq!(folder, entry.folder());
    }
    for (name, word) in [
        ("tony", "tlite list"),
        ("owner/repo", "hf:owner/repo"),
        ("hf:owner", "OWNER/REPO"),
    ] {
        place.fails(&["chat", name], 2, "Usage", &["MODEL", name, word]);
    }
}

#[test]
fn damaged_entries_can_be_replaced_and_removed() {
    let place = Place::new();
    let damaged = || {
        let (entry, steps) = import(&place, &place.gguf);
        assert_eq!((entry.name(), steps.as_str()), ("tiny", "rc"));
        std::fs::write(entry.folder().join("manifest.json"), "{").unwrap();
    };
    damaged();
    let entries = place.store.entries().unwrap();
    assert_eq!((entries.len(), entries[0].is_current()), (1, false));
    place.fails(&["chat", "tiny"], 2, "Usage", &["MODEL", "tiny"]);
    damaged();
    place.runs(&["rm", "tiny", "--yes"]);
    assert!(place.contents().is_empty());
}

#[test]
fn unsupported_files_are_named_before_anything_is_made() {
    let place = Place::new();
    let mut file = model(0.0);
    file.tensor("blk.0.attn_q.weight").ggml_type = 20;
    std::fs::write(&place.gguf, file.bytes()).unwrap();
    let args = ["chat", text(&place.gguf)];
    let words = [text(&place.gguf), "blk.0.attn_q.weight", "IQ4_NL", "Q4_0", "Q6_K"];
    place.fails(&args, 1, "Unsupported", &words);
    let mut file = model(0.0);
    file.set("general.architecture", Value::String("mamba".to_owned()));
    std::fs::write(&place.gguf, file.bytes()).unwrap();
    place.fails(&args, 1, "Unsupported", &["mamba", "llama"]);
    std::fs::write(&place.gguf, "GGUF").unwrap();
    place.fails(&args, 1, "InvalidFile", &[text(&place.gguf)]);
    assert!(!place.store.folder().exists());
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let place = Place::new();
    std::fs::write(place.store.folder(), "a file").unwrap();
    let mut command = place.command(&["inspect", text(&place.gguf), "--nodes"]);
    let output = command.output().unwrap();
    failed_in_a_line(
        &output,
        1,
        "kind: Io",
        &[text(place.store.folder()), "TLITE_MODELS"],
    );
    if cfg!(target_os = "linux") {
        let output = command.env(FOLDER_VARIABLE, "/proc/models").output().unwrap();
        failed_in_a_line(&output, 1, "kind: Io", &["/proc/models", "TLITE_MODELS"]);
    }
}

#[cfg(unix)]
#[test]
fn a_read_only_folder_can_be_used() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let (entry, _) = import(&place, &place.gguf);
    let allow = |mode| {
        for folder in [
            entry.folder(),
            &place.store.folder().join(".locks"),
            place.store.folder(),
        ] {
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    allow(0o555);
    let known = import(&place, &place.gguf);
    let copy = place.path("copy.gguf");
    std::fs::copy(&place.gguf, &copy).unwrap();
    let copied = import(&place, &copy);
    let other = place.path("other.gguf");
    std::fs::write(&other, model(0.5).bytes()).unwrap();
    let refused = place.store.import(&other, &mut |_| ());
    // The superuser may write anywhere.
    let root = std::fs::write(place.store.folder().join("probe"), "").is_ok();
    allow(0o755);
    assert_eq!((known.1.as_str(), copied.1.as_str()), ("", "r"));
    assert_eq!(copied.0.folder(), entry.folder());
    match refused {
        Ok(_) => assert!(root),
        Err(e) => {
            assert_eq!((root, e.kind()), (false, ErrorKind::Io), "{e}");
            assert!(e.to_string().contains("TLITE_MODELS"), "{e}");
        }
    }
}

#[cfg(unix)]
#[test]
fn a_full_disk_leaves_nothing() {
    let place = Place::new();
    // Files may have 4 KiB; what exceeds that is an error, as on a full disk.
    let tlite = env!("CARGO_BIN_EXE_tlite");
    let script = "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, tlite, "inspect", text(&place.gguf), "--nodes"]);
    command.env("RUST_LOG", tlite_testing::LOG);
    command
        .env(FOLDER_VARIABLE, place.store.folder())
        .stdin(Stdio::null());
    let output = command.output().unwrap();
    failed_in_a_line(
        &output,
        1,
        "kind: Io",
        &[text(&place.gguf), "TLITE_MODELS", "tlite rm"],
    );
    assert!(place.contents().is_empty(), "{:?}", place.contents());
    import(&place, &place.gguf);
}

/// Converts as a process of its own, and stops in the middle until it is told to go on.
#[test]
#[ignore = "a process that other tests start"]
fn child() {
    let variable = |name| PathBuf::from(std::env::var_os(name).unwrap());
    let (reached, go) = (variable("CHILD_REACHED"), variable("CHILD_GO"));
    let store = ModelStore::new(variable(FOLDER_VARIABLE));
    let mut stopped = false;
    store
        .import(&variable("CHILD_SOURCE"), &mut |event| {
            if matches!(event, Event::Converting { done, .. } if done > 0) && !stopped {
                stopped = true;
                std::fs::write(&reached, "").unwrap();
                wait(|| go.exists());
            }
        })
        .unwrap();
    assert!(stopped);
}

#[track_caller]
fn wait(until: impl Fn() -> bool) {
    let start = Instant::now();
    while !until() {
        assert!(start.elapsed() < Duration::from_secs(60), "it takes too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts [`child`] and returns when it is in the middle of a conversion.
fn start_child(place: &Place) -> Child {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "models_folder::child", "--ignored"])
        .env(FOLDER_VARIABLE, place.store.folder())
        .env("CHILD_SOURCE", &place.gguf)
        .env("CHILD_REACHED", place.path("reached"))
        .env("CHILD_GO", place.path("go"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait(|| place.path("reached").exists());
    child
}

#[test]
fn processes_share_a_conversion() {
    let place = Place::new();
    let mut child = start_child(&place);
    let args = [&["generate", text(&place.gguf)][..], &TWO_TOKENS].concat();
    let mut seconds: Vec<Child> = (0..2)
        .map(|_| {
            let mut command = place.command(&args);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    // All wait before the first one goes on.
    let waiting = "note: waiting for another process that prepares tiny\n";
    let mut said = Vec::new();
    for second in &mut seconds {
        let mut notes = BufReader::new(second.stderr.take().unwrap());
        let mut line = String::new();
        notes.read_line(&mut line).unwrap();
        assert_eq!(line, waiting);
        said.push(notes);
    }
    // Another store finds nothing and removes nothing meanwhile.
    place.store.sweep();
    assert!(place.store.entries().unwrap().is_empty());
    assert_eq!(place.contents().len(), 1);
    std::fs::write(place.path("go"), "").unwrap();
    assert!(child.wait().unwrap().success());
    for (second, mut rest) in seconds.into_iter().zip(said) {
        let mut notes = String::new();
        rest.read_to_string(&mut notes).unwrap();
        let output = second.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{notes}");
        assert!(!notes.contains("converting"), "{notes}");
    }
    assert_eq!(place.contents(), ["tiny"]);
}

#[cfg(unix)]
#[test]
fn a_wait_can_be_interrupted() {
    let place = Place::new();
    let mut child = start_child(&place);
    let mut command = place.command(&["inspect", text(&place.gguf), "--nodes"]);
    let mut second = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut notes = BufReader::new(second.stderr.take().unwrap());
    let mut line = String::new();
    notes.read_line(&mut line).unwrap();
    assert_eq!(line, "note: waiting for another process that prepares tiny\n");
    send_interrupt(&second);
    assert_eq!(second.wait().unwrap().code(), Some(130));
    std::fs::write(place.path("go"), "").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(place.contents(), ["tiny"]);
}

#[test]
fn what_a_killed_process_left_is_removed() {
    let place = Place::new();
    let mut child = start_child(&place);
    child.kill().unwrap();
    child.wait().unwrap();
    let left = place.contents();
    assert!(left.len() == 1 && left[0].starts_with(".convert-"), "{left:?}");
    assert!(place.store.entries().unwrap().is_empty());
    place.runs(&["list"]);
    assert!(place.contents().is_empty());
    // The lock is free.
    assert_eq!(import(&place, &place.gguf).1, "rc");
}

#[test]
fn a_source_that_changes_meanwhile_is_an_error() {
    let place = Place::new();
    let e = place.store.import(&place.gguf, &mut |event| {
        if let Event::Begin { .. } = event {
            std::fs::OpenOptions::new()
                .append(true)
                .open(&place.gguf)
                .and_then(|mut f| std::io::Write::write_all(&mut f, b"x"))
                .unwrap();
        }
    });
    let e: Error = e.unwrap_err();
    assert!(e.to_string().contains("changed while it was converted"), "{e}");
    assert!(place.contents().is_empty());
}

#[test]
fn list_and_rm() {
    let place = Place::new();
    let (out, _) = place.runs(&["list"]);
    assert!(out.contains("no models yet"), "{out}");
    import(&place, &place.gguf);
    let other = place.path("other.gguf");
    std::fs::write(&other, model(0.5).bytes()).unwrap();
    import(&place, &other);

    let (out, _) = place.runs(&["list"]);
    let rows: Vec<Vec<&str>> = out.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(rows[1], ["name", "source", "bits", "size", "used"]);
    assert_eq!((rows[2][0], rows[3][0]), ("other", "tiny"));
    assert_eq!(rows[3][1], text(&place.gguf));
    let (out, _) = place.runs(&["list", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["models"][1]["name"], "tiny");
    assert_eq!(report["models"][1]["current"], true);
    assert_eq!(report["downloads"], serde_json::json!([]));

    let known = ["absent", "other", "tiny"];
    place.fails(&["rm", "tiny", "absent", "--yes"], 2, "Usage", &known);
    place.fails(&["rm", "tiny"], 2, "Usage", &["--yes"]);
    assert_eq!(place.contents(), ["other", "tiny"]);
    let (out, _) = place.runs(&["rm", "tiny", "tiny", "--yes"]);
    assert!(
        out.starts_with("removed tiny, ") && out.lines().count() == 1,
        "{out}"
    );
    assert_eq!(place.contents(), ["other"]);
    assert_eq!(import(&place, &place.gguf).1, "rc");
}
