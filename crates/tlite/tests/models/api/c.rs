//! The C interface: its header, and a program that uses it.

use super::{Outcome, equal, speaking_model};
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
const FILES: [&str; 6] = ["error", "log", "model", "session", "generate", "quarantine"];

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
    let name = format!(
        "{}tlite_c{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    );
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

/// Compiles the program and runs it with a model on `place`, by way of `runner`.
fn run(place: BackendChoice, runner: &[&str]) -> Outcome {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let (program, library) = (dir.path().join("capi"), library()?);
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
            .arg(root().join("tests/capi/capi.c"))
            .arg("-o")
            .arg(&program)
            .arg("-L")
            .arg(&library)
            .arg("-ltlite_c")
            .arg(format!("-Wl,-rpath,{}", library.display())),
    )?;
    let (_dir, model) = speaking_model();
    let mut words = runner.to_vec();
    let path = program.display().to_string();
    words.push(&path);
    let [first, rest @ ..] = words.as_slice() else {
        return Err("nothing to run".to_owned());
    };
    let kernels = model.join("kernels");
    // Cargo's own list may name a folder with an older build first.
    let listed = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let said = output(
        Command::new(first)
            .env("LD_LIBRARY_PATH", format!("{}:{listed}", library.display()))
            .args(rest)
            .arg(&model)
            .arg(place.name())
            .arg(&kernels),
    )?;
    if said.trim() != env!("CARGO_PKG_VERSION") {
        return Err(format!("the program says {said:?}"));
    }
    let kept = Store::new(kernels, DEFAULT_LIMIT).entries().text()?.len();
    match place {
        // Nothing is compiled there.
        BackendChoice::Reference | BackendChoice::On(BackendKind::Cpu) => equal(&kept, &0),
        _ => equal(&(kept > 0), &true),
    }
}

/// The program on a back end.
pub fn runs(place: BackendChoice) -> Outcome {
    run(place, &[])
}

/// The program on the host, with every access to memory and every block that is not freed looked
/// at.
pub fn under_valgrind() -> Outcome {
    let valgrind = [
        "valgrind",
        "--quiet",
        "--error-exitcode=99",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite,indirect",
    ];
    run(BackendChoice::Reference, &valgrind)
}
