//! A kernel with everything that its compilation depends on, and the expansion of its source.

use super::epilogue::{Epilogue, Function};
use super::image::{ImageKind, Pixel};
use super::preprocess::preprocess;
use super::subgroup_size::{self, SubgroupSize};
use super::{
    Arg, Feature, Features, FieldTy, Form, Kernel, Language, Role, args, fields, form_name, image_form,
};
use crate::tensor::DType;
use std::collections::BTreeMap;
use std::fmt;

/// A kernel with everything that its compilation depends on.
#[derive(Clone, Debug)]
pub struct KernelSpec {
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
        f.write_str(">")
    }
}

/// A kernel's source cannot be expanded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kernel {kernel}: {reason}")]
pub struct ExpandError {
    pub kernel: &'static str,
    pub reason: ExpandReason,
}

/// Why a kernel's source cannot be expanded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpandReason {
    /// The kernel lacks this language.
    #[error("it has no source in {0}")]
    NoSource(Language),
    /// A mistake in the source or its spec.
    #[error("{0}")]
    Mistake(String),
}

/// The type that accessors take and return, whatever the storage type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Elem {
    Float,
    Int,
    Long,
}

impl Elem {
    /// The type for an operand of type `dtype`.
    pub fn of(dtype: DType) -> Self {
        match dtype {
            DType::I64 => Self::Long,
            t if t.is_float() => Self::Float,
            _ => Self::Int,
        }
    }

    /// Name of the type in OpenCL C.
    pub fn cl(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Int => "int",
            Self::Long => "long",
        }
    }

    /// Name of the type in WGSL.
    pub fn wgsl(self) -> &'static str {
        match self {
            Self::Float => "f32",
            Self::Int => "i32",
            Self::Long => "i64",
        }
    }
}

impl KernelSpec {
    /// The forms of its kernel that its defines select.
    fn forms(&self) -> impl Iterator<Item = &'static Form> + '_ {
        let forms = self.kernel.forms.iter();
        forms.filter(|f| self.defines.contains_key(f.define))
    }

    /// Whether its source in this language uses a feature of the device.
    pub fn uses(&self, language: Language, feature: Feature) -> bool {
        let features = |f: &Features| f.of(language).contains(&feature);
        features(&self.kernel.features) || self.forms().any(|f| features(&f.features))
    }

    /// Whether it multiplies halves without tensor cores in some language.
    pub fn multiplies_halves(&self) -> bool {
        let uses = |language| self.uses(language, Feature::F16) && !self.uses(language, Feature::TensorCores);
        Language::ALL.into_iter().any(uses)
    }

    /// Names of the variants and forms in this spec that some devices cannot run: first those for
    /// subgroups and images, then the kernel itself if it is a variant, else its forms.
    pub fn variants(&self) -> Vec<String> {
        let mut all: Vec<String> = self.outer_forms().collect();
        if self.kernel.variant.is_some() {
            all.push(self.kernel.name.to_owned());
            return all;
        }
        let active = self.forms().filter(|f| f.define != subgroup_size::DEFINE);
        all.extend(active.map(|f| form_name(self.kernel, f.define)));
        all
    }

    /// The first of [`KernelSpec::variants`]: forms that change only attributes and accessors. The
    /// subgroup form comes first because few kernels of a device request one, while many read
    /// images.
    pub fn outer_forms(&self) -> impl Iterator<Item = String> + use<> {
        let images = (!self.images.is_empty()).then(|| image_form(self.kernel));
        let subgroup = self
            .subgroup_size()
            .map(|_| form_name(self.kernel, subgroup_size::DEFINE));
        subgroup.into_iter().chain(images)
    }

    /// The subgroup size that it requests in OpenCL C.
    pub fn subgroup_size(&self) -> Option<SubgroupSize> {
        let number = self
            .defines
            .get(subgroup_size::DEFINE)
            .and_then(|n| u32::try_from(*n).ok());
        number.and_then(SubgroupSize::of)
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
        self.fields().map(|_| 4).sum()
    }

    /// Expands the source for the compiler.
    pub fn expand(&self, language: Language) -> Result<String, ExpandError> {
        let printer = language.printer();
        let failed = |reason| ExpandError {
            kernel: self.kernel.name,
            reason,
        };
        let error = |why: String| failed(ExpandReason::Mistake(why));
        let source = self.kernel.sources.of(language);
        let text = source.ok_or_else(|| failed(ExpandReason::NoSource(language)))?;
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
        names.extend(printer.flags(self).map_err(error)?);
        let mut generated = printer.prelude(self, &names);
        if let Some(epilogue) = &self.epilogue {
            let result = self
                .result()
                .ok_or_else(|| error("the kernel has no result to apply the epilogue to".to_owned()))?;
            let others = self.operands.iter().skip(self.kernel.args.len());
            let types: Vec<DType> = others.flatten().copied().collect();
            let Function::Source(function) = &epilogue.function else {
                return Err(error("its epilogue has no source".to_owned()));
            };
            generated += function.of(language);
            generated += &printer.epilogue(self, epilogue, result, &types);
        }
        let mut body = String::new();
        preprocess(text, language, &names, 0, &mut body).map_err(error)?;
        Ok(printer.join(self, generated, &body))
    }

    /// The result that is written through accessors.
    fn result(&self) -> Option<&'static Arg> {
        let mut results = self.kernel.args.iter();
        results.find(|a| a.ty.has_accessors() && a.role.writes())
    }

    /// Name of the storing accessors: those that the kernel calls, or the raw ones below an
    /// epilogue.
    pub(super) fn store(&self) -> &'static str {
        if self.epilogue.is_some() { "raw" } else { "put" }
    }

    /// The type that the accessors of the result (or of the first element operand) use.
    pub(super) fn elem(&self) -> Elem {
        let args = self.kernel.args.iter().zip(&self.operands);
        let elems = || args.clone().filter(|(a, _)| a.ty.has_accessors());
        let result = elems().find(|(a, _)| a.role.writes());
        let elem = result.or_else(|| elems().find(|(_, d)| d.is_some()));
        Elem::of(elem.and_then(|(_, d)| *d).unwrap_or(DType::F32))
    }

    /// Whether the kernel or its epilogue computes with 64-bit integers.
    pub fn is_wide(&self) -> bool {
        self.operands.contains(&Some(DType::I64)) || self.epilogue.as_ref().is_some_and(|e| e.wide)
    }

    /// Name of the variable that holds `arg`'s bytes.
    pub(super) fn storage_of(&self, arg: &'static Arg) -> &'static str {
        match self.shared() {
            Some(shared) if arg.role == Role::Out => shared.name,
            _ => arg.name,
        }
    }
}
