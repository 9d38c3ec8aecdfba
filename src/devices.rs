//! The devices of this build: lists them, and opens them for work.

use crate::backend::{Backend, BackendError, BackendKind, Caps, OpenOptions};

/// Lists the capabilities of every device of one backend without opening the devices for work.
pub fn list(kind: BackendKind) -> Result<Vec<Caps>, BackendError> {
    match kind {
        #[cfg(feature = "opencl")]
        BackendKind::OpenCl => crate::backend::opencl::list(),
        #[cfg(feature = "wgpu")]
        BackendKind::Wgpu => crate::backend::wgpu::list(),
        #[cfg(feature = "cpu")]
        BackendKind::Cpu => Ok(crate::backend::cpu::list(&crate::kernels::cpu::TABLE)),
        #[allow(unreachable_patterns, reason = "a build with all backends")]
        _ => Err(not_compiled(kind)),
    }
}

/// Opens a device of `kind`.
pub fn open(kind: BackendKind, options: &OpenOptions) -> Result<Box<dyn Backend>, BackendError> {
    if !kind.is_compiled() {
        return Err(not_compiled(kind));
    }
    if let Some((_, refusal)) = options.only_on().filter(|(only, _)| *only != kind) {
        return Err(refusal);
    }
    match kind {
        #[cfg(feature = "opencl")]
        BackendKind::OpenCl => Ok(Box::new(crate::backend::opencl::OpenCl::open(options)?)),
        #[cfg(feature = "wgpu")]
        BackendKind::Wgpu => Ok(Box::new(crate::backend::wgpu::Wgpu::open(options)?)),
        #[cfg(feature = "cpu")]
        BackendKind::Cpu => {
            let table = &crate::kernels::cpu::TABLE;
            Ok(Box::new(crate::backend::cpu::Cpu::open(options, table)?))
        }
        #[allow(unreachable_patterns, reason = "a build with all backends")]
        _ => Err(not_compiled(kind)),
    }
}

fn not_compiled(kind: BackendKind) -> BackendError {
    BackendError::NoDriver {
        backend: kind.name(),
        why: format!("not part of this build; rebuild with `--features {kind}`"),
    }
}
