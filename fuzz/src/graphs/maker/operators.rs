//! The operators of random graphs.

use super::{Attribute, Axis, INTEGERS, Maker, Value, range};
use Attribute::{Int, Ints, Text};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// The axes of two operands after broadcasting.
fn broadcast(a: &Value, b: &Value) -> Vec<Axis> {
    let rank = a.axes.len().max(b.axes.len());
    let at = |v: &Value, i: usize| (i + v.axes.len()).checked_sub(rank).map(|i| v.axes[i].clone());
    let axis = |i| match (at(a, i), at(b, i)) {
        (Some(a), Some(b)) if a.is_fixed() && a.size == 1 => b,
        (Some(a), _) => a,
        (None, b) => b.unwrap_or_else(|| Axis::fixed(1)),
    };
    (0..rank).map(axis).collect()
}

impl Maker<'_> {
    /// Applies an operator to two operands in random order.
    fn two(&mut self, op: &str, a: &Value, b: &Value, dtype: DType) -> Value {
        let axes = broadcast(a, b);
        let (a, b) = if self.random.once_in(3) { (b, a) } else { (a, b) };
        self.node(op, &[&a.name, &b.name], &[], dtype, axes)
    }

    pub fn binary(&mut self, v: Value) -> Value {
        let op = match v.dtype {
            DType::Bool => self.pick(&["And", "Or", "Xor"]),
            DType::F32 => self.pick(&["Add", "Sub", "Mul", "Max", "Min"]),
            _ => self.pick(&[
                "Add",
                "Sub",
                "Mul",
                "Max",
                "Min",
                "BitwiseAnd",
                "BitwiseOr",
                "BitwiseXor",
            ]),
        };
        let other = self.beside(&v, v.dtype);
        self.two(op, &v, &other, v.dtype)
    }

    pub fn comparison(&mut self, v: Value) -> Value {
        let op = match v.dtype {
            DType::Bool => "Equal",
            _ => self.pick(&["Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal"]),
        };
        let other = self.beside(&v, v.dtype);
        self.two(op, &v, &other, DType::Bool)
    }

    pub fn unary(&mut self, v: Value) -> Value {
        let op = match v.dtype {
            DType::Bool => "Not",
            DType::F32 => self.pick(&[
                "Abs", "Neg", "Sign", "Relu", "Floor", "Ceil", "Round", "IsNaN", "IsInf",
            ]),
            t if range(t).0 < 0 => self.pick(&["Abs", "Neg", "Sign", "BitwiseNot"]),
            _ => self.pick(&["Abs", "Sign", "BitwiseNot"]),
        };
        let dtype = if op.starts_with("Is") {
            DType::Bool
        } else {
            v.dtype
        };
        self.node(op, &[&v.name], &[], dtype, v.axes)
    }

    /// Division and remainder. The divisor may be 0.
    pub fn divided(&mut self, v: Value) -> Value {
        match v.dtype {
            DType::Bool => v,
            DType::F32 => {
                let list = [1.0, 2.0, -0.5, 0.0, -4.0, f32::INFINITY];
                let by = self.pick(&list);
                let by = HostTensor::from_floats(DType::F32, &[], &[by]).expect("a float");
                let by = self.constant(&by);
                if self.random.once_in(2) {
                    return self.node("Div", &[&v.name, &by], &[], v.dtype, v.axes);
                }
                self.node("Mod", &[&v.name, &by], &[("fmod", Int(1))], v.dtype, v.axes)
            }
            _ => {
                let by = self.beside(&v, v.dtype);
                let axes = broadcast(&v, &by);
                // The divisor may be 0 or -1.
                self.is_defined = false;
                if self.random.once_in(2) {
                    return self.node("Div", &[&v.name, &by.name], &[], v.dtype, axes);
                }
                let sign = self.random.below(2) as i64;
                self.node("Mod", &[&v.name, &by.name], &[("fmod", Int(sign))], v.dtype, axes)
            }
        }
    }

    pub fn cast(&mut self, v: Value) -> Value {
        if v.dtype == DType::F32 && self.random.once_in(3) {
            let half = [("to", Int(10))];
            let half = self.node("Cast", &[&v.name], &half, DType::F16, v.axes);
            return self.node("Cast", &[&half.name], &[("to", Int(1))], DType::F32, half.axes);
        }
        let to = match self.random.below(4) {
            0 => DType::F32,
            1 => DType::Bool,
            _ => self.pick(&INTEGERS),
        };
        // The standard does not define the result for NaN and infinities.
        if v.dtype == DType::F32 && to != DType::Bool {
            self.is_defined = false;
        }
        let is_small = matches!(v.dtype, DType::Bool | DType::I8 | DType::U8);
        self.is_exact &= is_small || to != DType::F32;
        let code = super::type_code(to).into();
        self.node("Cast", &[&v.name], &[("to", Int(code))], to, v.axes)
    }

    /// A random axis; `None` for a scalar.
    fn axis(&mut self, v: &Value) -> Option<usize> {
        (!v.axes.is_empty()).then(|| self.random.below(v.axes.len()))
    }

    /// The attribute for an axis. Half of the time, it counts from the end.
    fn signed(&mut self, v: &Value, axis: usize) -> i64 {
        let from_end = if self.random.once_in(2) {
            v.axes.len() as i64
        } else {
            0
        };
        axis as i64 - from_end
    }

    pub fn reduced(&mut self, v: Value) -> Value {
        if v.dtype == DType::I64 && self.random.once_in(6) {
            let option = [("noop_with_empty_axes", Int(1))];
            return self.node("ReduceSum", &[&v.name], &option, v.dtype, v.axes);
        }
        let Some(axis) = self.axis(&v) else { return v };
        let op = match v.dtype {
            DType::F32 => self.pick(&[
                "ReduceSum",
                "ReduceMax",
                "ReduceMin",
                "ReduceSumSquare",
                "ReduceL1",
                "ArgMax",
                "ArgMin",
            ]),
            DType::I32 | DType::I64 => self.pick(&[
                "ReduceSum",
                "ReduceMax",
                "ReduceMin",
                "ReduceProd",
                "ReduceL1",
                "ReduceSumSquare",
                "ArgMax",
                "ArgMin",
            ]),
            DType::U32 | DType::U64 => self.pick(&["ReduceSum", "ReduceMax", "ReduceMin"]),
            DType::I8 | DType::U8 => self.pick(&["ReduceMax", "ReduceMin", "ArgMax"]),
            _ => return v,
        };
        // Longer sums of floats round. The standard does not define sums of integers that overflow,
        // nor the maximum of NaN.
        let is_extreme = op.ends_with("Max") || op.ends_with("Min");
        if v.dtype == DType::F32 && v.axes[axis].size > 17 && !is_extreme {
            return v;
        }
        self.is_defined &= is_extreme && v.dtype != DType::F32 && v.axes[axis].size > 0;
        let keep = self.random.below(2);
        let mut axes = v.axes.clone();
        axes[axis] = Axis::fixed(1);
        if keep == 0 {
            axes.remove(axis);
        }
        let at = self.signed(&v, axis);
        let keep = ("keepdims", Int(keep as i64));
        if op.starts_with("Arg") {
            // An empty axis has no largest element.
            if v.axes[axis].size == 0 {
                return v;
            }
            let last = ("select_last_index", Int(self.random.below(2) as i64));
            return self.node(op, &[&v.name], &[("axis", Int(at)), keep, last], DType::I64, axes);
        }
        let list = self.integers(&[at]);
        self.node(op, &[&v.name, &list], &[keep], v.dtype, axes)
    }

    pub fn cumulative(&mut self, v: Value) -> Value {
        let Some(axis) = self.axis(&v) else { return v };
        if !matches!(
            v.dtype,
            DType::F32 | DType::I32 | DType::I64 | DType::U32 | DType::U64
        ) {
            return v;
        }
        let at = self.signed(&v, axis);
        let at = self.scalar(DType::I64, at);
        let options = [
            ("exclusive", Int(self.random.below(2) as i64)),
            ("reverse", Int(self.random.below(2) as i64)),
        ];
        self.node("CumSum", &[&v.name, &at], &options, v.dtype, v.axes)
    }

    pub fn chosen(&mut self, v: Value) -> Value {
        let condition = self.beside(&v, DType::Bool);
        let other = self.beside(&v, v.dtype);
        let axes = broadcast(&v, &condition);
        self.node(
            "Where",
            &[&condition.name, &v.name, &other.name],
            &[],
            v.dtype,
            axes,
        )
    }

    pub fn joined(&mut self, v: Value) -> Value {
        let Some(axis) = self.axis(&v) else { return v };
        let is_derived = |a: &Axis| matches!(a.declared, super::Declared::Derived);
        if v.axes.iter().enumerate().any(|(i, a)| i != axis && is_derived(a)) {
            return v;
        }
        let mut axes = v.axes.clone();
        axes[axis] = Axis::fixed(self.pick(&[0, 1, 2]));
        let other = self.operand_of(v.dtype, axes.clone());
        axes[axis] = v.axes[axis].resized(v.axes[axis].size + other.axes[axis].size);
        let at = self.signed(&v, axis);
        let names = if self.random.once_in(2) {
            [&v.name, &other.name]
        } else {
            [&other.name, &v.name]
        };
        let names = names.map(String::as_str);
        self.node("Concat", &names, &[("axis", Int(at))], v.dtype, axes)
    }

    pub fn sliced(&mut self, v: Value) -> Value {
        let Some(axis) = self.axis(&v) else { return v };
        let size = v.axes[axis].size;
        let step = self.pick(&[1i64, 2, -1, -2]);
        // With a negative step, ONNX clamps a start before the axis to its first element.
        let skip = self.random.below(size.min(2));
        let left = size.saturating_sub(skip).div_ceil(step.unsigned_abs() as usize);
        let (start, end) = match step {
            1.. => (skip as i64, i64::MAX),
            _ => (-1 - skip as i64, i64::MIN),
        };
        let mut axes = v.axes.clone();
        axes[axis] = axes[axis].resized(left);
        let at = self.signed(&v, axis);
        let lists = [start, end, at, step].map(|n| self.integers(&[n]));
        let mut inputs = vec![v.name.as_str()];
        inputs.extend(lists.iter().map(String::as_str));
        self.node("Slice", &inputs, &[], v.dtype, axes)
    }

    pub fn transposed(&mut self, v: Value) -> Value {
        let mut order: Vec<usize> = (0..v.axes.len()).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, self.random.below(i + 1));
        }
        let axes = order.iter().map(|i| v.axes[*i].clone()).collect();
        let perm = order.iter().map(|i| *i as i64).collect();
        self.node("Transpose", &[&v.name], &[("perm", Ints(perm))], v.dtype, axes)
    }

    /// Indices of an axis of `size` elements. Rarely, one is out of range.
    fn indices(&mut self, size: usize, shape: Vec<Axis>) -> String {
        let count: usize = shape.iter().map(|a| a.size).product();
        let size = size as i64;
        let mut list: Vec<i64> = (0..count)
            .map(|_| self.random.below(2 * size as usize) as i64 - size)
            .collect();
        if self.random.once_in(16)
            && let Some(first) = list.first_mut()
        {
            *first = *self
                .random
                .choose(&[size, -size - 1, i64::from(i32::MAX)])
                .expect("not empty");
            self.may_fail = true;
        }
        let dtype = self.pick(&[DType::I64, DType::I64, DType::I32]);
        let sizes: Vec<usize> = shape.iter().map(|a| a.size).collect();
        let tensor = HostTensor::from_ints(dtype, &sizes, &list).expect("indices");
        // A constant index that is out of range would be rejected when the model is loaded.
        let name = self.input(&shape, tensor);
        // Devices check computed indices, and the engine given ones when they are written.
        match self.random.below(4) {
            0 => {
                let zero = self.scalar(dtype, 0);
                self.node("Add", &[&name, &zero], &[], dtype, shape).name
            }
            1 => {
                let to = self.pick(&[DType::F32, DType::I32, DType::I64]);
                let code = super::type_code(to).into();
                let cast = self.node("Cast", &[&name], &[("to", Int(code))], to, shape);
                let back = [("to", Int(super::type_code(DType::I64).into()))];
                let cast = self.node("Cast", &[&cast.name], &back, DType::I64, cast.axes);
                cast.name
            }
            _ => name,
        }
    }

    pub fn gathered(&mut self, v: Value) -> Value {
        let Some(axis) = self.axis(&v) else { return v };
        let size = v.axes[axis].size;
        if size == 0 {
            return v;
        }
        let at = self.signed(&v, axis);
        let mut axes = v.axes.clone();
        if self.random.once_in(2) && v.axes.iter().all(Axis::is_fixed) {
            axes[axis] = Axis::fixed(self.pick(&[1, 3]));
            let list = self.indices(size, axes.clone());
            let at = [("axis", Int(at))];
            return self.node("GatherElements", &[&v.name, &list], &at, v.dtype, axes);
        }
        let shape: &[usize] = self.pick(&[&[][..], &[1], &[3], &[2, 2]]);
        let shape: Vec<Axis> = shape.iter().map(|n| Axis::fixed(*n)).collect();
        let list = self.indices(size, shape.clone());
        axes.splice(axis..=axis, shape);
        self.node("Gather", &[&v.name, &list], &[("axis", Int(at))], v.dtype, axes)
    }

    /// Rows of a table at computed indices.
    pub fn looked_up(&mut self, v: Value) -> Value {
        if !matches!(v.dtype, DType::I64 | DType::I32) {
            return v;
        }
        let rows = self.pick(&[1, 3, 10]);
        let more = i64::from(self.random.once_in(8));
        self.may_fail |= more > 0;
        let by = self.scalar(v.dtype, rows as i64 + more);
        let index = self.node("Mod", &[&v.name, &by], &[], v.dtype, v.axes);
        let dtype = self.any_type();
        let table = self.operand_of(dtype, vec![Axis::fixed(rows), Axis::fixed(2)]);
        let mut axes = index.axes.clone();
        axes.push(Axis::fixed(2));
        self.node("Gather", &[&table.name, &index.name], &[], dtype, axes)
    }

    pub fn scattered(&mut self, v: Value) -> Value {
        let Some(axis) = self.axis(&v) else { return v };
        let size = v.axes[axis].size;
        if size == 0 || !v.axes.iter().all(Axis::is_fixed) {
            return v;
        }
        let mut axes = v.axes.clone();
        // Each element is written at most once.
        axes[axis] = Axis::fixed(1);
        let list = self.indices(size, axes.clone());
        let updates = self.operand_of(v.dtype, axes);
        let at = self.signed(&v, axis);
        let inputs = [v.name.as_str(), &list, &updates.name];
        self.node("ScatterElements", &inputs, &[("axis", Int(at))], v.dtype, v.axes)
    }

    pub fn one_hot(&mut self, v: Value) -> Value {
        if v.dtype == DType::Bool || v.axes.len() > 4 {
            return v;
        }
        // Only some engines define float indices and indices out of range.
        self.is_defined = false;
        let depth = 1 + self.random.below(5);
        let count = self.scalar(DType::I64, depth as i64);
        let dtype = self.any_type();
        let ends = self.operand_of(dtype, vec![Axis::fixed(2)]);
        let mut axes = v.axes;
        axes.push(Axis::fixed(depth));
        self.node("OneHot", &[&v.name, &count, &ends.name], &[], dtype, axes)
    }

    pub fn expanded(&mut self, v: Value) -> Value {
        let mut axes = v.axes.clone();
        let mut sizes = Vec::new();
        for a in &mut axes {
            if a.is_fixed() && a.size == 1 {
                *a = Axis::fixed(self.pick(&[0, 1, 2, 3]));
                sizes.push(a.size as i64);
                // Where a size of 0 is requested, ONNX Runtime keeps 1.
                self.is_defined &= a.size != 0;
            } else {
                sizes.push(1);
            }
        }
        if self.random.once_in(2) {
            axes.insert(0, Axis::fixed(2));
            sizes.insert(0, 2);
        }
        if axes.len() > 6 {
            return v;
        }
        let sizes = self.integers(&sizes);
        self.node("Expand", &[&v.name, &sizes], &[], v.dtype, axes)
    }

    pub fn clipped(&mut self, v: Value) -> Value {
        let bound = |m: &mut Self| m.elements(v.dtype, &[]);
        let (low, high) = match v.dtype {
            DType::Bool => return v,
            DType::F32 => {
                let float = |f: f32| HostTensor::from_floats(DType::F32, &[], &[f]).expect("a float");
                (float(-1.0), float(self.pick(&[1.5, f32::INFINITY])))
            }
            _ => (bound(self), bound(self)),
        };
        let (low, high) = (self.constant(&low), self.constant(&high));
        self.node("Clip", &[&v.name, &low, &high], &[], v.dtype, v.axes)
    }

    pub fn flat(&mut self, v: Value) -> Value {
        let count = v.axes.iter().map(|a| a.size).product();
        let is_fixed = v.axes.iter().all(Axis::is_fixed);
        let axis = if is_fixed {
            Axis::fixed(count)
        } else {
            Axis {
                size: count,
                declared: super::Declared::Derived,
            }
        };
        let list = self.integers(&[-1]);
        self.node("Reshape", &[&v.name, &list], &[], v.dtype, vec![axis])
    }

    pub fn padded(&mut self, v: Value) -> Value {
        let rank = v.axes.len();
        if rank == 0 {
            return v;
        }
        let pads: Vec<i64> = (0..2 * rank).map(|_| self.random.below(3) as i64).collect();
        let axes = v.axes.iter().enumerate().map(|(i, a)| {
            let size = a.size as i64 + pads[i] + pads[i + rank];
            if pads[i] + pads[i + rank] == 0 {
                a.clone()
            } else {
                a.resized(size as usize)
            }
        });
        let axes = axes.collect();
        let value = self.elements(v.dtype, &[]);
        let (pads, value) = (self.integers(&pads), self.constant(&value));
        self.node("Pad", &[&v.name, &pads, &value], &[], v.dtype, axes)
    }

    pub fn kept_triangle(&mut self, v: Value) -> Value {
        if v.axes.len() < 2 {
            return v;
        }
        let diagonal = self.pick(&[-2, -1, 0, 1, 3]);
        let diagonal = self.scalar(DType::I64, diagonal);
        let upper = [("upper", Int(self.random.below(2) as i64))];
        self.node("Trilu", &[&v.name, &diagonal], &upper, v.dtype, v.axes)
    }

    pub fn tiled(&mut self, v: Value) -> Value {
        let repeats: Vec<i64> = v.axes.iter().map(|_| self.random.below(3) as i64).collect();
        if repeats.is_empty() {
            return v;
        }
        let resized = |(a, n): (&Axis, &i64)| match n {
            1 => a.clone(),
            n => a.resized(a.size * *n as usize),
        };
        let axes = v.axes.iter().zip(&repeats).map(resized).collect();
        let repeats = self.integers(&repeats);
        self.node("Tile", &[&v.name, &repeats], &[], v.dtype, axes)
    }

    /// Shifts by at most the bits of the type.
    pub fn shifted(&mut self, v: Value) -> Value {
        let bits = match v.dtype {
            DType::U8 => 8,
            DType::U16 => 16,
            DType::U32 => 32,
            DType::U64 => 64,
            _ => return v,
        };
        let by = self.random.below(bits) as i64;
        let by = self.scalar(v.dtype, by);
        let direction = self.pick(&["LEFT", "RIGHT"]);
        let direction = [("direction", Text(direction))];
        self.node("BitShift", &[&v.name, &by], &direction, v.dtype, v.axes)
    }

    /// A further axis of size 1.
    pub fn with_axis(&mut self, v: Value) -> Value {
        if v.axes.len() > 4 {
            return v;
        }
        let at = self.random.below(v.axes.len() + 1);
        let list = self.integers(&[at as i64]);
        let mut axes = v.axes;
        axes.insert(at, Axis::fixed(1));
        self.node("Unsqueeze", &[&v.name, &list], &[], v.dtype, axes)
    }

    /// Slices at tuples of indices, read or written.
    pub fn slices(&mut self, v: Value) -> Value {
        let (Some(first), true) = (v.axes.first(), v.axes.iter().all(Axis::is_fixed)) else {
            return v;
        };
        if first.size == 0 {
            return v;
        }
        let count = self.pick(&[1, 2]);
        let is_read = self.random.once_in(2);
        // Each slice is written once.
        let count = if is_read { count } else { 1 };
        let list = self.indices(first.size, vec![Axis::fixed(count), Axis::fixed(1)]);
        let mut axes = v.axes.clone();
        if let Some(first) = axes.first_mut() {
            *first = Axis::fixed(count);
        }
        if is_read {
            return self.node("GatherND", &[&v.name, &list], &[], v.dtype, axes);
        }
        let updates = self.operand_of(v.dtype, axes);
        let inputs = [v.name.as_str(), &list, &updates.name];
        self.node("ScatterND", &inputs, &[], v.dtype, v.axes)
    }

    /// A product of matrices; those of integers wrap around.
    pub fn multiplied(&mut self, v: Value) -> Value {
        let is_number = matches!(
            v.dtype,
            DType::F32 | DType::I32 | DType::I64 | DType::U32 | DType::U64
        );
        let Some(depth) = v.axes.last().filter(|a| a.is_fixed() && a.size <= 17) else {
            return v;
        };
        if !is_number || v.axes.len() < 2 {
            return v;
        }
        let columns = Axis::fixed(self.pick(&[0, 1, 3, 8]));
        self.is_defined &= v.dtype == DType::F32;
        let other = self.operand_of(v.dtype, vec![depth.clone(), columns.clone()]);
        let mut axes = v.axes;
        if let Some(last) = axes.last_mut() {
            *last = columns;
        }
        self.node("MatMul", &[&v.name, &other.name], &[], v.dtype, axes)
    }

    /// Piecewise linear functions of floats.
    pub fn rectified(&mut self, v: Value) -> Value {
        if v.dtype != DType::F32 {
            return v;
        }
        if self.random.once_in(2) {
            return self.node("ThresholdedRelu", &[&v.name], &[], v.dtype, v.axes);
        }
        let slope = self.beside(&v, v.dtype);
        self.node("PRelu", &[&v.name, &slope.name], &[], v.dtype, v.axes)
    }

    /// The largest or smallest elements.
    pub fn sorted(&mut self, v: Value) -> Value {
        let Some(axis) = self.axis(&v) else { return v };
        let size = v.axes[axis].size;
        if v.dtype == DType::Bool || size == 0 {
            return v;
        }
        let k = 1 + self.random.below(size.min(4));
        // The standard does not define the order of NaN.
        self.is_defined &= v.dtype != DType::F32;
        let at = self.signed(&v, axis);
        let options = [
            ("axis", Int(at)),
            ("largest", Int(self.random.below(2) as i64)),
            ("sorted", Int(1)),
        ];
        let mut axes = v.axes.clone();
        axes[axis] = Axis::fixed(k);
        let count = self.integers(&[k as i64]);
        let values = self.node("TopK", &[&v.name, &count], &options, v.dtype, axes);
        let node = self.graph.node.last_mut().expect("the node above");
        let indices = format!("{}_indices", values.name);
        node.output.push(indices.clone());
        if self.random.once_in(2) {
            return values;
        }
        Value {
            name: indices,
            dtype: DType::I64,
            axes: values.axes,
        }
    }
}
