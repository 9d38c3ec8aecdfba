// An elementwise kernel is its epilogue: there is nothing before it. A work-item stores two neighbouring results, or RUN.
KERNEL {
#ifdef RUN
  uint i = RUN * get_global_id(0);
  if (i + RUN <= p.count) y_put_run(RUN, i, (CAT(ELEM, RUN))(0));
  else
    for (; i < p.count; i++) y_put(i, (ELEM)0);
#else
  uint pair = get_global_id(0);
  if (2 * pair < p.count) y_put2(pair, (ELEM2)(0));
#endif
}
