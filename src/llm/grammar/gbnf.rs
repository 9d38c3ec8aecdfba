//! Grammars in GBNF, the notation of llama.cpp.
//!
//! GBNF has no lexer: a grammar describes characters. The parser has one, and is fast only if its
//! lexemes are long. So the largest regular parts become lexemes. The lexer always takes the
//! longest match, so a part is divided again if that could change which texts match.

mod parse;
#[cfg(test)]
mod tests;

use crate::num;
use llguidance::api::SkipSpec;
use llguidance::derivre::{Regex, RegexAst, RegexBuilder, StateID};
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::earley::{Grammar, SymIdx, SymbolProps};
use parse::{Expr, Rule};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Display;

/// Maximum number of characters and parts in the regular expression of a lexeme.
const MAX_LEXEME: usize = 5_000;
/// Maximum nesting of such an expression, through rules.
const MAX_DEPTH: usize = 200;
/// Maximum number of rules of the result. The parser numbers its symbols with 16 bits.
const MAX_RULES: usize = 20_000;
/// Maximum number of parts of all rules of the result.
const MAX_PARTS: usize = 200_000;
/// Maximum number of pairs of states that are compared for two lexemes.
const MAX_PAIRS: usize = 2_000;
/// Maximum number of bytes tried by all comparisons together.
const MAX_WORK: usize = 50_000_000;

fn failed(e: impl Display) -> String {
    e.to_string()
}

/// The grammar and the lexer of `text`. The error names the line.
pub fn compile(text: &str) -> Result<(Grammar, LexerSpec), String> {
    let rules = parse::rules(text)?;
    let mut lexemes = Lexemes::new(&rules);
    let mut search = Search::default();
    loop {
        let mut plan = Plan::new(&lexemes, text);
        plan.finish()?;
        match search.conflict(&plan)? {
            Some(part) => lexemes.divided.insert(part),
            None => return emit(&plan),
        };
    }
}

/// What is known of a rule that may be a lexeme.
#[derive(Clone, Copy)]
struct Regular {
    /// The size of its regular expression, and its depth.
    size: usize,
    depth: usize,
    nullable: bool,
}

/// Which parts of the rules are lexemes.
struct Lexemes<'r> {
    rules: &'r [Rule],
    /// By rule. `None` if it has no regular expression, or a large or a deep one.
    regular: Vec<Option<Regular>>,
    /// Parts that are divided although they are regular.
    divided: HashSet<Expr>,
}

/// The rules that `expr` names.
fn named(expr: &Expr, found: &mut Vec<usize>) {
    match expr {
        Expr::Characters(_) => {}
        Expr::Rule(rule) => found.push(*rule),
        Expr::Sequence(parts) | Expr::Choice(parts) => parts.iter().for_each(|p| named(p, found)),
        Expr::Repeat(part, ..) => named(part, found),
    }
}

impl<'r> Lexemes<'r> {
    fn new(rules: &'r [Rule]) -> Self {
        let mut lexer = Self {
            rules,
            regular: vec![None; rules.len()],
            divided: HashSet::new(),
        };
        // By rule: how many that it names are not examined yet, and the rules that name it.
        let mut missing = Vec::new();
        let mut users = vec![Vec::new(); rules.len()];
        for (i, rule) in rules.iter().enumerate() {
            let mut names = Vec::new();
            named(&rule.body, &mut names);
            missing.push(names.len());
            for name in names {
                users.get_mut(name).into_iter().for_each(|list| list.push(i));
            }
        }
        let free = missing.iter().enumerate().filter(|(_, n)| **n == 0);
        let mut pending: Vec<usize> = free.map(|(i, _)| i).collect();
        // Rules that lead to themselves are never examined.
        while let Some(rule) = pending.pop() {
            let found = lexer.regular(lexer.body(rule));
            if let Some(own) = lexer.regular.get_mut(rule) {
                *own = found;
            }
            for user in users.get(rule).into_iter().flatten() {
                let Some(left) = missing.get_mut(*user) else {
                    continue;
                };
                *left -= 1;
                if *left == 0 {
                    pending.push(*user);
                }
            }
        }
        lexer
    }

    fn body(&self, rule: usize) -> &'r Expr {
        static EMPTY: Expr = Expr::Sequence(Vec::new());
        self.rules.get(rule).map_or(&EMPTY, |r| &r.body)
    }

    fn regular(&self, expr: &Expr) -> Option<Regular> {
        let all = |parts: &[Expr], nullable: bool, or: fn(bool, bool) -> bool| {
            let empty = Regular {
                size: 1,
                depth: 0,
                nullable,
            };
            parts.iter().try_fold(empty, |all, part| {
                let part = self.regular(part)?;
                Some(Regular {
                    size: all.size.saturating_add(part.size),
                    depth: all.depth.max(part.depth),
                    nullable: or(all.nullable, part.nullable),
                })
            })
        };
        let inner = match expr {
            Expr::Characters(ranges) => Regular {
                size: 1 + ranges.len() / 8,
                depth: 0,
                nullable: false,
            },
            Expr::Rule(rule) => self.regular.get(*rule).copied().flatten()?,
            Expr::Sequence(parts) => all(parts, true, |a, b| a && b)?,
            Expr::Choice(parts) => all(parts, false, |a, b| a || b)?,
            Expr::Repeat(part, least, most) => {
                let part = self.regular(part)?;
                Regular {
                    size: part.size.saturating_mul(most.unwrap_or(*least).max(1) as usize),
                    nullable: *least == 0 || part.nullable,
                    ..part
                }
            }
        };
        let depth = inner.depth + 1;
        (inner.size <= MAX_LEXEME && depth <= MAX_DEPTH).then_some(Regular { depth, ..inner })
    }

    fn is_lexeme(&self, expr: &Expr) -> bool {
        self.regular(expr).is_some() && !self.divided.contains(expr)
    }

    fn regex(&self, expr: &Expr) -> RegexAst {
        match expr {
            Expr::Characters(ranges) => {
                let ranges = ranges
                    .iter()
                    .map(|(low, high)| format!(r"\x{{{:x}}}-\x{{{:x}}}", u32::from(*low), u32::from(*high)));
                let ranges: String = ranges.collect();
                match ranges.is_empty() {
                    true => RegexAst::NoMatch,
                    false => RegexAst::Regex(format!("[{ranges}]")),
                }
            }
            Expr::Rule(rule) => self.regex(self.body(*rule)),
            Expr::Sequence(parts) => RegexAst::Concat(parts.iter().map(|p| self.regex(p)).collect()),
            Expr::Choice(parts) => RegexAst::Or(parts.iter().map(|p| self.regex(p)).collect()),
            Expr::Repeat(part, least, most) => {
                RegexAst::Repeat(Box::new(self.regex(part)), *least, most.unwrap_or(u32::MAX))
            }
        }
    }

    /// A lexeme is never empty.
    fn lexeme(&self, expr: &Expr) -> RegexAst {
        let some = RegexAst::Not(Box::new(RegexAst::EmptyString));
        RegexAst::And(vec![self.regex(expr), some])
    }
}

/// Compares lexemes.
#[derive(Default)]
struct Search {
    compiled: HashMap<Expr, Regex>,
    work: usize,
}

impl Search {
    fn compiled(&mut self, lexemes: &Lexemes<'_>, expr: &Expr) -> Result<Regex, String> {
        if let Some(regex) = self.compiled.get(expr) {
            return Ok(regex.clone());
        }
        let mut builder = RegexBuilder::new();
        let made = builder.mk(&lexemes.lexeme(expr)).map_err(failed)?;
        let regex = builder.to_regex(made);
        self.compiled.insert(expr.clone(), regex.clone());
        Ok(regex)
    }

    /// A lexeme whose longest match may be wrong: where another ends, or the lexeme itself, it goes
    /// on with a byte that may also come next.
    fn conflict(&mut self, plan: &Plan<'_, '_>) -> Result<Option<Expr>, String> {
        let mut automata = Vec::new();
        for expr in &plan.lexemes {
            automata.push(self.compiled(plan.from, expr)?);
        }
        let first: Vec<Bytes> = automata.iter_mut().map(first_bytes).collect();
        let after = plan.after(&first);
        for ((one, start), next) in automata.iter().zip(&first).zip(&after) {
            for ((other, begin), expr) in automata.iter().zip(&first).zip(&plan.lexemes) {
                let single = matches!(expr, Expr::Characters(_));
                if single || !start.iter().zip(begin).any(|(a, b)| a & b != 0) {
                    continue;
                }
                let (mut one, mut other) = (one.clone(), other.clone());
                if self.goes_on(&mut one, &mut other, next) {
                    return Ok(Some(expr.clone()));
                }
            }
        }
        match self.work {
            0..MAX_WORK => Ok(None),
            _ => Err("it is too complex".to_owned()),
        }
    }

    /// Whether `other` goes on with one of the bytes `next` where `one` ends.
    fn goes_on(&mut self, one: &mut Regex, other: &mut Regex, next: &Bytes) -> bool {
        let start = (one.initial_state(), other.initial_state());
        let mut seen = HashSet::from([start]);
        let mut pending: Vec<(StateID, StateID)> = vec![start];
        while let Some((a, b)) = pending.pop() {
            self.work = self.work.saturating_add(256);
            if self.work >= MAX_WORK {
                return false;
            }
            let ends = (a, b) != start && one.is_accepting(a);
            for byte in 0..=255_u8 {
                let to = other.transition(b, byte);
                if to.is_dead() {
                    continue;
                }
                if ends && has(next, byte) {
                    return true;
                }
                let from = one.transition(a, byte);
                if !from.is_dead() && seen.insert((from, to)) {
                    pending.push((from, to));
                }
            }
            if seen.len() > MAX_PAIRS {
                return true;
            }
        }
        false
    }
}

/// A set of bytes.
type Bytes = [u64; 4];

fn has(set: &Bytes, byte: u8) -> bool {
    let word = set.get(usize::from(byte / 64));
    word.is_some_and(|word| word >> (byte % 64) & 1 == 1)
}

fn first_bytes(regex: &mut Regex) -> Bytes {
    let start = regex.initial_state();
    let mut set = Bytes::default();
    for byte in 0..=255_u8 {
        if let Some(word) = set.get_mut(usize::from(byte / 64)) {
            *word |= u64::from(!regex.transition(start, byte).is_dead()) << (byte % 64);
        }
    }
    set
}

/// Adds `more` to `set`. Returns whether it grew.
fn add(set: &mut Bytes, more: &Bytes) -> bool {
    let old = *set;
    set.iter_mut().zip(more).for_each(|(own, other)| *own |= other);
    *set != old
}

/// Visits the items below `count` until no visit asks for others to be visited again.
fn settle(count: usize, mut visit: impl FnMut(usize, &mut dyn FnMut(usize))) {
    let mut pending: VecDeque<usize> = (0..count).rev().collect();
    let mut queued = vec![true; count];
    while let Some(item) = pending.pop_front() {
        queued.iter_mut().skip(item).take(1).for_each(|q| *q = false);
        visit(item, &mut |other| {
            if queued.get(other) == Some(&false) {
                queued.iter_mut().skip(other).take(1).for_each(|q| *q = true);
                pending.push_back(other);
            }
        });
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Lexeme(usize),
    Rule(usize),
}

/// Rules over lexemes. The first is the start.
struct Plan<'p, 'r> {
    from: &'p Lexemes<'r>,
    text: &'p str,
    /// Where the rule starts that is being written.
    at: usize,
    /// Number of parts so far.
    count: usize,
    lexemes: Vec<Expr>,
    ids: HashMap<Expr, usize>,
    /// By rule: its alternatives.
    rules: Vec<Vec<Vec<Part>>>,
    /// Rules of the grammar by their number there.
    known: HashMap<usize, usize>,
    /// Rules of the grammar that are not written yet.
    pending: Vec<(usize, usize)>,
}

impl<'p, 'r> Plan<'p, 'r> {
    fn new(from: &'p Lexemes<'r>, text: &'p str) -> Self {
        Self {
            from,
            text,
            at: 0,
            count: 0,
            lexemes: Vec::new(),
            ids: HashMap::new(),
            rules: Vec::new(),
            known: HashMap::new(),
            pending: Vec::new(),
        }
    }

    /// Writes all rules that the first one needs. An error if no text matches it.
    fn finish(&mut self) -> Result<(), String> {
        let start = self.rule()?;
        let body = self.part(&Expr::Rule(0))?;
        self.write(start, body);
        while let Some((rule, own)) = self.pending.pop() {
            self.at = self.from.rules.get(rule).map_or(0, |r| r.at);
            let parts = self.parts(self.from.body(rule))?;
            self.write(own, parts);
        }
        self.prune()
    }

    /// By rule: the rules that refer to it.
    fn users(&self) -> Vec<Vec<usize>> {
        let mut users = vec![Vec::new(); self.rules.len()];
        for (i, rule) in self.rules.iter().enumerate() {
            for part in rule.iter().flatten() {
                if let Part::Rule(id) = part
                    && let Some(list) = users.get_mut(*id)
                    && list.last() != Some(&i)
                {
                    list.push(i);
                }
            }
        }
        users
    }

    /// Removes alternatives that no text matches. An error if no text matches the first rule.
    fn prune(&mut self) -> Result<(), String> {
        let mut met = vec![false; self.rules.len()];
        let holds = |parts: &Vec<Part>, met: &[bool]| {
            parts.iter().all(|part| match part {
                Part::Lexeme(_) => true,
                Part::Rule(id) => met.get(*id) == Some(&true),
            })
        };
        let users = self.users();
        settle(self.rules.len(), |i, again| {
            let rule = self.rules.get(i).into_iter().flatten();
            if met.get(i) == Some(&false) && rule.into_iter().any(|parts| holds(parts, &met)) {
                met.iter_mut().skip(i).take(1).for_each(|met| *met = true);
                users.get(i).into_iter().flatten().copied().for_each(again);
            }
        });
        for rule in &mut self.rules {
            rule.retain(|parts| holds(parts, &met));
        }
        match met.first() {
            Some(true) => Ok(()),
            _ => Err("no text matches it".to_owned()),
        }
    }

    fn rule(&mut self) -> Result<usize, String> {
        if self.rules.len() >= MAX_RULES {
            return Err(self.too_large(MAX_RULES, "rules"));
        }
        self.rules.push(Vec::new());
        Ok(self.rules.len() - 1)
    }

    fn too_large(&self, most: usize, what: &str) -> String {
        let line = parse::line(self.text, self.at);
        format!("line {line}: with this rule, the grammar needs more than {most} {what}, which is the limit")
    }

    /// Checks the limit for `n` more parts.
    fn more(&mut self, n: usize) -> Result<(), String> {
        self.count = self.count.saturating_add(n);
        match self.count <= MAX_PARTS {
            true => Ok(()),
            false => Err(self.too_large(MAX_PARTS, "parts")),
        }
    }

    fn write(&mut self, rule: usize, parts: Vec<Part>) {
        if let Some(rule) = self.rules.get_mut(rule) {
            rule.push(parts);
        }
    }

    /// A rule with these alternatives.
    fn choice(&mut self, list: impl IntoIterator<Item = Vec<Part>>) -> Result<Part, String> {
        let rule = self.rule()?;
        for parts in list {
            self.write(rule, parts);
        }
        Ok(Part::Rule(rule))
    }

    /// What `expr` stands for, as one lexeme if possible.
    fn part(&mut self, expr: &Expr) -> Result<Vec<Part>, String> {
        let single = matches!(expr, Expr::Characters(_));
        if *expr == Expr::Sequence(Vec::new()) {
            return Ok(Vec::new());
        }
        if !single && !self.from.is_lexeme(expr) {
            return self.parts(expr);
        }
        let next = self.lexemes.len();
        let id = *self.ids.entry(expr.clone()).or_insert(next);
        if id == next {
            self.lexemes.push(expr.clone());
        }
        let lexeme = vec![Part::Lexeme(id)];
        if self.from.regular(expr).is_some_and(|r| r.nullable) {
            return Ok(vec![self.choice([lexeme, Vec::new()])?]);
        }
        Ok(lexeme)
    }

    /// What `expr` stands for, divided.
    fn parts(&mut self, expr: &Expr) -> Result<Vec<Part>, String> {
        match expr {
            Expr::Characters(_) => self.part(expr),
            Expr::Rule(rule) => {
                if let Some(own) = self.known.get(rule) {
                    return Ok(vec![Part::Rule(*own)]);
                }
                let own = self.rule()?;
                self.known.insert(*rule, own);
                self.pending.push((*rule, own));
                Ok(vec![Part::Rule(own)])
            }
            Expr::Sequence(list) => self.sequence(list),
            Expr::Choice(list) => {
                let list: Result<Vec<_>, String> = list.iter().map(|e| self.part(e)).collect();
                Ok(vec![self.choice(list?)?])
            }
            Expr::Repeat(part, least, most) => self.repeat(part, *least, *most),
        }
    }

    fn sequence(&mut self, list: &[Expr]) -> Result<Vec<Part>, String> {
        let mut parts = Vec::new();
        let mut rest = list;
        while let Some(first) = rest.first() {
            // The longest run that is a lexeme.
            let mut size = 1;
            let fits = |part: &&Expr| {
                let part = self.from.regular(part).filter(|r| r.depth < MAX_DEPTH);
                size += part.map_or(MAX_LEXEME, |r| r.size);
                size <= MAX_LEXEME
            };
            let regular = rest.iter().take_while(fits).count();
            let run = (2..=regular).rev().find_map(|n| {
                let run = Expr::Sequence(rest.get(..n)?.to_vec());
                self.from.is_lexeme(&run).then_some((n, run))
            });
            let (count, run) = run.unwrap_or_else(|| (1, first.clone()));
            let run = self.part(&run)?;
            self.more(run.len())?;
            parts.extend(run);
            rest = num::part(rest, count..).map_err(failed)?;
        }
        Ok(parts)
    }

    fn repeat(&mut self, part: &Expr, least: u32, most: Option<u32>) -> Result<Vec<Part>, String> {
        let one = self.part(part)?;
        self.more(one.len().saturating_mul(most.unwrap_or(least).max(1) as usize))?;
        let mut parts = Vec::new();
        for _ in 0..least {
            parts.extend_from_slice(&one);
        }
        match most {
            None => {
                let all = self.rule()?;
                self.write(all, Vec::new());
                self.write(all, [vec![Part::Rule(all)], one].concat());
                parts.push(Part::Rule(all));
            }
            Some(most) => {
                let mut more = None;
                for _ in least..most {
                    let some = one.iter().copied().chain(more).collect();
                    more = Some(self.choice([Vec::new(), some])?);
                }
                parts.extend(more);
            }
        }
        Ok(parts)
    }

    /// By lexeme: the bytes that may follow it. `first` has the bytes with which each begins.
    fn after(&self, first: &[Bytes]) -> Vec<Bytes> {
        // By rule: the bytes with which its texts begin, and whether one is empty.
        let mut begin = vec![(Bytes::default(), false); self.rules.len()];
        let start = |part: &Part, begin: &[(Bytes, bool)]| match part {
            Part::Lexeme(id) => (first.get(*id).copied().unwrap_or_default(), false),
            Part::Rule(id) => begin.get(*id).copied().unwrap_or_default(),
        };
        let users = self.users();
        settle(self.rules.len(), |i, again| {
            let (mut bytes, mut nullable) = begin.get(i).copied().unwrap_or_default();
            for parts in self.rules.get(i).into_iter().flatten() {
                nullable |= parts.iter().all(|part| {
                    let (more, empty) = start(part, &begin);
                    add(&mut bytes, &more);
                    empty
                });
            }
            if let Some(own) = begin.get_mut(i)
                && *own != (bytes, nullable)
            {
                *own = (bytes, nullable);
                users.get(i).into_iter().flatten().copied().for_each(again);
            }
        });
        let mut lexemes = vec![Bytes::default(); self.lexemes.len()];
        let mut rules = vec![Bytes::default(); self.rules.len()];
        settle(self.rules.len(), |i, again| {
            for parts in self.rules.get(i).into_iter().flatten() {
                let mut next = rules.get(i).copied().unwrap_or_default();
                for part in parts.iter().rev() {
                    match part {
                        Part::Lexeme(id) => lexemes.get_mut(*id).into_iter().for_each(|own| {
                            add(own, &next);
                        }),
                        Part::Rule(id) if rules.get_mut(*id).is_some_and(|own| add(own, &next)) => again(*id),
                        Part::Rule(_) => {}
                    }
                    let (bytes, nullable) = start(part, &begin);
                    if nullable {
                        add(&mut next, &bytes);
                    } else {
                        next = bytes;
                    }
                }
            }
        });
        lexemes
    }
}

fn emit(plan: &Plan<'_, '_>) -> Result<(Grammar, LexerSpec), String> {
    let mut lexer = LexerSpec::new().map_err(failed)?;
    lexer.regex_builder.unicode(true).utf8(true);
    let skip = SkipSpec::once(RegexAst::NoMatch);
    let class = lexer.setup_lexeme_class_with_skip(skip).map_err(failed)?;
    let mut grammar = Grammar::new(None);
    let mut symbol = |start| {
        let props = SymbolProps {
            grammar_id: class,
            is_start: start,
            ..SymbolProps::default()
        };
        grammar.fresh_symbol_ext("", props)
    };
    let rules: Vec<SymIdx> = (0..plan.rules.len()).map(|i| symbol(i == 0)).collect();
    let terminals: Vec<SymIdx> = plan.lexemes.iter().map(|_| symbol(false)).collect();
    for (expr, terminal) in plan.lexemes.iter().zip(&terminals) {
        let ast = plan.from.lexeme(expr);
        let lexeme = lexer.add_greedy_lexeme(String::new(), ast, false, None, usize::MAX);
        grammar
            .make_terminal(*terminal, lexeme.map_err(failed)?, &lexer)
            .map_err(failed)?;
    }
    for (own, rule) in rules.iter().zip(&plan.rules) {
        for parts in rule {
            let parts = parts.iter().filter_map(|part| match part {
                Part::Lexeme(id) => terminals.get(*id).copied(),
                Part::Rule(id) => rules.get(*id).copied(),
            });
            grammar.add_rule(*own, parts.collect()).map_err(failed)?;
        }
    }
    Ok((grammar, lexer))
}
