//! The C interface: its header, and a program that uses it.

use super::{Outcome, equal, speaking_model};
use std::collections::BTreeSet;
use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use tlite_testing::Text;
use transformer_lite::unstable::backend::BackendKind;
use transformer_lite::unstable::cache::{DEFAULT_LIMIT, Store};
use transformer_lite::unstable::placement::BackendChoice;

fn root() -> &'static Path {
    Path::new(tlite_testing::ROOT)
}

/// The files of the C interface, in the order of the header.
const FILES: [&str; 10] = [
    "error",
    "log",
    "progress",
    "model",
    "session",
    "generate",
    "batch",
    "runner",
    "convert",
    "quarantine",
];

/// `include/tlite.h` is what `crates/capi` gives.
pub fn header() -> Outcome {
    let config = cbindgen::Config::from_file(root().join("crates/capi/cbindgen.toml"))?;
    let files = FILES.map(|name| root().join(format!("crates/capi/src/{name}.rs")));
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = files.into_iter().fold(builder, cbindgen::Builder::with_src);
    let bindings = builder.generate().map_err(|e| e.to_string())?;
    let mut made = Vec::new();
    bindings.write(&mut made);
    let made = String::from_utf8(made).map_err(|e| e.to_string())?;
    for words in ["//", "# Safety", "[`"] {
        equal(&made.find(words), &None)?;
    }
    let path = root().join("include/tlite.h");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return std::fs::write(&path, made).map_err(|e| format!("{}: {e}", path.display()));
    }
    let found = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    match made.lines().zip(found.lines()).find(|(m, f)| m != f) {
        None if made.lines().count() == found.lines().count() => Ok(()),
        differs => Err(format!(
            "{} is not what crates/capi gives: {differs:?}; UPDATE_GOLDEN=1 writes it anew",
            path.display()
        )),
    }
}

/// The folder of the library that cargo built with this program.
fn library() -> Result<PathBuf, String> {
    let built = Path::new(env!("CARGO_BIN_EXE_tlite")).parent().unwrap_or(root());
    let name = format!("{DLL_PREFIX}tlite_c{DLL_SUFFIX}");
    // Beside the command lies what was built for itself, which may be older than what was built for
    // the tests.
    let folder = built.join("deps");
    if folder.join(&name).is_file() {
        Ok(folder)
    } else {
        Err(format!("there is no {name} in {}", folder.display()))
    }
}

/// The standard output of a command that ends with 0; else an error with all that it said.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command
        .output()
        .map_err(|e| format!("{name}: {e}; tools/setup.sh installs what the tests need"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if done.status.success() {
        return Ok(text(&done.stdout));
    }
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    Err(format!("{name} ended with {}:\n{out}{err}", done.status))
}

/// The header is one of C90, and of C++.
pub fn header_in_old_c_and_in_cpp() -> Outcome {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    for (compiler, standard, name) in [("cc", "c90", "x.c"), ("c++", "c++11", "x.cpp")] {
        let file = dir.path().join(name);
        std::fs::write(
            &file,
            "#include \"tlite.h\"\n#include \"tlite.h\"\nextern tlite_error code;\n",
        )
        .map_err(|e| e.to_string())?;
        output(
            Command::new(compiler)
                .args([&format!("-std={standard}"), "-Wall", "-Wextra", "-Werror"])
                .args(["-fsyntax-only", "-I"])
                .arg(root().join("include"))
                .arg(file),
        )?;
    }
    Ok(())
}

/// Compiles the program `name` of tests/capi and runs it by way of `runner`.
fn run(name: &str, arguments: &[&OsStr], runner: &[&str]) -> Outcome {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let (program, library) = (dir.path().join(name), library()?);
    let warnings = [
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        "-g",
        "-pthread",
    ];
    output(
        Command::new("cc")
            .args(warnings)
            .arg("-I")
            .arg(root().join("include"))
            .arg(root().join("tests/capi").join(name).with_extension("c"))
            .arg("-o")
            .arg(&program)
            .arg("-L")
            .arg(&library)
            .args(["-ltlite_c", "-lm"])
            .arg(format!("-Wl,-rpath,{}", library.display())),
    )?;
    let mut words = runner.to_vec();
    let path = program.display().to_string();
    words.push(&path);
    let [first, rest @ ..] = words.as_slice() else {
        return Err("nothing to run".to_owned());
    };
    // Cargo's own list may name a folder with an older build first.
    let listed = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let said = output(
        Command::new(first)
            .env("LD_LIBRARY_PATH", format!("{}:{listed}", library.display()))
            .args(rest)
            .args(arguments),
    )?;
    if said.trim() != env!("CARGO_PKG_VERSION") {
        return Err(format!("the program says {said:?}"));
    }
    Ok(())
}

/// The programs that need no real model, on `place`.
fn run_tiny(place: BackendChoice, runner: &[&str]) -> Outcome {
    let (dir, model) = speaking_model();
    let kernels = model.join("kernels");
    let backend = OsStr::new(place.name());
    run("capi", &[model.as_ref(), backend, kernels.as_ref()], runner)?;
    let (gguf, converted) = (dir.path().join("tiny.gguf"), dir.path().join("converted"));
    let arguments = [model.as_ref(), backend, gguf.as_ref(), converted.as_ref()];
    run("features", &arguments, runner)?;
    // Nothing of the conversion that was stopped is left.
    equal(&std::fs::read_dir(dir.path()).text()?.count(), &3)?;
    let kept = Store::new(kernels, DEFAULT_LIMIT).entries().text()?.len();
    match place {
        // Nothing is compiled there.
        BackendChoice::Reference | BackendChoice::On(BackendKind::Cpu) => equal(&kept, &0),
        _ => equal(&(kept > 0), &true),
    }
}

/// The programs on a back end.
pub fn runs(place: BackendChoice) -> Outcome {
    run_tiny(place, &[])
}

/// The programs on the host, with every access to memory and every block that is not freed looked
/// at.
pub fn under_valgrind() -> Outcome {
    let valgrind = [
        "valgrind",
        "--quiet",
        "--error-exitcode=99",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite,indirect",
    ];
    run_tiny(BackendChoice::Reference, &valgrind)
}

/// A picture model and an answer of a chat model that a schema constrains, on the CPU backend.
pub fn real_models(pictures: &Path, chat: &Path) -> Outcome {
    run(
        "models",
        &[pictures.as_ref(), chat.as_ref(), OsStr::new("cpu")],
        &[],
    )
}

/// The library exports the functions of the header, and nothing else.
pub fn symbols() -> Outcome {
    let name = library()?.join(format!("{DLL_PREFIX}tlite_c{DLL_SUFFIX}"));
    let listed = output(
        Command::new("nm")
            .args(["-D", "--defined-only", "--format=posix"])
            .arg(name),
    )?;
    let exported: BTreeSet<&str> = listed.lines().filter_map(|l| l.split(' ').next()).collect();
    let header = std::fs::read_to_string(root().join("include/tlite.h")).text()?;
    let functions = header.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '(');
    let functions = functions
        .filter_map(|word| word.split_once('('))
        .map(|(name, _)| name);
    let functions = functions.filter(|name| name.starts_with("tlite_")).collect();
    equal(&exported, &functions)
}
