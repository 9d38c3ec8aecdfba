//! The template engine, set up as in transformers.

use super::meter::{self, Meter};
use super::{MAX_RAISED, NAME, Raised, date, filters, guard, objects, python, text};
use minijinja::machinery::{CodeGenerator, Instructions, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

/// The syntax that Hugging Face templates expect.
pub(super) fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
}

/// The functions, filters, methods and formats that templates expect. Their work is counted by
/// `meter`.
pub(super) fn environment(meter: &Arc<Meter>) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_debug(false);
    let counting = meter.clone();
    environment.set_unknown_method_callback(move |_, subject, name, arguments| {
        text::call_method(&counting, subject, name, arguments)
    });
    let counting = meter.clone();
    environment.set_formatter(move |out, state, value| {
        let weight = counting.weigh(value)?;
        if *state.auto_escape() != AutoEscape::None {
            counting.charge(weight.units.saturating_mul(guard::SLOW))?;
        }
        python::format(out, state, value)
    });
    environment.add_function("raise_exception", |mut what: String| -> Result<Value, Error> {
        let mut cuts = (0..=MAX_RAISED.min(what.len())).rev();
        what.truncate(cuts.find(|n| what.is_char_boundary(*n)).unwrap_or_default());
        let error = Error::new(ErrorKind::InvalidOperation, what.clone());
        Err(error.with_source(Raised(what)))
    });
    let counting = meter.clone();
    environment.add_function("strftime_now", move |format: String| {
        counting.charge(meter::units(format.len()).saturating_mul(meter::NODE))?;
        Ok::<_, Error>(date::strftime(&format, SystemTime::now()))
    });
    objects::install(&mut environment, meter);
    filters::install(&mut environment, meter);
    guard::install(&mut environment, meter);
    environment
}

pub(super) type Blocks<'s> = BTreeMap<&'s str, Instructions<'s>>;

/// The compiled instructions of a template and of its blocks.
pub(super) fn compiled(source: &str) -> Result<(Instructions<'_>, Blocks<'_>), Error> {
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&parse(source, NAME, syntax()?)?);
    let (main, blocks) = generator.finish();
    let mut counting = Blocks::new();
    for (name, block) in blocks {
        counting.insert(name, guard::guarded(&block)?);
    }
    Ok((guard::guarded(&main)?, counting))
}
