//! Imported checkpoints: decoders of each family against the logits that transformers computes of
//! them, from folders of Hugging Face and from GGUF files; and matrices that kept their bits, on
//! devices against the host.
//!
//! `tests/data/decoders/make.py` made the logits, and says how weights follow from nothing but
//! their names and shapes.

mod windows;

use half::f16;
use serde::Deserialize;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tlite_testing::gguf::{File, byte_vocabulary, random};
use tlite_testing::hugging_face::{self, Folder, Order, f32s};
use tlite_testing::suite::Suite;
use tlite_testing::{Device, Outcome, Text};
use transformer_lite::unstable::cancel::Cancel;
use transformer_lite::unstable::error::Stage;
use transformer_lite::unstable::graph::onnx::write::{Attr, ModelWriter, NodeSpec};
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::llm::LanguageModel;
use transformer_lite::unstable::llm::engine::{Decoder, DeviceModel, HostModel, Logits, SequenceConfig};
use transformer_lite::unstable::runner::{Runner, RunnerOptions};
use transformer_lite::unstable::tensor::{DType, HostTensor};
use transformer_lite_convert::gguf::{GgmlType, Value};
use transformer_lite_convert::quantize::{Options, quantize};
use transformer_lite_convert::{checkpoint, gguf};

/// Largest difference of two logits, over the largest logit, on the host.
const HOST: f32 = 2e-5;
/// The same on a device that stores halves.
const DEVICE: f32 = 2e-2;

/// `tests/data/decoders/decoders.json`.
#[derive(Deserialize)]
struct Data {
    tokens: Vec<u32>,
    decoders: Vec<Family>,
}

#[derive(Deserialize)]
struct Family {
    name: String,
    architecture: String,
    /// Tokens of the prompt; those after it are decoded one by one.
    prefill: usize,
    count: usize,
    config: Json,
    /// Metadata beyond the sizes.
    gguf_keys: BTreeMap<String, Json>,
    /// Tensors that the checkpoint has not.
    gguf_tensors: BTreeMap<String, Vec<f32>>,
    /// Names, shapes, names in GGUF files.
    tensors: Vec<(String, Vec<usize>, String)>,
}

/// A family, its tokens, and its logits row by row.
struct Case {
    family: Family,
    tokens: Vec<u32>,
    rows: Vec<Vec<f32>>,
}

fn cases() -> Vec<Arc<Case>> {
    let folder = Path::new(tlite_testing::ROOT).join("tests/data/decoders");
    let data: Data = serde_json::from_slice(&std::fs::read(folder.join("decoders.json")).unwrap()).unwrap();
    let bytes = std::fs::read(folder.join("logits.f32")).unwrap();
    let floats: Vec<f32> = bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect();
    let mut rest = &floats[..];
    let mut cases = Vec::new();
    for family in data.decoders {
        let vocab = usize::try_from(family.config["vocab_size"].as_u64().unwrap()).unwrap();
        let (these, after) = rest.split_at(family.count * vocab);
        rest = after;
        cases.push(Arc::new(Case {
            tokens: data.tokens[..family.count].to_vec(),
            rows: these.chunks(vocab).map(<[f32]>::to_vec).collect(),
            family,
        }));
    }
    assert!(rest.is_empty(), "{} logits more", rest.len());
    cases
}

/// A weight of a checkpoint.
struct Weight<'a> {
    name: &'a str,
    shape: &'a [usize],
    /// Name in GGUF files.
    gguf: &'a str,
    values: Vec<f32>,
}

impl Family {
    /// The weights by the rule of `make.py`.
    fn weights(&self) -> Vec<Weight<'_>> {
        let mut seed = 7;
        let mut weights = Vec::new();
        for (name, shape, gguf) in &self.tensors {
            let mut values = random(&mut seed, shape.iter().product());
            if name.contains("norm") && !self.architecture.starts_with("gemma") {
                values.iter_mut().for_each(|v| *v += 1.0);
            }
            weights.push(Weight {
                name,
                shape,
                gguf,
                values,
            });
        }
        weights
    }

    fn size(&self, key: &str) -> usize {
        usize::try_from(self.config[key].as_u64().unwrap()).unwrap()
    }

    /// As a folder of Hugging Face.
    fn folder(&self) -> Folder {
        let tensor = |w: Weight<'_>| (w.name.to_owned(), ("F32", w.shape.to_vec(), f32s(&w.values)));
        Folder {
            tensors: self.weights().into_iter().map(tensor).collect(),
            config: self.config.clone(),
        }
    }

    /// As a GGUF file.
    fn file(&self) -> File {
        let mut file = File::default();
        byte_vocabulary(&mut file, "gpt-2");
        // As many tokens as rows of the embedding.
        let tokens = (0..self.size("vocab_size")).map(|i| format!("t{i}"));
        file.set("tokenizer.ggml.tokens", strings(tokens.collect()));
        file.set("tokenizer.ggml.merges", strings(Vec::new()));
        file.unset("tokenizer.ggml.token_type");
        let name = &self.architecture;
        file.set("general.architecture", Value::String(name.clone()));
        for (key, of) in [
            ("block_count", "num_hidden_layers"),
            ("context_length", "max_position_embeddings"),
            ("embedding_length", "hidden_size"),
            ("feed_forward_length", "intermediate_size"),
            ("attention.head_count", "num_attention_heads"),
            ("attention.head_count_kv", "num_key_value_heads"),
        ] {
            file.set(&format!("{name}.{key}"), number(&self.config[of]));
        }
        let float = |key: &str| Value::F32(self.config[key].as_f64().unwrap() as f32);
        file.set(&format!("{name}.rope.freq_base"), float("rope_theta"));
        file.set(
            &format!("{name}.attention.layer_norm_rms_epsilon"),
            float("rms_norm_eps"),
        );
        for (key, v) in &self.gguf_keys {
            file.set(&format!("{name}.{key}"), number(v));
        }
        for (tensor, values) in &self.gguf_tensors {
            file.add_f32(tensor, &[values.len()], values);
        }
        for w in self.weights() {
            let mut values = w.values;
            if name.starts_with("gemma") && w.name.ends_with("norm.weight") {
                values.iter_mut().for_each(|v| *v += 1.0);
            }
            for (part, heads) in [
                ("q_proj", "num_attention_heads"),
                ("k_proj", "num_key_value_heads"),
            ] {
                if name == "llama" && w.name.contains(part) {
                    values = interleaved(&values, w.shape, self.size(heads));
                }
            }
            let dims: Vec<usize> = w.shape.iter().rev().copied().collect();
            file.add_f32(w.gguf, &dims, &values);
        }
        file
    }

    /// As a GGUF file, converted.
    fn convert_gguf(&self) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        std::fs::write(&path, self.file().bytes()).unwrap();
        let out = dir.path().join("out");
        let mut last = (0, 1);
        gguf::convert(&path, &out, false, &mut |p| last = (p.done, p.total)).unwrap();
        assert_eq!(last.0, last.1, "progress ends at the total");
        (dir, out)
    }
}

/// A folder of Hugging Face, converted.
fn from_folder(folder: &Folder) -> Result<(tempfile::TempDir, PathBuf), String> {
    let (dir, input) = folder.write();
    let out = dir.path().join("out");
    let mut last = (0, 1);
    checkpoint::folder::convert(&input, &out, &mut |p| last = (p.done, p.total)).text()?;
    assert_eq!(last.0, last.1, "progress ends at the total");
    Ok((dir, out))
}

/// All logits on the host.
fn host_logits(model: &Path, tokens: &[u32]) -> Result<Vec<f32>, String> {
    let all = decoder(model, &Target::HOST, Logits::All)?;
    HostModel::new(all, tokens.len())
        .text()?
        .forward_all(tokens)
        .text()
}

fn strings(list: Vec<String>) -> Value {
    Value::Array(gguf::Array::String(list))
}

fn number(v: &Json) -> Value {
    match (v.as_u64(), v.as_str()) {
        (Some(v), _) => Value::U32(u32::try_from(v).unwrap()),
        (None, Some(v)) => Value::String(v.to_owned()),
        (None, None) => Value::F32(v.as_f64().unwrap() as f32),
    }
}

/// Rows `(head, half, i)` as rows `(head, i, half)`.
fn interleaved(values: &[f32], shape: &[usize], heads: usize) -> Vec<f32> {
    let width = values.len() / shape[0];
    let half = shape[0] / heads / 2;
    let mut out = Vec::new();
    for head in 0..heads {
        for i in 0..half {
            for part in 0..2 {
                let row = (head * 2 + part) * half + i;
                out.extend(&values[row * width..(row + 1) * width]);
            }
        }
    }
    out
}

fn close(what: &str, wanted: &[f32], found: &[f32], bound: f32) -> Outcome {
    let most = wanted.iter().fold(0f32, |m, v| m.max(v.abs()));
    let off = wanted
        .iter()
        .zip(found)
        .fold(0f32, |m, (a, b)| m.max((a - b).abs()));
    if std::env::var_os("CONFORMANCE_ERRORS").is_some() {
        eprintln!("{what}: {:.2e} of {bound:.0e}", off / most);
    }
    if wanted.len() == found.len() && off <= bound * most && found.iter().all(|v| v.is_finite()) {
        Ok(())
    } else {
        Err(format!(
            "{what}: off by {off} where the largest of {} is {most}",
            found.len()
        ))
    }
}

fn decoder(model: &Path, target: &Target, logits: Logits) -> Result<Decoder, String> {
    Decoder::load(&model.join("model.onnx"), &target.with(logits)).text()
}

/// The prompt at once, the other tokens one by one.
fn steps(case: &Case, model: &mut dyn LanguageModel, bound: f32) -> Outcome {
    let (prompt, rest) = case.tokens.split_at(case.family.prefill);
    let mut logits = Vec::new();
    model.forward(prompt, &mut logits).text()?;
    close("prompt", &case.rows[prompt.len() - 1], &logits, bound)?;
    for (i, t) in rest.iter().enumerate() {
        model.forward(&[*t], &mut logits).text()?;
        close(&format!("step {i}"), &case.rows[prompt.len() + i], &logits, bound)?;
    }
    Ok(())
}

fn on_host(case: &Case) -> Outcome {
    let (_folder, of_folder) = from_folder(&case.family.folder())?;
    let (_file, of_gguf) = case.family.convert_gguf();
    let wanted = case.rows.concat();
    for (what, model) in [("folder", &of_folder), ("GGUF", &of_gguf)] {
        close(what, &wanted, &host_logits(model, &case.tokens)?, HOST)?;
        // What devices run, on the host, step by step.
        let passes = decoder(model, &Target::DEVICE, Logits::Last)?;
        let graph = passes.graph();
        let logits = graph.output("logits").and_then(|v| graph.value(v).fact.clone());
        if logits.is_none_or(|fact| fact.shape.0[1] != 1.into()) {
            return Err("all rows of the logits are computed".to_owned());
        }
        let fused = graph.nodes().filter(|(_, n)| n.op.name() == "Attention").count();
        let layers = case.family.size("num_hidden_layers");
        if fused != layers {
            return Err(format!(
                "{fused} of {layers} layers have attention as one operator"
            ));
        }
        steps(case, &mut HostModel::new(passes, case.tokens.len()).text()?, HOST)?;
    }
    // What the conversion from GGUF says in config.json is the model, except that factors of
    // frequencies are not repeated.
    if !case.family.gguf_tensors.contains_key("rope_freqs.weight") {
        let text = std::fs::read(of_gguf.join("config.json")).text()?;
        let mut folder = case.family.folder();
        folder.config = serde_json::from_slice(&text).text()?;
        let (_dir, model) = from_folder(&folder)?;
        close("config.json", &wanted, &host_logits(&model, &case.tokens)?, HOST)?;
    }
    Ok(())
}

/// Entries of `config.json`, each of which makes another model of a family where it is another one.
const TRAITS: [(&str, &str, &str); 15] = [
    ("llama", "rope_theta", "2000.0"),
    ("llama_3.1", "rope_scaling", "null"),
    ("llama_linear", "rope_scaling", "null"),
    ("llama_yarn", "rope_scaling", "null"),
    ("qwen3", "rms_norm_eps", "0.1"),
    ("gemma2", "sliding_window", "6"),
    ("gemma2", "attn_logit_softcapping", "50.0"),
    ("gemma2", "final_logit_softcapping", "null"),
    ("gemma2", "query_pre_attn_scalar", "16"),
    ("gemma3", "sliding_window", "6"),
    ("gemma3", "rope_local_base_freq", "1000.0"),
    ("gemma3", "rope_scaling", "null"),
    ("phi3_short", "sliding_window", "10"),
    ("phi3_short", "original_max_position_embeddings", "8"),
    ("phi3_long", "sliding_window", "null"),
];

/// The comparison with the reference would find a trait that is not looked at.
fn traits_count(cases: &[Arc<Case>]) -> Outcome {
    for (name, key, value) in TRAITS {
        let case = cases.iter().find(|c| c.family.name == name);
        let case = case.ok_or_else(|| format!("no family {name}"))?;
        let mut folder = case.family.folder();
        folder.config[key] = serde_json::from_str(value).text()?;
        let (_dir, model) = from_folder(&folder)?;
        let found = host_logits(&model, &case.tokens)?;
        if close(name, &case.rows.concat(), &found, 100.0 * HOST).is_ok() {
            return Err(format!("{name}: {key} = {value} changes nothing"));
        }
    }
    Ok(())
}

/// A checkpoint that reads pictures too is converted without what does so.
fn with_pictures(case: &Case) -> Outcome {
    for prefix in ["language_model.model.", "model.language_model."] {
        let plain = case.family.folder();
        let renamed = |(name, tensor): (String, _)| (name.replacen("model.", prefix, 1), tensor);
        let mut folder = Folder {
            tensors: plain.tensors.into_iter().map(renamed).collect(),
            config: serde_json::json!({
                "model_type": "gemma3", "text_config": plain.config, "vision_config": {"hidden_size": 8}, "eos_token_id": [1, 2],
            }),
        };
        let patch = ("F32", vec![2, 2], f32s(&[0.0; 4]));
        folder
            .tensors
            .insert("vision_tower.patch.weight".to_owned(), patch);
        let (_dir, model) = from_folder(&folder)?;
        close(
            prefix,
            &case.rows.concat(),
            &host_logits(&model, &case.tokens)?,
            HOST,
        )?;
        let text = std::fs::read(model.join("config.json")).text()?;
        let config: Json = serde_json::from_slice(&text).text()?;
        if config["model_type"] != "gemma3_text" || config["eos_token_id"][1] != 2 {
            return Err(format!("config.json says {config}"));
        }
    }
    Ok(())
}

fn on_device(case: &Case, device: &Device) -> Outcome {
    let _turn = device.turn();
    let (_file, model) = case.family.convert_gguf();
    let decoder = decoder(&model, &Target::DEVICE, Logits::Last)?;
    let mut model = DeviceModel::new(decoder, Box::new(device.share()), &SequenceConfig::of(64)).text()?;
    steps(case, &mut model, DEVICE)
}

/// A converted model with kept bits, on a device against the host.
fn kept_model(model: &Path, matrices: usize, device: &Device) -> Outcome {
    let _turn = device.turn();
    let tokens: Vec<u32> = (0..21).map(|i| (i * 23 + 5) % 40).collect();
    let host = decoder(model, &Target::HOST, Logits::All)?;
    let packed = host
        .graph()
        .nodes()
        .filter(|(_, n)| n.op.name() == "QuantizedMatMul")
        .count();
    if packed != matrices {
        return Err(format!("{packed} products with kept bits; expected {matrices}"));
    }
    let mut host = HostModel::new(host, tokens.len()).text()?;
    let all = host.forward_all(&tokens).text()?;
    let rows: Vec<&[f32]> = all.chunks(host.vocab()).collect();
    let decoder = decoder(model, &Target::DEVICE, Logits::Last)?;
    let mut model = DeviceModel::new(decoder, Box::new(device.share()), &SequenceConfig::of(64)).text()?;
    let mut logits = Vec::new();
    model.forward(&tokens[..9], &mut logits).text()?;
    close("prompt", rows[8], &logits, DEVICE)?;
    for (i, t) in tokens.iter().enumerate().skip(9) {
        model.forward(&[*t], &mut logits).text()?;
        close(&format!("token {i}"), rows[i], &logits, DEVICE)?;
    }
    Ok(())
}

fn kept_folder(folder: &Folder, device: &Device) -> Outcome {
    let (dir, input) = folder.write();
    let out = dir.path().join("out");
    let summary = checkpoint::folder::convert(&input, &out, &mut |_| {}).text()?;
    kept_model(&out, summary.kept.len(), device)
}

fn kept_gguf(device: &Device) -> Outcome {
    let (dir, path) = (tempfile::tempdir().text()?, "model.gguf");
    let mut file = tlite_testing::gguf::tiny("llama", tlite_testing::gguf::Traits::default());
    let mut seed = 3;
    for t in file.tensors.iter_mut().filter(|t| t.dims.len() == 2) {
        t.ggml_type = GgmlType::Q4_0.0;
        t.data.clear();
        for _ in 0..t.dims.iter().product::<usize>() / 32 {
            let noise = random(&mut seed, 17);
            let scale = f16::from_f32(0.03 + 0.02 * noise[16]);
            t.data.extend(scale.to_le_bytes());
            t.data
                .extend(noise[..16].iter().map(|v| ((v + 0.5) * 256.0) as u8));
        }
    }
    let input = dir.path().join(path);
    std::fs::write(&input, file.bytes()).text()?;
    let out = dir.path().join("out");
    let summary = gguf::convert(&input, &out, true, &mut |_| {}).text()?;
    // The head is the embedding, which is read as both.
    kept_model(&out, summary.kept.len(), device)
}

const K: usize = 96;
const N: usize = 34;

/// A model of `x[3, K]` to `y[3, N]`, whose matrix is codes of `MatMulNBits` or `DequantizeLinear`.
fn codes_of(op: &str, folder: &Path) -> Outcome {
    let mut out = ModelWriter::create(Stage::Convert, folder, "model.onnx", "codes").text()?;
    out.opset("", 21);
    out.opset("com.microsoft", 1);
    out.add_input("x", DType::F32, &[3.into(), K.into()]).text()?;
    out.add_output("y", DType::F32, &[3.into(), N.into()]).text()?;
    let mut seed = 5;
    let mut bytes = |count| {
        random(&mut seed, count)
            .iter()
            .map(|v| ((v + 0.5) * 256.0) as u8)
            .collect::<Vec<_>>()
    };
    let int = |v: usize| Attr::Int(i64::try_from(v).unwrap());
    let mut add = |name: &str, dtype, shape: &[usize], bytes: Vec<u8>| {
        let tensor = HostTensor::from_bytes(dtype, shape, &bytes).text()?;
        out.add_initializer(name, &tensor).text()
    };
    let steps: Vec<u8> = (0..K / 32 * N)
        .flat_map(|i| (0.004 * (1 + i % 7) as f32).to_le_bytes())
        .collect();
    let node = |out: &mut ModelWriter, domain, op, inputs: &[&str], output, attributes: &[(&str, Attr)]| {
        let name = format!("/{output}");
        let outputs = [output];
        out.add_node(NodeSpec {
            domain,
            op,
            name: &name,
            inputs,
            outputs: &outputs,
            attributes,
        })
        .text()
    };
    if op == "MatMulNBits" {
        add("codes", DType::U8, &[N, K / 32, 16], bytes(N * K / 2))?;
        add("scales", DType::F32, &[N * K / 32], steps)?;
        add(
            "zeros",
            DType::U8,
            &[N * (K / 32usize).div_ceil(2)],
            bytes(N * (K / 32usize).div_ceil(2)),
        )?;
        let attributes = [
            ("K", int(K)),
            ("N", int(N)),
            ("bits", int(4)),
            ("block_size", int(32)),
        ];
        node(
            &mut out,
            "com.microsoft",
            op,
            &["x", "codes", "scales", "zeros"],
            "y",
            &attributes,
        )?;
    } else {
        add("codes", DType::U8, &[K, N], bytes(K * N))?;
        add("scales", DType::F32, &[K / 32, N], steps)?;
        add("zeros", DType::U8, &[K / 32, N], bytes(K / 32 * N))?;
        let attributes = [("axis", int(0)), ("block_size", int(32))];
        node(&mut out, "", op, &["codes", "scales", "zeros"], "w", &attributes)?;
        node(&mut out, "", "MatMul", &["x", "w"], "y", &[])?;
    }
    out.finish().text()?;
    Ok(())
}

fn kept_codes(op: &str, device: &Device) -> Outcome {
    let _turn = device.turn();
    let dir = tempfile::tempdir().text()?;
    let [input, output] = ["in", "out"].map(|f| dir.path().join(f));
    std::fs::create_dir(&input).text()?;
    codes_of(op, &input)?;
    let summary = quantize(&input, &output, &Options::default(), &mut |_| {}).text()?;
    if summary.weights.len() != 1 {
        return Err(format!("{} weights were kept", summary.weights.len()));
    }
    let x = HostTensor::from_f32(&[3, K], &random(&mut 9, 3 * K)).text()?;
    let given = [("x".to_owned(), x)];
    let run = |folder: &Path, device: Option<&Device>| -> Result<Vec<f32>, String> {
        let backend = device.map(|d| Box::new(d.share()) as _);
        let options = RunnerOptions {
            float: device.map_or(DType::F32, |d| d.caps.profile.storage_types()[0]),
            ..RunnerOptions::default()
        };
        let mut runner = Runner::load(&folder.join("model.onnx"), backend, &options).text()?;
        let found = runner.run(&given, &Cancel::default()).text()?;
        let [(_, y)] = &found[..] else {
            return Err(format!("{} results", found.len()));
        };
        Ok(y.to_f32().text()?.into_owned())
    };
    let wanted = run(&input, None)?;
    close("reference", &wanted, &run(&output, None)?, 1e-3)?;
    close("device", &wanted, &run(&output, Some(device))?, DEVICE)
}

pub fn trials(suite: &mut Suite) {
    let devices = suite.devices();
    let all = cases();
    for case in &all {
        if case.family.name == "gemma3" {
            let this = case.clone();
            suite.add("gemma3_with_pictures", move || with_pictures(&this));
        }
    }
    let these = all.clone();
    suite.add("traits_count", move || traits_count(&these));
    for case in &all {
        let name = &case.family.name;
        let this = case.clone();
        suite.add(format!("{name}@reference"), move || on_host(&this));
        for d in &devices {
            let (this, device) = (case.clone(), d.clone());
            suite.add(format!("{name}@{}", d.label(&devices)), move || {
                on_device(&this, &device)
            });
        }
    }
    for d in &devices {
        let label = d.label(&devices);
        for (name, order) in [("shared", Order::Shared), ("own", Order::Own)] {
            let device = d.clone();
            suite.add(format!("kept/gptq_act_order_{name}@{label}"), move || {
                kept_folder(&hugging_face::gptq(4, 32, order, false, "llama").0, &device)
            });
        }
        let device = d.clone();
        suite.add(format!("kept/awq@{label}"), move || {
            kept_folder(&hugging_face::awq(32).0, &device)
        });
        let device = d.clone();
        suite.add(format!("kept/gguf_q4_0@{label}"), move || kept_gguf(&device));
        for op in ["MatMulNBits", "DequantizeLinear"] {
            let device = d.clone();
            suite.add(format!("kept/{op}@{label}"), move || kept_codes(op, &device));
        }
    }
    windows::trials(suite, &all, &devices);
}
