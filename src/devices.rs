//! The devices of this build: lists them, and opens them for work.

#[cfg(feature = "opencl")]
use crate::backend::opencl;
#[cfg(feature = "wgpu")]
use crate::backend::wgpu;
use crate::backend::{Backend, BackendError, BackendKind, Caps, OpenOptions};
#[cfg(feature = "cpu")]
use crate::{backend::cpu, kernels::cpu::TABLE};

/// The functions by which a backend lists the capabilities of its devices and opens one of them.
struct Driver {
    list: fn() -> Result<Vec<Caps>, BackendError>,
    open: fn(&OpenOptions) -> Result<Box<dyn Backend>, BackendError>,
}

fn driver(kind: BackendKind) -> Result<Driver, BackendError> {
    match kind {
        #[cfg(feature = "opencl")]
        BackendKind::OpenCl => Ok(Driver {
            list: opencl::list,
            open: |options| Ok(Box::new(opencl::OpenCl::open(options)?)),
        }),
        #[cfg(feature = "wgpu")]
        BackendKind::Wgpu => Ok(Driver {
            list: wgpu::list,
            open: |options| Ok(Box::new(wgpu::Wgpu::open(options)?)),
        }),
        #[cfg(feature = "cpu")]
        BackendKind::Cpu => Ok(Driver {
            list: || Ok(cpu::list(&TABLE)),
            open: |options| Ok(Box::new(cpu::Cpu::open(options, &TABLE)?)),
        }),
        #[allow(unreachable_patterns, reason = "a build with all backends")]
        _ => Err(BackendError::NoDriver {
            backend: kind.name(),
            why: format!("not part of this build; rebuild with `--features {kind}`"),
        }),
    }
}

/// Lists the capabilities of every device of one backend without opening the devices for work.
pub fn list(kind: BackendKind) -> Result<Vec<Caps>, BackendError> {
    (driver(kind)?.list)()
}

/// Opens a device of `kind`.
pub fn open(kind: BackendKind, options: &OpenOptions) -> Result<Box<dyn Backend>, BackendError> {
    let driver = driver(kind)?;
    match options.only_on() {
        Some((only, refusal)) if only != kind => Err(refusal),
        _ => (driver.open)(options),
    }
}
