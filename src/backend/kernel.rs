//! Kernels as data: descriptors, specialisation, and expansion of the source in both languages.
//!
//! A kernel is a pair `cl/<name>.cl` and `shaders/<name>.wgsl` with one descriptor. The parameter
//! struct, operand declarations and accessors of both languages are generated from the descriptor,
//! so the two texts cannot disagree about them:
//!
//! | operand type | OpenCL C | WGSL | in the kernel text |
//! |---|---|---|---|
//! | [`Ty::Elem`] `f16` | `half *` | `array<u32>` | `x_at(i)`, `x_at2(i)`, `x_at4(i)`, `y_put2(i, v)`, `y_put4(i, v)` in `f32` |
//! | [`Ty::Elem`] `f32` | `float *` | `array<f32>` | the same |
//! | [`Ty::Elem`] integer, `bool` | `int *` | `array<i32>` | the same in `i32` |
//! | [`Ty::Single`] | as [`Ty::Elem`] | the same, but `array<atomic<u32>>` for `f16` | the same and `y_put(i, v)` |
//! | [`Ty::Words`] | `uint *` | `array<u32>` | `w[i]` |
//! | [`Ty::Words4`] | `uint4 *` | `array<vec4<u32>>` | `w[i]` |
//! | [`Ty::Halves4`] | `uint2 *` | `array<vec4<f16>>` | `w[i]` |
//!
//! `at2(i)` reads elements `2i` and `2i + 1`; `at4(i)` reads `4i ..= 4i + 3`. In OpenCL C each is
//! one access, because views are aligned to 16 bytes. WGSL has no 16-bit store without an
//! extension, so a work-item always owns an aligned pair of halves. A [`Ty::Single`] result can be
//! stored one element at a time; in WGSL a single half takes two atomic operations on its word. A
//! tensor with an odd number of elements is padded to a multiple of 4 bytes.
//!
//! OpenCL C also has `x_run(n, i)` and `y_put_run(n, i, v)`, which access the elements `i .. i + n`
//! at any `i` as a vector of 2, 4, 8 or 16, and `y_put` for every result. CPU compilers do not
//! vectorize single accesses as well.
//!
//! In WGSL an operand may be [bound as vectors of four](KernelSpec::fours); then it has only
//! `x_at4(i)`.
//!
//! In OpenCL C an operand that is [read through an image](KernelSpec::images) has only `x_at4(i)`,
//! and its kernel sees the define `IMAGE_X`. For [`Ty::Words4`] this accessor exists only with
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

use super::Caps;
use super::epilogue::Epilogue;
use super::image::{ImageKind, Pixel, ROW_PIXELS};
use super::wave::{self, WAVE, Wave};
use crate::tensor::DType;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::fmt::{self, Write as _};

/// Compiler options for OpenCL C. Phone drivers support 1.2; math stays exact except for fused
/// multiply-add.
pub const BUILD_OPTIONS: &CStr = c"-cl-std=CL1.2 -cl-mad-enable";

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

/// The fields of a kernel's parameter struct, in order.
#[derive(Debug)]
pub struct Params {
    /// Name and type of each field.
    pub fields: &'static [(&'static str, FieldTy)],
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
    Part,
    /// Read and partly written.
    InOut,
    /// Read and partly written; optional.
    OptionalInOut,
}

impl Role {
    /// Whether the kernel writes the operand.
    pub fn writes(self) -> bool {
        matches!(self, Self::Out | Self::Part | Self::InOut | Self::OptionalInOut)
    }

    /// Whether the kernel reads the operand.
    pub fn reads(self) -> bool {
        !matches!(self, Self::Out | Self::Part)
    }

    /// Whether the kernel may read what it has written.
    pub fn rereads(self) -> bool {
        matches!(self, Self::InOut | Self::OptionalInOut)
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
    Words,
    /// Vectors of four 32-bit words.
    Words4,
    /// Vectors of four halves, for tensor cores.
    Halves4,
}

impl Ty {
    /// Whether elements are read and written through accessors.
    pub fn has_accessors(self) -> bool {
        matches!(self, Self::Elem | Self::Single)
    }
}

/// One operand of a kernel.
#[derive(Debug)]
pub struct Arg {
    /// Name in the kernel text.
    pub name: &'static str,
    /// How the kernel uses it.
    pub role: Role,
    /// How the kernel sees its bytes.
    pub ty: Ty,
}

/// A kernel in both languages.
#[derive(Debug)]
pub struct Kernel {
    /// File stem and entry point.
    pub name: &'static str,
    /// OpenCL C text before expansion.
    pub cl: &'static str,
    /// WGSL text before expansion.
    pub wgsl: &'static str,
    /// Parameters, `p` in the text.
    pub params: Params,
    /// Operands in order.
    pub args: &'static [Arg],
    /// What it needs from a device, and the fallback for other devices; `None` for a generic
    /// kernel.
    pub variant: Option<Variant>,
    /// Defines that turn the kernel into a variant of itself.
    pub forms: &'static [Form],
}

/// A define that adapts a kernel to some devices; without it the kernel runs on any device. See
/// [`Caps::takes_form`].
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// The define.
    pub define: &'static str,
    /// What it needs from a device, whatever the sizes.
    pub needs: fn(&Caps) -> bool,
}

/// Restricts a kernel to some devices. See [`Caps::takes`].
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// The kernel that computes the same on any device (the fallback).
    pub twin: &'static Kernel,
    /// What it needs from a device, whatever the sizes.
    pub needs: fn(&Caps) -> bool,
}

/// Declares a kernel: `kernel!(softmax { rows: U32, cols: U32 } [x: In Elem, y: Out Elem])`. A
/// missing source file is a compile error.
#[macro_export]
macro_rules! kernel {
    ($name:ident { $($field:ident : $fty:ident),* $(,)? } [ $($arg:ident : $role:ident $ty:ident),* $(,)? ]) => {
        $crate::backend::kernel::Kernel {
            name: stringify!($name),
            cl: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/cl/", stringify!($name), ".cl")),
            wgsl: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/", stringify!($name), ".wgsl")),
            params: $crate::backend::kernel::Params {
                fields: &[$((stringify!($field), $crate::backend::kernel::FieldTy::$fty)),*],
            },
            args: &[$($crate::backend::kernel::Arg {
                name: stringify!($arg),
                role: $crate::backend::kernel::Role::$role,
                ty: $crate::backend::kernel::Ty::$ty,
            }),*],
            variant: None,
            forms: &[],
        }
    };
}

/// Generated source that a kernel calls: the function of an [`Epilogue`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Snippet {
    /// OpenCL C.
    pub cl: String,
    /// WGSL.
    pub wgsl: String,
}

/// A kernel with everything that its compilation depends on.
#[derive(Clone, Debug)]
pub struct KernelSpec {
    /// The kernel.
    pub kernel: &'static Kernel,
    /// Work-items in a work-group (one-dimensional).
    pub workgroup: u32,
    /// Numeric constants by name.
    pub defines: BTreeMap<&'static str, i64>,
    /// Data types of the descriptor's operands, then of the epilogue's; `None` omits an optional
    /// operand.
    pub operands: Vec<Option<DType>>,
    /// Index of the operand whose binding the [`Role::Out`] operand shares; the output then has no
    /// view.
    pub in_place: Option<usize>,
    /// What is applied to each result before it is stored.
    pub epilogue: Option<Epilogue>,
    /// Indices of the descriptor's operands that OpenCL C reads through images. They are only read,
    /// and only through `at4`.
    pub images: BTreeMap<usize, ImageKind>,
    /// Indices of the descriptor's operands that WGSL binds as vectors of four elements. They are
    /// only read, and only through `at4`.
    pub fours: BTreeSet<usize>,
}

impl PartialEq for KernelSpec {
    fn eq(&self, o: &Self) -> bool {
        self.kernel.name == o.kernel.name
            && self.workgroup == o.workgroup
            && self.defines == o.defines
            && self.operands == o.operands
            && self.in_place == o.in_place
            && self.epilogue == o.epilogue
            && self.images == o.images
            && self.fours == o.fours
    }
}

impl Eq for KernelSpec {}

impl std::hash::Hash for KernelSpec {
    fn hash<H: std::hash::Hasher>(&self, h: &mut H) {
        self.kernel.name.hash(h);
        self.workgroup.hash(h);
        self.defines.hash(h);
        self.operands.hash(h);
        self.in_place.hash(h);
        self.epilogue.hash(h);
        self.images.hash(h);
        self.fours.hash(h);
    }
}

impl fmt::Display for KernelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}<WG={}", self.kernel.name, self.workgroup)?;
        for (k, v) in &self.defines {
            write!(f, " {k}={v}")?;
        }
        for (arg, dtype) in self.bound() {
            if arg.ty.has_accessors() {
                write!(f, " {}:{dtype}", arg.name)?;
            }
        }
        if let Some(i) = self.shared() {
            write!(f, " in place of {}", i.name)?;
        }
        for (i, kind) in &self.images {
            let name = self.kernel.args.get(*i).map_or("?", |a| a.name);
            write!(f, " {name} by {kind}")?;
        }
        for i in &self.fours {
            let name = self.kernel.args.get(*i).map_or("?", |a| a.name);
            write!(f, " {name} by fours")?;
        }
        f.write_str(">")
    }
}

/// A source language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// OpenCL C 1.2.
    OpenCl,
    /// WGSL; a text that needs an extension enables it.
    Wgsl,
}

impl Language {
    /// The language of a device's kernels.
    pub fn of(caps: &Caps) -> Self {
        match caps.backend {
            "wgpu" => Self::Wgsl,
            _ => Self::OpenCl,
        }
    }
}

/// A kernel's source cannot be expanded: a mistake in the source or its spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kernel {kernel}: {why}")]
pub struct ExpandError {
    /// Kernel name.
    pub kernel: &'static str,
    /// What is wrong.
    pub why: String,
}

/// Shared helper files: name, OpenCL C, WGSL.
const COMMON: &[(&str, &str, &str)] = &[
    (
        "reduce",
        include_str!("../../cl/common/reduce.cl"),
        include_str!("../../shaders/common/reduce.wgsl"),
    ),
    (
        "places",
        include_str!("../../cl/common/places.cl"),
        include_str!("../../shaders/common/places.wgsl"),
    ),
    (
        "batches",
        include_str!("../../cl/common/batches.cl"),
        include_str!("../../shaders/common/batches.wgsl"),
    ),
    (
        "tile",
        include_str!("../../cl/common/tile.cl"),
        include_str!("../../shaders/common/tile.wgsl"),
    ),
    ("mma", MMA, ""),
    ("lanes", include_str!("../../cl/common/lanes.cl"), ""),
    (
        "e0m",
        include_str!("../../cl/common/e0m.cl"),
        include_str!("../../shaders/common/e0m.wgsl"),
    ),
    (
        "parts",
        include_str!("../../cl/common/parts.cl"),
        include_str!("../../shaders/common/parts.wgsl"),
    ),
    ("dot", DOT, include_str!("../../shaders/common/dot.wgsl")),
    ("pairs", "", include_str!("../../shaders/common/pairs.wgsl")),
    (
        "attention_lanes",
        "",
        include_str!("../../shaders/common/attention_lanes.wgsl"),
    ),
    (
        "attention_scores",
        "",
        include_str!("../../shaders/common/attention_scores.wgsl"),
    ),
    (
        "bytes",
        include_str!("../../cl/common/bytes.cl"),
        include_str!("../../shaders/common/bytes.wgsl"),
    ),
    (
        "chains",
        include_str!("../../cl/common/chains.cl"),
        include_str!("../../shaders/common/chains.wgsl"),
    ),
];

/// Tensor core functions in OpenCL C.
pub(super) const MMA: &str = include_str!("../../cl/common/mma.cl");

/// Token pasting in OpenCL C.
pub(super) const CAT: &str = "#define CAT_(a, b) a##b\n#define CAT(a, b) CAT_(a, b)\n";

/// Packed dot products in OpenCL C.
pub(super) const DOT: &str = include_str!("../../cl/common/dot.cl");

/// Loads and stores of halves in OpenCL C, used by the accessors.
pub(super) const HALF: &str = include_str!("../../cl/common/half.cl");

/// A finite value that acts as minus infinity in a softmax and fits binary16.
pub const MASK_MIN: f32 = -65504.0;

/// The entry point of a WGSL text whose work-items are numbered along one axis.
const LINEAR: &str = "(@builtin(global_invocation_id) id: vec3<u32>) {";
/// The entry point for a grid too long for one axis, folded over two.
const FOLDED_ENTRY: &str =
    "(@builtin(global_invocation_id) folded: vec3<u32>, @builtin(num_workgroups) folds: vec3<u32>) {
  let id = vec3<u32>(folded.x + folded.y * folds.x * WG, 0u, 0u);";
/// The define that folds a long grid over two axes.
pub const FOLDED: &str = "FOLDED";

impl Kernel {
    /// Makes the kernel a variant of `twin` for devices that have what it `needs`.
    #[must_use]
    pub const fn variant_of(mut self, twin: &'static Kernel, needs: fn(&Caps) -> bool) -> Self {
        self.variant = Some(Variant { twin, needs });
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
        sum.update(BUILD_OPTIONS.to_bytes());
        for (language, text) in [(Language::OpenCl, self.cl), (Language::Wgsl, self.wgsl)] {
            sum.update(text.as_bytes());
            for included in included(text, language) {
                sum.update(included.as_bytes());
            }
        }
        for spec in self.samples() {
            sum.update(spec.prelude_cl(&[], None).as_bytes());
            sum.update(spec.prelude_wgsl().as_bytes());
        }
        sum.finalize()
    }

    /// Specs that together use all accessors: each element type, images of each kind, vectors of
    /// four, and subgroup requests.
    fn samples(&'static self) -> Vec<KernelSpec> {
        let of = |dtype: DType, kind: Option<ImageKind>, fours: bool| {
            let fits = |a: &Arg| Pixel::of(a.ty, dtype).is_some() && !a.role.writes();
            let args = self.args.iter().enumerate().filter(|(_, a)| fits(a));
            let read = |(_, a): &(usize, &Arg)| fours && a.ty == Ty::Elem;
            let fours = args.clone().filter(read).map(|(i, _)| i).collect();
            KernelSpec {
                kernel: self,
                workgroup: 1,
                defines: BTreeMap::new(),
                operands: vec![Some(dtype); self.args.len()],
                in_place: None,
                epilogue: None,
                images: kind.map_or_else(BTreeMap::new, |kind| args.map(|(i, _)| (i, kind)).collect()),
                fours,
            }
        };
        let types = [DType::F16, DType::F32, DType::I32].map(|dtype| of(dtype, None, false));
        let by_image = ImageKind::ALL.map(|kind| of(DType::F16, Some(kind), false));
        let by_fours = [DType::F16, DType::F32].map(|dtype| of(dtype, None, true));
        let waves = [Wave::Half, Wave::Full, Wave::Lanes(wave::MOST)].map(|wave| KernelSpec {
            defines: BTreeMap::from([(WAVE, i64::from(wave.number()))]),
            ..of(DType::F16, None, false)
        });
        let waves = waves.into_iter().filter(|_| self.may_ask_for_waves());
        let plain = types.into_iter().chain(by_image).chain(by_fours);
        plain.chain(waves).collect()
    }

    /// Whether it has a form that requests a subgroup width.
    fn may_ask_for_waves(&self) -> bool {
        self.forms.iter().any(|f| f.define == WAVE)
    }

    /// Whether its text in this language uses tensor cores ([`super::Caps::matrix_units`]) and
    /// compiles only for devices that have them.
    pub fn needs_matrix_units(&self, language: Language) -> bool {
        match language {
            Language::OpenCl => self.cl.contains("#include \"common/mma\""),
            Language::Wgsl => self.wgsl.contains("enable wgpu_cooperative_matrix;"),
        }
    }

    /// Whether it multiplies 8-bit values as [`super::PackedDot`] selects.
    pub fn multiplies_bytes(&self) -> bool {
        self.wgsl.contains("#include \"common/dot\"")
    }

    /// Whether its work-items are numbered along one axis and surplus ones do nothing. A long grid
    /// may then be folded over two axes with the define [`FOLDED`].
    pub fn is_linear(&self) -> bool {
        self.wgsl.contains(LINEAR)
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

/// Makes OpenCL C source run from any work-group on: the driver's function counts from the first
/// one queued.
pub fn in_parts(text: &str) -> String {
    format!("#define get_group_id(d) (get_group_id(d) + get_global_offset(d) / get_local_size(d))\n{text}")
}

/// The grid axes along which OpenCL C source can run in parts, because it does not query their
/// number of work-groups.
pub fn free_axes(text: &str) -> [bool; 3] {
    let asks = |axis: usize| text.contains(&format!("get_num_groups({axis})"));
    [0, 1, 2].map(|axis| !text.contains("get_global_size(") && !asks(axis))
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
    let own = kernel.params.fields.iter().copied();
    own.chain(epilogue.into_iter().flat_map(Epilogue::fields))
}

impl KernelSpec {
    /// Whether it multiplies halves without tensor cores, which takes weights in pairs.
    pub fn multiplies_halves(&self) -> bool {
        self.defines.contains_key("PAIRS")
    }

    /// Names of the variants and forms in this spec that some devices cannot run: first those for
    /// subgroups and images, then the kernel itself if it is a variant, else its forms.
    pub fn variants(&self) -> Vec<String> {
        let mut all: Vec<String> = self.outer_forms().collect();
        if self.kernel.variant.is_some() {
            all.push(self.kernel.name.to_owned());
            return all;
        }
        let forms = self.kernel.forms.iter();
        let active = forms.filter(|f| f.define != WAVE && self.defines.contains_key(f.define));
        all.extend(active.map(|f| form_name(self.kernel, f.define)));
        all
    }

    /// The first of [`KernelSpec::variants`]: forms that change only attributes and accessors. The
    /// subgroup form comes first because few kernels of a device request one, while many read
    /// images.
    pub fn outer_forms(&self) -> impl Iterator<Item = String> + use<> {
        let images = (!self.images.is_empty()).then(|| image_form(self.kernel));
        let wave = self.wave().map(|_| form_name(self.kernel, WAVE));
        wave.into_iter().chain(images)
    }

    /// The subgroup width that it requests in OpenCL C.
    pub fn wave(&self) -> Option<Wave> {
        let number = self.defines.get(WAVE).and_then(|n| u32::try_from(*n).ok());
        number.and_then(Wave::of)
    }

    /// Its operands; those of the epilogue come last.
    pub fn args(&self) -> impl Iterator<Item = &'static Arg> + '_ {
        args(self.kernel, self.epilogue.as_ref())
    }

    /// The fields of its parameter struct, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, FieldTy)> + '_ {
        fields(self.kernel, self.epilogue.as_ref())
    }

    /// The operand whose binding the result shares.
    pub fn shared(&self) -> Option<&'static Arg> {
        self.in_place.and_then(|i| self.args().nth(i))
    }

    /// Operands with a view of their own, in binding order, with their data types.
    pub fn bound(&self) -> impl Iterator<Item = (&'static Arg, DType)> + '_ {
        self.args().zip(&self.operands).filter_map(|(arg, dtype)| {
            let shared = self.in_place.is_some() && arg.role == Role::Out;
            dtype.filter(|_| !shared).map(|d| (arg, d))
        })
    }

    /// The image through which each of [`KernelSpec::bound`] is read.
    pub fn bound_images(&self) -> impl Iterator<Item = Option<(ImageKind, Pixel)>> + '_ {
        self.bound().map(|(arg, dtype)| {
            let index = self.kernel.args.iter().position(|a| a.name == arg.name)?;
            Some((*self.images.get(&index)?, Pixel::of(arg.ty, dtype)?))
        })
    }

    /// Whether its WGSL source uses subgroups. Devices with cooperative matrices or
    /// [`super::Caps::lane_broadcast`] have them.
    pub fn needs_sub_groups(&self) -> bool {
        self.expand(Language::Wgsl)
            .is_ok_and(|text| text.contains("subgroup"))
    }

    /// Whether WGSL binds this operand as vectors of four elements.
    pub fn is_by_fours(&self, arg: &Arg) -> bool {
        let named = |i: &usize| self.kernel.args.get(*i).is_some_and(|a| a.name == arg.name);
        self.fours.iter().any(named)
    }

    /// The same kernel reading all operands from their buffers.
    #[must_use]
    pub fn without_images(&self) -> Self {
        Self {
            images: BTreeMap::new(),
            ..self.clone()
        }
    }

    /// Size of the parameter struct in bytes.
    pub fn params_bytes(&self) -> u32 {
        u32::try_from(self.fields().count() * 4).unwrap_or(u32::MAX)
    }

    /// Expands the source for the compiler.
    pub fn expand(&self, language: Language) -> Result<String, ExpandError> {
        self.expand_as(language, None)
    }

    /// The OpenCL C source as a function of this name that does the work of one work-group, to be
    /// placed after [`HALF`]. `group_at` is its position in the grid ([`super::persistent`]).
    #[cfg(feature = "opencl")]
    pub(super) fn expand_stage(&self, name: &str) -> Result<String, ExpandError> {
        self.expand_as(Language::OpenCl, Some(name))
    }

    fn expand_as(&self, language: Language, stage: Option<&str>) -> Result<String, ExpandError> {
        let error = |why: String| ExpandError {
            kernel: self.kernel.name,
            why,
        };
        let declared = self.args().count();
        if self.operands.len() != declared {
            return Err(error(format!(
                "{declared} operands declared, {} data types given",
                self.operands.len()
            )));
        }
        let mut names: Vec<String> = self.defines.keys().map(|k| (*k).to_owned()).collect();
        for (arg, dtype) in self.args().zip(&self.operands) {
            match (dtype, arg.role.is_optional()) {
                (Some(_), true) => names.push(format!("HAS_{}", arg.name.to_uppercase())),
                (None, true) | (Some(_), false) => {}
                (None, false) => return Err(error(format!("operand `{}` is missing", arg.name))),
            }
        }
        if self.in_place.is_some() {
            names.push("IN_PLACE".to_owned());
        }
        if language == Language::OpenCl {
            for (i, kind) in &self.images {
                let arg = self.kernel.args.get(*i);
                let dtype = self.operands.get(*i).copied().flatten();
                let pixel = arg.zip(dtype).and_then(|(a, d)| Pixel::of(a.ty, d));
                let reads = arg.is_some_and(|a| !a.role.writes());
                match (arg, pixel) {
                    (Some(arg), Some(_)) if reads && self.in_place != Some(*i) => {
                        names.push(format!("IMAGE_{}", arg.name.to_uppercase()));
                    }
                    _ => return Err(error(format!("operand {i} cannot be read through {kind}"))),
                }
            }
        }
        let mut out = match language {
            Language::OpenCl => self.prelude_cl(&names, stage),
            Language::Wgsl => self.prelude_wgsl(),
        };
        let text = match language {
            Language::OpenCl => self.kernel.cl,
            Language::Wgsl => self.kernel.wgsl,
        };
        if let Some(epilogue) = &self.epilogue {
            let result = self
                .result()
                .ok_or_else(|| error("the kernel has no result to apply the epilogue to".to_owned()))?;
            let types: Vec<DType> = self
                .operands
                .iter()
                .skip(self.kernel.args.len())
                .flatten()
                .copied()
                .collect();
            let (y, single) = (result.name, result.ty == Ty::Single);
            out.push_str(&match language {
                Language::OpenCl => {
                    epilogue.function.cl.clone() + &epilogue.accessors_cl(y, &types, self.elem_cl())
                }
                Language::Wgsl => {
                    epilogue.function.wgsl.clone() + &epilogue.accessors_wgsl(y, self.elem_wgsl(), single)
                }
            });
        }
        let mut body = String::new();
        preprocess(text, language, &names, 0, &mut body).map_err(error)?;
        if language == Language::Wgsl {
            // WGSL extensions must come first.
            let (enabled, rest): (Vec<_>, Vec<_>) = body.lines().partition(|l| l.starts_with("enable "));
            out.insert_str(0, &lines(&enabled));
            body = lines(&rest);
        }
        out.push_str(&body);
        if language == Language::Wgsl && self.defines.contains_key(FOLDED) {
            out = out.replace(LINEAR, FOLDED_ENTRY);
        }
        Ok(out)
    }

    /// The result that is written through accessors.
    fn result(&self) -> Option<&'static Arg> {
        let mut results = self.kernel.args.iter();
        results.find(|a| a.ty.has_accessors() && a.role.writes())
    }

    fn elem_cl(&self) -> &'static str {
        if self.elem_is_float() { "float" } else { "int" }
    }

    fn elem_wgsl(&self) -> &'static str {
        if self.elem_is_float() { "f32" } else { "i32" }
    }

    /// Name of the storing accessors: those that the kernel calls, or the raw ones below an
    /// epilogue.
    fn store(&self) -> &'static str {
        if self.epilogue.is_some() { "raw" } else { "put" }
    }

    /// The operands as OpenCL C declares them; `restrict` qualifies operands that do not alias.
    pub(super) fn signature_cl(&self, restrict: &str) -> Vec<String> {
        let mut signature = Vec::new();
        for ((arg, dtype), image) in self.bound().zip(self.bound_images()) {
            if let Some((kind, _)) = image {
                signature.push(format!("read_only {kind} {}", arg.name));
                continue;
            }
            let base = match (arg.ty, dtype) {
                (Ty::Words, _) => "uint",
                (Ty::Words4, _) => "uint4",
                (Ty::Halves4, _) => "uint2",
                (_, DType::F16) => "half",
                (_, DType::F32) => "float",
                (_, _) => "int",
            };
            let shared = self.shared().is_some_and(|a| a.name == arg.name);
            let writes = arg.role.writes() || shared;
            let constant = if writes { "" } else { "const " };
            signature.push(format!("__global {constant}{base} *{restrict}{}", arg.name));
        }
        signature
    }

    fn prelude_cl(&self, names: &[String], stage: Option<&str>) -> String {
        let mut s = String::new();
        let wave = self.wave().filter(|_| stage.is_none());
        s.push_str(wave.map_or("", Wave::pragma));
        let _ = writeln!(s, "#define WG {}", self.workgroup);
        s.push_str(CAT);
        let _ = writeln!(s, "#define MASK_MIN ({MASK_MIN:.1}f)");
        for (k, v) in &self.defines {
            let _ = writeln!(s, "#define {k} {v}");
        }
        if self.defines.contains_key(FOLDED) {
            s.push_str(
                "#define get_global_id(axis) (get_global_id(0) + get_global_id(1) * get_global_size(0))\n",
            );
        }
        for n in names.iter().filter(|n| !self.defines.contains_key(n.as_str())) {
            let _ = writeln!(s, "#define {n}");
        }
        let elem = self.elem_cl();
        let _ = writeln!(
            s,
            "#define ELEM {elem}\n#define ELEM2 {elem}2\n#define ELEM4 {elem}4\n#define LEAST {}",
            if elem == "float" {
                "(-3.4028235e38f)"
            } else {
                "(-2147483647 - 1)"
            }
        );
        s.push_str("typedef struct {");
        for (name, ty) in self.fields() {
            let ty = match ty {
                FieldTy::U32 => "uint",
                FieldTy::I32 => "int",
                FieldTy::F32 => "float",
            };
            let _ = write!(s, " {ty} {name};");
        }
        s.push_str(" } Params;\n");
        if stage.is_none() && self.bound().any(|(a, d)| a.ty.has_accessors() && d == DType::F16) {
            s.push_str(HALF);
        }
        let mut by_image = Vec::new();
        for ((arg, _), image) in self.bound().zip(self.bound_images()) {
            let Some((kind, pixel)) = image else { continue };
            let n = arg.name;
            by_image.push(n);
            let read = if pixel == Pixel::Words {
                "read_imageui"
            } else {
                "read_imagef"
            };
            let place = match kind {
                ImageKind::Image1dBuffer => "(int)(i)".to_owned(),
                ImageKind::Image2d => {
                    format!("(int2)((uint)(i) % {ROW_PIXELS}u, (uint)(i) / {ROW_PIXELS}u)")
                }
            };
            let _ = writeln!(s, "#define {n}_at4(i) {read}({n}, {place})");
        }
        let put = self.store();
        for (arg, dtype) in self.args().zip(&self.operands) {
            let Some(dtype) = dtype.filter(|_| arg.ty.has_accessors() && !by_image.contains(&arg.name))
            else {
                continue;
            };
            let n = arg.name;
            let m = self.storage_of(arg);
            // Views are aligned for vector access. `vload` and `vstore` do not assume that, and GPU
            // compilers then move single elements.
            let t = if dtype.is_float() { "float" } else { "int" };
            if arg.role.writes() {
                let _ = match dtype {
                    DType::F16 => writeln!(
                        s,
                        "#define {n}_{put}2(i, v) half_store_pair(v, (size_t)(i), {m})\n#define {n}_{put}4(i, v) half_store_four(v, (size_t)(i), {m})"
                    ),
                    _ => writeln!(
                        s,
                        "#define {n}_{put}2(i, v) (((__global {t}2 *){m})[i] = (v))\n#define {n}_{put}4(i, v) (((__global {t}4 *){m})[i] = (v))"
                    ),
                };
            }
            if arg.role.writes() {
                let _ = match dtype {
                    DType::F16 => writeln!(
                        s,
                        "#define {n}_{put}(i, v) half_store(v, (size_t)(i), {m})\n#define {n}_{put}_run(n, i, v) CAT(half_store, n)(v, 0, {m} + (i))"
                    ),
                    _ => writeln!(
                        s,
                        "#define {n}_{put}(i, v) ({m}[i] = (v))\n#define {n}_{put}_run(n, i, v) CAT(vstore, n)(v, 0, {m} + (i))"
                    ),
                };
            }
            if arg.role.reads() && arg.ty == Ty::Elem {
                let _ = match dtype {
                    DType::F16 => writeln!(s, "#define {n}_run(n, i) CAT(half_load, n)(0, {m} + (i))"),
                    _ => writeln!(s, "#define {n}_run(n, i) CAT(vload, n)(0, {m} + (i))"),
                };
                let _ = match dtype {
                    DType::F16 => writeln!(
                        s,
                        "#define {n}_at(i) half_load((size_t)(i), {m})\n#define {n}_at2(i) half_load_pair((size_t)(i), {m})\n#define {n}_at4(i) half_load_four((size_t)(i), {m})"
                    ),
                    _ => writeln!(
                        s,
                        "#define {n}_at(i) ({m}[i])\n#define {n}_at2(i) (((const __global {t}2 *){m})[i])\n#define {n}_at4(i) (((const __global {t}4 *){m})[i])"
                    ),
                };
            }
        }
        let mut signature = self.signature_cl("restrict ");
        signature.push("const Params p".to_owned());
        let signature = signature.join(", ");
        let wave = wave.map_or_else(String::new, Wave::attribute);
        let _ = match stage {
            None => writeln!(
                s,
                "#define KERNEL __kernel {wave}__attribute__((reqd_work_group_size(WG, 1, 1))) void {}({signature})",
                self.kernel.name
            ),
            Some(name) => writeln!(
                s,
                "#define KERNEL static void {name}({signature}, const uint4 group_at)"
            ),
        };
        s
    }

    /// Whether the result's (or first element operand's) accessors work in floats.
    fn elem_is_float(&self) -> bool {
        let args = self.kernel.args.iter().zip(&self.operands);
        let elems = || args.clone().filter(|(a, _)| a.ty.has_accessors());
        let result = elems().find(|(a, _)| a.role.writes());
        let elem = result.or_else(|| elems().find(|(_, d)| d.is_some()));
        elem.and_then(|(_, d)| *d).is_none_or(DType::is_float)
    }

    /// Name of the variable that holds `arg`'s bytes.
    fn storage_of(&self, arg: &'static Arg) -> &'static str {
        match self.shared() {
            Some(shared) if arg.role == Role::Out => shared.name,
            _ => arg.name,
        }
    }

    fn prelude_wgsl(&self) -> String {
        let mut s = String::new();
        let _ = writeln!(s, "const WG: u32 = {}u;", self.workgroup);
        let _ = writeln!(s, "const MASK_MIN: f32 = {MASK_MIN:.1};");
        for (k, v) in &self.defines {
            let _ = if *v < 0 {
                writeln!(s, "const {k}: i32 = {v};")
            } else {
                writeln!(s, "const {k}: u32 = {v}u;")
            };
        }
        let elem = self.elem_wgsl();
        let least = if elem == "f32" {
            "-3.4028235e38"
        } else {
            "-2147483647 - 1"
        };
        let _ = writeln!(s, "alias ELEM = {elem};\nconst LEAST: {elem} = {least};");
        s.push_str("struct Params {");
        for (name, ty) in self.fields() {
            let ty = match ty {
                FieldTy::U32 => "u32",
                FieldTy::I32 => "i32",
                FieldTy::F32 => "f32",
            };
            let _ = write!(s, " {name}: {ty},");
        }
        s.push_str(" }\n@group(0) @binding(0) var<uniform> p: Params;\n");
        for (i, (arg, dtype)) in self.bound().enumerate() {
            let ty = match (arg.ty, dtype) {
                (Ty::Elem, DType::F16) if self.is_by_fours(arg) => "vec2<u32>",
                (Ty::Elem, DType::F32) if self.is_by_fours(arg) => "vec4<f32>",
                (Ty::Elem, _) if self.is_by_fours(arg) => "vec4<i32>",
                (Ty::Words, _) | (Ty::Elem, DType::F16) => "u32",
                (Ty::Single, DType::F16) => "atomic<u32>",
                (Ty::Words4, _) => "vec4<u32>",
                (Ty::Halves4, _) => "vec4<f16>",
                (_, DType::F32) => "f32",
                (_, _) => "i32",
            };
            let access = if arg.role.is_weight() {
                "read"
            } else {
                "read_write"
            };
            let _ = writeln!(
                s,
                "@group(0) @binding({}) var<storage, {access}> {}: array<{ty}>;",
                i + 1,
                arg.name
            );
        }
        let put = self.store();
        for (arg, dtype) in self.args().zip(&self.operands) {
            let Some(dtype) = dtype.filter(|_| arg.ty.has_accessors()) else {
                continue;
            };
            let n = arg.name;
            let m = self.storage_of(arg);
            let t = if dtype.is_float() { "f32" } else { "i32" };
            if self.is_by_fours(arg) {
                let _ = match dtype {
                    DType::F16 => writeln!(
                        s,
                        "fn {n}_at4(i: u32) -> vec4<f32> {{ let v = {m}[i]; return vec4<f32>(unpack2x16float(v.x), unpack2x16float(v.y)); }}"
                    ),
                    _ => writeln!(s, "fn {n}_at4(i: u32) -> vec4<{t}> {{ return {m}[i]; }}"),
                };
                continue;
            }
            if arg.ty == Ty::Single && dtype == DType::F16 {
                let _ = writeln!(
                    s,
                    "fn {n}_{put}2(i: u32, v: vec2<f32>) {{ atomicStore(&{m}[i], pack2x16float(v)); }}\nfn {n}_{put}4(i: u32, v: vec4<f32>) {{ {n}_{put}2(2u * i, v.xy); {n}_{put}2(2u * i + 1u, v.zw); }}"
                );
                let _ = writeln!(
                    s,
                    "fn {n}_{put}(i: u32, v: f32) {{ let s = (i & 1u) * 16u; atomicAnd(&{m}[i >> 1u], 0xFFFF0000u >> s); atomicOr(&{m}[i >> 1u], pack2x16float(vec2<f32>(v, 0.0)) << s); }}"
                );
                continue;
            }
            if arg.ty == Ty::Single {
                let _ = writeln!(s, "fn {n}_{put}(i: u32, v: {t}) {{ {m}[i] = v; }}");
            }
            if arg.role.writes() {
                if dtype == DType::F16 {
                    let _ = writeln!(
                        s,
                        "fn {n}_{put}2(i: u32, v: vec2<f32>) {{ {m}[i] = pack2x16float(v); }}\nfn {n}_{put}4(i: u32, v: vec4<f32>) {{ {m}[2u * i] = pack2x16float(v.xy); {m}[2u * i + 1u] = pack2x16float(v.zw); }}"
                    );
                } else {
                    let _ = writeln!(
                        s,
                        "fn {n}_{put}2(i: u32, v: vec2<{t}>) {{ {m}[2u * i] = v.x; {m}[2u * i + 1u] = v.y; }}\nfn {n}_{put}4(i: u32, v: vec4<{t}>) {{ {m}[4u * i] = v.x; {m}[4u * i + 1u] = v.y; {m}[4u * i + 2u] = v.z; {m}[4u * i + 3u] = v.w; }}"
                    );
                }
            }
            if arg.role.reads() && arg.ty == Ty::Elem {
                if dtype == DType::F16 {
                    let _ = writeln!(
                        s,
                        "fn {n}_at(i: u32) -> f32 {{ let v = unpack2x16float({m}[i >> 1u]); return select(v.x, v.y, (i & 1u) == 1u); }}\nfn {n}_at2(i: u32) -> vec2<f32> {{ return unpack2x16float({m}[i]); }}\nfn {n}_at4(i: u32) -> vec4<f32> {{ return vec4<f32>(unpack2x16float({m}[2u * i]), unpack2x16float({m}[2u * i + 1u])); }}"
                    );
                } else {
                    let _ = writeln!(
                        s,
                        "fn {n}_at(i: u32) -> {t} {{ return {m}[i]; }}\nfn {n}_at2(i: u32) -> vec2<{t}> {{ return vec2<{t}>({m}[2u * i], {m}[2u * i + 1u]); }}\nfn {n}_at4(i: u32) -> vec4<{t}> {{ return vec4<{t}>({m}[4u * i], {m}[4u * i + 1u], {m}[4u * i + 2u], {m}[4u * i + 3u]); }}"
                    );
                }
            }
        }
        s
    }
}

/// Joins lines into a text.
fn lines(lines: &[&str]) -> String {
    lines.iter().flat_map(|l| [l, "\n"]).collect()
}

/// The shared files that a text includes, directly or indirectly, whatever the conditions, in the
/// order of [`COMMON`].
fn included(text: &str, language: Language) -> Vec<&'static str> {
    let (mut found, mut left) = (BTreeSet::new(), vec![text]);
    while let Some(text) = left.pop() {
        for line in text.lines().filter(|l| l.trim_start().starts_with("#include")) {
            let all = COMMON.iter().enumerate();
            let file = all.filter(|(_, (name, ..))| line.contains(&format!("\"common/{name}\"")));
            for (i, (_, cl, wgsl)) in file {
                if found.insert(i) {
                    left.push(if language == Language::OpenCl { cl } else { wgsl });
                }
            }
        }
    }
    let files = found.into_iter().filter_map(|i| COMMON.get(i));
    let texts = files.map(|(_, cl, wgsl)| if language == Language::OpenCl { *cl } else { *wgsl });
    texts.collect()
}

fn preprocess(
    text: &str,
    language: Language,
    names: &[String],
    depth: usize,
    out: &mut String,
) -> Result<(), String> {
    if depth > 4 {
        return Err("#include nested more than 4 deep".to_owned());
    }
    // For each open conditional: whether the branch is taken, and whether `#else` has been seen.
    let mut open: Vec<(bool, bool)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let at = |why: &str| format!("line {}: {why}: {line}", number + 1);
        let live = open.iter().all(|(taken, _)| *taken);
        let mut words = line.split_whitespace();
        match words.next() {
            Some(directive @ ("#ifdef" | "#ifndef")) => {
                let name = words.next().ok_or_else(|| at("name missing"))?;
                open.push((names.iter().any(|n| n == name) == (directive == "#ifdef"), false));
            }
            Some("#else") => {
                let (taken, seen) = open.last_mut().ok_or_else(|| at("no open conditional"))?;
                if *seen {
                    return Err(at("second #else"));
                }
                (*taken, *seen) = (!*taken, true);
            }
            Some("#endif") => {
                open.pop().ok_or_else(|| at("no open conditional"))?;
            }
            Some("#include") if live => {
                let name = words
                    .next()
                    .and_then(|w| w.trim_matches('"').strip_prefix("common/"))
                    .ok_or_else(|| at("expected \"common/<file>\""))?;
                let (_, cl, wgsl) = COMMON
                    .iter()
                    .find(|(n, _, _)| *n == name)
                    .ok_or_else(|| at("no such file"))?;
                let text = if language == Language::OpenCl { cl } else { wgsl };
                preprocess(text, language, names, depth + 1, out)?;
            }
            _ if live => {
                out.push_str(line);
                out.push('\n');
            }
            _ => {}
        }
    }
    if open.is_empty() {
        Ok(())
    } else {
        Err("a conditional is not closed by #endif".to_owned())
    }
}

/// The lines of `source` around line `line` (1-based) with line numbers; its start if `line` is
/// `None`.
pub fn excerpt(source: &str, line: Option<usize>) -> String {
    let first = line.map_or(1, |l| l.saturating_sub(4).max(1));
    let mut s = String::new();
    for (n, text) in source
        .lines()
        .enumerate()
        .skip(first - 1)
        .take(if line.is_some() { 9 } else { 60 })
    {
        let mark = if Some(n + 1) == line { '>' } else { ' ' };
        let _ = writeln!(s, "{mark}{:4} | {text}", n + 1);
    }
    s
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_carries;

    #[test]
    fn conditionals_nest_and_mistakes_are_named() {
        let run = |text: &str, names: &[&str]| {
            let mut out = String::new();
            let names: Vec<String> = names.iter().map(|s| (*s).to_owned()).collect();
            preprocess(text, Language::Wgsl, &names, 0, &mut out).map(|()| out)
        };
        let text = "#ifdef A\n1\n#ifdef B\n2\n#else\n3\n#endif\n#else\n4\n#endif";
        assert_eq!(run(text, &["A"]).unwrap(), "1\n3\n");
        assert_eq!(run(text, &["A", "B"]).unwrap(), "1\n2\n");
        assert_eq!(run(text, &["B"]).unwrap(), "4\n");
        assert_carries(run("#endif", &[]).unwrap_err(), &["1"]);
        assert!(run("#ifdef A", &[]).is_err());
        assert_carries(
            run("#include \"common/none\"", &[]).unwrap_err(),
            &["common/none"],
        );
    }
}
