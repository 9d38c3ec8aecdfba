//! Writes every kernel that the plans of models ask for on phones, in OpenCL C and as SPIR-V, with a list of them:
//! `cargo run --release --example phone_kernels -- OUT_DIR MODEL...`. A model is a folder with `model.onnx`, or a file; weights need not be there.
//!
//! Beside these it writes the vector kernels of E0M4 weights and their INT4 twins with groups of two sizes, so that the difference of two
//! is the cost of weights alone. `tools/phone_compile` compiles all for the GPUs themselves.

#[path = "../benches/support/int4_twin.rs"]
mod int4_twin;

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use transformer_lite::backend::kernel::{KernelSpec, Language};
use transformer_lite::backend::phones::PHONES;
use transformer_lite::backend::{BackendKind, Caps};
use transformer_lite::graph::onnx::{ImportOptions, import_with};
use transformer_lite::graph::pass::{FUSE, GREEDY, KV_Q8, Pipeline};
use transformer_lite::inspect::{Request, model_file, plans};
use transformer_lite::llm::engine::{CHUNK, Decoder, Lengths, Logits};
use transformer_lite::plan::Plan;

type AnyError = Box<dyn std::error::Error>;

/// Tokens that caches of decoders hold.
const CONTEXT: usize = 4096;
/// Tokens of a run with drafts.
const ROWS: usize = 5;
/// Weights of the groups that E0M4 and INT4 are compared with.
const GROUPS: [i64; 2] = [32, 64];

/// One kernel text in one language.
#[derive(Serialize)]
struct Entry {
    /// Kernel, defines, operands; what else tells it from others.
    key: String,
    /// `opencl` or `wgpu`.
    backend: &'static str,
    /// File of its text, in the same folder.
    file: String,
    /// Entry point.
    kernel: &'static str,
    /// A letter for each binding of WGSL: `u` uniform buffer, `s` storage buffer.
    bindings: String,
    /// Work-items of a work-group.
    workgroup: u32,
    /// Phones whose plans ask for it.
    phones: BTreeSet<&'static str>,
    /// Of an E0M4 kernel in the comparison with INT4: columns of a work-item and weights of a group.
    #[serde(skip_serializing_if = "Option::is_none")]
    compared: Option<Compared>,
}

#[derive(Clone, Copy, Serialize)]
struct Compared {
    format: &'static str,
    columns: i64,
    group: i64,
}

/// What tells specialisations with one name apart: the generated function of an epilogue.
fn key(spec: &KernelSpec) -> String {
    let Some(epilogue) = &spec.epilogue else {
        return spec.to_string();
    };
    let mut hash = DefaultHasher::new();
    format!("{epilogue:?}").hash(&mut hash);
    format!("{spec} then {:08x}", hash.finish() & 0xFFFF_FFFF)
}

fn spir_v(text: &str, kernel: &str) -> Result<Vec<u8>, AnyError> {
    use naga::back::spv;
    use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
    use naga::valid::{Capabilities, ValidationFlags, Validator};

    let module = naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string(text))?;
    let capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32 | Capabilities::SHADER_FLOAT16;
    let info = Validator::new(ValidationFlags::all(), capabilities)
        .validate(&module)
        .map_err(|e| e.emit_to_string(text))?;
    // As wgpu writes it for kernels whose bounds the session has checked.
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
            Language::OpenCl => "opencl",
            Language::Wgsl => "wgpu",
        };
        let mut key = key(spec);
        if let Some(c) = compared {
            key = format!("{}: {key}", c.format);
        }
        if let Some(i) = self.known.get(&(backend, key.clone())) {
            self.entries[*i].phones.insert(phone);
            return Ok(());
        }
        let text = spec.expand(language)?;
        let (bytes, extension) = match language {
            Language::OpenCl => (text.into_bytes(), "cl"),
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

    /// The kernel with E0M4 weights and its INT4 twin, with groups of two sizes.
    fn compare(&mut self, spec: &KernelSpec, language: Language, phone: &'static str) -> Result<(), AnyError> {
        let columns = *spec.defines.get("COLS").ok_or("matvec_e0m without COLS")?;
        for group in GROUPS {
            let mut ours = spec.clone();
            ours.defines.insert("GROUP", group);
            let mut twin = ours.clone();
            twin.kernel = int4_twin::twin(spec.kernel)?;
            for (spec, format) in [(ours, "E0M4"), (twin, "INT4")] {
                let compared = Compared {
                    format,
                    columns,
                    group,
                };
                self.add(&spec, language, phone, Some(compared))?;
            }
        }
        Ok(())
    }
}

/// The plans that running a model on a device takes, with the options that choose other kernels.
fn all_plans(model: &Path, caps: &Caps) -> Result<Vec<Plan>, AnyError> {
    let graph = import_with(&model_file(model)?, ImportOptions { absent_weights: true })?;
    if !Decoder::is_form_of(&graph) {
        let request = Request {
            caps: caps.clone(),
            ..Request::default()
        };
        return Ok(plans(model, &request)?);
    }
    let lengths = Lengths {
        chunk: CHUNK,
        rows: ROWS,
        ..Lengths::of(CONTEXT)
    };
    let mut greedy = Pipeline::standard();
    greedy.passes.push(GREEDY);
    let mut eight_bits = Pipeline::standard();
    eight_bits.insert_before(FUSE.name, KV_Q8);
    let mut found = Vec::new();
    for (pipeline, logits) in [
        (Pipeline::standard(), Logits::All),
        (Pipeline::standard(), Logits::Tail),
        (greedy, Logits::Last),
        (eight_bits, Logits::Last),
    ] {
        let decoder = Decoder::of(graph.clone(), &pipeline, logits)?;
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
    for model in args {
        let mut steps = BTreeMap::new();
        for (kind, language) in [
            (BackendKind::OpenCl, Language::OpenCl),
            (BackendKind::Wgpu, Language::Wgsl),
        ] {
            for phone in PHONES {
                let plans = all_plans(&model, &phone.caps(kind))?;
                for spec in plans.iter().flat_map(|p| &p.kernels) {
                    writer.add(spec, language, phone.name, None)?;
                    if spec.kernel.name == "matvec_e0m" && spec.defines.get("BITS") == Some(&4) {
                        writer.compare(spec, language, phone.name)?;
                    }
                }
                *steps.entry(kind.to_string()).or_insert(0) += plans.iter().map(|p| p.kernels.len()).sum::<usize>();
            }
        }
        eprintln!("{}: {steps:?} kernels on {} phones", model.display(), PHONES.len());
    }
    let list = serde_json::to_vec_pretty(&writer.entries)?;
    std::fs::write(writer.folder.join("kernels.json"), list)?;
    println!("{}", writer.entries.len());
    Ok(())
}
