//! Reads GBNF.

use std::collections::HashMap;

/// Maximum nesting of parentheses.
const DEPTH: usize = 100;
/// Maximum number of repetitions, as in llama.cpp.
const REPETITIONS: u32 = 2000;
/// Maximum number of repetitions of a repetition, such as `"a"?*{3}`.
const NESTED: usize = 8;

/// A part of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// One character of these ranges.
    Characters(Vec<(char, char)>),
    /// The rule with this index.
    Rule(usize),
    Sequence(Vec<Self>),
    Choice(Vec<Self>),
    /// Repeated at least, and possibly at most, so many times.
    Repeat(Box<Self>, u32, Option<u32>),
}

pub struct Rule {
    pub body: Expr,
    /// Where its definition starts in the text.
    pub at: usize,
}

/// The number of the line at a place of the text.
pub fn line(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|b| *b == b'\n').count() + 1
}

/// The rules of a grammar; the first is `root`. The error names the line.
pub fn rules(text: &str) -> Result<Vec<Rule>, String> {
    let mut parser = Parser {
        text,
        rest: text,
        names: HashMap::new(),
        rules: Vec::new(),
    };
    parser.rule_id("root", "");
    parser.space(true);
    while !parser.rest.is_empty() {
        parser.definition()?;
    }
    let named = parser.names.iter().map(|(name, id)| (*id, *name));
    let named: HashMap<usize, &str> = named.collect();
    let mut rules = Vec::new();
    for (id, (rule, used)) in parser.rules.into_iter().enumerate() {
        let Some(rule) = rule else {
            let name = named.get(&id).copied().unwrap_or_default();
            return Err(match used {
                end if end == text.len() => "it has no rule `root`".to_owned(),
                at => format!("line {}: there is no rule `{name}`", line(text, at)),
            });
        };
        rules.push(rule);
    }
    Ok(rules)
}

struct Parser<'t> {
    text: &'t str,
    rest: &'t str,
    names: HashMap<&'t str, usize>,
    /// By rule: the rule, and where the text first uses its name. `root` is used at the end.
    rules: Vec<(Option<Rule>, usize)>,
}

impl<'t> Parser<'t> {
    /// Where `rest` starts in the text.
    fn at(&self, rest: &str) -> usize {
        self.text.len() - rest.len()
    }

    fn fault(&self, what: impl std::fmt::Display) -> String {
        format!("line {}: {what}", line(self.text, self.at(self.rest)))
    }

    fn expected(&self, what: &str) -> String {
        match self.rest.lines().next() {
            Some(line) if !line.is_empty() => {
                let found: String = line.chars().take(30).collect();
                self.fault(format!("expected {what}, found `{found}`"))
            }
            Some(_) => self.fault(format!("expected {what}, found the end of the line")),
            None => self.fault(format!("expected {what}, found the end of the grammar")),
        }
    }

    /// Skips white space and comments, and line breaks if `lines`.
    fn space(&mut self, lines: bool) {
        loop {
            let blank = |c: char| c == ' ' || c == '\t' || lines && (c == '\n' || c == '\r');
            self.rest = self.rest.trim_start_matches(blank);
            if !self.rest.starts_with('#') {
                return;
            }
            self.rest = self.rest.trim_start_matches(|c| c != '\n' && c != '\r');
        }
    }

    fn skip(&mut self, mark: &str) -> bool {
        let found = self.rest.strip_prefix(mark);
        self.rest = found.unwrap_or(self.rest);
        found.is_some()
    }

    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let c = chars.next()?;
        self.rest = chars.as_str();
        Some(c)
    }

    fn name(&mut self) -> Option<&'t str> {
        let other = |c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_';
        let end = self.rest.find(other).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at_checked(end).filter(|_| end > 0)?;
        self.rest = rest;
        Some(name)
    }

    fn rule_id(&mut self, name: &'t str, at: &str) -> usize {
        let next = self.rules.len();
        let id = *self.names.entry(name).or_insert(next);
        if id == next {
            self.rules.push((None, self.at(at)));
        }
        id
    }

    fn definition(&mut self) -> Result<(), String> {
        let start = self.rest;
        let name = self.name().ok_or_else(|| self.expected("the name of a rule"))?;
        self.space(false);
        if !self.skip("::=") {
            return Err(self.expected("`::=`"));
        }
        self.space(true);
        let body = self.choice(false, 0)?;
        let (id, at) = (self.rule_id(name, start), self.at(start));
        if let Some(rule) = self.rules.get_mut(id)
            && rule.0.replace(Rule { body, at }).is_some()
        {
            let line = line(self.text, at);
            return Err(format!("line {line}: the rule `{name}` is defined twice"));
        }
        if !self.rest.is_empty() && !self.rest.starts_with(['\n', '\r']) {
            return Err(self.expected("the end of the rule"));
        }
        self.space(true);
        Ok(())
    }

    fn choice(&mut self, nested: bool, depth: usize) -> Result<Expr, String> {
        if depth > DEPTH {
            return Err(self.fault(format!("parentheses are nested deeper than {DEPTH} levels")));
        }
        let mut list = vec![self.sequence(nested, depth)?];
        while self.skip("|") {
            self.space(true);
            list.push(self.sequence(nested, depth)?);
        }
        Ok(match list.len() {
            1 => list.remove(0),
            _ => Expr::Choice(list),
        })
    }

    fn sequence(&mut self, nested: bool, depth: usize) -> Result<Expr, String> {
        let mut list = Vec::new();
        while let Some(part) = self.item(depth)? {
            self.space(nested);
            let part = self.repeated(part, nested)?;
            match part {
                // Texts are sequences of characters.
                Expr::Sequence(parts) => list.extend(parts),
                part => list.push(part),
            }
        }
        Ok(match list.len() {
            1 => list.remove(0),
            _ => Expr::Sequence(list),
        })
    }

    /// The next part of a sequence; `None` at its end.
    fn item(&mut self, depth: usize) -> Result<Option<Expr>, String> {
        let start = self.rest;
        Ok(Some(match self.rest.chars().next() {
            Some('"') => {
                self.next();
                let mut list = Vec::new();
                while !self.skip("\"") {
                    let c = self.character("a quotation mark that ends the text")?;
                    list.push(Expr::Characters(vec![(c, c)]));
                }
                Expr::Sequence(list)
            }
            Some('[') => {
                self.next();
                self.class()?
            }
            Some('(') => {
                self.next();
                self.space(true);
                let inner = self.choice(true, depth + 1)?;
                if !self.skip(")") {
                    return Err(self.expected("`)`"));
                }
                inner
            }
            Some('.') => {
                self.next();
                Expr::Characters(vec![('\0', char::MAX)])
            }
            Some('<' | '!') => {
                let end = self.rest.find('>').map_or(self.rest.len(), |at| at + 1);
                let token = self.rest.get(..end).unwrap_or(self.rest);
                let token = token.lines().next().unwrap_or_default();
                let what = "is a token, which is not supported; write the text that is to match";
                return Err(self.fault(format!("`{token}` {what}")));
            }
            _ => match self.name() {
                Some(name) => Expr::Rule(self.rule_id(name, start)),
                None => return Ok(None),
            },
        }))
    }

    /// `part` with the repetitions after it.
    fn repeated(&mut self, mut part: Expr, nested: bool) -> Result<Expr, String> {
        for depth in 0.. {
            let (least, most) = if self.skip("*") {
                (0, None)
            } else if self.skip("+") {
                (1, None)
            } else if self.skip("?") {
                (0, Some(1))
            } else if self.rest.starts_with('{') {
                self.counts()?
            } else {
                break;
            };
            if depth == NESTED {
                return Err(self.fault(format!("repetitions are nested deeper than {NESTED} levels")));
            }
            self.space(nested);
            part = Expr::Repeat(Box::new(part), least, most);
        }
        Ok(part)
    }

    /// `{m}`, `{m,}` or `{m,n}`.
    fn counts(&mut self) -> Result<(u32, Option<u32>), String> {
        let wrong = |found: &str| {
            self.fault(format!(
                "`{{{found}}}`: expected `{{m}}`, `{{m,}}` or `{{m,n}}` with numbers up to {REPETITIONS}"
            ))
        };
        let inside = self.rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let Some((inside, rest)) = inside else {
            return Err(self.expected("`}`"));
        };
        let number = |text: &str| {
            let n: Option<u32> = text.trim().parse().ok();
            n.filter(|n| *n <= REPETITIONS).ok_or_else(|| wrong(inside))
        };
        let (least, most) = match inside.split_once(',') {
            None => (number(inside)?, Some(number(inside)?)),
            Some((least, most)) if most.trim().is_empty() => (number(least)?, None),
            Some((least, most)) => (number(least)?, Some(number(most)?)),
        };
        if most.is_some_and(|most| most < least) {
            return Err(wrong(inside));
        }
        self.rest = rest;
        Ok((least, most))
    }

    fn class(&mut self) -> Result<Expr, String> {
        let other = self.skip("^");
        let mut ranges = Vec::new();
        while !self.skip("]") {
            let low = self.character("`]`")?;
            let is_range = self.rest.starts_with('-') && !self.rest.starts_with("-]");
            let high = if is_range {
                self.next();
                self.character("`]`")?
            } else {
                low
            };
            if high < low {
                return Err(self.fault(format!("the range from {low:?} to {high:?} is empty")));
            }
            ranges.push((low, high));
        }
        ranges.sort_unstable();
        if ranges.is_empty() {
            return Err(self.fault("a class without characters; write `.` for any character"));
        }
        if !other {
            return Ok(Expr::Characters(ranges));
        }
        let mut rest = Vec::new();
        let mut next = 0;
        for (low, high) in ranges.into_iter().map(|(a, b)| (u32::from(a), u32::from(b))) {
            rest.push((next, low.saturating_sub(1), low > next));
            next = next.max(high + 1);
        }
        rest.push((next, u32::from(char::MAX), next <= u32::from(char::MAX)));
        let rest = rest.into_iter().filter(|r| r.2);
        Ok(Expr::Characters(rest.flat_map(|r| scalars(r.0, r.1)).collect()))
    }

    /// A character of a text or a class, which may be escaped.
    fn character(&mut self, otherwise: &str) -> Result<char, String> {
        let start = self.rest;
        let c = self.next().ok_or_else(|| self.expected(otherwise))?;
        if c != '\\' {
            return Ok(c);
        }
        let wrong = |parser: &Self| {
            let escape: String = start.chars().take(2).collect();
            parser.fault(format!("`{escape}` is not an escape of a character"))
        };
        let count = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => return Err(wrong(self)),
        };
        let (digits, rest) = self.rest.split_at_checked(count).ok_or_else(|| wrong(self))?;
        let code = digits.bytes().all(|b| b.is_ascii_hexdigit()).then_some(digits);
        let code = code.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let c = code.and_then(char::from_u32).ok_or_else(|| wrong(self))?;
        self.rest = rest;
        Ok(c)
    }
}

/// The characters of a range of numbers, without surrogates.
fn scalars(low: u32, high: u32) -> Vec<(char, char)> {
    let parts = [(low, high.min(0xd7ff)), (low.max(0xe000), high)];
    let parts = parts.into_iter().filter(|(low, high)| low <= high);
    parts
        .filter_map(|(low, high)| Some((char::from_u32(low)?, char::from_u32(high)?)))
        .collect()
}
