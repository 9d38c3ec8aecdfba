//! The default bounds of a grammar, and which values certainly ended at one.

use super::logic::Outcome;
use super::scalar::{Rx, Scalar};
use super::{DefaultBound, text};
use llguidance::derivre::RegexAst;

/// How often a default bound is doubled for a schema that demands more.
const DOUBLINGS: u32 = 8;

/// The default bounds that a grammar uses.
#[derive(Debug, Default)]
pub struct Defaults {
    /// Of numbers, in digits.
    pub numbers: Limits,
    /// Of strings that are values, in characters.
    pub texts: Limits,
    /// Of names of members, in characters.
    pub names: Limits,
    /// The arrays and objects that may have many items.
    pub lists: Vec<List>,
}

/// The default bounds of a kind of text.
#[derive(Debug, Default)]
pub struct Limits {
    used: Vec<u32>,
    /// Texts that the schema itself bounds.
    own: Vec<RegexAst>,
}

impl Limits {
    /// The texts of `ast`, with a default bound where it has no longest text. It is the first that
    /// allows a text of `DefaultBound::most` and its doubles. An error if none does.
    pub fn bounded(&mut self, kind: Scalar, ast: RegexAst) -> Outcome<RegexAst> {
        if let RegexAst::Or(parts) = ast {
            let parts = parts.into_iter().map(|ast| self.bounded(kind, ast));
            return Ok(RegexAst::Or(parts.collect::<Outcome<_>>()?));
        }
        let (bound, unit) = match kind {
            Scalar::Number => (DefaultBound::Digits, "digits"),
            _ => (DefaultBound::Characters, "characters"),
        };
        if let Some(longest) = longest(&ast) {
            if longest >= bound.most() as usize {
                self.own.push(ast.clone());
            }
            return Ok(ast);
        }
        if !Rx::Some(ast.clone()).may_match() {
            return Ok(ast);
        }
        for most in (0..=DOUBLINGS).map(|n| bound.most() << n) {
            let within = |least, most| RegexAst::And(vec![ast.clone(), kind.lengths(least, most)]);
            let both = within(0, most);
            if !Rx::Some(both.clone()).may_match() {
                continue;
            }
            // Together, keywords may bound an integer.
            if kind == Scalar::Number && !Rx::Some(within(most + 1, u32::MAX)).may_match() {
                self.own.push(ast);
                return Ok(both);
            }
            self.use_default(most);
            return Ok(both);
        }
        Err(format!(
            "it demands a value of more than {} {unit}, which is the limit unless values are unbounded",
            bound.most() << DOUBLINGS
        ))
    }

    pub fn use_default(&mut self, most: u32) {
        if !self.used.contains(&most) {
            self.used.push(most);
        }
    }

    /// Keeps the bounds at which no text ends that the schema itself bounds.
    fn finish(&mut self, kind: Scalar) {
        for ast in std::mem::take(&mut self.own) {
            let may_have = |n: u32| {
                let both = RegexAst::And(vec![ast.clone(), kind.lengths(n, n)]);
                Rx::Some(both).may_match()
            };
            self.used.retain(|n| !may_have(*n));
            if self.used.is_empty() {
                return;
            }
        }
    }

    /// Whether a text of this size certainly ended at a default bound.
    pub fn are_reached(&self, size: u32) -> bool {
        self.used.contains(&size)
    }
}

/// An upper bound on the bytes, or the characters, of the texts of `ast`. `None` if it is not
/// known, or if there is none.
fn longest(ast: &RegexAst) -> Option<usize> {
    match ast {
        RegexAst::And(parts) => parts.iter().filter_map(longest).min(),
        RegexAst::Or(parts) => parts.iter().try_fold(0, |n, part| Some(longest(part)?.max(n))),
        RegexAst::Concat(parts) => parts
            .iter()
            .try_fold(0, |n: usize, part| Some(n.saturating_add(longest(part)?))),
        RegexAst::Repeat(part, _, most) if *most < u32::MAX => {
            Some(longest(part)?.saturating_mul(*most as usize))
        }
        RegexAst::Regex(regex) if regex == text::CHARACTER => Some(1),
        RegexAst::Regex(text) => {
            let parsed = regex_syntax::Parser::new().parse(text);
            parsed.ok()?.properties().maximum_len()
        }
        RegexAst::EmptyString | RegexAst::NoMatch => Some(0),
        RegexAst::Literal(text) => Some(text.len()),
        _ => None,
    }
}

/// Arrays or objects of one shape.
#[derive(Debug)]
pub struct List {
    pub is_object: bool,
    /// The names of the declared members of an object.
    pub declared: Vec<String>,
    /// Number of declared items.
    pub steps: usize,
    /// Others may follow.
    pub is_open: bool,
    /// Maximum number of items, if the schema bounds it.
    pub own: Option<usize>,
    /// Maximum number of items that are not declared, if the schema does not bound it.
    pub extra: usize,
}

impl List {
    /// Maximum number of items.
    fn most(&self) -> usize {
        let open = if self.is_open { self.extra } else { 0 };
        self.own.unwrap_or_else(|| self.steps.saturating_add(open))
    }

    /// The number of items that are not declared, of `count` items; those of objects have `names`.
    fn others(&self, count: usize, names: &[Vec<u8>]) -> usize {
        if !self.is_object {
            return count.saturating_sub(self.steps);
        }
        let is_declared = |name: &&Vec<u8>| self.declared.iter().any(|d| d.as_bytes() == name.as_slice());
        names.iter().filter(|name| !is_declared(name)).count()
    }

    /// Whether a list may have this shape, and whether it then ended at the default bound.
    fn fits(&self, count: usize, names: &[Vec<u8>]) -> (bool, bool) {
        let others = self.others(count, names);
        let fits = count <= self.most() && (self.is_open || others == 0);
        let has_steps = self.is_object || count >= self.steps;
        let full = self.own.is_none() && self.is_open && has_steps && others == self.extra;
        (fits, full)
    }
}

impl Defaults {
    pub fn add_list(&mut self, list: List) {
        if list.most() >= DefaultBound::Items.most() as usize {
            self.lists.push(list);
        }
    }

    /// What can be told while a text is watched.
    pub fn finished(mut self) -> Self {
        self.numbers.finish(Scalar::Number);
        self.texts.finish(Scalar::Text);
        self.names.finish(Scalar::Text);
        self
    }

    /// Whether an array or object of `count` items certainly ended at a default bound. Those of an
    /// object have `names`.
    pub fn is_full(&self, is_object: bool, count: usize, names: &[Vec<u8>]) -> bool {
        if count < DefaultBound::Items.most() as usize {
            return false;
        }
        let alike = self.lists.iter().filter(|l| l.is_object == is_object);
        let mut fitting = alike.map(|l| l.fits(count, names)).filter(|f| f.0).peekable();
        fitting.peek().is_some() && fitting.all(|f| f.1)
    }
}
