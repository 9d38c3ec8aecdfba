enable f16;
enable wgpu_cooperative_matrix;
// y[i, column + j] = sum_k x[i, k] * w[k, j] for a few rows of halves and an E0M weight, with
// cooperative matrices of 16 x 16. A work-group computes 16 rows and 32 columns. Its warps share
// the blocks of weights. Each warp decodes a block into its own part of work-group memory, and
// loads the next one meanwhile. With PARTS, the columns up to end0, up to end1 and the rest are
// separate results, which start at elements 0, start1 and start2. With HAS_CODES2, every other warp
// multiplies by a second weight of the same size, and the epilogue takes the results of both.
#include "common/e0m"
#include "common/parts"
#include "common/pairs"
const BLOCK: u32 = 4u * PER;
const BLOCKS_EACH: u32 = GROUP / BLOCK;
const WARPS: u32 = WG / 32u;
#ifdef HAS_CODES2
const SIDES = 2u;
#else
const SIDES = 1u;
#endif
const OF_SIDE: u32 = WARPS / SIDES;
// Length of a row or column of a block, in vectors of four halves. It is padded, so that rows and
// columns begin in different banks.
const ROW: u32 = BLOCK / 4u + 2u;
var<workgroup> xs: array<vec4<f16>, WARPS * 16u * ROW>;
var<workgroup> ws: array<vec4<f16>, WARPS * 32u * ROW>;
// Sums of each warp, for 16 rows and 16 columns.
var<workgroup> part: array<f32, WARPS * 256u>;

alias Left = coop_mat16x16<f16, A>;
alias Right = coop_mat16x16<f16, B>;
alias Sum = coop_mat16x16<f32, C>;

// The part of a block that a work-item has: codes of four columns, and a part of a row of x.
struct Fetched {
  words: E0mWords,
  x0: vec4<u32>,
#ifndef PER4
  x1: vec4<u32>,
#endif
}

// The part of block i; `row_at` is the start of the work-item's row of x. After the last block, x
// is zero.
fn fetched(i: u32, lane: u32, word_at: u32, row_at: u32) -> Fetched {
  let blocks = p.steps / 4u;
  let block = min(i, blocks - 1u);
  let panel = p.panel / 4u;
  var r: Fetched;
  r.words = e0m_loaded(word_at, block * 4u + lane / 8u, panel);
  let at = row_at + block * (BLOCK / 8u) + lane % 2u * (BLOCK / 16u);
  r.x0 = select(vec4<u32>(), x[at], i < blocks);
#ifndef PER4
  r.x1 = select(vec4<u32>(), x[at + 1u], i < blocks);
#endif
  return r;
}

// A part of a row of x, of eight halves.
fn put_x(at: u32, v: vec4<u32>) {
  xs[at] = vec4<f16>(pair_of(v.x), pair_of(v.y));
  xs[at + 1u] = vec4<f16>(pair_of(v.z), pair_of(v.w));
}

// Scales of four columns as they are stored.
#ifdef NESTED
alias Stored = E0mNested;
// Groups of a block.
const GROUPS = NESTED / 8u;
#else
alias Stored = vec4<u32>;
#endif

// Those of the weights that a work-item has of k-block s.
fn stored(pair_at: u32, s: u32, lane: u32, panel: u32) -> Stored {
#ifdef NESTED
  return e0m_nested(pair_at, s * GROUPS + lane / (32u / GROUPS), panel, p.steps * PER);
#else
  return pairs_at(pair_at + s / SPAN * panel);
#endif
}

// Weights by * code + offset of four columns.
struct Factors { by: vec4<f16>, offset: vec4<f16> }

fn factors(s: Stored) -> Factors {
  // w1 = 2 + 2 * code / 2^BITS.
  const step = 2.0 / f32(1u << BITS);
#ifdef NESTED
  let v = e0m_decode(s);
  return Factors(vec4<f16>(v.scale * step), vec4<f16>(e0m_weight(vec4<f32>(2.0), v.scale, v.rest)));
#else
  let x = pair_of(s.x);
  let y = pair_of(s.y);
  let z = pair_of(s.z);
  let w = pair_of(s.w);
  let scale = vec4<f16>(x.x, y.x, z.x, w.x);
  return Factors(scale * f16(step), scale * (vec4<f16>(f16(2.0)) - vec4<f16>(x.y, y.y, z.y, w.y)));
#endif
}

// Weights of two pairs of codes, which are the mantissas of halves with the exponent of 1024.
fn four(a: u32, b: u32, by: f16, offset: f16) -> vec4<f16> {
  let exponent = vec2<f16>(f16(1024.0));
  let more = vec2<f16>(offset);
  return vec4<f16>(fma(pair_of(a) - exponent, vec2<f16>(by), more), fma(pair_of(b) - exponent, vec2<f16>(by), more));
}

// Decodes a block into the work-group memory of the warp: rows of x, and columns of weights, of
// which column 4 * quad + c lies at 8 * c + quad so that a warp writes without conflict.
fn put_block(r: Fetched, scales_of: Stored, warp: u32, lane: u32) {
  let f = factors(scales_of);
  let by = f.by;
  let offset = f.offset;
  let x_at = (warp * 16u + lane / 2u) * ROW + lane % 2u * (BLOCK / 8u);
  put_x(x_at, r.x0);
#ifndef PER4
  put_x(x_at + 2u, r.x1);
#endif
  let words = e0m_shifted(r.words, lane / 8u);
  let p0 = e0m_pairs_of_codes(words, 0u, 0u) | vec4<u32>(0x64006400u);
  let p1 = e0m_pairs_of_codes(words, 1u, 0u) | vec4<u32>(0x64006400u);
  let to = (warp * 32u + lane % 8u) * ROW + lane / 8u * (PER / 4u);
  ws[to] = four(p0.x, p1.x, by.x, offset.x);
  ws[to + 8u * ROW] = four(p0.y, p1.y, by.y, offset.y);
  ws[to + 16u * ROW] = four(p0.z, p1.z, by.z, offset.z);
  ws[to + 24u * ROW] = four(p0.w, p1.w, by.w, offset.w);
#ifndef PER4
  let p2 = e0m_pairs_of_codes(words, 2u, 0u) | vec4<u32>(0x64006400u);
  let p3 = e0m_pairs_of_codes(words, 3u, 0u) | vec4<u32>(0x64006400u);
  ws[to + 1u] = four(p2.x, p3.x, by.x, offset.x);
  ws[to + 8u * ROW + 1u] = four(p2.y, p3.y, by.y, offset.y);
  ws[to + 16u * ROW + 1u] = four(p2.z, p3.z, by.z, offset.z);
  ws[to + 24u * ROW + 1u] = four(p2.w, p3.w, by.w, offset.w);
#endif
}

// The sums of two neighbouring columns of a row over the warps of a side.
fn two_of(at: u32, side: u32) -> vec2<f32> {
  var v = vec2<f32>();
  for (var w = side; w < WARPS; w += SIDES) {
    v += vec2<f32>(part[w * 256u + at], part[w * 256u + at + 8u]);
  }
  return v;
}

// Stores the columns 2 * half and 2 * half + 1 of each quad. The warps have put their sums in
// `part`.
fn put_sums(half: u32, row0: u32, first: u32, lid: u32) {
  workgroupBarrier();
  for (var e = lid; e < 128u; e += WG) {
    let row = row0 + e / 8u;
    let column = first + e % 8u * 4u + 2u * half;
    if (row < p.m && column < p.n) {
      let at = e / 8u * 16u + e % 8u;
      let to = result_at(row, p.column + column, p.y_stride) / 2u;
#ifdef HAS_CODES2
      y_put2(to, two_of(at, 0u), two_of(at, 1u));
#else
      y_put2(to, two_of(at, 0u));
#endif
    }
  }
  workgroupBarrier();
}

@compute @workgroup_size(WG)
fn matmul_e0m_few(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(local_invocation_index) lid: u32,
) {
  let quad = lid % 8u;
  let first = group.x * 32u;
  let j = select(0u, first + 4u * quad, first + 4u * quad < p.n);
  let panel = p.panel / 4u;
  let word_at = j / p.panel * e0m_rows(p.steps) * panel + j % p.panel / 4u;
  let pair_at = j / p.panel * e0m_scale_rows(p.steps * PER) * panel + j % p.panel / 4u;
  let k_blocks = (p.steps / 4u + BLOCKS_EACH - 1u) / BLOCKS_EACH;
  let warp = lid / 32u;
#ifdef HAS_CODES2
  takes_second = warp % 2u == 1u;
#endif
  // Missing rows repeat the last row. Their results are not stored.
  let row0 = group.y * 16u;
  let lane = lid % 32u;
  let row_at = min(row0 + lane / 2u, p.m - 1u) * (p.steps * PER / 8u);
  var s0: Sum;
  var s1: Sum;
  let rounds = (k_blocks + OF_SIDE - 1u) / OF_SIDE;
  var next = fetched(warp / SIDES * BLOCKS_EACH, lane, word_at, row_at);
  var pairs = stored(pair_at, min(warp / SIDES, k_blocks - 1u), lane, panel);
  for (var i = 0u; i < rounds; i++) {
    let k_block = i * OF_SIDE + warp / SIDES;
    let own = pairs;
    pairs = stored(pair_at, min(k_block + OF_SIDE, k_blocks - 1u), lane, panel);
    for (var e = 0u; e < BLOCKS_EACH; e++) {
      let now = next;
      let last = e + 1u == BLOCKS_EACH;
      let after = select(k_block * BLOCKS_EACH + e + 1u, (k_block + OF_SIDE) * BLOCKS_EACH, last);
      next = fetched(after, lane, word_at, row_at);
      subgroupBarrier();
      put_block(now, own, warp, lane);
      subgroupBarrier();
      for (var k = 0u; k < BLOCK / 4u; k += 4u) {
        let a = coopLoadT<Left>(&xs[warp * 16u * ROW + k], ROW);
        s0 = coopMultiplyAdd(a, coopLoad<Right>(&ws[warp * 32u * ROW + k], ROW), s0);
        s1 = coopMultiplyAdd(a, coopLoad<Right>(&ws[(warp * 32u + 16u) * ROW + k], ROW), s1);
      }
    }
  }
  coopStoreT(s0, &part[warp * 256u], 16u);
  put_sums(0u, row0, first, lid);
  coopStoreT(s1, &part[warp * 256u], 16u);
  put_sums(1u, row0, first, lid);
}
