//! Sets of arrays. A set is a list of shapes; it contains the arrays that have one of them.

use super::logic::{Claim, Goal, Kind, Outcome, Schemas, joined, limited};
use serde_json::{Map, Value};
use std::rc::Rc;

/// The arrays that meet all of these conditions.
#[derive(Clone, Debug)]
pub struct ArrayShape<'s> {
    /// The claims that each of the first elements must satisfy.
    pub first: Vec<Goal<'s>>,
    /// The claims that every other element must satisfy.
    pub rest: Goal<'s>,
    /// Minimum number of elements.
    pub least: usize,
    /// Maximum number of elements.
    pub most: usize,
    /// The place of the schema whose `uniqueItems` requires that elements differ.
    pub distinct: Option<Rc<str>>,
}

impl<'s> ArrayShape<'s> {
    fn any() -> Self {
        Self {
            first: Vec::new(),
            rest: Vec::new(),
            least: 0,
            most: usize::MAX,
            distinct: None,
        }
    }

    /// The claims that the element at `index` must satisfy.
    pub fn goal(&self, index: usize) -> &Goal<'s> {
        self.first.get(index).unwrap_or(&self.rest)
    }

    fn and(&self, other: &Self) -> Option<Self> {
        let count = self.first.len().max(other.first.len());
        let (least, most) = (self.least.max(other.least), self.most.min(other.most));
        (least <= most).then(|| Self {
            first: (0..count).map(|i| joined(self.goal(i), other.goal(i))).collect(),
            rest: joined(&self.rest, &other.rest),
            least,
            most,
            distinct: self.distinct.clone().or_else(|| other.distinct.clone()),
        })
    }
}

/// Arrays as a kind of value.
#[derive(Clone, Copy, Debug)]
pub struct Arrays;

/// The keywords that together describe the elements.
const ELEMENTS: [&str; 3] = ["prefixItems", "items", "additionalItems"];

/// The schema of all elements after the first ones, and its keyword.
type Rest<'s> = (Claim<'s>, &'static str);

impl Arrays {
    /// The schemas of the first elements, and the schema of all others with its keyword.
    fn schemas<'s>(
        claim: &Claim<'s>,
        map: &'s Map<String, Value>,
    ) -> Outcome<(Vec<Claim<'s>>, Option<Rest<'s>>)> {
        let [prefix, items, additional] = ELEMENTS;
        // In older drafts, `items` may list the schemas of the first elements.
        let (first, rest) = match map.get(items) {
            Some(Value::Array(list)) => (Some((items, list.as_slice())), additional),
            _ => {
                let list = map.get(prefix).map(|v| claim.list(prefix, v)).transpose()?;
                (list.map(|list| (prefix, list)), items)
            }
        };
        let mut claims = Vec::new();
        if let Some((key, list)) = first {
            let schemas = list.iter().enumerate();
            claims.extend(schemas.map(|(i, v)| claim.inner(v, &[key, &i.to_string()], claim.holds)));
        }
        let rest = map
            .get(rest)
            .map(|v| (claim.inner(v, &[rest], claim.holds), rest));
        Ok((claims, rest))
    }

    /// Arrays whose elements all satisfy their schemas, or, if the claim is negated, arrays with an
    /// element that does not.
    fn elements<'s>(claim: &Claim<'s>, map: &'s Map<String, Value>) -> Outcome<Vec<ArrayShape<'s>>> {
        let (first, rest) = Self::schemas(claim, map)?;
        let count = first.len();
        if claim.holds {
            return Ok(vec![ArrayShape {
                first: first.into_iter().map(|c| vec![c]).collect(),
                rest: rest.map(|(c, _)| c).into_iter().collect(),
                ..ArrayShape::any()
            }]);
        }
        limited("array", count)?;
        let broken = |(i, claim): (usize, Claim<'s>)| ArrayShape {
            first: (0..=i)
                .map(|at| if at == i { vec![claim.clone()] } else { Vec::new() })
                .collect(),
            least: i + 1,
            ..ArrayShape::any()
        };
        let mut shapes: Vec<_> = first.into_iter().enumerate().map(broken).collect();
        match rest {
            Some((rest, _)) if *rest.schema == Value::Bool(false) => {
                shapes.push(ArrayShape {
                    least: count + 1,
                    ..ArrayShape::any()
                });
            }
            Some((rest, key)) if *rest.schema != Value::Bool(true) => return Err(claim.beyond(key)),
            _ => {}
        }
        Ok(shapes)
    }
}

impl<'s> Kind<'s> for Arrays {
    type Set = Vec<ArrayShape<'s>>;

    fn all(&self, all: bool) -> Self::Set {
        if all { vec![ArrayShape::any()] } else { Vec::new() }
    }

    fn and(&self, a: &Self::Set, b: &Self::Set) -> Outcome<Self::Set> {
        limited("array", a.len().saturating_mul(b.len()))?;
        Ok(a.iter().flat_map(|a| b.iter().filter_map(|b| a.and(b))).collect())
    }

    fn or(&self, mut a: Self::Set, b: Self::Set) -> Self::Set {
        a.extend(b);
        a
    }

    fn is_none(&self, set: &Self::Set) -> bool {
        set.is_empty()
    }

    fn may_hold(&self, schemas: &Schemas<'s>, set: &Self::Set) -> Outcome<bool> {
        for shape in set {
            // All elements after the first ones have the same claims.
            let mut possible = true;
            for i in 0..shape.least.min(shape.first.len() + 1) {
                possible = possible && schemas.may_be_met(shape.goal(i))?;
            }
            if possible {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn of_type(&self, name: &str, holds: bool) -> Self::Set {
        self.all((name == "array") == holds)
    }

    fn constant(&self, claim: &Claim<'s>) -> Outcome<Self::Set> {
        let Value::Array(list) = claim.schema else {
            return Ok(self.all(!claim.holds));
        };
        let element = |i: usize, value| Claim {
            constant: true,
            ..claim.inner(value, &[&i.to_string()], claim.holds)
        };
        let count = list.len();
        let elements = list.iter().enumerate().map(|(i, v)| element(i, v));
        if claim.holds {
            return Ok(vec![ArrayShape {
                first: elements.map(|c| vec![c]).collect(),
                least: count,
                most: count,
                ..ArrayShape::any()
            }]);
        }
        limited("array", count)?;
        // An array that differs is shorter or longer, or one of its elements differs.
        let mut shapes = vec![ArrayShape {
            least: count + 1,
            ..ArrayShape::any()
        }];
        if let Some(most) = count.checked_sub(1) {
            shapes.push(ArrayShape {
                most,
                ..ArrayShape::any()
            });
        }
        shapes.extend(elements.enumerate().map(|(i, claim)| {
            ArrayShape {
                first: (0..=i)
                    .map(|at| if at == i { vec![claim.clone()] } else { Vec::new() })
                    .collect(),
                least: i + 1,
                ..ArrayShape::any()
            }
        }));
        Ok(shapes)
    }

    fn keyword(
        &self,
        _: &Schemas<'s>,
        claim: &Claim<'s>,
        map: &'s Map<String, Value>,
        key: &'s str,
        value: &'s Value,
    ) -> Outcome<Option<Self::Set>> {
        let sized = |least, most| {
            Ok(Some(vec![ArrayShape {
                least,
                most,
                ..ArrayShape::any()
            }]))
        };
        match key {
            "prefixItems" | "items" | "additionalItems" => {
                let first = ELEMENTS.iter().find(|name| map.contains_key(**name));
                let first = first.is_some_and(|name| *name == key);
                first.then(|| Self::elements(claim, map)).transpose()
            }
            "minItems" | "maxItems" => {
                let n = claim.count(key, value)?;
                match (key == "minItems", claim.holds) {
                    (true, true) => sized(n, usize::MAX),
                    (false, true) => sized(0, n),
                    (false, false) => sized(n + 1, usize::MAX),
                    (true, false) if n == 0 => Ok(Some(Vec::new())),
                    (true, false) => sized(0, n - 1),
                }
            }
            "uniqueItems" => match value {
                Value::Bool(false) => Ok(None),
                Value::Bool(true) if claim.holds => {
                    let distinct = Some(claim.at.clone());
                    Ok(Some(vec![ArrayShape {
                        distinct,
                        ..ArrayShape::any()
                    }]))
                }
                Value::Bool(true) => Err(claim.beyond(key)),
                other => Err(claim.expected(key, "true or false", other)),
            },
            "contains" => Err(claim.beyond(key)),
            "unevaluatedItems" if *value != Value::Bool(true) => Err(claim.beyond(key)),
            _ => Ok(None),
        }
    }
}
