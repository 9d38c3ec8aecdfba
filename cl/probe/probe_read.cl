// Reads x in vectors of four words. A work-item reads every `next`-th vector and writes the sum of
// these.
#ifndef IMAGE_X
#define x_at4(i) x[i]
#endif

KERNEL {
  uint4 sum = (uint4)(0);
  // Four loads at a time, which do not wait for each other.
  uint4 other = (uint4)(0), third = (uint4)(0), fourth = (uint4)(0);
  uint i = get_global_id(0);
  for (; i + 3 * p.next < p.count; i += 4 * p.next) {
    sum += x_at4(i);
    other += x_at4(i + p.next);
    third += x_at4(i + 2 * p.next);
    fourth += x_at4(i + 3 * p.next);
  }
  for (; i < p.count; i += p.next) sum += x_at4(i);
  sum += other + third + fourth;
  y[get_global_id(0)] = sum.x + sum.y + sum.z + sum.w;
}
