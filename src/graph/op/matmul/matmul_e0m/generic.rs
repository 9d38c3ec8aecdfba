//! Dispatches of the kernels that run on any device, and of their forms for phones.

use super::lower::{Left, LeftForm, Part};
use super::tensor_cores::{Several, holds_row};
use super::{
    K_BLOCK, MATRIX, MatrixArgs, PAIRS, QuantizedMatMul, VECTOR, VectorArgs, format_defines, k_block, tune,
};
use crate::graph::op::{OpError, OpResult};
use crate::lower::{Call, DeviceProfile, LowerCx};
use crate::num;
use crate::quant::{Bits, Format, GROUP_STEP, Scales};
use crate::shape::Dim;
use crate::tensor::DType;

impl QuantizedMatMul {
    /// Rows of floats, normalized before unless the kernel does that.
    pub(super) fn left_floats(&self, cx: &mut LowerCx<'_>, rows: &Dim, k: usize, y: DType) -> OpResult<Left> {
        let (x, gain) = self.operands(cx)?;
        let (types, one) = ([x.dtype, y], rows.is(1));
        let several = match one {
            true => None,
            false => self.several_rows(cx.device(), types, k, cx.upper_bound(rows)),
        };
        let form = LeftForm::Floats(several);
        let on_tensor_cores = (one || several.is_some())
            && self
                .vector_on_tensor_cores(cx.device(), types, [k, 1], (false, several), rows)
                .is_some();
        let itself = match on_tensor_cores {
            true => several.is_none_or(|s| s.can_normalize(cx.device())) && holds_row(cx.device(), k),
            // Activations before normalization may be too large for halves.
            false => one && !(cx.device().supports_form(&VECTOR, "PAIRS") && self.in_pairs(types)),
        };
        if gain.is_none() || itself {
            return Ok((x, gain, form));
        }
        let dtype = if on_tensor_cores { x.dtype } else { DType::F32 };
        Ok((self.normed(cx, (x, gain), (rows, k), dtype)?, None, form))
    }

    /// Emits the dispatch of a part with rows of floats.
    pub(super) fn emit_floats(
        &self,
        cx: &mut LowerCx<'_>,
        part: Part<'_>,
        several: Option<Several>,
    ) -> OpResult<()> {
        let (device, types, [k, n]) = (cx.device(), [part.x.dtype, part.y.dtype], part.size);
        let one = part.m.is(1);
        if one || several.is_some() {
            let two = part.codes2.is_some();
            let mut call = match self.vector_on_tensor_cores(device, types, [k, n], (two, several), &part.m) {
                Some(call) => call,
                None if one => self.generic_vector(device, types, [k, n], two)?,
                None => return Err(OpError::NoKernel(format!("{} rows, {several:?}", part.m))),
            };
            if part.gain.is_some() {
                call = call.define("DEPTH", num::signed(k));
            }
            // Several results of one row without gaps are like one row.
            if !one || part.weights.has_gaps() {
                call = part.in_parts(call);
            }
            // Weights that kernels decode at a time: one word of 4-bit or 8-bit weights.
            let step = if self.format.bits == Bits::Eight { 4 } else { 8 };
            let steps = Dim::from_usize(k / step);
            let args =
                args!(part => VectorArgs { gain, codes2, scales2, panel, m, y_stride, epsilon; steps });
            return cx.emit(call, args);
        }
        let most = cx.upper_bound(&part.m);
        // Rows of results start at multiples of four elements.
        let by_fours = part.weights.ends.iter().all(|end| end.is_multiple_of(4));
        let on_tensor_cores =
            by_fours.then(|| self.matrix_on_tensor_cores(device, types, k, n, &part.m, most));
        let call = match on_tensor_cores.flatten() {
            Some(call) => call,
            None if self.matrix_pairs(device, types) => self.matrix_in_pairs(n, &part.m)?,
            None => self.generic_matrix(device, k, n, &part.m, most)?,
        };
        let call = part.in_parts(call);
        cx.emit(call, args!(part => MatrixArgs { m, k, panel, y_stride }))
    }

    /// The generic vector kernel for one `k x n` weight, or for two if `two`.
    pub(super) fn generic_vector(
        &self,
        device: &DeviceProfile,
        types: [DType; 2],
        [k, n]: [usize; 2],
        two: bool,
    ) -> OpResult<Call<VectorArgs>> {
        let pairs = device.supports_form(&VECTOR, "PAIRS") && self.in_pairs(types);
        let tuning = tune::vector(self, device, k, n);
        let tile = E0mShape::of(device).with_vector(&tuning);
        let columns = tile.lanes * tile.vector_columns;
        let (items, most) = tile.slices(device, k, n, self.format.group, tile == E0mShape::of(device));
        let fold = items >= FOLD * columns;
        // Every other k-slice processes the second weight.
        let items = match two {
            true if items * 2 <= device.max_workgroup.min(E0mShape::MAX_ITEMS) => items * 2,
            _ => items,
        };
        let by_image = !two && tuning.tunable.is_by_image(&tuning.choice);
        let call = Call::new(&VECTOR, items);
        // Pairs are read as vectors of eight, from the buffer.
        let call = if pairs {
            call.define("PAIRS", 1)
        } else {
            call.reads_vec4(VectorArgs::x)
        };
        let call = if by_image {
            call.reads_vec4(VectorArgs::codes)
        } else {
            call
        };
        let call = format_defines(call, self.format, most)
            .define("LANES", i64::from(tile.lanes))
            .define("COLS", i64::from(tile.vector_columns))
            .grid(Dim::from_usize(n).ceil_div(i64::from(columns))?, 1, 1)
            .tuned_by(tuning);
        let call = if fold {
            call.define("FOLD", i64::from(FOLD))
        } else {
            call
        };
        // A run of loads needs more registers than a phone's GPU has at full occupancy. So do image
        // reads, which compilers move to the front of an unrolled loop.
        let in_turn = if by_image {
            true
        } else if pairs {
            device.few_registers
        } else {
            device.images_of(&VECTOR).is_some()
        };
        Ok(if device.supports_form(&VECTOR, "WHOLE") && !in_turn {
            call.define("WHOLE", 1)
        } else {
            call
        })
    }

    /// The generic matrix kernel for at most `most` rows and a `k x n` weight.
    pub(super) fn generic_matrix(
        &self,
        device: &DeviceProfile,
        k: usize,
        n: usize,
        rows: &Dim,
        most: Option<i64>,
    ) -> OpResult<Call<MatrixArgs>> {
        let tuning = tune::matrix(self, device, k, n, most);
        let mut tile = E0mShape::of(device).with_matrix(&tuning);
        if device.few_registers && has_most_registers(self.format) {
            tile.rows = tile.rows.min(2);
        }
        let columns = tile.matrix_items * tile.matrix_columns;
        let call = Call::new(&MATRIX, tile.matrix_items);
        let groups = Dim::from_usize(n).ceil_div(i64::from(columns))?;
        let call = match tuning.tunable.is_by_image(&tuning.choice) {
            true => call.reads_vec4(MatrixArgs::codes),
            false => call,
        };
        let call = format_defines(call, self.format, K_BLOCK)
            .reads_vec4(MatrixArgs::x)
            .define("ROWS", i64::from(tile.rows))
            .define("COLS", i64::from(tile.matrix_columns))
            .grid(groups, rows.ceil_div(i64::from(tile.rows))?, 1)
            .tuned_by(tuning);
        let call = call.define_if("HALF_TILE", tile.rows < 8);
        Ok(call.define_if("QUARTER_TILE", tile.rows < 4))
    }

    /// The matrix kernel in halves, for a weight of `n` columns.
    pub(super) fn matrix_in_pairs(&self, n: usize, rows: &Dim) -> OpResult<Call<MatrixArgs>> {
        const ITEMS: u32 = 32;
        /// Rows per work-item, limited by registers.
        const ROWS: i64 = 6;
        let even = (k_block(self.format.group, K_BLOCK) / GROUP_STEP).is_multiple_of(2);
        let groups = Dim::from_usize(n).ceil_div(2 * i64::from(ITEMS))?;
        let call = format_defines(Call::new(&PAIRS, ITEMS), self.format, K_BLOCK)
            .define("PAIRS", 1)
            .define("ROWS", ROWS)
            .define("CHAIN", if even { 2 } else { 1 });
        Ok(call.grid(groups, rows.ceil_div(ROWS)?, 1))
    }
}

/// Whether a work-item of the matrix kernel holds more per column than with other formats: words of
/// two planes, and both a scale and an offset.
fn has_most_registers(format: Format) -> bool {
    let offset = match format.scales {
        Scales::Pairs => true,
        Scales::Nested(nested) => nested.minima,
    };
    offset && format.bits.planes().len() == 2
}

/// Partial sums left after the first of two reduction steps.
pub(super) const FOLD: u32 = 8;

/// Work-group shapes of both kernels for a device.
#[derive(PartialEq, Eq)]
pub(super) struct E0mShape {
    /// Work-items of the vector kernel.
    pub(super) vector_items: u32,
    /// Work-items next to each other along the columns; the others split K.
    pub(super) lanes: u32,
    /// Columns per work-item of the vector kernel.
    pub(super) vector_columns: u32,
    /// Work-items of the matrix kernel.
    pub(super) matrix_items: u32,
    /// Columns per work-item of the matrix kernel.
    pub(super) matrix_columns: u32,
    /// Rows per work-item of the matrix kernel.
    pub(super) rows: u32,
}

impl E0mShape {
    /// With more work-items, drivers run out of registers for the loads of a k-block and fail.
    pub(super) const MAX_ITEMS: u32 = 256;

    /// Work-items of the vector kernel for `k x n` weights, and the longest k-block per step. A
    /// large GPU hides memory latency only with about a thousand work-items per compute unit, so
    /// more work-items split a column if `more` is set.
    pub(super) fn slices(
        &self,
        device: &DeviceProfile,
        k: usize,
        n: usize,
        group: usize,
        more: bool,
    ) -> (u32, usize) {
        /// Work-items per compute unit that hide memory latency.
        const EACH: u32 = 1024;
        /// A shorter k-block spends more on its scale than on its weights.
        const MIN_K_BLOCK: usize = 32;
        let mut items = self.vector_items;
        if !device.fast_local {
            return (items, K_BLOCK);
        }
        let columns = self.lanes * self.vector_columns;
        let groups = num::wide(n).div_ceil(u64::from(columns));
        let wanted = u64::from(device.assumed_compute_units().saturating_mul(EACH));
        let most = k_block(group, K_BLOCK);
        let walks = |items: u32, k_block: usize| k.div_ceil(k_block) >= (items / self.lanes) as usize;
        while more
            && groups.saturating_mul(u64::from(items)) < wanted
            && items * 2 <= device.max_workgroup.min(Self::MAX_ITEMS)
            && items * 2 * self.vector_columns * 4 <= device.local_bytes
            && walks(items * 2, MIN_K_BLOCK)
        {
            items *= 2;
        }
        let mut length = most;
        while !walks(items, length) {
            let shorter = k_block(group, length / 2);
            if shorter < MIN_K_BLOCK {
                break;
            }
            length = shorter;
        }
        (items, length)
    }

    pub(super) fn of(device: &DeviceProfile) -> Self {
        Self {
            vector_items: 64,
            lanes: 8,
            vector_columns: 4,
            matrix_items: 32,
            matrix_columns: 4,
            rows: if device.few_registers { 4 } else { 8 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A GPU with so many compute units, whose local memory is fast.
    fn gpu(compute_units: u32) -> DeviceProfile {
        DeviceProfile {
            dedicated_memory: true,
            fast_local: true,
            compute_units,
            ..DeviceProfile::generic_gpu()
        }
    }

    #[test]
    fn k_blocks_are_whole_steps_and_parts_of_a_group() {
        for group in (GROUP_STEP..=2048).step_by(GROUP_STEP) {
            for most in GROUP_STEP..=K_BLOCK {
                let s = k_block(group, most);
                assert!(
                    s <= most && s.is_multiple_of(GROUP_STEP) && group.is_multiple_of(s),
                    "{s} of {group}, at most {most}"
                );
            }
            for (units, k) in [1, 8, 132, 4096]
                .into_iter()
                .flat_map(|u| [(u, 496), (u, 960), (u, 4096)])
            {
                let device = gpu(units);
                let (items, s) = E0mShape::of(&device).slices(&device, k, 576, group, true);
                assert!(
                    s.is_multiple_of(GROUP_STEP) && group.is_multiple_of(s) && items <= 256,
                    "{items} work-items, {s} of {group}, k = {k}, {units} units"
                );
            }
        }
    }

    #[test]
    fn long_columns_are_shared_by_more_work_items() {
        let device = gpu(132);
        let of = |k, n, group| E0mShape::of(&device).slices(&device, k, n, group, true);
        assert_eq!(of(4096, 4096, 128), (256, 128));
        assert_eq!(of(4096, 4096, 32), (256, 32));
        assert_eq!(
            of(1024, 576, 128),
            (256, 32),
            "shorter k-blocks, so that all have one"
        );
        assert_eq!(of(576, 576, 64), (128, 32));
        assert_eq!(of(2048, 64, 64), (256, 64));
        assert_eq!(of(496, 576, 72), (128, 72), "no part of the group is long enough");
        let small = DeviceProfile::generic_gpu();
        assert_eq!(
            E0mShape::of(&small).slices(&small, 4096, 576, 128, true),
            (64, K_BLOCK)
        );
    }
}
