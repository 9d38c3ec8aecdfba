// E0M words (src/quant/mod.rs). Kernels walk along K in steps of PER weights. The codes of a step
// are in a word of the plane of high bits, which has HIGH bits of each code if it does not have all
// 4 or 8, and, with LOW, in a word of the plane of low bits. A scale applies to GROUP * SPAN
// weights.
#ifdef PER4
const PER: u32 = 4u;
#else
const PER: u32 = 8u;
#endif
#ifndef SPAN
const SPAN: u32 = 1u;
#endif

// Rows of words of this many steps.
fn e0m_rows(steps: u32) -> u32 { return steps * (PER * BITS) / 32u; }

// Codes and scales of the weight that a work-item multiplies by; with HAS_CODES2, one of two.
#ifdef HAS_CODES2
var<private> takes_second: bool;

fn codes_at(i: u32) -> vec4<u32> {
  if (takes_second) { return codes2[i]; }
  return codes[i];
}

fn pairs_at(i: u32) -> vec4<u32> {
  if (takes_second) { return scales2[i]; }
  return scales[i];
}
#else
fn codes_at(i: u32) -> vec4<u32> { return codes[i]; }

fn pairs_at(i: u32) -> vec4<u32> { return scales[i]; }
#endif

#ifdef NESTED
// Nested scales (src/quant/mod.rs): blocks of 256 weights have NESTED groups, whose entries take
// ENTRY bits. Integers have 6 bits with SIX.
#ifdef SIX
const E0M_WORDS = 3u;
const E0M_PER_WORD = 24u / ENTRY;
#else
const E0M_WORDS = 4u;
const E0M_PER_WORD = 32u / ENTRY;
#endif

fn e0m_half_rows(k: u32) -> u32 {
#ifdef MINIMA
  return k / 256u;
#else
  return (k / 256u + 1u) / 2u;
#endif
}

// Rows of words of the scales.
fn e0m_scale_rows(k: u32) -> u32 { return e0m_half_rows(k) + k / 256u * E0M_WORDS; }

// Halves of a block of four columns, and entries of a group.
struct E0mNested { halves: vec4<u32>, entry: vec4<u32> }

// Those of group g of k weights, whose scales start at `at`.
fn e0m_nested(at: u32, g: u32, panel: u32, k: u32) -> E0mNested {
  let block = g / NESTED;
  let group = g % NESTED;
#ifdef MINIMA
  let halves = pairs_at(at + block * panel);
#else
  let halves = pairs_at(at + block / 2u * panel) >> vec4<u32>(block % 2u * 16u);
#endif
  let first = at + (e0m_half_rows(k) + block * E0M_WORDS) * panel;
  let row = group / E0M_PER_WORD;
  var entry: vec4<u32>;
#ifdef SIX
  // The last entries are in the high bytes of three words.
  if (row == 3u) {
    entry = (pairs_at(first) >> vec4<u32>(24u)) | ((pairs_at(first + panel) >> vec4<u32>(16u)) & vec4<u32>(0xFF00u))
        | ((pairs_at(first + 2u * panel) >> vec4<u32>(8u)) & vec4<u32>(0xFF0000u));
  } else {
    entry = pairs_at(first + row * panel);
  }
#else
  entry = pairs_at(first + row * panel);
#endif
  return E0mNested(halves, entry >> vec4<u32>(group % E0M_PER_WORD * ENTRY));
}

// (v - middle) / 2^n of an integer v below 2^23, by the mantissa of a float: GPUs convert few
// integers per cycle. Divided by 2^14, a factor is what it was before it was stored.
fn e0m_integer(v: vec4<u32>, middle: f32, n: u32) -> vec4<f32> {
  return bitcast<vec4<f32>>(v | vec4<u32>((150u - n) << 23u)) - (8388608.0 + middle) / f32(1u << n);
}

// See e0m_weight.
struct E0mAffine { scale: vec4<f32>, rest: vec4<f32> }

fn e0m_low_halves(words: vec4<u32>) -> vec4<f32> {
  return vec4<f32>(unpack2x16float(words.x).x, unpack2x16float(words.y).x, unpack2x16float(words.z).x,
      unpack2x16float(words.w).x);
}

fn e0m_decode(n: E0mNested) -> E0mAffine {
  let d = e0m_low_halves(n.halves);
#ifdef MINIMA
  let mask = vec4<u32>((1u << (ENTRY / 2u)) - 1u);
  let m = e0m_low_halves(n.halves >> vec4<u32>(16u));
  let scale = d * e0m_integer(n.entry & mask, 0.0, 15u - BITS);
  return E0mAffine(scale, -m * e0m_integer((n.entry >> vec4<u32>(ENTRY / 2u)) & mask, 0.0, 14u));
#else
  // 6 bits are stored with an offset, 8 bits in two's complement.
#ifdef SIX
  let integer = e0m_integer(n.entry & vec4<u32>(63u), 32.0, 15u - BITS);
#else
  let integer = e0m_integer((n.entry ^ vec4<u32>(128u)) & vec4<u32>(255u), 128.0, 15u - BITS);
#endif
  return E0mAffine(d * integer, vec4<f32>());
#endif
}
#else
// Rows of words of the scales.
fn e0m_scale_rows(k: u32) -> u32 { return (k + GROUP * SPAN - 1u) / (GROUP * SPAN); }
#endif

// The weights of w1. Those of nested scales without minima have no rest.
fn e0m_weight(w1: vec4<f32>, scale: vec4<f32>, rest: vec4<f32>) -> vec4<f32> {
#ifdef NESTED
#ifdef MINIMA
  return (w1 - 2.0) * scale + rest;
#else
  return (w1 - 3.0) * scale;
#endif
#else
  return w1 * scale + rest;
#endif
}

// Words of a step of four columns.
struct E0mWords {
  high: vec4<u32>,
#ifdef LOW
  low: vec4<u32>,
#endif
}

// The words that have the codes of step t, for codes that start at `at`, in rows of `panel`.
fn e0m_loaded(at: u32, t: u32, panel: u32) -> E0mWords {
  var w: E0mWords;
#ifdef HIGH
  w.high = codes_at(at + (t / 4u * BITS + t % 4u * HIGH / 4u) * panel);
#else
  w.high = codes_at(at + t * panel);
#endif
#ifdef LOW
  w.low = codes_at(at + (t / 4u * BITS + HIGH + t % 4u * LOW / 4u) * panel);
#endif
  return w;
}

// These words, shifted so that the codes of step t have the bits of the first step.
fn e0m_shifted(w: E0mWords, t: u32) -> E0mWords {
  var r = w;
#ifdef HIGH
  r.high >>= vec4<u32>(t % (4u / HIGH) * (4u * HIGH));
#endif
#ifdef LOW
  r.low >>= vec4<u32>(t % (4u / LOW) * (4u * LOW));
#endif
  return r;
}

fn e0m_words(at: u32, t: u32, panel: u32) -> E0mWords { return e0m_shifted(e0m_loaded(at, t, panel), t); }

// The bits of weight k of a step in words of a plane, moved to bit `to`. Code k is bit field k / 2
// * width + k % 2 * 16.
fn e0m_part(words: vec4<u32>, k: u32, width: u32, to: u32) -> vec4<u32> {
  let field = k / 2u * width + k % 2u * 16u;
  let mask = vec4<u32>(((1u << width) - 1u) << to);
  // A constant condition, so that only one shift remains.
  if (field <= to) { return (words << vec4<u32>(to - field)) & mask; }
  return (words >> vec4<u32>(field - to)) & mask;
}

// w1 of weight k of a step: shifts and an AND-OR on the bits of a float.
fn e0m_levels(w: E0mWords, k: u32) -> vec4<f32> {
#ifdef HIGH
  var bits = e0m_part(w.high, k, HIGH, 23u - HIGH) | vec4<u32>(0x40000000u);
#else
  var bits = e0m_part(w.high, k, BITS, 23u - BITS) | vec4<u32>(0x40000000u);
#endif
#ifdef LOW
  bits |= e0m_part(w.low, k, LOW, 23u - BITS);
#endif
  return bitcast<vec4<f32>>(bits);
}

fn e0m_both(words: vec4<u32>, k: u32, width: u32, to: u32) -> vec4<u32> {
  let mask = vec4<u32>((((1u << width) - 1u) << to) * 0x10001u);
  if (k * width <= to) { return (words << vec4<u32>(to - k * width)) & mask; }
  return (words >> vec4<u32>(k * width - to)) & mask;
}

// The codes 2k and 2k + 1 of a step in the two halves of each word, from bit `to` on: as many
// operations as for a single code.
fn e0m_pairs_of_codes(w: E0mWords, k: u32, to: u32) -> vec4<u32> {
#ifdef HIGH
  var bits = e0m_both(w.high, k, HIGH, to + BITS - HIGH);
#else
  var bits = e0m_both(w.high, k, BITS, to);
#endif
#ifdef LOW
  bits |= e0m_both(w.low, k, LOW, to);
#endif
  return bits;
}

// The bits of w1 as halves, divided by a power of two that the exponent sets.
fn e0m_halves(w: E0mWords, k: u32, exponent: u32) -> vec4<u32> {
  return e0m_pairs_of_codes(w, k, 10u - BITS) | vec4<u32>(exponent);
}

// w1 / 16: a sum of eight products of (w1 - b) / 16 with any halves stays finite.
const E0M_UNIT = 16.0;

fn e0m_pair(w: E0mWords, k: u32) -> vec4<u32> { return e0m_halves(w, k, 0x30003000u); }

// w1 / E0M_DIVISOR: a sum of four products of (w1 - E0M_MIDDLE) / E0M_DIVISOR with any halves stays
// finite.
const E0M_MIDDLE = 3.0;
const E0M_DIVISOR = 4.0;

fn e0m_pair_by_4(w: E0mWords, k: u32) -> vec4<u32> { return e0m_halves(w, k, 0x38003800u); }

// Scale (x) and bias (y) of four columns, each from a packed pair of halves.
struct E0mScales { scale: vec4<f32>, bias: vec4<f32> }

fn e0m_scales(pairs: vec4<u32>) -> E0mScales {
  let a = unpack2x16float(pairs.x);
  let b = unpack2x16float(pairs.y);
  let c = unpack2x16float(pairs.z);
  let d = unpack2x16float(pairs.w);
  return E0mScales(vec4<f32>(a.x, b.x, c.x, d.x), vec4<f32>(a.y, b.y, c.y, d.y));
}
