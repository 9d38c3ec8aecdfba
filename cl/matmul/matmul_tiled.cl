// y[z, i, column + j] = sum_k a[z, i, k] * b[z, k, j] for batches z of m x n results; with TRANS_B,
// b is [z, j, k].
#include "common/batches"
inline uint y_start(uint z, uint i, Params p) { return (z * p.m + i) * p.y_stride + p.column; }
#include "common/tile"
