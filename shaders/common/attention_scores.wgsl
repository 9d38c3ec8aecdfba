    // Products of the queries of a warp with the tile of keys that starts at `first`, for both
    // passes of attention_mma over the keys.
    bring_keys(at, first, lid);
    for (var j = 0u; j < KEYS; j += 16u) {
      var d: Sum;
      d = coopMultiplyAdd(q0, coopLoad<Right>(&tile[j * ROW + 0u], ROW), d);
      d = coopMultiplyAdd(q1, coopLoad<Right>(&tile[j * ROW + 4u], ROW), d);
      d = coopMultiplyAdd(q2, coopLoad<Right>(&tile[j * ROW + 8u], ROW), d);
      d = coopMultiplyAdd(q3, coopLoad<Right>(&tile[j * ROW + 12u], ROW), d);
#ifdef DIM_FROM_128
      d = coopMultiplyAdd(q4, coopLoad<Right>(&tile[j * ROW + 16u], ROW), d);
      d = coopMultiplyAdd(q5, coopLoad<Right>(&tile[j * ROW + 20u], ROW), d);
      d = coopMultiplyAdd(q6, coopLoad<Right>(&tile[j * ROW + 24u], ROW), d);
      d = coopMultiplyAdd(q7, coopLoad<Right>(&tile[j * ROW + 28u], ROW), d);
#endif
#ifdef DIM_FROM_256
      d = coopMultiplyAdd(q8, coopLoad<Right>(&tile[j * ROW + 32u], ROW), d);
      d = coopMultiplyAdd(q9, coopLoad<Right>(&tile[j * ROW + 36u], ROW), d);
      d = coopMultiplyAdd(q10, coopLoad<Right>(&tile[j * ROW + 40u], ROW), d);
      d = coopMultiplyAdd(q11, coopLoad<Right>(&tile[j * ROW + 44u], ROW), d);
      d = coopMultiplyAdd(q12, coopLoad<Right>(&tile[j * ROW + 48u], ROW), d);
      d = coopMultiplyAdd(q13, coopLoad<Right>(&tile[j * ROW + 52u], ROW), d);
      d = coopMultiplyAdd(q14, coopLoad<Right>(&tile[j * ROW + 56u], ROW), d);
      d = coopMultiplyAdd(q15, coopLoad<Right>(&tile[j * ROW + 60u], ROW), d);
#endif
      coopStoreT(d, &scores[warp * 16u * KEYS + j], KEYS);
    }
