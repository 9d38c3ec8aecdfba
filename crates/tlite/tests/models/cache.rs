//! Compiled kernels on disk: a second start compiles nothing, and whatever becomes of the files,
//! the answer is the same.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tlite_testing::gguf::Traits;
use tlite_testing::suite::Suite;
use tlite_testing::{Outcome, Text, Tier, carries, equal, tiny_model};
use transformer_lite::unstable::backend::{BackendKind, OpenOptions};
use transformer_lite::unstable::cache::{DEFAULT_LIMIT, Kind, Store};

type Work = fn(&Starts) -> Outcome;

pub fn trials(suite: &mut Suite) {
    let devices = suite.devices();
    // Native kernels are not compiled, so nothing of them is kept.
    for d in devices.iter().filter(|d| d.caps.profile.language().is_some()) {
        let works: [(&str, Work, Tier); 7] = [
            ("a_second_start_compiles_nothing", twice, Tier::Quick),
            ("damaged_files_are_made_anew", damaged, Tier::Quick),
            ("each_file_alone_changes_no_token", alone, d.tier_of_long_trials()),
            ("refused_programs_are_made_anew", refused, Tier::Quick),
            ("folders_that_cannot_be_written", unwritable, Tier::Quick),
            ("two_processes_at_once", at_once, Tier::Quick),
            ("a_broken_driver_leaves_no_quarantine", broken_driver, Tier::Quick),
        ];
        for (name, work, tier) in works {
            let (kind, device) = (d.kind, d.caps.device.clone());
            let name = format!("{name}@{}", d.label(&devices));
            suite.add_in(tier, name, move || work(&Starts::new(kind, device)));
        }
    }
    suite.add("a_library_writes_nothing_by_itself", off_by_default);
}

/// A model, a device, and a folder for what is kept.
struct Starts {
    kind: BackendKind,
    device: String,
    model: PathBuf,
    dir: tempfile::TempDir,
    _model: tempfile::TempDir,
}

/// What becomes of a file.
type Damage = fn(&mut Vec<u8>);

/// What a start tells.
#[derive(Debug, PartialEq)]
struct Told {
    tokens: serde_json::Value,
    compiled: u64,
    cached: u64,
    checked: u64,
}

impl Starts {
    fn new(kind: BackendKind, device: String) -> Self {
        let (temporary, model) = tiny_model("llama", Traits::default());
        Self {
            kind,
            device,
            model,
            dir: tempfile::tempdir().unwrap(),
            _model: temporary,
        }
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    fn store(&self) -> Store {
        Store::new(self.folder(), DEFAULT_LIMIT)
    }

    fn command(&self, folder: &Path) -> Command {
        self.command_of(&self.model, folder)
    }

    fn command_of(&self, model: &Path, folder: &Path) -> Command {
        let mut command = tlite_testing::command();
        let text = ["--raw", "--prompt", "hello world", "--max-tokens", "8"];
        command.arg("generate").arg(model).args(text);
        command.args(["--temperature", "0", "--json"]);
        command.args(["--backend", &self.kind.to_string(), "--device", &self.device]);
        command.arg("--cache-dir").arg(folder).stdin(Stdio::null());
        // What Mesa keeps by itself, so that it can be looked at.
        command.env("MESA_SHADER_CACHE_DIR", self.dir.path().join("mesa"));
        command
    }

    /// A start that must succeed.
    fn start(&self) -> Result<Told, String> {
        told(&self.command(&self.folder()).output().text()?)
    }

    /// A start that finds nothing. Kernels may share a text, which the second of them then finds.
    fn cold(&self) -> Result<Told, String> {
        let told = self.start()?;
        let (verdicts, programs): (Vec<_>, Vec<_>) = self
            .store()
            .entries()
            .text()?
            .into_iter()
            .filter(|e| e.kind != Kind::Quarantine)
            .partition(|e| e.kind == Kind::Verdict);
        let files = programs.len() as u64;
        equal(&(files > 3, told.compiled >= files), &(true, true))?;
        equal(
            &(verdicts.len() > 3, told.checked >= verdicts.len() as u64),
            &(true, true),
        )?;
        Ok(told)
    }

    /// A start that finds nothing of use, and says what `before` said.
    fn anew(&self, before: &Told) -> Outcome {
        same(&self.cold()?, before)
    }

    /// A start that finds all that `before` made.
    fn warm(&self, before: &Told) -> Outcome {
        let told = self.start()?;
        equal(&(told.compiled, told.checked), &(0, 0))?;
        same(&told, before)
    }
}

/// Tokens and the number of kernels.
#[track_caller]
fn same(found: &Told, wanted: &Told) -> Outcome {
    let both = |t: &Told| (t.tokens.clone(), t.compiled + t.cached);
    equal(&both(found), &both(wanted))
}

fn told(output: &Output) -> Result<Told, String> {
    let words = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{}: {words}", output.status));
    }
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).text()?;
    let number = |name: &str| json[name].as_u64().ok_or_else(|| format!("{name} in {json}"));
    Ok(Told {
        tokens: json["tokens"].clone(),
        compiled: number("kernels_compiled")?,
        cached: number("kernels_cached")?,
        checked: number("kernels_checked")?,
    })
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let list = std::fs::read_dir(folder).into_iter().flatten().flatten();
    list.flat_map(|item| match item.file_type() {
        Ok(t) if t.is_dir() => files(&item.path()),
        _ => vec![item.path()],
    })
    .collect()
}

fn twice(starts: &Starts) -> Outcome {
    let cold = starts.cold()?;
    let mesa = starts.dir.path().join("mesa");
    let before = files(&mesa).len();
    starts.warm(&cold)?;
    equal(&files(&mesa).len(), &before)?;
    // The command shows and removes them.
    let folder = starts.folder();
    let cache = |args: &[&str]| {
        let output = tlite_testing::command()
            .arg("cache")
            .args(args)
            .arg("--cache-dir")
            .arg(&folder)
            .output()
            .text()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        equal(&output.status.code(), &Some(0)).map(|()| said)
    };
    let list: serde_json::Value = serde_json::from_str(&cache(&["list", "--json"])?).text()?;
    let rows = list["files"].as_array().ok_or("no list")?;
    equal(&rows.len(), &starts.store().entries().text()?.len())?;
    equal(&rows.iter().all(|r| r["device"] == starts.device.as_str()), &true)?;
    equal(&cache(&["list"])?.contains(&starts.device), &true)?;
    equal(&carries(&cache(&["clear"])?, &rows.len().to_string()), &true)?;
    equal(&starts.store().entries().text()?.len(), &0)?;
    starts.anew(&cold)?;
    // A start that is not to use them.
    let mut without = tlite_testing::command();
    without.args(
        starts
            .command(&folder)
            .get_args()
            .filter(|a| *a != "--cache-dir" && *a != folder.as_os_str()),
    );
    let told = told(&without.arg("--no-cache").output().text()?)?;
    equal(&told.cached, &0)?;
    same(&told, &cold)
}

fn damaged(starts: &Starts) -> Outcome {
    let cold = starts.cold()?;
    let damages: [(&str, Damage); 5] = [
        ("a changed byte", |b| *b.last_mut().unwrap() ^= 1),
        ("a changed header", |b| b[20] ^= 1),
        ("half a file", |b| b.truncate(b.len() / 2)),
        ("an empty file", Vec::clear),
        ("a foreign file", |b| {
            *b = b"\x7fELF, or anything else that is longer than a header".to_vec();
        }),
    ];
    for (name, damage) in damages {
        for path in files(&starts.folder()) {
            let mut bytes = std::fs::read(&path).text()?;
            damage(&mut bytes);
            std::fs::write(&path, bytes).text()?;
        }
        starts.anew(&cold).map_err(|e| format!("{name}: {e}"))?;
        starts.warm(&cold).map_err(|e| format!("behind {name}: {e}"))?;
    }
    Ok(())
}

/// What becomes of one file: its new bytes, or none for a file that is gone.
type Loss = fn(&[u8]) -> Option<Vec<u8>>;

/// Quantizes the model to `model`, measures the device and tunes it. Whether there was anything to
/// choose.
fn quantized_and_tuned(starts: &Starts, model: &Path) -> Result<bool, String> {
    let done = |command: &str, args: &[&std::ffi::OsStr]| {
        let output = tlite_testing::command().arg(command).args(args).output().text()?;
        match output.status.success() {
            true => Ok(output.stdout),
            false => Err(format!("{command}: {}", String::from_utf8_lossy(&output.stderr))),
        }
    };
    let (folder, backend) = (starts.folder(), starts.kind.to_string());
    let cache = ["--cache-dir".as_ref(), folder.as_os_str()];
    let device = ["--device".as_ref(), starts.device.as_ref()];
    done(
        "quantize",
        &[starts.model.as_ref(), "-o".as_ref(), model.as_ref()],
    )?;
    done("devices", &[&["--probe".as_ref()], &device[..], &cache].concat())?;
    let tune = [
        "--act",
        "float",
        "--sets",
        "2",
        "--seconds",
        "9999",
        "--json",
        "--backend",
        &backend,
    ];
    let tune = tune.map(AsRef::as_ref);
    let tuned = done("tune", &[&[model.as_ref()], &tune[..], &device, &cache].concat())?;
    let tuned: serde_json::Value = serde_json::from_slice(&tuned).text()?;
    Ok(tuned["all"] != 0)
}

/// One file after another is damaged or gone, of each kind that commands write for the device, and
/// all others are whole.
fn alone(starts: &Starts) -> Outcome {
    let model = starts.dir.path().join("e0m4");
    let tuned = quantized_and_tuned(starts, &model)?;
    // What follows is compiled and checked for an answer, so that it is used.
    for kind in [Kind::Program, Kind::Pipeline, Kind::Verdict, Kind::Quarantine] {
        starts.store().clear(Some(kind)).text()?;
    }
    let start = || {
        let command = starts.command(&starts.folder());
        let args: Vec<_> = command.get_args().map(std::ffi::OsStr::to_owned).collect();
        let changed = args.iter().map(|arg| {
            if *arg == starts.model {
                model.as_os_str()
            } else {
                arg
            }
        });
        told(
            &tlite_testing::command()
                .args(changed)
                .args(["--act", "float"])
                .output()
                .text()?,
        )
    };
    let wanted = start()?;
    let compiled = match starts.kind {
        BackendKind::OpenCl => Kind::Program,
        _ => Kind::Pipeline,
    };
    let entries = starts.store().entries().text()?;
    let kinds: BTreeSet<Kind> = entries.iter().map(|e| e.kind).collect();
    let mut all = BTreeSet::from([compiled, Kind::Verdict, Kind::Quarantine, Kind::Probe]);
    // Kernels for CPUs through wgpu have no numbers to choose.
    all.extend(tuned.then_some(Kind::Tuning));
    equal(&kinds, &all)?;
    let losses: [(&str, Loss); 3] = [
        ("half of", |b| b.get(..b.len() / 2).map(<[u8]>::to_vec)),
        ("nonsense for", |b| Some(vec![0x5a; b.len()])),
        ("without", |_| None),
    ];
    for (i, entry) in entries.iter().enumerate() {
        let whole = std::fs::read(&entry.path).text()?;
        // Verdicts are many, and have the same contents: each is lost in one way.
        let ways = match entry.kind {
            Kind::Verdict => &losses[i % losses.len()..][..1],
            _ => &losses[..],
        };
        for (name, loss) in ways {
            match loss(&whole) {
                Some(bytes) => std::fs::write(&entry.path, bytes).text()?,
                None => std::fs::remove_file(&entry.path).text()?,
            }
            let told = start()?;
            let what = || format!("{name} the {} {}", entry.kind, entry.path.display());
            equal(&told.tokens, &wanted.tokens).map_err(|e| format!("{}: {e}", what()))?;
            if entry.kind == compiled && told.compiled == 0 {
                return Err(format!("{}: nothing was compiled", what()));
            }
            std::fs::write(&entry.path, &whole).text()?;
        }
    }
    Ok(())
}

/// Files that are whole, and hold what no driver has made.
fn refused(starts: &Starts) -> Outcome {
    let cold = starts.cold()?;
    let store = starts.store();
    for contents in [&b"nonsense"[..], &[0; 5000], b""] {
        for entry in store.entries().text()? {
            let key = entry.key.ok_or("a file without a key")?;
            store.put(entry.kind, &key, contents);
        }
        starts.anew(&cold)?;
        starts.warm(&cold)?;
    }
    Ok(())
}

fn unwritable(starts: &Starts) -> Outcome {
    let cold = starts.cold()?;
    let file = starts.dir.path().join("file");
    std::fs::write(&file, "").text()?;
    let output = starts.command(&file).output().text()?;
    let words = String::from_utf8_lossy(&output.stderr);
    let named = carries(&words, "--cache-dir") && words.contains(&file.display().to_string());
    equal(&(output.status.code(), named), &(Some(2), true))?;
    // What cannot be made keeps nothing and stops nothing, for any user.
    let output = starts.command(&file.join("below")).output().text()?;
    let told = told(&output)?;
    equal(&told.cached, &0)?;
    same(&told, &cold)?;
    let words = String::from_utf8_lossy(&output.stderr);
    let notes = words.lines().filter(|l| l.starts_with("note: "));
    equal(&notes.filter(|l| carries(l, "--cache-dir")).count(), &1)
}

fn at_once(starts: &Starts) -> Outcome {
    let start = || {
        starts
            .command(&starts.folder())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .text()
    };
    let (one, two) = (start()?, start()?);
    let one = told(&one.wait_with_output().text()?)?;
    let two = told(&two.wait_with_output().text()?)?;
    same(&one, &two)?;
    starts.warm(&one)
}

/// A driver that cannot write its own files fails to build kernels, variants first. Those of PoCL
/// are written below this folder; other drivers do not read the variable.
fn broken_driver(starts: &Starts) -> Outcome {
    let model = starts.dir.path().join("e0m4");
    let quantize = [
        "quantize".as_ref(),
        starts.model.as_os_str(),
        "-o".as_ref(),
        model.as_os_str(),
    ];
    let made = tlite_testing::command().args(quantize).output().text()?;
    equal(&made.status.code(), &Some(0))?;
    let start = || {
        let mut command = starts.command_of(&model, &starts.folder());
        command.args(["--act", "int8"]);
        command
    };
    let broken = start().env("POCL_CACHE_DIR", "/dev/null").output().text()?;
    equal(&matches!(broken.status.code(), Some(0 | 1)), &true)?;
    equal(&starts.store().quarantined().text()?.len(), &0)?;
    told(&start().output().text()?)?;
    equal(&starts.store().quarantined().text()?.len(), &0)
}

fn off_by_default() -> Outcome {
    equal(&OpenOptions::default().cache.is_none(), &true)?;
    equal(&OpenOptions::of(Some("x")).cache.is_none(), &true)
}
