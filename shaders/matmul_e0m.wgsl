// y[i, column + j] = sum_k x[i, k] * w[k, j] for many rows and an E0M weight. A work-item computes ROWS (8) rows of COLS (4)
// neighbouring columns; a group of x is shared by the work-group, and each weight is unpacked once for all rows. With PARTS the
// columns up to end0, up to end1 and the rest are results of their own, from elements 0, start1 and start2 on.
// The sums are variables of their own: an array that a compiler does not unroll lives in memory.
#include "common/e0m"
var<workgroup> xs: array<vec4<f32>, ROWS * GROUP / 4u>;

// Weights of PER neighbouring rows and four columns.
struct Weights {
  a: mat4x4<f32>,
#ifndef PER4
  b: mat4x4<f32>,
#endif
}

fn unpack(word: E0mWords, scale: vec4<f32>, offset: vec4<f32>) -> Weights {
  var w: Weights;
  w.a = mat4x4<f32>(
    e0m_levels(word, 0u) * scale - offset,
    e0m_levels(word, 1u) * scale - offset,
    e0m_levels(word, 2u) * scale - offset,
    e0m_levels(word, 3u) * scale - offset,
  );
#ifndef PER4
  w.b = mat4x4<f32>(
    e0m_levels(word, 4u) * scale - offset,
    e0m_levels(word, 5u) * scale - offset,
    e0m_levels(word, 6u) * scale - offset,
    e0m_levels(word, 7u) * scale - offset,
  );
#endif
  return w;
}

// Products of the shared x of one row, from column c of the group, with w.
fn row_product(row: u32, c: u32, w: Weights) -> vec4<f32> {
  let at = (row * GROUP + c) / 4u;
#ifdef PER4
  return w.a * xs[at];
#else
  return w.a * xs[at] + w.b * xs[at + 1u];
#endif
}

// The pair of results of a row from column c on.
fn place(row: u32, c: u32) -> u32 {
#ifdef PARTS
  let first = select(select(p.end1, p.end0, c < p.end1), 0u, c < p.end0);
  let end = select(select(p.y_stride, p.end1, c < p.end1), p.end0, c < p.end0);
  let start = select(select(p.start2, p.start1, c < p.end1), 0u, c < p.end0);
  return (start + row * (end - first) + c - first) / 2u;
#else
  return (row * p.y_stride + c) / 2u;
#endif
}

fn put(row: u32, at: u32, v: vec4<f32>) {
  let c = p.column + at;
  if (row < p.m && at < p.n) { y_put2(place(row, c), v.xy); }
  if (row < p.m && at + 2u < p.n) { y_put2(place(row, c + 2u), v.zw); }
}

@compute @workgroup_size(WG)
fn matmul_e0m(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let i0 = group.y * ROWS;
  let column = (group.x * WG + lid) * COLS;
  let j = select(0u, column, column < p.n);
  let panel = p.panel / 4u;
  let word_at = j / p.panel * e0m_rows(p.k / PER) * panel + j % p.panel / 4u;
  let pair_at = j / p.panel * e0m_groups(p.k) * panel + j % p.panel / 4u;
  var t0 = vec4<f32>();
  var t1 = vec4<f32>();
  var t2 = vec4<f32>();
  var t3 = vec4<f32>();
  var t4 = vec4<f32>();
  var t5 = vec4<f32>();
  var t6 = vec4<f32>();
  var t7 = vec4<f32>();
  var g = 0u;
  for (var k0 = 0u; k0 < p.k; k0 += GROUP) {
    let len = min(GROUP, p.k - k0);
    for (var t = lid; t < ROWS * GROUP / 4u; t += WG) {
      let r = t / (GROUP / 4u);
      let c = 4u * (t % (GROUP / 4u));
      var v = vec4<f32>();
      if (i0 + r < p.m && c < len) { v = x_at4(((i0 + r) * p.k + k0 + c) / 4u); }
      xs[t] = v;
    }
    workgroupBarrier();
    let s = e0m_scales(scales[pair_at + g / SPAN * panel]);
    let offset = s.scale * s.bias;
    for (var c = 0u; c < len; c += PER) {
      let w = unpack(e0m_words(word_at, (k0 + c) / PER, panel), s.scale, offset);
      t0 += row_product(0u, c, w);
      t1 += row_product(1u, c, w);
      t2 += row_product(2u, c, w);
      t3 += row_product(3u, c, w);
      t4 += row_product(4u, c, w);
      t5 += row_product(5u, c, w);
      t6 += row_product(6u, c, w);
      t7 += row_product(7u, c, w);
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
  put(i0 + 6u, column, t6);
  put(i0 + 7u, column, t7);
}
