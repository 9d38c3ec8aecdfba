//! Convolution and matmul of bytes with constant weights, as a matmul of windows with weights.
//!
//! The windows of a block of results are gathered into scratch, where each is contiguous (im2col).
//! Weights are packed at load as `Pack::Words`, in panels of 16 output channels. Each panel ends
//! with the sum of the weights of each channel.

use crate::backend::cpu::args::{Bound, Memory, NativeKernel, Piece, Scratch, Store, part, product};
use crate::backend::cpu::bytes::{self, Arithmetic, Bytes, Limits, PANEL, ScaledJob};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::int8_tile::{Scales, Tiles};
use crate::kernels::cpu::window::Window;
use std::ops::Range;

type Args = super::Args<Bound>;

/// Words in a panel.
pub(crate) const WORDS: usize = PANEL / 4;
/// Bytes of windows that are gathered at once, but at least [`LEAST`] rows.
const GATHERED: usize = 192 << 10;
const LEAST: usize = 48;

pub struct Int8Conv {
    isa: Isa,
    window: Window,
    is_fixed: bool,
}

impl Args {
    fn limits(&self) -> Limits {
        Limits::new(self.zero, self.low, self.high)
    }

    fn panels(&self) -> usize {
        self.outputs.div_ceil(WORDS)
    }
}

/// Number of lists of factors.
pub(crate) fn lists(is_fixed: bool) -> usize {
    if is_fixed { 2 } else { 1 }
}

/// Whether `rows` are whole images of `windows` windows, and `x` holds them at `plane` words each.
pub(crate) fn holds_images(x: Memory, rows: usize, windows: usize, plane: usize) -> bool {
    windows > 0 && rows.is_multiple_of(windows) && x.holds::<u32>(product(&[rows / windows, plane]))
}

impl NativeKernel for Int8Conv {
    type Signature = super::Args;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        Some(Self {
            isa,
            window: Window::of(spec)?,
            is_fixed: spec.defines.contains_key(crate::kernels::FIXED),
        })
    }

    fn fits(&self, args: &Args) -> bool {
        let Args { outputs, rows, .. } = *args;
        if outputs == 0 || rows == 0 {
            return true;
        }
        let terms = product(&[self.window.taps(), args.depth]);
        let groups = outputs.checked_div(args.group).unwrap_or(0);
        let plane = product(&[args.in_h, args.in_w, args.words]);
        groups > 0
            && groups * args.group == outputs
            && product(&[groups, args.depth]) <= args.words
            && args.limits().are_bytes()
            && holds_images(args.x, rows, product(&[args.out_h, args.out_w]), plane)
            && args
                .w
                .holds::<u32>(product(&[args.panels(), PANEL, terms.saturating_add(1)]))
            && args.bias.holds::<u32>(product(&[outputs, 4]))
            && args
                .factors
                .holds::<u32>(product(&[outputs, 4, lists(self.is_fixed)]))
            && args.y.holds::<u32>(product(&[rows, outputs]))
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let (across, down) = self.grid(args, self.wanted(args, threads));
        across * down
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        let job = Piece::new(self, args, store, piece, pieces, scratch);
        // SAFETY: the processor supports the instruction set.
        unsafe { bytes::run_scaled(self.isa, self.is_fixed, job) }
    }
}

impl Int8Conv {
    /// Approximate multiply-adds per nanosecond.
    fn speed(&self) -> usize {
        match self.isa {
            Isa::Avx512Vnni => 300,
            Isa::AvxVnni | Isa::NeonDot | Isa::NeonI8mm => 150,
            Isa::Avx2 => 60,
            _ => 10,
        }
    }

    /// Desired number of pieces for this number of threads.
    fn wanted(&self, args: &Args, threads: usize) -> usize {
        let work = product(&[args.rows, args.outputs, 16, self.window.taps(), args.depth]);
        // Gathering and storing also take time.
        let moved = product(&[args.rows, args.outputs + self.window.taps() * args.words]) / 16;
        let nanos = (work / self.speed()).saturating_add(moved);
        if threads < 2 || nanos < 8_000 {
            return 1;
        }
        (nanos / 8_000).clamp(threads, 2 * threads)
    }

    /// Number of parts into which panels and rows are divided. If there are more weights than
    /// activations, panels are divided first, so that each piece reads its own weights.
    fn grid(&self, args: &Args, pieces: usize) -> (usize, usize) {
        let (panels, tall) = (args.panels().div_ceil(2), args.rows.div_ceil(8));
        let weights = product(&[args.outputs, 4, self.window.taps(), args.depth]);
        if weights > product(&[args.rows, args.words]) {
            let across = pieces.clamp(1, panels.max(1));
            return (across, (pieces / across).clamp(1, tall.max(1)));
        }
        let down = pieces.clamp(1, tall.max(1));
        ((pieces / down).clamp(1, panels.max(1)), down)
    }
}

impl ScaledJob for Piece<'_, Int8Conv> {
    #[inline(always)]
    unsafe fn run<S: Bytes, A: Arithmetic>(self) {
        let (args, window, piece) = (self.args, self.kernel.window, self.piece);
        let (wide, down) = self.kernel.grid(args, self.pieces);
        if piece >= wide * down || args.rows == 0 || args.outputs == 0 {
            return;
        }
        let rows = part(args.rows, 1, piece / wide, down);
        let panels = part(args.panels(), 2, piece % wide, wide);
        let terms = window.taps() * args.depth;
        let stride = terms * S::STEP + slack(args, window, terms * S::STEP);
        let most = (GATHERED / 4 / stride).max(LEAST);
        // Blocks of about the same size.
        let most = rows.len().div_ceil(rows.len().div_ceil(most).max(1));
        let columns = panels.len() * PANEL;
        let room = self.scratch.of::<u32>(3 * columns + most * stride + MARGIN);
        let (lists, space) = room.split_at_mut(3 * columns);
        let panel = (terms + 1) * PANEL;
        // SAFETY: the operands fit.
        unsafe {
            let scales = prepare_scales::<S, A>(args, panels.clone(), panel, lists);
            let gather = Gather { args, window, stride };
            let first = panels.start * WORDS;
            let end = (panels.end * WORDS).min(args.outputs);
            let mut at = rows.start;
            while at < rows.end {
                let count = most.min(rows.end - at);
                for group in first / args.group..=(end - 1) / args.group {
                    let words = (group * args.group).max(first)..((group + 1) * args.group).min(end);
                    let (x, stride) = gather.rows::<S>(at, count, group * args.depth, space);
                    let tiles = Tiles {
                        x,
                        stride,
                        rows: count,
                        depth: terms,
                        w: args.w.as_ptr(),
                        panel,
                        scales,
                        row_start: std::ptr::null(),
                        y: args.y.as_ptr::<u8>().add(at * args.outputs * 4),
                        pitch: args.outputs * 4,
                        columns: [0; 2],
                        limits: args.limits(),
                    };
                    across::<S, A>(tiles, panels.start, words);
                }
                at += count;
            }
        }
    }
}

/// Unused words after each gathered window of `words` words.
fn slack(args: &Args, window: Window, words: usize) -> usize {
    if run(args, window) == 3 && window.taps() > 1 {
        // The last run writes one extra word.
        1
    } else if words.is_multiple_of(128) {
        // Rows whose distance is a multiple of 512 bytes would compete for few cache sets.
        16
    } else {
        0
    }
}

/// Words of x that are contiguous in a row of a window, and copied at once.
fn run(args: &Args, window: Window) -> usize {
    let columns = window.columns;
    if args.depth == args.words && columns.dilation == 1 {
        columns.kernel * args.depth
    } else {
        args.depth
    }
}

/// Computes the words `words` of output channels for some rows. Scales start at panel `first`.
/// # Safety
/// As for [`Tiles::run`].
#[inline(always)]
pub(crate) unsafe fn across<S: Bytes, A: Arithmetic>(tiles: Tiles, first: usize, words: Range<usize>) {
    let wide = if S::LANES == PANEL { 4 } else { 1 };
    let mut panel = words.start / WORDS;
    while panel * WORDS < words.end {
        let count = match wide.min(words.end.div_ceil(WORDS) - panel) {
            3 => 2,
            count => count,
        };
        let inside = |word: usize| word.clamp(panel * WORDS, (panel + count) * WORDS) - panel * WORDS;
        let own = Tiles {
            w: tiles.w.wrapping_add(panel * tiles.panel),
            scales: tiles.scales.from((panel - first) * PANEL),
            y: tiles.y.wrapping_add(panel * PANEL),
            columns: [4 * inside(words.start), 4 * inside(words.end)],
            ..tiles
        };
        unsafe { own.run::<S, A>(count) };
        panel += count;
    }
}

/// Copies bias and factors of panels, padded to 16 columns each. Subtracts from the bias what the
/// offset of unsigned activations adds to the sums.
/// # Safety
/// The operands fit; `lists` has three words for each column.
#[inline(always)]
unsafe fn prepare_scales<S: Bytes, A: Arithmetic>(
    args: &Args,
    panels: Range<usize>,
    panel: usize,
    lists: &mut [u32],
) -> Scales {
    let columns = panels.len() * PANEL;
    let (first, channels) = (panels.start * PANEL, args.outputs * 4);
    let own = columns.min(channels - first);
    let (start, rest) = lists.split_at_mut(columns);
    let (one, two) = rest.split_at_mut(columns);
    unsafe {
        let bias = args.bias.as_ptr::<i32>().add(first);
        let factors = args.factors.as_ptr::<u32>().add(first);
        for (i, start) in start.iter_mut().enumerate() {
            let (panel_at, column) = (panels.start + i / PANEL, i % PANEL);
            let sum = args
                .w
                .as_ptr::<i32>()
                .add((panel_at + 1) * panel - PANEL + column);
            let bias = if i < own { *bias.add(i) } else { 0 };
            let moved = if S::FLIP == 0 { 0 } else { 128 };
            *start = bias.wrapping_sub((*sum).wrapping_mul(moved)).cast_unsigned();
        }
        std::ptr::copy_nonoverlapping(factors, one.as_mut_ptr(), own);
        one[own..].fill(0);
        two.fill(0);
        if A::LISTS == 2 {
            std::ptr::copy_nonoverlapping(factors.add(channels), two.as_mut_ptr(), own);
        }
    }
    Scales {
        start: start.as_ptr().cast(),
        first: one.as_ptr(),
        second: two.as_ptr(),
        is_left: A::LISTS == 2 && bytes::any_left(two),
    }
}

/// Unused words after all windows.
const MARGIN: usize = 16;

/// Gathers windows as contiguous rows.
struct Gather<'a> {
    args: &'a Args,
    window: Window,
    /// Words from one gathered row to the next.
    stride: usize,
}

impl Gather<'_> {
    /// Gathers `count` windows from `first` on, of the group whose first word is `word`. Returns
    /// the first window, and the words from one window to the next.
    /// # Safety
    /// The operands fit; `space` has room for these windows.
    #[inline(always)]
    unsafe fn rows<S: Bytes>(
        &self,
        first: usize,
        count: usize,
        word: usize,
        space: &mut [u32],
    ) -> (*const u32, usize) {
        let (a, depth, words) = (self.args, self.args.depth, self.args.words);
        let is_plain = (self.window).is_plain([a.in_h, a.in_w], [a.out_h, a.out_w], [a.pad_h, a.pad_w]);
        debug_assert!(count * self.stride <= space.len(), "space for {count} windows");
        let to = space.as_mut_ptr();
        unsafe {
            let x = a.x.as_ptr::<u32>().cast_const().add(word);
            if is_plain {
                let from = x.add(first * words);
                if S::FLIP == 0 && S::STEP == 1 {
                    return (from, words);
                }
                if words == depth && self.stride == words * S::STEP {
                    bytes::prepare::<S>(from, to, count * words);
                } else {
                    for i in 0..count {
                        bytes::prepare::<S>(from.add(i * words), to.add(i * self.stride), depth);
                    }
                }
            } else {
                self.windows::<S>(x, first, count, to);
            }
        }
        (to, self.stride)
    }

    /// # Safety
    /// As for [`Gather::rows`].
    #[inline(always)]
    unsafe fn windows<S: Bytes>(&self, x: *const u32, first: usize, count: usize, to: *mut u32) {
        let (args, Window { rows, columns }) = (self.args, self.window);
        let step = columns.kernel * args.depth * S::STEP;
        let fill = (args.x_zero & 0xFF).cast_unsigned().wrapping_mul(0x0101_0101);
        let inner = self.inner();
        let (mut ox, mut oy) = (first % args.out_w, first / args.out_w % args.out_h);
        let mut image = first / args.out_w / args.out_h;
        let mut done = 0;
        while done < count {
            // The windows of one row of results.
            let own = ox..args.out_w.min(ox + count - done);
            for ky in 0..rows.kernel {
                let row = rows
                    .get(oy, ky, args.pad_h, args.in_h)
                    .map(|y| x.wrapping_add((image * args.in_h + y) * args.in_w * args.words));
                let to = to.wrapping_add(done * self.stride + ky * step);
                let at = |i: usize| to.wrapping_add((i - own.start) * self.stride);
                unsafe {
                    let Some(row) = row else {
                        for i in own.clone() {
                            bytes::fill::<S>(fill, at(i), columns.kernel * args.depth);
                        }
                        continue;
                    };
                    let middle = inner.start.clamp(own.start, own.end)..inner.end.clamp(own.start, own.end);
                    for i in (own.start..middle.start).chain(middle.end.max(middle.start)..own.end) {
                        self.edge::<S>(row, i, fill, at(i));
                    }
                    if !middle.is_empty() {
                        let first = columns.element(middle.start, 0, args.pad_w).cast_unsigned();
                        let from = row.add(first * args.words);
                        self.taps::<S>(from, columns.kernel, at(middle.start), middle.len());
                    }
                }
            }
            done += own.len();
            (ox, oy) = (0, oy + 1);
            if oy == args.out_h {
                (oy, image) = (0, image + 1);
            }
        }
    }

    /// The columns of windows that touch no padding on the left or right.
    fn inner(&self) -> Range<usize> {
        let (args, columns) = (self.args, self.window.columns);
        let inside = |tap| columns.inside(tap, args.pad_w, args.in_w, args.out_w);
        inside(0).start..inside(columns.kernel - 1).end
    }

    /// Copies `taps` taps of one row of the window, for `count` windows.
    /// # Safety
    /// As for [`Gather::rows`]; all taps are inside x.
    #[inline(always)]
    unsafe fn taps<S: Bytes>(&self, x: *const u32, taps: usize, to: *mut u32, count: usize) {
        let Args { depth, words, .. } = *self.args;
        let columns = self.window.columns;
        let steps = [columns.stride * words, self.stride];
        unsafe {
            let each = run(self.args, self.window).min(taps * depth);
            for tap in 0..(taps * depth).checked_div(each).unwrap_or(0) {
                let x = x.add(tap * columns.dilation * words);
                copy::<S>(x, to.add(tap * each * S::STEP), each, steps, count);
            }
        }
    }

    /// Gathers one row of window `ox`, which touches padding; `x` is that row of x.
    /// # Safety
    /// As for [`Gather::rows`].
    #[inline(always)]
    unsafe fn edge<S: Bytes>(&self, x: *const u32, ox: usize, fill: u32, to: *mut u32) {
        let (args, columns) = (self.args, self.window.columns);
        let inside = columns.taps(ox, args.pad_w, args.in_w);
        let first = columns
            .element(ox, inside.start, args.pad_w)
            .max(0)
            .cast_unsigned();
        let (depth, end) = (args.depth, inside.end);
        unsafe {
            bytes::fill::<S>(fill, to, inside.start * depth);
            let middle = to.add(inside.start * depth * S::STEP);
            self.taps::<S>(x.wrapping_add(first * args.words), inside.len(), middle, 1);
            bytes::fill::<S>(
                fill,
                to.add(end * depth * S::STEP),
                (columns.kernel - end) * depth,
            );
        }
    }
}

/// Prepares `count` runs of `words` words. `a` and `b` are the distances between the first words of
/// runs in the source and the destination. Runs of three words, except for the last one, are copied
/// as four; the fourth word is overwritten later or never read.
/// # Safety
/// As for [`bytes::prepare`].
#[inline(always)]
unsafe fn copy<S: Bytes>(from: *const u32, to: *mut u32, words: usize, [a, b]: [usize; 2], count: usize) {
    macro_rules! by_words {
        ($($words:literal)*) => {
            unsafe {
                match words {
                    3 if count > 0 && S::STEP == 1 => {
                        for i in 0..count - 1 {
                            bytes::prepare_four::<S>(from.add(i * a), to.add(i * b));
                        }
                        bytes::prepare::<S>(from.add((count - 1) * a), to.add((count - 1) * b), 3);
                    }
                    $($words => for i in 0..count {
                        bytes::prepare::<S>(from.add(i * a), to.add(i * b), $words);
                    },)*
                    _ => for i in 0..count {
                        bytes::prepare::<S>(from.add(i * a), to.add(i * b), words);
                    },
                }
            }
        };
    }
    by_words!(1 2 4 6 8 9 16);
}
