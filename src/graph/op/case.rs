//! Conformance cases: operators with operands, compared between devices and [`Op::eval`].

use super::Op;
use crate::tensor::{DType, HostTensor, TensorError};

/// Contents of an operand of a case.
#[derive(Clone, Debug, PartialEq)]
enum Fill {
    Range(f32, f32),
    Ints(DType, i64, i64),
    Bools,
    Values(Vec<i64>),
    Floats(&'static [f32]),
    Tensor(HostTensor),
}

/// An operand of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    shape: Vec<usize>,
    fill: Fill,
    /// Known when planning, like an initializer.
    pub is_const: bool,
}

/// A float operand with values in -1 to 1.
pub fn input(shape: &[usize]) -> Input {
    Input {
        shape: shape.to_vec(),
        fill: Fill::Range(-1.0, 1.0),
        is_const: false,
    }
}

/// Floats at the edges: every kind of number, exact in `f16`.
pub const EDGES: &[f32] = &[
    f32::NAN,
    1.0,
    -1.0,
    f32::INFINITY,
    f32::NEG_INFINITY,
    0.0,
    -0.0,
    5.0,
    200.0,
    -0.25,
    -200.0,
];

/// Rows of three scores: masked in part, as a whole, and with infinity and NaN.
pub const MASKED: &[f32] = &[
    f32::NEG_INFINITY,
    1.0,
    2.0,
    f32::NEG_INFINITY,
    f32::NEG_INFINITY,
    f32::NEG_INFINITY,
    0.0,
    f32::NEG_INFINITY,
    f32::NEG_INFINITY,
    1.0,
    f32::INFINITY,
    0.0,
    f32::NAN,
    2.0,
    1.0,
    3.0,
    2.0,
    -1.0,
];

/// An operand with these contents.
pub fn given(tensor: HostTensor) -> Input {
    Input {
        is_const: false,
        ..constant(tensor)
    }
}

/// An operand with these contents, known when planning.
pub fn constant(tensor: HostTensor) -> Input {
    Input {
        shape: tensor.shape().to_vec(),
        fill: Fill::Tensor(tensor),
        is_const: true,
    }
}

impl Input {
    /// Sets floats between `low` and `high`.
    #[must_use]
    pub fn range(self, low: f32, high: f32) -> Self {
        Self {
            fill: Fill::Range(low, high),
            ..self
        }
    }

    /// Sets `i64` values between `low` and `high`, inclusive.
    #[must_use]
    pub fn ints(self, low: i64, high: i64) -> Self {
        Self {
            fill: Fill::Ints(DType::I64, low, high),
            ..self
        }
    }

    /// Sets `i32` values between `low` and `high`, inclusive.
    #[must_use]
    pub fn ints32(self, low: i64, high: i64) -> Self {
        Self {
            fill: Fill::Ints(DType::I32, low, high),
            ..self
        }
    }

    /// Sets random truth values.
    #[must_use]
    pub fn bools(self) -> Self {
        Self {
            fill: Fill::Bools,
            ..self
        }
    }

    /// Sets these `i64` values.
    #[must_use]
    pub fn values(self, values: &[i64]) -> Self {
        Self {
            fill: Fill::Values(values.to_vec()),
            ..self
        }
    }

    /// Sets these floats, over and over.
    #[must_use]
    pub fn floats(self, values: &'static [f32]) -> Self {
        Self {
            fill: Fill::Floats(values),
            ..self
        }
    }

    /// Makes the operand known when planning.
    #[must_use]
    pub fn constant(self) -> Self {
        Self {
            is_const: true,
            ..self
        }
    }

    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Creates the operand from `seed`. Floats are exact in `f16`, so that storage adds no error.
    pub fn make(&self, seed: u64) -> Result<HostTensor, TensorError> {
        let count = self.elements();
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x1234_5678);
        // A 64-bit linear congruential generator (Knuth's MMIX constants); the top bits are used.
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as u32
        };
        match &self.fill {
            #[expect(clippy::cast_precision_loss, reason = "24 bits fit a float")]
            Fill::Range(low, high) => {
                let data: Vec<f32> = (0..count)
                    .map(|_| {
                        half::f16::from_f32(low + (high - low) * (next() as f32 / 16_777_216.0)).to_f32()
                    })
                    .collect();
                HostTensor::from_f32(&self.shape, &data)
            }
            Fill::Ints(dtype, low, high) => {
                let span = high - low + 1;
                let data: Vec<i64> = (0..count).map(|_| low + i64::from(next()) % span).collect();
                HostTensor::from_ints(*dtype, &self.shape, &data)
            }
            Fill::Bools => {
                let data: Vec<bool> = (0..count).map(|_| next() & 64 != 0).collect();
                HostTensor::from_bool(&self.shape, &data)
            }
            Fill::Values(v) => HostTensor::from_ints(DType::I64, &self.shape, v),
            Fill::Floats(v) => {
                let data: Vec<f32> = v.iter().copied().cycle().take(count).collect();
                HostTensor::from_f32(&self.shape, &data)
            }
            Fill::Tensor(t) => Ok(t.clone()),
        }
    }

    /// Shape and contents as text.
    fn describe(&self) -> String {
        let sizes: Vec<String> = self.shape.iter().map(ToString::to_string).collect();
        let kind = match &self.fill {
            Fill::Range(..) => "",
            Fill::Ints(..) | Fill::Values(_) => "i",
            Fill::Bools => "b",
            Fill::Floats(_) => "f",
            Fill::Tensor(_) => "t",
        };
        format!(
            "{kind}{}{}",
            if sizes.is_empty() {
                "scalar".to_owned()
            } else {
                sizes.join("x")
            },
            if self.is_const { "c" } else { "" }
        )
    }
}

/// An operator with its operands.
#[derive(Clone, Debug)]
pub struct Case {
    /// The operator with its attributes.
    pub op: Box<dyn Op>,
    pub inputs: Vec<Input>,
    /// Why no device runs it; `None` for a case that every device must pass.
    pub host_only: Option<&'static str>,
    /// Multiplier of the default error bound, for long sums.
    pub slack: f64,
    /// Expected number of dispatches of a plan without split weights; `None` to skip the check.
    pub dispatches: Option<usize>,
}

impl Case {
    /// A case that every device must pass.
    pub fn new(op: impl Op + 'static, inputs: Vec<Input>) -> Self {
        Self {
            op: Box::new(op),
            inputs,
            host_only: None,
            slack: 1.0,
            dispatches: None,
        }
    }

    /// Marks a case that devices do not run, with the reason. Planning must reject it or emit
    /// nothing.
    #[must_use]
    pub fn host_only(self, reason: &'static str) -> Self {
        Self {
            host_only: Some(reason),
            ..self
        }
    }

    /// Multiplies the default error bound, for long sums and for results with intermediate
    /// rounding.
    #[must_use]
    pub fn slack(self, slack: f64) -> Self {
        Self { slack, ..self }
    }

    /// Requires this number of dispatches in plans without split weights.
    #[must_use]
    pub fn dispatches(self, number: usize) -> Self {
        Self {
            dispatches: Some(number),
            ..self
        }
    }

    /// Whether an operand has NaN or infinities, which some devices do not keep.
    pub fn has_special(&self) -> bool {
        let special = |i: &Input| matches!(i.fill, Fill::Floats(v) if v.iter().any(|v| !v.is_finite()));
        self.inputs.iter().any(special)
    }

    /// A name that is unique among the cases of its operator.
    pub fn name(&self) -> String {
        let shapes: Vec<String> = self.inputs.iter().map(Input::describe).collect();
        let attributes: String = format!("{:?}", self.op)
            .chars()
            .filter(|c| !c.is_whitespace())
            .map(|c| if c == '/' { '_' } else { c })
            .take(60)
            .collect();
        format!("{}/{}/{attributes}", self.op.name(), shapes.join(","))
    }
}
