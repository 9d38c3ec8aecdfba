//! Kernels as data: descriptors, specialisation, and expansion of the source in both languages.
//!
//! A kernel is a pair `cl/<group>/<name>.cl` and `shaders/<group>/<name>.wgsl` with one descriptor
//! in `src/kernels`. A variant for some devices may have only one of them.
//! The parameter struct, operand declarations and accessors of both languages are generated from
//! the descriptor, so the two texts cannot disagree about them:
//!
//! | operand type | OpenCL C | WGSL | in the kernel text |
//! |---|---|---|---|
//! | [`Ty::Elem`] `f16` | `half *` | `array<u32>` | `x_at(i)`, `x_at2(i)`, `x_at4(i)`, `y_put2(i,
//! v)`, `y_put4(i, v)` in `f32` |
//! | [`Ty::Elem`] `f32` | `float *` | `array<f32>` | the same |
//! | [`Ty::Elem`] integer, `bool` | `int *` | `array<i32>` | the same in `i32` |
//! | [`Ty::Elem`] 64-bit integer | `long *` | `array<i64>` | the same in `i64` |
//! | [`Ty::Elem`] bytes, in the integer domain | `char *`, `uchar *` | `array<u32>` | `x_at(i)` in
//! `i32` |
//! | [`Ty::Single`] | as [`Ty::Elem`] | the same, but `array<atomic<u32>>` for `f16` | the same and
//! `y_put(i, v)` |
//! | [`Ty::Uint`] | `uint *` | `array<u32>` | `w[i]` |
//! | [`Ty::Uint4`] | `uint4 *` | `array<vec4<u32>>` | `w[i]` |
//! | [`Ty::Half4`] | `uint2 *` | `array<vec4<f16>>` | `w[i]` |
//!
//! `at2(i)` reads elements `2i` and `2i + 1`; `at4(i)` reads `4i ..= 4i + 3`. In OpenCL C each is
//! one access, because views are aligned to 16 bytes. WGSL has no 16-bit store without an
//! extension, so a work-item always owns an aligned pair of halves. A [`Ty::Single`] result can be
//! stored one element at a time; in WGSL a single half takes two atomic operations on its word. A
//! tensor with an odd number of elements is padded to a multiple of 4 bytes.
//!
//! OpenCL C also has `x_run(n, i)` and `y_put_run(n, i, v)`, which access the elements `i .. i + n`
//! at any `i` as a vector of 2, 4, 8 or 16, and `y_put` for every result.
//!
//! In OpenCL C an operand that is [read through an image](KernelSpec::images) has only `x_at4(i)`,
//! and its kernel sees the define `IMAGE_X`. For [`Ty::Uint4`] this accessor exists only with
//! images.
//!
//! `ELEM` (in OpenCL C also `ELEM2` and `ELEM4`) is the accessor type of the result, a float or an
//! `int`; without a result it is that of the first element operand. `LEAST` is the initial value of
//! its running maxima.
//!
//! The preprocessor knows `#ifdef`, `#ifndef`, `#else`, `#endif` and `#include "common/<file>"`.
//! Numeric defines become `#define` and `const`; `#ifdef` sees them too. An optional operand `b`
//! that is bound defines `HAS_B`; an output that shares the binding of input `x` defines
//! `IN_PLACE`.

pub mod epilogue;
pub mod functions;
mod helpers;
pub mod image;
mod opencl_c;
mod preprocess;
mod printer;
pub mod program;
pub mod real;
mod spec;
pub mod subgroup_size;
mod typed;
mod wgsl;

pub use opencl_c::BUILD_OPTIONS;
pub use preprocess::excerpt;
pub use spec::{ExpandError, ExpandReason, KernelSpec};
pub use typed::{
    Arguments, Concrete, OperandOf, Signature, Stage, Symbolic, TypedKernel, roles, with_operands,
};
pub use wgsl::LINEAR;

#[cfg(feature = "opencl")]
pub(super) use opencl_c::CAT;

use super::DeviceProfile;
use crate::tensor::DType;
use epilogue::Epilogue;
use image::{ImageKind, Pixel};
use preprocess::included;
use std::collections::BTreeMap;
use std::fmt;
use subgroup_size::SubgroupSize;

/// Type of a parameter field; each is 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldTy {
    /// `uint` and `u32`.
    U32,
    /// `int` and `i32`.
    I32,
    /// `float` and `f32`.
    F32,
}

/// How a kernel uses an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Read; in the arena, state or constants.
    In,
    /// Read; optional.
    OptionalIn,
    /// Read-only; its buffer has no other binding in the dispatch.
    Weight,
    /// Like [`Role::Weight`]; optional.
    OptionalWeight,
    /// Written completely.
    Out,
    /// Written partly; not read.
    PartialOut,
    /// Read and partly written.
    InOut,
    /// Read and partly written; optional.
    OptionalInOut,
}

impl Role {
    /// Whether the kernel writes the operand.
    pub fn writes(self) -> bool {
        matches!(
            self,
            Self::Out | Self::PartialOut | Self::InOut | Self::OptionalInOut
        )
    }

    /// Whether the kernel reads the operand.
    pub fn reads(self) -> bool {
        !matches!(self, Self::Out | Self::PartialOut)
    }

    /// Whether the operand is optional.
    pub fn is_optional(self) -> bool {
        matches!(
            self,
            Self::OptionalIn | Self::OptionalWeight | Self::OptionalInOut
        )
    }

    /// Whether the operand's buffer is bound read-only.
    pub fn is_weight(self) -> bool {
        matches!(self, Self::Weight | Self::OptionalWeight)
    }
}

/// How a kernel sees an operand's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ty {
    /// Elements of the operand's data type through accessors.
    Elem,
    /// A result that is stored one or several elements at a time. It is not read and never aliases
    /// an operand.
    Single,
    /// 32-bit words.
    Uint,
    /// Vectors of four 32-bit words.
    Uint4,
    /// Vectors of four halves, for tensor cores.
    Half4,
}

impl Ty {
    /// Whether elements are read and written through accessors.
    pub fn has_accessors(self) -> bool {
        matches!(self, Self::Elem | Self::Single)
    }
}

/// One operand of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Arg {
    /// Name in the kernel text.
    pub name: &'static str,
    /// How the kernel uses it.
    pub role: Role,
    /// How the kernel sees its bytes.
    pub ty: Ty,
}

/// A kernel in all its languages.
#[derive(Debug)]
pub struct Kernel {
    /// File stem and entry point.
    pub name: &'static str,
    /// Sources before expansion. A kernel may lack some.
    pub sources: ByLanguage<Option<&'static str>>,
    /// Parameters, `p` in the text: name and type of each, in order.
    pub params: &'static [(&'static str, FieldTy)],
    pub args: &'static [Arg],
    /// What it needs from a device, and the fallback for other devices; `None` for a generic
    /// kernel.
    pub variant: Option<Variant>,
    /// Defines that turn the kernel into a variant of itself.
    pub forms: &'static [Form],
    /// What it uses of a device, whatever the defines.
    pub features: Features,
    /// Its work-items are numbered along one axis and surplus ones do nothing. A long grid may then
    /// be folded over two axes with the define [`FOLDED`].
    pub is_linear: bool,
    /// The sources also work for operands of 64-bit integers; see [`KernelSpec::is_wide`].
    pub takes_wide: bool,
    /// On CPUs that convert halves in software, the OpenCL C source loads infinite halves as large
    /// finite numbers, since testing each element would cost time.
    pub finite_halves: bool,
}

/// Something that only some devices offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Tensor cores ([`DeviceProfile::tensor_cores`]); in OpenCL C other instructions of PTX too.
    TensorCores,
    /// Functions of subgroups ([`DeviceProfile::subgroup`]).
    Subgroups,
    /// Arithmetic of halves ([`DeviceProfile::f16_math`]).
    F16,
    /// Dot products of 8-bit values, as [`super::PackedDot`] selects. Without them, the source
    /// multiplies single values.
    PackedDot,
}

/// The [`Feature`]s that the source in each language uses.
pub type Features = ByLanguage<&'static [Feature]>;

impl Features {
    pub const NONE: Self = Self::all(&[]);

    /// The same features in all languages.
    pub const fn all(features: &'static [Feature]) -> Self {
        Self {
            opencl_c: features,
            wgsl: features,
        }
    }
}

/// A define that adapts a kernel to some devices; without it the kernel runs on any device. See
/// [`DeviceProfile::supports_form`].
#[derive(Clone, Copy, Debug)]
pub struct Form {
    pub define: &'static str,
    /// What it needs from a device, whatever the sizes.
    pub needs: fn(&DeviceProfile) -> bool,
    /// What it uses of a device besides the kernel's own features.
    pub features: Features,
}

/// Restricts a kernel to some devices. See [`DeviceProfile::supports`].
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// The kernel that computes the same on any device.
    pub fallback: &'static Kernel,
    /// What it needs from a device, whatever the sizes.
    pub needs: fn(&DeviceProfile) -> bool,
}

/// What follows the folder in a path.
const fn file_stem(path: &'static str) -> &'static str {
    let bytes = path.as_bytes();
    let mut start = bytes.len();
    while start > 0 && bytes[start - 1] != b'/' {
        start -= 1;
    }
    path.split_at(start).1
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// OpenCL C 1.2.
    OpenClC,
    /// WGSL; a text that needs an extension enables it.
    Wgsl,
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenClC => "OpenCL C",
            Self::Wgsl => "WGSL",
        })
    }
}

/// Something for each source language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ByLanguage<T> {
    pub opencl_c: T,
    pub wgsl: T,
}

impl<T> ByLanguage<T> {
    /// That of a language.
    pub fn of(&self, language: Language) -> &T {
        match language {
            Language::OpenClC => &self.opencl_c,
            Language::Wgsl => &self.wgsl,
        }
    }
}

impl Language {
    pub const ALL: [Self; 2] = [Self::OpenClC, Self::Wgsl];
}

/// A finite value that acts as minus infinity in a softmax and fits binary16.
pub const MASK_MIN: f32 = -65504.0;

/// The define that folds a long grid over two axes.
pub const FOLDED: &str = "FOLDED";
/// The define with which each work-group loops over batches, with the length of the third axis of
/// the grid as its step.
pub const ROUNDS: &str = "ROUNDS";

impl Kernel {
    /// A kernel without source; `name` may begin with a folder.
    pub const fn new(
        name: &'static str,
        params: &'static [(&'static str, FieldTy)],
        args: &'static [Arg],
    ) -> Self {
        Self {
            name: file_stem(name),
            sources: ByLanguage {
                opencl_c: None,
                wgsl: None,
            },
            params,
            args,
            variant: None,
            forms: &[],
            features: Features::NONE,
            is_linear: false,
            takes_wide: false,
            finite_halves: false,
        }
    }

    /// Adds the source in OpenCL C.
    pub const fn with_opencl_c(mut self, source: &'static str) -> Self {
        self.sources.opencl_c = Some(source);
        self
    }

    /// Adds the source in WGSL.
    pub const fn with_wgsl(mut self, source: &'static str) -> Self {
        self.sources.wgsl = Some(source);
        self
    }

    /// True if no language has a source.
    pub fn is_native(&self) -> bool {
        Language::ALL.iter().all(|l| self.sources.of(*l).is_none())
    }

    /// The kernel that every device can run in place of this one.
    pub fn generic(&'static self) -> &'static Self {
        self.variant.map_or(self, |variant| variant.fallback.generic())
    }

    /// Makes the kernel a variant of `fallback` for devices that have what it `needs`.
    #[must_use]
    pub const fn variant_of(mut self, fallback: &'static Kernel, needs: fn(&DeviceProfile) -> bool) -> Self {
        self.variant = Some(Variant { fallback, needs });
        self
    }

    /// Declares what the kernel uses of a device.
    #[must_use]
    pub const fn with_features(mut self, features: Features) -> Self {
        self.features = features;
        self
    }

    /// Declares that the sources also work for operands of 64-bit integers.
    #[must_use]
    pub const fn wide(mut self) -> Self {
        self.takes_wide = true;
        self
    }

    /// Declares that infinite halves may be loaded as large finite numbers; see
    /// [`Kernel::finite_halves`].
    #[must_use]
    pub const fn finite_halves(mut self) -> Self {
        self.finite_halves = true;
        self
    }

    /// Declares that work-items are numbered along one axis; see [`Kernel::is_linear`].
    #[must_use]
    pub const fn linear(mut self) -> Self {
        self.is_linear = true;
        self
    }

    /// Adds forms for devices that have what they need.
    #[must_use]
    pub const fn with_forms(mut self, forms: &'static [Form]) -> Self {
        self.forms = forms;
        self
    }

    /// Checksum of everything its programs are made of in both languages: source, included files,
    /// generated accessors and compiler options.
    pub fn checksum(&'static self) -> u32 {
        let mut sum = crc32fast::Hasher::new();
        for language in Language::ALL {
            sum.update(language.options().to_bytes());
        }
        let text = |language| Some((language, (*self.sources.of(language))?));
        for (language, text) in Language::ALL.into_iter().filter_map(text) {
            sum.update(text.as_bytes());
            for included in included(text, language) {
                sum.update(included.as_bytes());
            }
        }
        for spec in self.samples() {
            for language in Language::ALL {
                sum.update(language.printer().prelude(&spec, &[]).as_bytes());
            }
        }
        sum.finalize()
    }

    /// Specs that together use all accessors: each element type, images of each kind, and subgroup
    /// requests.
    fn samples(&'static self) -> Vec<KernelSpec> {
        let of = |dtype: DType, kind: Option<ImageKind>| {
            let fits = |a: &Arg| Pixel::of(a.ty, dtype).is_some() && !a.role.writes();
            let args = self.args.iter().enumerate().filter(|(_, a)| fits(a));
            KernelSpec {
                kernel: self,
                workgroup: 1,
                defines: BTreeMap::new(),
                operands: vec![Some(dtype); self.args.len()],
                in_place: None,
                epilogue: None,
                images: kind.map_or_else(BTreeMap::new, |kind| args.map(|(i, _)| (i, kind)).collect()),
            }
        };
        let types = [DType::F16, DType::F32, DType::I32].map(|dtype| of(dtype, None));
        let by_image = ImageKind::ALL.map(|kind| of(DType::F16, Some(kind)));
        let subgroups = [
            SubgroupSize::Half,
            SubgroupSize::Full,
            SubgroupSize::Lanes(subgroup_size::MAX_LANES),
        ]
        .map(|subgroup| KernelSpec {
            defines: BTreeMap::from([(subgroup_size::DEFINE, i64::from(subgroup.number()))]),
            ..of(DType::F16, None)
        });
        let subgroups = subgroups.into_iter().filter(|_| self.may_request_subgroup_size());
        let plain = types.into_iter().chain(by_image);
        plain.chain(subgroups).collect()
    }

    /// Whether it has a form that requests a subgroup size.
    fn may_request_subgroup_size(&self) -> bool {
        self.forms.iter().any(|f| f.define == subgroup_size::DEFINE)
    }
}

/// Name of the form of a kernel that reads operands through images. Its fallback is the same kernel
/// without images.
const IMAGES: &str = "images";

/// Name of the image form of a kernel, as [`KernelSpec::variants`] lists it.
pub fn image_form(kernel: &Kernel) -> String {
    form_name(kernel, IMAGES)
}

/// Name of a form of a kernel, as [`KernelSpec::variants`] lists it.
pub fn form_name(kernel: &Kernel, define: &str) -> String {
    format!("{} {define}", kernel.name)
}

/// The operands of a kernel with an epilogue.
pub fn args<'a>(
    kernel: &'static Kernel,
    epilogue: Option<&'a Epilogue>,
) -> impl Iterator<Item = &'static Arg> + use<'a> {
    kernel
        .args
        .iter()
        .chain(epilogue.into_iter().flat_map(Epilogue::args))
}

/// The parameters of a kernel with an epilogue: name and type of each field.
pub fn fields<'a>(
    kernel: &'static Kernel,
    epilogue: Option<&'a Epilogue>,
) -> impl Iterator<Item = (&'static str, FieldTy)> + use<'a> {
    let own = kernel.params.iter().copied();
    own.chain(epilogue.into_iter().flat_map(Epilogue::fields))
}
