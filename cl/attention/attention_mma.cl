// softmax(scale * q k^T + mask) v for many rows of halves on matrix units, or with CAPPED of
// softcap * tanh(scores / softcap), over tiles of KEYS keys with a running maximum.
//
// A warp takes 16 rows of queries of one head. The warps of a work-group share tiles of keys and
// values in local memory: the next keys are loaded while values are summed, and the next values
// while scores are computed. A warp skips a tile if the mask hides every key from its rows; scores
// are assumed to differ by less than 30000.
//
// With CAUSAL, a row sees keys up to its own position. Tiles that no row of the work-group sees are
// not read, and a warp skips those that none of its rows sees. With HAS_TILES (paged_attention.rs),
// which requires CAUSAL, a work-group takes a tile: rows of one sequence. KEYS divides the PAGE
// keys of a page.
#include "common/mma"
#define LOWEST -3.4028235e38f
#define MASKED -60000.0f
#define ROWS (WG / 2)
// Vectors of 16 bytes of a row, and of a tile.
#define CHUNKS (DIM / 8)
#define COPIES (KEYS * CHUNKS)
// Vectors of a row are permuted so that a warp reads keys, and rows of values, without bank
// conflicts.
#define K_INDEX(row, chunk) ((row) * CHUNKS + ((chunk) ^ ((row) % 2 * 4)))
#define V_INDEX(row, chunk) ((row) * CHUNKS + ((chunk) ^ ((row) % 8)))
// The position in the cache, in rows, of a key of the tile of keys that starts at `first`.
#ifdef HAS_TILES
#define PAGE 64
#define KEY_ROW(first, key) (pages_at(table + (first) / PAGE) * PAGE + (key) % PAGE)
#else
#define KEY_ROW(first, key) (past + (key))
#endif
#define COPY_TILE(to, from, place, first) \
  for (uint e = lid; e < COPIES; e += WG) { \
    uint row = e / CHUNKS; \
    COPY16(to + place(row, e % CHUNKS) * 16, \
        from + ((KEY_ROW(first, min((first) + row, keys - 1)) * p.kv_heads + kv) * CHUNKS + e % CHUNKS) * 2); \
  }

KERNEL {
  __local uint4 k_tile[COPIES], v_tile[COPIES];
  uint lid = get_local_id(0), lane = lid % 32, g = lane / 4, t = lane % 4;
  uint head = get_group_id(0), batch = get_group_id(2), kv = head / (p.heads / p.kv_heads);
  uint k_to = LOCAL_ADDRESS(k_tile), v_to = LOCAL_ADDRESS(v_tile);
  // Later rows come first, since they see more keys if attention is causal.
  uint group = get_num_groups(1) - 1 - get_group_id(1);
#ifdef HAS_TILES
  uint start = tiles_at(group * 4), row_end = start + tiles_at(group * 4 + 1), table = tiles_at(group * 4 + 2);
  if (start == row_end) return;
  uint row0 = start + lid / 32 * 16, last_row = row_end - 1, group_row = last_row;
  uint offset = tiles_at(group * 4 + 3) - start, keys = offset + last_row;
#else
  uint row0 = group * ROWS + lid / 32 * 16, row_end = p.rows, last_row = p.rows - 1,
      group_row = min(group * ROWS + ROWS - 1, last_row);
  uint keys = live_at(p.live_keys), past = batch * p.keys, offset = keys - last_row;
#endif
  uint rows[2] = {min(row0 + g, last_row), min(row0 + g + 8, last_row)};
#ifdef CAUSAL
  // The keys that each row sees, and the end of the keys that the rows of the warp and of the
  // work-group see. The last rows are at the positions of the last keys.
  uint seen[2] = {offset + rows[0], offset + rows[1]};
  uint warp_end = row0 < row_end ? offset + min(row0 + 15, last_row) : 0, end = offset + group_row;
#else
  uint seen[2] = {keys, keys}, end = keys;
#endif
  uint4 query[2][DIM / 32];
  _Pragma("unroll") for (uint h = 0; h < 2; h++)
    _Pragma("unroll") for (uint c = 0; c < DIM / 32; c++)
      query[h][c] = ((__global const uint4 *)q)[((batch * p.rows + rows[h]) * p.heads + head) * CHUNKS + c * 4 + t];
  float sum[DIM / 8][4], top[2] = {LOWEST, LOWEST}, total[2] = {0.0f, 0.0f};
  _Pragma("unroll") for (uint n = 0; n < DIM / 8; n++)
    _Pragma("unroll") for (uint e = 0; e < 4; e++) sum[n][e] = 0.0f;
  COPY_TILE(k_to, k, K_INDEX, 0)
  COPIES_COMMIT();
  COPY_TILE(v_to, v, V_INDEX, 0)
  COPIES_COMMIT();
  for (uint first = 0; first < end; first += KEYS) {
    float score[KEYS / 8][4];
    uint hidden = 1;
    _Pragma("unroll") for (uint j = 0; j < KEYS / 8; j++)
      _Pragma("unroll") for (uint e = 0; e < 4; e++) {
        uint key = first + 8 * j + 2 * t + e % 2;
#ifdef HAS_MASK
        float m = mask_at(batch * p.mask_b + head * p.mask_h + rows[e / 2] * p.mask_s + min(key, keys - 1) * p.mask_t);
#else
        float m = 0.0f;
#endif
        score[j][e] = m;
        hidden &= m < MASKED && top[e / 2] > MASKED / 2 ? 1 : 0;
      }
    WARP_ALL(hidden);
#ifdef CAUSAL
    if (first >= warp_end) hidden = 1;
#endif
    COPIES_WAIT(1);
    barrier(CLK_LOCAL_MEM_FENCE);
    uint halves[KEYS / 8][2];
    if (!hidden) {
      _Pragma("unroll") for (uint j = 0; j < KEYS / 8; j++) {
        float dots[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        _Pragma("unroll") for (uint c = 0; c < DIM / 32; c++) {
          uint4 x = k_tile[K_INDEX(8 * j + g, c * 4 + t)];
          MMA(dots, query[0][c].x, query[1][c].x, query[0][c].y, query[1][c].y, x.x, x.y);
          MMA(dots, query[0][c].z, query[1][c].z, query[0][c].w, query[1][c].w, x.z, x.w);
        }
        _Pragma("unroll") for (uint e = 0; e < 4; e++) {
          float s = dots[e] * p.scale;
#ifdef CAPPED
          s = p.softcap * tanh(clamp(s / p.softcap, -20.0f, 20.0f));
#endif
          score[j][e] = first + 8 * j + 2 * t + e % 2 < seen[e / 2] ? s + score[j][e] : LOWEST;
        }
      }
      _Pragma("unroll") for (uint h = 0; h < 2; h++) {
        float high = top[h];
        _Pragma("unroll") for (uint j = 0; j < KEYS / 8; j++)
          high = fmax(high, fmax(score[j][2 * h], score[j][2 * h + 1]));
        WARP_MAX(high, 1);
        WARP_MAX(high, 2);
        float keep = exp(fmax(top[h] - high, -200.0f)), all = 0.0f;
        top[h] = high;
        _Pragma("unroll") for (uint j = 0; j < KEYS / 8; j++) {
          float a = exp(fmax(score[j][2 * h] - high, -200.0f)), b = exp(fmax(score[j][2 * h + 1] - high, -200.0f));
          all += a + b;
          HALVES_OF(halves[j][h], a, b);
        }
        total[h] = total[h] * keep + all;
        _Pragma("unroll") for (uint n = 0; n < DIM / 8; n++) {
          sum[n][2 * h] *= keep;
          sum[n][2 * h + 1] *= keep;
        }
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (first + KEYS < end) COPY_TILE(k_to, k, K_INDEX, first + KEYS)
    COPIES_COMMIT();
    COPIES_WAIT(1);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (!hidden) {
      _Pragma("unroll") for (uint j = 0; j < KEYS / 16; j++) {
        _Pragma("unroll") for (uint n = 0; n < DIM / 8; n++) {
          uint b0, b1;
          LOAD_TRANSPOSED(b0, b1, v_to + V_INDEX(16 * j + lane % 16, n) * 16);
          MMA(sum[n], halves[2 * j][0], halves[2 * j][1], halves[2 * j + 1][0], halves[2 * j + 1][1], b0, b1);
        }
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (first + KEYS < end) COPY_TILE(v_to, v, V_INDEX, first + KEYS)
    COPIES_COMMIT();
  }
  _Pragma("unroll") for (uint h = 0; h < 2; h++) {
    float all = total[h];
    WARP_SUM(all, 1);
    WARP_SUM(all, 2);
    if (row0 + g + 8 * h >= row_end) continue;
    uint at = ((batch * p.rows + row0 + g + 8 * h) * p.heads + head) * (DIM / 2) + t;
    _Pragma("unroll") for (uint n = 0; n < DIM / 8; n++)
      y_put2(at + n * 4, (float2)(sum[n][2 * h], sum[n][2 * h + 1]) / all);
  }
}
