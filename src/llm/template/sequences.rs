//! Filters for lists and objects.

use super::call::{Call, Function, refuse};
use super::meter::NODE;
use super::objects::Group;
use super::python;
use super::text::functions;
use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, Value, filters};
use std::cmp::Ordering;
use std::collections::BTreeSet;

pub(super) const FILTERS: &[Function] = functions! {
    "batch"("linecount", "fill_with") => batch;
    "dictsort"("case_sensitive", "by", "reverse") => |c| {
        if c.subject.kind() != ValueKind::Map {
            return refuse(format!("dictsort: expected a mapping, found {}", c.subject.kind()));
        }
        let at = match c.set_text(1)?.unwrap_or("key") {
            "key" => 0,
            "value" => 1,
            _ => return refuse("dictsort: `by` must be \"key\" or \"value\""),
        };
        let pairs = python::items(c.subject).map(|pair| {
            let key = fold(pair.get(at).cloned().unwrap_or_default(), c.flag(0));
            (key, Value::from(Tuple::from(pair)))
        });
        Ok(values(sorted(pairs.collect(), c.flag(2))?))
    };
    "first"() => |c| match c.subject.is_undefined() {
        true => Ok(Value::UNDEFINED),
        false => filters::first(c.subject),
    };
    "groupby"("attribute", "default", "case_sensitive") => group_by;
    "items"() => |c| match c.subject.kind() {
        ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
        ValueKind::Map => Ok(python::items(c.subject).map(|pair| Value::from(Tuple::from(pair))).collect()),
        other => refuse(format!("items: expected a mapping, found {other}")),
    };
    "join"("d", "attribute") => join;
    "last"() => |c| match c.subject.is_undefined() {
        true => Ok(Value::UNDEFINED),
        false => filters::last(c.subject.clone()),
    };
    "max"("case_sensitive", "attribute") => |c| extreme(c, true);
    "min"("case_sensitive", "attribute") => |c| extreme(c, false);
    "slice"("slices", "fill_with") => slice;
    "sort"("reverse", "case_sensitive", "attribute") => |c| {
        let mut keyed = Vec::new();
        for item in c.subject.try_iter()? {
            let paths = c.set(2).map(python::text).transpose()?;
            let key = match &paths {
                Some(paths) => {
                    let parts = paths.split(',').map(|path| Ok(fold(attribute_of(&item, path)?, c.flag(1))));
                    Value::from(parts.collect::<Result<Vec<_>, Error>>()?)
                }
                None => fold(item.clone(), c.flag(1)),
            };
            keyed.push((key, item));
        }
        Ok(values(sorted(keyed, c.flag(0))?))
    };
    "unique"("case_sensitive", "attribute") => |c| {
        let mut seen = BTreeSet::new();
        let mut keyed = keyed(c, 0, 1, None)?;
        keyed.retain(|(key, _)| seen.insert(key.clone()));
        Ok(values(keyed))
    };
};

/// `value`. If it is a text, it is converted to lower case unless the case matters.
fn fold(value: Value, case_sensitive: bool) -> Value {
    match value.as_str() {
        Some(text) if !case_sensitive => Value::from(text.to_lowercase()),
        _ => value,
    }
}

/// The value at a path such as `a.b.0`.
pub(super) fn attribute_of(item: &Value, path: &str) -> Result<Value, Error> {
    path.split('.')
        .try_fold(item.clone(), |item, part| match part.parse::<usize>() {
            Ok(at) => item.get_item(&Value::from(at)),
            Err(_) => item.get_attr(part),
        })
}

/// The items of the operand with their keys. The key is the item itself, or the attribute named by
/// the argument `attribute`.
fn keyed(
    c: &Call<'_>,
    case_sensitive: usize,
    attribute: usize,
    default: Option<&Value>,
) -> Result<Vec<(Value, Value)>, Error> {
    let path = c.set(attribute).map(python::text).transpose()?;
    let mut all = Vec::new();
    for item in c.subject.try_iter()? {
        let mut key = match &path {
            Some(path) => attribute_of(&item, path)?,
            None => item.clone(),
        };
        if let Some(default) = default.filter(|_| key.is_undefined()) {
            key = default.clone();
        }
        all.push((fold(key, c.flag(case_sensitive)), item));
    }
    Ok(all)
}

fn values(keyed: Vec<(Value, Value)>) -> Value {
    Value::from(keyed.into_iter().map(|(_, value)| value).collect::<Vec<_>>())
}

/// A stable sort by the keys. Fails for keys that Python cannot compare.
fn sorted(mut keyed: Vec<(Value, Value)>, reverse: bool) -> Result<Vec<(Value, Value)>, Error> {
    for pair in keyed.windows(2) {
        if let [(a, _), (b, _)] = pair {
            python::check_comparable(a, b)?;
        }
    }
    let order = |a: &Value, b: &Value| if reverse { b.cmp(a) } else { a.cmp(b) };
    keyed.sort_by(|(a, _), (b, _)| order(a, b));
    Ok(keyed)
}

/// The first item with the smallest or the largest key.
fn extreme(c: &Call<'_>, largest: bool) -> Result<Value, Error> {
    let first = sorted(keyed(c, 0, 1, None)?, largest)?.into_iter().next();
    Ok(first.map_or(Value::UNDEFINED, |(_, item)| item))
}

fn group_by(c: &Call<'_>) -> Result<Value, Error> {
    let path = python::text(c.required(0)?)?;
    let mut groups: Vec<(Value, Group)> = Vec::new();
    for (key, item) in sorted(keyed(c, 2, 0, c.set(1))?, false)? {
        if let Some((_, group)) = groups
            .last_mut()
            .filter(|(last, _)| last.cmp(&key) == Ordering::Equal)
        {
            group.list.push(item);
            continue;
        }
        let own = attribute_of(&item, &path)?;
        let grouper = if own.is_undefined() { key.clone() } else { own };
        let list = vec![item];
        groups.push((key, Group { grouper, list }));
    }
    Ok(groups
        .into_iter()
        .map(|(_, group)| Value::from_object(group))
        .collect())
}

fn join(c: &Call<'_>) -> Result<Value, Error> {
    let separator = c.optional(0).map(python::text).transpose()?.unwrap_or_default();
    let attribute = c.set(1).map(python::text).transpose()?;
    let mut out = String::new();
    for (at, item) in c.subject.try_iter()?.enumerate() {
        if at > 0 {
            c.charge(1, separator.len())?;
            out.push_str(&separator);
        }
        let item = match &attribute {
            Some(path) => attribute_of(&item, path)?,
            None => item,
        };
        let text = python::text(&item)?;
        c.charge(1, text.len())?;
        out.push_str(&text);
    }
    Ok(Value::from(out))
}

/// A positive size.
fn size(c: &Call<'_>) -> Result<usize, Error> {
    c.required(0)?;
    let size = c
        .set_integer(0)?
        .and_then(|n| usize::try_from(n).ok())
        .filter(|n| *n > 0);
    size.map_or_else(
        || refuse("the size of a batch or the number of slices must be positive"),
        Ok,
    )
}

fn batch(c: &Call<'_>) -> Result<Value, Error> {
    let size = size(c)?;
    let items: Vec<Value> = c.subject.try_iter()?.collect();
    let mut batches: Vec<Vec<Value>> = items.chunks(size).map(<[Value]>::to_vec).collect();
    if let (Some(fill), Some(last)) = (c.set(1), batches.last_mut()) {
        let missing = size - last.len();
        c.meter
            .charge(super::meter::units(missing).saturating_mul(NODE))?;
        last.extend(std::iter::repeat_n(fill.clone(), missing));
    }
    Ok(batches.into_iter().map(Value::from).collect())
}

fn slice(c: &Call<'_>) -> Result<Value, Error> {
    let count = size(c)?;
    c.meter.charge(super::meter::units(count).saturating_mul(NODE))?;
    let items: Vec<Value> = c.subject.try_iter()?.collect();
    let (each, extra) = (items.len() / count, items.len() % count);
    let mut rest = items.as_slice();
    let mut slices = Vec::new();
    for at in 0..count {
        let (part, more) = rest
            .split_at_checked(each + usize::from(at < extra))
            .unwrap_or((rest, &[]));
        let mut part = part.to_vec();
        part.extend(c.set(1).filter(|_| at >= extra).cloned());
        slices.push(Value::from(part));
        rest = more;
    }
    Ok(Value::from(slices))
}
