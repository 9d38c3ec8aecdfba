enable f16;
enable wgpu_cooperative_matrix;
// y[i, column + j] = sum_k x[i, k] * w[k, j] for many rows of halves and an E0M weight, with
// cooperative matrices of 16 x 16. WARPS_M x WARPS_N warps, of TILES * 16 rows by 32 columns each,
// share a block of x and of weights. Weights are decoded to halves and stored by columns in
// work-group memory. The next block is loaded while the current one is summed. With PARTS, the
// columns up to end0, up to end1 and the rest are separate results, which start at elements 0,
// start1 and start2.
#include "common/e0m"
#include "common/parts"
const TM: u32 = WARPS_M * TILES * 16u;
const TN: u32 = WARPS_N * 32u;
const BLOCK: u32 = 64u;
// Length of a row of a block, in vectors of four halves, padded so that rows begin in different
// banks.
const ROW: u32 = BLOCK / 4u + 2u;
const X_EACH: u32 = TM * BLOCK / 4u / WG;
const WORDS: u32 = BLOCK / PER;
const W_EACH: u32 = (WORDS * TN / 4u + WG - 1u) / WG;
var<workgroup> xs: array<vec4<f16>, TM * ROW>;
var<workgroup> ws: array<vec4<f16>, TN * ROW>;
var<workgroup> out: array<f32, WG * 8u>;

// The bits of four neighbouring codes in a word of a plane, from code k on, moved to bit `to`.
fn four_codes(word: u32, k: u32, width: u32, to: u32) -> vec4<u32> {
  let field = vec4<u32>(k / 2u * width) + vec4<u32>(0u, 16u, width, 16u + width);
  return ((vec4<u32>(word) >> field) << vec4<u32>(to)) & vec4<u32>(((1u << width) - 1u) << to);
}

// Four neighbouring weights of column c of a step, from weight k on, as halves.
fn weights(w: E0mWords, c: u32, k: u32, scale: vec4<f32>, rest: vec4<f32>) -> vec4<f16> {
#ifdef HIGH
  var level = four_codes(w.high[c], k, HIGH, 23u - HIGH);
#else
  var level = four_codes(w.high[c], k, BITS, 23u - BITS);
#endif
#ifdef LOW
  level |= four_codes(w.low[c], k, LOW, 23u - BITS);
#endif
  return vec4<f16>(e0m_weight(bitcast<vec4<f32>>(level | vec4<u32>(0x40000000u)), scale, rest));
}

// Elements of x for vector `at` of a block.
fn x_part(at: u32, k0: u32, i0: u32) -> vec4<f16> {
  let k = k0 + at % (BLOCK / 4u) * 4u;
  let v = x[(min(i0 + at / (BLOCK / 4u), p.m - 1u) * p.k + min(k, p.k - 4u)) / 4u];
  return select(vec4<f16>(), v, k < p.k);
}

// The codes of a vector, and their scales.
struct Part {
  words: E0mWords,
#ifdef NESTED
  pair: E0mNested,
#else
  pair: vec4<u32>,
#endif
}

// Vector `at` of a block.
fn w_part(at: u32, k0: u32, first: u32) -> Part {
  let panel = p.panel / 4u;
  let rows = p.k / PER;
  let row = min(k0 / PER + at / (TN / 4u), rows - 1u);
  var j = first + at % (TN / 4u) * 4u;
  j = select(0u, j, j < p.n);
  let words = e0m_words(j / p.panel * e0m_rows(rows) * panel + j % p.panel / 4u, row, panel);
  let pair_at = j / p.panel * e0m_scale_rows(p.k) * panel + j % p.panel / 4u;
  let g = row * PER / (GROUP * SPAN);
#ifdef NESTED
  return Part(words, e0m_nested(pair_at, g, panel, p.k));
#else
  return Part(words, scales[pair_at + g * panel]);
#endif
}

// Stores 16 x 16 sums of a warp from work-group memory.
fn put_tile(row0: u32, column0: u32, lid: u32) {
  workgroupBarrier();
  for (var e = lid % 32u; e < 64u; e += 32u) {
    let row = row0 + e / 4u;
    let c = column0 + e % 4u * 4u;
    let at = lid / 32u * 256u + e * 4u;
    if (row < p.m && c < p.n) {
      y_put4(result_at(row, p.column + c, p.y_stride) / 4u,
          vec4<f32>(out[at], out[at + 1u], out[at + 2u], out[at + 3u]));
    }
  }
  workgroupBarrier();
}

alias Left = coop_mat16x16<f16, A>;
alias Right = coop_mat16x16<f16, B>;
alias Sum = coop_mat16x16<f32, C>;

@compute @workgroup_size(WG)
fn matmul_e0m_coop(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let warp = lid / 32u;
  let row0 = warp % WARPS_M * TILES * 16u;
  let column0 = warp / WARPS_M * 32u;
  let i0 = group.y * TM;
  let first = group.x * TN;
  var x_next: array<vec4<f16>, X_EACH>;
  var w_next: array<Part, W_EACH>;
  var s00: Sum;
  var s01: Sum;
#ifdef TILES2
  var s10: Sum;
  var s11: Sum;
#endif
#ifdef TILES4
  var s20: Sum;
  var s21: Sum;
  var s30: Sum;
  var s31: Sum;
#endif
  for (var e = 0u; e < X_EACH; e++) { x_next[e] = x_part(lid + e * WG, 0u, i0); }
  for (var e = 0u; e < W_EACH; e++) { w_next[e] = w_part(lid + e * WG, 0u, first); }
  for (var k0 = 0u; k0 < p.k; k0 += BLOCK) {
    for (var e = 0u; e < X_EACH; e++) {
      let at = lid + e * WG;
      xs[at / (BLOCK / 4u) * ROW + at % (BLOCK / 4u)] = x_next[e];
    }
    for (var e = 0u; e < W_EACH; e++) {
      let at = lid + e * WG;
      if (at < WORDS * TN / 4u) {
#ifdef NESTED
        let s = e0m_decode(w_next[e].pair);
#endif
        for (var c = 0u; c < 4u; c++) {
#ifdef NESTED
          let scale = vec4<f32>(s.scale[c]);
          let rest = vec4<f32>(s.rest[c]);
#else
          let pair = unpack2x16float(w_next[e].pair[c]);
          let scale = vec4<f32>(pair.x);
          let rest = vec4<f32>(-pair.x * pair.y);
#endif
          let to = (at % (TN / 4u) * 4u + c) * ROW + at / (TN / 4u) * (PER / 4u);
          ws[to] = weights(w_next[e].words, c, 0u, scale, rest);
#ifndef PER4
          ws[to + 1u] = weights(w_next[e].words, c, 4u, scale, rest);
#endif
        }
      }
    }
    workgroupBarrier();
    for (var e = 0u; e < X_EACH; e++) { x_next[e] = x_part(lid + e * WG, k0 + BLOCK, i0); }
    for (var e = 0u; e < W_EACH; e++) { w_next[e] = w_part(lid + e * WG, k0 + BLOCK, first); }
    for (var k = 0u; k < BLOCK / 4u; k += 4u) {
      let b0 = coopLoad<Right>(&ws[column0 * ROW + k], ROW);
      let b1 = coopLoad<Right>(&ws[(column0 + 16u) * ROW + k], ROW);
      let a0 = coopLoadT<Left>(&xs[row0 * ROW + k], ROW);
      s00 = coopMultiplyAdd(a0, b0, s00);
      s01 = coopMultiplyAdd(a0, b1, s01);
#ifdef TILES2
      let a1 = coopLoadT<Left>(&xs[(row0 + 16u) * ROW + k], ROW);
      s10 = coopMultiplyAdd(a1, b0, s10);
      s11 = coopMultiplyAdd(a1, b1, s11);
#endif
#ifdef TILES4
      let a2 = coopLoadT<Left>(&xs[(row0 + 32u) * ROW + k], ROW);
      s20 = coopMultiplyAdd(a2, b0, s20);
      s21 = coopMultiplyAdd(a2, b1, s21);
      let a3 = coopLoadT<Left>(&xs[(row0 + 48u) * ROW + k], ROW);
      s30 = coopMultiplyAdd(a3, b0, s30);
      s31 = coopMultiplyAdd(a3, b1, s31);
#endif
    }
    workgroupBarrier();
  }
  coopStoreT(s00, &out[warp * 256u], 16u);
  put_tile(i0 + row0 + 0u, first + column0 + 0u, lid);
  coopStoreT(s01, &out[warp * 256u], 16u);
  put_tile(i0 + row0 + 0u, first + column0 + 16u, lid);
#ifdef TILES2
  coopStoreT(s10, &out[warp * 256u], 16u);
  put_tile(i0 + row0 + 16u, first + column0 + 0u, lid);
  coopStoreT(s11, &out[warp * 256u], 16u);
  put_tile(i0 + row0 + 16u, first + column0 + 16u, lid);
#endif
#ifdef TILES4
  coopStoreT(s20, &out[warp * 256u], 16u);
  put_tile(i0 + row0 + 32u, first + column0 + 0u, lid);
  coopStoreT(s21, &out[warp * 256u], 16u);
  put_tile(i0 + row0 + 32u, first + column0 + 16u, lid);
  coopStoreT(s30, &out[warp * 256u], 16u);
  put_tile(i0 + row0 + 48u, first + column0 + 0u, lid);
  coopStoreT(s31, &out[warp * 256u], 16u);
  put_tile(i0 + row0 + 48u, first + column0 + 16u, lid);
#endif
}
