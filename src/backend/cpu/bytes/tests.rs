use super::*;
use crate::kernels::cpu::harness::Random;

/// Integers of all magnitudes, and factors in both arithmetics.
fn samples(random: &mut Random) -> [Vec<i32>; 4] {
    let mut lists = [const { Vec::new() }; 4];
    for i in 0..64 {
        let x = match i % 6 {
            0 => [i32::MIN, i32::MAX, -1, 0, 1, i32::MIN + 1][i / 6 % 6],
            1 => (random.word().cast_signed() | 1) << (i / 6),
            n => random.word().cast_signed() >> (6 * (n - 2)),
        };
        let mantissa = match i % 4 {
            0 => 1 << 30,
            1 => i32::MAX,
            _ => (1 << 30) + (random.word() >> 2).cast_signed(),
        };
        let shift = random.below(62) as i32 - 31;
        let factor = match i % 3 {
            0 => 2f32.powi(random.below(20) as i32 - 19),
            1 => random.float().abs() * 0.01,
            _ => random.float().abs() * 1e4,
        };
        for (list, v) in lists
            .iter_mut()
            .zip([x, mantissa, shift, factor.to_bits().cast_signed()])
        {
            list.push(v);
        }
    }
    lists
}

/// Scales, narrows and stores 64 sums.
struct Scale<'a> {
    lists: &'a [Vec<i32>; 4],
    is_fixed: bool,
    limits: Limits,
}

impl Job for Scale<'_> {
    type Out = Vec<u8>;
    #[inline(always)]
    unsafe fn run<S: Bytes>(self) -> Vec<u8> {
        let mut out = Vec::new();
        // SAFETY: lists have 64 words.
        unsafe {
            let limits = self.limits.vectors::<S>();
            for at in (0..64).step_by(4 * S::LANES) {
                let mut four = [S::splat(0); 4];
                for (q, v) in four.iter_mut().enumerate() {
                    let [x, mantissa, shift, factor] = self
                        .lists
                        .each_ref()
                        .map(|list| list.as_ptr().add(at + q * S::LANES));
                    *v = if self.is_fixed {
                        let factors = Fixed::load::<S>(mantissa.cast(), shift.cast());
                        Fixed::apply::<S>(Fixed::raised::<S>(S::load(x), factors), factors)
                    } else {
                        Float::apply::<S>(S::load(x), Float::load::<S>(factor.cast(), factor.cast()))
                    };
                }
                let v = S::in_order(S::narrow(four, &limits));
                let mut part = [0u8; MOST_BYTES];
                for block in 0..S::LANES / 4 {
                    S::store_block(part.as_mut_ptr().add(16 * block), v, block);
                }
                let mut whole = [0u8; MOST_BYTES];
                S::store_bytes(whole.as_mut_ptr(), v);
                assert_eq!(part, whole);
                out.extend_from_slice(&part[..4 * S::LANES]);
            }
        }
        out
    }
}

#[test]
fn sums_are_scaled_as_one_by_one() {
    let mut random = Random(7);
    for round in 0..200 {
        let lists = samples(&mut random);
        let limits = Limits {
            zero: random.below(256) as i32 - 128,
            low: -128 + random.below(50) as i32,
            high: 127 - random.below(50) as i32,
        };
        for is_fixed in [true, false] {
            let want: Vec<u8> = (0..64)
                .map(|i| {
                    let [x, mantissa, shift, factor] = lists.each_ref().map(|list| list[i]);
                    let v = match is_fixed {
                        true => multiplied(x, mantissa, shift),
                        false => scaled(x, f32::from_bits(factor.cast_unsigned())),
                    };
                    limits.of(v).cast_unsigned()
                })
                .collect();
            for isa in Isa::supported() {
                let job = Scale {
                    lists: &lists,
                    is_fixed,
                    limits,
                };
                // SAFETY: supported.
                assert_eq!(unsafe { run(isa, job) }, want, "{isa:?} {round} {is_fixed}");
            }
        }
    }
}

/// Looks up all bytes.
struct Lookup<'a>(&'a [u8; 256]);

impl Job for Lookup<'_> {
    type Out = Vec<u8>;
    #[inline(always)]
    unsafe fn run<S: Bytes>(self) -> Vec<u8> {
        let all: Vec<u8> = (0..=u8::MAX).map(|i| i ^ 0x80).collect();
        let mut out = vec![0; 256];
        for i in (0..256).step_by(4 * S::LANES) {
            // SAFETY: inside the lists.
            unsafe {
                let v = S::lookup(self.0.as_ptr(), S::load_bytes(all.as_ptr().add(i)));
                S::store_bytes(out.as_mut_ptr().add(i), v);
            }
        }
        out
    }
}

#[test]
fn tables_are_read_at_all_positions() {
    let table = std::array::from_fn(|i| (i * 167 + 13) as u8);
    for isa in Isa::supported() {
        // SAFETY: supported.
        assert_eq!(unsafe { run(isa, Lookup(&table)) }, table, "{isa:?}");
    }
}

/// Checks dot products of interleaved bytes and of a broadcast word with words of weights.
struct Dots<'a>(&'a [[u8; 64]; 4], &'a [i32; 16]);

impl Job for Dots<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Bytes>(self) {
        let Self(taps, weights) = self;
        // SAFETY: arrays have a vector of any instruction set.
        unsafe {
            let flipped = taps.map(|t| t.map(|v| v ^ S::FLIP as u8));
            let mut four = [S::load_bytes(flipped[0].as_ptr()); 4];
            for (v, tap) in four.iter_mut().zip(&flipped) {
                *v = S::load_bytes(tap.as_ptr());
            }
            let words = S::interleave(four);
            let w = S::weights(S::load(weights.as_ptr()));
            for (q, v) in words.into_iter().enumerate() {
                let mut moved = [0i32; 16];
                let flip = S::activations(S::splat(S::FLIP.cast_signed()));
                S::store(moved.as_mut_ptr(), S::dot(S::splat(0), w, flip));
                let mut sums = [0i32; 16];
                S::store(sums.as_mut_ptr(), S::dot(S::splat(5), w, S::activations(v)));
                for lane in 0..S::LANES {
                    let byte = lane / 4 * 16 + q * 4 + lane % 4;
                    let want = dot(taps.map(|t| t[byte]), weights[lane]) + 5;
                    let moved = if S::FLIP == 0 { 0 } else { moved[lane] };
                    assert_eq!(sums[lane] - moved, want, "{q} {lane}");
                }
            }
            let word = u32::from_le_bytes(taps.map(|t| t[0]));
            let mut ready = [0u32; 2];
            prepare::<S>(&word, ready.as_mut_ptr(), 1);
            let mut sums = [0i32; 16];
            S::store(
                sums.as_mut_ptr(),
                S::dot(S::splat(0), w, S::broadcast(ready.as_ptr())),
            );
            for lane in 0..S::LANES {
                let total: i32 = weights[lane]
                    .to_le_bytes()
                    .iter()
                    .map(|v| i32::from(*v as i8))
                    .sum();
                let moved = if S::FLIP == 0 { 0 } else { 128 * total };
                assert_eq!(
                    sums[lane] - moved,
                    dot(taps.map(|t| t[0]), weights[lane]),
                    "{lane}"
                );
            }
        }
    }
}

fn dot(x: [u8; 4], w: i32) -> i32 {
    let products = x.iter().zip(w.to_le_bytes());
    products
        .map(|(x, w)| i32::from(*x as i8) * i32::from(w as i8))
        .sum()
}

#[test]
fn dot_products_are_exact() {
    let mut random = Random(3);
    for round in 0..100 {
        // Extreme values, among them -128 times -128.
        let mut byte = |_: usize| match round % 3 {
            0 => 0x80,
            1 => [0x80, 0x7F, 0x81, 0][random.below(4)],
            _ => random.word() as u8,
        };
        let taps: [[u8; 64]; 4] = std::array::from_fn(|_| std::array::from_fn(&mut byte));
        let weights = std::array::from_fn(|_| i32::from_le_bytes(std::array::from_fn(&mut byte)));
        for isa in Isa::supported() {
            // SAFETY: supported.
            unsafe { run(isa, Dots(&taps, &weights)) };
        }
    }
}
