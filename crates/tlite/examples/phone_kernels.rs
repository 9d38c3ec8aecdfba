//! Writes every kernel that the plans of given models use on phones, in OpenCL C and as SPIR-V,
//! with a list:
//! `cargo run --release --example phone_kernels -- OUT_DIR MODEL... [--costs MODEL...]`. A model is
//! a folder with `model.onnx`, or a file; weights are not needed. Also writes the cost of a token
//! (or of a run with all symbols 1) of each model; for models after `--costs`, only this.
//!
//! In addition, it writes the GEMV kernels with E0M4 weights and equivalent INT4 kernels, with one
//! and two loop steps, so that the difference is the cost of the weight format alone.
//! `tools/phone_compile` compiles all kernels offline for the GPUs.

#[path = "../../../benches/support/int4_twin.rs"]
mod int4_twin;

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use tlite::inspect::{Request, model_file, plans};
use transformer_lite::unstable::backend::device_presets::PHONES;
use transformer_lite::unstable::backend::kernel::{KernelSpec, Language};
use transformer_lite::unstable::backend::{BackendKind, Caps};
use transformer_lite::unstable::graph::ValueId;
use transformer_lite::unstable::graph::derive::derive;
use transformer_lite::unstable::graph::onnx::{ImportOptions, import_with};
use transformer_lite::unstable::graph::op::matmul_e0m::ActivationType;
use transformer_lite::unstable::graph::op::sizes::Sizes;
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::llm::engine::{CHUNK, Decoder, Logits, SequenceConfig};
use transformer_lite::unstable::plan::Plan;
use transformer_lite::unstable::shape::{Bindings, Dim};

type AnyError = Box<dyn std::error::Error>;

/// Context length of decoders, in tokens.
const CONTEXT: usize = 4096;
/// Tokens of a run with drafts.
const ROWS: usize = 5;

/// One kernel source in one language.
#[derive(Serialize)]
struct Entry {
    /// Kernel, defines, operands, and whatever else identifies it.
    key: String,
    /// `opencl` or `wgpu`.
    backend: &'static str,
    /// File name of its source, in the same folder.
    file: String,
    /// Entry point.
    kernel: &'static str,
    /// One letter per WGSL binding: `u` uniform buffer, `s` storage buffer.
    bindings: String,
    /// Work-items per work-group.
    workgroup: u32,
    /// Phones whose plans use it.
    phones: BTreeSet<&'static str>,
    /// Set for kernels of the E0M4 and INT4 comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    compared: Option<Compared>,
}

#[derive(Clone, Copy, Serialize)]
struct Compared {
    format: &'static str,
    /// Weights per loop iteration.
    weights: i64,
}

/// Distinguishes specializations with the same name by their generated epilogue.
fn key(spec: &KernelSpec) -> String {
    let Some(epilogue) = &spec.epilogue else {
        return spec.to_string();
    };
    let hash = crc32fast::hash(format!("{epilogue:?}").as_bytes());
    format!("{spec} then {hash:08x}")
}

fn spir_v(text: &str, kernel: &str) -> Result<Vec<u8>, AnyError> {
    use naga::back::spv;
    use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
    use naga::valid::{Capabilities, ValidationFlags, Validator};

    let module = naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string(text))?;
    let capabilities =
        Capabilities::SHADER_FLOAT16_IN_FLOAT32 | Capabilities::SHADER_FLOAT16 | Capabilities::SHADER_INT64;
    let info = Validator::new(ValidationFlags::all(), capabilities)
        .validate(&module)
        .map_err(|e| e.emit_to_string(text))?;
    // As wgpu compiles kernels whose bounds were checked on the host.
    let unchecked = BoundsCheckPolicy::Unchecked;
    let options = spv::Options {
        lang_version: (1, 5),
        flags: spv::WriterFlags::empty(),
        bounds_check_policies: BoundsCheckPolicies {
            index: unchecked,
            buffer: unchecked,
            image_load: unchecked,
            binding_array: unchecked,
        },
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::Native,
        force_loop_bounding: false,
        ..spv::Options::default()
    };
    let entry = spv::PipelineOptions {
        shader_stage: naga::ShaderStage::Compute,
        entry_point: kernel.to_owned(),
    };
    let words = spv::write_vec(&module, &info, &options, Some(&entry))?;
    Ok(words.iter().flat_map(|w| w.to_le_bytes()).collect())
}

struct Writer {
    folder: PathBuf,
    entries: Vec<Entry>,
    known: HashMap<(&'static str, String), usize>,
}

impl Writer {
    fn add(
        &mut self,
        spec: &KernelSpec,
        language: Language,
        phone: &'static str,
        compared: Option<Compared>,
    ) -> Result<(), AnyError> {
        let backend = match language {
            Language::OpenClC => "opencl",
            Language::Wgsl => "wgpu",
        };
        let mut key = key(spec);
        if let Some(c) = compared {
            key = format!("{} by {}: {key}", c.format, c.weights);
        }
        if let Some(i) = self.known.get(&(backend, key.clone())) {
            self.entries[*i].phones.insert(phone);
            return Ok(());
        }
        let text = spec.expand(language)?;
        let (bytes, extension) = match language {
            Language::OpenClC => (text.into_bytes(), "cl"),
            Language::Wgsl => (
                spir_v(&text, spec.kernel.name).map_err(|e| format!("{key}: {e}"))?,
                "spv",
            ),
        };
        let file = format!("{}-{}.{extension}", spec.kernel.name, self.entries.len());
        std::fs::write(self.folder.join(&file), bytes)?;
        self.known.insert((backend, key.clone()), self.entries.len());
        self.entries.push(Entry {
            key,
            backend,
            file,
            kernel: spec.kernel.name,
            bindings: format!("u{}", "s".repeat(spec.bound().count())),
            workgroup: spec.workgroup,
            phones: BTreeSet::from([phone]),
            compared,
        });
        Ok(())
    }

    /// Adds the kernel with E0M4 weights and its INT4 equivalents, with one and two loop steps.
    fn compare(
        &mut self,
        spec: &KernelSpec,
        language: Language,
        phone: &'static str,
    ) -> Result<(), AnyError> {
        let columns = *spec.defines.get("COLS").ok_or("matvec_e0m without COLS")?;
        let twins = int4_twin::twins(spec.kernel, spec.defines.contains_key("PAIRS"))?;
        let twins = twins.into_iter().zip(["INT4", "INT4 by subtraction"]);
        for (kernel, format) in std::iter::once((spec.kernel, "E0M4")).chain(twins) {
            for (steps, kernel) in [(1, kernel), (2, int4_twin::twice(kernel)?)] {
                let mut spec = spec.clone();
                spec.kernel = kernel;
                // The variant without unrolling.
                spec.defines.remove("WHOLE");
                let weights = 8 * columns * steps;
                self.add(&spec, language, phone, Some(Compared { format, weights }))?;
            }
        }
        Ok(())
    }
}

/// Cost of running a model, from its matmuls and convolutions: per token for a decoder, else with
/// all symbols 1.
#[derive(Serialize)]
struct Cost {
    model: String,
    decoder: bool,
    /// Bytes of constant operands in the file, without gathered tables.
    weight_bytes: u64,
    /// Multiply-adds.
    macs: u64,
    /// Multiply-adds of the output head, which prefill computes only once.
    head_macs: u64,
}

fn cost(model: &Path) -> Result<Cost, AnyError> {
    let mut graph = import_with(&model_file(model)?, ImportOptions::PLANNING)?;
    let decoder = Decoder::is_form_of(&graph);
    if decoder {
        Decoder::name_lengths(&mut graph)?;
    }
    derive(&mut graph)?;
    let size = |dim: &Dim| -> Result<u64, AnyError> {
        let mut symbols = BTreeSet::new();
        dim.symbols(&mut symbols);
        let mut ones = Bindings::new();
        for symbol in &symbols {
            ones.set(symbol, 1);
        }
        Ok(u64::try_from(dim.eval(&ones)?)?)
    };
    let count = |dims: &[Dim]| dims.iter().try_fold(1, |n, d| Ok::<u64, AnyError>(n * size(d)?));
    let shape = |v: ValueId| {
        graph
            .fact(v)?
            .shape
            .0
            .iter()
            .map(size)
            .collect::<Result<Vec<u64>, AnyError>>()
    };
    let mut found = Cost {
        model: model
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        decoder,
        weight_bytes: 0,
        macs: 0,
        head_macs: 0,
    };
    let logits = graph.output("logits");
    for (_, node) in graph.nodes() {
        if !["MatMul", "QuantizedMatMul", "Gemm", "Conv"].contains(&node.op.name()) {
            continue;
        }
        let inputs = node.inputs.iter().map(|v| v.map(shape).transpose());
        let outputs = node.outputs.iter().map(|v| shape(*v));
        let sizes = Sizes {
            inputs: inputs.collect::<Result<_, _>>()?,
            outputs: outputs.collect::<Result<_, _>>()?,
        };
        let macs = node.op.flops(&sizes) / 2;
        found.macs += macs;
        if logits.is_some_and(|v| node.outputs.contains(&v)) {
            found.head_macs += macs;
        }
        for v in node.inputs.iter().flatten() {
            if graph.value(*v).producer.is_none() && !graph.inputs().contains(v) {
                let fact = graph.fact(*v)?;
                found.weight_bytes += count(&fact.shape.0)? * fact.dtype.size() as u64;
            }
        }
    }
    Ok(found)
}

/// All plans for running a model on a device, including options that select other kernels.
fn all_plans(model: &Path, caps: &Caps) -> Result<Vec<Plan>, AnyError> {
    let graph = import_with(&model_file(model)?, ImportOptions::PLANNING)?;
    if !Decoder::is_form_of(&graph) {
        let request = Request {
            caps: caps.clone(),
            ..Request::default()
        };
        return Ok(plans(model, &request)?);
    }
    let lengths = SequenceConfig {
        chunk: CHUNK,
        verify_tokens: ROWS,
        ..SequenceConfig::of(CONTEXT)
    };
    let all = Target::DEVICE.on(caps);
    let last = all.with(Logits::Last);
    let mut found = Vec::new();
    for target in [
        all,
        all.with(Logits::Tail),
        Target { greedy: true, ..last },
        Target { kv_q8: true, ..last },
        // Int8 matmuls, of many rows and of one.
        Target {
            activations: ActivationType::Int8,
            ..last
        },
    ] {
        let decoder = Decoder::of(graph.clone(), &target)?;
        found.extend(decoder.every_plan(caps, &lengths)?);
    }
    Ok(found)
}

fn main() -> Result<(), AnyError> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let folder = args.next().ok_or("usage: phone_kernels OUT_DIR MODEL...")?;
    std::fs::create_dir_all(&folder)?;
    let mut writer = Writer {
        folder,
        entries: Vec::new(),
        known: HashMap::new(),
    };
    let mut costs = Vec::new();
    let mut kernels = true;
    for model in args {
        if model.as_os_str() == "--costs" {
            kernels = false;
            continue;
        }
        costs.push(cost(&model)?);
        if !kernels {
            continue;
        }
        let mut steps = BTreeMap::new();
        for language in Language::ALL {
            for phone in PHONES {
                let plans = all_plans(&model, &phone.caps(language))?;
                for spec in plans.iter().flat_map(|p| &p.kernels) {
                    writer.add(spec, language, phone.name, None)?;
                    if spec.kernel.name == "matvec_e0m" && spec.defines.get("BITS") == Some(&4) {
                        writer.compare(spec, language, phone.name)?;
                    }
                }
                *steps
                    .entry(
                        match language {
                            Language::OpenClC => BackendKind::OpenCl,
                            Language::Wgsl => BackendKind::Wgpu,
                        }
                        .to_string(),
                    )
                    .or_insert(0) += plans.iter().map(|p| p.kernels.len()).sum::<usize>();
            }
        }
        eprintln!(
            "{}: {steps:?} kernels on {} phones",
            model.display(),
            PHONES.len()
        );
    }
    let list = serde_json::to_vec_pretty(&writer.entries)?;
    std::fs::write(writer.folder.join("kernels.json"), list)?;
    std::fs::write(
        writer.folder.join("models.json"),
        serde_json::to_vec_pretty(&costs)?,
    )?;
    println!("{}", writer.entries.len());
    Ok(())
}
