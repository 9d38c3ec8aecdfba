//! Watches JSON text beside a grammar that allows undeclared members. Such a grammar cannot forbid
//! that two members of an object have one name; this can.

use super::DefaultBound;
use super::defaults::Defaults;
use llguidance::TokenParser;
use llguidance::toktrie::Recognizer;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of bytes tried to find out whether a name can still differ from all others.
const STEPS: usize = 20_000;
/// Maximum length of the rest of such a name.
const DEPTH: usize = 300;

/// A token contains this many quotation marks, up to three; or a comma; or a backslash.
const QUOTES: u8 = 3;
const COMMA: u8 = 4;
const BACKSLASH: u8 = 8;

/// Where a string is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Escape {
    #[default]
    None,
    /// After a backslash.
    Start,
    /// In the digits of `\u`, of which so many are missing.
    Digits { left: u8, value: u16 },
}

/// A string up to a place in it.
#[derive(Clone, Debug, Default)]
struct Text {
    /// The bytes of its complete characters.
    bytes: Vec<u8>,
    escape: Escape,
    /// The first half of a surrogate pair.
    high: Option<u16>,
    characters: u32,
}

impl Text {
    /// Adds a byte of the string. Its value is kept if `keep`.
    fn push(&mut self, byte: u8, keep: bool) {
        match self.escape {
            Escape::None if byte == b'\\' => self.escape = Escape::Start,
            Escape::None => {
                // Other bytes continue a character.
                self.characters += u32::from(byte & 0xc0 != 0x80);
                if keep {
                    self.bytes.push(byte);
                }
            }
            Escape::Start if byte == b'u' => self.escape = Escape::Digits { left: 4, value: 0 },
            Escape::Start => {
                let value = match byte {
                    b'b' => 8,
                    b'f' => 12,
                    b'n' => 10,
                    b'r' => 13,
                    b't' => 9,
                    other => other,
                };
                self.escaped(u32::from(value), keep);
            }
            Escape::Digits { left, value } => {
                let digit = char::from(byte).to_digit(16).and_then(|d| u16::try_from(d).ok());
                let value = value << 4 | digit.unwrap_or(0);
                match (left, self.high.take()) {
                    (2.., high) => {
                        self.high = high;
                        let left = left - 1;
                        self.escape = Escape::Digits { left, value };
                    }
                    (_, Some(high)) => {
                        let (high, low) = (u32::from(high) & 0x3ff, u32::from(value) & 0x3ff);
                        self.escaped(0x1_0000 + (high << 10 | low), keep);
                    }
                    (_, None) if value & 0xfc00 == 0xd800 => {
                        self.high = Some(value);
                        self.escape = Escape::None;
                    }
                    (_, None) => self.escaped(u32::from(value), keep),
                }
            }
        }
    }

    fn escaped(&mut self, character: u32, keep: bool) {
        self.escape = Escape::None;
        self.characters += 1;
        let character = char::from_u32(character).unwrap_or(char::REPLACEMENT_CHARACTER);
        if keep {
            let mut buffer = [0; 4];
            self.bytes
                .extend_from_slice(character.encode_utf8(&mut buffer).as_bytes());
        }
    }

    /// True if the next byte begins a character.
    fn is_plain(&self) -> bool {
        self.escape == Escape::None && self.high.is_none()
    }
}

/// An open object or array.
#[derive(Clone, Copy, Debug)]
struct Open {
    object: bool,
    /// Differs from that of every other one of the text.
    id: u32,
    commas: u32,
}

/// A place in a JSON text that the grammar allows.
#[derive(Clone, Debug, Default)]
struct Place {
    open: Vec<Open>,
    /// The string that is being written.
    text: Option<Text>,
    /// The next string, or the current one, is the name of a member.
    name: bool,
    /// Objects and arrays so far.
    count: u32,
    /// Digits of the current number.
    digits: u32,
}

/// What a byte completes.
enum Event {
    None,
    /// The name of a member of this object, and its number of characters.
    Name(u32, Vec<u8>, u32),
    String {
        characters: u32,
    },
    /// A number with so many digits, and possibly the object or array around it.
    Value {
        digits: u32,
        closed: Option<Open>,
    },
}

impl Place {
    fn advance(&mut self, byte: u8) -> Event {
        if let Some(text) = &mut self.text {
            if byte != b'"' || text.escape != Escape::None {
                text.push(byte, self.name);
                return Event::None;
            }
            let text = self.text.take().unwrap_or_default();
            return match self.open.last().filter(|_| std::mem::take(&mut self.name)) {
                Some(object) => Event::Name(object.id, text.bytes, text.characters),
                None => Event::String {
                    characters: text.characters,
                },
            };
        }
        if byte.is_ascii_digit() {
            self.digits += 1;
            return Event::None;
        }
        if self.digits > 0 && b"+-.eE".contains(&byte) {
            return Event::None;
        }
        let mut closed = None;
        match byte {
            b'"' => self.text = Some(Text::default()),
            b'{' | b'[' => {
                self.name = byte == b'{';
                self.open.push(Open {
                    object: self.name,
                    id: self.count,
                    commas: 0,
                });
                self.count += 1;
            }
            b'}' | b']' => {
                self.name = false;
                closed = self.open.pop();
            }
            b',' => {
                if let Some(open) = self.open.last_mut() {
                    open.commas += 1;
                    self.name = open.object;
                }
            }
            _ => {}
        }
        let digits = std::mem::take(&mut self.digits);
        Event::Value { digits, closed }
    }
}

/// Names by object.
type Names = BTreeMap<u32, Vec<Vec<u8>>>;

/// Watches one text.
#[derive(Clone, Debug)]
pub struct Watch {
    place: Place,
    names: Names,
    /// Forbids repeated names.
    distinct: bool,
    /// The bounds at which values ended, without duplicates.
    reached: Vec<DefaultBound>,
    /// Those that the grammar uses.
    defaults: Arc<Defaults>,
}

/// What matters of each token: [`QUOTES`], [`COMMA`], [`BACKSLASH`].
pub fn features(words: &[Vec<u8>]) -> Vec<u8> {
    let of = |word: &Vec<u8>| {
        let quotes = word.iter().filter(|b| **b == b'"').take(3);
        let quotes = quotes.fold(0, |n, _| n + 1);
        let comma = if word.contains(&b',') { COMMA } else { 0 };
        quotes | comma | if word.contains(&b'\\') { BACKSLASH } else { 0 }
    };
    words.iter().map(of).collect()
}

impl Watch {
    pub fn new(distinct: bool, defaults: Defaults) -> Self {
        Self {
            place: Place::default(),
            names: Names::new(),
            distinct,
            reached: Vec::new(),
            defaults: Arc::new(defaults),
        }
    }

    /// The bounds at which values ended.
    pub fn reached(&self) -> Vec<DefaultBound> {
        let mut all = self.reached.clone();
        // A number at the end of the text.
        let is_full = self.defaults.numbers.are_reached(self.place.digits);
        if is_full && !all.contains(&DefaultBound::Digits) {
            all.push(DefaultBound::Digits);
        }
        all
    }

    fn reach(&mut self, bound: DefaultBound, is_reached: bool) {
        if is_reached && !self.reached.contains(&bound) {
            self.reached.push(bound);
        }
    }

    /// Appends a token to the text.
    pub fn accept(&mut self, token: &[u8]) {
        for byte in token {
            match self.place.advance(*byte) {
                Event::None => {}
                Event::Name(object, name, characters) => {
                    self.names.entry(object).or_default().push(name);
                    let is_full = self.defaults.names.are_reached(characters);
                    self.reach(DefaultBound::Characters, is_full);
                }
                Event::String { characters } => {
                    let is_full = self.defaults.texts.are_reached(characters);
                    self.reach(DefaultBound::Characters, is_full);
                }
                Event::Value { digits, closed } => {
                    let is_full = self.defaults.numbers.are_reached(digits);
                    self.reach(DefaultBound::Digits, is_full);
                    let Some(open) = closed else { continue };
                    let (names, count) = (self.names.remove(&open.id), open.commas as usize + 1);
                    let is_full = self
                        .defaults
                        .is_full(open.object, count, &names.unwrap_or_default());
                    self.reach(DefaultBound::Items, is_full);
                }
            }
        }
    }

    /// The tokens that repeat a name, and those after which every name would. `allow` says whether
    /// the grammar allows a token; others are not examined.
    pub fn forbidden(
        &self,
        parser: &mut TokenParser,
        features: &[u8],
        allow: &dyn Fn(u32) -> bool,
    ) -> Vec<u32> {
        if !self.distinct {
            return Vec::new();
        }
        let none = Vec::new();
        let Place { open, text, name, .. } = &self.place;
        let object = open.last().filter(|_| *name);
        let used = object.and_then(|o| self.names.get(&o.id)).unwrap_or(&none);
        let begun = text.as_ref().map_or(&[][..], |text| &text.bytes);
        let rests: Vec<&[u8]> = used.iter().filter_map(|name| name.strip_prefix(begun)).collect();
        let mut first = [false; 256];
        for byte in rests.iter().filter_map(|rest| rest.first()) {
            if let Some(begins) = first.get_mut(usize::from(*byte)) {
                *begins = true;
            }
        }
        let any = open.iter().any(|o| self.names.contains_key(&o.id));
        let env = parser.token_env.clone();
        let mut forbidden = Vec::new();
        for (id, features) in (0u32..).zip(features) {
            let quotes = features & QUOTES;
            let matters = match text {
                _ if !any => quotes == QUOTES,
                _ if quotes > 0 => true,
                None => features & COMMA > 0,
                Some(text) if *name => {
                    let word = env.tok_trie().token(id);
                    let begins = word.first().and_then(|b| first.get(usize::from(*b)));
                    let odd = features & BACKSLASH > 0 || !text.is_plain();
                    odd && !rests.is_empty()
                        || begins == Some(&true) && rests.iter().any(|rest| rest.starts_with(word))
                }
                Some(_) => false,
            };
            if matters && allow(id) && !self.allows(parser, env.tok_trie().token(id)) {
                forbidden.push(id);
            }
        }
        forbidden
    }

    /// Whether the text may continue with `token` without repeating a name, then or later.
    pub fn allows(&self, parser: &mut TokenParser, token: &[u8]) -> bool {
        if !self.distinct {
            return true;
        }
        let mut place = self.place.clone();
        let mut new: Vec<(u32, Vec<u8>)> = Vec::new();
        for byte in token {
            if let Event::Name(object, name, _) = place.advance(*byte) {
                let old = self.names.get(&object).is_some_and(|names| names.contains(&name));
                if old || new.iter().any(|(o, n)| (*o, n) == (object, &name)) {
                    return false;
                }
                new.push((object, name));
            }
        }
        let Some(object) = place.open.last().filter(|_| place.name) else {
            return true;
        };
        let old = self.names.get(&object.id).into_iter().flatten();
        let new = new.iter().filter(|(o, _)| *o == object.id).map(|(_, n)| n);
        let used: Vec<&[u8]> = old.chain(new).map(Vec::as_slice).collect();
        if used.is_empty() {
            return true;
        }
        // White space before the name makes no difference.
        let mark: &[u8] = if place.text.is_none() { b"\"" } else { b"" };
        let text = place.text.unwrap_or_default();
        parser.parser.with_recognizer(|grammar| {
            grammar.trie_started("names");
            let mut pushed = 0;
            let begun = token.iter().chain(mark).all(|byte| {
                let is_next = grammar.try_push_byte(*byte);
                pushed += usize::from(is_next);
                is_next
            });
            let free = !begun || is_free(grammar, &text, &used, &mut { STEPS }, DEPTH);
            grammar.pop_bytes(pushed);
            grammar.trie_finished();
            free
        })
    }
}

/// Whether the grammar allows a name that begins with `text` and is not one of `used`. True if the
/// search takes too long.
fn is_free(
    grammar: &mut dyn Recognizer,
    text: &Text,
    used: &[&[u8]],
    steps: &mut usize,
    depth: usize,
) -> bool {
    let Some(depth) = depth.checked_sub(1) else {
        return true;
    };
    if !used.iter().any(|name| name.starts_with(&text.bytes)) {
        return true;
    }
    for byte in 0x20..=0xff {
        let Some(left) = steps.checked_sub(1) else {
            return true;
        };
        *steps = left;
        if !grammar.try_push_byte(byte) {
            continue;
        }
        let free = if byte == b'"' && text.is_plain() {
            !used.contains(&text.bytes.as_slice())
        } else {
            let mut next = text.clone();
            next.push(byte, true);
            is_free(grammar, &next, used, steps, depth)
        };
        grammar.pop_bytes(1);
        if free {
            return true;
        }
    }
    false
}
