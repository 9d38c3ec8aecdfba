//! Makes compiled templates count their work. The engine counts only instructions, and one of them
//! can double a text or compare two huge ones.
//!
//! Before an instruction whose cost depends on its operands, a filter looks at them. After one that
//! makes a value, another filter looks at the result. Lazy lists are made plain ones, because each
//! level of laziness takes stack when the list is read or dropped.

use super::call::{refuse, values};
use super::meter::{Meter, NODE, Stopped, Weight, units};
use super::objects::View;
use super::printf::percent;
use super::{objects, python, sequences, text};
use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use std::sync::Arc;

/// Filters under names that no template can write. The first two also take what is done.
const BEFORE: &str = "#before";
const OWN: &str = "#own";
const PACK: &str = "#pack";
const MADE: &str = "#made";
const LISTED: &str = "#listed";

/// The engine looks up filters with this number by name.
const BY_NAME: u8 = u8::MAX;

/// Tests that read their whole operand. Others read no more of it than their argument is long.
const READING_TESTS: [&str; 5] = ["lower", "upper", "in", "startingwith", "endingwith"];

/// Filters and methods that look at no more than the head of their operand.
const HEAD: [&str; 7] = ["|length", "|count", "|first", "|last", "|default", "|d", ".get"];

/// Filters and methods that look at no more than the first level of their operand.
const SHALLOW: [&str; 6] = ["|list", "|reverse", "|items", ".items", ".keys", ".values"];

/// Work per byte of what handles texts character by character.
pub(super) const SLOW: u64 = 4;

/// Adds the filters that count to `environment`, and removes builtins whose cost has no bound.
/// Jinja has none of the removed filters.
pub(super) fn install(environment: &mut Environment<'_>, meter: &Arc<Meter>) {
    for name in ["chain", "lines", "split", "zip"] {
        environment.remove_filter(name);
    }
    environment.remove_global("debug");
    type Guard = fn(&Arc<Meter>, &State<'_, '_>, Vec<Value>) -> Result<Value, Error>;
    let guards: [(&'static str, Guard); 5] = [
        (BEFORE, |meter, _, mut all| {
            let what = all.pop().unwrap_or_default();
            before(meter, what.as_str().unwrap_or_default(), &all)?;
            if what.as_str() == Some("*") {
                repetitions(&mut all);
            }
            Ok(Value::from(Tuple::from(all)))
        }),
        (OWN, |meter, _, all| own(meter, all)),
        (PACK, |meter, state, mut all| {
            let name = all.pop().unwrap_or_default();
            let function = name.as_str().and_then(|name| state.lookup(name));
            let all = pack(meter, &function.unwrap_or_default(), all)?;
            Ok(Value::from(Tuple::from(all)))
        }),
        (MADE, |meter, _, mut all| {
            let value = plain(meter, all.pop().unwrap_or_default())?;
            meter.places(&value)?;
            // Keys are hashed.
            if value.kind() == ValueKind::Map {
                value.try_iter()?.try_for_each(|key| meter.touch(&key))?;
            }
            Ok(value)
        }),
        (LISTED, |meter, _, mut all| {
            plain(meter, all.pop().unwrap_or_default())
        }),
    ];
    for (name, guard) in guards {
        let counting = meter.clone();
        environment.add_filter(name, move |state: &State<'_, '_>, all: Rest<ValueOrKwargs>| {
            guard(&counting, state, values(all))
        });
    }
}

/// Does what the engine does differently than Python. The last value of `given` names it.
fn own(meter: &Arc<Meter>, mut given: Vec<Value>) -> Result<Value, Error> {
    let what = given.pop().unwrap_or_default();
    let what = what.as_str().unwrap_or_default();
    let result = match (what, given.as_slice()) {
        ("-", [value]) => python::negative(value),
        ("%" | "~", [left, right]) => {
            before(meter, what, &given)?;
            match what {
                "%" => percent(meter, left, right),
                _ => Ok(Value::from(python::text(left)? + &python::text(right)?)),
            }
        }
        (name, [subject]) => objects::attribute(meter, subject, name),
        _ => refuse("an operand is missing"),
    }?;
    meter.touch(&result)?;
    Ok(result)
}

/// The arguments of a call. Those of a macro with the parameters `varargs` and `kwargs` are in the
/// order of its parameters.
fn pack(meter: &Meter, function: &Value, mut given: Vec<Value>) -> Result<Vec<Value>, Error> {
    let names: Vec<Value> = match objects::is_macro(function) {
        true => function.get_attr("arguments")?.try_iter()?.collect(),
        false => Vec::new(),
    };
    let Some(declared) = names.strip_suffix(&[Value::from("varargs"), Value::from("kwargs")]) else {
        return Ok(given);
    };
    let named = given.pop_if(|last| last.is_kwargs()).unwrap_or_default();
    let mut named: Vec<[Value; 2]> = python::items(&named).collect();
    meter.charge(units(declared.len()).saturating_mul(units(named.len())))?;
    let caller = named.iter().position(|[key, _]| key.as_str() == Some("caller"));
    let caller = caller.map(|at| named.swap_remove(at));
    let mut given = given.into_iter();
    let mut all = Vec::new();
    for name in declared {
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
    Ok(all)
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
pub(super) fn plain(meter: &Meter, value: Value) -> Result<Value, Error> {
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
pub(super) fn before(meter: &Meter, what: &str, operands: &[Value]) -> Result<(), Error> {
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
    let reads_heads = match (what, arguments) {
        ("|selectattr" | "|rejectattr", [_, test, compared @ ..]) => {
            let heads = test.as_str().is_some_and(|test| !READING_TESTS.contains(&test));
            heads && compared.iter().all(is_plain)
        }
        // `map` counts the filter that it applies.
        ("|selectattr" | "|rejectattr" | "|map", _) => true,
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
    let each = match subject.as_str() {
        _ if HEAD.contains(&what) => 1,
        Some(text) if is_of_lists(what) => {
            meter.charge(units(text.len()).saturating_mul(NODE))?;
            units(text.len())
        }
        Some(_) => 1,
        None => items(subject),
    };
    let extra = match what {
        "|sort" | "|groupby" | "|unique" | "|dictsort" | "|max" | "|min" => whole.units.saturating_mul(16),
        // Lists are joined one by one.
        "|sum" if whole.depth > 2 => whole.units.saturating_mul(each),
        "|upper" | "|lower" | "|title" | "|capitalize" | ".upper" | ".lower" | ".title" | ".capitalize" => {
            whole.units.saturating_mul(SLOW)
        }
        _ => 0,
    };
    meter.charge(each.saturating_mul(given).saturating_add(extra))
}

/// True for filters that make a list of the characters of a text.
fn is_of_lists(what: &str) -> bool {
    what.strip_prefix('|').is_some_and(|name| {
        matches!(
            name,
            "list" | "map" | "reject" | "rejectattr" | "select" | "selectattr" | "sum"
        ) || sequences::FILTERS.iter().any(|filter| filter.name == name)
    })
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

/// The instructions `from` with guards.
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

/// Passes `instruction` with its guards to `add`.
fn expand<'s>(instruction: &Instruction<'s>, add: &mut dyn FnMut(Instruction<'s>)) -> Result<(), Error> {
    use Instruction as I;
    // What is done, how many operands it has (`None` if that is on the stack), and the filter for
    // the result.
    let (what, operands, result) = match instruction {
        // Text counts where values do.
        I::EmitRaw(text) => {
            add(I::LoadConst(Value::from_safe_string((*text).to_owned())));
            add(I::Emit);
            return Ok(());
        }
        I::Rem => return replaced("%", 2, add),
        I::StringConcat => return replaced("~", 2, add),
        I::Neg => return replaced("-", 1, add),
        I::GetAttr(name) if text::is_method(name) => return replaced(name, 1, add),
        I::Add => ("+".to_owned(), Some(2), Some(LISTED)),
        I::Mul => ("*".to_owned(), Some(2), Some(LISTED)),
        I::Slice => ("[:]".to_owned(), Some(4), Some(LISTED)),
        I::MergeKwargs(n) => ("unpack".to_owned(), Some(count(*n)?), Some(MADE)),
        I::UnpackLists(n) => ("unpack".to_owned(), Some(count(*n)?), None),
        I::UnpackList(_) => ("unpack".to_owned(), Some(1), None),
        I::GetItem => ("[]".to_owned(), Some(2), None),
        I::SetAttr(_) => ("=".to_owned(), Some(2), None),
        I::In => ("in".to_owned(), Some(2), None),
        I::Gt | I::Gte | I::Lt | I::Lte => ("<".to_owned(), Some(2), None),
        I::Eq | I::Ne | I::CompareAndPreserve(_) => ("==".to_owned(), Some(2), None),
        I::PushLoop(_) | I::FastRecurse => ("for".to_owned(), Some(1), None),
        I::CallFunction("loop", Some(1)) => ("for".to_owned(), Some(1), Some(MADE)),
        // Its result is lazy, but contains no other list.
        I::CallFunction("range", Some(_)) => (String::new(), None, None),
        I::CallFunction(name, given) if *name != "super" => {
            with_top(Value::from(*name), PACK, *given, add);
            add(I::UnpackLists(1));
            add(I::CallFunction(name, None));
            add(I::ApplyFilter(MADE, Some(1), BY_NAME));
            return Ok(());
        }
        I::CallFunction(..) | I::CallObject(_) => (String::new(), None, Some(MADE)),
        I::BuildMap(_) | I::BuildKwargs(_) | I::BuildList(_) | I::BuildTuple(_) => {
            (String::new(), None, Some(MADE))
        }
        I::CallMethod(name, n) => guarded_call('.', name, *n),
        I::ApplyFilter(name, n, _) => guarded_call('|', name, *n),
        I::PerformTest(name, n, _) if *n != Some(1) || READING_TESTS.contains(name) => {
            (format!("is {name}"), *n, None)
        }
        _ => (String::new(), None, None),
    };
    if !what.is_empty() {
        with_top(Value::from(what), BEFORE, operands, add);
        add(I::UnpackLists(1));
        if operands.is_some() {
            // Their number.
            add(I::DiscardTop);
        }
    }
    add(instruction.clone());
    if let Some(filter) = result {
        add(I::ApplyFilter(filter, Some(1), BY_NAME));
    }
    Ok(())
}

/// Adds what replaces an operator with `operands` operands.
fn replaced<'s>(what: &str, operands: u16, add: &mut dyn FnMut(Instruction<'s>)) -> Result<(), Error> {
    with_top(Value::from(what), OWN, Some(operands), add);
    Ok(())
}

/// Applies `filter` to operands and `last`. The number of operands is on the stack if it is `None`.
fn with_top<'s>(
    last: Value,
    filter: &'static str,
    operands: Option<u16>,
    add: &mut dyn FnMut(Instruction<'s>),
) {
    add(Instruction::LoadConst(last));
    if operands.is_none() {
        add(Instruction::Swap);
        add(Instruction::LoadConst(Value::from(1)));
        add(Instruction::Add);
    }
    let all = operands.map(|n| n.saturating_add(1));
    add(Instruction::ApplyFilter(filter, all, BY_NAME));
}

/// How [`expand`] guards a filter or a method.
fn guarded_call(
    mark: char,
    name: &str,
    operands: Option<u16>,
) -> (String, Option<u16>, Option<&'static str>) {
    let what = format!("{mark}{name}");
    let cheap = HEAD.contains(&what.as_str()) || SHALLOW.contains(&what.as_str());
    (what, operands, Some(if cheap { LISTED } else { MADE }))
}
