// softmax(scale * q k^T + mask) v of many rows of halves on matrix units, with CAPPED of softcap * tanh(scores / softcap), over tiles of KEYS keys
// with a running maximum. A warp takes 16 rows of queries of one head; the warps of a work-group share tiles of keys and values in local
// memory, where the next keys are on their way while values are summed, and the other way round. A warp leaves a tile out in which the mask hides every
// key from its rows: scores are taken to be less than 30000 apart. With CAUSAL a row sees keys up to its own place only; tiles that no row of the
// work-group sees are not read, and a warp leaves out those that none of its rows sees.
//
// With tiles and pages (paged_attention.rs), and CAUSAL, a work-group takes a tile: rows of one
// sequence. KEYS divides the PAGE keys of a page.
#include "common/mma"
#define LOWEST -3.4028235e38f
#define HIDDEN -60000.0f
#define ROWS (WG / 2)
// Vectors of 16 bytes of a row, and of a tile.
#define CHUNKS (DIM / 8)
#define COPIES (KEYS * CHUNKS)
// Vectors of a row are so turned that a warp reads keys, and rows of values, without conflict.
#define K_PLACE(row, chunk) ((row) * CHUNKS + ((chunk) ^ ((row) % 2 * 4)))
#define V_PLACE(row, chunk) ((row) * CHUNKS + ((chunk) ^ ((row) % 8)))
// Where a key of the tile of keys from `first` on lies, in rows of the cache.
#ifdef HAS_TILES
#define PAGE 64
#define PLACE(first, key) (pages_at(table + (first) / PAGE) * PAGE + (key) % PAGE)
#else
#define PLACE(first, key) (past + (key))
#endif
#define BRING(to, from, place, first) \
  for (uint e = lid; e < COPIES; e += WG) { \
    uint row = e / CHUNKS; \
    COPY16(to + place(row, e % CHUNKS) * 16, from + ((PLACE(first, min((first) + row, keys - 1)) * p.kv_heads + kv) * CHUNKS + e % CHUNKS) * 2); \
  }

KERNEL {
  __local uint4 k_tile[COPIES], v_tile[COPIES];
  uint lid = get_local_id(0), lane = lid % 32, g = lane / 4, t = lane % 4;
  uint head = get_group_id(0), batch = get_group_id(2), kv = head / (p.heads / p.kv_heads);
  uint k_to = LOCAL_ADDRESS(k_tile), v_to = LOCAL_ADDRESS(v_tile);
  // Later rows, which see more keys if attention is causal, come first.
  uint group = get_num_groups(1) - 1 - get_group_id(1);
#ifdef HAS_TILES
  uint start = tiles_at(group * 4), row_end = start + tiles_at(group * 4 + 1), table = tiles_at(group * 4 + 2);
  if (start == row_end) return;
  uint row0 = start + lid / 32 * 16, last_row = row_end - 1, group_row = last_row;
  uint offset = tiles_at(group * 4 + 3) - start, keys = offset + last_row;
#else
  uint row0 = group * ROWS + lid / 32 * 16, row_end = p.rows, last_row = p.rows - 1, group_row = min(group * ROWS + ROWS - 1, last_row);
  uint keys = live_at(p.live_keys), past = batch * p.keys, offset = keys - last_row;
#endif
  uint rows[2] = {min(row0 + g, last_row), min(row0 + g + 8, last_row)};
#ifdef CAUSAL
  // Keys that each row sees, and the last rows of the warp and of the work-group: the last rows stand at the places of the last keys.
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
  BRING(k_to, k, K_PLACE, 0)
  COPIES_END();
  BRING(v_to, v, V_PLACE, 0)
  COPIES_END();
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
        hidden &= m < HIDDEN && top[e / 2] > HIDDEN / 2 ? 1 : 0;
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
          uint4 x = k_tile[K_PLACE(8 * j + g, c * 4 + t)];
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
        _Pragma("unroll") for (uint j = 0; j < KEYS / 8; j++) high = fmax(high, fmax(score[j][2 * h], score[j][2 * h + 1]));
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
    if (first + KEYS < end) BRING(k_to, k, K_PLACE, first + KEYS)
    COPIES_END();
    COPIES_WAIT(1);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (!hidden) {
      _Pragma("unroll") for (uint j = 0; j < KEYS / 16; j++) {
        _Pragma("unroll") for (uint n = 0; n < DIM / 8; n++) {
          uint b0, b1;
          LOAD_TURNED(b0, b1, v_to + V_PLACE(16 * j + lane % 16, n) * 16);
          MMA(sum[n], halves[2 * j][0], halves[2 * j][1], halves[2 * j + 1][0], halves[2 * j + 1][1], b0, b1);
        }
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (first + KEYS < end) BRING(v_to, v, V_PLACE, first + KEYS)
    COPIES_END();
  }
  _Pragma("unroll") for (uint h = 0; h < 2; h++) {
    float all = total[h];
    WARP_SUM(all, 1);
    WARP_SUM(all, 2);
    if (row0 + g + 8 * h >= row_end) continue;
    uint at = ((batch * p.rows + row0 + g + 8 * h) * p.heads + head) * (DIM / 2) + t;
    _Pragma("unroll") for (uint n = 0; n < DIM / 8; n++) y_put2(at + n * 4, (float2)(sum[n][2 * h], sum[n][2 * h + 1]) / all);
  }
}
