//! E0M matmuls on tensor cores ([`DeviceProfile::tensor_cores`]). With `f16` activations, 4-bit and
//! 8-bit weights are decoded to halves in registers, and the tensor cores multiply and sum in
//! single precision. The matrix kernel rounds `s * (w1 - b)` to a half, and so does the vector
//! kernel for a few rows in WGSL and for more than 16 in PTX; else the vector kernel multiplies by
//! halves derived from `w1` and scales its sums. Results of 4-bit weights are halves too.

use super::{ActivationType, K_BLOCK, MatMulE0m, MatrixArgs, VectorArgs, format_defines, k_block, tune};
use crate::backend::kernel::{Feature, Features, Form};
use crate::backend::tunable::{Tunable, Tuning};
use crate::lower::{Call, DeviceProfile, TensorCores};
use crate::num;
use crate::quant::Bits;
use crate::shape::Dim;
use crate::tensor::DType;

crate::kernel! {
    /// Kernel for one row or a few; a work-group computes 32 columns.
    pub(super) static VECTOR: TypedKernel<VectorArgs> = "variants/matvec_e0m_mma" with [x: In Uint4]
    .with_features(Features {
        opencl_c: &[Feature::TensorCores],
        wgsl: &[Feature::Subgroups],
    })
    .variant_of(&super::VECTOR.kernel, able)
    .with_forms(&[
        Form {
            // One row, with weights as pairs of halves, if there is no tensor core kernel.
            define: "PAIRS",
            needs: |device| by_matrices(device) && device.f16_math,
            features: Features {
                wgsl: &[Feature::F16],
                ..Features::NONE
            },
        },
        Form {
            // A few rows.
            define: "FEW",
            needs: |_| true,
            features: Features {
                wgsl: &[Feature::TensorCores, Feature::F16],
                ..Features::NONE
            },
        },
    ])
}

crate::kernel! {
    /// Kernel for many rows.
    pub(super) static MATRIX: TypedKernel<MatrixArgs> = "variants/matmul_e0m_mma" with [x: In Half4]
    .with_features(Features {
        opencl_c: &[Feature::TensorCores],
        wgsl: &[Feature::TensorCores, Feature::F16],
    })
    .variant_of(&super::MATRIX.kernel, able)
}

/// Device features that both kernels require.
fn able(device: &DeviceProfile) -> bool {
    device.tensor_cores.is_some() && device.local_bytes >= LOCAL && device.max_workgroup >= MAX_WARPS * WARP
}

/// True if kernels use tensor cores as cooperative matrices.
fn by_matrices(device: &DeviceProfile) -> bool {
    device.tensor_cores == Some(TensorCores::CooperativeMatrix)
}

/// True if local memory holds `k` halves, a row that the vector kernel normalizes or the scale for
/// a few of them, in addition to its own use.
pub(super) fn holds_row(device: &DeviceProfile, k: usize) -> bool {
    /// Local memory for the sums of all work-items and their reduction.
    const SUMS: usize = 24 << 10;
    2 * k + SUMS <= device.local_bytes as usize
}

/// Results with at most this many rows use the tiles for few rows of the matrix kernel in WGSL.
pub const FEW_ROWS: i64 = 128;
/// A work-group of the vector kernel computes at most this many rows, along the side of one, two or
/// four tensor core instructions.
const TILES: [i64; 3] = [8, 16, ROUNDED];
/// The tile for which weights are rounded to halves.
const ROUNDED: i64 = 32;
/// Maximum rows of that tile: those of the longest chunk of a prompt.
const ROUNDED_ROWS: i64 = 1024;
/// Numbers of rows after which the computation changes.
pub const ROW_LIMITS: [i64; 4] = [TILES[0], TILES[1], VECTOR_ROWS, FEW_ROWS];
/// Maximum rows that the vector kernel normalizes itself. Each work-group reads all of them, so
/// more are better normalized once.
pub const NORM_ROWS: i64 = TILES[0];
/// Maximum rows of the vector kernel's other tiles. Several work-groups compute the same columns,
/// and share the weights in the device's cache.
const VECTOR_ROWS: i64 = 4 * TILES[1];
/// Columns per warp in both kernels.
const COLUMNS: usize = 32;
/// Local memory of the largest tile.
const LOCAL: u32 = 46 << 10;
/// Maximum warps per work-group: with more, each has too few registers.
const MAX_WARPS: u32 = 16;
const WARP: u32 = 32;
/// Longest k-block of the vector kernel, in vectors of quantized weights held by a work-item. More
/// would need too many registers.
const HELD: usize = 4;

/// How the vector kernel computes more than one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FewRows {
    /// Rows of a work-group: one of [`TILES`].
    tile: i64,
    /// Maximum number of rows.
    most: i64,
}

impl FewRows {
    /// True if weights are rounded to halves, as in the matrix kernel. That is invisible in half
    /// results.
    fn rounds(self) -> bool {
        self.tile == ROUNDED
    }

    /// True if the kernel can normalize the rows.
    pub(super) fn can_normalize(self) -> bool {
        !self.rounds()
    }
}

/// Tile of the matrix kernel: warps along rows and columns, 16-row tiles per warp, pipeline stages,
/// and warps that share each sum (split-k).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    rows: u32,
    columns: u32,
    tiles: u32,
    stages: u32,
    sharing: u32,
}

impl Tile {
    const fn new(rows: u32, columns: u32, tiles: u32, stages: u32, sharing: u32) -> Self {
        Self {
            rows,
            columns,
            tiles,
            stages,
            sharing,
        }
    }

    /// The default tile for at most `rows` rows and `n` columns on a device with `units` compute
    /// units. WGSL keeps sums in separate variables: its kernel has at most four tiles per warp,
    /// and no shared sums.
    fn of(rows: i64, n: usize, units: usize, wgsl: bool) -> Self {
        match (rows, wgsl) {
            (..=16, true) => Self::new(1, 4, 1, 6, 1),
            (..=FEW_ROWS, true) if fill(n.div_ceil(2 * COLUMNS), units) => Self::new(4, 2, 2, 4, 1),
            (..=FEW_ROWS, true) => Self::new(4, 1, 1, 4, 1),
            (_, true) => Self::new(2, 4, 4, 4, 1),
            (_, false) => Self::new(1, 4, 8, 4, 1),
        }
    }

    fn items(self) -> u32 {
        self.rows * self.columns * self.sharing * WARP
    }

    /// The tuned tile, or this one if the tuning chose the default.
    fn tuned(self, tuning: &Tuning) -> Self {
        match tuning.choice[..] {
            [rows, columns, tiles, stages, sharing] if tuning.choice != BY_RULE => {
                Self::new(rows, columns, tiles, stages, sharing)
            }
            _ => self,
        }
    }
}

/// True if this many work-groups keep the compute units busy; up to a tenth of the units may be
/// idle.
fn fill(groups: usize, units: usize) -> bool {
    groups >= units - units / 10
}

/// The choice that selects the default of [`Tile::of`].
const BY_RULE: [u32; 5] = [0; 5];

static MATRIX_TUNABLE: Tunable = Tunable {
    kernel: &MATRIX.kernel,
    names: &["warps down", "warps across", "tiles", "stages", "warps per sum"],
    choices: tiles,
};

/// Candidates for tuning in OpenCL C: warps down, warps across, 16-row tiles, stages, warps per
/// sum.
const PTX: [[u32; 5]; 13] = [
    [1, 4, 8, 4, 1],
    [1, 4, 4, 4, 1],
    [1, 4, 2, 6, 1],
    [1, 4, 2, 5, 2],
    [1, 4, 2, 2, 4],
    [1, 4, 4, 3, 2],
    [1, 2, 4, 4, 2],
    [1, 2, 2, 3, 4],
    [1, 1, 2, 4, 4],
    [1, 4, 1, 6, 1],
    [1, 4, 1, 2, 4],
    [1, 2, 1, 3, 4],
    [1, 1, 1, 4, 4],
];

/// Candidates for tuning in WGSL.
const WGSL: [[u32; 5]; 6] = [
    [2, 4, 4, 4, 1],
    [4, 2, 2, 4, 1],
    [2, 2, 2, 4, 1],
    [4, 1, 1, 4, 1],
    [1, 4, 2, 6, 1],
    [1, 4, 1, 6, 1],
];

fn tiles(device: &DeviceProfile) -> Vec<Vec<u32>> {
    let all: &[[u32; 5]] = if by_matrices(device) { &WGSL } else { &PTX };
    let fits =
        |[rows, columns, _, _, sharing]: &&[u32; 5]| rows * columns * sharing * WARP <= device.max_workgroup;
    let others = all.iter().filter(fits);
    std::iter::once(&BY_RULE)
        .chain(others)
        .map(|c| c.to_vec())
        .collect()
}

impl MatMulE0m {
    /// Weights per block, in which each of the four work-items of a column holds one word; `None`
    /// if tensor cores cannot compute the matmul.
    fn block(&self, x: DType, k: usize) -> Option<usize> {
        let block = match self.bits {
            Bits::Four => 32,
            Bits::Eight => 16,
            _ => return None,
        };
        let whole = k.is_multiple_of(block) && self.group.is_multiple_of(block);
        (x == DType::F16 && whole).then_some(block)
    }

    /// The vector kernel for one `k x n` weight, or for two if `two`. A work-group computes one of
    /// `rows` rows or `few`, the number that [`MatMulE0m::few_rows`] gives.
    pub(super) fn vector_on_tensor_cores(
        &self,
        device: &DeviceProfile,
        [x, y]: [DType; 2],
        [k, n]: [usize; 2],
        (two, few): (bool, Option<FewRows>),
        rows: &Dim,
    ) -> Option<Call<VectorArgs>> {
        let block = self.block(x, k).filter(|_| device.supports(&VECTOR))?;
        // Sums of undecoded 4-bit weights are precise enough for half results, not for single
        // precision.
        if self.bits == Bits::Four && y != DType::F16 {
            return None;
        }
        let rounds = few.is_some_and(FewRows::rounds);
        let held = if rounds { HELD / 2 } else { HELD };
        let most = (block * held).min(K_BLOCK);
        // The longest k-block of whole blocks.
        let mut lengths = (1..=most / block).rev().map(|b| b * block);
        let length = lengths.find(|l| k_block(self.group, *l) == *l)?;
        let groups = n.div_ceil(COLUMNS);
        let walks = k.div_ceil(length);
        // Many columns fill the device with small work-groups; few columns are shared by more
        // warps.
        let units = device.assumed_compute_units() as usize;
        let mut warps: u32 = match groups {
            _ if by_matrices(device) => 8,
            _ if groups >= 2 * units => 4,
            _ if groups > units => 8,
            _ => MAX_WARPS,
        };
        while warps > 1 && (warps as usize > walks || warps * WARP > device.max_workgroup) {
            warps /= 2;
        }
        // The sums of 16 rows need as many registers as 16 warps share.
        if few.is_some_and(|few| few.tile == TILES[1]) {
            warps = warps.min(MAX_WARPS / 2);
        }
        let down = match few {
            Some(few) => rows.ceil_div(few.tile).ok()?,
            None => 1.into(),
        };
        let mut across = 1;
        if let Some(few) = few.filter(|few| few.rounds()) {
            warps = MAX_WARPS / 2 / if two { 2 } else { 1 };
            // Warps for other columns read the same x, which is worth it if enough work-groups
            // remain.
            let down = (few.most - 1) / ROUNDED + 1;
            let all = down.saturating_mul(num::signed(groups));
            across = if !two && all >= 2 * num::signed(units) {
                2
            } else {
                1
            };
        }
        // Every other warp processes the second weight. Cooperative matrices of a few rows lie in
        // local memory, which has no room for more.
        if two && warps <= MAX_WARPS / 2 && !(few.is_some() && by_matrices(device)) {
            warps *= 2;
        }
        let groups = n.div_ceil(COLUMNS * across);
        let call =
            format_defines(Call::new(&VECTOR, warps * WARP), self.bits, self.group, length).define("FLAT", 1);
        let call = match rounds {
            true => call.define("ACROSS", num::signed(across)),
            false => call,
        };
        let call = if k.is_multiple_of(length) {
            call.define("WHOLE", 1)
        } else {
            call
        };
        let call = match few {
            Some(few) => call.define("FEW", few.tile),
            None if self.bits == Bits::Four && device.supports_form(&VECTOR, "PAIRS") => {
                call.define("PAIRS", 1)
            }
            None => call,
        };
        Some(call.grid(Dim::from_usize(groups), down, 1))
    }

    /// How the vector kernel computes at most `most` rows of `k` elements. `None` for one row, and
    /// for more than suit the kernel.
    pub(super) fn few_rows(
        &self,
        device: &DeviceProfile,
        types: [DType; 2],
        k: usize,
        most: i64,
    ) -> Option<FewRows> {
        if most <= 1 || self.activations != ActivationType::Float {
            return None;
        }
        let halves = types[1] == DType::F16;
        let tile = match device.tensor_cores? {
            TensorCores::Ptx => {
                let tiles = if halves { &TILES[..] } else { &TILES[..2] };
                let enough = tiles.iter().find(|tile| most <= **tile).or(tiles.last());
                let limit = if halves { ROUNDED_ROWS } else { VECTOR_ROWS };
                *enough.filter(|_| most <= limit)?
            }
            // Cooperative matrices have 16 rows. Weights are rounded to halves, as in the matrix
            // kernel.
            TensorCores::CooperativeMatrix => {
                let able = halves && self.norm.is_none() && device.supports_form(&VECTOR, "FEW");
                Some(TILES[1]).filter(|_| able && most <= VECTOR_ROWS)?
            }
        };
        let few = FewRows { tile, most };
        self.vector_on_tensor_cores(device, types, [k, 1], (false, Some(few)), &most.into())
            .map(|_| few)
    }

    /// The matrix kernel for at most `most` rows and a `k x n` weight; rows of results start at
    /// multiples of four elements.
    pub(super) fn matrix_on_tensor_cores(
        &self,
        device: &DeviceProfile,
        [x, y]: [DType; 2],
        k: usize,
        n: usize,
        rows: &Dim,
        most: Option<i64>,
    ) -> Option<Call<MatrixArgs>> {
        self.block(x, k).filter(|_| device.supports(&MATRIX))?;
        // Weights are rounded to halves, which is invisible in half results.
        if y != DType::F16 {
            return None;
        }
        let units = device.assumed_compute_units() as usize;
        let tuning = MATRIX_TUNABLE.of(device, tune::matrix_text(self, k, n, most));
        let tile = Tile::of(most.unwrap_or(i64::MAX), n, units, by_matrices(device)).tuned(&tuning);
        let columns = i64::from(tile.columns) * num::signed(COLUMNS);
        let groups = Dim::from_usize(n).ceil_div(columns).ok()?;
        let down = rows.ceil_div(i64::from(tile.rows * tile.tiles * 16)).ok()?;
        let call = format_defines(Call::new(&MATRIX, tile.items()), self.bits, self.group, K_BLOCK)
            .define("WARPS_M", i64::from(tile.rows))
            .define("WARPS_N", i64::from(tile.columns))
            .define("TILES", i64::from(tile.tiles))
            .define("STAGES", i64::from(tile.stages))
            .define("WARPS_K", i64::from(tile.sharing));
        let call = if tile.sharing > 1 {
            call.define("SHARED_SUMS", 1)
        } else {
            call
        };
        // Kernels with a variable for each sum are specialized to these numbers of tiles.
        let from = |call: Call<MatrixArgs>, name, least| {
            if tile.tiles >= least {
                call.define(name, 1)
            } else {
                call
            }
        };
        let call = from(from(call, "TILES2", 2), "TILES4", 4);
        Some(call.grid(groups, down, 1).tuned_by(tuning))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Caps;
    use crate::backend::kernel::Language;
    use crate::validate::case::{self, Scenario};
    use std::collections::BTreeSet;

    /// Bytes of local memory of a work-group of the matrix kernel, as its text in OpenCL C has it:
    /// stages of blocks, where the sums lie at the end.
    fn local(tile: &[u32; 5], bits: u32) -> u32 {
        let [rows, columns, tiles, stages, sharing] = *tile;
        let block = 4 * 32 / bits;
        let copies = sharing * (rows * tiles * 16 * block / 8 + columns * 32);
        let sums = sharing / 2 * tiles * 4 * rows * columns * WARP;
        16 * (stages * copies).max(sums)
    }

    /// Results of cases are halves where floats are stored so, which both kernels ask for.
    #[test]
    fn cases_run_both_kernels_by_weights_of_each_width() {
        let caps = Caps::generic_gpu().with(|device| {
            device.tensor_cores = Some(TensorCores::Ptx);
            device.fast_local = true;
            device.compute_units = 132;
            device.local_bytes = 48 << 10;
            device.max_workgroup = 1024;
        });
        let mut found = BTreeSet::new();
        for case in super::super::cases() {
            let scenario = Scenario::of(&case).unwrap();
            for spec in case::kernels(&scenario, &caps, DType::F16).unwrap() {
                let numbers = ["BITS", "ACROSS"].map(|name| spec.defines.get(name).copied().unwrap_or(0));
                if spec.uses(Language::OpenClC, Feature::TensorCores) {
                    found.insert((spec.kernel.name, numbers));
                }
            }
        }
        for bits in [4, 8] {
            for expected in [
                (MATRIX.name, [bits, 0]),
                (VECTOR.name, [bits, 0]),
                (VECTOR.name, [bits, 1]),
                (VECTOR.name, [bits, 2]),
            ] {
                assert!(found.contains(&expected), "{expected:?} of {found:?}");
            }
        }
    }

    #[test]
    fn tiles_fit_local_memory_and_work_groups_by_weights_of_each_width() {
        for tile in &PTX {
            for bits in [4, 8] {
                assert!(
                    local(tile, bits) <= LOCAL,
                    "{tile:?} of {bits} bits: {} bytes",
                    local(tile, bits)
                );
            }
            let [rows, columns, _, _, sharing] = *tile;
            assert!(rows * columns * sharing <= MAX_WARPS, "{tile:?}");
        }
    }

    #[test]
    fn what_the_rule_chooses_is_among_what_is_measured() {
        for (wgsl, all) in [(false, &PTX[..]), (true, &WGSL[..])] {
            for rows in [1, 16, 17, 32, 64, 100, 128, 1024] {
                for (n, units) in [32, 68, 576, 4096, 5120, 11_008, 151_936]
                    .into_iter()
                    .flat_map(|n| [1, 24, 132, 160].map(|units| (n, units)))
                {
                    let tile = Tile::of(rows, n, units, wgsl);
                    let of = [tile.rows, tile.columns, tile.tiles, tile.stages, tile.sharing];
                    assert!(
                        all.contains(&of),
                        "{tile:?} for {rows} rows, {n} columns, {units} units"
                    );
                }
            }
        }
    }
}
