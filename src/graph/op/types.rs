//! Sets of element types that ONNX allows for operands.

use crate::tensor::DType;

/// A set of element types.
#[derive(Clone, Copy, Debug)]
pub struct Types {
    /// The types in words, for errors.
    pub name: &'static str,
    /// Whether the set contains a type.
    pub contains: fn(DType) -> bool,
}

impl Types {
    /// Truth values.
    pub const BOOL: Self = Self::new("bool", |t| t == DType::Bool);
    /// Integers of any width.
    pub const INTEGER: Self = Self::new("an integer type", DType::is_int);
    /// Floats of any width.
    pub const FLOAT: Self = Self::new("a float", DType::is_float);
    /// Integers and floats of any width.
    pub const NUMBER: Self = Self::new("a number", |t| t.is_int() || t.is_float());
    /// Floats, and integers of 32 or 64 bits: the types of sums.
    pub const SUM: Self = Self::new("a float or an integer of 32 or 64 bits", is_sum);
    /// The types that maxima and minima of an axis have: those of sums, bytes and truth values.
    pub const EXTREME: Self = Self::new("bool, a float or an integer of 8, 32 or 64 bits", |t| {
        is_sum(t) || matches!(t, DType::I8 | DType::U8 | DType::Bool)
    });

    /// The set of types for which `contains` is true; `name` describes them.
    pub const fn new(name: &'static str, contains: fn(DType) -> bool) -> Self {
        Self { name, contains }
    }
}

fn is_sum(t: DType) -> bool {
    t.is_float() || matches!(t, DType::I32 | DType::I64 | DType::U32 | DType::U64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::op::arg_max::ArgMax;
    use crate::graph::op::cumulative::Cumulative;
    use crate::graph::op::det::Det;
    use crate::graph::op::pointwise::{Binary, Expr, Pointwise, Unary};
    use crate::graph::op::range::Range;
    use crate::graph::op::reduce::{Kind, Reduce};
    use crate::graph::op::top_k::TopK;
    use crate::graph::op::{InferCx, Op, OpError};
    use crate::shape::{Constraints, Dim, Fact, Shape};

    /// Whether `op` takes operands of these types, each of shape `[2, 2]`.
    fn takes(op: &dyn Op, types: &[DType]) -> bool {
        let shape = Shape(vec![Dim::from(2), Dim::from(2)]);
        let facts: Vec<Fact> = types.iter().map(|t| Fact::new(*t, shape.clone())).collect();
        let facts: Vec<Option<&Fact>> = facts.iter().map(Some).collect();
        match op.infer(&InferCx::new(&facts, &Constraints::default())) {
            Ok(_) => true,
            Err(OpError::Expected { what, .. }) if what.starts_with("element type") => false,
            Err(e) => panic!("{}: {e}", op.name()),
        }
    }

    fn unary(f: Unary) -> Pointwise {
        Pointwise {
            name: format!("{f:?}"),
            expr: Expr::Unary(f, Box::new(Expr::Input(0))),
        }
    }

    #[test]
    fn reductions_take_the_types_of_onnx() {
        use DType::*;
        use Kind::*;
        let of = |kind| Reduce {
            kind,
            axes: Some(vec![0]),
            keep: true,
            noop_without_axes: false,
        };
        for kind in [Mean, Sum, Prod, L1, L2, LogSum, LogSumExp, SumSquare] {
            assert!(takes(&of(kind), &[F32]) && takes(&of(kind), &[I64]), "{kind:?}");
            assert!(!takes(&of(kind), &[Bool]) && !takes(&of(kind), &[I8]), "{kind:?}");
        }
        for kind in [Max, Min] {
            assert!(takes(&of(kind), &[Bool]) && takes(&of(kind), &[U8]), "{kind:?}");
            assert!(!takes(&of(kind), &[I16]), "{kind:?}");
        }
    }

    #[test]
    fn elementwise_functions_take_the_types_of_onnx() {
        use DType::*;
        let binary = |f: Binary| Pointwise::binary("f", f);
        for f in [Binary::Add, Binary::Max, Binary::Mod, Binary::Less, Binary::Pow] {
            assert!(takes(&binary(f), &[I32, I32]), "{f:?}");
            assert!(!takes(&binary(f), &[Bool, Bool]), "{f:?}");
        }
        for f in [Binary::And, Binary::Or, Binary::Xor] {
            assert!(takes(&binary(f), &[Bool, Bool]), "{f:?}");
            assert!(!takes(&binary(f), &[I32, I32]), "{f:?}");
        }
        assert!(takes(&binary(Binary::Equal), &[Bool, Bool]));
        for (f, of_integers) in [(Unary::Neg, true), (Unary::Relu, true), (Unary::Exp, false)] {
            assert!(!takes(&unary(f), &[Bool]), "{f:?}");
            assert_eq!(takes(&unary(f), &[I32]), of_integers, "{f:?}");
        }
        let not = Pointwise {
            name: "Not".to_owned(),
            expr: Expr::Not(Box::new(Expr::Input(0))),
        };
        assert!(takes(&not, &[Bool]) && !takes(&not, &[F32]));
    }

    #[test]
    fn other_operators_refuse_truth_values() {
        let cumulative = Cumulative {
            product: false,
            exclusive: false,
            reverse: false,
        };
        let top = TopK {
            axis: 0,
            k: Some(1),
            largest: true,
        };
        let largest = ArgMax {
            min: false,
            axis: 0,
            keep: true,
            last: false,
        };
        let ops: [(&dyn Op, usize); 5] = [(&cumulative, 1), (&top, 1), (&largest, 1), (&Det, 1), (&Range, 3)];
        for (op, operands) in ops {
            assert!(!takes(op, &vec![DType::Bool; operands]), "{}", op.name());
        }
    }
}
