// y[i, column + j] = sum_k x[i, k] * w[k, j] for many rows and an E0M weight, in halves, for GPUs
// with few registers and fast half arithmetic. A work-item computes ROWS (6) rows of 2 neighbouring
// columns. The work-group shares a stretch of x, and each weight is decoded once for all rows. With
// PARTS, the columns up to end0, up to end1 and the rest are separate results, which start at
// elements 0, start1 and start2.
//
// A result has two chains of multiply-adds, for even and odd weights, of CHAIN steps (1 or 2). They
// are added up in single precision (numeric contract, ARCHITECTURE.md). The sums are separate
// variables, since an array that a compiler does not unroll is kept in memory.
enable f16;
#include "common/e0m"
#include "common/pairs"
#include "common/parts"
const STEPS: u32 = GROUP / PER;
var<workgroup> xs: array<vec4<u32>, ROWS * STEPS>;

// Weights w1 - b of a step for both columns, divided so that the chains stay finite.
struct Step { a: array<vec2<f16>, 4>, b: array<vec2<f16>, 4> }

fn weights(w: E0mWords, by: vec2<f16>, less: vec2<f16>) -> Step {
  let p0 = e0m_pair(w, 0u);
  let p1 = e0m_pair(w, 1u);
  let p2 = e0m_pair(w, 2u);
  let p3 = e0m_pair(w, 3u);
  let x = vec2<f16>(by.x);
  let y = vec2<f16>(by.y);
  let l = vec2<f16>(less.x);
  let m = vec2<f16>(less.y);
  return Step(
    array(fma(pair_of(p0.x), x, l), fma(pair_of(p1.x), x, l), fma(pair_of(p2.x), x, l), fma(pair_of(p3.x), x, l)),
    array(fma(pair_of(p0.y), y, m), fma(pair_of(p1.y), y, m), fma(pair_of(p2.y), y, m), fma(pair_of(p3.y), y, m)),
  );
}

// Chains of a row: even and odd weights of the first column, then of the second.
fn plus(d: vec4<f16>, x: vec4<u32>, w: Step) -> vec4<f16> {
  let x0 = pair_of(x.x);
  let x1 = pair_of(x.y);
  let x2 = pair_of(x.z);
  let x3 = pair_of(x.w);
  return vec4<f16>(
    fma(x3, w.a[3], fma(x2, w.a[2], fma(x1, w.a[1], fma(x0, w.a[0], d.xy)))),
    fma(x3, w.b[3], fma(x2, w.b[2], fma(x1, w.b[1], fma(x0, w.b[0], d.zw)))),
  );
}

fn sums(d: vec4<f16>) -> vec2<f32> {
  let v = vec4<f32>(d);
  return v.xz + v.yw;
}

fn put(row: u32, column: u32, v: vec2<f32>) {
  if (row >= p.m || column >= p.n) { return; }
  y_put2(result_at(row, p.column + column, p.y_stride) / 2u, v);
}

@compute @workgroup_size(WG)
fn matmul_e0m_pairs(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let i0 = group.y * ROWS;
  let steps = p.k / PER;
  let column = (group.x * WG + lid) * 2u;
  let j = select(0u, column, column < p.n);
  let panel = p.panel / 4u;
  let word_at = j / p.panel * e0m_rows(steps) * panel + j % p.panel / 4u;
  let pair_at = j / p.panel * e0m_scale_rows(p.k) * panel + j % p.panel / 4u;
  // The last two of the four columns of a vector.
  let last = vec4<bool>(j % 4u == 2u);
  var t0 = vec2<f32>();
  var t1 = vec2<f32>();
  var t2 = vec2<f32>();
  var t3 = vec2<f32>();
  var t4 = vec2<f32>();
  var t5 = vec2<f32>();
  var g = 0u;
  for (var first = 0u; first < steps; first += STEPS) {
    // Zeros after the end of the sums.
    for (var t = lid; t < ROWS * STEPS; t += WG) {
      let r = t / STEPS;
      let s = first + t % STEPS;
      let at = 4u * ((i0 + r) * steps + s);
      var v = vec4<u32>();
      if (i0 + r < p.m && s < steps) { v = vec4<u32>(x[at], x[at + 1u], x[at + 2u], x[at + 3u]); }
      xs[t] = v;
    }
    workgroupBarrier();
    let s = e0m_scales(scales[pair_at + g / SPAN * panel]);
    let bias = select(s.bias, s.bias.zwzw, last).xy;
    // The factor that makes weights at most 1 / 8: 1, unless the bias is outside [2, 4].
    let share = 2.0 / max(abs(bias - 3.0) + 1.0, vec2<f32>(2.0));
    let by = vec2<f16>(share);
    let less = vec2<f16>(share * bias * (-1.0 / E0M_UNIT));
    let scale = select(s.scale, s.scale.zwzw, last).xy * E0M_UNIT / share;
    let count = min(STEPS, steps - first);
    for (var t = 0u; t < count; t += CHAIN) {
      var d0 = vec4<f16>();
      var d1 = vec4<f16>();
      var d2 = vec4<f16>();
      var d3 = vec4<f16>();
      var d4 = vec4<f16>();
      var d5 = vec4<f16>();
      for (var c = 0u; c < CHAIN; c++) {
        // After the end, x is zero, so any weights will do.
        var words = e0m_words(word_at, min(first + t + c, steps - 1u), panel);
        words.high = select(words.high, words.high.zwzw, last);
#ifdef LOW
        words.low = select(words.low, words.low.zwzw, last);
#endif
        let w = weights(words, by, less);
        let at = t + c;
        d0 = plus(d0, xs[at], w);
        d1 = plus(d1, xs[at + STEPS], w);
        d2 = plus(d2, xs[at + 2u * STEPS], w);
        d3 = plus(d3, xs[at + 3u * STEPS], w);
        d4 = plus(d4, xs[at + 4u * STEPS], w);
        d5 = plus(d5, xs[at + 5u * STEPS], w);
      }
      t0 += scale * sums(d0);
      t1 += scale * sums(d1);
      t2 += scale * sums(d2);
      t3 += scale * sums(d3);
      t4 += scale * sums(d4);
      t5 += scale * sums(d5);
    }
    workgroupBarrier();
    g++;
  }
  put(i0, column, t0);
  put(i0 + 1u, column, t1);
  put(i0 + 2u, column, t2);
  put(i0 + 3u, column, t3);
  put(i0 + 4u, column, t4);
  put(i0 + 5u, column, t5);
}
