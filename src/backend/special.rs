//! Whether a device keeps NaN and infinities.

use super::kernel::{Kernel, KernelSpec};
use super::{Backend, BackendError, BufferId, Command, Launch, View, validation};
use crate::cache::Store;
use crate::num::{self, max_nan};
use crate::tensor::DType;
use std::collections::BTreeMap;

static KERNEL: Kernel = crate::kernel!("probe/probe_special" { count: U32 } [x: In, y: Out]).linear();

/// The kernels of this module.
pub const KERNELS: &[&Kernel] = &[&KERNEL];

/// The numbers that the kernel gets; the last one is 0.
const NUMBERS: [f32; 6] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 2.0, 0.0];

/// What the kernel computes of each number but the last.
fn expected(v: f32) -> [f32; 4] {
    [v, max_nan(v, 1.0), v * 0.0, v + v]
}

/// Whether the device keeps NaN and infinities in memory, comparisons and arithmetic: the stored
/// result, else by a small kernel, whose result is stored. `None` if that kernel does not run.
pub fn keeps(backend: &mut dyn Backend, store: Option<&Store>) -> Option<bool> {
    if backend.caps().profile.language().is_none() {
        return Some(true);
    }
    let spec = spec();
    let text = backend.caps().profile.language().map(|l| spec.expand(l));
    let text = text?.ok()?;
    let known = validation::program_result(store, backend.caps(), KERNEL.name, &text);
    if known.is_some() {
        return known;
    }
    let mut buffers = Vec::new();
    let found = run(backend, &spec, &mut buffers);
    for buffer in buffers {
        backend.destroy_buffer(buffer);
    }
    match found {
        Ok(keeps) => {
            if let Some(store) = store {
                validation::store_program_result(store, backend.caps(), KERNEL.name, &text, keeps);
            }
            Some(keeps)
        }
        Err(e) => {
            log::warn!("cannot test whether the device keeps NaN and infinities: {e}");
            None
        }
    }
}

/// The kernel as it runs.
pub fn spec() -> KernelSpec {
    KernelSpec {
        kernel: &KERNEL,
        workgroup: 8,
        defines: BTreeMap::new(),
        operands: vec![Some(DType::F32); 2],
        in_place: None,
        epilogue: None,
        images: BTreeMap::new(),
    }
}

fn run(
    backend: &mut dyn Backend,
    spec: &KernelSpec,
    buffers: &mut Vec<BufferId>,
) -> Result<bool, BackendError> {
    let kernel = backend.compile(spec)?;
    let mut buffer = |backend: &mut dyn Backend, len: u64| -> Result<View, BackendError> {
        let buffer = backend.create_buffer("special numbers", len)?;
        buffers.push(buffer);
        Ok(View {
            buffer,
            offset: 0,
            len,
        })
    };
    let (x, y) = (buffer(backend, 256)?, buffer(backend, 256)?);
    let mut bytes: Vec<u8> = NUMBERS.iter().flat_map(|v| v.to_le_bytes()).collect();
    bytes.resize(256, 0);
    backend.write(x, &bytes)?;
    let count = NUMBERS.len() - 1;
    let params = num::exact::<u32, _>(count, "a number of elements").unwrap_or_default();
    let recording = backend.record(&[Command::Dispatch {
        kernel,
        args: vec![x, y],
        step: 0,
        params: 0..4,
    }])?;
    let launch = Launch {
        params: params.to_le_bytes().to_vec(),
        grids: vec![[1, 1, 1]],
    };
    let done = backend.submit(recording, &launch).and_then(|()| backend.wait());
    backend.release(recording);
    done?;
    backend.read(y, &mut bytes)?;
    let found = bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let wanted = NUMBERS.iter().take(count).flat_map(|v| expected(*v));
    Ok(wanted.zip(found).all(|(w, f)| w == f || w.is_nan() && f.is_nan()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{BackendKind, OpenOptions};

    #[test]
    fn every_device_here_keeps_special_numbers() {
        for kind in BackendKind::compiled() {
            if let Ok(mut backend) = crate::devices::open(kind, &OpenOptions::default()) {
                assert_eq!(keeps(backend.as_mut(), None), Some(true), "{kind}");
            }
        }
    }
}
