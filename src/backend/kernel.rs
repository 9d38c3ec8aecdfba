//! Kernels as data: descriptors, specialisation, and the expansion of both source languages.
//!
//! A kernel is a pair `cl/<name>.cl` and `shaders/<name>.wgsl` with one descriptor. The parameter struct, the
//! operand declarations and the accessors of both languages are generated from the descriptor, so the
//! two texts cannot disagree about them:
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
//! `at2(i)` reads elements `2i` and `2i + 1`, `at4(i)` reads `4i ..= 4i + 3`, in OpenCL C each in one access, as views are aligned to
//! 16 bytes. There is no store of one half: WGSL has no 16-bit store without an extension, so a work-item always owns an aligned pair;
//! or a [`Ty::Single`] result is stored one at a time, in WGSL halves by two atomic operations on the word that two of them share. A
//! tensor with an odd number of elements is followed by padding up to a multiple of 4 bytes.
//!
//! OpenCL C, which stores any part of a word, has besides `x_run(n, i)` and `y_put_run(n, i, v)`, the elements `i .. i + n` at any `i` as
//! a vector of 2, 4, 8 or 16, and `y_put` for every result. CPU compilers make nothing as good of single elements.
//!
//! In WGSL an operand may be [bound as vectors of four](KernelSpec::fours); it has `x_at4(i)` alone then.
//!
//! An operand that is [read through an image](KernelSpec::images) has `x_at4(i)` alone, in OpenCL C; of [`Ty::Words4`] it has none otherwise.
//! Its text sees the define `IMAGE_X`.
//!
//! `ELEM` (in OpenCL C also `ELEM2` and `ELEM4`) is the accessor type of the result, or without one of the first element
//! operand: a float or an `int`; `LEAST` is where its running maxima start.
//!
//! The preprocessor knows `#ifdef`, `#ifndef`, `#else`, `#endif` and `#include "common/<file>"`. Numeric
//! defines become `#define` and `const`; a define is also visible to `#ifdef`. An optional operand `b` that
//! is bound defines `HAS_B`; an output that shares the binding of input `x` defines `IN_PLACE`.

use super::Caps;
use super::epilogue::Epilogue;
use super::image::{ImageKind, Pixel, ROW_PIXELS};
use super::wave::{self, WAVE, Wave};
use crate::tensor::DType;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::fmt::{self, Write as _};

/// Options of compilers of OpenCL C. 1.2 is the common ground of phone drivers; math stays exact but for fused multiply-add.
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
    /// Read; arena, state or constant.
    In,
    /// Read; may be left out.
    OptionalIn,
    /// Read only, and its buffer is bound to nothing else in the dispatch.
    Weight,
    /// As [`Role::Weight`]; may be left out.
    OptionalWeight,
    /// Every element is written.
    Out,
    /// Partly written, and not read.
    Part,
    /// Read and partly written.
    InOut,
    /// Read and partly written; may be left out.
    OptionalInOut,
}

impl Role {
    /// The kernel writes there.
    pub fn writes(self) -> bool {
        matches!(self, Self::Out | Self::Part | Self::InOut | Self::OptionalInOut)
    }

    /// The kernel reads there.
    pub fn reads(self) -> bool {
        !matches!(self, Self::Out | Self::Part)
    }

    /// The kernel may read there what it has written.
    pub fn rereads(self) -> bool {
        matches!(self, Self::InOut | Self::OptionalInOut)
    }

    /// The operand may be left out.
    pub fn is_optional(self) -> bool {
        matches!(
            self,
            Self::OptionalIn | Self::OptionalWeight | Self::OptionalInOut
        )
    }

    /// Its buffer is bound read-only.
    pub fn is_weight(self) -> bool {
        matches!(self, Self::Weight | Self::OptionalWeight)
    }
}

/// How a kernel sees an operand's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ty {
    /// Elements of the operand's data type through accessors.
    Elem,
    /// A result that is stored one element at a time, or several. It is not read, and never takes the place of an operand.
    Single,
    /// 32-bit words.
    Words,
    /// Vectors of four 32-bit words.
    Words4,
    /// Vectors of four halves, for matrix units.
    Halves4,
}

impl Ty {
    /// Elements are read and written through accessors.
    pub fn has_accessors(self) -> bool {
        matches!(self, Self::Elem | Self::Single)
    }
}

/// One operand of a kernel.
#[derive(Debug)]
pub struct Arg {
    /// Name in the kernel text.
    pub name: &'static str,
    /// Use.
    pub role: Role,
    /// Form.
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
    /// Parameters, called `p` in the text.
    pub params: Params,
    /// Operands in order.
    pub args: &'static [Arg],
    /// What it needs of a device, and what takes its place elsewhere; `None` for a kernel that any device takes.
    pub variant: Option<Variant>,
    /// Defines that make it a variant of itself without them.
    pub forms: &'static [Form],
}

/// A define by which a kernel suits some devices, and without which it suits any. See [`Caps::takes_form`].
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// The define.
    pub define: &'static str,
    /// What it asks of a device, whatever the sizes.
    pub needs: fn(&Caps) -> bool,
}

/// What makes a kernel a choice of some devices. See [`Caps::takes`].
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// What computes the same on any device.
    pub twin: &'static Kernel,
    /// What it asks of a device, whatever the sizes.
    pub needs: fn(&Caps) -> bool,
}

/// Declares a kernel: `kernel!(softmax { rows: U32, cols: U32 } [x: In Elem, y: Out Elem])`. A missing file of the
/// pair is a compile error.
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

/// Generated text that a kernel calls: the function of an [`Epilogue`].
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
    /// Data type bound to each operand of the descriptor and then of the epilogue; `None` leaves an optional operand out.
    pub operands: Vec<Option<DType>>,
    /// Operand that the [`Role::Out`] operand shares its binding with; that operand has then no view of its own.
    pub in_place: Option<usize>,
    /// What is done to each result before it is stored.
    pub epilogue: Option<Epilogue>,
    /// Operands of the descriptor that OpenCL C reads through images, by their index. They are only read, and their accessors are `at4` alone.
    pub images: BTreeMap<usize, ImageKind>,
    /// Operands of the descriptor that WGSL binds as vectors of four elements, by their index. They are only read, and their accessors are `at4`
    /// alone.
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
    /// WGSL; texts that need an extension enable it.
    Wgsl,
}

impl Language {
    /// That of a device's kernels.
    pub fn of(caps: &Caps) -> Self {
        match caps.backend {
            "wgpu" => Self::Wgsl,
            _ => Self::OpenCl,
        }
    }
}

/// Why a kernel text cannot be expanded: a mistake in the text or its spec.
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

/// Matrix units in OpenCL C.
pub(super) const MMA: &str = include_str!("../../cl/common/mma.cl");

/// Names made of two in OpenCL C.
pub(super) const CAT: &str = "#define CAT_(a, b) a##b\n#define CAT(a, b) CAT_(a, b)\n";

/// Packed dot products in OpenCL C.
pub(super) const DOT: &str = include_str!("../../cl/common/dot.cl");

/// Loads and stores of halves in OpenCL C, behind the accessors.
pub(super) const HALF: &str = include_str!("../../cl/common/half.cl");

/// A finite value that behaves like minus infinity in a softmax and fits binary16.
pub const MASK_MIN: f32 = -65504.0;

/// The entry of a WGSL text whose work-items are numbered along one axis.
const LINEAR: &str = "(@builtin(global_invocation_id) id: vec3<u32>) {";
/// The same where a grid that is too long for one axis is folded over two.
const FOLDED_ENTRY: &str =
    "(@builtin(global_invocation_id) folded: vec3<u32>, @builtin(num_workgroups) folds: vec3<u32>) {
  let id = vec3<u32>(folded.x + folded.y * folds.x * WG, 0u, 0u);";
/// The define that folds a grid.
pub const FOLDED: &str = "FOLDED";

impl Kernel {
    /// The same as a variant of `twin`, for devices that have what it `needs`.
    #[must_use]
    pub const fn variant_of(mut self, twin: &'static Kernel, needs: fn(&Caps) -> bool) -> Self {
        self.variant = Some(Variant { twin, needs });
        self
    }

    /// The same with forms for devices that have what they need.
    #[must_use]
    pub const fn with_forms(mut self, forms: &'static [Form]) -> Self {
        self.forms = forms;
        self
    }

    /// Checksum of all that its programs are made of in both languages: its texts and those that they include, the accessors that are generated
    /// for its operands, and the compiler's options.
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

    /// Specs that have all accessors: of each type of elements, by images of each kind, and by fours; and what asks for waves.
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

    /// It has the form that asks for a wave.
    fn may_ask_for_waves(&self) -> bool {
        self.forms.iter().any(|f| f.define == WAVE)
    }

    /// Its text in this language works on matrix units ([`super::Caps::matrix_units`]), and compiles only for devices that have them.
    pub fn needs_matrix_units(&self, language: Language) -> bool {
        match language {
            Language::OpenCl => self.cl.contains("#include \"common/mma\""),
            Language::Wgsl => self.wgsl.contains("enable wgpu_cooperative_matrix;"),
        }
    }

    /// It multiplies bytes, by what [`super::PackedDot`] says.
    pub fn multiplies_bytes(&self) -> bool {
        self.wgsl.contains("#include \"common/dot\"")
    }

    /// Its work-items are numbered along one axis, and those behind the last one that is needed do nothing: a long grid may be folded
    /// over two axes, with the define [`FOLDED`].
    pub fn is_linear(&self) -> bool {
        self.wgsl.contains(LINEAR)
    }
}

/// What the form of a kernel is called that reads operands through images; without them it is its own twin.
const IMAGES: &str = "images";

/// The name of the form of a kernel that reads operands through images, as [`KernelSpec::variants`] gives it.
pub fn image_form(kernel: &Kernel) -> String {
    form_name(kernel, IMAGES)
}

/// The name of a form of a kernel, as [`KernelSpec::variants`] gives it.
pub fn form_name(kernel: &Kernel, define: &str) -> String {
    format!("{} {define}", kernel.name)
}

/// A text in OpenCL C such that it runs from any work-group on: the driver's function counts from the first that is queued.
pub fn in_parts(text: &str) -> String {
    format!("#define get_group_id(d) (get_group_id(d) + get_global_offset(d) / get_local_size(d))\n{text}")
}

/// The axes of a grid of whose number of work-groups a text in OpenCL C does not ask: along these it can run in parts.
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
    /// It multiplies in halves, on no matrix units: weights are taken in pairs of them.
    pub fn multiplies_halves(&self) -> bool {
        self.defines.contains_key("PAIRS")
    }

    /// Names of what some devices do without: that it asks for a wave and that it reads images, which come first, and the kernel, if it is a
    /// variant, or its forms.
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

    /// The first of [`KernelSpec::variants`]: forms that are made of the same text, by its attributes and accessors. The wave comes first, as few
    /// kernels of a device ask for one, and many read images.
    pub fn outer_forms(&self) -> impl Iterator<Item = String> + use<> {
        let images = (!self.images.is_empty()).then(|| image_form(self.kernel));
        let wave = self.wave().map(|_| form_name(self.kernel, WAVE));
        wave.into_iter().chain(images)
    }

    /// The wave that it asks for in OpenCL C.
    pub fn wave(&self) -> Option<Wave> {
        let number = self.defines.get(WAVE).and_then(|n| u32::try_from(*n).ok());
        number.and_then(Wave::of)
    }

    /// Its operands, those of the epilogue last.
    pub fn args(&self) -> impl Iterator<Item = &'static Arg> + '_ {
        args(self.kernel, self.epilogue.as_ref())
    }

    /// The fields of its parameter struct, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, FieldTy)> + '_ {
        fields(self.kernel, self.epilogue.as_ref())
    }

    /// The operand whose place the result takes.
    pub fn shared(&self) -> Option<&'static Arg> {
        self.in_place.and_then(|i| self.args().nth(i))
    }

    /// Operands that have a view of their own, in binding order, with their data types.
    pub fn bound(&self) -> impl Iterator<Item = (&'static Arg, DType)> + '_ {
        self.args().zip(&self.operands).filter_map(|(arg, dtype)| {
            let shared = self.in_place.is_some() && arg.role == Role::Out;
            dtype.filter(|_| !shared).map(|d| (arg, d))
        })
    }

    /// The image that each of [`KernelSpec::bound`] is read through.
    pub fn bound_images(&self) -> impl Iterator<Item = Option<(ImageKind, Pixel)>> + '_ {
        self.bound().map(|(arg, dtype)| {
            let index = self.kernel.args.iter().position(|a| a.name == arg.name)?;
            Some((*self.images.get(&index)?, Pixel::of(arg.ty, dtype)?))
        })
    }

    /// Its text in WGSL works on sub-groups, which devices with matrix units have, and those with [`super::Caps::lane_broadcast`].
    pub fn needs_sub_groups(&self) -> bool {
        self.expand(Language::Wgsl)
            .is_ok_and(|text| text.contains("subgroup"))
    }

    /// WGSL binds this operand as vectors of four elements.
    pub fn is_by_fours(&self, arg: &Arg) -> bool {
        let named = |i: &usize| self.kernel.args.get(*i).is_some_and(|a| a.name == arg.name);
        self.fours.iter().any(named)
    }

    /// The same kernel, all operands of which are read from their buffers.
    #[must_use]
    pub fn without_images(&self) -> Self {
        Self {
            images: BTreeMap::new(),
            ..self.clone()
        }
    }

    /// Bytes of the parameter struct.
    pub fn params_bytes(&self) -> u32 {
        u32::try_from(self.fields().count() * 4).unwrap_or(u32::MAX)
    }

    /// The whole text to give to the compiler.
    pub fn expand(&self, language: Language) -> Result<String, ExpandError> {
        self.expand_as(language, None)
    }

    /// The text in OpenCL C as a function of this name behind [`HALF`], which does what a work-group does: `group_at` is its place in the grid
    /// ([`super::persistent`]).
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
                .ok_or_else(|| error("no result for an epilogue".to_owned()))?;
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
            // Extensions stand before all else.
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

    /// How the accessors that store are called: those that a kernel calls, or where these apply an epilogue those under them.
    fn store(&self) -> &'static str {
        if self.epilogue.is_some() { "raw" } else { "put" }
    }

    /// The operands as OpenCL C declares them, with `restrict` where each is said to be apart from the others.
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
            // Views begin where a vector may; `vload` and `vstore` would not assume so, and compilers of GPUs then move single elements.
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

    /// True when the accessors of the first element operand work in floats.
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

/// Lines as a text.
fn lines(lines: &[&str]) -> String {
    lines.iter().flat_map(|l| [l, "\n"]).collect()
}

/// The shared files that a text includes, and those that these do, whatever the conditions, in the order of their names.
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
    // For each open conditional: the branch is taken, and `#else` has been seen.
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
        Err("a conditional is not closed".to_owned())
    }
}

/// `source` around line `line` (1-based) with line numbers, or its start when the line is unknown.
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
