//! Calls of Python functions, with positional and keyword arguments.

use super::meter::{Meter, units};
use super::python;
use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Error, ErrorKind, Value};
use std::borrow::Cow;

/// A filter or a method with its Python signature.
#[derive(Clone, Copy)]
pub(super) struct Function {
    pub name: &'static str,
    /// Names of the parameters, without the first one, which is the operand.
    pub parameters: &'static [&'static str],
    pub call: fn(&Call<'_>) -> Result<Value, Error>,
}

/// The operand and the arguments of a call, in the order of the parameters.
pub(super) struct Call<'a> {
    pub meter: &'a Meter,
    name: &'static str,
    pub subject: &'a Value,
    arguments: Vec<Option<Value>>,
}

/// An error for arguments that Python rejects.
pub(super) fn refuse<T>(what: impl Into<Cow<'static, str>>) -> Result<T, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, what))
}

/// The arguments of a call. Keyword arguments are one value.
pub(super) fn values(Rest(given): Rest<ValueOrKwargs>) -> Vec<Value> {
    given.into_iter().map(ValueOrKwargs::into_value).collect()
}

/// The values of `parameters` when `name` is called with the arguments `given`.
pub(super) fn bind(name: &str, parameters: &[&str], given: &[Value]) -> Result<Vec<Option<Value>>, Error> {
    let wrong = |why: String| Error::new(ErrorKind::TooManyArguments, format!("{name}: {why}"));
    let mut bound = vec![None; parameters.len()];
    for (at, value) in given.iter().enumerate() {
        if !value.is_kwargs() {
            let place = bound.get_mut(at);
            let place = place.ok_or_else(|| wrong(format!("at most {} arguments", parameters.len())))?;
            *place = Some(value.clone());
            continue;
        }
        for key in value.try_iter()? {
            let key = key.as_str().unwrap_or_default();
            let at = parameters.iter().position(|known| *known == key);
            let place = at.and_then(|at| bound.get_mut(at));
            let place = place.ok_or_else(|| wrong(format!("unknown argument `{key}`")))?;
            if place.is_some() {
                return Err(wrong(format!("two values for the argument `{key}`")));
            }
            *place = Some(value.get_attr(key)?);
        }
    }
    Ok(bound)
}

impl Function {
    /// Calls the function. Fails if the arguments do not match the parameters.
    pub(super) fn call(&self, meter: &Meter, subject: &Value, given: &[Value]) -> Result<Value, Error> {
        (self.call)(&Call {
            meter,
            name: self.name,
            subject,
            arguments: bind(self.name, self.parameters, given)?,
        })
    }
}

impl Call<'_> {
    /// The operand as a text: Python's `str`.
    pub(super) fn text(&self) -> Result<Cow<'_, str>, Error> {
        match self.subject.as_str() {
            Some(text) if self.subject.kind() == ValueKind::String => Ok(Cow::Borrowed(text)),
            _ => python::text(self.subject).map(Cow::Owned),
        }
    }

    /// An argument, if it is given.
    pub(super) fn optional(&self, at: usize) -> Option<&Value> {
        self.arguments.get(at)?.as_ref()
    }

    /// An argument, if it is given and not `none`.
    pub(super) fn set(&self, at: usize) -> Option<&Value> {
        self.optional(at).filter(|value| !value.is_none())
    }

    /// A required argument.
    pub(super) fn required(&self, at: usize) -> Result<&Value, Error> {
        self.optional(at).ok_or_else(|| {
            Error::new(
                ErrorKind::MissingArgument,
                format!("{}: missing argument", self.name),
            )
        })
    }

    /// A required text argument.
    pub(super) fn text_at(&self, at: usize) -> Result<&str, Error> {
        let value = self.required(at)?;
        value
            .as_str()
            .map_or_else(|| self.expected("a string", value), Ok)
    }

    /// A text argument, if it is given and not `none`.
    pub(super) fn set_text(&self, at: usize) -> Result<Option<&str>, Error> {
        let text = |value: &'_ Value| value.as_str().is_some();
        match self.set(at) {
            Some(value) if !text(value) => self.expected("a string", value),
            value => Ok(value.and_then(Value::as_str)),
        }
    }

    /// An integer argument, if it is given and not `none`.
    pub(super) fn set_integer(&self, at: usize) -> Result<Option<i64>, Error> {
        match self.set(at) {
            Some(value) => match python::integer(value) {
                Some(n) => Ok(Some(n)),
                None => self.expected("an integer", value),
            },
            None => Ok(None),
        }
    }

    /// The truth value of an argument; false if it is not given.
    pub(super) fn flag(&self, at: usize) -> bool {
        self.optional(at).is_some_and(Value::is_true)
    }

    fn expected<T>(&self, what: &str, found: &Value) -> Result<T, Error> {
        refuse(format!("{}: expected {what}, found {}", self.name, found.kind()))
    }

    /// Counts `count` times `bytes` of work.
    pub(super) fn charge(&self, count: usize, bytes: usize) -> Result<(), Error> {
        self.meter.charge(units(count).saturating_mul(units(bytes)))
    }

    /// Whether the operand is a list or a tuple.
    pub(super) fn is_list(&self) -> bool {
        matches!(self.subject.kind(), ValueKind::Seq | ValueKind::Iterable)
    }
}
