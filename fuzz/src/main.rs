//! Fuzz targets of everything that reads untrusted input, in one program. `FUZZ_TARGET` selects the
//! target; libFuzzer's options follow. Use it through `tools/fuzz.sh`.
//!
//! A finding is a panic that leaves the engine, a signal, a run that exceeds libFuzzer's time
//! limit, or more memory than [`budget`] allows.
#![no_main]

mod budget;
mod devices;
mod files;
mod graphs;
mod hub;
mod mutate;
mod stores;
mod texts;
mod work;

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use std::sync::OnceLock;

struct Target {
    name: &'static str,
    run: fn(&[u8]),
    inputs: Inputs,
}

/// What the inputs of a target are.
#[derive(PartialEq)]
enum Inputs {
    Bytes,
    /// ONNX models, which are mutated as such.
    Models,
    /// Seeds of random numbers.
    Seeds,
}

impl Target {
    const fn new(name: &'static str, run: fn(&[u8])) -> Self {
        let inputs = Inputs::Bytes;
        Self { name, run, inputs }
    }

    const fn onnx(name: &'static str, run: fn(&[u8])) -> Self {
        let inputs = Inputs::Models;
        Self { name, run, inputs }
    }

    const fn seeded(name: &'static str, run: fn(&[u8])) -> Self {
        let inputs = Inputs::Seeds;
        Self { name, run, inputs }
    }
}

/// `tools/fuzz.sh` reads the names from these lines.
const TARGETS: &[Target] = &[
    Target::onnx("plan", files::plan),
    Target::onnx("run", files::run),
    Target::onnx("cpu", devices::cpu),
    Target::onnx("opencl", devices::opencl),
    Target::seeded("graphs", graphs::cpu),
    Target::seeded("graphs_opencl", graphs::opencl),
    Target::seeded("graphs_wgpu", graphs::wgpu),
    Target::new("gguf", files::gguf),
    Target::new("safetensors", files::safetensors),
    Target::new("npy", files::npy),
    Target::new("pb", files::pb),
    Target::new("picture", files::picture),
    Target::new("tokenizer", texts::tokenizer),
    Target::new("template", texts::template),
    Target::new("config", texts::config),
    Target::new("schema", texts::schema),
    Target::new("lark", texts::lark),
    Target::new("dim", texts::dim),
    Target::new("cache", stores::cache),
    Target::new("prompt_cache", stores::prompt_cache),
    Target::new("hub", hub::hub),
];

fn target() -> &'static Target {
    static TARGET: OnceLock<&Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        let found = TARGETS.iter().find(|t| t.name == name);
        found.unwrap_or_else(|| panic!("FUZZ_TARGET: no target {name:?}"))
    })
}

fuzz_target!(
    init: {
        let target = target();
        // libFuzzer's hook ends the process, but the engine contains panics inside dependencies.
        std::panic::set_hook(Box::new(|info| eprintln!("{info}")));
        // What is made once does not count for the first input.
        (target.run)(b"");
    },
    |data: &[u8]| {
        let run = || budget::within(|| (target().run)(data));
        if std::panic::catch_unwind(run).is_err() {
            // Drivers replace the handler of signals with which libFuzzer would save the input.
            work::save(target().name, data);
            std::process::abort();
        }
    }
);

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let mut random = work::Random::new(seed);
    if target().inputs == Inputs::Seeds
        && let Some(place) = data.first_chunk_mut::<4>()
    {
        *place = seed.to_le_bytes();
        return place.len();
    }
    let size = match work::seed(&mut random) {
        Some(seed) if seed.len() <= max_size && seed.len() <= data.len() => {
            data[..seed.len()].copy_from_slice(seed);
            seed.len()
        }
        _ => size,
    };
    if target().inputs == Inputs::Models
        && let Some(model) = data
            .get(..size)
            .and_then(|model| mutate::mutated(model, &mut random))
        && model.len() <= max_size
        && let Some(place) = data.get_mut(..model.len())
    {
        place.copy_from_slice(&model);
        return model.len();
    }
    fuzzer_mutate(data, size, max_size)
});
