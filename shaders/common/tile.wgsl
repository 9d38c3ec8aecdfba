// A tile of a matrix product: results of TM rows by TN columns of sum_k a[z, i, k] * b[z, k, j] for
// batches z of p.m x p.n results with p.k terms. Rows of a have p.k elements, those of b
// p.b_stride. With TRANS_B, b is [z, j, k]. With WINDOWS, column j consists of the elements in a
// window.
//
// Work-items load blocks of KB terms to local memory, and compute 4 x 4 results each. SPLIT
// work-items sum different terms of the same results, which are added up at the end. With ROUNDS, a
// work-group continues with the batch that is the grid's length further on, until there is none.
// The including file defines where matrices and rows of results begin.
//
// In vectors of four: a row of a block, a row of the tile, and the vectors of a block that a
// work-item loads. Then the number of 4 x 4 blocks of results, and the vectors of a block that a
// work-item sums.
const K4 = KB / 4u;
const N4 = TN / 4u;
const A_VECTORS = TM * K4 / WG;
const B_VECTORS = TN * K4 / WG;
const RESULT_BLOCKS = TM / 4u * N4;
const DEPTH = K4 * RESULT_BLOCKS / WG;
// Both blocks, first that of a; at the end, the partial sums.
const B_BLOCK = TM * K4;
var<workgroup> pool: array<vec4<f32>, POOL>;

// Index in rows of K4 vectors, permuted so that neighbouring work-items, whose rows are four apart,
// read different banks.
fn swizzled(row: u32, k4: u32) -> u32 { return row * K4 + (k4 ^ (row / 4u % 8u)); }

// Four elements of a along k, or zeros after the end of the sums.
fn load_a(at: u32, k: u32) -> vec4<f32> {
  var v = vec4<f32>();
#ifdef A4
  if (k < p.k) { v = a_at4(at / 4u); }
#else
  if (k < p.k) { v.x = a_at(at); }
  if (k + 1u < p.k) { v.y = a_at(at + 1u); }
  if (k + 2u < p.k) { v.z = a_at(at + 2u); }
  if (k + 3u < p.k) { v.w = a_at(at + 3u); }
#endif
  return v;
}

// Four elements of b from column j on, along k with TRANS_B, else along j; zeros after the end of
// the sums.
fn load_b(b0: u32, k: u32, j: u32) -> vec4<f32> {
  var v = vec4<f32>();
#ifdef TRANS_B
  let at = b0 + min(j, p.n - 1u) * p.b_stride + k;
#ifdef B4
  if (k < p.k) { v = b_at4(at / 4u); }
#else
  if (k < p.k) { v.x = b_at(at); }
  if (k + 1u < p.k) { v.y = b_at(at + 1u); }
  if (k + 2u < p.k) { v.z = b_at(at + 2u); }
  if (k + 3u < p.k) { v.w = b_at(at + 3u); }
#endif
#else
  if (k < p.k) {
    let at = b0 + k * p.b_stride;
    let last = p.n - 1u;
#ifdef B4
    v = b_at4((at + select(0u, j, j < p.n)) / 4u);
#else
    v = vec4<f32>(b_at(at + min(j, last)), b_at(at + min(j + 1u, last)), b_at(at + min(j + 2u, last)),
        b_at(at + min(j + 3u, last)));
#endif
  }
#endif
  return v;
}

// sum + w * x as four multiply-adds, which a separate product would not be.
fn plus(sum: vec4<f32>, x: vec4<f32>, w: mat4x4<f32>) -> vec4<f32> {
  var v = sum;
  v += x.x * w[0];
  v += x.y * w[1];
  v += x.z * w[2];
  v += x.w * w[3];
  return v;
}

// Stores results of row i from column j on.
fn put(z: u32, i: u32, j: u32, sum: vec4<f32>) {
  if (i >= p.m || j >= p.n) { return; }
  let to = y_start(z, i) + j;
#ifdef HAS_BIAS
  let v = sum + bias_at(bias_start(z, i));
#else
  let v = sum;
#endif
#ifdef Y4
  y_put4(to / 4u, v);
#else
#ifdef ODD
  y_put(to, v.x);
  if (j + 1u < p.n) { y_put(to + 1u, v.y); }
  if (j + 2u < p.n) { y_put(to + 2u, v.z); }
  if (j + 3u < p.n) { y_put(to + 3u, v.w); }
#else
  y_put2(to / 2u, v.xy);
  if (j + 2u < p.n) { y_put2(to / 2u + 1u, v.zw); }
#endif
#endif
}

fn tile(group: vec3<u32>, lid: u32) {
  let z = group.z;
  let i0 = group.y * TM;
  let j0 = group.x * TN;
  let a0 = a_start(z);
  let b0 = b_start(z);
#ifdef WINDOWS
  // A work-item loads the same columns of every block.
  let windows = windows_from(b0, j0 + lid % N4 * 4u);
#endif
  let slice = lid / RESULT_BLOCKS;
  let place = lid % RESULT_BLOCKS;
  let row = place / N4 * 4u;
  let col = place % N4;
  var s0 = vec4<f32>();
  var s1 = vec4<f32>();
  var s2 = vec4<f32>();
  var s3 = vec4<f32>();
  var a_next: array<vec4<f32>, A_VECTORS>;
  var b_next: array<vec4<f32>, B_VECTORS>;
  for (var k0 = 0u; k0 < p.k + KB; k0 += KB) {
    // The next block is loaded while the previous one is summed.
    for (var e = 0u; e < A_VECTORS; e++) {
      let t = lid + e * WG;
      let k = k0 + t % K4 * 4u;
      a_next[e] = load_a(a0 + min(i0 + t / K4, p.m - 1u) * p.k + k, k);
    }
    for (var e = 0u; e < B_VECTORS; e++) {
      let t = lid + e * WG;
#ifdef TRANS_B
      b_next[e] = load_b(b0, k0 + t % K4 * 4u, j0 + t / K4);
#else
#ifdef WINDOWS
      b_next[e] = taps_at(windows, k0 + t / N4);
#else
      b_next[e] = load_b(b0, k0 + t / N4, j0 + t % N4 * 4u);
#endif
#endif
    }
    if (k0 > 0u) {
      for (var k4 = slice * DEPTH; k4 < slice * DEPTH + DEPTH; k4++) {
#ifdef TRANS_B
        let w = transpose(mat4x4<f32>(
          pool[B_BLOCK + swizzled(4u * col, k4)],
          pool[B_BLOCK + swizzled(4u * col + 1u, k4)],
          pool[B_BLOCK + swizzled(4u * col + 2u, k4)],
          pool[B_BLOCK + swizzled(4u * col + 3u, k4)],
        ));
#else
        let at = B_BLOCK + 4u * k4 * N4 + col;
        let w = mat4x4<f32>(pool[at], pool[at + N4], pool[at + 2u * N4], pool[at + 3u * N4]);
#endif
        s0 = plus(s0, pool[swizzled(row, k4)], w);
        s1 = plus(s1, pool[swizzled(row + 1u, k4)], w);
        s2 = plus(s2, pool[swizzled(row + 2u, k4)], w);
        s3 = plus(s3, pool[swizzled(row + 3u, k4)], w);
      }
    }
    workgroupBarrier();
    for (var e = 0u; e < A_VECTORS; e++) {
      let t = lid + e * WG;
      pool[swizzled(t / K4, t % K4)] = a_next[e];
    }
    for (var e = 0u; e < B_VECTORS; e++) {
      let t = lid + e * WG;
#ifdef TRANS_B
      pool[B_BLOCK + swizzled(t / K4, t % K4)] = b_next[e];
#else
      pool[B_BLOCK + t] = b_next[e];
#endif
    }
    workgroupBarrier();
  }
#ifdef SPLIT
  let mine = 4u * slice * RESULT_BLOCKS + place;
  pool[mine] = s0;
  pool[mine + RESULT_BLOCKS] = s1;
  pool[mine + 2u * RESULT_BLOCKS] = s2;
  pool[mine + 3u * RESULT_BLOCKS] = s3;
  workgroupBarrier();
  for (var t = lid; t < 4u * RESULT_BLOCKS; t += WG) {
    var v = pool[t];
    for (var s = 1u; s < SPLIT; s++) { v += pool[4u * s * RESULT_BLOCKS + t]; }
    put(z, i0 + t % RESULT_BLOCKS / N4 * 4u + t / RESULT_BLOCKS, j0 + t % N4 * 4u, v);
  }
#else
  put(z, i0 + row, j0 + 4u * col, s0);
  put(z, i0 + row + 1u, j0 + 4u * col, s1);
  put(z, i0 + row + 2u, j0 + 4u * col, s2);
  put(z, i0 + row + 3u, j0 + 4u * col, s3);
#endif
}

// Computes the tile of the work-group in its batch, and with ROUNDS in other batches.
fn tiles(group: vec3<u32>, grid: vec3<u32>, lid: u32) {
#ifdef ROUNDS
  for (var z = group.z; z < p.batches; z += grid.z) { tile(vec3<u32>(group.xy, z), lid); }
#else
  tile(group, lid);
#endif
}
