//! Built-in architectures, written as float ONNX files with random weights.

use crate::error::{Error, Result};
use crate::task::boxes::{ANCHORS, SIDES, anchors, maps};
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::Path;
use transformer_lite::unstable::error::Stage;
use transformer_lite::unstable::graph::onnx::import;
use transformer_lite::unstable::graph::onnx::write::{Attr, ModelWriter, NodeSpec, Size};
use transformer_lite::unstable::llm::sampler::SplitMix64;
use transformer_lite::unstable::tensor::{DType, HostTensor};
use transformer_lite_convert::new_folder::NewFolder;

/// A built-in architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Architecture {
    /// Two convolutions and three matmuls (after LeCun et al., 1998).
    Lenet,
    /// 8 layers with residual connections, 16 to 64 channels (He et al., 2016).
    Resnet8,
    /// 20 layers.
    Resnet20,
    /// 32 layers.
    Resnet32,
    /// Depthwise separable convolutions (Howard et al., 2017).
    #[value(name = "mobilenet_v1")]
    MobilenetV1,
    /// MobileNet that finds boxes and classes of objects on two feature maps (Sandler et al., 2018).
    Ssdlite,
}

/// The activation function of all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Activation {
    Relu,
    Relu6,
}

/// What a new network looks like.
#[derive(Clone, Debug, PartialEq)]
pub struct Design {
    pub architecture: Architecture,
    /// Height and width of pictures.
    pub resolution: usize,
    /// Channels of pictures.
    pub channels: usize,
    pub classes: usize,
    /// Multiplies the channels of MobileNet and of SSDLite.
    pub width: f64,
    pub activation: Activation,
    pub seed: u64,
}

/// Pictures of at most this size are not made smaller by MobileNet's first layer.
const SMALL: usize = 64;
/// Smallest pictures of LeNet.
const LENET: usize = 12;
/// Smallest pictures of SSDLite.
const SSD: usize = 32;
/// Channels and strides of the layers of MobileNet.
const LAYERS: [(usize, usize); 13] = [
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    (512, 1),
    (512, 1),
    (512, 1),
    (512, 1),
    (512, 1),
    (1024, 2),
    (1024, 1),
];
/// The last layer whose results have a 16th of the picture's size.
const FIRST_MAP: usize = 11;
const OPSET: i64 = 17;

/// Writes a network to the new folder `output`. Weights of the model `from` are used where name and
/// shape agree; returns how many those are, of how many.
pub fn write(design: &Design, output: &Path, from: Option<&Path>) -> Result<[usize; 2]> {
    let least = match design.architecture {
        Architecture::Lenet => LENET,
        Architecture::Ssdlite => SSD,
        _ => 1,
    };
    if design.resolution < least || design.resolution > 4096 {
        let what = format!("expected {least} to 4096, found {}", design.resolution);
        return Err(Error::option("--resolution", what));
    }
    let folder = NewFolder::create(output, ".new-")?;
    let mut maker = Maker::new(folder.path(), design, from)?;
    maker.network(design)?;
    let counts = [maker.copied, maker.constants];
    maker.writer.finish()?;
    folder.commit()?;
    Ok(counts)
}

/// A network being written, layer after layer.
struct Maker {
    writer: ModelWriter,
    random: SplitMix64,
    /// Weights of another model.
    source: HashMap<String, HostTensor>,
    /// The last value, its channels, and its height and width.
    last: String,
    channels: usize,
    side: usize,
    activation: Activation,
    copied: usize,
    constants: usize,
}

/// A convolution.
#[derive(Clone, Copy)]
struct Conv {
    outputs: usize,
    kernel: usize,
    stride: usize,
    pad: usize,
    groups: usize,
}

fn signed(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The constants of a model, by name.
fn constants(path: &Path) -> Result<HashMap<String, HostTensor>> {
    let file = if path.is_dir() {
        path.join("model.onnx")
    } else {
        path.to_owned()
    };
    let graph = import(&file)?;
    let all = graph.values().filter_map(|v| {
        let tensor = v.fact.as_ref()?.as_const()?;
        Some((v.name.clone(), tensor.as_ref().clone()))
    });
    Ok(all.collect())
}

impl Maker {
    fn new(folder: &Path, design: &Design, from: Option<&Path>) -> Result<Self> {
        let mut writer = ModelWriter::without_data(Stage::Convert, folder, "model.onnx", "network");
        writer.opset("", OPSET);
        let side = design.resolution;
        let sizes: [Size; 4] = ["batch".into(), design.channels.into(), side.into(), side.into()];
        writer.add_input("picture", DType::F32, &sizes)?;
        if design.architecture == Architecture::Ssdlite {
            let (boxes, numbers) = (anchors([1, side, side]).len(), SIDES + design.classes + 1);
            let sizes: [Size; 3] = ["batch".into(), boxes.into(), numbers.into()];
            writer.add_output("boxes", DType::F32, &sizes)?;
        } else {
            writer.add_output("scores", DType::F32, &["batch".into(), design.classes.into()])?;
        }
        Ok(Self {
            writer,
            random: SplitMix64::new(design.seed),
            source: from.map(constants).transpose()?.unwrap_or_default(),
            last: "picture".to_owned(),
            channels: design.channels,
            side,
            activation: design.activation,
            copied: 0,
            constants: 0,
        })
    }

    fn network(&mut self, design: &Design) -> Result<()> {
        match design.architecture {
            Architecture::Lenet => return self.lenet(design.classes),
            Architecture::Resnet8 => self.resnet(1)?,
            Architecture::Resnet20 => self.resnet(3)?,
            Architecture::Resnet32 => self.resnet(5)?,
            Architecture::MobilenetV1 => {
                let first = if self.side > SMALL { 2 } else { 1 };
                self.mobilenet(design.width, first, 1..=LAYERS.len())?;
            }
            Architecture::Ssdlite => return self.ssdlite(design),
        }
        self.node("pool", "GlobalAveragePool", &[], &[])?;
        self.node("flatten", "Flatten", &[], &[])?;
        self.matmul("classifier", design.classes, Some("scores"))
    }

    fn constant(
        &mut self,
        name: &str,
        shape: &[usize],
        value: impl FnOnce(&mut SplitMix64) -> Vec<f32>,
    ) -> Result<()> {
        // Drawn in any case, so that a seed gives the same weights.
        let made = value(&mut self.random);
        let known = self
            .source
            .get(name)
            .filter(|t| t.shape() == shape && t.dtype() == DType::F32);
        self.constants += 1;
        self.copied += usize::from(known.is_some());
        let tensor = match known {
            Some(t) => t.clone(),
            None => HostTensor::from_f32(shape, &made)?,
        };
        Ok(self.writer.add_constant(name, &tensor)?)
    }

    /// A constant of normally distributed numbers with this variance.
    fn normal(&mut self, name: &str, shape: &[usize], variance: f64) -> Result<()> {
        let count: usize = shape.iter().product();
        self.constant(name, shape, |random| {
            let mut number = || {
                let radius = (-2.0 * (1.0 - random.next_f64()).ln()).sqrt();
                let turn = std::f64::consts::TAU * random.next_f64();
                #[expect(clippy::cast_possible_truncation, reason = "rounding is meant")]
                let v = (variance.sqrt() * radius * turn.cos()) as f32;
                v
            };
            (0..count).map(|_| number()).collect()
        })
    }

    fn filled(&mut self, name: &str, count: usize, value: f32) -> Result<()> {
        self.constant(name, &[count], |_| vec![value; count])
    }

    /// A node that reads the last value and `more`.
    fn node(&mut self, name: &str, op: &str, more: &[&str], attributes: &[(&str, Attr)]) -> Result<()> {
        self.node_to(name, op, more, attributes, None)
    }

    fn node_to(
        &mut self,
        name: &str,
        op: &str,
        more: &[&str],
        attributes: &[(&str, Attr)],
        output: Option<&str>,
    ) -> Result<()> {
        let out = output.map_or_else(|| format!("{name}.out"), str::to_owned);
        let inputs: Vec<&str> = std::iter::once(self.last.as_str())
            .chain(more.iter().copied())
            .collect();
        self.writer.add_node(NodeSpec {
            domain: "",
            op,
            name,
            inputs: &inputs,
            outputs: &[&out],
            attributes,
        })?;
        self.last = out;
        Ok(())
    }

    fn conv(&mut self, name: &str, c: Conv, bias: bool) -> Result<()> {
        let each = self.channels / c.groups;
        let (w, b) = (format!("{name}.weight"), format!("{name}.bias"));
        #[expect(clippy::cast_precision_loss, reason = "a number of inputs")]
        let variance = 2.0 / (each * c.kernel * c.kernel) as f64;
        self.normal(&w, &[c.outputs, each, c.kernel, c.kernel], variance)?;
        let mut operands = vec![w.as_str()];
        if bias {
            self.filled(&b, c.outputs, 0.0)?;
            operands.push(&b);
        }
        let attributes = [
            ("kernel_shape", Attr::Ints(vec![signed(c.kernel); 2])),
            ("strides", Attr::Ints(vec![signed(c.stride); 2])),
            ("pads", Attr::Ints(vec![signed(c.pad); 4])),
            ("group", Attr::Int(signed(c.groups))),
        ];
        self.node(name, "Conv", &operands, &attributes)?;
        self.channels = c.outputs;
        self.side = (self.side + 2 * c.pad).saturating_sub(c.kernel) / c.stride + 1;
        Ok(())
    }

    fn norm(&mut self, name: &str) -> Result<()> {
        let names = ["scale", "bias", "mean", "variance"].map(|part| format!("{name}.{part}"));
        for (name, value) in names.iter().zip([1.0, 0.0, 0.0, 1.0]) {
            self.filled(name, self.channels, value)?;
        }
        self.node(
            name,
            "BatchNormalization",
            &names.each_ref().map(String::as_str),
            &[],
        )
    }

    fn activate(&mut self, name: &str) -> Result<()> {
        if self.activation == Activation::Relu {
            return self.node(name, "Relu", &[], &[]);
        }
        let ends = ["least", "most"].map(|part| format!("{name}.{part}"));
        for (end, value) in ends.iter().zip([0.0, 6.0]) {
            let tensor = HostTensor::from_f32(&[], &[value])?;
            self.writer.add_constant(end, &tensor)?;
        }
        self.node(name, "Clip", &ends.each_ref().map(String::as_str), &[])
    }

    fn block(&mut self, name: &str, c: Conv) -> Result<()> {
        self.conv(name, c, false)?;
        self.norm(&format!("{name}.norm"))
    }

    fn matmul(&mut self, name: &str, outputs: usize, result: Option<&str>) -> Result<()> {
        let (w, b) = (format!("{name}.weight"), format!("{name}.bias"));
        #[expect(clippy::cast_precision_loss, reason = "a number of inputs")]
        let variance = 1.0 / self.channels as f64;
        self.normal(&w, &[outputs, self.channels], variance)?;
        self.filled(&b, outputs, 0.0)?;
        self.node_to(name, "Gemm", &[&w, &b], &[("transB", Attr::Int(1))], result)?;
        self.channels = outputs;
        Ok(())
    }

    fn lenet(&mut self, classes: usize) -> Result<()> {
        let pool = [
            ("kernel_shape", Attr::Ints(vec![2; 2])),
            ("strides", Attr::Ints(vec![2; 2])),
        ];
        for (i, (outputs, pad)) in [(6, 2), (16, 0)].into_iter().enumerate() {
            let c = Conv {
                outputs,
                kernel: 5,
                stride: 1,
                pad,
                groups: 1,
            };
            self.conv(&format!("conv{}", i + 1), c, true)?;
            self.activate(&format!("conv{}.act", i + 1))?;
            self.node(&format!("pool{}", i + 1), "MaxPool", &[], &pool)?;
            self.side /= 2;
        }
        self.node("flatten", "Flatten", &[], &[])?;
        self.channels *= self.side * self.side;
        for (name, outputs) in [("fc1", 120), ("fc2", 84)] {
            self.matmul(name, outputs, None)?;
            self.activate(&format!("{name}.act"))?;
        }
        self.matmul("classifier", classes, Some("scores"))
    }

    fn resnet(&mut self, blocks: usize) -> Result<()> {
        let conv = |outputs, kernel, stride| Conv {
            outputs,
            kernel,
            stride,
            pad: kernel / 2,
            groups: 1,
        };
        self.block("stem", conv(16, 3, 1))?;
        self.activate("stem.act")?;
        for (stage, width) in [16, 32, 64].into_iter().enumerate() {
            for i in 0..blocks {
                let name = format!("stage{}.{i}", stage + 1);
                let stride = if stage > 0 && i == 0 { 2 } else { 1 };
                let before = (self.last.clone(), self.channels, self.side);
                self.block(&format!("{name}.conv1"), conv(width, 3, stride))?;
                self.activate(&format!("{name}.act1"))?;
                self.block(&format!("{name}.conv2"), conv(width, 3, 1))?;
                let made = (self.last.clone(), self.channels, self.side);
                let mut shortcut = before.0.clone();
                if before.1 != width || stride > 1 {
                    (self.last, self.channels, self.side) = before;
                    self.block(&format!("{name}.shortcut"), conv(width, 1, stride))?;
                    shortcut.clone_from(&self.last);
                }
                (self.last, self.channels, self.side) = made;
                self.node(&format!("{name}.add"), "Add", &[&shortcut], &[])?;
                self.activate(&format!("{name}.act2"))?;
            }
        }
        Ok(())
    }

    /// The layers with these numbers of a MobileNet; the first one has another before it, with the
    /// stride `first`.
    fn mobilenet(&mut self, width: f64, first: usize, numbers: RangeInclusive<usize>) -> Result<()> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            clippy::cast_sign_loss,
            reason = "small and not negative"
        )]
        let scaled = |n: usize| ((n as f64 * width).round() as usize).max(8);
        if numbers.contains(&1) {
            let stem = Conv {
                outputs: scaled(32),
                kernel: 3,
                stride: first,
                pad: 1,
                groups: 1,
            };
            self.block("stem", stem)?;
            self.activate("stem.act")?;
        }
        for (i, (outputs, stride)) in (1..).zip(LAYERS) {
            if numbers.contains(&i) {
                self.depthwise(&format!("block{i}"), stride)?;
                self.block(&format!("block{i}.pointwise"), pointwise(scaled(outputs)))?;
                self.activate(&format!("block{i}.act2"))?;
            }
        }
        Ok(())
    }

    /// A depthwise convolution with normalization and activation.
    fn depthwise(&mut self, name: &str, stride: usize) -> Result<()> {
        let wise = Conv {
            outputs: self.channels,
            kernel: 3,
            stride,
            pad: 1,
            groups: self.channels,
        };
        self.block(&format!("{name}.depthwise"), wise)?;
        self.activate(&format!("{name}.act1"))
    }

    /// MobileNet with a head on the last feature map of a 16th of the picture's size, and one on the
    /// last of a 32nd.
    fn ssdlite(&mut self, design: &Design) -> Result<()> {
        let numbers = SIDES + design.classes + 1;
        let parts = [1..=FIRST_MAP, FIRST_MAP + 1..=LAYERS.len()];
        let mut made = Vec::new();
        for (i, (part, [rows, columns])) in parts.into_iter().zip(maps([1, self.side, self.side])).enumerate()
        {
            let name = format!("head{}", i + 1);
            self.mobilenet(design.width, 2, part)?;
            let map = (self.last.clone(), self.channels, self.side);
            self.depthwise(&name, 1)?;
            self.conv(&format!("{name}.pointwise"), pointwise(ANCHORS * numbers), true)?;
            let order = [("perm", Attr::Ints(vec![0, 2, 3, 1]))];
            self.node(&format!("{name}.transpose"), "Transpose", &[], &order)?;
            // 0 keeps the batch.
            let shape = [0, signed(rows * columns * ANCHORS), signed(numbers)];
            let shape_name = format!("{name}.shape");
            let shape = HostTensor::from_ints(DType::I64, &[shape.len()], &shape)?;
            self.writer.add_constant(&shape_name, &shape)?;
            self.node(&format!("{name}.reshape"), "Reshape", &[&shape_name], &[])?;
            made.push(std::mem::take(&mut self.last));
            (self.last, self.channels, self.side) = map;
        }
        let [first, second] = made.as_slice() else {
            return Err(Error::Internal("an SSDLite without two heads".to_owned()));
        };
        self.last.clone_from(first);
        self.node_to(
            "boxes",
            "Concat",
            &[second],
            &[("axis", Attr::Int(1))],
            Some("boxes"),
        )
    }
}

/// A convolution of single pixels.
fn pointwise(outputs: usize) -> Conv {
    Conv {
        outputs,
        kernel: 1,
        stride: 1,
        pad: 0,
        groups: 1,
    }
}
