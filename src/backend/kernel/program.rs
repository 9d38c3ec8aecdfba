//! Elementwise functions as lists of steps, for backends that run them without a compiler.

use super::functions::{Binary, Test, Unary};
use std::fmt;

/// The result of a step, by its index.
pub type Register = usize;

/// A step of a [`Program`]. Integers have 32 bits, or 64 if the program is
/// [wide](Program::is_wide); truth values are the integers 1 and 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// An argument of the function, by index.
    Argument(usize),
    /// A float constant, as its bits.
    Float(u32),
    /// An integer constant.
    Int(i64),
    /// A function of a float.
    Unary(Unary, Register),
    /// A function of an integer.
    IntUnary(Unary, Register),
    /// A predicate of a float.
    Test(Test, Register),
    /// The negation of a truth value.
    Not(Register),
    /// A function of two floats.
    Binary(Binary, Register, Register),
    /// A function of two integers.
    IntBinary(Binary, Register, Register),
    /// A function of two unsigned integers; only in wide programs.
    UnsignedBinary(Binary, Register, Register),
    /// Where the condition is not 0, the first value; elsewhere the second.
    Select(Register, Register, Register),
    /// A float rounded to a half.
    ToHalf(Register),
    /// An integer as a float.
    ToFloat(Register),
    /// An unsigned integer as a float; only in wide programs.
    UnsignedToFloat(Register),
    /// A float as an integer: truncated, saturated to 64 bits, reduced to the low bits.
    ToInt(Register),
    /// A float as an integer, truncated and saturated.
    ToNearestInt(Register),
    /// A float as an unsigned integer, truncated and saturated; only in wide programs.
    ToUnsigned(Register),
    /// Whether a float is not 0.
    FloatIsTrue(Register),
    /// Whether an integer is not 0.
    IntIsTrue(Register),
    /// The low bits of an integer, as a signed or an unsigned number.
    Wrap {
        /// The integer.
        of: Register,
        /// Number of bits to keep, fewer than an integer has.
        bits: usize,
        /// Whether the result may be negative.
        signed: bool,
    },
}

/// An elementwise function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    steps: Vec<Step>,
    value: Register,
    is_wide: bool,
}

impl Program {
    /// The function whose value is the result of step `value`. If `is_wide`, its integers have 64
    /// bits.
    pub fn new(steps: Steps, value: Register, is_wide: bool) -> Self {
        Self {
            steps: steps.0,
            value,
            is_wide,
        }
    }

    /// Whether integers have 64 bits.
    pub fn is_wide(&self) -> bool {
        self.is_wide
    }

    /// The steps, in order. Each uses results of earlier ones.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The step whose result is the value.
    pub fn value(&self) -> Register {
        self.value
    }

    /// If the value is an argument between two bounds: the argument and the bounds.
    pub fn clamp(&self) -> Option<(usize, [f32; 2])> {
        let constant = |r: Register| match self.steps.get(r) {
            Some(Step::Float(bits)) => Some(f32::from_bits(*bits)).filter(|v| !v.is_nan()),
            _ => None,
        };
        let (mut at, mut bounds) = (self.value, [f32::NEG_INFINITY, f32::INFINITY]);
        loop {
            let low = |v: f32, [low, high]: [f32; 2]| [low.max(v), high];
            let high = |v: f32, [low, high]: [f32; 2]| [low, high.min(v)];
            (at, bounds) = match *self.steps.get(at)? {
                Step::Argument(i) => return (bounds[0] <= bounds[1]).then_some((i, bounds)),
                Step::Unary(Unary::Relu, x) => (x, low(0.0, bounds)),
                Step::Binary(Binary::Max, x, c) => (x, low(constant(c)?, bounds)),
                Step::Binary(Binary::Min, x, c) => (x, high(constant(c)?, bounds)),
                _ => return None,
            };
        }
    }
}

/// The steps of a program under construction.
#[derive(Clone, Debug, Default)]
pub struct Steps(Vec<Step>);

impl Steps {
    /// Adds a step, unless there is an equal one, and returns its result.
    pub fn add(&mut self, step: Step) -> Register {
        self.0.iter().position(|s| *s == step).unwrap_or_else(|| {
            self.0.push(step);
            self.0.len() - 1
        })
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (register, step) in self.steps.iter().enumerate() {
            write!(f, "r{register} = {step:?}; ")?;
        }
        write!(f, "return r{}", self.value)
    }
}
