// y[column + j] = sum_k x[k] * w[k, j] for one row x and an E0M weight. A work-item takes COLS
// neighbouring columns. LANES work-items are side by side in a work-group, and WG / LANES
// work-items share the same columns: each takes every WG / LANES-th stretch of weights. With w = s
// * (w1 - b), sum x * w = s * (sum x * w1 - b * sum x), so the bias costs nothing per weight.
//
// With WHOLE, the loads of a full stretch are issued together, so that they do not wait for each
// other. With PARTS, the columns up to end0, up to end1 and the rest are separate results, which
// start at elements 0, start1 and start2.
//
// With HAS_GAIN, x is normalized first: x / sqrt(mean of squares + epsilon) * gain, where the first
// factor is applied to the sums. With HAS_CODES2, every other slice multiplies by a second weight
// of the same size, and the epilogue takes the results of both.
//
// With PAIRS, the products of a step are products of halves, for x in halves: two chains of four
// multiply-adds per column, for even and for odd weights, which are added up in single precision
// (numeric contract, ARCHITECTURE.md). The middle of the range of w1 is subtracted first: s * (sum
// x * (w1 - E0M_MIDDLE) - (b - E0M_MIDDLE) * sum x). This makes the products as small as possible,
// and so also their rounding errors.
#ifdef PAIRS
enable f16;
#endif
#include "common/e0m"
#include "common/parts"
#ifdef PAIRS
#include "common/pairs"
#endif
const SLICES: u32 = WG / LANES;
const QUADS: u32 = COLS / 4u;
const STRETCH: u32 = GROUP / PER;
#ifdef HAS_CODES2
const SIDES = 2u;
#else
const SIDES = 1u;
#endif
var<workgroup> part: array<vec4<f32>, WG * QUADS>;
#ifdef HAS_GAIN
var<workgroup> squares: array<f32, SLICES>;
#endif

// Sums over a stretch: x times w1 for each column (with PAIRS, x times (w1 - E0M_MIDDLE) /
// E0M_DIVISOR), x, and, with HAS_GAIN, the squares of x before it is normalized.
struct Terms {
  dots: array<vec4<f32>, QUADS>,
  sum: f32,
#ifdef HAS_GAIN
  square: f32,
#endif
}

#ifdef PAIRS
// Adds the products of step r to the sums.
fn plus(before: Terms, r: u32, word_at: u32, panel: u32) -> Terms {
  var t = before;
  let a = vec4<u32>(x[4u * r], x[4u * r + 1u], x[4u * r + 2u], x[4u * r + 3u]);
  let s = unpack2x16float(a.x) + unpack2x16float(a.y) + unpack2x16float(a.z) + unpack2x16float(a.w);
  t.sum += s.x + s.y;
  for (var q = 0u; q < QUADS; q++) {
    let word = e0m_words(word_at + q, r, panel);
    t.dots[q] += chains_of(a, e0m_pair_by_4(word, 0u), e0m_pair_by_4(word, 1u), e0m_pair_by_4(word, 2u),
        e0m_pair_by_4(word, 3u));
  }
  return t;
}
#else
// Adds the products of step r to the sums.
fn plus(before: Terms, r: u32, word_at: u32, panel: u32) -> Terms {
  var t = before;
#ifdef PER4
  var a = x_at4(r);
#ifdef HAS_GAIN
  t.square += dot(a, a);
  a *= gain_at4(r);
#endif
  t.sum += dot(a, vec4<f32>(1.0));
#else
  var a = x_at4(2u * r);
  var b = x_at4(2u * r + 1u);
#ifdef HAS_GAIN
  t.square += dot(a, a) + dot(b, b);
  a *= gain_at4(2u * r);
  b *= gain_at4(2u * r + 1u);
#endif
  t.sum += dot(a + b, vec4<f32>(1.0));
#endif
  for (var q = 0u; q < QUADS; q++) {
    let word = e0m_words(word_at + q, r, panel);
    var d = t.dots[q];
    d += a.x * e0m_levels(word, 0u) + a.y * e0m_levels(word, 1u) + a.z * e0m_levels(word, 2u)
        + a.w * e0m_levels(word, 3u);
#ifndef PER4
    d += b.x * e0m_levels(word, 4u) + b.y * e0m_levels(word, 5u) + b.z * e0m_levels(word, 6u)
        + b.w * e0m_levels(word, 7u);
#endif
    t.dots[q] = d;
  }
  return t;
}
#endif

@compute @workgroup_size(WG)
fn matvec_e0m(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let lane = lid % LANES;
  let slice = lid / LANES;
#ifdef HAS_CODES2
  takes_second = slice % 2u == 1u;
#endif
  let first = group.x * (LANES * COLS);
  let j = select(0u, first + lane * COLS, first + lane * COLS < p.n);
  let panel = p.panel / 4u;
  var total: array<vec4<f32>, QUADS>;
  let groups = (p.steps + STRETCH - 1u) / STRETCH;
  let word_at = j / p.panel * e0m_rows(p.steps) * panel + j % p.panel / 4u;
  let pair_at = j / p.panel * e0m_scale_rows(p.steps * PER) * panel + j % p.panel / 4u;
#ifdef HAS_GAIN
  var square = 0.0;
#endif
  for (var g = slice / SIDES; g < groups; g += SLICES / SIDES) {
    var t: Terms;
    let r = g * STRETCH;
    let end = min(r + STRETCH, p.steps);
#ifdef WHOLE
    if (r + STRETCH == end) {
      for (var i = 0u; i < STRETCH; i++) { t = plus(t, r + i, word_at, panel); }
    } else
#endif
    {
      for (var i = r; i < end; i++) { t = plus(t, i, word_at, panel); }
    }
    for (var q = 0u; q < QUADS; q++) {
#ifdef NESTED
      let s = e0m_decode(e0m_nested(pair_at + q, g / SPAN, panel, p.steps * PER));
#ifdef PAIRS
      total[q] += s.scale * (E0M_DIVISOR * t.dots[q]) + e0m_weight(vec4<f32>(E0M_MIDDLE), s.scale, s.rest) * t.sum;
#else
      total[q] += s.scale * t.dots[q] + e0m_weight(vec4<f32>(), s.scale, s.rest) * t.sum;
#endif
#else
      let s = e0m_scales(pairs_at(pair_at + g / SPAN * panel + q));
#ifdef PAIRS
      total[q] += s.scale * (E0M_DIVISOR * t.dots[q] - (s.bias - E0M_MIDDLE) * t.sum);
#else
      total[q] += s.scale * (t.dots[q] - s.bias * t.sum);
#endif
#endif
    }
#ifdef HAS_GAIN
    square += t.square;
#endif
  }
  for (var q = 0u; q < QUADS; q++) { part[lid * QUADS + q] = total[q]; }
#ifdef HAS_GAIN
  if (lane == 0u) { squares[slice] = square; }
#endif
  workgroupBarrier();
  var factor = 1.0;
#ifdef HAS_GAIN
  square = 0.0;
  for (var i = 0u; i < SLICES; i += SIDES) { square += squares[i]; }
  factor = inverseSqrt(square / f32(DEPTH) + p.epsilon);
#endif
#ifdef FOLD
  // Many slices are added up in two steps.
  var folded = vec4<f32>();
  if (lid < FOLD * LANES * QUADS) {
    for (var i = lid; i < WG * QUADS; i += FOLD * LANES * QUADS) { folded += part[i]; }
  }
  workgroupBarrier();
  if (lid < FOLD * LANES * QUADS) { part[lid] = folded; }
  workgroupBarrier();
  const SUMS = FOLD;
#else
  const SUMS = SLICES;
#endif
  for (var t = lid; 4u * t < LANES * COLS && first + 4u * t < p.n; t += WG) {
    var v = vec4<f32>();
    for (var i = 0u; i < SUMS; i += SIDES) { v += part[i * LANES * QUADS + t]; }
    v *= factor;
    let at = first + 4u * t;
#ifdef HAS_CODES2
    var u = vec4<f32>();
    for (var i = 1u; i < SUMS; i += SIDES) { u += part[i * LANES * QUADS + t]; }
    u *= factor;
    y_put2(column_at(p.column + at) / 2u, v.xy, u.xy);
    if (at + 2u < p.n) { y_put2(column_at(p.column + at + 2u) / 2u, v.zw, u.zw); }
#else
    y_put2(column_at(p.column + at) / 2u, v.xy);
    if (at + 2u < p.n) { y_put2(column_at(p.column + at + 2u) / 2u, v.zw); }
#endif
  }
}
