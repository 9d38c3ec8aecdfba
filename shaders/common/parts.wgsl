// Positions of the results of matrices that are side by side; their columns are numbered over all
// of them. With PARTS, the columns up to end0, up to end1 and the rest are separate results, which
// start at elements 0, start1 and start2. Otherwise there is one result.
#ifdef PARTS
// The position of column c in the first row of its result, and the number of columns of that
// result; `all` is the number of columns of all results.
fn column_at(c: u32) -> u32 {
  return c + select(select(p.start2 - p.end1, p.start1 - p.end0, c < p.end1), 0u, c < p.end0);
}
fn columns_of(c: u32, all: u32) -> u32 {
  return select(select(all - p.end1, p.end1 - p.end0, c < p.end1), p.end0, c < p.end0);
}
#else
fn column_at(c: u32) -> u32 { return c; }
fn columns_of(c: u32, all: u32) -> u32 { return all; }
#endif
// The position of column c in row i.
fn result_at(i: u32, c: u32, all: u32) -> u32 { return column_at(c) + i * columns_of(c, all); }
