// y = x on and above (UPPER) or on and below a diagonal of matrices of rows x cols, else 0. A
// work-item writes two neighbouring results.
KERNEL {
  uint pair = get_global_id(0);
  if (2 * pair >= p.count) return;
  ELEM v[2];
  for (uint h = 0; h < 2; h++) {
    uint i = min(2 * pair + h, p.count - 1);
    int above = (int)(i % p.cols) - (int)(i / p.cols % p.rows) - p.diagonal;
#ifdef UPPER
    v[h] = above >= 0 ? x_at(i) : (ELEM)0;
#else
    v[h] = above <= 0 ? x_at(i) : (ELEM)0;
#endif
  }
  y_put2(pair, (ELEM2)(v[0], v[1]));
}
