// Positions of the results of matrices that are side by side; their columns are numbered over all
// of them. With PARTS, the columns up to end0, up to end1 and the rest are separate results, which
// start at elements 0, start1 and start2. Otherwise there is one result.
#ifdef PARTS
// The position of column c in the first row of its result, and the number of columns of that
// result; `all` is the number of columns of all results.
inline uint column_at(uint c, Params p) {
  return c + (c < p.end0 ? 0 : c < p.end1 ? p.start1 - p.end0 : p.start2 - p.end1);
}
inline uint columns_of(uint c, uint all, Params p) {
  return c < p.end0 ? p.end0 : c < p.end1 ? p.end1 - p.end0 : all - p.end1;
}
#else
inline uint column_at(uint c, Params p) { return c; }
inline uint columns_of(uint c, uint all, Params p) { return all; }
#endif
// The position of column c in row i.
inline uint result_at(uint i, uint c, uint all, Params p) { return column_at(c, p) + i * columns_of(c, all, p); }
