//! Valid ranges of settings, for the library and the command line.

use std::fmt;

/// An interval of finite numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// Lower bound.
    pub low: f32,
    /// True if `low` itself is excluded.
    pub above: bool,
    /// Upper bound; may be infinite.
    pub high: f32,
}

impl Range {
    /// From `low` to `high`, inclusive.
    pub const fn of(low: f32, high: f32) -> Self {
        Self {
            low,
            above: false,
            high,
        }
    }

    /// Above `low`, up to and including `high`.
    pub const fn above(low: f32, high: f32) -> Self {
        Self {
            low,
            above: true,
            high,
        }
    }

    /// True for a finite number in the range.
    pub fn holds(&self, v: f32) -> bool {
        let low = if self.above { v > self.low } else { v >= self.low };
        v.is_finite() && low && v <= self.high
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.above, self.high.is_finite()) {
            (true, true) => write!(f, "a number above {} and at most {}", self.low, self.high),
            (true, false) => write!(f, "a finite number above {}", self.low),
            (false, true) => write!(f, "a number from {} to {}", self.low, self.high),
            (false, false) => write!(f, "a finite number of at least {}", self.low),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_and_words() {
        let cases = [
            (
                Range::of(-2.0, 2.0),
                [-2.0, 2.0],
                [-2.1, 2.1],
                "a number from -2 to 2",
            ),
            (
                Range::above(0.0, 1.0),
                [1e-9, 1.0],
                [0.0, 1.1],
                "a number above 0 and at most 1",
            ),
            (
                Range::of(0.0, f32::INFINITY),
                [0.0, 3e38],
                [-1e-9, f32::INFINITY],
                "a finite number of at least 0",
            ),
            (
                Range::above(0.0, f32::INFINITY),
                [1e-9, 3e38],
                [0.0, f32::INFINITY],
                "a finite number above 0",
            ),
        ];
        for (range, inside, outside, words) in cases {
            assert!(inside.iter().all(|v| range.holds(*v)), "{range}");
            assert!(!outside.iter().any(|v| range.holds(*v)), "{range}");
            assert!(!range.holds(f32::NAN));
            assert_eq!(range.to_string(), words);
        }
    }
}
