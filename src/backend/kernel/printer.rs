//! What generates the text around a kernel's own source, for each language.

use super::epilogue::Epilogue;
use super::{Arg, KernelSpec, Language};
use crate::tensor::DType;
use std::ffi::CStr;

/// Prints the generated parts of sources in one language.
pub(super) trait Printer {
    /// Options of the compiler; they are part of what a source means.
    fn options(&self) -> &'static CStr {
        c""
    }

    /// Flags for the preprocessor besides those of all languages; the error says what is wrong with
    /// `spec`.
    fn flags(&self, _spec: &KernelSpec) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }

    /// Constants, parameter struct, operands and accessors.
    fn prelude(&self, spec: &KernelSpec, flags: &[String]) -> String;

    /// The accessors of the result `y` that apply `epilogue`, whose operands have these types.
    fn epilogue(&self, spec: &KernelSpec, epilogue: &Epilogue, y: &Arg, types: &[DType]) -> String;

    /// Joins the generated text and the kernel's own.
    fn join(&self, _spec: &KernelSpec, generated: String, body: &str) -> String {
        generated + body
    }
}

impl Language {
    pub(super) fn printer(self) -> &'static dyn Printer {
        match self {
            Self::OpenClC => &super::opencl_c::OpenClC,
            Self::Wgsl => &super::wgsl::Wgsl,
        }
    }

    /// Options of its compiler.
    pub(crate) fn options(self) -> &'static CStr {
        self.printer().options()
    }
}
