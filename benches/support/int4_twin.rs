//! Kernels of E0M4 weights with the conversion of classic INT4 weights instead, from integers to
//! floats.

use transformer_lite::unstable::backend::kernel::{ByLanguage, Kernel};

/// How one conversion becomes the other in a text: what is replaced, and by what.
type Changes<'a> = &'a [(&'a str, &'a str)];

/// In single precision.
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

/// In pairs of halves there are two conversions; which one is shorter depends on the compiler.
/// Either 16-bit integers are converted, or the quantized weight becomes the last bits of a half
/// and the constant bits are subtracted. Both also subtract the middle of the range, as the kernels
/// of E0M4 do. Unlike those, they may overflow for large `x`.
const CL_PAIRS: [&[(&str, &str)]; 2] = [
    &[
        (
            "#include \"common/e0m\"",
            "#include \"common/e0m\"\n#define INT4_PAIR(word, k) (convert_half2(as_ushort2((word) >> 4 * (k) & 0x000F000Fu)) - 8.0h)",
        ),
        ("CENTERED(word.c, low.c, ", "INT4_PAIR(word.c, "),
        ("DIVISOR * dots", "dots"),
        ("- MIDDLE)", "- 8.0f)"),
    ],
    &[
        (
            "#include \"common/e0m\"",
            "#include \"common/e0m\"\n#define INT4_PAIR(word, k) (as_half2(((word) >> 4 * (k) & 0x000F000Fu) | 0x54005400u) - 64.5h)",
        ),
        ("CENTERED(word.c, low.c, ", "INT4_PAIR(word.c, "),
        ("DIVISOR * dots", "16.0f * dots"),
        ("- MIDDLE)", "- 8.0f)"),
    ],
];
/// The products of pairs, which are part of the text so that their weights can be converted in
/// another way.
const PRODUCTS: &str = include_str!("../../shaders/common/pairs.wgsl");
const WGSL_PAIRS: [&[(&str, &str)]; 2] = [
    &[
        ("e0m_pair_by_4(", "int4_pair("),
        ("#include \"common/pairs\"", PRODUCTS),
        ("centered(w", "int4_halves(w"),
        ("E0M_DIVISOR * t.dots", "t.dots"),
        ("- E0M_MIDDLE)", "- 8.0)"),
        (
            "#include \"common/e0m\"",
            "#include \"common/e0m\"\nfn int4_pair(w: E0mWords, k: u32) -> vec4<u32> { return (w.high >> vec4<u32>(4u * k)) & vec4<u32>(0x000F000Fu); }\nfn int4_halves(bits: u32) -> vec2<f16> { return vec2<f16>(vec2<u32>(bits & 0xFFFFu, bits >> 16u)) - vec2<f16>(f16(8.0)); }",
        ),
    ],
    &[
        ("e0m_pair_by_4(", "int4_pair("),
        ("#include \"common/pairs\"", PRODUCTS),
        ("centered(w", "int4_halves(w"),
        ("E0M_DIVISOR * t.dots", "16.0 * t.dots"),
        ("- E0M_MIDDLE)", "- 8.0)"),
        (
            "#include \"common/e0m\"",
            "#include \"common/e0m\"\nfn int4_pair(w: E0mWords, k: u32) -> vec4<u32> { return ((w.high >> vec4<u32>(4u * k)) & vec4<u32>(0x000F000Fu)) | vec4<u32>(0x54005400u); }\nfn int4_halves(bits: u32) -> vec2<f16> { return pair_of(bits) - vec2<f16>(f16(64.5)); }",
        ),
    ],
];

/// How the loop of the vector kernel does two steps at a time.
const CL_TWICE: [(&str, &str); 1] = [("r++) STEP(r)", "r += 2) { STEP(r) STEP(r + 1) }")];
const WGSL_TWICE: [(&str, &str); 1] = [(
    "i++) { t = plus(t, i, word_at, panel); }\n    }",
    "i += 2u) { t = plus(t, i, word_at, panel); t = plus(t, i + 1u, word_at, panel); }\n    }",
)];

fn replaced(kernel: &Kernel, text: &str, changes: Changes<'_>) -> Result<&'static str, String> {
    let mut out = text.to_owned();
    for (from, to) in changes {
        if !out.contains(from) {
            return Err(format!("{}: no {from} in its text", kernel.name));
        }
        out = out.replace(from, to);
    }
    Ok(Box::leak(out.into_boxed_str()))
}

fn changed(kernel: &'static Kernel, cl: Changes<'_>, wgsl: Changes<'_>) -> Result<&'static Kernel, String> {
    Ok(Box::leak(Box::new(Kernel {
        sources: ByLanguage {
            opencl_c: kernel
                .sources
                .opencl_c
                .map(|text| replaced(kernel, text, cl))
                .transpose()?,
            wgsl: kernel
                .sources
                .wgsl
                .map(|text| replaced(kernel, text, wgsl))
                .transpose()?,
        },
        ..*kernel
    })))
}

/// The kernel with the other conversion, in each form that is worth a look; `pairs`: of the form
/// for pairs of halves. Their texts live as long as the program, as those of the library do. An
/// error where the text has another form.
pub fn twins(kernel: &'static Kernel, pairs: bool) -> Result<Vec<&'static Kernel>, String> {
    if !pairs {
        return Ok(vec![changed(kernel, &CL, &WGSL)?]);
    }
    let forms = CL_PAIRS.iter().zip(WGSL_PAIRS);
    forms.map(|(cl, wgsl)| changed(kernel, cl, wgsl)).collect()
}

/// The vector kernel with a loop of two steps, to be compared with one of one step and never to be
/// run: its last step may be one too many.
#[allow(
    dead_code,
    reason = "the benchmark runs kernels, the list of them compares lengths"
)]
pub fn twice(kernel: &'static Kernel) -> Result<&'static Kernel, String> {
    changed(kernel, &CL_TWICE, &WGSL_TWICE)
}
