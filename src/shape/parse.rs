//! Parser from text to [`Dim`]: recursive descent over bytes with limits on length and depth.
//! [`Dim::parse`] documents the language.

use super::dim::{Dim, DimError, MAX_DEPTH, common_divisor};
use super::symbol::{Symbol, shortened};

/// Maximum length of a text, in bytes.
const MAX_TEXT: usize = 1 << 16;

/// Maximum exponent of `**`.
const MAX_POWER: u32 = 16;

/// Maximum number of digits after the point of a decimal fraction.
const MAX_DIGITS: usize = 12;

/// Parses the whole of `text` as one expression.
pub(super) fn dim(text: &str) -> Result<Dim, DimError> {
    let mut p = Parser {
        text,
        at: 0,
        depth: 0,
        exact: false,
    };
    if text.len() > MAX_TEXT {
        return Err(p.error("the text is too long"));
    }
    let value = p.sum()?;
    if p.peek().is_some() {
        return Err(p.error("unexpected character"));
    }
    p.integer(value)
}

/// `num/den`. The divisor is 1 outside of `floor` and `ceil`; a constant divisor is above 0.
struct Ratio {
    num: Dim,
    den: Dim,
}

impl From<Dim> for Ratio {
    fn from(num: Dim) -> Self {
        Self { num, den: 1.into() }
    }
}

impl Ratio {
    /// Numerators of both over their common divisor.
    fn common(&self, other: &Self) -> Result<(Dim, Dim, Dim), DimError> {
        if self.den == other.den {
            return Ok((self.num.clone(), other.num.clone(), self.den.clone()));
        }
        let (x, y) = match (self.den.as_const(), other.den.as_const()) {
            (Some(a), Some(b)) => {
                let g = common_divisor([a.unsigned_abs(), b.unsigned_abs()]);
                (Dim::from(b / g), Dim::from(a / g))
            }
            _ => (other.den.clone(), self.den.clone()),
        };
        Ok((self.num.mul(&x)?, other.num.mul(&y)?, self.den.mul(&x)?))
    }

    fn join(
        &self,
        other: &Self,
        how: impl Fn(&Dim, &Dim) -> Result<Dim, DimError>,
    ) -> Result<Self, DimError> {
        let (a, b, den) = self.common(other)?;
        Ok(Self {
            num: how(&a, &b)?,
            den,
        })
    }

    fn mul(&self, other: &Self) -> Result<Self, DimError> {
        Ok(Self {
            num: self.num.mul(&other.num)?,
            den: self.den.mul(&other.den)?,
        })
    }

    fn div(&self, other: &Self) -> Result<Self, DimError> {
        let (num, den) = (self.num.mul(&other.den)?, self.den.mul(&other.num)?);
        match den.as_const() {
            Some(0) => Err(DimError::BadDivisor(num.to_string(), 0)),
            Some(n) if n < 0 => Ok(Self {
                num: num.scale(-1)?,
                den: den.scale(-1)?,
            }),
            _ => Ok(Self { num, den }),
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: u32,
    /// Inside `floor` or `ceil`, where `/` is exact.
    exact: bool,
}

impl Parser<'_> {
    fn error(&self, why: &'static str) -> DimError {
        DimError::Parse {
            text: shortened(self.text),
            why,
            at: self.at,
        }
    }

    fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        bytes.get(self.at).copied()
    }

    fn take(&mut self, token: &str) -> bool {
        self.peek();
        let hit = self.text.get(self.at..).is_some_and(|t| t.starts_with(token));
        self.at += if hit { token.len() } else { 0 };
        hit
    }

    fn need(&mut self, token: &str, why: &'static str) -> Result<(), DimError> {
        if self.take(token) {
            Ok(())
        } else {
            Err(self.error(why))
        }
    }

    /// The run of letters, digits and `_` at the cursor.
    fn word(&mut self) -> &str {
        let rest = self.text.get(self.at..).unwrap_or("");
        let n = rest
            .bytes()
            .take_while(|b| b.is_ascii_alphanumeric() || *b == b'_')
            .count();
        self.at += n;
        rest.get(..n).unwrap_or("")
    }

    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T, DimError>) -> Result<T, DimError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error("too deeply nested"));
        }
        let out = parse(self);
        self.depth -= 1;
        out
    }

    /// The value, which must not be a fraction.
    fn integer(&self, value: Ratio) -> Result<Dim, DimError> {
        if value.den.is(1) {
            return Ok(value.num);
        }
        value
            .num
            .exact_div(&value.den)
            .ok_or_else(|| self.error("expected an integer, found a fraction"))
    }

    fn sum(&mut self) -> Result<Ratio, DimError> {
        self.deeper(|p| {
            let mut d = p.product()?;
            loop {
                if p.take("+") {
                    d = d.join(&p.product()?, Dim::add)?;
                } else if p.take("-") {
                    d = d.join(&p.product()?, Dim::sub)?;
                } else {
                    return Ok(d);
                }
            }
        })
    }

    fn product(&mut self) -> Result<Ratio, DimError> {
        let mut d = self.unary()?;
        loop {
            if self.take("*") {
                d = d.mul(&self.unary()?)?;
            } else if self.take("//") {
                d = self.integers(d, Dim::div_floor)?;
            } else if self.take("/") {
                d = if self.exact {
                    d.div(&self.unary()?)?
                } else {
                    self.integers(d, Dim::div_floor)?
                };
            } else if self.take("%") {
                d = self.integers(d, Dim::modulo)?;
            } else {
                return Ok(d);
            }
        }
    }

    /// Combines `left` with the following operand, both integers.
    fn integers(
        &mut self,
        left: Ratio,
        how: fn(&Dim, &Dim) -> Result<Dim, DimError>,
    ) -> Result<Ratio, DimError> {
        let right = self.unary()?;
        Ok(how(&self.integer(left)?, &self.integer(right)?)?.into())
    }

    fn unary(&mut self) -> Result<Ratio, DimError> {
        if !self.take("-") {
            return self.power();
        }
        self.deeper(|p| {
            let d = p.unary()?;
            Ok(Ratio {
                num: d.num.scale(-1)?,
                den: d.den,
            })
        })
    }

    fn power(&mut self) -> Result<Ratio, DimError> {
        let base = self.primary()?;
        if !self.take("**") {
            return Ok(base);
        }
        self.peek();
        let exponent = self.word().parse::<u32>().ok().filter(|n| *n <= MAX_POWER);
        let exponent = exponent.ok_or_else(|| self.error("expected a small integer exponent"))?;
        let mut out = Ratio::from(Dim::from(1));
        for _ in 0..exponent {
            out = out.mul(&base)?;
        }
        Ok(out)
    }

    fn primary(&mut self) -> Result<Ratio, DimError> {
        match self.peek() {
            Some(b'(') => {
                self.at += 1;
                let d = self.sum()?;
                self.need(")", "expected `)`")?;
                Ok(d)
            }
            Some(c) if c.is_ascii_digit() => self.number(),
            Some(c) if c.is_ascii_alphabetic() || c == b'_' => self.named(),
            Some(_) => Err(self.error("unexpected character")),
            None => Err(self.error("unexpected end")),
        }
    }

    fn number(&mut self) -> Result<Ratio, DimError> {
        const WHY: &str = "not a 64-bit integer";
        let parsed = self.word().parse::<i64>();
        let whole: Dim = parsed.map_err(|_| self.error(WHY))?.into();
        if self.text.as_bytes().get(self.at) != Some(&b'.') {
            return Ok(whole.into());
        }
        if !self.exact {
            return Err(self.error("expected an integer, found a fraction"));
        }
        self.at += 1;
        let digits = self.word().to_owned();
        let scale = u32::try_from(digits.len())
            .ok()
            .and_then(|n| 10i64.checked_pow(n));
        let legal = !digits.is_empty() && digits.len() <= MAX_DIGITS;
        match (digits.parse::<i64>(), scale) {
            (Ok(part), Some(scale)) if legal => {
                let num = whole.scale(scale)?.add(&part.into())?;
                Ratio::from(num).div(&Dim::from(scale).into())
            }
            _ => Err(self.error("not a decimal fraction")),
        }
    }

    /// A function call or a symbol.
    fn named(&mut self) -> Result<Ratio, DimError> {
        let word = self.word().to_owned();
        let known = matches!(
            word.as_str(),
            "floor"
                | "ceil"
                | "ceiling"
                | "min"
                | "Min"
                | "max"
                | "Max"
                | "mod"
                | "Mod"
                | "FloorDiv"
                | "CeilDiv"
        );
        if !known || !self.take("(") {
            return Ok(Ratio::from(Dim::from(&Symbol::parse(&word)?)));
        }
        let outer = self.exact;
        self.exact |= matches!(word.as_str(), "floor" | "ceil" | "ceiling");
        let mut args = vec![self.sum()?];
        while self.take(",") {
            args.push(self.sum()?);
        }
        self.exact = outer;
        self.need(")", "expected `,` or `)`")?;
        let count = args.len();
        let mut args = args.into_iter();
        let Some(first) = args.next() else {
            return Err(self.error("expected an operand"));
        };
        match (word.as_str(), count) {
            ("floor", 1) => Ok(first.num.div_floor(&first.den)?.into()),
            ("ceil" | "ceiling", 1) => Ok(first.num.div_ceil(&first.den)?.into()),
            ("min" | "Min", _) => args.try_fold(first, |a, b| a.join(&b, Dim::minimum)),
            ("max" | "Max", _) => args.try_fold(first, |a, b| a.join(&b, Dim::maximum)),
            ("mod" | "Mod" | "FloorDiv" | "CeilDiv", 2) => {
                let a = self.integer(first)?;
                let b = args.next().map_or_else(|| Ok(1.into()), |b| self.integer(b))?;
                let value = match word.as_str() {
                    "FloorDiv" => a.div_floor(&b),
                    "CeilDiv" => a.div_ceil(&b),
                    _ => a.modulo(&b),
                };
                Ok(value?.into())
            }
            _ => Err(self.error("wrong number of operands")),
        }
    }
}
