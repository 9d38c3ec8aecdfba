//! The logic of a schema: which values it allows, one kind of value at a time.
//!
//! A schema is a formula: its keywords are joined by *and*, the schemas in `anyOf` by *or*, and so
//! on. Negations are pushed down to single keywords, so each kind of value sees only formulas
//! without negations. Schemas of elements and members are not evaluated here. They stay lists of
//! schemas, and an element must satisfy all schemas of its list.

use super::array::Arrays;
use super::object::Objects;
use super::scalar::Scalar;
use serde_json::{Map, Value};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// The error says what is wrong or cannot be expressed, and where.
pub type Outcome<T> = Result<T, String>;

/// Maximum nesting of schemas that apply to the same value, such as `allOf` in `allOf`.
const DEPTH: usize = 100;
/// Maximum number of schema evaluations in total.
const STEPS: usize = 500_000;
/// Maximum number of alternatives of `oneOf`, each of which is compared with all others.
const MAX_EXCLUSIVE: usize = 500;
/// Maximum number of shapes of the arrays, or of the objects, that a value may have.
const MAX_SHAPES: usize = 1000;
/// Maximum nesting of elements and members that is searched for contradictions.
const LEVELS: usize = 8;

/// Identifies a claim.
pub type Key = (usize, bool, bool);

/// A schema that a value must satisfy, or a constant that it must equal. May be negated.
#[derive(Clone, Debug)]
pub struct Claim<'s> {
    pub schema: &'s Value,
    /// JSON pointer to the schema.
    pub at: Rc<str>,
    /// False if the claim is negated.
    pub holds: bool,
    /// `schema` is the constant.
    pub constant: bool,
}

impl PartialEq for Claim<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

/// Claims that a value must satisfy together. Every value satisfies an empty list.
pub type Goal<'s> = Vec<Claim<'s>>;

/// A claim that no value satisfies.
pub fn impossible<'s>() -> Claim<'s> {
    static FALSE: Value = Value::Bool(false);
    Claim {
        schema: &FALSE,
        at: "".into(),
        holds: true,
        constant: false,
    }
}

/// Fails if there are too many shapes of an `"array"` or `"object"`.
pub fn limited(what: &str, count: usize) -> Outcome<()> {
    if count > MAX_SHAPES {
        return Err(format!(
            "it has too many combinations of alternatives for one {what}"
        ));
    }
    Ok(())
}

/// The claims of both lists without duplicates.
pub fn joined<'s>(a: &[Claim<'s>], b: &[Claim<'s>]) -> Goal<'s> {
    let mut all = a.to_vec();
    all.extend(b.iter().filter(|c| !a.contains(c)).cloned());
    all
}

impl<'s> Claim<'s> {
    /// Contains the address of the schema, which never moves.
    pub fn key(&self) -> Key {
        (std::ptr::from_ref(self.schema).addr(), self.holds, self.constant)
    }

    /// A claim about the same value or a part of it.
    pub fn inner(&self, schema: &'s Value, path: &[&str], holds: bool) -> Self {
        let mut at = self.at.to_string();
        for part in path {
            at.push('/');
            at += &part.replace('~', "~0").replace('/', "~1");
        }
        Self {
            schema,
            at: at.into(),
            holds,
            constant: false,
        }
    }

    fn constant(&self, value: &'s Value, path: &[&str]) -> Self {
        Self {
            constant: true,
            ..self.inner(value, path, self.holds)
        }
    }

    /// The string that a value must equal.
    fn text(&self) -> Option<&'s str> {
        self.schema.get("const").and_then(Value::as_str)
    }

    /// An error about a keyword.
    pub fn fault(&self, key: &str, what: impl AsRef<str>) -> String {
        format!("`{key}` at #{}: {}", self.at, what.as_ref())
    }

    /// An error about a keyword that is valid but cannot be expressed.
    pub fn beyond(&self, key: &str) -> String {
        let what = match self.holds {
            true => "is not supported",
            false => "cannot be negated",
        };
        format!("`{key}` at #{} {what}", self.at)
    }

    /// The object under a keyword.
    pub fn object(&self, key: &str, value: &'s Value) -> Outcome<&'s Map<String, Value>> {
        value
            .as_object()
            .ok_or_else(|| self.expected(key, "an object", value))
    }

    /// The list under a keyword.
    pub fn list(&self, key: &str, value: &'s Value) -> Outcome<&'s [Value]> {
        let list = value.as_array().map(Vec::as_slice);
        list.ok_or_else(|| self.expected(key, "a list", value))
    }

    /// The names under a keyword.
    pub fn names(&self, key: &str, value: &'s Value) -> Outcome<Vec<&'s str>> {
        let names = self.list(key, value)?.iter().map(|v| {
            let name = v.as_str();
            name.ok_or_else(|| self.expected(key, "a list of strings", value))
        });
        names.collect()
    }

    /// The count under a keyword.
    pub fn count(&self, key: &str, value: &Value) -> Outcome<usize> {
        let whole = value
            .as_f64()
            .filter(|v| v.fract() == 0.0 && (0.0..1e9).contains(v));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a small whole number"
        )]
        let count = whole.map(|v| v as usize);
        count.ok_or_else(|| self.expected(key, "a whole number from 0 to 10^9", value))
    }

    pub fn expected(&self, key: &str, what: &str, found: &Value) -> String {
        let mut text = found.to_string();
        if let Some((end, _)) = text.char_indices().nth(60) {
            text.truncate(end);
            text.push_str("...");
        }
        self.fault(key, format!("expected {what}, found {text}"))
    }
}

/// A kind of value, and how sets of such values are described.
pub trait Kind<'s> {
    /// A set of values.
    type Set: Clone;

    /// All values of this kind, or none.
    fn all(&self, all: bool) -> Self::Set;
    fn and(&self, a: &Self::Set, b: &Self::Set) -> Outcome<Self::Set>;
    fn or(&self, a: Self::Set, b: Self::Set) -> Self::Set;
    /// True for the set without values.
    fn is_none(&self, set: &Self::Set) -> bool;
    /// False if the set is known to be empty. Unlike `is_none`, this also examines its parts.
    fn may_hold(&self, schemas: &Schemas<'s>, set: &Self::Set) -> Outcome<bool>;
    /// The values of a type, or, if `holds` is false, all others.
    fn of_type(&self, name: &str, holds: bool) -> Self::Set;
    /// The values that a claim about a constant allows.
    fn constant(&self, claim: &Claim<'s>) -> Outcome<Self::Set>;
    /// The values that a keyword allows. `None` if it does not constrain this kind.
    fn keyword(
        &self,
        schemas: &Schemas<'s>,
        claim: &Claim<'s>,
        map: &'s Map<String, Value>,
        key: &'s str,
        value: &'s Value,
    ) -> Outcome<Option<Self::Set>>;
}

/// A schema with everything that it refers to.
pub struct Schemas<'s> {
    root: &'s Value,
    depth: Cell<usize>,
    steps: Cell<usize>,
    /// Current nesting of calls of [`Schemas::may_be_met`].
    level: Cell<usize>,
    met: RefCell<HashMap<Vec<Key>, bool>>,
}

impl<'s> Schemas<'s> {
    pub fn new(root: &'s Value) -> Self {
        Self {
            root,
            depth: Cell::new(0),
            steps: Cell::new(0),
            level: Cell::new(0),
            met: RefCell::default(),
        }
    }

    /// The claim that a value satisfies the whole schema.
    pub fn claim(&self) -> Claim<'s> {
        Claim {
            schema: self.root,
            at: "".into(),
            holds: true,
            constant: false,
        }
    }

    /// Counts an evaluation. Fails after too many.
    pub fn step(&self) -> Outcome<()> {
        self.steps.set(self.steps.get() + 1);
        match self.steps.get() {
            0..=STEPS => Ok(()),
            _ => Err("it has too many combinations of alternatives".to_owned()),
        }
    }

    /// False if no value can satisfy all claims. Contradictions in deeply nested values are not
    /// found.
    pub fn may_be_met(&self, goal: &[Claim<'s>]) -> Outcome<bool> {
        if goal.is_empty() || self.level.get() >= LEVELS {
            return Ok(true);
        }
        let key: Vec<Key> = goal.iter().map(Claim::key).collect();
        if let Some(known) = self.met.borrow().get(&key) {
            return Ok(*known);
        }
        self.level.set(self.level.get() + 1);
        let found = self.looked_at(goal);
        self.level.set(self.level.get() - 1);
        // Where the search stopped at the last level, `true` is not certain. It must not be reused
        // for the same goal at an earlier level.
        if self.level.get() == 0 || found == Ok(false) {
            self.met
                .borrow_mut()
                .insert(key, *found.as_ref().unwrap_or(&true));
        }
        found
    }

    fn looked_at(&self, goal: &[Claim<'s>]) -> Outcome<bool> {
        for kind in Scalar::ALL {
            if self.goal(&kind, goal)?.may_match() {
                return Ok(true);
            }
        }
        Ok(Arrays.may_hold(self, &self.goal(&Arrays, goal)?)?
            || Objects.may_hold(self, &self.goal(&Objects, goal)?)?)
    }

    /// The values of a kind that satisfy all claims.
    pub fn goal<K: Kind<'s>>(&self, kind: &K, goal: &[Claim<'s>]) -> Outcome<K::Set> {
        self.join(kind, true, goal)
    }

    /// The values of a kind that satisfy a claim.
    pub fn eval<K: Kind<'s>>(&self, kind: &K, claim: &Claim<'s>) -> Outcome<K::Set> {
        self.step()?;
        if claim.constant {
            return kind.constant(claim);
        }
        let map = match claim.schema {
            Value::Bool(all) => return Ok(kind.all(*all == claim.holds)),
            Value::Object(map) => map,
            other => {
                let at = &claim.at;
                return Err(format!("#{at}: expected an object, true or false, found {other}"));
            }
        };
        if self.depth.get() >= DEPTH {
            let at = &claim.at;
            return Err(format!(
                "#{at}: references are circular or nested deeper than {DEPTH} levels"
            ));
        }
        self.depth.set(self.depth.get() + 1);
        let found = self.keywords(kind, claim, map);
        self.depth.set(self.depth.get() - 1);
        found
    }

    /// The values that all keywords of a schema allow together.
    fn keywords<K: Kind<'s>>(
        &self,
        kind: &K,
        claim: &Claim<'s>,
        map: &'s Map<String, Value>,
    ) -> Outcome<K::Set> {
        let mut set = kind.all(claim.holds);
        // These keywords come first, since they often make all others irrelevant.
        let early = |key: &str| matches!(key, "type" | "const" | "enum");
        let (first, rest): (Vec<_>, Vec<_>) = map.iter().partition(|(key, _)| early(key));
        for (key, value) in first.into_iter().chain(rest) {
            if claim.holds && kind.is_none(&set) {
                return Ok(kind.all(false));
            }
            if let Some(found) = self.keyword(kind, claim, map, key, value)? {
                set = if claim.holds {
                    kind.and(&set, &found)?
                } else {
                    kind.or(set, found)
                };
            }
        }
        Ok(set)
    }

    /// The values that satisfy all claims, or, if `all` is false, any of them.
    fn join<K: Kind<'s>>(&self, kind: &K, all: bool, claims: &[Claim<'s>]) -> Outcome<K::Set> {
        let mut set = kind.all(all);
        for claim in claims {
            if all && kind.is_none(&set) {
                return Ok(kind.all(false));
            }
            let found = self.eval(kind, claim)?;
            set = if all {
                kind.and(&set, &found)?
            } else {
                kind.or(set, found)
            };
        }
        Ok(set)
    }

    fn keyword<K: Kind<'s>>(
        &self,
        kind: &K,
        claim: &Claim<'s>,
        map: &'s Map<String, Value>,
        key: &'s str,
        value: &'s Value,
    ) -> Outcome<Option<K::Set>> {
        let holds = claim.holds;
        let parts = || -> Outcome<Vec<Claim<'s>>> {
            let list = claim.list(key, value)?;
            let part = |(i, v): (usize, &'s Value)| claim.inner(v, &[key, &i.to_string()], holds);
            Ok(list.iter().enumerate().map(part).collect())
        };
        Ok(Some(match key {
            "type" => self.types(kind, claim, value)?,
            "const" => kind.constant(&claim.constant(value, &[key]))?,
            "enum" => {
                let list = claim.list(key, value)?.iter().enumerate();
                let values = list.map(|(i, v)| claim.constant(v, &[key, &i.to_string()]));
                self.join(kind, !holds, &values.collect::<Vec<_>>())?
            }
            "allOf" => self.join(kind, holds, &parts()?)?,
            "anyOf" => self.join(kind, !holds, &parts()?)?,
            "oneOf" => self.one_of(kind, claim, &parts()?)?,
            "not" => self.eval(kind, &claim.inner(value, &[key], !holds))?,
            "if" => match self.condition(kind, claim, map, value)? {
                Some(set) => set,
                None => return Ok(None),
            },
            "$ref" => {
                let target = self.target(claim, value)?;
                self.eval(kind, &target)?
            }
            "$dynamicRef" | "$recursiveRef" => return Err(claim.beyond(key)),
            _ => return kind.keyword(self, claim, map, key, value),
        }))
    }

    fn types<K: Kind<'s>>(&self, kind: &K, claim: &Claim<'s>, value: &'s Value) -> Outcome<K::Set> {
        const TYPES: [&str; 7] = [
            "null", "boolean", "integer", "number", "string", "array", "object",
        ];
        let names = match value {
            Value::String(name) => vec![name.as_str()],
            _ => claim.names("type", value)?,
        };
        let mut set = kind.all(!claim.holds);
        for name in names {
            if !TYPES.contains(&name) {
                return Err(claim.fault(
                    "type",
                    format!("{name:?} is not a type; types: {}", TYPES.join(", ")),
                ));
            }
            let found = kind.of_type(name, claim.holds);
            set = if claim.holds {
                kind.or(set, found)
            } else {
                kind.and(&set, &found)?
            };
        }
        Ok(set)
    }

    /// `if` with `then` and `else`. `None` if both are absent.
    fn condition<K: Kind<'s>>(
        &self,
        kind: &K,
        claim: &Claim<'s>,
        map: &'s Map<String, Value>,
        value: &'s Value,
    ) -> Outcome<Option<K::Set>> {
        if !map.contains_key("then") && !map.contains_key("else") {
            return Ok(None);
        }
        let mut set = kind.all(false);
        for (key, met) in [("then", true), ("else", false)] {
            let condition = self.eval(kind, &claim.inner(value, &["if"], met))?;
            let found = match map.get(key) {
                Some(then) => {
                    let then = self.eval(kind, &claim.inner(then, &[key], claim.holds))?;
                    kind.and(&condition, &then)?
                }
                None if claim.holds => condition,
                None => kind.all(false),
            };
            set = kind.or(set, found);
        }
        Ok(Some(set))
    }

    /// `oneOf`: one alternative holds, and those that overlap with it do not.
    fn one_of<K: Kind<'s>>(&self, kind: &K, claim: &Claim<'s>, parts: &[Claim<'s>]) -> Outcome<K::Set> {
        let of = |part: &Claim<'s>, holds| {
            self.eval(
                kind,
                &Claim {
                    holds,
                    ..part.clone()
                },
            )
        };
        let within = |e| claim.fault("oneOf", format!("its alternatives overlap, and {e}"));
        let sets: Outcome<Vec<K::Set>> = parts.iter().map(|p| of(p, true)).collect();
        let sets = sets?;
        if parts.len() > MAX_EXCLUSIVE {
            let what = format!(
                "has {} alternatives, of which at most {MAX_EXCLUSIVE} are supported",
                parts.len()
            );
            return Err(claim.fault("oneOf", what));
        }
        let mut several = kind.all(false);
        let mut overlaps = vec![Vec::new(); parts.len()];
        let texts: Vec<_> = parts.iter().map(Claim::text).collect();
        for (i, (set, text)) in sets.iter().zip(&texts).enumerate() {
            for (j, (other, another)) in sets.iter().zip(&texts).enumerate().skip(i + 1) {
                if text.is_some() && another.is_some() && text != another {
                    continue;
                }
                let both = kind.and(set, other)?;
                if !kind.may_hold(self, &both)? {
                    continue;
                }
                for (a, b) in [(i, j), (j, i)] {
                    overlaps.get_mut(a).into_iter().for_each(|list| list.push(b));
                }
                if !claim.holds {
                    several = kind.or(several, both);
                }
            }
        }
        if claim.holds {
            let mut one = kind.all(false);
            for (set, others) in sets.into_iter().zip(overlaps) {
                let mut only = set;
                for part in others.into_iter().filter_map(|j| parts.get(j)) {
                    let without = of(part, false).map_err(within)?;
                    only = kind.and(&only, &without)?;
                }
                one = kind.or(one, only);
            }
            return Ok(one);
        }
        let mut none = kind.all(true);
        for part in parts {
            none = kind.and(&none, &of(part, false)?)?;
        }
        Ok(kind.or(several, none))
    }

    /// The target of a `$ref`.
    pub fn target(&self, claim: &Claim<'s>, value: &'s Value) -> Outcome<Claim<'s>> {
        const REF: &str = "$ref";
        let name = value
            .as_str()
            .ok_or_else(|| claim.expected(REF, "a string", value))?;
        let own = self
            .root
            .get("$id")
            .and_then(Value::as_str)
            .map(|id| id.trim_end_matches('#'));
        let local = own.and_then(|id| name.strip_prefix(id)).unwrap_or(name);
        let unknown = || {
            let what = "refers to nothing in this schema; expected # and a JSON pointer or an `$anchor`";
            claim.fault(REF, format!("{name:?} {what}"))
        };
        let fragment = match local.strip_prefix('#') {
            Some(fragment) => percent_decoded(fragment).ok_or_else(unknown)?,
            None if local.is_empty() && own.is_some() => String::new(),
            None => return Err(unknown()),
        };
        // `#/` is a common misspelling of `#`.
        let pointer = if fragment == "/" && self.root.get("").is_none() {
            ""
        } else {
            &fragment
        };
        let found = match pointer.is_empty() || pointer.starts_with('/') {
            true => self.root.pointer(pointer),
            false => anchored(self.root, pointer),
        };
        let schema = found.ok_or_else(unknown)?;
        Ok(Claim {
            schema,
            at: pointer.into(),
            holds: claim.holds,
            constant: false,
        })
    }
}

/// `text` with each `%XX` replaced by its byte. `None` if the result is malformed.
fn percent_decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

/// The schema with this `$anchor`.
fn anchored<'s>(schema: &'s Value, name: &str) -> Option<&'s Value> {
    match schema {
        Value::Object(map) if map.get("$anchor").and_then(Value::as_str) == Some(name) => Some(schema),
        Value::Object(map) => map.values().find_map(|v| anchored(v, name)),
        Value::Array(list) => list.iter().find_map(|v| anchored(v, name)),
        _ => None,
    }
}
