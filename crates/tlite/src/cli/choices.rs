//! Options whose values are types of the library: their names on the command line, and a line of
//! help for each.

use clap::builder::{PossibleValue, PossibleValuesParser, StyledStr, TypedValueParser};
use transformer_lite::unstable::backend::isa::Isa;
use transformer_lite::unstable::backend::kernel::image::ImageKind;
use transformer_lite::unstable::backend::{BackendKind, ImageUse, Priority, ReplayMode};
use transformer_lite::unstable::cache::Kind;
use transformer_lite::unstable::llm::{Activations, KvType, WhiteSpace};
use transformer_lite::unstable::placement::BackendChoice;
use transformer_lite::unstable::tensor::DType;
use transformer_lite::unstable::vision::picture::Fit;

/// A parser of these values.
fn values<T: Copy + Send + Sync + 'static>(
    all: impl IntoIterator<Item = (T, PossibleValue)>,
) -> impl TypedValueParser<Value = T> {
    let (values, names): (Vec<T>, Vec<PossibleValue>) = all.into_iter().unzip();
    PossibleValuesParser::new(names.clone()).try_map(move |name: String| {
        let given = names.iter().position(|n| n.matches(&name, false));
        let value = given.and_then(|i| values.get(i)).copied();
        value.ok_or_else(|| format!("\"{name}\" is not a valid value"))
    })
}

/// A value with its name and help.
fn value<T>(value: T, name: &'static str, help: impl Into<StyledStr>) -> (T, PossibleValue) {
    (value, PossibleValue::new(name).help(help.into()))
}

pub(super) fn backend() -> impl TypedValueParser<Value = BackendChoice> {
    values(BackendChoice::ALL.map(|v| {
        let help = match v {
            BackendChoice::Auto => {
                let gpus = BackendKind::ALL.into_iter().filter(|k| *k != BackendKind::Cpu);
                let names = gpus.map(BackendKind::name).collect::<Vec<_>>().join(", ");
                format!("First backend ({names}) with a GPU; else `cpu`")
            }
            BackendChoice::On(kind) => kind.about().to_owned(),
            BackendChoice::Reference => "Reference interpreter on the CPU: slow, for comparison".to_owned(),
        };
        let (v, possible) = value(v, v.name(), help);
        (v, possible.aliases(v.aliases()))
    }))
}

pub(super) fn float() -> impl TypedValueParser<Value = DType> {
    values([
        value(DType::F32, "f32", "32 bits"),
        value(DType::F16, "f16", "16 bits"),
    ])
}

pub(super) fn fit() -> impl TypedValueParser<Value = Fit> {
    let pad = "Fit the whole picture into the upper left of the input and pad the rest";
    values([
        value(Fit::Stretch, "stretch", "Stretch the picture"),
        value(Fit::Crop, "crop", "Cover the input and crop the rest"),
        value(Fit::Pad, "pad", pad),
    ])
}

pub(super) fn json_space() -> impl TypedValueParser<Value = WhiteSpace> {
    let bounded = "Up to 20 blanks, or a line break and up to 20 blanks";
    values([
        value(WhiteSpace::Bounded, "bounded", bounded),
        value(WhiteSpace::Compact, "compact", "None"),
        value(WhiteSpace::Unlimited, "unlimited", "Any amount"),
    ])
}

pub(super) fn kv() -> impl TypedValueParser<Value = KvType> {
    let (float, named) = value(
        KvType::Float,
        "float",
        "The type of activations (see --float); f16 on `cpu` unless --float is f32",
    );
    let q8 = "8-bit values, one scale per head and token: about half the size of f16";
    values([(float, named.alias("f16")), value(KvType::Q8, "q8", q8)])
}

pub(super) fn activations() -> impl TypedValueParser<Value = Activations> {
    values([
        value(Activations::Auto, "auto", "`int16` on `cpu`, else `float`"),
        value(
            Activations::Float,
            "float",
            "Keep the stored precision (see --float)",
        ),
        value(
            Activations::Int16,
            "int16",
            "Quantized to 16 bits at run time: as accurate as floats; `cpu` only",
        ),
        value(
            Activations::Int8,
            "int8",
            "Quantized to 8 bits at run time: faster on some CPUs, but answers may differ",
        ),
    ])
}

pub(super) fn priority() -> impl TypedValueParser<Value = Priority> {
    values(Priority::ALL.map(|v| {
        let help = match v {
            Priority::Low => "Run after other programs' work, so that the screen stays smooth",
            Priority::Normal => "The driver's default",
            Priority::High => "Run before other programs' work, at the highest clock rates",
        };
        value(v, v.name(), help)
    }))
}

pub(super) fn isa() -> impl TypedValueParser<Value = Isa> {
    values(Isa::ALL.map(|v| value(v, v.name(), v.about())))
}

pub(super) fn recording() -> impl TypedValueParser<Value = ReplayMode> {
    values(ReplayMode::ALL.map(|v| {
        let help = match v {
            ReplayMode::Auto => "Record on GPUs whose driver supports it; else `off`",
            ReplayMode::CommandBuffer => "Record with cl_khr_command_buffer",
            ReplayMode::Qcom => "Record with cl_qcom_recordable_queues",
            ReplayMode::Off => "Queue commands one by one",
        };
        value(v, v.name(), help)
    }))
}

pub(super) fn images() -> impl TypedValueParser<Value = ImageUse> {
    values(ImageUse::ALL.map(|v| {
        let help = match v {
            ImageUse::Auto => "Through images where that is known to be faster (Adreno)",
            ImageUse::Of(ImageKind::Image1dBuffer) => "Through image1d_buffer_t",
            ImageUse::Of(ImageKind::Image2d) => "Through image2d_t, with cl_khr_image2d_from_buffer",
            ImageUse::Off => "Through buffers",
        };
        value(v, v.name(), help)
    }))
}

pub(super) fn cache_kind() -> impl TypedValueParser<Value = Kind> {
    values(Kind::ALL.map(|v| {
        let help = match v {
            Kind::Program => "Compiled OpenCL programs",
            Kind::Pipeline => "Pipeline caches of wgpu",
            Kind::Verdict => "Results of kernel checks",
            Kind::Quarantine => "Kernels that are not used because they failed; they are tried again",
            Kind::Tuning => "Settings that `tlite tune` chose",
            Kind::Probe => "Measurements of `tlite devices --probe`",
        };
        value(v, v.name(), help)
    }))
}
