//! Makes compiled templates count their work. The engine counts only instructions, and one of them
//! can double a text or compare two huge ones.
//!
//! Before an instruction whose cost depends on its operands, a filter looks at them. After one that
//! makes a value, another filter looks at the result. Lazy lists are made plain ones, because each
//! level of laziness takes stack when the list is read or dropped.

use super::meter::{Meter, NODE, Stopped, Weight, units};
use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::{Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, Value};
use std::sync::Arc;

/// Filters under names that no template can write.
const BEFORE: &str = "#before";
const MADE: &str = "#made";
const LISTED: &str = "#listed";

/// The engine looks up filters with this number by name.
const BY_NAME: u8 = u8::MAX;

/// Tests that look at no more than the kind of their operand.
const CHEAP_TESTS: [&str; 17] = [
    "defined",
    "undefined",
    "none",
    "boolean",
    "true",
    "false",
    "string",
    "number",
    "integer",
    "int",
    "float",
    "mapping",
    "sequence",
    "iterable",
    "odd",
    "even",
    "divisibleby",
];

/// Tests of `selectattr` that compare with an argument, or look at no more than the kind.
const HEAD_TESTS: [&str; 10] = [
    "defined",
    "undefined",
    "none",
    "string",
    "mapping",
    "eq",
    "equalto",
    "==",
    "ne",
    "!=",
];

/// Filters and methods that look at no more than the head of their operand.
const HEAD: [&str; 7] = ["|length", "|count", "|first", "|last", "|default", "|d", ".get"];

/// Filters and methods that look at no more than the first level of their operand.
const SHALLOW: [&str; 6] = ["|list", "|reverse", "|items", ".items", ".keys", ".values"];

/// Filters that keep a text a text; others make a list of its characters.
const OF_TEXT: [&str; 22] = [
    "|length",
    "|count",
    "|first",
    "|last",
    "|default",
    "|d",
    "|reverse",
    "|trim",
    "|lower",
    "|upper",
    "|title",
    "|capitalize",
    "|string",
    "|replace",
    "|safe",
    "|tojson",
    "|e",
    "|escape",
    "|indent",
    "|format",
    "|int",
    "|float",
];

/// Work per byte of what handles texts character by character.
pub(super) const SLOW: u64 = 4;

/// Adds the filters that count to `environment`, and removes builtins whose cost has no bound.
pub(super) fn install(environment: &mut Environment<'_>, meter: &Arc<Meter>) {
    for name in ["chain", "zip", "pprint"] {
        environment.remove_filter(name);
    }
    environment.remove_global("debug");
    let counting = meter.clone();
    environment.add_filter(
        BEFORE,
        move |Rest(all): Rest<ValueOrKwargs>| -> Result<Value, Error> {
            let mut all: Vec<Value> = all.into_iter().map(ValueOrKwargs::into_value).collect();
            let what = all.pop().unwrap_or_default();
            before(&counting, what.as_str().unwrap_or_default(), &all)?;
            // `UnpackList` puts the first item on top.
            all.reverse();
            Ok(Value::from(Tuple::from(all)))
        },
    );
    let counting = meter.clone();
    environment.add_filter(MADE, move |value: ValueOrKwargs| -> Result<Value, Error> {
        let value = plain(&counting, value.into_value())?;
        counting.places(&value)?;
        // Keys are hashed.
        if value.kind() == ValueKind::Map {
            value.try_iter()?.try_for_each(|key| counting.touch(&key))?;
        }
        Ok(value)
    });
    let counting = meter.clone();
    environment.add_filter(LISTED, move |value: ValueOrKwargs| {
        plain(&counting, value.into_value())
    });
}

/// Counts a value that was made; a lazy list becomes a plain one.
fn plain(meter: &Meter, value: Value) -> Result<Value, Error> {
    meter.touch(&value)?;
    match value.kind() {
        ValueKind::Seq if value.is_tuple() || value.downcast_object_ref::<Vec<Value>>().is_some() => {
            Ok(value)
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let mut items = Vec::new();
            for item in value.try_iter()? {
                meter.charge(NODE)?;
                items.push(item);
            }
            Ok(Value::from(items))
        }
        _ => Ok(value),
    }
}

/// Counts the work of `what` on `operands`, before it is done.
fn before(meter: &Meter, what: &str, operands: &[Value]) -> Result<(), Error> {
    let text = |at: usize| operands.get(at).and_then(Value::as_str);
    let each =
        |count: fn(&Meter, &Value) -> Result<(), Error>| operands.iter().try_for_each(|v| count(meter, v));
    match (what, operands) {
        ("*", [a, b]) => {
            let (repeated, count) = if a.is_number() { (b, a) } else { (a, b) };
            let times = if repeated.is_number() {
                1
            } else {
                units(count.as_usize().unwrap_or(0))
            };
            let size = match repeated.as_str() {
                Some(text) => units(text.len()),
                None => items(repeated).saturating_mul(NODE),
            };
            meter.charge(size.saturating_mul(times).saturating_add(NODE))
        }
        ("+" | "for" | "unpack" | "[:]", _) => each(shallow),
        ("[]", [container, key]) => {
            deep(meter, key)?;
            match container.kind() {
                ValueKind::Iterable => shallow(meter, container),
                _ => meter.touch(container),
            }
        }
        ("=", [value, _]) => storable(meter, value),
        ("==", [a, b]) if is_plain(a) || is_plain(b) => each(Meter::touch),
        ("in", [needle, all]) if is_plain(needle) => {
            let times = if all.kind() == ValueKind::Map {
                1
            } else {
                items(all).saturating_add(1)
            };
            shallow(meter, all)?;
            meter.charge(first_level(needle).saturating_mul(times))
        }
        // The engine divides by their number.
        (".cycle", [_]) => Err(Error::new(ErrorKind::MissingArgument, "cycle takes an argument")),
        (".replace" | "|replace", [subject, from, to, ..]) => {
            let (all, new) = (meter.weigh(subject)?.units, meter.weigh(to)?.units);
            deep(meter, from)?;
            let times = match (subject.as_str(), from.as_str()) {
                (Some(text), Some(from)) => units(text.matches(from).count()),
                _ => all,
            };
            meter.charge(times.saturating_mul(new.saturating_sub(NODE)))
        }
        (".format" | "|format", [format, arguments @ ..]) => {
            let mut all = 0u64;
            for value in operands {
                all = all.saturating_add(meter.weigh(value)?.units);
            }
            meter.charge(format_units(format.as_str().unwrap_or_default(), arguments, all))
        }
        (".join", [separator, list]) => {
            each(deep)?;
            meter.charge(items(list).saturating_mul(first_level(separator)))
        }
        (".split" | "|split", [_, ..]) => {
            each(Meter::touch)?;
            let all = text(0).unwrap_or_default();
            let pieces = match text(1) {
                Some(separator) => all.matches(separator).count(),
                None => all.matches(char::is_whitespace).count(),
            };
            meter.charge(units(pieces).saturating_mul(NODE))
        }
        (".splitlines", [text, ..]) => {
            meter.touch(text)?;
            meter.charge(lines(text.as_str().unwrap_or_default()).saturating_mul(NODE))
        }
        (_, [subject, arguments @ ..]) if what.starts_with(['|', '.']) => {
            filter(meter, what, subject, arguments)
        }
        _ => each(deep),
    }
}

fn deep(meter: &Meter, value: &Value) -> Result<(), Error> {
    meter.weigh(value).map(drop)
}

fn shallow(meter: &Meter, value: &Value) -> Result<(), Error> {
    meter.charge(first_level(value))
}

/// Counts the work of a filter or a method.
fn filter(meter: &Meter, what: &str, subject: &Value, arguments: &[Value]) -> Result<(), Error> {
    let positional = arguments.iter().filter(|v| !v.is_kwargs()).count();
    let named = |at: usize| arguments.get(at).and_then(Value::as_str).unwrap_or_default();
    let reads_heads = match what {
        "|map" => positional == 0,
        "|selectattr" | "|rejectattr" => positional < 2 || HEAD_TESTS.contains(&named(1)),
        _ => SHALLOW.contains(&what),
    };
    let mut whole = Weight::default();
    if HEAD.contains(&what) {
        meter.touch(subject)?;
    } else if reads_heads {
        shallow(meter, subject)?;
    } else {
        whole = meter.weigh(subject)?;
    }
    let mut given = 0u64;
    for argument in arguments {
        given = given.saturating_add(meter.weigh(argument)?.units);
    }
    let size = arguments
        .iter()
        .fold(0, |sum: u64, v| sum.saturating_add(magnitude(v)));
    let each = match subject.as_str() {
        Some(_) if what.starts_with('.') || OF_TEXT.contains(&what) => 1,
        Some(text) => {
            meter.charge(units(text.len()).saturating_mul(NODE))?;
            units(text.len())
        }
        None if HEAD.contains(&what) => 1,
        None => items(subject),
    };
    let extra = match what {
        "|map" if arguments.iter().any(|v| v.as_str() == Some("format")) => {
            let mut all = 0u64;
            meter.visit(subject, &mut |value| {
                let format = value.as_str().unwrap_or_default();
                all = all.saturating_add(format_units(format, arguments, given));
                Ok(0)
            })?;
            all
        }
        // Each use of the inner filter may multiply its operand by an argument.
        "|map" if positional > 0 => whole.units.saturating_mul(size.saturating_add(1)),
        "|tojson" => (whole.units / NODE)
            .saturating_mul(units(whole.depth))
            .saturating_mul(size),
        "|indent" => lines(subject.as_str().unwrap_or_default()).saturating_mul(size),
        "|batch" | "|slice" => size.saturating_mul(NODE),
        "|sort" | "|groupby" | "|unique" | "|dictsort" => whole.units.saturating_mul(16),
        // Lists are joined one by one.
        "|sum" if whole.depth > 2 => whole.units.saturating_mul(each),
        // Each character may be compared with each of the argument.
        "|trim" | ".strip" | ".lstrip" | ".rstrip" => whole.units.saturating_mul(size),
        "|upper" | "|lower" | "|title" | "|capitalize" | ".upper" | ".lower" | ".title" | ".capitalize" => {
            whole.units.saturating_mul(SLOW)
        }
        _ => 0,
    };
    meter.charge(each.saturating_mul(given).saturating_add(extra))
}

/// True for a value that contains no other.
fn is_plain(value: &Value) -> bool {
    !matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map
    )
}

/// Items of a list or an object.
fn items(value: &Value) -> u64 {
    if is_plain(value) {
        0
    } else {
        value.len().map_or(1, units)
    }
}

fn lines(text: &str) -> u64 {
    units(text.matches('\n').count()).saturating_add(1)
}

/// The work of reading a text, or the items of a list without what they contain.
fn first_level(value: &Value) -> u64 {
    let bytes = value.as_str().map_or(0, str::len);
    items(value)
        .saturating_add(1)
        .saturating_mul(NODE)
        .saturating_add(units(bytes))
}

/// The largest factor that an argument may be: a number, or the length of a text.
fn magnitude(value: &Value) -> u64 {
    match value.kind() {
        ValueKind::Number => value.as_i64().map_or(u64::MAX, i64::unsigned_abs),
        ValueKind::String => units(value.as_str().map_or(0, str::len)),
        ValueKind::Map => {
            let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
            let values = pairs.into_iter().flatten().map(|(_, value)| value);
            values
                .filter(is_plain)
                .fold(0, |sum, v| sum.saturating_add(magnitude(&v)))
        }
        _ => 1,
    }
}

/// Upper bound on the bytes that a format string produces: no field is wider than the largest
/// number in the string plus the size of all arguments.
fn format_units(format: &str, arguments: &[Value], all: u64) -> u64 {
    let numbers = format
        .split(|c: char| !c.is_ascii_digit())
        .filter(|digits| !digits.is_empty());
    let mut width = numbers
        .map(|digits| digits.parse().unwrap_or(u64::MAX))
        .max()
        .unwrap_or(0);
    if format.contains('*') {
        width = arguments.iter().map(magnitude).fold(width, u64::max);
    }
    let fields = units(format.matches(['%', '{']).count());
    fields.saturating_mul(width.saturating_add(all))
}

/// Counts a value that is stored in a namespace. It must hold no namespace: a cycle would never be
/// freed.
fn storable(meter: &Meter, value: &Value) -> Result<(), Error> {
    let mut place = |value: &Value| {
        let namespace = value
            .as_object()
            .is_some_and(|object| object.type_name().ends_with("::Namespace"));
        if namespace {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "a namespace cannot hold a namespace",
            ));
        }
        Ok(NODE)
    };
    meter.visit(value, &mut place).map(drop)
}

/// The instructions `from`, counting. Unpacking with `*` and `**` is refused.
pub(super) fn guarded<'s>(from: &Instructions<'s>) -> Result<Instructions<'s>, Error> {
    let mut code = Vec::new();
    // Where each instruction went.
    let mut places = Vec::new();
    let mut at = 0;
    while let Some(instruction) = from.get(at) {
        places.push(position(code.len())?);
        expand(instruction, &mut |new| code.push((new, at)))?;
        at += 1;
    }
    places.push(position(code.len())?);
    let mut out = Instructions::new(from.name(), from.source());
    for (mut instruction, at) in code {
        if let Some(target) = target(&mut instruction)
            && let Some(place) = usize::try_from(*target).ok().and_then(|old| places.get(old))
        {
            *target = *place;
        }
        let line = from.get_line(at).and_then(|line| u16::try_from(line).ok());
        match (from.get_span(at), line) {
            (Some(span), _) => out.add_with_span(instruction, span),
            (None, Some(line)) => out.add_with_line(instruction, line),
            (None, None) => out.add(instruction),
        };
    }
    Ok(out)
}

fn position(at: usize) -> Result<u32, Error> {
    u32::try_from(at).map_err(|_| Stopped::Bound("it is too long").into())
}

/// The instruction that a jump leads to.
fn target<'a>(instruction: &'a mut Instruction<'_>) -> Option<&'a mut u32> {
    match instruction {
        Instruction::Iterate(target)
        | Instruction::Jump(target)
        | Instruction::JumpIfFalse(target)
        | Instruction::JumpIfFalseOrPop(target)
        | Instruction::JumpIfTrueOrPop(target)
        | Instruction::BuildMacro(_, target, _) => Some(target),
        _ => None,
    }
}

/// Passes `instruction` with its guards to `add`.
fn expand<'s>(instruction: &Instruction<'s>, add: &mut dyn FnMut(Instruction<'s>)) -> Result<(), Error> {
    use Instruction as I;
    // What is done, how many operands it has, and the filter for the result.
    let (what, operands, result) = match instruction {
        // Text counts where values do.
        I::EmitRaw(text) => {
            add(I::LoadConst(Value::from_safe_string((*text).to_owned())));
            add(I::Emit);
            return Ok(());
        }
        I::Add => ("+".to_owned(), 2, Some(LISTED)),
        I::Mul => ("*".to_owned(), 2, Some(LISTED)),
        I::StringConcat => ("~".to_owned(), 2, Some(LISTED)),
        I::Slice => ("[:]".to_owned(), 4, Some(LISTED)),
        I::GetItem => ("[]".to_owned(), 2, None),
        I::SetAttr(_) => ("=".to_owned(), 2, None),
        I::In => ("in".to_owned(), 2, None),
        I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte | I::CompareAndPreserve(_) => {
            ("==".to_owned(), 2, None)
        }
        I::UnpackList(_) => ("unpack".to_owned(), 1, None),
        I::PushLoop(_) | I::FastRecurse => ("for".to_owned(), 1, None),
        I::BuildMap(_) | I::BuildKwargs(_) | I::BuildList(_) | I::BuildTuple(_) => {
            (String::new(), 0, Some(MADE))
        }
        // Its result is lazy, but contains no other list.
        I::CallFunction("range", Some(_)) => (String::new(), 0, None),
        I::CallFunction("loop", Some(1)) => ("for".to_owned(), 1, Some(MADE)),
        I::CallFunction(_, Some(_)) | I::CallObject(Some(_)) => (String::new(), 0, Some(MADE)),
        I::CallMethod(name, Some(n)) => (format!(".{name}"), *n, Some(result_filter('.', name))),
        I::ApplyFilter(name, Some(n), _) => (format!("|{name}"), *n, Some(result_filter('|', name))),
        I::PerformTest(name, Some(_), _) if CHEAP_TESTS.contains(name) => (String::new(), 0, None),
        I::PerformTest(name, Some(n), _) => (format!("is {name}"), *n, None),
        I::MergeKwargs(_)
        | I::UnpackLists(_)
        | I::CallFunction(_, None)
        | I::CallMethod(_, None)
        | I::CallObject(None)
        | I::ApplyFilter(_, None, _)
        | I::PerformTest(_, None, _) => {
            let what = "unpacking arguments with `*` or `**` is not supported";
            return Err(Error::new(ErrorKind::SyntaxError, what));
        }
        _ => (String::new(), 0, None),
    };
    if operands > 0 {
        add(I::LoadConst(Value::from(what)));
        add(I::ApplyFilter(BEFORE, Some(operands.saturating_add(1)), BY_NAME));
        add(I::UnpackList(usize::from(operands)));
    }
    add(instruction.clone());
    if let Some(filter) = result {
        add(I::ApplyFilter(filter, Some(1), BY_NAME));
    }
    Ok(())
}

/// The filter for the result of a filter or a method.
fn result_filter(mark: char, name: &str) -> &'static str {
    let known = |list: &[&str]| list.iter().any(|known| known.strip_prefix(mark) == Some(name));
    if known(&HEAD) || known(&SHALLOW) {
        LISTED
    } else {
        MADE
    }
}
