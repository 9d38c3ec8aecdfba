//! A summary of a model: architecture, sizes, bits per weight, tokenizer, files.

use super::{StateReport, ValueReport};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use transformer_lite::unstable::files::read::read_config;
use transformer_lite::unstable::graph::op::gather_e0m::QuantizedGather;
use transformer_lite::unstable::graph::op::matmul_e0m::QuantizedMatMul;
use transformer_lite::unstable::graph::op::matmul_nbits::MatMulNBits;
use transformer_lite::unstable::graph::{Graph, Node, ValueId};
use transformer_lite::unstable::quant::{Format, Scales};
use transformer_lite::unstable::tensor::HostTensor;

/// Weights of one storage format.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct WeightsReport {
    /// True for the output head and the embedding of a language model.
    pub head: bool,
    /// True for matrices and filters, false for biases, norms and other vectors.
    pub matrix: bool,
    /// Element type, or format of quantized weights.
    pub format: String,
    /// Bits per weight, without scales.
    pub bits: u32,
    /// Weights that share a scale.
    pub group: Option<usize>,
    /// Number of weights.
    pub parameters: u64,
    /// Bytes, with scales.
    pub bytes: u64,
}

impl WeightsReport {
    fn format_text(&self) -> String {
        let bits = self.bits;
        match self.group {
            Some(group) if self.format.starts_with("E0M") => {
                format!("{bits}-bit {} in groups of {group}", self.format)
            }
            Some(group) => format!("{bits}-bit in groups of {group}"),
            None if self.format.starts_with(['f', 'b']) => format!("{bits}-bit floats ({})", self.format),
            None => format!("{bits}-bit integers ({})", self.format),
        }
    }
}

/// A file of a model's folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct FileReport {
    /// Name in the folder.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// What a model is. `None` for what neither its files nor its graph tell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Summary {
    /// Architecture, such as `llama`.
    pub architecture: Option<String>,
    /// Number of weights.
    pub parameters: u64,
    /// Weights by format, most weights first.
    pub weights: Vec<WeightsReport>,
    /// Mean bits per weight of matrices, with scales, without output head and embedding.
    pub bits_per_weight: Option<f64>,
    /// Transformer layers.
    pub layers: Option<usize>,
    /// Width of the residual stream.
    pub hidden_size: Option<usize>,
    /// Query heads of a layer.
    pub heads: Option<usize>,
    /// Key and value heads of a layer.
    pub kv_heads: Option<usize>,
    /// Width of a head.
    pub head_size: Option<usize>,
    /// Size of the vocabulary.
    pub vocabulary: Option<usize>,
    /// Longest context that the model was made for, in tokens.
    pub max_context: Option<usize>,
    /// Whether there is a chat template.
    pub chat_template: Option<bool>,
    /// Kind of tokenizer, such as `BPE, byte-level`.
    pub tokenizer: Option<String>,
    /// Files of the model's folder, the largest first.
    pub files: Vec<FileReport>,
}

impl Summary {
    /// The summary of the model in `file`. `graph` has derived facts and no rewrites yet.
    pub(super) fn new(file: &Path, graph: &Graph, outputs: &[ValueReport], states: &[StateReport]) -> Self {
        let folder = file.parent().filter(|p| !p.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let config = read(&folder.join("config.json")).unwrap_or_default();
        let logits = outputs.iter().find(|o| o.name == "logits");
        let logits = logits.and_then(|o| o.shape.last()?.parse().ok());
        let weights = weights(graph, logits);
        let mut summary = Self {
            parameters: weights.iter().map(|w| w.parameters).sum(),
            bits_per_weight: bits_per_weight(&weights),
            weights,
            files: files(file, folder),
            ..Self::default()
        };
        // A lone file beside others is not described by them.
        if file.file_name().is_some_and(|name| name == "model.onnx") {
            summary.read_config(&config);
            summary.tokenizer = read(&folder.join("tokenizer.json")).map(|t| tokenizer_kind(&t));
            let speaks = summary.tokenizer.is_some() && logits.is_some();
            summary.chat_template = speaks.then(|| has_template(folder));
        }
        summary.vocabulary = summary.vocabulary.or(logits);
        // Keys and values: [batch, heads, tokens, width].
        let cache = states.first().map(|s| s.shape.as_slice());
        if let Some([_, heads, _, width]) = cache {
            summary.layers = summary.layers.or(Some(states.len() / 2));
            summary.kv_heads = summary.kv_heads.or(heads.parse().ok());
            summary.head_size = summary.head_size.or(width.parse().ok());
        }
        summary
    }

    /// Names and values to show, in reading order. Unknown values are left out.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        let mut add = |name, value: Option<String>| all.extend(value.map(|v| (name, v)));
        let number = |n: Option<usize>| n.map(|n| n.to_string());
        add("architecture", self.architecture.clone());
        add("parameters", Some(parameters_text(self.parameters)));
        add("weights", self.weights_text());
        add("layers", number(self.layers));
        add("hidden size", number(self.hidden_size));
        let heads = match (self.heads, self.kv_heads) {
            (Some(q), Some(kv)) if q != kv => Some(format!("{q} ({kv} for keys and values)")),
            (q, kv) => number(q.or(kv)),
        };
        let width = self.head_size.map(|n| format!(", {n} wide")).unwrap_or_default();
        add("heads", heads.map(|heads| format!("{heads}{width}")));
        add("vocabulary", self.vocabulary.map(|n| format!("{n} tokens")));
        add("context", self.max_context.map(|n| format!("{n} tokens")));
        let yes = |b: bool| if b { "yes" } else { "no" }.to_owned();
        add("chat template", self.chat_template.map(yes));
        add("tokenizer", self.tokenizer.clone());
        all
    }

    /// The storage of the weights of matrices and, if it differs, of embedding and head.
    pub fn weights_text(&self) -> Option<String> {
        let matrices = |head: bool| {
            let all = self.weights.iter().filter(move |w| w.matrix && w.head == head);
            all.collect::<Vec<_>>()
        };
        let (body, head) = (matrices(false), matrices(true));
        // What few weights have is not what the model is stored in.
        let total: u64 = body.iter().map(|w| w.parameters).sum();
        let most: Vec<_> = body.iter().filter(|w| w.parameters >= total / 50).collect();
        let mut text = match (most.as_slice(), self.bits_per_weight) {
            ([], _) => return head.first().map(|w| w.format_text()),
            ([one], Some(bits)) => match one.group {
                Some(_) => format!("{}, {bits:.2} bits with scales", one.format_text()),
                None => one.format_text(),
            },
            ([one], _) => one.format_text(),
            (several, bits) => {
                let mut formats: Vec<&str> = several.iter().map(|w| w.format.as_str()).collect();
                formats.sort_unstable();
                formats.dedup();
                let bits = bits.unwrap_or_default();
                format!("{}: {bits:.2} bits on average", formats.join(", "))
            }
        };
        let differs = |w: &&&WeightsReport| most.first().is_none_or(|m| m.format != w.format);
        if head.iter().any(|w| differs(&w)) {
            let mut formats: Vec<String> = head.iter().map(|w| w.format_text()).collect();
            formats.dedup();
            text += &format!("; embedding and head {}", formats.join(" and "));
        }
        Some(text)
    }

    fn read_config(&mut self, config: &Value) {
        let text = config.get("text_config").unwrap_or(config);
        let number = |key: &str| {
            let found = text.get(key).or_else(|| config.get(key))?.as_u64()?;
            usize::try_from(found).ok()
        };
        let name = config.get("model_type").and_then(Value::as_str);
        self.architecture = name.map(str::to_owned);
        self.layers = number("num_hidden_layers");
        self.hidden_size = number("hidden_size");
        self.heads = number("num_attention_heads");
        self.kv_heads = number("num_key_value_heads");
        let (width, heads) = (self.hidden_size, self.heads.filter(|n| *n > 0));
        self.head_size = number("head_dim").or_else(|| Some(width? / heads?));
        self.vocabulary = number("vocab_size");
        self.max_context = number("max_position_embeddings");
    }
}

/// A short form of a number of weights: `134.5 M`.
pub fn parameters_text(count: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let value = count as f64;
    match count {
        0..1_000 => count.to_string(),
        1_000..1_000_000 => format!("{:.1} k", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", value / 1e6),
        _ => format!("{:.2} B", value / 1e9),
    }
}

fn read(path: &Path) -> Option<Value> {
    serde_json::from_slice(&read_config(path).ok()?).ok()
}

/// The kind of tokenizer that `tokenizer.json` describes.
fn tokenizer_kind(tokenizer: &Value) -> String {
    let model = tokenizer.get("model").unwrap_or(&Value::Null);
    let kind = model.get("type").and_then(Value::as_str).unwrap_or("unknown");
    let byte_level = ["pre_tokenizer", "decoder"].iter().any(|part| {
        let part = tokenizer.get(part).map(Value::to_string);
        part.is_some_and(|text| text.contains("ByteLevel"))
    });
    let fallback = model.get("byte_fallback").and_then(Value::as_bool) == Some(true);
    match (byte_level, fallback) {
        (true, _) => format!("{kind}, byte-level"),
        (_, true) => format!("{kind}, with byte fallback"),
        _ => kind.to_owned(),
    }
}

fn has_template(folder: &Path) -> bool {
    let config = read(&folder.join("tokenizer_config.json"));
    let file = |name: &str| folder.join(name).is_file();
    file("chat_template.jinja")
        || file("additional_chat_templates/tool_use.jinja")
        || config.is_some_and(|c| c.get("chat_template").is_some_and(|t| !t.is_null()))
}

/// The files of a model folder, or a single ONNX file and its data files.
fn files(file: &Path, folder: &Path) -> Vec<FileReport> {
    let whole = file.file_name().is_some_and(|name| name == "model.onnx");
    let stem = file.file_name().map(|n| n.to_string_lossy().into_owned());
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<FileReport> = entries
        .filter_map(|e| {
            let name = e.file_name().to_string_lossy().into_owned();
            let meta = std::fs::metadata(e.path())
                .ok()
                .filter(std::fs::Metadata::is_file)?;
            let mine = whole || stem.as_ref().is_some_and(|stem| name.starts_with(stem.as_str()));
            let bytes = meta.len();
            mine.then_some(FileReport { name, bytes })
        })
        .collect();
    all.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    all
}

#[expect(clippy::cast_precision_loss, reason = "a mean for people")]
fn bits_per_weight(weights: &[WeightsReport]) -> Option<f64> {
    let body = || weights.iter().filter(|w| w.matrix && !w.head);
    let count: u64 = body().map(|w| w.parameters).sum();
    let bytes: u64 = body().map(|w| w.bytes).sum();
    (count > 0).then(|| 8.0 * bytes as f64 / count as f64)
}

/// One constant: (head, matrix, format, bits, group), number of weights, bytes.
type Found = ((bool, bool, String, u32, Option<usize>), u64, u64);

/// The weights of a graph by format. Integers of more than 8 bits and booleans are not weights.
fn weights(graph: &Graph, vocabulary: Option<usize>) -> Vec<WeightsReport> {
    let made: HashSet<ValueId> = graph.nodes().flat_map(|(_, n)| n.outputs.clone()).collect();
    let constant = |v: ValueId| {
        let fact = graph.value(v).fact.as_ref();
        fact.and_then(|f| f.as_const()).filter(|_| !made.contains(&v))
    };
    let mut taken: HashSet<ValueId> = HashSet::new();
    let mut found: Vec<Found> = Vec::new();
    // Packed weights first, since their scales are not weights of their own.
    for (_, node) in graph.nodes() {
        let Some((at, (format, bits, group, count))) = packed(node, &constant) else {
            continue;
        };
        let operand = |i: usize| node.inputs.get(i).copied().flatten();
        let rest = (at + 1..node.inputs.len())
            .filter_map(operand)
            .collect::<Vec<_>>();
        let Some(codes) = operand(at) else { continue };
        let bytes = std::iter::once(codes).chain(rest.iter().copied());
        let bytes: u64 = bytes.filter_map(&constant).map(|t| t.byte_len() as u64).sum();
        taken.extend(rest);
        if taken.insert(codes) {
            let columns = constant(codes).and_then(|t| t.shape().last().copied());
            let table = node.op.downcast::<QuantizedGather>().is_some();
            let head = table || columns.is_some() && columns == vocabulary;
            found.push(((head, true, format, bits, group), count, bytes));
        }
    }
    for (_, node) in graph.nodes() {
        // Tables of angles are not weights.
        if matches!(node.op.name(), "RotaryEmbedding" | "GroupQueryAttention") {
            continue;
        }
        let scaled = node.op.name().contains("uantize") || node.op.name().starts_with("QLinear");
        for (i, v) in node.inputs.iter().enumerate() {
            let Some(v) = v else { continue };
            let Some(tensor) = constant(*v) else { continue };
            let narrow = tensor.dtype().bits() <= 8
                && !matches!(tensor.dtype(), transformer_lite::unstable::tensor::DType::Bool);
            let scale = scaled && i > 0 && tensor.shape().len() < 2;
            if !(tensor.dtype().is_float() || narrow) || tensor.len() < 2 || scale || !taken.insert(*v) {
                continue;
            }
            found.push(plain(tensor, vocabulary));
        }
    }
    let mut groups: HashMap<_, (u64, u64)> = HashMap::new();
    for (key, count, bytes) in found {
        let sum = groups.entry(key).or_default();
        *sum = (sum.0.saturating_add(count), sum.1.saturating_add(bytes));
    }
    let mut all: Vec<WeightsReport> = groups
        .into_iter()
        .map(
            |((head, matrix, format, bits, group), (parameters, bytes))| WeightsReport {
                head,
                matrix,
                format,
                bits,
                group,
                parameters,
                bytes,
            },
        )
        .collect();
    all.sort_by(|a, b| {
        b.parameters
            .cmp(&a.parameters)
            .then_with(|| (&a.format, a.head).cmp(&(&b.format, b.head)))
    });
    all
}

/// A weight without packing.
fn plain(tensor: &HostTensor, vocabulary: Option<usize>) -> Found {
    let bits = u32::try_from(tensor.dtype().bits()).unwrap_or(u32::MAX);
    let head = tensor.shape().len() == 2
        && vocabulary.is_some_and(|v| tensor.shape().contains(&v))
        && tensor.shape().iter().all(|n| *n > 1);
    let matrix = tensor.shape().iter().filter(|n| **n > 1).count() >= 2;
    (
        (head, matrix, tensor.dtype().to_string(), bits, None),
        tensor.len() as u64,
        tensor.byte_len() as u64,
    )
}

/// Format, bits, group size and number of weights.
type Packing = (String, u32, Option<usize>, u64);

/// For a node that reads a packed weight: the operand with the codes and its packing.
fn packed<'a>(
    node: &Node,
    constant: &dyn Fn(ValueId) -> Option<&'a std::sync::Arc<HostTensor>>,
) -> Option<(usize, Packing)> {
    if let Some(op) = node.op.downcast::<MatMulNBits>() {
        let count = (op.k as u64).saturating_mul(op.n as u64);
        let bits = op.bits.count();
        return Some((1, (format!("int{bits}"), bits, Some(op.block), count)));
    }
    let product = node.op.downcast::<QuantizedMatMul>().map(|op| op.format);
    let Format { bits, group, scales } =
        product.or(node.op.downcast::<QuantizedGather>().map(|op| op.format))?;
    let codes = constant(node.inputs.get(1).copied().flatten()?)?;
    let &[rows, n] = codes.shape() else { return None };
    let count = (bits.weights(rows)? as u64).saturating_mul(n as u64);
    let kind = match scales {
        Scales::Pairs => "",
        Scales::Nested(_) => " (K-quant)",
    };
    Some((1, (format!("{bits}{kind}"), bits.count(), Some(group), count)))
}

/// Counts of operators by name, the most frequent first.
pub fn operator_counts<'a>(names: impl Iterator<Item = &'a str>) -> Vec<(&'a str, usize)> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    let mut all: Vec<_> = counts.into_iter().collect();
    all.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokenizers_are_named_by_their_kind() {
        let kind = |text: &str| tokenizer_kind(&serde_json::from_str(text).unwrap());
        assert_eq!(
            kind(r#"{"model": {"type": "BPE"}, "pre_tokenizer": {"type": "ByteLevel"}}"#),
            "BPE, byte-level"
        );
        assert_eq!(
            kind(r#"{"model": {"type": "BPE", "byte_fallback": true}}"#),
            "BPE, with byte fallback"
        );
        assert_eq!(kind(r#"{"model": {"type": "WordPiece"}}"#), "WordPiece");
        assert_eq!(kind("{}"), "unknown");
    }

    #[test]
    fn configurations_of_text_models_inside_others_are_read() {
        let mut summary = Summary::default();
        summary.read_config(&serde_json::json!({
            "model_type": "gemma3", "text_config": {
                "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 8, "head_dim": 16},
            "vocab_size": 100,
        }));
        assert_eq!(summary.architecture.as_deref(), Some("gemma3"));
        assert_eq!((summary.layers, summary.head_size), (Some(4), Some(16)));
        assert_eq!((summary.vocabulary, summary.max_context), (Some(100), None));
        summary.read_config(&serde_json::json!({"hidden_size": 64, "num_attention_heads": 4}));
        assert_eq!(summary.head_size, Some(16));
        summary.read_config(&serde_json::json!({"hidden_size": 64, "num_attention_heads": 0}));
        assert_eq!(summary.head_size, None);
    }

    #[test]
    fn storage_is_told_with_that_of_the_head() {
        let weights = |head, format: &str, bits, group, parameters| WeightsReport {
            head,
            matrix: true,
            format: format.to_owned(),
            bits,
            group,
            parameters,
            bytes: parameters,
        };
        let of = |weights: Vec<WeightsReport>| {
            let bits_per_weight = bits_per_weight(&weights);
            Summary {
                weights,
                bits_per_weight,
                ..Summary::default()
            }
        };
        let four = of(vec![
            weights(false, "E0M4", 4, Some(32), 1000),
            weights(true, "E0M8", 8, Some(32), 100),
        ]);
        assert_eq!(four.bits_per_weight, Some(8.0));
        let text = four.weights_text().unwrap();
        assert!(
            text.contains("4-bit E0M4 in groups of 32") && text.contains("head 8-bit"),
            "{text}"
        );
        let mixed = of(vec![
            weights(false, "E0M4", 4, Some(32), 1000),
            weights(false, "E0M6", 6, Some(64), 900),
        ]);
        assert!(mixed.weights_text().unwrap().contains("on average"));
        let float = of(vec![
            weights(false, "f32", 32, None, 1000),
            weights(true, "f32", 32, None, 10),
        ]);
        assert_eq!(float.weights_text().unwrap(), "32-bit floats (f32)");
        assert_eq!(of(Vec::new()).weights_text(), None);
        assert_eq!(
            [999, 1500, 134_515_008, 7_000_000_000].map(parameters_text),
            ["999", "1.5 k", "134.5 M", "7.00 B"]
        );
    }

    #[test]
    fn operators_are_counted() {
        let names = ["Add", "Mul", "Add"];
        assert_eq!(operator_counts(names.into_iter()), [("Add", 2), ("Mul", 1)]);
    }
}
