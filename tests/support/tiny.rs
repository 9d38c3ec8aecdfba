//! Two small models of other kinds than decoders, as exporters write them, without weights: an
//! image classifier of inverted residuals for images of any size, and a text encoder for batches of
//! any length.

use std::collections::HashMap;
use std::path::Path;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::graph::onnx::write::{Attr, ModelWriter, NodeSpec};
use transformer_lite::unstable::tensor::{DType, HostTensor};

type Attrs<'a> = [(&'a str, Attr)];

struct Net {
    out: ModelWriter,
    used: HashMap<String, usize>,
}

impl Net {
    fn new(folder: &Path, name: &str) -> Self {
        let mut out = ModelWriter::without_data(Stage::Convert, folder, "model.onnx", name);
        out.opset("", 17);
        Self {
            out,
            used: HashMap::new(),
        }
    }

    fn count(&mut self, name: &str) -> String {
        let n = self.used.entry(name.to_owned()).or_insert(0);
        *n += 1;
        format!("{name}_{}", *n - 1)
    }

    fn named(&mut self, op: &str, inputs: &[&str], attributes: &Attrs<'_>, output: &str) -> Result<()> {
        let name = self.count(op);
        self.out.add_node(NodeSpec {
            domain: "",
            op,
            name: &name,
            inputs,
            outputs: &[output],
            attributes,
        })
    }

    fn node(&mut self, op: &str, inputs: &[&str], attributes: &Attrs<'_>) -> Result<String> {
        let output = self.count(&op.to_lowercase());
        self.named(op, inputs, attributes, &output)?;
        Ok(output)
    }

    fn add(
        &mut self,
        tensor: Result<HostTensor, transformer_lite::unstable::tensor::TensorError>,
    ) -> Result<String> {
        let name = self.count("number");
        let tensor = tensor.map_err(|e| Error::other(Stage::Convert, e.to_string()))?;
        self.out.add_constant(&name, &tensor)?;
        Ok(name)
    }

    fn ints(&mut self, values: &[i64]) -> Result<String> {
        self.add(HostTensor::from_i64(&[values.len()], values))
    }

    fn int(&mut self, value: i64) -> Result<String> {
        self.add(HostTensor::from_i64(&[], &[value]))
    }

    fn float(&mut self, value: f32) -> Result<String> {
        self.add(HostTensor::from_f32(&[], &[value]))
    }

    /// A weight whose bytes are absent.
    fn weight(&mut self, shape: &[usize]) -> Result<String> {
        let name = self.count("weight");
        self.out
            .add_initializer_external(&name, DType::F32, shape, |_| Ok(()))?;
        Ok(name)
    }

    /// A convolution with a bias; `relu6` is its activation.
    fn conv(
        &mut self,
        x: &str,
        [input, output]: [usize; 2],
        size: usize,
        stride: i64,
        relu6: bool,
    ) -> Result<String> {
        // Of one channel each where there are as many groups.
        let group = if input == 0 { output } else { 1 };
        let weight = self.weight(&[output, input.max(1), size, size])?;
        let bias = self.weight(&[output])?;
        let side = size as i64;
        let attributes = [
            ("kernel_shape", Attr::Ints(vec![side; 2])),
            ("strides", Attr::Ints(vec![stride; 2])),
            ("pads", Attr::Ints(vec![side / 2; 4])),
            ("group", Attr::Int(group as i64)),
        ];
        let y = self.node("Conv", &[x, &weight, &bias], &attributes)?;
        if !relu6 {
            return Ok(y);
        }
        let (low, high) = (self.float(0.0)?, self.float(6.0)?);
        self.node("Clip", &[&y, &low, &high], &[])
    }

    fn linear(&mut self, x: &str, [k, n]: [usize; 2]) -> Result<String> {
        let (weight, bias) = (self.weight(&[k, n])?, self.weight(&[n])?);
        let y = self.node("MatMul", &[x, &weight], &[])?;
        self.node("Add", &[&bias, &y], &[])
    }

    fn layer_norm(&mut self, x: &str, width: usize) -> Result<String> {
        let mean = [("axes", Attr::Ints(vec![-1])), ("keepdims", Attr::Int(1))];
        let center = self.node("ReduceMean", &[x], &mean)?;
        let shifted = self.node("Sub", &[x, &center], &[])?;
        let two = self.float(2.0)?;
        let square = self.node("Pow", &[&shifted, &two], &[])?;
        let variance = self.node("ReduceMean", &[&square], &mean)?;
        let eps = self.float(1e-12)?;
        let sum = self.node("Add", &[&variance, &eps], &[])?;
        let root = self.node("Sqrt", &[&sum], &[])?;
        let scaled = self.node("Div", &[&shifted, &root], &[])?;
        let (weight, bias) = (self.weight(&[width])?, self.weight(&[width])?);
        let scaled = self.node("Mul", &[&scaled, &weight], &[])?;
        self.node("Add", &[&scaled, &bias], &[])
    }

    /// `x` as `[batch, sequence, ...]` with the first two sizes computed from it.
    fn view(&mut self, x: &str, last: &[i64]) -> Result<String> {
        let zero = self.ints(&[0])?;
        let mut parts = Vec::new();
        for axis in 0..2 {
            let shape = self.node("Shape", &[x], &[])?;
            let at = self.int(axis)?;
            let size = self.node("Gather", &[&shape, &at], &[("axis", Attr::Int(0))])?;
            parts.push(self.node("Unsqueeze", &[&size, &zero], &[])?);
        }
        parts.push(self.ints(last)?);
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let sizes = self.node("Concat", &parts, &[("axis", Attr::Int(0))])?;
        self.node("Reshape", &[x, &sizes], &[])
    }
}

/// Writes an image classifier: `image [batch, 3, height, width]` to `scores [batch, 10]`.
pub fn classifier(folder: &Path) -> Result<()> {
    let mut n = Net::new(folder, "classifier");
    let shape = ["batch".into(), 3.into(), "height".into(), "width".into()];
    n.out.add_input("image", DType::F32, &shape)?;
    n.out
        .add_output("scores", DType::F32, &["batch".into(), 10.into()])?;
    let mut x = n.conv("image", [3, 16], 3, 2, true)?;
    for (from, to, stride) in [(16, 16, 1), (16, 24, 2), (24, 24, 1)] {
        let wide = n.conv(&x, [from, 4 * from], 1, 1, true)?;
        let wide = n.conv(&wide, [0, 4 * from], 3, stride, true)?;
        let y = n.conv(&wide, [4 * from, to], 1, 1, false)?;
        x = if from == to {
            n.node("Add", &[&x, &y], &[])?
        } else {
            y
        };
    }
    let pooled = n.node("GlobalAveragePool", &[&x], &[])?;
    let flat = n.node("Flatten", &[&pooled], &[("axis", Attr::Int(1))])?;
    let (weight, bias) = (n.weight(&[10, 24])?, n.weight(&[10])?);
    n.named(
        "Gemm",
        &[&flat, &weight, &bias],
        &[("transB", Attr::Int(1))],
        "scores",
    )?;
    n.out.finish().map(|_| ())
}

/// Writes a text encoder of one layer: `input_ids`, `attention_mask` and `token_type_ids` of
/// `[batch, sequence]` to `last_hidden_state [batch, sequence, 32]`.
pub fn encoder(folder: &Path) -> Result<()> {
    const WIDTH: usize = 32;
    let mut n = Net::new(folder, "encoder");
    let ids = ["batch".into(), "sequence".into()];
    for name in ["input_ids", "attention_mask", "token_type_ids"] {
        n.out.add_input(name, DType::I64, &ids)?;
    }
    let shape = ["batch".into(), "sequence".into(), WIDTH.into()];
    n.out.add_output("last_hidden_state", DType::F32, &shape)?;

    let (words, kinds, places) = (
        n.weight(&[100, WIDTH])?,
        n.weight(&[2, WIDTH])?,
        n.weight(&[64, WIDTH])?,
    );
    let (words, kinds) = (
        n.node("Gather", &[&words, "input_ids"], &[])?,
        n.node("Gather", &[&kinds, "token_type_ids"], &[])?,
    );
    // `position_ids[:, :sequence]` of a buffer.
    let all: Vec<i64> = (0..64).collect();
    let all = n.add(HostTensor::from_i64(&[1, 64], &all))?;
    let shape = n.node("Shape", &["input_ids"], &[])?;
    let (zero, one) = (n.ints(&[0])?, n.ints(&[1])?);
    let sequence = n.node("Gather", &[&shape, &one], &[("axis", Attr::Int(0))])?;
    let positions = n.node("Slice", &[&all, &zero, &sequence, &one, &one], &[])?;
    let places = n.node("Gather", &[&places, &positions], &[])?;
    let x = n.node("Add", &[&words, &kinds], &[])?;
    let x = n.node("Add", &[&x, &places], &[])?;
    let x = n.layer_norm(&x, WIDTH)?;

    let axes = n.ints(&[1, 2])?;
    let mask = n.node("Unsqueeze", &["attention_mask", &axes], &[])?;
    let mask = n.node("Cast", &[&mask], &[("to", Attr::Int(1))])?;
    let (full, lowest) = (n.float(1.0)?, n.float(f32::MIN)?);
    let mask = n.node("Sub", &[&full, &mask], &[])?;
    let mask = n.node("Mul", &[&mask, &lowest], &[])?;

    let mut heads = Vec::new();
    for perm in [[0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]] {
        let v = n.linear(&x, [WIDTH, WIDTH])?;
        let v = n.view(&v, &[4, 8])?;
        heads.push(n.node("Transpose", &[&v], &[("perm", Attr::Ints(perm.to_vec()))])?);
    }
    let scores = n.node("MatMul", &[&heads[0], &heads[1]], &[])?;
    let root = n.float(8f32.sqrt())?;
    let scores = n.node("Div", &[&scores, &root], &[])?;
    let scores = n.node("Add", &[&scores, &mask], &[])?;
    let weights = n.node("Softmax", &[&scores], &[("axis", Attr::Int(-1))])?;
    let mixed = n.node("MatMul", &[&weights, &heads[2]], &[])?;
    let mixed = n.node("Transpose", &[&mixed], &[("perm", Attr::Ints(vec![0, 2, 1, 3]))])?;
    let mixed = n.view(&mixed, &[32])?;
    let mixed = n.linear(&mixed, [WIDTH, WIDTH])?;
    let sum = n.node("Add", &[&mixed, &x], &[])?;
    let x = n.layer_norm(&sum, WIDTH)?;

    let wide = n.linear(&x, [WIDTH, 4 * WIDTH])?;
    let (sqrt_two, half) = (n.float(2f32.sqrt())?, n.float(0.5)?);
    let erf = n.node("Div", &[&wide, &sqrt_two], &[])?;
    let erf = n.node("Erf", &[&erf], &[])?;
    let erf = n.node("Add", &[&erf, &full], &[])?;
    let gelu = n.node("Mul", &[&wide, &erf], &[])?;
    let gelu = n.node("Mul", &[&gelu, &half], &[])?;
    let narrow = n.linear(&gelu, [4 * WIDTH, WIDTH])?;
    let sum = n.node("Add", &[&narrow, &x], &[])?;
    let y = n.layer_norm(&sum, WIDTH)?;
    n.named("Identity", &[&y], &[], "last_hidden_state")?;
    n.out.finish().map(|_| ())
}
