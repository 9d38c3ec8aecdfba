// y[column + j] = sum_k x[k] * w[k, j] for one row x of halves and an E0M weight. A work-group
// computes 32 columns. Each warp of 32 work-items, a subgroup, takes every WARPS-th stretch of four
// blocks of weights, and loads the next stretch while it sums one. A work-item has one of the
// blocks, of four columns, so it applies few scales. The sums are floats, since no cooperative
// matrix has a single column.
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
const WARPS: u32 = WG / 32u;
#ifdef HAS_CODES2
const SIDES = 2u;
#else
const SIDES = 1u;
#endif
// Sums of each warp, in its eight vectors of columns.
var<workgroup> part: array<vec4<f32>, WARPS * 8u>;

#ifdef NESTED
// Groups of a block.
const GROUPS = NESTED / 8u;
#else
// Blocks of a group.
const GROUP_BLOCKS = GROUP * SPAN / BLOCK;
#endif

// Codes of a step, and the elements of x that they multiply.
struct Step {
  words: E0mWords,
  xs: vec4<u32>,
}

// The block of a work-item. Its steps are separate variables, since an array that a compiler does
// not unroll is kept in memory.
struct Block {
  a: Step,
  b: Step,
  c: Step,
  d: Step,
#ifdef NESTED
  // Those of the first group.
  nested: E0mNested,
#else
  pairs: vec4<u32>,
#endif
}

// A step of block i. After the last block, x is zero.
fn step_at(i: u32, t: u32, word_at: u32) -> Step {
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
  return Step(e0m_loaded(word_at, step, p.panel / 4u), select(vec4<u32>(), xs, i < p.steps / 4u));
}

fn block_at(i: u32, word_at: u32, pair_at: u32) -> Block {
  var r: Block;
  r.a = step_at(i, 0u, word_at);
  r.b = step_at(i, 1u, word_at);
  r.c = step_at(i, 2u, word_at);
  r.d = step_at(i, 3u, word_at);
  let last = min(i, p.steps / 4u - 1u);
#ifdef NESTED
  r.nested = e0m_nested(pair_at, last * GROUPS, p.panel / 4u, p.steps * PER);
#else
  r.pairs = pairs_at(pair_at + last / GROUP_BLOCKS * (p.panel / 4u));
#endif
  return r;
}

fn halves(word: vec2<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(word.x), unpack2x16float(word.y)); }

// Sums of x times w1 of four columns (with PAIRS, of x times (w1 - E0M_MIDDLE) / E0M_DIVISOR), and
// of x.
struct Terms {
  dots: vec4<f32>,
  sum: f32,
}

#ifdef PAIRS
fn plus(terms: Terms, r: Step, t: u32) -> Terms {
  let s = halves(r.xs.xy) + halves(r.xs.zw);
  let words = e0m_shifted(r.words, t);
  let dots = chains_of(r.xs, e0m_pair_by_4(words, 0u), e0m_pair_by_4(words, 1u), e0m_pair_by_4(words, 2u),
      e0m_pair_by_4(words, 3u));
  return Terms(terms.dots + dots, terms.sum + dot(s, vec4<f32>(1.0)));
}
#else
fn plus(terms: Terms, r: Step, t: u32) -> Terms {
#ifdef PER4
  let a = halves(select(r.xs.xy, r.xs.zw, (t & 1u) == 1u));
  let sum = terms.sum + dot(a, vec4<f32>(1.0));
#else
  let a = halves(r.xs.xy);
  let c = halves(r.xs.zw);
  let sum = terms.sum + dot(a + c, vec4<f32>(1.0));
#endif
  let words = e0m_shifted(r.words, t);
  var dots = terms.dots + a.x * e0m_levels(words, 0u) + a.y * e0m_levels(words, 1u) + a.z * e0m_levels(words, 2u)
      + a.w * e0m_levels(words, 3u);
#ifndef PER4
  dots += c.x * e0m_levels(words, 4u) + c.y * e0m_levels(words, 5u) + c.z * e0m_levels(words, 6u)
      + c.w * e0m_levels(words, 7u);
#endif
  return Terms(dots, sum);
}
#endif

#ifdef NESTED
fn scaled(nested: E0mNested, terms: Terms) -> vec4<f32> {
  let s = e0m_decode(nested);
#ifdef PAIRS
  return s.scale * (E0M_DIVISOR * terms.dots) + e0m_weight(vec4<f32>(E0M_MIDDLE), s.scale, s.rest) * terms.sum;
#else
  return s.scale * terms.dots + e0m_weight(vec4<f32>(), s.scale, s.rest) * terms.sum;
#endif
}
#else
fn scaled(pairs: vec4<u32>, terms: Terms) -> vec4<f32> {
  let pair = e0m_scales(pairs);
#ifdef PAIRS
  return pair.scale * (E0M_DIVISOR * terms.dots - (pair.bias - E0M_MIDDLE) * terms.sum);
#else
  return pair.scale * (terms.dots - pair.bias * terms.sum);
#endif
}
#endif

// The scaled sums of a block.
fn summed(r: Block) -> vec4<f32> {
  let first = plus(plus(Terms(), r.a, 0u), r.b, 1u);
#ifdef NESTED
  if (GROUPS == 2u) {
    let second = plus(plus(Terms(), r.c, 2u), r.d, 3u);
    let next = E0mNested(r.nested.halves, r.nested.entry >> vec4<u32>(ENTRY));
    return scaled(r.nested, first) + scaled(next, second);
  }
  return scaled(r.nested, plus(plus(first, r.c, 2u), r.d, 3u));
#else
  return scaled(r.pairs, plus(plus(first, r.c, 2u), r.d, 3u));
#endif
}

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
  let word_at = j / p.panel * e0m_rows(p.steps) * panel + j % p.panel / 4u;
  let pair_at = j / p.panel * e0m_scale_rows(p.steps * PER) * panel + j % p.panel / 4u;
  let stretches = (p.steps / 4u + 3u) / 4u;
  let warp = lid / 32u;
#ifdef HAS_CODES2
  takes_second = warp % 2u == 1u;
#endif
  var total = vec4<f32>();
#ifdef HAS_GAIN
  norm_row(lid);
#endif
  var next = block_at(warp / SIDES * 4u + t, word_at, pair_at);
  for (var s = warp / SIDES; s < stretches; s += WARPS / SIDES) {
    let now = next;
    next = block_at((s + WARPS / SIDES) * 4u + t, word_at, pair_at);
    total += summed(now);
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
