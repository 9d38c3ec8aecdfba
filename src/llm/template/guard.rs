//! Makes compiled templates count their work. The engine counts only instructions, and one of them
//! can double a text or compare two huge ones.
//!
//! Before an instruction whose cost depends on its operands, a filter looks at them. After one that
//! makes a value, another filter looks at the result. Lazy lists are made plain ones, because each
//! level of laziness takes stack when the list is read or dropped.

use super::call::refuse;
use super::meter::{Meter, NODE, Stopped, Weight, units};
use super::objects::View;
use super::printf::percent;
use super::{objects, python, text};
use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Filters under names that no template can write.
const BEFORE: &str = "#before";
const BEFORE_ALL: &str = "#before_all";
const PERCENT: &str = "#%";
const CONCATENATE: &str = "#~";
const NEGATIVE: &str = "#-";
const ATTRIBUTE: &str = "#.";
const PACK: &str = "#pack";
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
const OF_TEXT: [&str; 32] = [
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
    "|forceescape",
    "|indent",
    "|format",
    "|int",
    "|float",
    "|center",
    "|filesizeformat",
    "|pprint",
    "|striptags",
    "|truncate",
    "|urlencode",
    "|wordcount",
    "|wordwrap",
    "|attr",
];

/// Work per byte of what handles texts character by character.
pub(super) const SLOW: u64 = 4;

/// Adds the filters that count to `environment`, and removes builtins whose cost has no bound.
pub(super) fn install(environment: &mut Environment<'_>, meter: &Arc<Meter>) {
    for name in ["chain", "zip"] {
        environment.remove_filter(name);
    }
    environment.remove_global("debug");
    for (name, reversed) in [(BEFORE, true), (BEFORE_ALL, false)] {
        let counting = meter.clone();
        environment.add_filter(
            name,
            move |Rest(all): Rest<ValueOrKwargs>| -> Result<Value, Error> {
                let mut all: Vec<Value> = all.into_iter().map(ValueOrKwargs::into_value).collect();
                let what = all.pop().unwrap_or_default();
                before(&counting, what.as_str().unwrap_or_default(), &all)?;
                if what.as_str() == Some("*") {
                    repetitions(&mut all);
                }
                // `UnpackList` puts the first item on top.
                if reversed {
                    all.reverse();
                }
                Ok(Value::from(Tuple::from(all)))
            },
        );
    }
    let counting = meter.clone();
    environment.add_filter(PERCENT, move |left: Value, right: Value| {
        percent(&counting, &left, &right)
    });
    let counting = meter.clone();
    environment.add_filter(ATTRIBUTE, move |subject: Value, name: String| {
        objects::attribute(&counting, &subject, &name)
    });
    environment.add_filter(PACK, |Rest(all): Rest<ValueOrKwargs>| {
        pack(all.into_iter().map(ValueOrKwargs::into_value).collect())
    });
    environment.add_filter(NEGATIVE, |value: Value| python::negative(&value));
    environment.add_filter(CONCATENATE, |left: Value, right: Value| -> Result<Value, Error> {
        Ok(Value::from(python::text(&left)? + &python::text(&right)?))
    });
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

/// The arguments of a macro with the parameters `varargs` and `kwargs`, in the order in which they
/// are unpacked. The last value of `given` is the list of its parameter names.
fn pack(mut given: Vec<Value>) -> Result<Value, Error> {
    let names: Vec<Value> = given.pop().unwrap_or_default().try_iter()?.collect();
    let named = given.pop_if(|last| last.is_kwargs()).unwrap_or_default();
    let mut named: Vec<[Value; 2]> = python::items(&named).collect();
    let caller = named.iter().position(|[key, _]| key.as_str() == Some("caller"));
    let caller = caller.map(|at| named.swap_remove(at));
    let mut given = given.into_iter();
    let mut all = Vec::new();
    for name in names.get(..names.len().saturating_sub(2)).unwrap_or_default() {
        let at = named.iter().position(|[key, _]| key == name);
        let by_name = at.map(|at| named.remove(at)).map(|[_, value]| value);
        all.push(match (given.next(), by_name) {
            (Some(_), Some(_)) => return refuse(format!("two values for the argument `{name}`")),
            (value, by_name) => value.or(by_name).unwrap_or_default(),
        });
    }
    all.push(Value::from(Tuple::from(given.collect::<Vec<_>>())));
    all.push(Value::from_pairs(
        named.into_iter().map(|[key, value]| (key, value)),
    ));
    let caller = caller.map(|[_, value]| ("caller".to_owned(), value));
    all.push(Value::from(caller.into_iter().collect::<Kwargs>()));
    all.reverse();
    Ok(Value::from(Tuple::from(all)))
}

/// The parameters of macros with `varargs` and `kwargs`, by macro name.
fn variadic<'s>(from: &Instructions<'s>) -> BTreeMap<&'s str, Value> {
    let mut macros = BTreeMap::new();
    for at in 1u32.. {
        let (Some(before), Some(instruction)) = (from.get(at - 1), from.get(at)) else {
            break;
        };
        if let (Instruction::LoadConst(names), Instruction::BuildMacro(name, ..)) = (before, instruction)
            && let Some(end) = names.len().and_then(|len| len.checked_sub(2))
            && let Ok(last) = names.get_item(&Value::from(end))
            && last.as_str() == Some("varargs")
        {
            macros.insert(*name, names.clone());
        }
    }
    macros
}

/// Replaces repetition counts that the engine rejects by equivalent ones that it accepts.
fn repetitions(operands: &mut [Value]) {
    let repeats = operands
        .iter()
        .any(|value| !matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    for value in operands {
        match python::integer(value) {
            Some(count) if repeats => *value = Value::from(count.max(0)),
            Some(number) if value.kind() == ValueKind::Bool => *value = Value::from(number),
            _ => {}
        }
    }
}

/// Counts a value that was made; a lazy list becomes a plain one.
fn plain(meter: &Meter, value: Value) -> Result<Value, Error> {
    meter.touch(&value)?;
    match value.kind() {
        ValueKind::Seq if value.is_tuple() || value.downcast_object_ref::<Vec<Value>>().is_some() => {
            Ok(value)
        }
        ValueKind::Iterable if value.downcast_object_ref::<View>().is_some() => Ok(value),
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
        ("for", [none]) if none.is_none() => refuse("none cannot be iterated over"),
        ("<", [a, b]) => {
            python::check_comparable(a, b)?;
            before(meter, "==", operands)
        }
        ("+" | "for" | "unpack" | "[:]", _) => each(shallow),
        ("[]", [container, key]) => {
            deep(meter, key)?;
            match container.kind() {
                ValueKind::Iterable => shallow(meter, container),
                _ => meter.touch(container),
            }
        }
        ("=", [value, _]) => objects::storable(meter, value),
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
        ("|split", [_, ..]) => {
            each(Meter::touch)?;
            let all = text(0).unwrap_or_default();
            let pieces = match text(1) {
                Some(separator) => all.matches(separator).count(),
                None => all.matches(char::is_whitespace).count(),
            };
            meter.charge(units(pieces).saturating_mul(NODE))
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
        // Each use of the inner filter may multiply its operand by an argument.
        "|map" if positional > 0 => whole.units.saturating_mul(size.saturating_add(1)),
        "|tojson" => (whole.units / NODE)
            .saturating_mul(units(whole.depth))
            .saturating_mul(size),
        "|batch" | "|slice" => size.saturating_mul(NODE),
        "|sort" | "|groupby" | "|unique" | "|dictsort" => whole.units.saturating_mul(16),
        // Lists are joined one by one.
        "|sum" if whole.depth > 2 => whole.units.saturating_mul(each),
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

/// The instructions `from` with guards.
pub(super) fn guarded<'s>(from: &Instructions<'s>) -> Result<Instructions<'s>, Error> {
    let mut code = Vec::new();
    // Where each instruction went.
    let mut places = Vec::new();
    let macros = variadic(from);
    let mut at = 0;
    while let Some(instruction) = from.get(at) {
        places.push(position(code.len())?);
        let names = match instruction {
            Instruction::CallFunction(name, _) => macros.get(name),
            _ => None,
        };
        expand(instruction, names, &mut |new| code.push((new, at)))?;
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

fn count(operands: usize) -> Result<u16, Error> {
    u16::try_from(operands).map_err(|_| Stopped::Bound("it is too long").into())
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

/// Passes `instruction` with its guards to `add`. If it calls a macro with `varargs`, the parameter
/// names of the macro are added to the arguments.
fn expand<'s>(
    instruction: &Instruction<'s>,
    names: Option<&Value>,
    add: &mut dyn FnMut(Instruction<'s>),
) -> Result<(), Error> {
    use Instruction as I;
    if let (Some(names), I::CallFunction(name, given)) = (names, instruction) {
        return call_packed(name, *given, names, add);
    }
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
        I::Rem => ("%".to_owned(), 2, Some(LISTED)),
        I::MergeKwargs(n) => ("unpack".to_owned(), count(*n)?, Some(MADE)),
        I::UnpackLists(n) => ("unpack".to_owned(), count(*n)?, None),
        I::Slice => ("[:]".to_owned(), 4, Some(LISTED)),
        I::GetItem => ("[]".to_owned(), 2, None),
        I::SetAttr(_) => ("=".to_owned(), 2, None),
        I::In => ("in".to_owned(), 2, None),
        I::Gt | I::Gte | I::Lt | I::Lte => ("<".to_owned(), 2, None),
        I::Eq | I::Ne | I::CompareAndPreserve(_) => ("==".to_owned(), 2, None),
        I::Neg => (String::new(), 0, Some(LISTED)),
        I::GetAttr(name) if text::is_method(name) => {
            add(I::LoadConst(Value::from(*name)));
            add(I::ApplyFilter(ATTRIBUTE, Some(2), BY_NAME));
            return Ok(());
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
        I::CallMethod(name, None) => (format!(".{name}"), 0, Some(MADE)),
        I::ApplyFilter(name, None, _) => (format!("|{name}"), 0, Some(MADE)),
        I::PerformTest(name, None, _) => (format!("is {name}"), 0, None),
        I::CallFunction(_, None) | I::CallObject(None) => (String::new(), 0, Some(MADE)),
        _ => (String::new(), 0, None),
    };
    if operands > 0 {
        add(I::LoadConst(Value::from(what)));
        add(I::ApplyFilter(BEFORE, Some(operands.saturating_add(1)), BY_NAME));
        add(I::UnpackList(usize::from(operands)));
    } else if !what.is_empty() {
        add(I::LoadConst(Value::from(what)));
        one_more(add);
        add(I::ApplyFilter(BEFORE_ALL, None, BY_NAME));
        add(I::UnpackLists(1));
    }
    add(match instruction {
        I::Rem => I::ApplyFilter(PERCENT, Some(2), BY_NAME),
        I::StringConcat => I::ApplyFilter(CONCATENATE, Some(2), BY_NAME),
        I::Neg => I::ApplyFilter(NEGATIVE, Some(1), BY_NAME),
        other => other.clone(),
    });
    if let Some(filter) = result {
        add(I::ApplyFilter(filter, Some(1), BY_NAME));
    }
    Ok(())
}

/// Calls a macro with `varargs`.
fn call_packed<'s>(
    name: &'s str,
    given: Option<u16>,
    names: &Value,
    add: &mut dyn FnMut(Instruction<'s>),
) -> Result<(), Error> {
    use Instruction as I;
    let all = count(names.len().unwrap_or(0).saturating_add(1))?;
    add(I::LoadConst(names.clone()));
    if given.is_none() {
        one_more(add);
    }
    add(I::ApplyFilter(PACK, given.map(|n| n.saturating_add(1)), BY_NAME));
    add(I::UnpackList(usize::from(all)));
    add(I::CallFunction(name, Some(all)));
    add(I::ApplyFilter(MADE, Some(1), BY_NAME));
    Ok(())
}

/// Adds the value on top of the stack to the operands below it. The number of operands lies
/// between them.
fn one_more<'s>(add: &mut dyn FnMut(Instruction<'s>)) {
    add(Instruction::Swap);
    add(Instruction::LoadConst(Value::from(1)));
    add(Instruction::Add);
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
