//! Inputs from files and random ones, and advice if their sizes do not fit.

use super::{Args, picture};
use crate::files;
use crate::inspect::parse_bind;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::{Error, ErrorKind, Result, Stage};
use transformer_lite::unstable::llm::sampler::SplitMix64;
use transformer_lite::unstable::quota;
use transformer_lite::unstable::runner::{Named, Runner, shape_at};
use transformer_lite::unstable::shape::{Bindings, Fact, Shape, Symbol};
use transformer_lite::unstable::tensor::{self, HostTensor, TensorError};
use transformer_lite::unstable::vision::picture::{PictureOptions, is_picture};

/// The option that gives sizes.
const BIND: &str = "--bind";

/// The value of `--input`: a file, and the input that it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputFile {
    /// `None` for the only input.
    pub name: Option<String>,
    pub file: PathBuf,
}

impl InputFile {
    /// Reads NAME=FILE, or FILE alone.
    pub fn parse(text: &str) -> Result<Self, String> {
        // The name of a file may have an equals sign in it.
        let pair = text.split_once('=').filter(|_| !Path::new(text).is_file());
        match pair {
            Some((name, file)) if !name.is_empty() && !file.is_empty() => Ok(Self {
                name: Some(name.to_owned()),
                file: file.into(),
            }),
            None if !text.is_empty() => Ok(Self {
                name: None,
                file: text.into(),
            }),
            _ => Err("expected NAME=FILE, or FILE for a model with one input".to_owned()),
        }
    }
}

/// Inputs from files, then random ones.
pub fn inputs(
    args: &Args,
    options: &PictureOptions,
    runner: &Runner,
) -> Result<Vec<(Named, Option<PathBuf>)>> {
    let mut out: Vec<(Named, Option<PathBuf>)> = Vec::new();
    let unranked = runner.unranked();
    let unranked: Vec<(&str, Fact)> = unranked
        .map(|(name, dtype)| (name, Fact::new(dtype, Shape::default())))
        .collect();
    let all = runner
        .inputs()
        .chain(unranked.iter().map(|(name, fact)| (*name, fact)));
    let all: Vec<(&str, &Fact)> = all.collect();
    let known: Vec<&str> = all.iter().map(|(n, _)| *n).collect();
    for InputFile { name, file } in args.inputs() {
        let name = match (name, known.as_slice()) {
            (Some(name), _) => name.as_str(),
            (None, [only]) => only,
            (None, [first, ..]) => {
                let what = format!(
                    "{}: the model has {} inputs: {}; write NAME=FILE, as in {first}={0}",
                    file.display(),
                    known.len(),
                    known.join(", ")
                );
                return Err(Error::usage("--input", what));
            }
            (None, []) => return Err(Error::usage("--input", "the model has no inputs")),
        };
        let named = || all.iter().copied().chain(runner.defaults());
        let fact = named().find(|(n, _)| *n == name).map(|(_, f)| f);
        let fact = fact.ok_or_else(|| {
            let known: Vec<&str> = named().map(|(n, _)| n).collect();
            let what = format!(
                "the model has no input \"{name}\"; its inputs are {}",
                known.join(", ")
            );
            Error::usage("--input", what)
        })?;
        let tensor = files::read(file, fact, options)?;
        out.push(((name.to_owned(), tensor), Some(file.clone())));
    }
    if !args.random {
        return Ok(out);
    }
    let made = made_up_beside(runner, ("--random", &args.bind), args.seed, &out)?;
    out.extend(made.into_iter().map(|t| (t, None)));
    Ok(out)
}

/// Random inputs of the sizes in `bind`, the texts of an option `--bind`. Usage errors: a size that
/// no input has; a size that is not given.
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
        let what = format!(
            "no input has a symbolic size {s}; the symbolic sizes are {}",
            list.join(", ")
        );
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
            "some input sizes are not fixed; {}",
            sizes_to_try(runner, &symbols, &bindings)
        );
        return Err(Error::usage(option, what));
    }
    let _call = runner.quota().enter();
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
        let data = numbers(count, || (2.0 * random.next_f64() - 1.0) as f32);
        data.and_then(|data| HostTensor::from_floats(fact.dtype, shape, &data))
    } else {
        let data = numbers(count, || i64::from(random.next_u64() & 1 == 1));
        data.and_then(|data| HostTensor::from_ints(fact.dtype, shape, &data))
    };
    made.map_err(|e| match e {
        TensorError::Exceeded(_) => {
            Error::caused(Stage::Run, format!("input \"{name}\""), e).of_kind(ErrorKind::LimitExceeded)
        }
        e => Error::usage("--random", format!("input \"{name}\": {e}")),
    })
}

/// `count` results of `next`. An error if the quota of the call has too little memory or time: a
/// model chooses the count.
fn numbers<T>(count: usize, mut next: impl FnMut() -> T) -> Result<Vec<T>, TensorError> {
    /// Numbers between two looks at the clock.
    const CHUNK: usize = 1 << 16;
    let mut all = tensor::room(count)?;
    while all.len() < count {
        quota::check()?;
        let chunk = CHUNK.min(count - all.len());
        all.extend((0..chunk).map(|_| next()));
    }
    Ok(all)
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
        Some(found) => format!("set them, for example --bind {}", list(&found)),
        None => format!(
            "set them with --bind {} (no small sizes that satisfy the model's constraints were found)",
            list(&Bindings::new())
        ),
    }
}

/// The error of a run. Where the sizes of the inputs are to blame it is a usage error that says
/// which would do.
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
    let is_picture = |file: &Option<PathBuf>| file.as_deref().is_some_and(is_picture);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use transformer_lite::unstable::quota::{Exceeded, Quota};

    #[test]
    fn random_numbers_keep_within_the_quota() {
        let quota = Quota::new(100, None, 0);
        let _call = quota.enter();
        assert_eq!(numbers(25, || 0f32).unwrap().len(), 25);
        let e = numbers(26, || 0f32).unwrap_err();
        assert!(matches!(e, TensorError::Exceeded(Exceeded::Memory { .. })), "{e}");
        let late = Quota::new(u64::MAX, Some(Duration::ZERO), 0);
        let _call = late.enter();
        let e = numbers(1, || 0i64).unwrap_err();
        assert!(matches!(e, TensorError::Exceeded(Exceeded::Time(_))), "{e}");
    }

    #[test]
    fn an_input_is_a_name_and_a_file_or_a_file() {
        let of = |text: &str| InputFile::parse(text).map(|i| (i.name, i.file));
        assert_eq!(of("x=a.npy"), Ok((Some("x".to_owned()), "a.npy".into())));
        assert_eq!(of("a.png"), Ok((None, "a.png".into())));
        for bad in ["", "=a", "x="] {
            assert!(of(bad).is_err(), "{bad}");
        }
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("a=b.png");
        std::fs::write(&odd, b"x").unwrap();
        assert_eq!(of(odd.to_str().unwrap()), Ok((None, odd.clone())));
    }
}
