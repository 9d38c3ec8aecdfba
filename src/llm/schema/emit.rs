//! Writes the grammar of a schema, with one symbol per list of claims.

use super::array::{ArrayShape, Arrays};
use super::defaults::{Defaults, List};
use super::logic::{Claim, Goal, Key, Kind, Outcome, Schemas};
use super::object::{ObjectShape, Objects};
use super::scalar::{Rx, Scalar};
use super::{Compiled, DefaultBound, SchemaOptions, text};
use llguidance::api::SkipSpec;
use llguidance::derivre::RegexAst;
use llguidance::earley::lexerspec::{LexemeClass, LexerSpec};
use llguidance::earley::{Grammar, SymIdx, SymbolProps};
use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::fmt::Display;

/// Maximum number of symbols of a grammar. The parser numbers them with 16 bits.
const MAX_SYMBOLS: usize = 50_000;
/// Maximum number of different values that the elements of an array with `uniqueItems` may have.
const MAX_DISTINCT: usize = 10;

const NO_TEXT: &str =
    "no text matches it (where `properties` declares members, others need `additionalProperties`)";
const ONLY_EMPTY: &str = "only the empty object {} matches it; declare members in `properties`, or allow \
                          others with `additionalProperties`";

/// A member or an element that occurs at most once.
struct Step {
    symbol: SymIdx,
    required: bool,
}

/// The members or elements between two brackets.
struct Series {
    brackets: [&'static str; 2],
    steps: Vec<Step>,
    /// May be repeated after the steps.
    rest: Option<SymIdx>,
    least: usize,
    most: usize,
    /// Maximum number of items after the steps if `most` sets no bound.
    extra: Option<usize>,
    /// An optional step may be missing even if later steps are present.
    gaps: bool,
}

pub struct Emitter<'s> {
    schemas: Schemas<'s>,
    grammar: Grammar,
    lexer: LexerSpec,
    class: LexemeClass,
    symbols: HashMap<Vec<Key>, SymIdx>,
    pending: VecDeque<(Goal<'s>, SymIdx)>,
    words: HashMap<&'static str, SymIdx>,
    /// Values that the schema does not bound are bounded.
    bounded: bool,
    defaults: Defaults,
    /// See [`Compiled::open`].
    open: bool,
}

fn is_power_of_four(n: usize) -> bool {
    n.is_power_of_two() && n.ilog2().is_multiple_of(2)
}

fn failed(e: impl Display) -> String {
    e.to_string()
}

/// The grammar of `schema`.
pub fn grammar(schema: &Value, options: &SchemaOptions) -> Outcome<Compiled> {
    let mut lexer = LexerSpec::new().map_err(failed)?;
    lexer.regex_builder.unicode(true).utf8(true);
    let class = lexer
        .setup_lexeme_class_with_skip(SkipSpec::once(options.json_space.regex()))
        .map_err(failed)?;
    let mut emitter = Emitter {
        schemas: Schemas::new(schema),
        grammar: Grammar::new(None),
        lexer,
        class,
        symbols: HashMap::new(),
        pending: VecDeque::new(),
        words: HashMap::new(),
        bounded: !options.json_unbounded,
        defaults: Defaults::default(),
        open: false,
    };
    let start = emitter.symbol("start")?;
    emitter.grammar.sym_props_mut(start).is_start = true;
    let goal = vec![emitter.schemas.claim()];
    if !emitter.schemas.may_be_met(&goal)? {
        return Err(NO_TEXT.to_owned());
    }
    if emitter.is_empty_object(&goal)? {
        return Err(ONLY_EMPTY.to_owned());
    }
    let root = emitter.goal(goal)?;
    emitter.rule(start, vec![root])?;
    while let Some((goal, symbol)) = emitter.pending.pop_front() {
        emitter.value(&goal, symbol)?;
    }
    Ok(Compiled {
        grammar: emitter.grammar,
        lexer: emitter.lexer,
        open: emitter.open,
        defaults: emitter.defaults.finished(),
    })
}

impl<'s> Emitter<'s> {
    /// Whether only the empty object satisfies `goal`.
    fn is_empty_object(&self, goal: &[Claim<'s>]) -> Outcome<bool> {
        for kind in Scalar::ALL {
            if self.schemas.goal(&kind, goal)?.may_match() {
                return Ok(false);
            }
        }
        let arrays = self.schemas.goal(&Arrays, goal)?;
        if Arrays.may_hold(&self.schemas, &arrays)? {
            return Ok(false);
        }
        for shape in self.schemas.goal(&Objects, goal)? {
            if shape.may_have_members(&self.schemas)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The regular expression of a set of values, or of names of members.
    fn scalar(&mut self, kind: Scalar, set: Rx, are_names: bool) -> Outcome<Option<RegexAst>> {
        let limits = match kind {
            Scalar::Number => &mut self.defaults.numbers,
            Scalar::Text if are_names => &mut self.defaults.names,
            Scalar::Text => &mut self.defaults.texts,
            _ => return Ok(kind.regex(set)),
        };
        match (self.bounded, set) {
            (true, Rx::All) if kind == Scalar::Text => {
                let most = DefaultBound::Characters.most();
                limits.use_default(most);
                Ok(Some(kind.lengths(0, most)))
            }
            (true, set) => kind.regex(set).map(|ast| limits.bounded(kind, ast)).transpose(),
            (false, set) => Ok(kind.regex(set)),
        }
    }

    /// The bound of a value that the schema does not bound.
    fn bound(&self, bound: DefaultBound) -> Option<u32> {
        self.bounded.then_some(bound.most())
    }

    fn symbol(&mut self, name: &str) -> Outcome<SymIdx> {
        if self.grammar.num_symbols() >= MAX_SYMBOLS {
            return Err(format!(
                "it is too large: its grammar has more than {MAX_SYMBOLS} symbols"
            ));
        }
        let props = SymbolProps {
            grammar_id: self.class,
            ..SymbolProps::default()
        };
        Ok(self.grammar.fresh_symbol_ext(name, props))
    }

    fn rule(&mut self, symbol: SymIdx, parts: Vec<SymIdx>) -> Outcome<()> {
        self.grammar.add_rule(symbol, parts).map_err(failed)
    }

    /// A symbol with one rule.
    fn join(&mut self, parts: Vec<SymIdx>) -> Outcome<SymIdx> {
        let symbol = self.symbol("")?;
        self.rule(symbol, parts)?;
        Ok(symbol)
    }

    fn terminal(&mut self, ast: RegexAst) -> Outcome<SymIdx> {
        let lexeme = self
            .lexer
            .add_greedy_lexeme(String::new(), ast, false, None, usize::MAX);
        let symbol = self.symbol("")?;
        self.grammar
            .make_terminal(symbol, lexeme.map_err(failed)?, &self.lexer)
            .map_err(failed)?;
        Ok(symbol)
    }

    fn word(&mut self, text: &'static str) -> Outcome<SymIdx> {
        if let Some(symbol) = self.words.get(text) {
            return Ok(*symbol);
        }
        let symbol = self.terminal(RegexAst::Literal(text.to_owned()))?;
        self.words.insert(text, symbol);
        Ok(symbol)
    }

    /// The symbol of the values that satisfy `goal`. Its rules may be written later.
    fn goal(&mut self, goal: Goal<'s>) -> Outcome<SymIdx> {
        let key: Vec<Key> = goal.iter().map(Claim::key).collect();
        if let Some(symbol) = self.symbols.get(&key) {
            return Ok(*symbol);
        }
        let symbol = self.symbol("value")?;
        self.symbols.insert(key, symbol);
        self.pending.push_back((goal, symbol));
        Ok(symbol)
    }

    fn value(&mut self, goal: &[Claim<'s>], symbol: SymIdx) -> Outcome<()> {
        let mut scalars = Vec::new();
        for kind in Scalar::ALL {
            let set = self.schemas.goal(&kind, goal)?;
            // A terminal that matches nothing may confuse the lexer.
            let set = if set.may_match() { set } else { Rx::None };
            scalars.extend(self.scalar(kind, set, false)?);
        }
        let mut possible = !scalars.is_empty();
        if possible {
            let scalar = self.terminal(RegexAst::Or(scalars))?;
            self.rule(symbol, vec![scalar])?;
        }
        let arrays = self.schemas.goal(&Arrays, goal)?;
        let objects = self.schemas.goal(&Objects, goal)?;
        let mut found = Vec::new();
        for shape in &arrays {
            found.extend(self.array(shape)?);
        }
        for shape in &objects {
            found.extend(self.object(shape)?);
        }
        for shape in found {
            possible = true;
            self.rule(symbol, vec![shape])?;
        }
        // The parser rejects a symbol without rules. This rule matches nothing.
        if possible {
            Ok(())
        } else {
            self.rule(symbol, vec![symbol, symbol])
        }
    }

    fn object(&mut self, shape: &ObjectShape<'s>) -> Outcome<Option<SymIdx>> {
        let members = shape.members()?;
        let (mut steps, mut declared, mut taken) = (Vec::new(), Vec::new(), Vec::new());
        for (name, goal) in members {
            let required = shape.required.contains(&name);
            let quoted = text::equal(&name);
            taken.push(quoted.clone());
            match self.schemas.may_be_met(&goal)? {
                true => {
                    if self.bounded {
                        self.defaults.names.bounded(Scalar::Text, quoted.clone())?;
                    }
                    let symbol = self.member(quoted, goal)?;
                    steps.push(Step { symbol, required });
                    declared.push(name);
                }
                false if required => return Ok(None),
                false => {}
            }
        }
        let mut rest = Vec::new();
        for others in shape.open() {
            if !self.schemas.may_be_met(&others.goal)? {
                continue;
            }
            let names = self.scalar(Scalar::Text, others.names.clone(), true)?;
            let mut names = vec![names.unwrap_or(RegexAst::NoMatch)];
            if !taken.is_empty() {
                names.push(RegexAst::Not(Box::new(RegexAst::Or(taken.clone()))));
            }
            let names = Rx::Some(RegexAst::And(names));
            if let (true, Rx::Some(names)) = (names.may_match(), names) {
                rest.push(self.member(names, others.goal.clone())?);
            }
        }
        let rest = self.select(rest)?;
        self.open |= rest.is_some();
        let brackets = ["{", "}"];
        let (least, most) = (shape.least, shape.most);
        let list = Series {
            brackets,
            steps,
            rest,
            least,
            most,
            extra: self.bound(DefaultBound::Items).map(|n| (n as usize).max(least)),
            gaps: true,
        };
        self.list(&list, declared)
    }

    /// The symbol of `list`, whose bounds are noted. Objects have `declared` members.
    fn list(&mut self, list: &Series, declared: Vec<String>) -> Outcome<Option<SymIdx>> {
        let made = self.series(list)?;
        if let (Some(_), Some(extra)) = (made, list.extra) {
            self.defaults.add_list(List {
                is_object: list.gaps,
                declared,
                steps: list.steps.len(),
                is_open: list.rest.is_some(),
                own: Some(list.most).filter(|n| *n < usize::MAX),
                extra,
            });
        }
        Ok(made)
    }

    fn member(&mut self, name: RegexAst, goal: Goal<'s>) -> Outcome<SymIdx> {
        let parts = vec![
            self.terminal(text::plainly(name))?,
            self.word(":")?,
            self.goal(goal)?,
        ];
        self.join(parts)
    }

    fn select(&mut self, symbols: Vec<SymIdx>) -> Outcome<Option<SymIdx>> {
        if symbols.len() < 2 {
            return Ok(symbols.first().copied());
        }
        let all = self.symbol("")?;
        for symbol in symbols {
            self.rule(all, vec![symbol])?;
        }
        Ok(Some(all))
    }

    fn array(&mut self, shape: &ArrayShape<'s>) -> Outcome<Option<SymIdx>> {
        if let (Some(at), 2..) = (&shape.distinct, shape.most) {
            let Some(values) = self.values(shape)? else {
                return Err(format!(
                    "`uniqueItems` at #{at}: supported only if `items` is an `enum` of at most {MAX_DISTINCT} \
                     values, or `maxItems` is 1"
                ));
            };
            return self.distinct(shape, &values).map(Some);
        }
        let mut steps = Vec::new();
        let mut most = shape.most;
        for (i, goal) in shape.first.iter().enumerate().take(most) {
            if !self.schemas.may_be_met(goal)? {
                most = i;
                break;
            }
            let symbol = self.goal(goal.clone())?;
            steps.push(Step {
                symbol,
                required: i < shape.least,
            });
        }
        let rest = match self.schemas.may_be_met(&shape.rest)? && most > steps.len() {
            true => Some(self.goal(shape.rest.clone())?),
            false => None,
        };
        let brackets = ["[", "]"];
        let count = steps.len();
        let extra = |n| (n as usize).max(shape.least).saturating_sub(count);
        let list = Series {
            brackets,
            steps,
            rest,
            least: shape.least,
            most,
            extra: self.bound(DefaultBound::Items).map(extra),
            gaps: false,
        };
        self.list(&list, Vec::new())
    }

    /// A bracketed list of the steps and the items after them, separated by commas. `None` if no
    /// list has an allowed length.
    fn series(&mut self, list: &Series) -> Outcome<Option<SymIdx>> {
        let [open, close] = [self.word(list.brackets[0])?, self.word(list.brackets[1])?];
        let comma = self.word(",")?;
        let count = list.steps.len();
        // Only item counts up to this one are distinguished. The last one also stands for all
        // larger counts.
        let limit = if list.most < usize::MAX {
            list.most
        } else {
            list.least.max(1)
        };
        let width = limit.min(count);
        // By the number of items so far: what may follow the steps up to here. `None` if no valid
        // list continues that way.
        let mut after: Vec<Option<SymIdx>> = Vec::new();
        for n in 0..=width {
            after.push(self.tail(list, n, comma)?);
        }
        for (i, step) in list.steps.iter().enumerate().rev() {
            let mut before = Vec::new();
            for n in 0..=width.min(i) {
                let next = if list.most < usize::MAX {
                    n + 1
                } else {
                    (n + 1).min(limit)
                };
                let taken = after.get(next).copied().flatten().filter(|_| n < list.most);
                let mut rules = Vec::new();
                if let Some(taken) = taken {
                    let mut rule = if n > 0 { vec![comma] } else { Vec::new() };
                    rule.extend([step.symbol, taken]);
                    rules.push(rule);
                }
                if !step.required {
                    match list.gaps {
                        true => rules.extend(after.get(n).copied().flatten().map(|s| vec![s])),
                        false if n >= list.least => rules.push(Vec::new()),
                        false => {}
                    }
                }
                if rules.is_empty() {
                    before.push(None);
                    continue;
                }
                let symbol = self.symbol("")?;
                for rule in rules {
                    self.rule(symbol, rule)?;
                }
                before.push(Some(symbol));
            }
            after = before;
        }
        match after.first().copied().flatten() {
            Some(inner) => self.join(vec![open, inner, close]).map(Some),
            None => Ok(None),
        }
    }

    /// What follows the last step if `n` steps are present.
    fn tail(&mut self, list: &Series, n: usize, comma: SymIdx) -> Outcome<Option<SymIdx>> {
        let least = list.least.saturating_sub(n);
        let most = if list.most < usize::MAX {
            Some(list.most.saturating_sub(n))
        } else {
            list.extra
        };
        let rest = list.rest.filter(|_| most != Some(0));
        if rest.is_none() && least > 0 {
            return Ok(None);
        }
        let symbol = self.symbol("")?;
        if least == 0 {
            self.rule(symbol, Vec::new())?;
        }
        if let Some(rest) = rest {
            let more = self.join(vec![comma, rest])?;
            let first = if n > 0 { more } else { rest };
            let more = self.repeat(more, least.max(1) - 1, most.map(|m| m - 1))?;
            self.rule(symbol, vec![first, more])?;
        }
        Ok(Some(symbol))
    }

    /// `symbol`, repeated `least` to `most` times.
    fn repeat(&mut self, symbol: SymIdx, least: usize, most: Option<usize>) -> Outcome<SymIdx> {
        let exact = self.exactly(symbol, least)?;
        let more = match most {
            Some(most) => self.up_to(symbol, most.saturating_sub(least))?,
            None => {
                let star = self.join(Vec::new())?;
                self.rule(star, vec![star, symbol])?;
                star
            }
        };
        self.join(vec![exact, more])
    }

    /// `symbol`, repeated `n` times. The number of rules grows with the logarithm of `n`.
    fn exactly(&mut self, symbol: SymIdx, n: usize) -> Outcome<SymIdx> {
        let mut parts = Vec::new();
        let (mut unit, mut left) = (symbol, n);
        while left > 0 {
            if left % 2 == 1 {
                parts.push(unit);
            }
            left /= 2;
            if left > 0 {
                unit = self.join(vec![unit, unit])?;
            }
        }
        self.join(parts)
    }

    /// `symbol`, repeated at most `n` times. Each count has one derivation.
    fn up_to(&mut self, symbol: SymIdx, n: usize) -> Outcome<SymIdx> {
        let all = self.join(Vec::new())?;
        match n {
            0 => {}
            1 => self.rule(all, vec![symbol])?,
            n if n.checked_add(1).is_some_and(is_power_of_four) => {
                // At most three of each power of four, the largest first.
                let (mut unit, mut parts) = (symbol, Vec::new());
                for power in 0..(n + 1).ilog2() / 2 {
                    if power > 0 {
                        unit = self.join(vec![unit; 4])?;
                    }
                    let some = self.symbol("")?;
                    for count in 0..4 {
                        self.rule(some, vec![unit; count])?;
                    }
                    parts.insert(0, some);
                }
                return self.join(parts);
            }
            n if n % 2 == 0 => {
                let (exact, fewer) = (self.exactly(symbol, n)?, self.up_to(symbol, n - 1)?);
                let some = self.symbol("")?;
                self.rule(some, vec![exact])?;
                self.rule(some, vec![fewer])?;
                return Ok(some);
            }
            n => {
                let pair = self.join(vec![symbol, symbol])?;
                let (pairs, last) = (self.up_to(pair, n / 2)?, self.up_to(symbol, 1)?);
                return self.join(vec![pairs, last]);
            }
        }
        Ok(all)
    }

    /// Arrays of different values, in any order.
    fn distinct(&mut self, shape: &ArrayShape<'s>, values: &[Claim<'s>]) -> Outcome<SymIdx> {
        let brackets = [self.word("[")?, self.word("]")?];
        let comma = self.word(",")?;
        let count = 1_usize << values.len();
        // Symbols by the set of values that came before.
        let mut after = Vec::with_capacity(count);
        for _ in 0..count {
            after.push(self.symbol("")?);
        }
        for (set, symbol) in after.iter().enumerate() {
            let n = set.count_ones() as usize;
            // A set that is too small must not end the array. A rule that matches nothing keeps the
            // symbol valid even if no value can be added.
            self.rule(
                *symbol,
                if n >= shape.least {
                    Vec::new()
                } else {
                    vec![*symbol, *symbol]
                },
            )?;
            for (i, value) in values.iter().enumerate().filter(|(i, _)| set & (1 << i) == 0) {
                let mut goal = shape.goal(n).clone();
                goal.push(value.clone());
                let (true, Some(next)) = (n < shape.most, after.get(set | 1 << i).copied()) else {
                    continue;
                };
                if self.schemas.may_be_met(&goal)? {
                    let mut rule = if n > 0 { vec![comma] } else { Vec::new() };
                    rule.extend([self.goal(goal)?, next]);
                    self.rule(*symbol, rule)?;
                }
            }
        }
        let [open, close] = brackets;
        let first = after.first().copied();
        self.join([open].into_iter().chain(first).chain([close]).collect())
    }

    /// All values that elements may have, without duplicates. `None` if they are unknown or too
    /// many.
    fn values(&self, shape: &ArrayShape<'s>) -> Outcome<Option<Vec<Claim<'s>>>> {
        let mut values: Vec<Claim<'s>> = Vec::new();
        for goal in shape.first.iter().chain([&shape.rest]) {
            if !self.schemas.may_be_met(goal)? {
                continue;
            }
            let mut found = None;
            for claim in goal {
                found = found.or(self.constants(claim)?);
            }
            let Some(found) = found else {
                return Ok(None);
            };
            for claim in found {
                let with: Goal<'s> = goal.iter().cloned().chain([claim.clone()]).collect();
                if self.schemas.may_be_met(&with)? && !values.iter().any(|v| v.schema == claim.schema) {
                    values.push(claim);
                }
            }
        }
        Ok((values.len() <= MAX_DISTINCT).then_some(values))
    }

    /// The values that a schema enumerates with `enum` or `const`. `None` if it does not.
    fn constants(&self, claim: &Claim<'s>) -> Outcome<Option<Vec<Claim<'s>>>> {
        let mut claim = claim.clone();
        // Follow a chain of references. Circular ones have already been rejected.
        while let Some(value) = claim
            .schema
            .get("$ref")
            .filter(|_| claim.holds && !claim.constant)
        {
            claim = self.schemas.target(&claim, value)?;
        }
        let of = |schema| Claim {
            schema,
            constant: true,
            ..claim.clone()
        };
        Ok(match (claim.schema.get("enum"), claim.schema.get("const")) {
            _ if !claim.holds => None,
            _ if claim.constant => Some(vec![claim]),
            (Some(Value::Array(list)), _) => Some(list.iter().map(of).collect()),
            (_, Some(value)) => Some(vec![of(value)]),
            _ => None,
        })
    }
}
