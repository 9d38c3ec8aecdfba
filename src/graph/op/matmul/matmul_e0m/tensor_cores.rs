//! E0M matmuls on tensor cores ([`DeviceProfile::tensor_cores`]). With `f16` activations, weights
//! are decoded to halves in registers, and the tensor cores multiply and sum in single precision.
//! The vector kernel and, in PTX, the one for a few rows multiply by halves derived from `w1` and
//! scale their sums. The other kernels round weights `s * (w1 - b)` to halves. With 4-bit weights,
//! results are halves too.

use super::{
    ActivationType, K_BLOCK, MatrixArgs, QuantizedMatMul, VectorArgs, format_defines, k_block, tune,
};
use crate::backend::kernel::TypedKernel;
use crate::backend::tunable::{Tunable, Tuning};
use crate::kernels::matmul_e0m::GROUP;
use crate::kernels::matmul_e0m::tensor_cores::{FEW, MATRIX, MAX_WARPS, MMA, VECTOR, WARP, by_matrices};
use crate::lower::{Call, DeviceProfile, TensorCores};
use crate::num;
use crate::quant::{Bits, Scales};
use crate::shape::Dim;
use crate::tensor::DType;

/// True if local memory holds `k` halves, a row that the vector kernel normalizes or the scale for
/// a few of them, in addition to its own use.
pub(super) fn holds_row(device: &DeviceProfile, k: usize) -> bool {
    /// Local memory for the sums of all work-items and their reduction.
    const SUMS: usize = 24 << 10;
    2 * k + SUMS <= device.local_bytes as usize
}

/// Rows per work-group of [`FEW`] in PTX: the short side of one or two tensor core instructions.
const PTX_FEW_ROWS: [i64; 2] = [8, 16];
/// Rows per work-group of [`MMA`].
const MMA_ROWS: i64 = 32;
/// Rows per work-group of [`FEW`] with cooperative matrices.
const FEW_ROWS: i64 = 16;
/// Maximum number of rows that are computed 16 at a time. Work-groups for the same columns share
/// the weights in the device's cache.
const FEW_LIMIT: i64 = 64;
/// Results with at most this many rows use the small tiles of [`MATRIX`].
pub const SMALL_TILE_LIMIT: i64 = 128;
/// Numbers of rows after which the computation changes.
pub const ROW_LIMITS: [i64; 4] = [PTX_FEW_ROWS[0], PTX_FEW_ROWS[1], FEW_LIMIT, SMALL_TILE_LIMIT];
/// Maximum rows that [`FEW`] normalizes itself. Each work-group reads all of them, so
/// more are better normalized once.
pub const NORM_ROWS: i64 = PTX_FEW_ROWS[0];
/// Columns per warp in all these kernels.
const COLUMNS: usize = 32;
/// Warps per work-group if their number does not depend on the columns.
const USUAL_WARPS: u32 = 8;
/// Longest k-block of [`FEW`], in vectors of quantized weights held by a work-item. More would need
/// too many registers.
const HELD: usize = 4;
/// Columns on the short side of a tensor core instruction.
const SHORT_SIDE: usize = 8;
/// Blocks of a k-block of the vector kernel in PTX.
const BLOCKS_EACH: &str = "BLOCKS_EACH";

/// The kernel for several rows, of those that take [`VectorArgs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Several {
    /// [`FEW`], in tiles of this many rows.
    Few(i64),
    /// [`MMA`], for at most this many rows; `None` if there is no known limit.
    Mma(Option<i64>),
}

impl Several {
    fn kernel(this: Option<Self>) -> &'static TypedKernel<VectorArgs> {
        match this {
            None => &VECTOR,
            Some(Self::Few(_)) => &FEW,
            Some(Self::Mma(_)) => &MMA,
        }
    }

    /// Rows per work-group.
    fn tile(self) -> i64 {
        match self {
            Self::Few(rows) => rows,
            Self::Mma(_) => MMA_ROWS,
        }
    }

    /// True if the kernel can normalize the rows.
    pub(super) fn can_normalize(self, device: &DeviceProfile) -> bool {
        matches!(self, Self::Few(_)) && !by_matrices(device)
    }
}

/// Tile of the matrix kernel: warps along rows and columns, and 16-row tiles per warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    rows: u32,
    columns: u32,
    tiles: u32,
}

impl Tile {
    const fn new(rows: u32, columns: u32, tiles: u32) -> Self {
        Self { rows, columns, tiles }
    }

    /// The default tile for at most `rows` rows and `n` columns on a device with `units` compute
    /// units.
    fn of(rows: i64, n: usize, units: usize) -> Self {
        if rows <= 16 {
            Self::new(1, 4, 1)
        } else if rows > SMALL_TILE_LIMIT {
            Self::new(2, 4, 4)
        } else if fill(n.div_ceil(2 * COLUMNS), units) {
            Self::new(4, 2, 2)
        } else {
            Self::new(4, 1, 1)
        }
    }

    /// The tuned tile, or this one if the tuning chose the default.
    fn tuned(self, tuning: &Tuning) -> Self {
        match tuning.choice[..] {
            [rows, columns, tiles] if tuning.choice != BY_RULE => Self::new(rows, columns, tiles),
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
const BY_RULE: [u32; 3] = [0; 3];

static MATRIX_TUNABLE: Tunable = Tunable {
    kernel: &MATRIX.kernel,
    names: &["warps down", "warps across", "tiles"],
    choices: tiles,
};

/// Candidates for tuning: warps down, warps across, 16-row tiles.
const ALL: [[u32; 3]; 6] = [[2, 4, 4], [4, 2, 2], [2, 2, 2], [4, 1, 1], [1, 4, 2], [1, 4, 1]];

fn tiles(_: &DeviceProfile) -> Vec<Vec<u32>> {
    let all = std::iter::once(&BY_RULE).chain(&ALL);
    all.map(|c| c.to_vec()).collect()
}

/// Sizes of a matmul with one or two weights.
struct Sizes {
    /// See [`QuantizedMatMul::block`].
    block: usize,
    k: usize,
    /// Tiles of 32 columns.
    groups: usize,
    /// Number of weights.
    sides: u32,
}

impl Sizes {
    /// Warps that share columns in PTX. Many columns fill the device with small work-groups; few
    /// columns are shared by more warps.
    fn warps(&self, device: &DeviceProfile) -> u32 {
        let units = device.assumed_compute_units() as usize;
        match self.groups {
            groups if groups >= 2 * units => 4,
            groups if groups > units => 8,
            _ => MAX_WARPS,
        }
    }

    /// At most `warps`, so that those of a side have at least one k-block of `length` weights each.
    fn with_work(&self, device: &DeviceProfile, mut warps: u32, length: usize) -> u32 {
        let walks = self.k.div_ceil(length);
        while warps > self.sides
            && ((warps / self.sides) as usize > walks || warps * WARP > device.max_workgroup)
        {
            warps /= 2;
        }
        warps
    }

    /// Number of 32-column tiles that a work-group of [`MMA`] computes. Its warps for different
    /// columns or weights read the same x, so wide work-groups pay off if enough of them remain.
    fn across(&self, device: &DeviceProfile, most: Option<i64>) -> usize {
        let down = most.map_or(i64::MAX, |most| (most - 1) / MMA_ROWS + 1);
        let all = down.saturating_mul(num::signed(self.groups));
        let neighbours = match all / i64::from(device.assumed_compute_units()) {
            ..2 => 1,
            2..20 => 2,
            20.. => 4,
        };
        (neighbours / self.sides as usize).clamp(1, self.groups.next_power_of_two())
    }
}

impl QuantizedMatMul {
    /// Weights per block, in which each of the four work-items of a column holds one word of each
    /// plane; `None` if tensor cores cannot compute the matmul.
    fn block(&self, x: DType, k: usize) -> Option<usize> {
        let block = match self.format.bits {
            Bits::Eight => 16,
            _ => 32,
        };
        let whole_groups = match self.format.scales {
            Scales::Pairs => self.format.group.is_multiple_of(block),
            // Blocks may have two groups.
            Scales::Nested(_) => true,
        };
        let whole = k.is_multiple_of(block) && whole_groups;
        (x == DType::F16 && whole).then_some(block)
    }

    /// The call for one `k x n` weight, or for two if `two`. It computes one row, or several rows
    /// by the kernel that [`QuantizedMatMul::several_rows`] returns.
    pub(super) fn vector_on_tensor_cores(
        &self,
        device: &DeviceProfile,
        [x, y]: [DType; 2],
        [k, n]: [usize; 2],
        (two, several): (bool, Option<Several>),
        rows: &Dim,
    ) -> Option<Call<VectorArgs>> {
        let kernel = Several::kernel(several);
        let block = self.block(x, k).filter(|_| device.supports(kernel))?;
        // Sums of undecoded 4-bit weights are precise enough for half results, not for single
        // precision.
        if self.format.bits == Bits::Four && y != DType::F16 {
            return None;
        }
        let sizes = Sizes {
            block,
            k,
            groups: n.div_ceil(COLUMNS),
            sides: if two { 2 } else { 1 },
        };
        let (call, across) = match several {
            None if by_matrices(device) => (self.one_row_by_matrices(device, &sizes), 1),
            None => (self.one_row_in_ptx(device, &sizes), 1),
            Some(Several::Few(tile)) => (self.few_rows(device, &sizes, tile)?, 1),
            Some(Several::Mma(most)) => self.more_rows(device, &sizes, most)?,
        };
        let down = match several {
            Some(several) => rows.ceil_div(several.tile()).ok()?,
            None => 1.into(),
        };
        Some(call.grid(Dim::from_usize(sizes.groups.div_ceil(across)), down, 1))
    }

    /// The call of a kernel with k-blocks of `length` weights.
    fn call(&self, kernel: &'static TypedKernel<VectorArgs>, warps: u32, length: usize) -> Call<VectorArgs> {
        format_defines(Call::new(kernel, warps * WARP), self.format, length)
    }

    fn one_row_by_matrices(&self, device: &DeviceProfile, s: &Sizes) -> Call<VectorArgs> {
        // Four work-items have a block each.
        let length = 4 * s.block;
        let warps = (USUAL_WARPS * s.sides).min(MAX_WARPS);
        let call = self.call(&VECTOR, s.with_work(device, warps, length), length);
        let pairs = self.format.bits == Bits::Four && device.supports_form(&VECTOR, "PAIRS");
        call.define_if("PAIRS", pairs)
    }

    fn one_row_in_ptx(&self, device: &DeviceProfile, s: &Sizes) -> Call<VectorArgs> {
        let warps = s.warps(device);
        let length = self.several_groups(s.block, s.k, warps / s.sides);
        self.call(&VECTOR, s.with_work(device, warps, length), length)
            .define(BLOCKS_EACH, num::signed(length / s.block))
            .define_if("WHOLE", s.k.is_multiple_of(length))
    }

    fn few_rows(&self, device: &DeviceProfile, s: &Sizes, tile: i64) -> Option<Call<VectorArgs>> {
        let length = self.shared_scales(s.block, HELD)?;
        let warps = match by_matrices(device) {
            // Cooperative matrices lie in local memory, which has no room for more.
            true => USUAL_WARPS,
            // Sums of 16 rows need more registers, so fewer warps share a weight.
            false if tile == PTX_FEW_ROWS[1] => s.warps(device).min(MAX_WARPS / 2) * s.sides,
            false => s.warps(device) * s.sides,
        };
        let warps = s.with_work(device, warps.min(MAX_WARPS), length);
        let call = self.call(&FEW, warps, length).define(GROUP, num::signed(length));
        Some(match by_matrices(device) {
            true => call,
            false => call
                .define_if("WHOLE", s.k.is_multiple_of(length))
                .define("FEW", tile),
        })
    }

    /// The call of [`MMA`], and the number of 32-column tiles per work-group.
    fn more_rows(
        &self,
        device: &DeviceProfile,
        s: &Sizes,
        most: Option<i64>,
    ) -> Option<(Call<VectorArgs>, usize)> {
        let length = self.shared_scales(s.block, HELD / 2)?;
        let across = s.across(device, most);
        let call = self
            .call(&MMA, USUAL_WARPS, length)
            .define(GROUP, num::signed(length))
            .define_if("WHOLE", s.k.is_multiple_of(length))
            .define("ACROSS", num::signed(across));
        Some((call, across))
    }

    /// The longest k-block of whole blocks with the same scales, of which a work-item holds at most
    /// `held`.
    fn shared_scales(&self, block: usize, held: usize) -> Option<usize> {
        match self.format.scales {
            Scales::Pairs => {
                let longest = (block * held).min(K_BLOCK);
                let mut lengths = (1..=longest / block).rev().map(|b| b * block);
                lengths.find(|l| k_block(self.format.group, *l) == *l)
            }
            Scales::Nested(_) => Some(block),
        }
    }

    /// Length of a k-block of the vector kernel in PTX, for `k` weights per column and `warps` that
    /// share them: as many groups as the short side has columns, or as many blocks, or fewer if
    /// some warps would have no k-block.
    fn several_groups(&self, block: usize, k: usize, warps: u32) -> usize {
        if let Scales::Nested(nested) = self.format.scales {
            return SHORT_SIDE * nested.group;
        }
        let has_work = |blocks: &usize| k.div_ceil(blocks * block) >= warps as usize;
        [SHORT_SIDE, SHORT_SIDE / 2]
            .into_iter()
            .find(has_work)
            .unwrap_or(2)
            * block
    }

    /// The kernel for several rows of `k` elements, of those that take [`VectorArgs`]: for at most
    /// `most` rows, or for any number. Returns `None` if none of them can compute the matmul.
    pub(super) fn several_rows(
        &self,
        device: &DeviceProfile,
        types: [DType; 2],
        k: usize,
        most: Option<i64>,
    ) -> Option<Several> {
        if self.activations != ActivationType::Float {
            return None;
        }
        // Weights that are rounded to halves are invisible in half results.
        let halves = types[1] == DType::F16;
        let few = most.is_some_and(|most| most <= FEW_LIMIT);
        let fits = |tile: &&i64| most.is_some_and(|most| most <= **tile);
        // In PTX, the kernel for a few rows has no bit planes and no nested scales.
        let plain =
            matches!(self.format.bits, Bits::Four | Bits::Eight) && self.format.scales == Scales::Pairs;
        let several = match (device.tensor_cores?, PTX_FEW_ROWS.iter().find(fits)) {
            (TensorCores::Ptx, Some(tile)) if plain && device.supports(&FEW) => Several::Few(*tile),
            (TensorCores::Ptx, _) if halves => Several::Mma(most),
            (TensorCores::Ptx, _) if few && plain => Several::Few(PTX_FEW_ROWS[1]),
            (TensorCores::CooperativeMatrix, _) if few && halves && self.norm.is_none() => {
                Several::Few(FEW_ROWS)
            }
            _ => return None,
        };
        self.vector_on_tensor_cores(device, types, [k, 1], (false, Some(several)), &1.into())
            .map(|_| several)
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
        let tile = Tile::of(most.unwrap_or(i64::MAX), n, units).tuned(&tuning);
        let columns = i64::from(tile.columns) * num::signed(COLUMNS);
        let groups = Dim::from_usize(n).ceil_div(columns).ok()?;
        let down = rows.ceil_div(i64::from(tile.rows * tile.tiles * 16)).ok()?;
        let call = format_defines(
            Call::new(&MATRIX, tile.rows * tile.columns * WARP),
            self.format,
            K_BLOCK,
        )
        .define("WARPS_M", i64::from(tile.rows))
        .define("WARPS_N", i64::from(tile.columns))
        .define("TILES", i64::from(tile.tiles));
        // The kernel has a variable for each sum.
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
    use crate::backend::kernel::{Kernel, KernelSpec, Language};
    use crate::backend::{Caps, KernelCode};
    use crate::validate::case::{self, Scenario};

    /// The kernels of all cases on a device with `units` compute units, with floats stored as
    /// halves.
    fn planned(tensor_cores: TensorCores, units: u32) -> Vec<KernelSpec> {
        let caps = Caps::generic_gpu().with(|device| {
            device.code = KernelCode::Source(match tensor_cores {
                TensorCores::Ptx => Language::OpenClC,
                TensorCores::CooperativeMatrix => Language::Wgsl,
            });
            device.f16_math = true;
            device.tensor_cores = Some(tensor_cores);
            device.fast_local = true;
            device.compute_units = units;
            device.local_bytes = 48 << 10;
            device.max_workgroup = 1024;
        });
        let cases = (super::super::DEF.cases)().into_iter();
        let kernels = |case| {
            let scenario = Scenario::of(&case).unwrap();
            case::kernels(&scenario, &caps, DType::F16).unwrap()
        };
        cases.flat_map(kernels).collect()
    }

    #[test]
    fn cases_run_each_kernel_by_weights_of_each_width() {
        let ptx = [132, 1].map(|units| planned(TensorCores::Ptx, units)).concat();
        let matrices = planned(TensorCores::CooperativeMatrix, 132);
        for spec in &ptx {
            assert!(spec.expand(Language::OpenClC).is_ok(), "{spec}");
        }
        let contains = |all: &[KernelSpec], kernel: &Kernel, defines: &[(&str, i64)], two: bool| {
            let codes2 = |spec: &KernelSpec| spec.args().position(|arg| arg.name == "codes2");
            let has_two = |spec: &KernelSpec| codes2(spec).is_some_and(|i| spec.operands[i].is_some());
            let found = all.iter().any(|spec| {
                let defined = |(name, n): &(&str, i64)| spec.defines.get(name).copied().unwrap_or(0) == *n;
                spec.kernel.name == kernel.name && defines.iter().all(defined) && has_two(spec) == two
            });
            assert!(found, "{} with {defines:?}, two weights: {two}", kernel.name);
        };
        for bits in [4, 8].map(|n| ("BITS", n)) {
            contains(&ptx, &VECTOR, &[bits], false);
            for rows in [8, 16].map(|n| ("FEW", n)) {
                contains(&ptx, &FEW, &[bits, rows], false);
            }
            for across in [1, 2, 4].map(|n| ("ACROSS", n)) {
                contains(&ptx, &MMA, &[bits, across], false);
            }
            contains(&matrices, &VECTOR, &[bits], false);
            contains(&matrices, &FEW, &[bits], false);
            for tiles in [1, 4].map(|n| ("TILES", n)) {
                contains(&matrices, &MATRIX, &[bits, tiles], false);
            }
        }
        for bits in [2, 3, 5, 6].map(|n| ("BITS", n)) {
            for kernel in [&VECTOR.kernel, &MMA.kernel] {
                contains(&ptx, kernel, &[bits], false);
            }
            for kernel in [&VECTOR.kernel, &FEW.kernel, &MATRIX.kernel] {
                contains(&matrices, kernel, &[bits], false);
            }
        }
        let bits = ("BITS", 4);
        contains(&ptx, &FEW, &[bits, ("FEW", 16)], true);
        for across in [1, 2].map(|n| ("ACROSS", n)) {
            contains(&ptx, &MMA, &[bits, across], true);
        }
        contains(&matrices, &MATRIX, &[bits, ("TILES", 2)], false);
    }

    #[test]
    fn kernels_of_the_other_language_are_not_supported() {
        let device = Caps::generic_gpu().with(|device| {
            device.tensor_cores = Some(TensorCores::Ptx);
            device.local_bytes = 48 << 10;
        });
        let supported = [&MMA.kernel, &MATRIX.kernel].map(|k| device.profile.supports(k));
        assert_eq!(supported, [true, false]);
    }

    #[test]
    fn what_the_rule_chooses_is_among_what_is_measured() {
        for rows in [1, 16, 17, 32, 64, 100, 128, 1024] {
            for (n, units) in [32, 68, 576, 4096, 5120, 11_008, 151_936]
                .into_iter()
                .flat_map(|n| [1, 24, 132, 160].map(|units| (n, units)))
            {
                let tile = Tile::of(rows, n, units);
                let of = [tile.rows, tile.columns, tile.tiles];
                assert!(
                    ALL.contains(&of),
                    "{tile:?} for {rows} rows, {n} columns, {units} units"
                );
            }
        }
    }
}
