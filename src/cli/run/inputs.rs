//! Inputs from files and made up ones, and what to do where their sizes do not fit.

use super::{Args, picture};
use crate::error::{Error, Result};
use crate::files;
use crate::inspect::parse_bind;
use crate::llm::sampler::SplitMix64;
use crate::runner::{Named, Runner, shape_at};
use crate::shape::{Bindings, Fact, Symbol};
use crate::tensor::HostTensor;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The option that gives sizes.
const BIND: &str = "--bind";

/// Inputs from files, then made up ones.
pub fn inputs(args: &Args, runner: &Runner) -> Result<Vec<(Named, Option<PathBuf>)>> {
    let options = args.picture.options();
    let mut out: Vec<(Named, Option<PathBuf>)> = Vec::new();
    let known: Vec<&str> = runner.inputs().map(|(n, _)| n).collect();
    for (name, file) in &args.input {
        let fact = runner.inputs().find(|(n, _)| n == name).map(|(_, f)| f);
        let fact = fact.ok_or_else(|| {
            let what = format!("the model has no input \"{name}\"; it has {}", known.join(", "));
            Error::usage("--input", what)
        })?;
        out.push((
            (name.clone(), files::read(file, fact, &options)?),
            Some(file.clone()),
        ));
    }
    if !args.random {
        return Ok(out);
    }
    let made = made_up_beside(runner, ("--random", &args.bind), args.seed, &out)?;
    out.extend(made.into_iter().map(|t| (t, None)));
    Ok(out)
}

/// Made up inputs of the sizes of `bind`, the texts of an option `--bind`. Usage errors: a size that no input has; sizes that nothing gives.
pub fn made_up_inputs(runner: &Runner, bind: &[String]) -> Result<Vec<Named>> {
    made_up_beside(runner, (BIND, bind), 0, &[])
}

/// The inputs that are not among those `given`; `option` is named where sizes are missing.
fn made_up_beside(
    runner: &Runner,
    (option, bind): (&str, &[String]),
    seed: u64,
    given: &[(Named, Option<PathBuf>)],
) -> Result<Vec<Named>> {
    let mut bindings = parse_bind(bind)?;
    let mut known_symbols = BTreeSet::new();
    let dims = runner.inputs().flat_map(|(_, f)| &f.shape.0);
    dims.for_each(|d| d.symbols(&mut known_symbols));
    if let Some((s, _)) = bindings.iter().find(|(s, _)| !known_symbols.contains(*s)) {
        let list: Vec<&str> = known_symbols.iter().map(Symbol::name).collect();
        let what = format!("no input has the size {s}; there are {}", list.join(", "));
        return Err(Error::usage(BIND, what));
    }
    bind_files(runner, given, &mut bindings);
    let missing: Vec<(&str, &Fact)> = runner
        .inputs()
        .filter(|(n, _)| given.iter().all(|((o, _), _)| o != n))
        .collect();
    let mut symbols: BTreeSet<Symbol> = BTreeSet::new();
    missing
        .iter()
        .flat_map(|(_, f)| &f.shape.0)
        .for_each(|d| d.symbols(&mut symbols));
    symbols.retain(|s| bindings.get(s).is_none());
    if !symbols.is_empty() {
        let what = format!(
            "the inputs have sizes that nothing gives; {}",
            sizes_to_try(runner, &symbols, &bindings)
        );
        return Err(Error::usage(option, what));
    }
    let mut random = SplitMix64::new(seed);
    let mut out = Vec::with_capacity(missing.len());
    for (name, fact) in missing {
        let shape = shape_at(name, &fact.shape, &bindings)?;
        out.push((name.to_owned(), made_up(name, fact, &shape, &mut random)?));
    }
    Ok(out)
}

fn made_up(name: &str, fact: &Fact, shape: &[usize], random: &mut SplitMix64) -> Result<HostTensor> {
    let count = shape.iter().try_fold(1usize, |p, n| p.checked_mul(*n));
    let count = count.filter(|n| *n < 1 << 32).ok_or_else(|| {
        let what = format!("input \"{name}\" of shape {shape:?} has too many elements");
        Error::usage("--bind", what)
    })?;
    let made = if fact.dtype.is_float() {
        #[expect(clippy::cast_possible_truncation, reason = "rounding is meant")]
        let data: Vec<f32> = (0..count)
            .map(|_| (2.0 * random.next_f64() - 1.0) as f32)
            .collect();
        HostTensor::from_floats(fact.dtype, shape, &data)
    } else {
        let data: Vec<i64> = (0..count)
            .map(|_| i64::from(random.next_u64() & 1 == 1))
            .collect();
        HostTensor::from_ints(fact.dtype, shape, &data)
    };
    made.map_err(|e| Error::usage("--random", format!("input \"{name}\": {e}")))
}

/// Sets the sizes of the tensors that come from files.
fn bind_files(runner: &Runner, given: &[(Named, Option<PathBuf>)], bindings: &mut Bindings) {
    for ((name, tensor), _) in given.iter().filter(|(_, file)| file.is_some()) {
        let fact = runner.inputs().find(|(n, _)| n == name);
        for (dim, n) in fact.iter().flat_map(|(_, f)| &f.shape.0).zip(tensor.shape()) {
            if let (Some(s), Ok(n)) = (dim.as_symbol(), i64::try_from(*n)) {
                bindings.set(s, n);
            }
        }
    }
}

/// Which sizes to give `symbols`, beside those that are `given`.
fn sizes_to_try(runner: &Runner, symbols: &BTreeSet<Symbol>, given: &Bindings) -> String {
    let value = |found: &Bindings, s: &Symbol| match found.get(s) {
        Some(v) => format!("{s}={v}"),
        None => format!("{s}=..."),
    };
    let list = |found: &Bindings| {
        let all: Vec<String> = symbols.iter().map(|s| value(found, s)).collect();
        all.join(",")
    };
    match runner.small_sizes(symbols, given) {
        Some(found) => format!("try --bind {}", list(&found)),
        None => format!(
            "give them with --bind {}; no small ones were found that fit",
            list(&Bindings::new())
        ),
    }
}

/// The error of a run. Where the sizes of the inputs are to blame it is a usage error that says which would do.
pub fn explained(args: &Args, runner: &Runner, given: &[(Named, Option<PathBuf>)], e: Error) -> Error {
    let tensors: Vec<Named> = given.iter().map(|(t, _)| t.clone()).collect();
    let Ok(found) = runner.check(&tensors) else {
        return e;
    };
    let what = match runner.admits(&found) {
        Ok(()) => return e,
        Err(Error::Other { what, .. }) => what,
        Err(e) => e.to_string(),
    };
    let fact = |name: &str| runner.inputs().find(|(n, _)| *n == name).map(|(_, f)| f);
    let is_picture = |file: &Option<PathBuf>| file.as_deref().is_some_and(files::is_picture);
    let pictures = given.iter().filter(|(_, file)| is_picture(file));
    let pictures: Vec<&Fact> = pictures.filter_map(|((name, _), _)| fact(name)).collect();
    let sized = args.picture.image_size.is_some();
    if let Some(advice) = picture::advice(runner, &pictures, &found, sized) {
        return Error::usage("--input", format!("{what}; {advice}"));
    }
    let mut from_files = Bindings::new();
    bind_files(runner, given, &mut from_files);
    let mut symbols = BTreeSet::new();
    let made_up = given.iter().filter(|(_, file)| file.is_none());
    made_up
        .filter_map(|((name, _), _)| fact(name))
        .flat_map(|f| &f.shape.0)
        .for_each(|d| d.symbols(&mut symbols));
    symbols.retain(|s| from_files.get(s).is_none());
    if symbols.is_empty() {
        return Error::usage("--input", what);
    }
    let advice = sizes_to_try(runner, &symbols, &from_files);
    Error::usage("--bind", format!("{what}; {advice}"))
}
