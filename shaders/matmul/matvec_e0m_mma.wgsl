// y[column + j] = sum_k x[k] * w[k, j] for one row x of halves and an E0M weight of 4 or 8 bits. A
// work-group computes 32 columns; four work-items share the words of a block of weights in the same
// columns. Each warp of 32 work-items, a subgroup, takes every WARPS-th stretch, and loads the next
// stretch while it sums one. The sums are floats, since no cooperative matrix has a single column.
//
// With PARTS, the columns up to end0, up to end1 and the rest are separate results, which start at
// elements 0, start1 and start2. With HAS_GAIN, each work-group first normalizes the DEPTH elements
// of x in work-group memory: x / sqrt(mean of squares + epsilon) * gain. With HAS_CODES2, every
// other warp multiplies by a second weight of the same size, and the epilogue takes the results of
// both.
//
// With PAIRS, for weights of 4 bits, the products are products of halves, which are added up in
// single precision (numeric contract, ARCHITECTURE.md).
#ifdef PAIRS
enable f16;
#endif
#include "common/e0m"
#include "common/parts"
#ifdef PAIRS
#include "common/pairs"
#endif
#ifdef HAS_GAIN
// Sum of squares of each warp.
var<workgroup> squares: array<f32, WARPS>;
// The normalized x, as pairs of halves.
var<workgroup> row: array<vec4<u32>, DEPTH / 8u>;
#endif
const BLOCK: u32 = 4u * PER;
const BLOCKS_EACH: u32 = GROUP / BLOCK;
const WARPS: u32 = WG / 32u;
#ifdef HAS_CODES2
const SIDES = 2u;
#else
const SIDES = 1u;
#endif
// Sums of each warp, in its eight vectors of columns.
var<workgroup> part: array<vec4<f32>, WARPS * 8u>;

// Codes of a block, and the elements of x that they multiply.
struct Block {
  words: vec4<u32>,
  xs: vec4<u32>,
}

#ifdef NESTED
// Half a block of nested scales, which are those of four groups of 32 weights of 4 bits.
struct Half {
  halves: vec4<u32>,
  a: vec4<u32>,
  b: vec4<u32>,
  c: vec4<u32>,
  second: bool,
}

fn half_at(pair_at: u32, s: u32) -> Half {
  let panel = p.panel / 4u;
  let at = pair_at + (e0m_half_rows(p.steps * PER) + s / 2u * E0M_WORDS) * panel;
  return Half(pairs_at(pair_at + s / 2u * panel), pairs_at(at), pairs_at(at + panel), pairs_at(at + 2u * panel),
      s % 2u == 1u);
}

// Groups 2i and 2i + 1.
fn entries(h: Half, i: u32) -> vec4<u32> {
  if (i == 0u) { return select(h.a, h.c, h.second); }
  let last = (h.a >> vec4<u32>(24u)) | ((h.b >> vec4<u32>(16u)) & vec4<u32>(0xFF00u))
      | ((h.c >> vec4<u32>(8u)) & vec4<u32>(0xFF0000u));
  return select(h.b, last, h.second);
}
#endif

// Up to four blocks with their scales. They are separate variables, since an array that a compiler
// does not unroll is kept in memory.
struct Stretch {
  a: Block,
  b: Block,
  c: Block,
  d: Block,
#ifdef NESTED
  nested: Half,
#else
  pairs: vec4<u32>,
#endif
}

// The part of a block that work-item t has. After the last block, x is zero.
fn block_at(i: u32, t: u32, word_at: u32) -> Block {
  let step = min(i, p.steps / 4u - 1u) * 4u + t;
#ifdef PER4
  let at = step / 2u;
#else
  let at = step;
#endif
#ifdef HAS_GAIN
  let xs = row[at];
#else
  let xs = x[at];
#endif
  return Block(codes_at(word_at + step * (p.panel / 4u)), select(vec4<u32>(), xs, i < p.steps / 4u));
}

fn stretch(s: u32, t: u32, word_at: u32, pair_at: u32) -> Stretch {
  var r: Stretch;
  r.a = block_at(s * BLOCKS_EACH, t, word_at);
  if (BLOCKS_EACH > 1u) { r.b = block_at(s * BLOCKS_EACH + 1u, t, word_at); }
  if (BLOCKS_EACH > 2u) { r.c = block_at(s * BLOCKS_EACH + 2u, t, word_at); }
  if (BLOCKS_EACH > 3u) { r.d = block_at(s * BLOCKS_EACH + 3u, t, word_at); }
  let last = min(s, (p.steps / 4u - 1u) / BLOCKS_EACH);
#ifdef NESTED
  r.nested = half_at(pair_at, last);
#else
  r.pairs = pairs_at(pair_at + last / SPAN * (p.panel / 4u));
#endif
  return r;
}

fn halves(word: vec2<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(word.x), unpack2x16float(word.y)); }

// w1 of weight k (a constant) of a step, from its bits.
fn level(words: vec4<u32>, k: u32) -> vec4<f32> {
  let field = k / 2u * BITS + k % 2u * 16u;
  let to = 23u - BITS;
  let moved = select(words >> vec4<u32>(max(field, to) - to), words << vec4<u32>(max(field, to) - field), field < to);
  return bitcast<vec4<f32>>((moved & vec4<u32>(((1u << BITS) - 1u) << to)) | vec4<u32>(0x40000000u));
}

// Sums of x times w1 of four columns (with PAIRS, of x times (w1 - E0M_MIDDLE) / E0M_DIVISOR), and
// of x.
struct Terms {
  dots: vec4<f32>,
  sum: f32,
}

#ifdef PAIRS
fn plus(terms: Terms, r: Block, t: u32) -> Terms {
  let s = halves(r.xs.xy) + halves(r.xs.zw);
  var words: E0mWords;
  words.high = r.words;
  let dots = chains_of(r.xs, e0m_pair_by_4(words, 0u), e0m_pair_by_4(words, 1u), e0m_pair_by_4(words, 2u),
      e0m_pair_by_4(words, 3u));
  return Terms(terms.dots + dots, terms.sum + dot(s, vec4<f32>(1.0)));
}
#else
fn plus(terms: Terms, r: Block, t: u32) -> Terms {
#ifdef PER4
  let a = halves(select(r.xs.xy, r.xs.zw, (t & 1u) == 1u));
  let sum = terms.sum + dot(a, vec4<f32>(1.0));
#else
  let a = halves(r.xs.xy);
  let c = halves(r.xs.zw);
  let sum = terms.sum + dot(a + c, vec4<f32>(1.0));
#endif
  var dots = terms.dots + a.x * level(r.words, 0u) + a.y * level(r.words, 1u) + a.z * level(r.words, 2u)
      + a.w * level(r.words, 3u);
#ifndef PER4
  dots += c.x * level(r.words, 4u) + c.y * level(r.words, 5u) + c.z * level(r.words, 6u) + c.w * level(r.words, 7u);
#endif
  return Terms(dots, sum);
}
#endif

#ifdef NESTED
// The scaled sums of a block.
fn scaled(halves: vec4<u32>, entry: vec4<u32>, r: Block, t: u32) -> vec4<f32> {
  let terms = plus(Terms(), r, t);
  let s = e0m_decode(E0mNested(halves, entry));
#ifdef PAIRS
  return s.scale * (E0M_DIVISOR * terms.dots) - (s.offset - E0M_MIDDLE * s.scale) * terms.sum;
#else
  return s.scale * terms.dots - s.offset * terms.sum;
#endif
}

// The scaled sums of a stretch.
fn summed(r: Stretch, t: u32) -> vec4<f32> {
  let n = r.nested;
  let first = entries(n, 0u);
  let second = entries(n, 1u);
  let next = vec4<u32>(ENTRY);
  return scaled(n.halves, first, r.a, t) + scaled(n.halves, first >> next, r.b, t)
      + scaled(n.halves, second, r.c, t) + scaled(n.halves, second >> next, r.d, t);
}
#else
// The scaled sums of a stretch.
fn summed(r: Stretch, t: u32) -> vec4<f32> {
  var terms = plus(Terms(), r.a, t);
  if (BLOCKS_EACH > 1u) { terms = plus(terms, r.b, t); }
  if (BLOCKS_EACH > 2u) { terms = plus(terms, r.c, t); }
  if (BLOCKS_EACH > 3u) { terms = plus(terms, r.d, t); }
  let pair = e0m_scales(r.pairs);
#ifdef PAIRS
  return pair.scale * (E0M_DIVISOR * terms.dots - (pair.bias - E0M_MIDDLE) * terms.sum);
#else
  return pair.scale * (terms.dots - pair.bias * terms.sum);
#endif
}
#endif

#ifdef HAS_GAIN
fn norm_row(lid: u32) {
  var square = 0.0;
  for (var i = lid; i < DEPTH / 8u; i += WG) {
    let a = halves(x[i].xy);
    let b = halves(x[i].zw);
    square += dot(a, a) + dot(b, b);
  }
  square = subgroupAdd(square);
  if (lid % 32u == 0u) { squares[lid / 32u] = square; }
  workgroupBarrier();
  square = 0.0;
  for (var w = 0u; w < WARPS; w++) { square += squares[w]; }
  let factor = inverseSqrt(square / f32(DEPTH) + p.epsilon);
  for (var i = lid; i < DEPTH / 8u; i += WG) {
    let a = halves(x[i].xy) * gain_at4(2u * i) * factor;
    let b = halves(x[i].zw) * gain_at4(2u * i + 1u) * factor;
    row[i] = vec4<u32>(pack2x16float(a.xy), pack2x16float(a.zw), pack2x16float(b.xy), pack2x16float(b.zw));
  }
  workgroupBarrier();
}
#endif

// The sums of a quad over the warps of a side.
fn sum_of(quad: u32, side: u32) -> vec4<f32> {
  var v = vec4<f32>();
  for (var w = side; w < WARPS; w += SIDES) { v += part[w * 8u + quad]; }
  return v;
}

@compute @workgroup_size(WG)
fn matvec_e0m_mma(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let quad = lid % 8u;
  let t = lid % 32u / 8u;
  let first = group.x * 32u;
  let j = select(0u, first + 4u * quad, first + 4u * quad < p.n);
  let panel = p.panel / 4u;
  let word_at = j / p.panel * p.steps * panel + j % p.panel / 4u;
  let pair_at = j / p.panel * e0m_scale_rows(p.steps * PER) * panel + j % p.panel / 4u;
  let stretches = (p.steps / 4u + BLOCKS_EACH - 1u) / BLOCKS_EACH;
  let warp = lid / 32u;
#ifdef HAS_CODES2
  takes_second = warp % 2u == 1u;
#endif
  var total = vec4<f32>();
#ifdef HAS_GAIN
  norm_row(lid);
#endif
  var next = stretch(warp / SIDES, t, word_at, pair_at);
  for (var s = warp / SIDES; s < stretches; s += WARPS / SIDES) {
    let now = next;
    next = stretch(s + WARPS / SIDES, t, word_at, pair_at);
    total += summed(now, t);
  }
  total += subgroupShuffleXor(total, 8u);
  total += subgroupShuffleXor(total, 16u);
  if (lid % 32u < 8u) { part[warp * 8u + quad] = total; }
  workgroupBarrier();
  if (lid < 8u && first + 4u * lid < p.n) {
    let c = p.column + first + 4u * lid;
    let v = sum_of(lid, 0u);
#ifdef HAS_CODES2
    let u = sum_of(lid, 1u);
    y_put2(column_at(c) / 2u, v.xy, u.xy);
    if (first + 4u * lid + 2u < p.n) { y_put2(column_at(c + 2u) / 2u, v.zw, u.zw); }
#else
    y_put2(column_at(c) / 2u, v.xy);
    if (first + 4u * lid + 2u < p.n) { y_put2(column_at(c + 2u) / 2u, v.zw); }
#endif
  }
}
