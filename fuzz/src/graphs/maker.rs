//! Makes random models with their inputs.

use crate::work::Random;
use transformer_lite::unstable::graph::onnx::proto::{
    AttributeProto, DimensionProto, DimensionValue, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
use transformer_lite::unstable::graph::onnx::type_code;
use transformer_lite::unstable::runner::Named;
use transformer_lite::unstable::tensor::{DType, HostTensor};

const INTEGERS: [DType; 8] = [
    DType::I64,
    DType::U64,
    DType::I32,
    DType::U32,
    DType::I16,
    DType::U16,
    DType::I8,
    DType::U8,
];

/// Floats whose sums and products are exact in `f32` if they have few terms.
const FLOATS: [f32; 11] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    1.5,
    -2.0,
    4.0,
    -0.5,
    f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
];

/// No operator is added after a value with more elements.
const LARGEST: usize = 5_000;

/// Operators whose results are rounded.
const ROUNDED: [&str; 8] = [
    "Exp", "Tanh", "Sigmoid", "Sqrt", "Erf", "Softplus", "Gelu", "Softmax",
];

/// A model, its inputs and their properties.
pub struct Made {
    pub model: ModelProto,
    pub inputs: Vec<Named>,
    /// Whether the standard defines the results.
    pub is_defined: bool,
    /// Whether an index may be out of range.
    pub may_fail: bool,
    /// Whether a result has no elements. The interpreter does not compute such a result, so it does
    /// not check the indices.
    pub is_empty: bool,
}

impl Made {
    /// A random model. It is a chain of operators, each of which may have further operands.
    pub fn new(random: &mut Random) -> Self {
        let mut maker = Maker {
            random,
            graph: GraphProto {
                name: "graph".to_owned(),
                ..Default::default()
            },
            inputs: Vec::new(),
            is_defined: true,
            may_fail: false,
            is_empty: false,
            is_exact: true,
        };
        let mut value = maker.first();
        for _ in 0..1 + maker.random.below(6) {
            let is_large = value.axes.iter().map(|a| a.size).product::<usize>() > LARGEST;
            if !is_large && maker.is_exact {
                value = maker.step(value);
            }
        }
        if value.dtype == DType::F32 && maker.random.once_in(4) {
            let op = maker.pick(&ROUNDED);
            if op == "Softmax" && value.axes.is_empty() {
                return maker.finish(&value);
            }
            value = maker.node(op, &[&value.name], &[], value.dtype, value.axes);
        }
        if maker.graph.node.is_empty() {
            value = maker.node("Identity", &[&value.name], &[], value.dtype, value.axes);
        }
        maker.finish(&value)
    }

    /// The operators, in order.
    pub fn operators(&self) -> Vec<&str> {
        let nodes = self.model.graph.iter().flat_map(|g| &g.node);
        nodes.map(|n| n.op_type.as_str()).collect()
    }
}

/// An axis of a value.
#[derive(Clone)]
struct Axis {
    size: usize,
    /// How its size is declared in inputs.
    declared: Declared,
}

#[derive(Clone)]
enum Declared {
    Fixed,
    Symbol(String),
    /// The size depends on symbols, so only operands of size 1 are known to fit.
    Derived,
}

impl Axis {
    fn fixed(size: usize) -> Self {
        Self {
            size,
            declared: Declared::Fixed,
        }
    }

    fn is_fixed(&self) -> bool {
        matches!(self.declared, Declared::Fixed)
    }

    /// This axis with another size.
    fn resized(&self, size: usize) -> Self {
        let declared = if self.is_fixed() {
            Declared::Fixed
        } else {
            Declared::Derived
        };
        Self { size, declared }
    }
}

#[derive(Clone)]
struct Value {
    name: String,
    dtype: DType,
    axes: Vec<Axis>,
}

enum Attribute {
    Int(i64),
    Ints(Vec<i64>),
    Text(&'static str),
}

struct Maker<'r> {
    random: &'r mut Random,
    graph: GraphProto,
    inputs: Vec<Named>,
    is_defined: bool,
    may_fail: bool,
    is_empty: bool,
    /// Whether sums and products of the floats are exact.
    is_exact: bool,
}

fn range(dtype: DType) -> (i128, i128) {
    dtype.int_range().unwrap_or((0, 1))
}

impl Maker<'_> {
    fn pick<T: Clone>(&mut self, list: &[T]) -> T {
        self.random.choose(list).expect("a list with elements").clone()
    }

    fn name(&self) -> String {
        format!(
            "v{}",
            self.graph.node.len() + self.graph.initializer.len() + self.inputs.len()
        )
    }

    fn any_type(&mut self) -> DType {
        match self.random.below(8) {
            0 | 1 => DType::F32,
            2 | 3 => DType::I64,
            4 => DType::Bool,
            _ => self.pick(&INTEGERS),
        }
    }

    /// Elements of a type: the ends of its range and of narrower types, and small numbers.
    fn elements(&mut self, dtype: DType, shape: &[usize]) -> HostTensor {
        let count: usize = shape.iter().product();
        let made = if dtype == DType::F32 {
            let list: Vec<f32> = (0..count).map(|_| self.pick(&FLOATS)).collect();
            HostTensor::from_floats(dtype, shape, &list)
        } else {
            let (low, high) = range(dtype);
            let edges = [0, 1, 2, 3, 5, 7, 100, -1, -2, -7].into_iter();
            let edges = edges.chain([low, high, low + 1, high - 1, high / 2]);
            let powers = [15, 16, 31, 32, 33, 53].into_iter();
            let powers = powers.flat_map(|p| [1i128 << p, (1 << p) - 1, -(1 << p), -(1 << p) - 1]);
            let all: Vec<i64> = edges
                .chain(powers)
                .filter(|v| (low..=high).contains(v))
                .map(|v| v as i64)
                .collect();
            let list: Vec<i64> = (0..count).map(|_| self.pick(&all)).collect();
            HostTensor::from_ints(dtype, shape, &list)
        };
        made.expect("elements of the type")
    }

    fn constant(&mut self, tensor: &HostTensor) -> String {
        let name = self.name();
        self.graph.initializer.push(super::proto(&name, tensor));
        name
    }

    fn integers(&mut self, list: &[i64]) -> String {
        let tensor = HostTensor::from_ints(DType::I64, &[list.len()], list);
        self.constant(&tensor.expect("integers"))
    }

    fn scalar(&mut self, dtype: DType, value: i64) -> String {
        let tensor = HostTensor::from_ints(dtype, &[], &[value]);
        self.constant(&tensor.expect("an integer"))
    }

    fn input(&mut self, axes: &[Axis], tensor: HostTensor) -> String {
        let name = self.name();
        let dim = axes.iter().map(|a| DimensionProto {
            value: Some(match &a.declared {
                Declared::Symbol(name) => DimensionValue::Param(name.clone()),
                Declared::Fixed | Declared::Derived => DimensionValue::Value(a.size as i64),
            }),
        });
        let shape = TensorShapeProto { dim: dim.collect() };
        self.graph.input.push(info(&name, tensor.dtype(), Some(shape)));
        self.inputs.push((name.clone(), tensor));
        name
    }

    /// An operand with these axes: an input, or, only if all sizes are fixed, a constant.
    fn operand_of(&mut self, dtype: DType, axes: Vec<Axis>) -> Value {
        let shape: Vec<usize> = axes.iter().map(|a| a.size).collect();
        let tensor = self.elements(dtype, &shape);
        let name = if axes.iter().all(Axis::is_fixed) && self.random.once_in(2) {
            self.constant(&tensor)
        } else {
            self.input(&axes, tensor)
        };
        Value { name, dtype, axes }
    }

    /// The first input.
    fn first(&mut self) -> Value {
        let is_symbolic = self.random.once_in(2);
        let rank = self.pick(&[0, 1, 1, 2, 2, 2, 3, 3, 4]);
        let axis = |m: &mut Self, i: usize| {
            let size = m.pick(&[0, 1, 1, 2, 2, 3, 3, 5, 5, 17, 40]);
            let declared = if is_symbolic && m.random.once_in(2) {
                Declared::Symbol(format!("n{i}"))
            } else {
                Declared::Fixed
            };
            Axis { size, declared }
        };
        let axes: Vec<Axis> = (0..rank).map(|i| axis(self, i)).collect();
        let dtype = self.any_type();
        let shape: Vec<usize> = axes.iter().map(|a| a.size).collect();
        let tensor = self.elements(dtype, &shape);
        let name = self.input(&axes, tensor);
        Value { name, dtype, axes }
    }

    /// Another operand of an elementwise operator. Some of its axes may have size 1, and leading
    /// ones may be absent.
    fn beside(&mut self, value: &Value, dtype: DType) -> Value {
        let axis = |m: &mut Self, a: &Axis| {
            if matches!(a.declared, Declared::Derived) || m.random.once_in(3) {
                Axis::fixed(1)
            } else {
                a.clone()
            }
        };
        let mut axes: Vec<Axis> = value.axes.iter().map(|a| axis(self, a)).collect();
        while !axes.is_empty() && self.random.once_in(5) {
            axes.remove(0);
        }
        self.operand_of(dtype, axes)
    }

    fn node(
        &mut self,
        op: &str,
        inputs: &[&str],
        attributes: &[(&str, Attribute)],
        dtype: DType,
        axes: Vec<Axis>,
    ) -> Value {
        let name = self.name();
        self.is_empty |= axes.iter().any(|a| a.size == 0);
        let attribute = attributes.iter().map(|(name, value)| {
            let mut a = AttributeProto {
                name: (*name).to_owned(),
                ..Default::default()
            };
            match value {
                Attribute::Int(i) => (a.i, a.r#type) = (*i, 2),
                Attribute::Ints(list) => (a.ints, a.r#type) = (list.clone(), 7),
                Attribute::Text(text) => (a.s, a.r#type) = (text.as_bytes().to_vec(), 3),
            }
            a
        });
        self.graph.node.push(NodeProto {
            name: format!("{op}_{name}"),
            op_type: op.to_owned(),
            input: inputs.iter().map(|s| (*s).to_owned()).collect(),
            output: vec![name.clone()],
            attribute: attribute.collect(),
            ..Default::default()
        });
        Value { name, dtype, axes }
    }

    fn finish(mut self, value: &Value) -> Made {
        self.graph.output.push(info(&value.name, value.dtype, None));
        let opset = OperatorSetIdProto {
            domain: String::new(),
            version: 20,
        };
        Made {
            model: ModelProto {
                ir_version: 9,
                graph: Some(self.graph),
                opset_import: vec![opset],
                ..Default::default()
            },
            inputs: self.inputs,
            is_defined: self.is_defined,
            may_fail: self.may_fail,
            is_empty: self.is_empty,
        }
    }

    /// Adds a random operator. Returns the value unchanged if the operator does not take it.
    fn step(&mut self, v: Value) -> Value {
        match self.random.below(32) {
            0..=3 => self.binary(v),
            4 => self.comparison(v),
            5 => self.unary(v),
            6 => self.divided(v),
            7 | 8 => self.cast(v),
            9 | 10 => self.reduced(v),
            11 => self.cumulative(v),
            12 => self.chosen(v),
            13 => self.joined(v),
            14 => self.sliced(v),
            15 => self.transposed(v),
            16 => self.gathered(v),
            17 => self.expanded(v),
            18 => self.clipped(v),
            19 => self.flat(v),
            20 => self.padded(v),
            21 => self.looked_up(v),
            22 => self.scattered(v),
            23 => self.one_hot(v),
            24 => self.kept_triangle(v),
            25 => self.tiled(v),
            26 => self.shifted(v),
            27 => self.with_axis(v),
            28 => self.slices(v),
            29 => self.multiplied(v),
            30 => self.rectified(v),
            _ => self.sorted(v),
        }
    }
}

/// A graph's input or output.
fn info(name: &str, dtype: DType, shape: Option<TensorShapeProto>) -> ValueInfoProto {
    let tensor_type = TensorTypeProto {
        elem_type: type_code(dtype),
        shape,
    };
    ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(TypeProto {
            tensor_type: Some(tensor_type),
        }),
    }
}

mod operators;
