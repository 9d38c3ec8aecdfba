// Where the matrices of batch z of a product begin in its operands: up to three joined axes, by
// their strides.
fn a_start(z: u32) -> u32 { return z % p.n1 * p.a0 + z / p.n1 % p.n2 * p.a1 + z / p.n1 / p.n2 * p.a2; }
fn b_start(z: u32) -> u32 { return z % p.n1 * p.b0 + z / p.n1 % p.n2 * p.b1 + z / p.n1 / p.n2 * p.b2; }
