//! The kernels of an open device.

use super::kernel::KernelSpec;
use super::{BackendError, KernelId, Stats};
use crate::num;
#[cfg(any(feature = "opencl", feature = "wgpu"))]
use crate::parallel;
use std::collections::HashMap;
#[cfg(any(feature = "opencl", feature = "wgpu"))]
use std::convert::Infallible;

/// A kernel, and whether its compiled form came from the [`Store`](crate::cache::Store).
pub(super) struct Built<T> {
    pub(super) kernel: T,
    pub(super) stored: bool,
}

/// Kernels by number and by spec. Several specs may stand for one kernel.
pub(super) struct Kernels<T> {
    all: Vec<T>,
    pub(super) ids: HashMap<KernelSpec, KernelId>,
}

impl<T> Kernels<T> {
    pub(super) fn new() -> Self {
        Self {
            all: Vec::new(),
            ids: HashMap::new(),
        }
    }

    pub(super) fn get(&self, id: KernelId) -> Result<&T, BackendError> {
        self.all.get(id.0 as usize).ok_or_else(|| BackendError::Driver {
            call: format!("kernel {}", id.0),
            why: "unknown".to_owned(),
        })
    }

    pub(super) fn add(
        &mut self,
        spec: &KernelSpec,
        built: Built<T>,
        stats: &mut Stats,
    ) -> Result<KernelId, BackendError> {
        let id = KernelId(num::exact(self.all.len(), "the number of kernels")?);
        self.all.push(built.kernel);
        self.ids.insert(spec.clone(), id);
        stats.cached += u64::from(built.stored);
        stats.compiles += u64::from(!built.stored);
        Ok(id)
    }
}

/// For [`Backend::compile_ahead`](super::Backend::compile_ahead).
#[cfg(any(feature = "opencl", feature = "wgpu"))]
impl<T: Send> Kernels<T> {
    /// Builds the `specs` that are new, on all cores, and returns the kernels that were built.
    /// `compile` reports the errors of the others.
    pub(super) fn build_ahead<'a>(
        &self,
        specs: &[&'a KernelSpec],
        build: impl Fn(&KernelSpec) -> Result<Built<T>, BackendError> + Sync,
        done: &mut dyn FnMut(usize),
    ) -> Vec<(&'a KernelSpec, Built<T>)> {
        let mut new = specs.to_vec();
        new.retain(|spec| !self.ids.contains_key(*spec));
        let mut ready = specs.len() - new.len();
        let mut built = Vec::with_capacity(new.len());
        let Ok(()) = parallel::for_each(
            parallel::cores(),
            new.len(),
            || (),
            |(), i| Ok::<_, Infallible>(new.get(i).map(|spec| (*spec, build(spec)))),
            |_, made| {
                if let Some((spec, Ok(made))) = made {
                    built.push((spec, made));
                    ready += 1;
                }
                done(ready);
            },
        );
        built
    }

    /// Adds what [`Kernels::build_ahead`] returned.
    pub(super) fn add_all(&mut self, built: Vec<(&KernelSpec, Built<T>)>, stats: &mut Stats) {
        for (spec, built) in built {
            if !self.ids.contains_key(spec) {
                // `compile` reports the error if there are too many kernels.
                let _added = self.add(spec, built, stats);
            }
        }
    }
}
