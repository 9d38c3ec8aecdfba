//! Sets of objects. A set is a list of shapes; it contains the objects that have one of them.

use super::logic::{Claim, Goal, Kind, Outcome, Schemas, impossible, joined, limited};
use super::scalar::{Rx, Scalar};
use super::text;
use serde_json::{Map, Value};

/// Maximum number of classes of names that patterns distinguish.
const MAX_CLASSES: usize = 256;

/// Names that are not listed.
#[derive(Clone, Debug)]
pub struct Others<'s> {
    pub names: Rx,
    /// The claims that members with such names must satisfy.
    pub goal: Goal<'s>,
    /// The schema allows such members by `additionalProperties` or a pattern.
    allowed: bool,
}

/// The objects that meet all of these conditions.
#[derive(Clone, Debug)]
pub struct ObjectShape<'s> {
    /// Members by name, in the order in which they are written, with the claims that their values
    /// must satisfy.
    pub named: Vec<(String, Goal<'s>)>,
    /// Names of members that must exist.
    pub required: Vec<String>,
    /// Disjoint classes of all other names.
    pub others: Vec<Others<'s>>,
    /// Declares members, so that other members must be allowed.
    pub declares: bool,
    /// Minimum number of members.
    pub least: usize,
    /// Maximum number of members.
    pub most: usize,
}

impl<'s> ObjectShape<'s> {
    fn any() -> Self {
        Self {
            named: Vec::new(),
            required: Vec::new(),
            others: vec![Others {
                names: Rx::All,
                goal: Vec::new(),
                allowed: false,
            }],
            declares: false,
            least: 0,
            most: usize::MAX,
        }
    }

    /// Objects with the member `name`, or without it.
    fn with(name: &str, exists: bool) -> Self {
        let mut shape = Self::any();
        match exists {
            true => shape.required.push(name.to_owned()),
            false => shape.named.push((name.to_owned(), vec![impossible()])),
        }
        shape
    }

    /// The claims that the member `name` must satisfy.
    pub fn goal(&self, name: &str) -> Outcome<Goal<'s>> {
        if let Some((_, goal)) = self.named.iter().find(|(n, _)| n == name) {
            return Ok(goal.clone());
        }
        for others in &self.others {
            if others.names.has(name)? {
                return Ok(others.goal.clone());
            }
        }
        Ok(vec![impossible()])
    }

    /// Objects that have both shapes. `None` if there are certainly none.
    fn and(&self, other: &Self) -> Outcome<Option<Self>> {
        let mut named: Vec<(String, Goal<'s>)> = Vec::new();
        for (name, goal) in &self.named {
            named.push((name.clone(), joined(goal, &other.goal(name)?)));
        }
        for (name, goal) in &other.named {
            if !self.named.iter().any(|(n, _)| n == name) {
                named.push((name.clone(), joined(&self.goal(name)?, goal)));
            }
        }
        let mut required = self.required.clone();
        required.extend(
            other
                .required
                .iter()
                .filter(|n| !self.required.contains(n))
                .cloned(),
        );
        let mut others = Vec::new();
        for a in &self.others {
            for b in &other.others {
                let names = a.names.and(&b.names);
                let plain = matches!(a.names, Rx::All) || matches!(b.names, Rx::All);
                if plain || names.may_match() {
                    others.push(Others {
                        names,
                        goal: joined(&a.goal, &b.goal),
                        allowed: a.allowed || b.allowed,
                    });
                }
            }
        }
        let (least, most) = (self.least.max(other.least), self.most.min(other.most));
        if others.len() > MAX_CLASSES {
            return Err("too many patterns of one object overlap".to_owned());
        }
        let both = Self {
            named,
            required,
            others,
            declares: self.declares || other.declares,
            least,
            most,
        };
        Ok(Some(both).filter(|b| least <= most && b.required.len() <= most))
    }

    /// The named and the required members with their claims, in the order in which they are
    /// written.
    pub fn members(&self) -> Outcome<Vec<(String, Goal<'s>)>> {
        let mut members = self.named.clone();
        for name in &self.required {
            if !members.iter().any(|(n, _)| n == name) {
                members.push((name.clone(), self.goal(name)?));
            }
        }
        Ok(members)
    }

    /// The classes of names that members may have besides those of [`ObjectShape::members`]. In
    /// JSON Schema all are open by default; here only if no member is declared.
    pub fn open(&self) -> impl Iterator<Item = &Others<'s>> {
        self.others.iter().filter(|o| o.allowed || !self.declares)
    }

    /// Whether the object may have a member, of those that `schemas` can express.
    pub fn may_have_members(&self, schemas: &Schemas<'s>) -> Outcome<bool> {
        let named = self.members()?.into_iter().map(|(_, goal)| goal);
        let open = self
            .open()
            .filter(|o| o.names.may_match())
            .map(|o| o.goal.clone());
        for goal in named.chain(open) {
            if self.most > 0 && schemas.may_be_met(&goal)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Objects as a kind of value.
#[derive(Clone, Copy, Debug)]
pub struct Objects;

/// The keywords that together describe the members.
const MEMBERS: [&str; 3] = ["properties", "patternProperties", "additionalProperties"];

impl Objects {
    /// Objects whose members all satisfy their schemas.
    fn members<'s>(
        schemas: &Schemas<'s>,
        claim: &Claim<'s>,
        map: &'s Map<String, Value>,
    ) -> Outcome<Vec<ObjectShape<'s>>> {
        let [properties, patterns, additional] = MEMBERS;
        let mut shape = ObjectShape::any();
        shape.declares = map.contains_key(properties) || map.contains_key(patterns);
        // Classes of names, their claims, and whether a pattern matches them.
        let mut classes: Vec<(Rx, Goal<'s>, bool)> = vec![(Rx::All, Vec::new(), false)];
        if let Some(value) = map.get(patterns) {
            for (pattern, schema) in claim.object(patterns, value)? {
                let found = text::matching(pattern);
                let class = found.map_err(|e| claim.fault(patterns, format!("{pattern:?}: {e}")))?;
                let other = Rx::Some(super::scalar::other_texts(class.clone()));
                let class = Rx::Some(class);
                let own = claim.inner(schema, &[patterns, pattern], true);
                let mut split = Vec::new();
                for (names, goal, matched) in classes {
                    schemas.step()?;
                    split.push((names.and(&class), joined(&goal, std::slice::from_ref(&own)), true));
                    split.push((names.and(&other), goal, matched));
                }
                split.retain(|(names, ..)| names.may_match());
                if split.len() > MAX_CLASSES {
                    return Err(claim.fault(patterns, "too many of its patterns overlap"));
                }
                classes = split;
            }
        }
        if let Some(value) = map.get(properties) {
            for (name, schema) in claim.object(properties, value)? {
                let own = claim.inner(schema, &[properties, name], true);
                let mut goal: &[Claim<'s>] = &[];
                for (class, own, _) in &classes {
                    if class.has(name)? {
                        goal = own;
                        break;
                    }
                }
                shape.named.push((name.clone(), joined(&[own], goal)));
            }
        }
        let rest = map.get(additional).map(|v| claim.inner(v, &[additional], true));
        let others = classes.into_iter().map(|(names, mut goal, matched)| {
            goal.extend(rest.clone().filter(|_| !matched));
            let allowed = matched || rest.is_some();
            Others { names, goal, allowed }
        });
        shape.others = others.collect();
        Ok(vec![shape])
    }

    /// Objects with a member that violates its schema.
    fn broken_members<'s>(claim: &Claim<'s>, key: &str, value: &'s Value) -> Outcome<Vec<ObjectShape<'s>>> {
        let [properties, _, additional] = MEMBERS;
        let harmless = |v: &Value| *v == Value::Bool(true) || v.as_object().is_some_and(Map::is_empty);
        if key == additional {
            return match harmless(value) {
                true => Ok(Vec::new()),
                false => Err(claim.beyond(key)),
            };
        }
        let mut shapes = Vec::new();
        for (name, schema) in claim.object(key, value)?.iter().filter(|(_, v)| !harmless(v)) {
            if key != properties {
                return Err(claim.beyond(key));
            }
            let mut shape = ObjectShape::with(name, true);
            let broken = claim.inner(schema, &[key, name], false);
            shape.named.push((name.clone(), vec![broken]));
            shapes.push(shape);
        }
        Ok(shapes)
    }

    /// Objects that meet what the member `name` requires: other members, or a schema.
    fn dependency<'s>(
        schemas: &Schemas<'s>,
        claim: &Claim<'s>,
        key: &str,
        (name, needed): (&str, &'s Value),
    ) -> Outcome<Vec<ObjectShape<'s>>> {
        let exists = vec![ObjectShape::with(name, true)];
        let then = match needed {
            Value::Array(_) => Self::required(claim, &claim.names(key, needed)?)?,
            _ => schemas.eval(&Self, &claim.inner(needed, &[key, name], claim.holds))?,
        };
        let both = Self.and(&exists, &then)?;
        Ok(match claim.holds {
            true => Self.or(vec![ObjectShape::with(name, false)], both),
            false => both,
        })
    }

    /// Objects with all these members, or without one of them.
    fn required<'s>(claim: &Claim<'s>, names: &[&str]) -> Outcome<Vec<ObjectShape<'s>>> {
        let mut set = Self.all(claim.holds);
        for name in names {
            let found = vec![ObjectShape::with(name, claim.holds)];
            set = if claim.holds {
                Self.and(&set, &found)?
            } else {
                Self.or(set, found)
            };
        }
        Ok(set)
    }

    /// Objects whose member names satisfy a schema.
    fn names<'s>(
        schemas: &Schemas<'s>,
        claim: &Claim<'s>,
        key: &str,
        value: &'s Value,
    ) -> Outcome<Vec<ObjectShape<'s>>> {
        if !claim.holds {
            return Err(claim.beyond(key));
        }
        let names = schemas.eval(&Scalar::Text, &claim.inner(value, &[key], true))?;
        let mut shape = ObjectShape::any();
        match names {
            Rx::None => shape.most = 0,
            Rx::All => {}
            Rx::Some(_) => {
                shape.others = vec![Others {
                    names,
                    goal: Vec::new(),
                    allowed: false,
                }];
            }
        }
        Ok(vec![shape])
    }
}

impl<'s> Kind<'s> for Objects {
    type Set = Vec<ObjectShape<'s>>;

    fn all(&self, all: bool) -> Self::Set {
        if all { vec![ObjectShape::any()] } else { Vec::new() }
    }

    fn and(&self, a: &Self::Set, b: &Self::Set) -> Outcome<Self::Set> {
        limited("object", a.len().saturating_mul(b.len()))?;
        let pairs = a.iter().flat_map(|a| b.iter().map(move |b| a.and(b)));
        pairs.filter_map(Result::transpose).collect()
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
            let mut possible = shape.least == 0 || shape.may_have_members(schemas)?;
            possible &= shape.open().next().is_some() || shape.least <= shape.members()?.len();
            for name in &shape.required {
                possible = possible && schemas.may_be_met(&shape.goal(name)?)?;
            }
            if possible {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn of_type(&self, name: &str, holds: bool) -> Self::Set {
        self.all((name == "object") == holds)
    }

    fn constant(&self, claim: &Claim<'s>) -> Outcome<Self::Set> {
        let Value::Object(map) = claim.schema else {
            return Ok(self.all(!claim.holds));
        };
        let member = |name: &str, value| Claim {
            constant: true,
            ..claim.inner(value, &[name], claim.holds)
        };
        if claim.holds {
            return Ok(vec![ObjectShape {
                named: map.iter().map(|(n, v)| (n.clone(), vec![member(n, v)])).collect(),
                required: map.keys().cloned().collect(),
                others: Vec::new(),
                declares: false,
                least: map.len(),
                most: map.len(),
            }]);
        }
        // An object that differs has more members, lacks one, or has one with another value.
        let mut shapes = vec![ObjectShape {
            least: map.len() + 1,
            ..ObjectShape::any()
        }];
        for (name, value) in map {
            shapes.push(ObjectShape::with(name, false));
            let mut other = ObjectShape::with(name, true);
            other.named.push((name.clone(), vec![member(name, value)]));
            shapes.push(other);
        }
        Ok(shapes)
    }

    fn keyword(
        &self,
        schemas: &Schemas<'s>,
        claim: &Claim<'s>,
        map: &'s Map<String, Value>,
        key: &'s str,
        value: &'s Value,
    ) -> Outcome<Option<Self::Set>> {
        let holds = claim.holds;
        let sized = |least, most| {
            Ok(Some(vec![ObjectShape {
                least,
                most,
                ..ObjectShape::any()
            }]))
        };
        match key {
            "properties" | "patternProperties" | "additionalProperties" if holds => {
                let first = MEMBERS.iter().find(|name| map.contains_key(**name));
                let first = first.is_some_and(|name| *name == key);
                first.then(|| Self::members(schemas, claim, map)).transpose()
            }
            "properties" | "patternProperties" | "additionalProperties" => {
                Self::broken_members(claim, key, value).map(Some)
            }
            // In draft 3, this is a flag of the member.
            "required" if value.is_boolean() => Ok(None),
            "required" => Self::required(claim, &claim.names(key, value)?).map(Some),
            "minProperties" | "maxProperties" => {
                let n = claim.count(key, value)?;
                match (key == "minProperties", holds) {
                    (true, true) => sized(n, usize::MAX),
                    (false, true) => sized(0, n),
                    (false, false) => sized(n + 1, usize::MAX),
                    (true, false) if n == 0 => Ok(Some(Vec::new())),
                    (true, false) => sized(0, n - 1),
                }
            }
            "propertyNames" => Self::names(schemas, claim, key, value).map(Some),
            "dependentRequired" | "dependentSchemas" | "dependencies" => {
                let mut set = self.all(holds);
                for (name, needed) in claim.object(key, value)? {
                    let found = Self::dependency(schemas, claim, key, (name, needed))?;
                    set = if holds {
                        self.and(&set, &found)?
                    } else {
                        self.or(set, found)
                    };
                }
                Ok(Some(set))
            }
            "unevaluatedProperties" if *value != Value::Bool(true) => Err(claim.beyond(key)),
            _ => Ok(None),
        }
    }
}
