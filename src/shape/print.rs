//! Text of [`Dim`].

use super::dim::{Atom, Dim, Term};
use std::fmt;

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, name: &str, args: &[Dim]| {
            for (i, a) in args.iter().enumerate() {
                f.write_str(if i == 0 { name } else { ", " })?;
                write!(f, "{a}")?;
            }
            f.write_str(")")
        };
        match self {
            Self::Symbol(s) => write!(f, "{s}"),
            Self::Floor(x) => {
                match (x.num.terms(), x.num.constant()) {
                    ([Term { factor: 1.., .. }], 0) | ([], 0..) => write!(f, "floor({}/", x.num),
                    _ => write!(f, "floor(({})/", x.num),
                }?;
                match (x.den.terms(), x.den.constant()) {
                    ([t], 0) if t.factor == 1 && t.product.len() == 1 => write!(f, "{})", x.den),
                    ([], _) => write!(f, "{})", x.den),
                    _ => write!(f, "({}))", x.den),
                }
            }
            Self::Min(c) => list(f, "min(", &c.args),
            Self::Max(c) => list(f, "max(", &c.args),
        }
    }
}

/// `i64::MIN` has no positive counterpart; it is printed as two terms.
const LARGEST: u64 = i64::MAX.unsigned_abs();

/// A term without its sign.
pub(super) struct Unsigned<'a>(pub &'a Term);

impl fmt::Display for Unsigned<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let magnitude = self.0.factor.unsigned_abs();
        if magnitude != 1 {
            write!(f, "{}", magnitude.min(LARGEST))?;
        }
        for (i, atom) in self.0.product.iter().enumerate() {
            if i > 0 || magnitude != 1 {
                f.write_str("*")?;
            }
            write!(f, "{atom}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Dim {
    /// Prints terms in order, constant last: `past + seq`, `2*N - 1`, `floor((N + 3)/4)`. The text
    /// parses back to an equal dim.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.terms(), self.constant()) {
            ([], i64::MIN) => return write!(f, "-{LARGEST} - 1"),
            ([], c) => return write!(f, "{c}"),
            _ => {}
        }
        for (i, t) in self.terms().iter().enumerate() {
            match (i, t.factor < 0) {
                (0, true) => f.write_str("-")?,
                (0, false) => {}
                (_, true) => f.write_str(" - ")?,
                (_, false) => f.write_str(" + ")?,
            }
            write!(f, "{}", Unsigned(t))?;
            if t.factor == i64::MIN {
                let rest = Term {
                    product: t.product.clone(),
                    factor: 1,
                };
                write!(f, " - {}", Unsigned(&rest))?;
            }
        }
        match self.constant() {
            0 => Ok(()),
            i64::MIN => write!(f, " - {LARGEST} - 1"),
            c if c < 0 => write!(f, " - {}", c.unsigned_abs()),
            c => write!(f, " + {c}"),
        }
    }
}
