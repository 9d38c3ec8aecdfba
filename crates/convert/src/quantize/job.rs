//! Writes the weights of the old files to the new one.

use super::panels::{Losses, Panel, explain, losses, panels};
use super::parts::{Parts, QuantizedWeight, Record};
use super::plan::Plan;
use super::source::{Origin, Source, bytes_of};
use super::transcode::Kept;
use super::weight::{Elements, Scaling, Weight, sample};
use super::{Methods, Options, Progress, Quantized, mixed};
use crate::memory;
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::graph::onnx::weights::Weights;
use transformer_lite::unstable::graph::onnx::write::ModelWriter;
use transformer_lite::unstable::parallel;
use transformer_lite::unstable::quant::{
    ByGroup, ColumnMethod, Format, Loss, Method, Packed, int4_error, place,
};
use transformer_lite::unstable::tensor::{DType, HostTensor, TensorError};

/// Incremented whenever a method's result for the same weight changes.
const REVISION: u32 = 1;

/// Number of columns of a weight on which methods are compared.
const SAMPLE: usize = 64;

/// State while weights are written to the new file.
pub(super) struct Job<'a> {
    source: &'a Source,
    weights: Weights,
    pub writer: ModelWriter,
    parts: &'a Parts,
    options: &'a Options,
    methods: &'a dyn Methods,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(Progress<'_>),
    pub quantized: Vec<Quantized>,
    pub loss: Loss,
    pub resumed: usize,
    /// For each weight that keeps its quantized values, in plan order: its rows are reordered.
    pub ordered: Vec<bool>,
}

impl<'a> Job<'a> {
    pub fn new(
        source: &'a Source,
        writer: ModelWriter,
        parts: &'a Parts,
        options: &'a Options,
        methods: &'a dyn Methods,
        progress: &'a mut dyn FnMut(Progress<'_>),
    ) -> Self {
        Self {
            weights: Weights::new(&source.path),
            source,
            writer,
            parts,
            options,
            methods,
            done: 0,
            total: source.graph.initializer.iter().map(bytes_of).sum(),
            progress,
            quantized: Vec::new(),
            loss: Loss::default(),
            resumed: 0,
            ordered: Vec::new(),
        }
    }

    /// Chooses format and group size of each weight under a budget.
    pub fn spend(&mut self, plan: &mut Plan, budget: f64) -> Result<()> {
        let mut ladders = Vec::with_capacity(plan.weights.len());
        for w in &plan.weights {
            let t = &self.source.graph.initializer[w.initializer];
            let tensor = self.weights.tensor(t)?;
            let elements = self.source.elements(&t.name, &tensor)?;
            let hessian = self.methods.hessian(&t.name)?;
            let measured = mixed::measure(elements, w, self.options, hessian.as_deref());
            ladders.push(measured.map_err(|e| self.source.bad(format!("weight \"{}\": {e}", t.name)))?);
            let (done, total) = (self.done, self.total);
            (self.progress)(Progress {
                tensor: &t.name,
                done,
                total,
            });
        }
        let sizes: Vec<usize> = plan.weights.iter().map(|w| w.k * w.n).collect();
        for (w, choice) in plan
            .weights
            .iter_mut()
            .zip(mixed::spend(&ladders, &sizes, budget)?)
        {
            (w.bits, w.group) = (choice.bits, choice.group);
        }
        Ok(())
    }

    /// Writes all weights; returns the origins of the new file's initializers.
    pub fn weights(&mut self, plan: &Plan) -> Result<Vec<Origin>> {
        let source = self.source;
        self.ordered = vec![false; plan.kept.len()];
        let mut origins = Vec::new();
        let mut written = 0;
        let mut new = |origins: &mut Vec<Origin>| {
            origins.push(Origin::New(written));
            written += 1;
        };
        for (i, t) in source.graph.initializer.iter().enumerate() {
            if let Some(w) = plan.weights.iter().find(|w| w.initializer == i) {
                let tensor = self.weights.tensor(t)?;
                self.pack(&t.name, &tensor, w)?;
                new(&mut origins);
                new(&mut origins);
                continue;
            }
            if let Some(by) = self.methods.divisor(&t.name) {
                let tensor = self.weights.tensor(t)?;
                let divided =
                    divided(&tensor, by).map_err(|e| self.source.bad(format!("\"{}\": {e}", t.name)))?;
                self.writer.add_external(&t.name, &divided)?;
                new(&mut origins);
            } else if let Some(at) = plan.kept.iter().position(|k| k.initializer == i) {
                for _ in 0..self.keep(&t.name, at, &plan.kept[at])? {
                    new(&mut origins);
                }
            } else if plan.kept.iter().any(|k| k.replaces(i)) {
                // Written with its weight.
            } else if t.data_location == 1 {
                self.writer.add_external(&t.name, &self.weights.tensor(t)?)?;
                new(&mut origins);
            } else {
                origins.push(Origin::Old(i));
            }
            self.advance(&t.name, bytes_of(t));
        }
        Ok(origins)
    }

    fn advance(&mut self, tensor: &str, bytes: u64) {
        self.done += bytes;
        let (done, total) = (self.done, self.total);
        (self.progress)(Progress { tensor, done, total });
    }

    /// Writes a weight, from a finished part or by quantizing it.
    fn pack(&mut self, name: &str, tensor: &HostTensor, w: &Weight) -> Result<()> {
        let elements = self
            .source
            .elements(name, tensor)?
            .scaled(self.methods.scaling(name));
        let key = self.key(name, tensor.dtype(), elements, w);
        let part = match self.parts.finished(w.initializer, &key) {
            Some(part) => {
                self.resumed += 1;
                self.advance(name, tensor.byte_len() as u64);
                part
            }
            None => self.make(name, elements, w, key)?,
        };
        let shape = [w.bits.rows(w.k), w.n];
        self.writer
            .add_matrix(&w.codes, DType::U32, &shape, part.codes())?;
        let shape = [w.k.div_ceil(w.group), w.n, 2];
        self.writer
            .add_matrix(&w.scales, DType::F16, &shape, part.scales())?;
        let loss = part.record.loss();
        let compared = if self.options.compare {
            self.compare(name, elements, w)?
        } else {
            Vec::new()
        };
        #[expect(clippy::cast_precision_loss, reason = "a number of weights in memory")]
        let mae_int4 = part.record.int4 / loss.count.max(1) as f64;
        let (before, after) = (tensor.byte_len() as u64, part.record.length as u64);
        self.quantized.push(Quantized {
            mae_int4: Some(mae_int4),
            compared,
            ..Quantized::new(
                name,
                tensor.shape(),
                Format::new(w.bits, w.group),
                &loss,
                before,
                after,
            )
        });
        self.loss.add(&loss);
        Ok(())
    }

    /// Writes a weight that keeps its quantized values, as a few tensors; returns their number.
    fn keep(&mut self, name: &str, at: usize, kept: &Kept) -> Result<usize> {
        let made = kept.transcode(self.source, &mut self.weights)?;
        let tensors = kept.tensors(&made);
        let mut bytes_after = 0;
        for (name, dtype, shape, bytes) in &tensors {
            bytes_after += bytes.len() as u64;
            self.writer.add_matrix(name, *dtype, shape, bytes)?;
        }
        self.ordered[at] = made.order.is_some();
        self.quantized.push(kept.summary(name, &made, bytes_after));
        self.loss.add(&made.loss);
        Ok(tensors.len())
    }

    /// Everything a finished weight depends on; a resumed run compares it.
    fn key(&self, name: &str, dtype: DType, elements: Elements<'_>, w: &Weight) -> String {
        format!(
            "{} {} revision {REVISION}, {name}: {} {}x{} {} crc32 {:08x}, {} group {} by {}",
            env!("CARGO_PKG_NAME"),
            env!("CARGO_PKG_VERSION"),
            dtype,
            w.k,
            w.n,
            if w.transposed { "transposed" } else { "as it is" },
            crc32fast::hash(elements.bytes),
            w.bits,
            w.group,
            self.methods.key(name)
        )
    }

    /// Quantizes a weight and stores it as a part.
    fn make(
        &mut self,
        name: &str,
        elements: Elements<'_>,
        w: &Weight,
        key: String,
    ) -> Result<QuantizedWeight> {
        let (mut codes, mut scales): (Vec<u32>, Vec<u32>) = (
            memory::zeros(w.bits.rows(w.k) * w.n, name)?,
            memory::zeros(w.k.div_ceil(w.group) * w.n, name)?,
        );
        let element = elements.element_size();
        let Losses { loss, int4 } = match self.methods.packed(name)? {
            Some(packed) => {
                let found = (packed.format, packed.k, packed.n);
                let expected = (Format::new(w.bits, w.group), w.k, w.n);
                if found != expected {
                    let what = format!("weight \"{name}\": expected {expected:?}, found {found:?}");
                    return Err(self.source.bad(what));
                }
                let losses = losses(elements, w, &packed);
                (codes, scales) = (packed.codes, packed.scales);
                self.advance(name, (w.k * w.n * element) as u64);
                losses
            }
            None => {
                let method = self.methods.of(name, w.k)?;
                panels(parallel::cores(), elements, w, &*method, &mut |at: Panel| {
                    let width = at.packed.n;
                    place(&mut codes, &at.packed.codes, w.n, at.first, width);
                    place(&mut scales, &at.packed.scales, w.n, at.first, width);
                    self.advance(name, (width * w.k * element) as u64);
                })
                .map_err(|(first, width, e)| {
                    self.source
                        .bad(format!("weight \"{name}\": {}", explain(w, first, width, e)))
                })?
            }
        };
        let (codes, scales): (&[u8], &[u8]) = (bytemuck::cast_slice(&codes), bytemuck::cast_slice(&scales));
        let mut crc = crc32fast::Hasher::new();
        crc.update(codes);
        crc.update(scales);
        let record = Record {
            key,
            codes: codes.len(),
            length: codes.len() + scales.len(),
            crc32: crc.finalize(),
            count: loss.count,
            max: loss.max,
            absolute: loss.absolute,
            squared: loss.squared,
            weights_squared: loss.weights_squared,
            int4,
        };
        self.parts.keep(w.initializer, &record, codes, scales)?;
        let found = self.parts.finished(w.initializer, &record.key);
        found.ok_or_else(|| {
            self.source.bad(format!(
                "weight \"{name}\": the data read back differs from the data written; the disk may be faulty"
            ))
        })
    }

    /// Mean absolute error of all methods that need only weights, relative to INT4, on some
    /// columns.
    fn compare(&self, name: &str, elements: Elements<'_>, w: &Weight) -> Result<Vec<(&'static str, f64)>> {
        let columns = sample(elements.scaled(Scaling::default()), w, SAMPLE);
        let groups = columns.chunks(w.k).flat_map(|c| c.chunks(w.group));
        let int4: f64 = groups.map(int4_error).sum();
        let ratio = |name_of: &'static str, method: &dyn ColumnMethod| {
            let (_, loss) = Packed::from_columns(w.bits, w.group, w.k, &columns, method)
                .map_err(|e| self.source.bad(format!("weight \"{name}\": {e}")))?;
            // Both are 0 for a weight of zeros.
            Ok((name_of, if int4 == 0.0 { 1.0 } else { loss.absolute / int4 }))
        };
        let plain = Method::NAMES.into_iter();
        plain
            .map(|(name, method)| ratio(name, &ByGroup::from(method)))
            .collect()
    }
}

/// A tensor of the same type with each element divided by its own divisor.
fn divided(tensor: &HostTensor, by: &[f32]) -> Result<HostTensor, TensorError> {
    let values: Vec<f64> = tensor
        .to_f64()?
        .iter()
        .zip(by)
        .map(|(x, d)| x / f64::from(*d))
        .collect();
    HostTensor::from_f64s(tensor.dtype(), tensor.shape(), &values)
}
