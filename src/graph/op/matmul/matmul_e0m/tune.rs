//! Tuning parameters of the generic E0M kernels and of those for int8 activations: how work-groups
//! divide the weight.

use super::generic::E0mShape;
use super::{K_BLOCK, MATRIX, QuantizedMatMul, VECTOR, int8};
use crate::backend::kernel::subgroup_size::{self, SubgroupSize};
use crate::backend::kernel::{Kernel, Language};
use crate::backend::tunable::{BY_IMAGE, SUBGROUP_SETTING, Tunable, Tuning};
use crate::lower::DeviceProfile;
use crate::num;
use crate::quant::{Format, Scales};

static VECTOR_TUNABLE: Tunable = Tunable {
    kernel: &VECTOR.kernel,
    names: &["items", "lanes", "columns", SUBGROUP_SETTING, BY_IMAGE],
    choices: vectors,
};

static MATRIX_TUNABLE: Tunable = Tunable {
    kernel: &MATRIX.kernel,
    names: &["items", "columns", "rows", SUBGROUP_SETTING, BY_IMAGE],
    choices: matrices,
};

static BYTES_VECTOR: Tunable = Tunable {
    kernel: &crate::kernels::matmul_e0m::int8::VECTOR.kernel,
    names: &["items", "lanes"],
    choices: byte_vectors,
};

static BYTES_MATRIX: Tunable = Tunable {
    kernel: &crate::kernels::matmul_e0m::int8::PRODUCT.kernel,
    names: &["items", "rows"],
    choices: byte_matrices,
};

/// Columns per work-item for which the kernels have vectors; the padding of stored rows is a
/// multiple of them.
const COLUMNS: [u32; 3] = [4, 8, 16];

/// The default, and those of `others` that the device supports.
fn choices<const N: usize>(
    default: Vec<u32>,
    others: &[[u32; N]],
    fits: impl Fn(&[u32; N]) -> bool,
) -> Vec<Vec<u32>> {
    let others = others.iter().filter(|c| c.as_slice() != default && fits(c));
    std::iter::once(default.clone())
        .chain(others.map(|c| c.to_vec()))
        .collect()
}

/// All variants of `tiles`: each tile itself, with each subgroup size that the device lets `kernel`
/// request, and with weights read through images. The first tile, the default, is also tried with
/// both. `sizes` returns the items and columns of a tile.
fn with_forms(
    device: &DeviceProfile,
    kernel: &'static Kernel,
    tiles: &[Vec<u32>],
    sizes: fn(&[u32]) -> [u32; 2],
) -> Vec<Vec<u32>> {
    let offered: &[SubgroupSize] = if device.supports_form(kernel, subgroup_size::DEFINE) {
        &device.subgroup_sizes
    } else {
        &[]
    };
    let images = device.images_of(kernel).is_some();
    let subgroups = |tile: &[u32]| -> Vec<u32> {
        let [items, _] = sizes(tile);
        let fitting = offered.iter().filter(|subgroup| subgroup.divides(items));
        fitting.map(|subgroup| subgroup.number()).collect()
    };
    // A pixel holds four columns.
    let by_image = |tile: &[u32]| images && sizes(tile)[1] == 4;
    let mut all = Vec::new();
    let mut add =
        |tile: &[u32], subgroup: u32, image: bool| all.push([tile, &[subgroup, u32::from(image)]].concat());
    let (default, others) = tiles.split_at(tiles.len().min(1));
    for tile in default {
        for image in [false, true] {
            if image && !by_image(tile) {
                continue;
            }
            add(tile, 0, image);
            subgroups(tile)
                .into_iter()
                .for_each(|subgroup| add(tile, subgroup, image));
        }
    }
    others.iter().for_each(|tile| add(tile, 0, false));
    for tile in others {
        subgroups(tile)
            .into_iter()
            .for_each(|subgroup| add(tile, subgroup, false));
    }
    let read = others.iter().filter(|tile| by_image(tile));
    read.for_each(|tile| add(tile, 0, true));
    all
}

fn vectors(device: &DeviceProfile) -> Vec<Vec<u32>> {
    const ALL: [[u32; 3]; 10] = [
        [64, 8, 4],
        [64, 16, 4],
        [64, 32, 4],
        [128, 16, 4],
        [128, 32, 4],
        [128, 8, 4],
        [256, 32, 4],
        [32, 8, 4],
        [64, 8, 8],
        [64, 16, 8],
    ];
    let shape = E0mShape::of(device);
    let default = vec![shape.vector_items, shape.lanes, shape.vector_columns];
    let tiles = choices(default, &ALL, |[items, lanes, columns]| {
        let room = *items <= device.max_workgroup && items * columns * 4 <= device.local_bytes;
        room && items.is_multiple_of(*lanes) && COLUMNS.contains(columns)
    });
    with_forms(device, &VECTOR, &tiles, |c| [c[0], c[2]])
}

fn matrices(device: &DeviceProfile) -> Vec<Vec<u32>> {
    const ALL: [[u32; 3]; 9] = [
        [32, 4, 8],
        [64, 4, 8],
        [16, 4, 8],
        [32, 4, 4],
        [64, 4, 4],
        [128, 4, 8],
        [32, 8, 4],
        [16, 8, 8],
        [16, 16, 8],
    ];
    let shape = E0mShape::of(device);
    let default = vec![shape.matrix_items, shape.matrix_columns, shape.rows];
    let tiles = choices(default, &ALL, |[items, columns, rows]| {
        // The WGSL kernel has four columns.
        let text = device.language() != Some(Language::Wgsl) || *columns == 4;
        let local = (u64::from(*rows) * num::wide(K_BLOCK) + u64::from(items * columns)) * 4;
        // Larger sums would be spilled.
        let registers = !device.few_registers || rows * columns <= 16;
        let room = *items <= device.max_workgroup && local <= u64::from(device.local_bytes);
        text && registers && room && COLUMNS.contains(columns)
    });
    with_forms(device, &MATRIX, &tiles, |c| [c[0], c[1]])
}

fn byte_vectors(device: &DeviceProfile) -> Vec<Vec<u32>> {
    const ALL: [[u32; 2]; 7] = [
        [64, 8],
        [64, 16],
        [64, 32],
        [32, 8],
        [128, 8],
        [128, 16],
        [128, 32],
    ];
    let default = int8::DEFAULT_VECTOR.to_vec();
    choices(default, &ALL, |[items, _]| *items <= device.max_workgroup)
}

fn byte_matrices(device: &DeviceProfile) -> Vec<Vec<u32>> {
    const ALL: [[u32; 2]; 9] = [
        [64, 4],
        [64, 8],
        [32, 4],
        [32, 8],
        [128, 4],
        [128, 8],
        [64, 2],
        [32, 2],
        [128, 2],
    ];
    let default = int8::default_product(device).to_vec();
    choices(default, &ALL, |[items, rows]| {
        *items <= device.max_workgroup && *rows <= int8::most_rows(device)
    })
}

fn shape_text(op: &QuantizedMatMul, k: usize, n: usize) -> String {
    let Format { bits, group, scales } = op.format;
    let nested = if scales == Scales::Pairs {
        ""
    } else {
        ", nested scales"
    };
    format!("E0M{} group {group}{nested}, {k} x {n}", bits.count())
}

/// Tuning of the vector kernel for a `k x n` weight.
pub(super) fn vector(op: &QuantizedMatMul, device: &DeviceProfile, k: usize, n: usize) -> Tuning {
    VECTOR_TUNABLE.of(device, shape_text(op, k, n))
}

/// Tuning of the matrix kernel for at most `most` rows and a `k x n` weight.
pub(super) fn matrix(
    op: &QuantizedMatMul,
    device: &DeviceProfile,
    k: usize,
    n: usize,
    most: Option<i64>,
) -> Tuning {
    MATRIX_TUNABLE.of(device, matrix_text(op, k, n, most))
}

/// Tuning of the int8 vector kernel for a `k x n` weight.
pub(super) fn bytes_vector(op: &QuantizedMatMul, device: &DeviceProfile, k: usize, n: usize) -> Tuning {
    BYTES_VECTOR.of(device, shape_text(op, k, n))
}

/// Tuning of the int8 matrix kernel for at most `most` rows and a `k x n` weight.
pub(super) fn bytes_matrix(
    op: &QuantizedMatMul,
    device: &DeviceProfile,
    k: usize,
    n: usize,
    most: Option<i64>,
) -> Tuning {
    BYTES_MATRIX.of(device, matrix_text(op, k, n, most))
}

/// Text that identifies a matmul of at most `most` rows with a `k x n` weight.
pub(super) fn matrix_text(op: &QuantizedMatMul, k: usize, n: usize, most: Option<i64>) -> String {
    let rows = most.map_or_else(|| "any rows".to_owned(), |m| format!("{m} rows"));
    format!("{}, {rows}", shape_text(op, k, n))
}

impl E0mShape {
    /// Applies a tuning to the vector kernel.
    pub(super) fn with_vector(self, tuning: &Tuning) -> Self {
        match tuning.choice.as_slice() {
            &[vector_items, lanes, vector_columns, ..] => Self {
                vector_items,
                lanes,
                vector_columns,
                ..self
            },
            _ => self,
        }
    }

    /// Applies a tuning to the matrix kernel.
    pub(super) fn with_matrix(self, tuning: &Tuning) -> Self {
        match tuning.choice.as_slice() {
            &[matrix_items, matrix_columns, rows, ..] => Self {
                matrix_items,
                matrix_columns,
                rows,
                ..self
            },
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::device_presets::PHONES;
    use crate::backend::{QuarantineCause, Quarantined};

    #[test]
    fn choices_are_what_texts_and_devices_take() {
        let phones = PHONES
            .iter()
            .flat_map(|phone| Language::ALL.map(|l| (format!("{} {l}", phone.name), phone.caps(l).profile)));
        let generic = ("generic".to_owned(), DeviceProfile::generic_gpu());
        for (name, device) in phones.chain([generic]) {
            for (tunable, least) in [
                (&VECTOR_TUNABLE, 2),
                (&MATRIX_TUNABLE, 2),
                (&BYTES_VECTOR, 2),
                (&BYTES_MATRIX, 2),
            ] {
                let all = (tunable.choices)(&device);
                assert!(all.len() >= least, "{} on {name}: {all:?}", tunable.kernel.name);
                for (i, choice) in all.iter().enumerate() {
                    assert!(!all[..i].contains(choice), "{choice:?} twice");
                    assert!(choice[0] <= device.max_workgroup);
                    // Mali's subgroups are 16 work-items, and no kernel can ask for others.
                    let subgroup = if device.few_registers { 16 } else { 1 };
                    assert_eq!(choice[0] % subgroup, 0, "{choice:?} on {name}");
                    assert_eq!(tunable.subgroup_size(choice), None, "{choice:?} on {name}");
                }
            }
        }
    }

    #[test]
    fn subgroup_sizes_are_chosen_where_the_device_supports_them() {
        let device = DeviceProfile {
            subgroup_sizes: vec![SubgroupSize::Half, SubgroupSize::Full],
            ..DeviceProfile::generic_gpu()
        };
        let subgroups = |device: &DeviceProfile, tunable: &Tunable| -> Vec<Option<SubgroupSize>> {
            let all = (tunable.choices)(device);
            all.iter().map(|c| tunable.subgroup_size(c)).collect()
        };
        for tunable in [&VECTOR_TUNABLE, &MATRIX_TUNABLE] {
            let found = subgroups(&device, tunable);
            assert_eq!(
                found[..3],
                [None, Some(SubgroupSize::Half), Some(SubgroupSize::Full)]
            );
            let plain = subgroups(&DeviceProfile::generic_gpu(), tunable);
            assert_eq!(found.len(), 3 * plain.len());
            assert!(plain.iter().all(Option::is_none));
            // As a kernel that was wrong with one.
            let form = crate::backend::kernel::form_name(tunable.kernel, subgroup_size::DEFINE);
            let mut quarantined = device.clone();
            let wrong = QuarantineCause::WrongResults;
            quarantined.quarantine(Quarantined::new(tunable.kernel, &form, wrong, "wrong"));
            assert_eq!(subgroups(&quarantined, tunable), plain);
        }
        let lanes = DeviceProfile {
            subgroup_sizes: vec![SubgroupSize::Lanes(16), SubgroupSize::Lanes(32)],
            ..DeviceProfile::generic_gpu()
        };
        for choice in (MATRIX_TUNABLE.choices)(&lanes) {
            assert!(
                choice[3] == 0 || choice[0].is_multiple_of(choice[3]),
                "{choice:?}"
            );
        }
    }
}
