//! Depthwise convolution of bytes.
//!
//! The bytes of up to four taps of a row of the window are interleaved and multiplied as words.
//! A vector holds neighbouring channels. If the channels do not fill whole vectors, a vector also
//! spans neighbouring windows, and weights are repeated. Rows of x are then copied with their
//! padding, and with columns grouped by their index modulo the stride, so that a tap of all windows
//! of a row is contiguous.

mod strip;
mod tables;

use crate::backend::cpu::args::{Bound, NativeKernel, Piece, Scratch, Store, product};
use crate::backend::cpu::bytes::{self, Arithmetic, Bytes, Limits, MOST_BYTES, ScaledJob};
use crate::backend::cpu::isa::Isa;
use crate::backend::kernel::KernelSpec;
use crate::kernels::cpu::window::{Window, steps_inside};
use crate::kernels::int8_conv::cpu::{holds_images, lists};
use strip::Strip;
use tables::{Set, prepare};

type Args = super::DepthwiseArgs<Bound>;

pub struct Int8Depthwise {
    isa: Isa,
    window: Window,
    is_fixed: bool,
}

impl Args {
    fn limits(&self) -> Limits {
        Limits::new(self.zero, self.low, self.high)
    }
}

impl NativeKernel for Int8Depthwise {
    type Signature = super::DepthwiseArgs;

    fn new(spec: &KernelSpec, isa: Isa) -> Option<Self> {
        Some(Self {
            isa,
            window: Window::of(spec)?,
            is_fixed: spec.defines.contains_key(crate::kernels::FIXED),
        })
    }

    fn fits(&self, args: &Args) -> bool {
        let Args { words, rows, .. } = *args;
        let plane = product(&[args.in_h, args.in_w, words]);
        rows == 0
            || words == 0
            || args.limits().are_bytes()
                && holds_images(args.x, rows, product(&[args.out_h, args.out_w]), plane)
                && args.w.holds::<u32>(product(&[words, self.window.taps()]))
                && args.bias.holds::<u32>(product(&[words, 4]))
                && args
                    .factors
                    .holds::<u32>(product(&[words, 4, lists(self.is_fixed)]))
                && args.y.holds::<u32>(product(&[rows, words]))
    }

    fn pieces(&self, args: &Args, threads: usize) -> usize {
        let lines = args.rows.checked_div(args.out_w).unwrap_or(0);
        // Nanoseconds per tap of 256 results.
        let speed = match self.isa {
            Isa::Avx512Vnni => 2,
            Isa::AvxVnni | Isa::Avx2 => 5,
            _ => 20,
        };
        let work = product(&[args.rows, args.words, self.window.taps() + 4]) / 64;
        let nanos = work.saturating_mul(speed);
        if threads < 2 || nanos < 8_000 {
            return 1;
        }
        (nanos / 8_000).clamp(threads, 2 * threads).min(lines).max(1)
    }

    unsafe fn run(&self, args: &Args, store: &Store<'_>, piece: usize, pieces: usize, scratch: &mut Scratch) {
        let job = Piece::new(self, args, store, piece, pieces, scratch);
        // SAFETY: the processor supports the instruction set.
        unsafe { bytes::run_scaled(self.isa, self.is_fixed, job) }
    }
}

/// Taps whose bytes form a word.
const TAPS: usize = 4;

/// Sizes of the data in scratch.
#[derive(Clone, Copy)]
struct Sizes {
    channels: usize,
    /// Number of vectors after which weights repeat.
    sets: usize,
    /// Words of taps in a row of the window.
    words: usize,
    /// Words of taps in the whole window.
    groups: usize,
    /// Bytes of the columns of a row with the same index modulo the stride.
    phase: usize,
    /// Bytes of a copied row of x with padding.
    row: usize,
    /// Rows of results that are computed at once.
    lines: usize,
    /// Whether rows of x are copied.
    copies: bool,
}

/// The greatest common divisor.
const fn common(mut a: usize, mut b: usize) -> usize {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Sizes {
    fn new(args: &Args, window: Window, vector: usize) -> Self {
        let channels = args.words * 4;
        let phase = (args.out_w + window.columns.reach() / window.columns.stride) * channels;
        let words = window.columns.kernel.div_ceil(TAPS);
        // The last vector may end after the row.
        let row = (window.columns.stride * phase + vector).next_multiple_of(MOST_BYTES);
        let copies = !channels.is_multiple_of(vector) || !is_strip(window);
        let copied = (BAND / row).saturating_sub(window.rows.reach() + 1) / window.rows.stride + 1;
        Self {
            channels,
            sets: channels / common(channels, vector),
            words,
            groups: window.rows.kernel * words,
            phase,
            row,
            lines: if copies { copied } else { LINES }.min(args.out_h),
            copies,
        }
    }

    /// Rows of x that a band holds.
    fn rows(self, window: Window) -> usize {
        let rows = window.rows;
        (self.lines - 1) * rows.stride + rows.reach() + 1
    }
}

/// Approximate size of a band, the copied rows of x, in bytes.
const BAND: usize = 48 << 10;
/// Rows of results that are computed at once if nothing is copied.
const LINES: usize = 16;

/// Whether windows have the form that [`Strip`] computes.
fn is_strip(window: Window) -> bool {
    let Window { rows, columns } = window;
    rows.kernel == 3 && rows.dilation == 1 && rows.stride <= 2 && columns.kernel <= TAPS
}

impl ScaledJob for Piece<'_, Int8Depthwise> {
    #[inline(always)]
    unsafe fn run<S: Bytes, A: Arithmetic>(self) {
        let (args, window) = (self.args, self.kernel.window);
        if args.rows == 0 || args.words == 0 {
            return;
        }
        // Rows of results, counted over all images.
        let lines = self.part(args.rows / args.out_w, 1);
        let vector = 4 * S::LANES;
        let sizes = Sizes::new(args, window, vector);
        // For each set: the weights of all taps, the initial sums, and the factors.
        let tables = sizes.sets * (sizes.groups + 3) * vector;
        let repeated = sizes.sets * vector;
        let band = if sizes.copies {
            sizes.rows(window) * sizes.row / 4
        } else {
            0
        };
        let room = self.scratch.of::<u32>(band + tables + repeated);
        let (band, rest) = room.split_at_mut(band);
        let (tables, repeated) = rest.split_at_mut(tables);
        let mut at = lines.start;
        unsafe {
            let (to, repeated) = (tables.as_mut_ptr(), repeated.as_mut_ptr().cast());
            prepare::<S, A>(args, window, sizes, to, repeated);
            while at < lines.end {
                let (image, oy) = (at / args.out_h, at % args.out_h);
                let count = sizes.lines.min(args.out_h - oy).min(lines.end - at);
                let lines = Lines {
                    args,
                    window,
                    sizes,
                    tables: tables.as_ptr(),
                    x: args
                        .x
                        .as_ptr::<u8>()
                        .add(image * args.in_h * args.in_w * sizes.channels),
                    band: band.as_mut_ptr().cast(),
                    oy,
                    count,
                    y: args.y.as_ptr::<u8>().add(at * args.out_w * sizes.channels),
                };
                lines.run::<S, A>();
                at += count;
            }
        }
    }
}

/// Some rows of results of an image.
struct Lines<'a> {
    args: &'a Args,
    window: Window,
    sizes: Sizes,
    tables: *const u32,
    /// The image.
    x: *const u8,
    /// Space for the copied rows of x that these results read.
    band: *mut u8,
    /// The first row of results.
    oy: usize,
    count: usize,
    y: *mut u8,
}

impl Lines<'_> {
    /// # Safety
    /// As for [`NativeKernel::run`].
    #[inline(always)]
    unsafe fn run<S: Bytes, A: Arithmetic>(&self) {
        let Sizes {
            channels,
            sets,
            groups,
            ..
        } = self.sizes;
        let vector = 4 * S::LANES;
        let length = self.args.out_w * channels;
        unsafe {
            if self.sizes.copies {
                self.copy();
            }
            for set in 0..sets.min(length.div_ceil(vector)) {
                let first = set * vector;
                let table = self.tables.add(set * (groups + 3) * vector);
                let own = Set::<S, A>::new(table, groups, self.args.limits());
                match (
                    is_strip(self.window),
                    self.window.rows.stride,
                    self.window.columns.kernel,
                ) {
                    (false, ..) => self.any(first, &own),
                    (_, 1, 4) => self.strips::<S, A, 1, 4>(first, &own),
                    (_, 1, _) => self.strips::<S, A, 1, 3>(first, &own),
                    (_, _, 4) => self.strips::<S, A, 2, 4>(first, &own),
                    (..) => self.strips::<S, A, 2, 3>(first, &own),
                }
            }
        }
    }

    /// The first row of x that is read.
    fn first(&self) -> isize {
        self.window.rows.element(self.oy, 0, self.args.pad_h)
    }

    /// Copies the rows of x with their padding.
    /// # Safety
    /// As for [`NativeKernel::run`].
    #[inline(always)]
    unsafe fn copy(&self) {
        let (args, sizes, rows) = (self.args, self.sizes, self.window.rows);
        let count = (self.count - 1) * rows.stride + rows.reach() + 1;
        for i in 0..count {
            let y = self.first() + i.cast_signed();
            // SAFETY: a row of x, and one of the band.
            unsafe {
                let to = self.band.add(i * sizes.row);
                if (0..args.in_h.cast_signed()).contains(&y) {
                    self.copy_row(self.x.offset(y * (args.in_w * sizes.channels).cast_signed()), to);
                } else {
                    to.write_bytes(args.x_zero as u8, self.window.columns.stride * sizes.phase);
                }
            }
        }
    }

    /// # Safety
    /// As for [`NativeKernel::run`].
    #[inline(always)]
    unsafe fn copy_row(&self, x: *const u8, to: *mut u8) {
        let (args, stride) = (self.args, self.window.columns.stride);
        let Sizes { channels, phase, .. } = self.sizes;
        for remainder in 0..stride {
            let first = remainder.cast_signed() - args.pad_w as isize;
            let inside = steps_inside(first, stride, args.in_w, phase / channels);
            let start = first + (inside.start * stride).cast_signed();
            let bytes = inside.start * channels..inside.end * channels;
            // SAFETY: the elements inside are in the row.
            unsafe {
                let to = to.add(remainder * phase);
                to.write_bytes(args.x_zero as u8, bytes.start);
                to.add(bytes.end)
                    .write_bytes(args.x_zero as u8, phase - bytes.end);
                let x = x.wrapping_offset(start * channels.cast_signed());
                let to = to.add(bytes.start);
                if stride == 1 {
                    to.copy_from_nonoverlapping(x, bytes.len());
                } else {
                    elements(x, to, channels, stride, inside.len());
                }
            }
        }
    }

    /// Offset of tap `tap` of a row of the window in a copied row.
    #[inline(always)]
    fn tap(&self, tap: usize) -> usize {
        let columns = self.window.columns;
        let tap = tap.min(columns.kernel - 1) * columns.dilation;
        tap % columns.stride * self.sizes.phase + tap / columns.stride * self.sizes.channels
    }

    /// Computes the vectors of each row that use weight set `set`, from byte `first` on.
    /// # Safety
    /// As for [`NativeKernel::run`].
    #[inline(always)]
    unsafe fn any<S: Bytes, A: Arithmetic>(&self, first: usize, set: &Set<S, A>) {
        let (vector, rows, sizes) = (4 * S::LANES, self.window.rows, self.sizes);
        let length = self.args.out_w * sizes.channels;
        for line in 0..self.count {
            for at in (first..length).step_by(sizes.sets * vector) {
                let mut sums = set.start;
                for group in 0..sizes.groups {
                    let row = line * rows.stride + group / sizes.words * rows.dilation;
                    // SAFETY: rows have room for whole vectors.
                    unsafe {
                        let row = self.band.add(row * sizes.row + at).cast_const();
                        let mut taps = [S::load_bytes(row); TAPS];
                        for (tap, v) in taps.iter_mut().enumerate() {
                            let at = self.tap(group % sizes.words * TAPS + tap);
                            *v = S::flip(S::load_bytes(row.add(at)));
                        }
                        sums = set.dot(sums, group, S::interleave(taps));
                    }
                }
                // SAFETY: the piece owns the results.
                unsafe { set.put(sums, self.y.add(line * length + at), length - at) };
            }
        }
    }

    /// As [`Lines::any`], for windows of three rows with row stride `SH` and up to `K` columns.
    /// # Safety
    /// As for [`NativeKernel::run`].
    #[inline(always)]
    unsafe fn strips<S: Bytes, A: Arithmetic, const SH: usize, const K: usize>(
        &self,
        first: usize,
        set: &Set<S, A>,
    ) {
        let (vector, args, sizes) = (4 * S::LANES, self.args, self.sizes);
        let columns = self.window.columns;
        let length = args.out_w * sizes.channels;
        let padding = [args.x_zero as u8; MOST_BYTES];
        for at in (first..length).step_by(sizes.sets * vector) {
            let mut strip = Strip {
                taps: [padding.as_ptr(); K],
                steps: [0; K],
                first: 0,
                rows: isize::MAX,
                count: self.count,
                y: self.y.wrapping_add(at),
                pitch: length,
                size: length - at,
            };
            for tap in 0..K {
                if sizes.copies {
                    strip.taps[tap] = self.band.wrapping_add(at + self.tap(tap));
                    strip.steps[tap] = sizes.row;
                    continue;
                }
                let ox = at / sizes.channels;
                let tap_of = tap.min(columns.kernel - 1);
                if let Some(column) = columns.get(ox, tap_of, args.pad_w, args.in_w) {
                    let at = column * sizes.channels + at % sizes.channels;
                    strip.taps[tap] = self.x.wrapping_add(at);
                    strip.steps[tap] = args.in_w * sizes.channels;
                }
            }
            if !sizes.copies {
                (strip.first, strip.rows) = (self.first(), args.in_h.cast_signed());
            }
            // SAFETY: taps are inside x or the band.
            unsafe { strip.run::<S, A, SH>(set, args.x_zero) };
        }
    }
}

/// Copies every `stride`th element of `size` bytes.
/// # Safety
/// `x` and `to` have room for `count` such elements.
#[inline(always)]
unsafe fn elements(x: *const u8, to: *mut u8, size: usize, stride: usize, count: usize) {
    macro_rules! by_size {
        ($($size:literal)*) => {
            match size {
                $($size => for i in 0..count {
                    unsafe {
                        let v = x.add(i * stride * $size).cast::<[u8; $size]>().read();
                        to.add(i * $size).cast::<[u8; $size]>().write(v);
                    }
                },)*
                _ => for i in 0..count {
                    unsafe {
                        to.add(i * size).copy_from_nonoverlapping(x.add(i * stride * size), size);
                    }
                },
            }
        };
    }
    by_size!(4 8 16 24 32 48);
}
