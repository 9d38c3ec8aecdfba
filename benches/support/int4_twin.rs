//! Kernels of E0M4 weights with the conversion of classic INT4 weights instead, from integers to floats.

use transformer_lite::backend::kernel::{Kernel, Params};

/// How one conversion becomes the other in a text: what is replaced, and by what.
const CL: [(&str, &str); 2] = [
    (
        "#include \"common/e0m\"",
        "#include \"common/e0m\"\n#define INT4(word, k) CAT(convert_float, COLS)((word) >> E0M_FIELD(k, 4) & 15u)",
    ),
    ("AS_FLOATS(E0M_LEVEL(word, low, ", "(INT4(word, "),
];
const WGSL: [(&str, &str); 2] = [
    ("e0m_levels(", "int4("),
    (
        "#include \"common/e0m\"",
        "#include \"common/e0m\"\nfn int4(w: E0mWords, k: u32) -> vec4<f32> { return vec4<f32>((w.high >> vec4<u32>(k / 2u * 4u + k % 2u * 16u)) & vec4<u32>(15u)); }",
    ),
];

/// How the loop of the vector kernel does two steps at a time.
const CL_TWICE: [(&str, &str); 1] = [("r++) STEP(r)", "r += 2) { STEP(r) STEP(r + 1) }")];
const WGSL_TWICE: [(&str, &str); 1] = [(
    "i++) { t = plus(t, i, word_at, panel); }\n    }",
    "i += 2u) { t = plus(t, i, word_at, panel); t = plus(t, i + 1u, word_at, panel); }\n    }",
)];

fn replaced(kernel: &Kernel, text: &str, pairs: &[(&str, &str)]) -> Result<&'static str, String> {
    let mut out = text.to_owned();
    for (from, to) in pairs {
        if !out.contains(from) {
            return Err(format!("{}: no {from} in its text", kernel.name));
        }
        out = out.replace(from, to);
    }
    Ok(Box::leak(out.into_boxed_str()))
}

fn changed(
    kernel: &'static Kernel,
    cl: &[(&str, &str)],
    wgsl: &[(&str, &str)],
) -> Result<&'static Kernel, String> {
    Ok(Box::leak(Box::new(Kernel {
        name: kernel.name,
        cl: replaced(kernel, kernel.cl, cl)?,
        wgsl: replaced(kernel, kernel.wgsl, wgsl)?,
        params: Params {
            fields: kernel.params.fields,
        },
        args: kernel.args,
        variant: kernel.variant,
        forms: kernel.forms,
    })))
}

/// The kernel with the other conversion. Its text lives as long as the program, as those of the library do.
/// An error where the text has another form.
pub fn twin(kernel: &'static Kernel) -> Result<&'static Kernel, String> {
    changed(kernel, &CL, &WGSL)
}

/// The vector kernel with a loop of two steps, to be compared with one of one step and never to be run: its last step may be one too many.
#[allow(
    dead_code,
    reason = "the benchmark runs kernels, the list of them compares lengths"
)]
pub fn twice(kernel: &'static Kernel) -> Result<&'static Kernel, String> {
    changed(kernel, &CL_TWICE, &WGSL_TWICE)
}
