// y[c] = the sum, or with PRODUCT the product, of the elements up to c of an axis of `cols`
// elements, which are `inner` apart. With EXCLUSIVE, element c itself does not count. With REVERSE,
// the elements are taken from the end. A work-item computes one line along the axis.
#ifdef PRODUCT
const START: ELEM = 1;
fn join(a: ELEM, b: ELEM) -> ELEM { return a * b; }
#else
const START: ELEM = 0;
fn join(a: ELEM, b: ELEM) -> ELEM { return a + b; }
#endif

@compute @workgroup_size(WG)
fn cumulative(@builtin(global_invocation_id) id: vec3<u32>) {
  let line = id.x;
  if (line >= p.lines) { return; }
  let base = line / p.inner * p.cols * p.inner + line % p.inner;
  var s = START;
  for (var i = 0u; i < p.cols; i++) {
#ifdef REVERSE
    let at = base + (p.cols - 1u - i) * p.inner;
#else
    let at = base + i * p.inner;
#endif
    let next = join(s, ELEM(x_at(at)));
#ifdef EXCLUSIVE
    y_put(at, s);
#else
    y_put(at, next);
#endif
    s = next;
  }
}
