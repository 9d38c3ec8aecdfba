//! Global functions, and the objects that functions and methods return.

use super::call::{refuse, values};
use super::meter::{Meter, NODE};
use super::{python, text};
use minijinja::value::{Enumerator, Object, ObjectRepr, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Equally spaced numbers, like Python's `range`.
#[derive(Debug)]
pub(super) struct Range {
    start: i64,
    stop: i64,
    step: i64,
    len: usize,
}

impl Range {
    fn new(bounds: &[Option<i64>]) -> Result<Self, Error> {
        const MOST: u64 = 100_000;
        let (start, stop, step) = match *bounds {
            [Some(stop), None, None] => (0, stop, 1),
            [Some(start), Some(stop), step] => (start, stop, step.unwrap_or(1)),
            _ => return Err(Error::from(ErrorKind::MissingArgument)),
        };
        let distance = match step {
            0 => return refuse("range: the step must not be zero"),
            1.. => i128::from(stop) - i128::from(start),
            _ => i128::from(start) - i128::from(stop),
        };
        let distance = u128::try_from(distance).unwrap_or(0);
        let len = distance.div_ceil(u128::from(step.unsigned_abs()));
        let len = u64::try_from(len).ok().filter(|len| *len <= MOST);
        match len.and_then(|len| usize::try_from(len).ok()) {
            Some(len) => Ok(Self {
                start,
                stop,
                step,
                len,
            }),
            None => refuse(format!("range: more than {MOST} numbers")),
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            start, stop, step, ..
        } = self;
        match step {
            1 => write!(f, "range({start}, {stop})"),
            step => write!(f, "range({start}, {stop}, {step})"),
        }
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let at = key.as_usize().filter(|at| *at < self.len)?;
        let at = i64::try_from(at).ok()?;
        Some(Value::from(
            self.start.saturating_add(at.saturating_mul(self.step)),
        ))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.len)
    }
}

/// The items, keys or values of an object, like Python's views of a `dict`.
#[derive(Debug)]
pub(super) struct View {
    /// Name of the type in Python.
    pub name: &'static str,
    pub items: Vec<Value>,
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.items.len())
    }
}

/// A result of the filter `groupby`: a named tuple.
#[derive(Debug)]
pub(super) struct Group {
    pub grouper: Value,
    pub list: Vec<Value>,
}

impl Object for Group {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match (key.as_str(), key.as_usize()) {
            (Some("grouper"), _) | (_, Some(0)) => Some(self.grouper.clone()),
            (Some("list"), _) | (_, Some(1)) => Some(Value::from(self.list.clone())),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(2)
    }
}

/// A bound method that is not called immediately.
#[derive(Debug)]
struct Method {
    meter: Arc<Meter>,
    subject: Value,
    name: String,
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
        self.meter.weigh(&self.subject)?;
        arguments
            .iter()
            .try_for_each(|value| self.meter.weigh(value).map(drop))?;
        text::call_method(&self.meter, &self.subject, &self.name, arguments)
    }
}

/// The attribute `name`, which is the name of a method. As in Python, methods hide items of the
/// same name.
pub(super) fn attribute(meter: &Arc<Meter>, subject: &Value, name: &str) -> Result<Value, Error> {
    if is_other_mapping(subject) || !text::has_method(subject.kind(), name) {
        return subject.get_attr(name);
    }
    storable(meter, subject)?;
    Ok(Value::from_object(Method {
        meter: meter.clone(),
        subject: subject.clone(),
        name: name.to_owned(),
    }))
}

/// Jinja's `cycler`: returns its items in turn.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Cycler {
    fn current(&self) -> Value {
        self.items
            .get(self.at.load(Ordering::Relaxed))
            .cloned()
            .unwrap_or_default()
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("current")).then(|| self.current())
    }

    fn call_method(
        self: &Arc<Self>,
        _state: &mut State<'_, '_>,
        method: &str,
        arguments: &[Value],
    ) -> Result<Value, Error> {
        if !arguments.is_empty() {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        match method {
            "next" => {
                let current = self.current();
                let next = self.at.load(Ordering::Relaxed) + 1;
                self.at
                    .store(if next < self.items.len() { next } else { 0 }, Ordering::Relaxed);
                Ok(current)
            }
            "reset" => {
                self.at.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

/// Jinja's `joiner`: returns an empty text on the first call, then its separator.
#[derive(Debug)]
struct Joiner {
    separator: Value,
    used: AtomicBool,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
        match (arguments, self.used.swap(true, Ordering::Relaxed)) {
            ([], true) => Ok(self.separator.clone()),
            ([], false) => Ok(Value::from("")),
            _ => Err(Error::from(ErrorKind::TooManyArguments)),
        }
    }
}

pub(super) fn is_namespace(value: &Value) -> bool {
    let object = value.as_object();
    object.is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

pub(super) fn is_macro(value: &Value) -> bool {
    let object = value.as_object();
    object.is_some_and(|object| object.type_name().ends_with("::Macro"))
}

/// Whether `value` is a mapping but not a `dict`: a namespace, or the variable `loop`.
pub(super) fn is_other_mapping(value: &Value) -> bool {
    let object = value.as_object();
    is_namespace(value) || object.is_some_and(|object| object.type_name().ends_with("::Loop"))
}

pub(super) fn is_cycler(value: &Value) -> bool {
    value.downcast_object_ref::<Cycler>().is_some()
}

/// Counts a value that an object stores. It must not contain another such object: a cycle would
/// never be freed, and freeing a long chain takes stack.
pub(super) fn storable(meter: &Meter, value: &Value) -> Result<(), Error> {
    let stores = |value: &Value| {
        is_namespace(value) || is_cycler(value) || value.downcast_object_ref::<Method>().is_some()
    };
    let mut place = |value: &Value| match stores(value) {
        true => refuse("a namespace, a cycler or a method cannot be stored in another"),
        false => Ok(NODE),
    };
    meter.visit(value, &mut place).map(drop)
}

/// Python's `dict`: made from a mapping or pairs, and from keyword arguments.
fn dict(given: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let mut entries: Vec<(Value, Value)> = Vec::new();
    for value in values(given) {
        if value.kind() == ValueKind::Map {
            entries.extend(python::items(&value).map(|[key, value]| (key, value)));
            continue;
        }
        for item in value.try_iter()? {
            let parts: Vec<Value> = item.try_iter()?.collect();
            let [key, value] = parts.as_slice() else {
                return refuse("dict: expected pairs of a key and a value");
            };
            entries.push((key.clone(), value.clone()));
        }
    }
    Ok(Value::from_pairs(entries))
}

/// Adds the functions to `environment`.
pub(super) fn install(environment: &mut Environment<'_>, meter: &Arc<Meter>) {
    environment.add_function("dict", dict);
    environment.add_function("range", |Rest(given): Rest<Value>| {
        if given.len() > 3 || !given.iter().all(|value| python::integer(value).is_some()) {
            return refuse("range: expected one to three integers");
        }
        let mut bounds: Vec<Option<i64>> = given.iter().map(python::integer).collect();
        bounds.resize(3, None);
        Range::new(&bounds).map(Value::from_object)
    });
    let counting = meter.clone();
    environment.add_function(
        "cycler",
        move |Rest(items): Rest<Value>| -> Result<Value, Error> {
            items.iter().try_for_each(|item| storable(&counting, item))?;
            if items.is_empty() {
                return refuse("cycler: at least one item is needed");
            }
            let at = AtomicUsize::new(0);
            Ok(Value::from_object(Cycler { items, at }))
        },
    );
    environment.add_function("joiner", |separator: Option<Value>| {
        let separator = separator.unwrap_or_else(|| Value::from(", "));
        match separator.kind() {
            ValueKind::String => Ok(Value::from_object(Joiner {
                separator,
                used: AtomicBool::new(false),
            })),
            other => refuse(format!("joiner: expected a string, found {other}")),
        }
    });
}
