//! Rows of a table of 32-bit elements.

use crate::backend::cpu::args::{Bound, NativeKernel, Scratch, Store, part, pieces_of};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;

type Args = super::Args<Bound>;

/// Results that are collected before an epilogue is applied to them.
const BLOCK: usize = 1024;

/// The kernel `gather`.
pub struct Gather;

impl NativeKernel for Gather {
    type Signature = super::Args;

    fn new(_: &KernelSpec, _: Isa) -> Option<Self> {
        Some(Self)
    }

    /// Reads outside of the table and of the indices are checked one by one.
    fn fits(&self, args: &Args) -> bool {
        args.y.holds::<f32>(args.count)
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        pieces_of(args.count / args.row.max(1), 4 + args.row / 8, threads)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        let row = args.row.max(1);
        let rows = part(args.count / row, 1, piece, pieces);
        // SAFETY: nobody writes operands that are only read.
        let (table, index) = unsafe { (args.table.slice::<f32>(), args.index.slice::<i32>()) };
        let mut run = Run {
            store,
            values: scratch.floats(BLOCK),
            first: 0,
            len: 0,
        };
        for i in rows {
            let (outer, at) = (i / args.indices.max(1), i % args.indices.max(1));
            let Some(from) = place(
                index.get(at).copied(),
                args.table_rows,
                args.first,
                args.part_rows,
            ) else {
                continue;
            };
            let from = from.map(|from| (outer * args.part_rows.max(0) as usize + from) * row);
            let from = from.and_then(|from| table.get(from..from + row));
            // SAFETY: results of these rows belong to the piece.
            unsafe {
                match (store.address(i * row), from) {
                    (Some(y), Some(from)) => std::ptr::copy_nonoverlapping(from.as_ptr(), y, row),
                    (Some(y), None) => std::ptr::write_bytes(y, 0, row),
                    (None, from) => run.push(i * row, row, from),
                }
            }
        }
        // SAFETY: as above.
        unsafe { run.flush() };
    }
}

/// The row that an index selects in a part of a table: rows `first .. first + part_rows` of
/// `table_rows`. `None` means a row of another part. `Some(None)` means zeros: the first part
/// returns it for indices outside the table.
pub(crate) fn place(
    index: Option<i32>,
    table_rows: i32,
    first: i32,
    part_rows: i32,
) -> Option<Option<usize>> {
    let index = i64::from(index?);
    let at = if index < 0 {
        index + i64::from(table_rows)
    } else {
        index
    };
    let row = at - i64::from(first);
    if (0..i64::from(part_rows)).contains(&row) {
        return Some(usize::try_from(row).ok());
    }
    (first == 0)
        .then_some(None)
        .filter(|_| !(0..i64::from(table_rows)).contains(&at))
}

/// Collects contiguous results for an epilogue.
struct Run<'a, 'b> {
    store: &'a Store<'b>,
    values: &'a mut [f32],
    first: usize,
    len: usize,
}

impl Run<'_, '_> {
    /// # Safety
    /// The caller owns the results.
    unsafe fn push(&mut self, first: usize, count: usize, from: Option<&[f32]>) {
        for i in 0..count {
            if self.first + self.len != first + i || self.len == self.values.len() {
                unsafe { self.flush() };
                self.first = first + i;
            }
            self.values[self.len] = from.and_then(|f| f.get(i)).copied().unwrap_or(0.0);
            self.len += 1;
        }
    }

    /// # Safety
    /// The caller owns the results.
    unsafe fn flush(&mut self) {
        if self.len > 0 {
            unsafe { self.store.put(self.first, &self.values[..self.len], None) };
        }
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cpu::harness::{Random, after, memory, run, spec};
    use crate::tensor::DType;

    /// Gathers from a table `[outer, rows, row]`, cut into parts after `cut` rows if `outer` is 1.
    fn check([outer, rows, row]: [usize; 3], indices: usize, cut: usize, epilogue: bool) {
        let mut random = Random(8);
        let mut table = random.floats(outer * rows * row);
        let mut index: Vec<i32> = (0..indices)
            .map(|_| random.below(2 * rows) as i32 - rows as i32)
            .collect();
        index[0] = 1000;
        let count = outer * indices * row;
        let mut want = Vec::new();
        for o in 0..outer {
            for i in &index {
                let at = if *i < 0 { *i + rows as i32 } else { *i } as usize;
                match at < rows {
                    true => want.extend_from_slice(&table[(o * rows + at) * row..][..row]),
                    false => want.resize(want.len() + row, 0.0),
                }
            }
        }
        let spec = spec(&[], &[Some(DType::F32), Some(DType::I32), Some(DType::F32)]);
        let mut y = vec![9.0f32; count];
        let y_at = memory(&mut y);
        for (first, end) in [(0, cut), (cut, rows)] {
            let table = memory(&mut table[outer * first * row..outer * end * row]);
            let operands = [table, memory(&mut index), y_at].map(Some);
            let words = [count, row, indices, rows, first, end - first].map(|v| v as u32);
            if end > first {
                run::<Gather>(&spec, Isa::Portable, &words, &operands, y_at, epilogue, 2);
            }
        }
        let want: Vec<f32> = match epilogue {
            true => want.iter().enumerate().map(|(i, v)| after(i, *v)).collect(),
            false => want,
        };
        assert_eq!(y, want);
    }

    #[test]
    fn rows_of_whole_and_cut_tables_match() {
        for epilogue in [false, true] {
            check([1, 50, 64], 7, 50, epilogue);
            check([1, 50, 64], 7, 20, epilogue);
            check([1, 41, 1], 3000, 41, epilogue);
            check([1, 41, 1], 3000, 7, epilogue);
            check([3, 5, 7], 6, 5, epilogue);
            check([3, 5, 1], 2, 5, epilogue);
        }
    }
}
