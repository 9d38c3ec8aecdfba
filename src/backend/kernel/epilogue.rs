//! Epilogues: an elementwise function that a kernel applies to its results before it stores them.
//!
//! A kernel stores through the accessors of its result `y`. With an [`Epilogue`], these accessors
//! apply a generated function to every element and read the function's further operands. Any kernel
//! that stores each result once, through `y`'s accessors, and never reads it takes an epilogue
//! without changes to its text. An elementwise kernel consists of nothing else.
//!
//! If the function takes two results ([`Argument::Other`]), the accessors take both: `y_put2(i, v,
//! u)`, in kernels that compute two results per index.
//!
//! The function is `apply`, on one element. If [`Epilogue::vectors`] is set, OpenCL C also has
//! `apply2`, `apply4`, `apply8` and `apply16` on vectors; otherwise vectors are split.
//!
//! | operand | index of its element for result `i` | parameters |
//! |---|---|---|
//! | [`Beside::Same`] | `i` | |
//! | [`Beside::Row`] | `i % n` | `n` |
//! | [`Beside::Plane`] | `i / n % m` | `n`, `m` |
//! | [`Beside::Apart`] | result index split by sizes, one stride per part | the strides; sizes and count once for all |

use super::program::Program;
use super::spec::Elem;
use super::{Arg, ByLanguage, FieldTy, Role, Ty};
use crate::tensor::DType;
use std::fmt::Write as _;

/// Largest number of operands of an epilogue.
pub const MAX_OPERANDS: usize = 4;
/// Largest number of axes of [`Beside::Apart`].
pub const MAX_AXES: usize = 5;

/// Names of the operands.
pub const NAMES: [&str; MAX_OPERANDS] = ["ea", "eb", "ec", "ed"];

const fn arg(name: &'static str, role: Role) -> Arg {
    Arg {
        name,
        role,
        ty: Ty::Elem,
    }
}

static READ: [Arg; MAX_OPERANDS] = [
    arg(NAMES[0], Role::In),
    arg(NAMES[1], Role::In),
    arg(NAMES[2], Role::In),
    arg(NAMES[3], Role::In),
];
static WEIGHTS: [Arg; MAX_OPERANDS] = [
    arg(NAMES[0], Role::Weight),
    arg(NAMES[1], Role::Weight),
    arg(NAMES[2], Role::Weight),
    arg(NAMES[3], Role::Weight),
];

const SIZES: [&str; MAX_AXES - 1] = ["e_n0", "e_n1", "e_n2", "e_n3"];
const PLANES: [[&str; 2]; MAX_OPERANDS] = [
    ["ea_n", "ea_m"],
    ["eb_n", "eb_m"],
    ["ec_n", "ec_m"],
    ["ed_n", "ed_m"],
];
const STRIDES: [[&str; MAX_AXES]; MAX_OPERANDS] = [
    ["ea_0", "ea_1", "ea_2", "ea_3", "ea_4"],
    ["eb_0", "eb_1", "eb_2", "eb_3", "eb_4"],
    ["ec_0", "ec_1", "ec_2", "ec_3", "ec_4"],
    ["ed_0", "ed_1", "ed_2", "ed_3", "ed_4"],
];

/// How an operand's elements map to the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Beside {
    /// One element for each result, in the same order.
    Same,
    /// A row that repeats. Its length is a multiple of `aligned`, from 1 to 16.
    Row {
        /// A power of two.
        aligned: u32,
    },
    /// One element for every `n` results, where `n` is a multiple of `aligned`; starts again after
    /// `m` elements.
    Plane {
        /// A power of two.
        aligned: u32,
    },
    /// Arbitrary strides.
    Apart,
}

/// An operand of an epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Further {
    /// How its elements map to the results.
    pub beside: Beside,
    /// It is in a buffer of weights and bound read-only. Required if the kernel binds weights that
    /// way.
    pub weight: bool,
}

/// An argument of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Argument {
    Result,
    /// The second of two results of the kernel.
    Other,
    /// An operand, by index.
    Operand(usize),
}

/// An elementwise function in the form that a device needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Function {
    /// The source of `apply`.
    Source(ByLanguage<String>),
    /// Steps for a device without a compiler.
    Program(Program),
}

/// An elementwise function with its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Epilogue {
    /// The function.
    pub function: Function,
    /// The function also exists for vectors in OpenCL C.
    pub vectors: bool,
    /// The function computes with 64-bit instead of 32-bit integers.
    pub wide: bool,
    pub arguments: Vec<Argument>,
    /// Its operands; their types come last in [`super::KernelSpec::operands`].
    pub operands: Vec<Further>,
    /// Number of axes of [`Beside::Apart`], shared by all such operands.
    pub axes: usize,
}

impl Epilogue {
    /// The operands as the kernel declares them.
    pub fn args(&self) -> impl Iterator<Item = &'static Arg> + '_ {
        let both = READ.iter().zip(&WEIGHTS);
        let args = self.operands.iter().zip(both);
        args.map(|(o, (read, weight))| if o.weight { weight } else { read })
    }

    /// Whether kernels pass two results at a time.
    fn of_two(&self) -> bool {
        self.arguments.contains(&Argument::Other)
    }

    /// The parameters that follow those of the kernel. If an operand is [`Beside::Apart`]: the
    /// number of results and the sizes of all axes but the last, innermost first. Then each
    /// operand's period or strides.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, FieldTy)> + '_ {
        let apart = self.operands.iter().any(|o| o.beside == Beside::Apart);
        let sizes = SIZES.iter().take(self.axes.saturating_sub(1));
        let shared = std::iter::once("e_count").chain(sizes.copied());
        let own = self.operands.iter().zip(PLANES.iter().zip(&STRIDES));
        let own = own.flat_map(|(o, (plane, strides))| {
            let names: &'static [&'static str] = match o.beside {
                Beside::Same => &[],
                Beside::Row { .. } => &plane[..1],
                Beside::Plane { .. } => plane,
                Beside::Apart => &strides[..self.axes],
            };
            names.iter().copied()
        });
        let shared = shared.filter(move |_| apart);
        shared.chain(own).map(|name| (name, FieldTy::U32))
    }

    /// Expression for the index of an operand's element for result `i` (a variable name), in both
    /// languages.
    fn place(&self, operand: usize, i: &str) -> String {
        match self.operands.get(operand).map(|o| o.beside) {
            Some(Beside::Row { .. }) => format!("{i} % p.{}", PLANES[operand][0]),
            Some(Beside::Plane { .. }) => {
                format!("{i} / p.{} % p.{}", PLANES[operand][0], PLANES[operand][1])
            }
            Some(Beside::Apart) => {
                let index = format!("min({i}, p.e_count - 1u)");
                let mut rest = index;
                let mut sum = Vec::new();
                for axis in 0..self.axes {
                    let stride = STRIDES[operand][axis];
                    if axis + 1 == self.axes {
                        sum.push(format!("{rest} * p.{stride}"));
                    } else {
                        let size = SIZES[axis];
                        sum.push(format!("{rest} % p.{size} * p.{stride}"));
                        rest = format!("{rest} / p.{size}");
                    }
                }
                sum.join(" + ")
            }
            _ => i.to_owned(),
        }
    }

    /// Expression for the elements of an operand for `width` results from index `i` (a variable
    /// name) on; `t` is the element type.
    fn fetch_cl(&self, operand: usize, width: u32, t: &str) -> String {
        let name = NAMES[operand];
        let one = format!("{name}_at({})", self.place(operand, "i_"));
        let whole = match self.operands.get(operand).map(|o| o.beside) {
            _ if width == 1 => return one,
            Some(Beside::Plane { aligned }) if aligned >= width => return format!("({t}{width})({one})"),
            Some(Beside::Same) => true,
            Some(Beside::Row { aligned }) => aligned >= width,
            _ => false,
        };
        if whole {
            return format!("{name}_run({width}, {})", self.place(operand, "i_"));
        }
        let each = (0..width).map(|lane| {
            let i = format!("(i_ + {lane}u)");
            format!("{name}_at({})", self.place(operand, &i))
        });
        format!("({t}{width})({})", each.collect::<Vec<_>>().join(", "))
    }

    /// The call of the function for `width` results from index `i_` on in OpenCL C; the results are
    /// `v_`, the second ones `u_`.
    fn call_cl(&self, width: u32, types: &[DType], elem: &str) -> String {
        let name = |o: usize| types.get(o).map_or("float", |t| Elem::of(*t).cl());
        let args = |pick: &dyn Fn(Argument) -> String| {
            let all: Vec<String> = self.arguments.iter().map(|a| pick(*a)).collect();
            all.join(", ")
        };
        if width == 1 || self.vectors {
            let suffix = if width == 1 {
                String::new()
            } else {
                width.to_string()
            };
            let args = args(&|a| match a {
                Argument::Result => "v_".to_owned(),
                Argument::Other => "u_".to_owned(),
                Argument::Operand(o) => self.fetch_cl(o, width, name(o)),
            });
            return format!("apply{suffix}({args})");
        }
        let lanes = (0..width).map(|lane| {
            let i = format!("(i_ + {lane}u)");
            let args = args(&|a| match a {
                Argument::Result => format!("v_.s{lane:X}"),
                Argument::Other => format!("u_.s{lane:X}"),
                Argument::Operand(o) => format!("{}_at({})", NAMES[o], self.place(o, &i)),
            });
            format!("apply({args})")
        });
        format!("({elem}{width})({})", lanes.collect::<Vec<_>>().join(", "))
    }

    /// Accessors `{y}_put..` built on `{y}_raw..`, for operands of `types` and a result of accessor
    /// type `elem`.
    pub(super) fn accessors_cl(&self, y: &str, types: &[DType], elem: &str) -> String {
        let mut s = String::new();
        let (values, given) = if self.of_two() {
            ("v, u", "v_ = (v), u_ = (u)")
        } else {
            ("v", "v_ = (v)")
        };
        let mut put = |name: &str, width: u32, first: &str, raw: &str| {
            let call = self.call_cl(width, types, elem);
            let vector = if width == 1 {
                elem.to_owned()
            } else {
                format!("{elem}{width}")
            };
            let _ = writeln!(
                s,
                "#define {y}_{name}(i, {values}) do {{ uint i_ = {first}; {vector} {given}; {raw}, {call}); }} while (0)"
            );
        };
        put("put", 1, "(i)", &format!("{y}_raw(i_"));
        put("put2", 2, "2u * (uint)(i)", &format!("{y}_raw2(i_ / 2u"));
        put("put4", 4, "4u * (uint)(i)", &format!("{y}_raw4(i_ / 4u"));
        for n in [2, 4, 8, 16] {
            put(&format!("lanes{n}"), n, "(i)", &format!("{y}_raw_run({n}, i_"));
        }
        let _ = writeln!(
            s,
            "#define {y}_put_run(n, i, {values}) CAT({y}_lanes, n)(i, {values})"
        );
        s
    }

    /// The accessors in WGSL; with `single`, also one that stores a single result.
    pub(super) fn accessors_wgsl(&self, y: &str, types: &[DType], elem: &str, single: bool) -> String {
        // WGSL does not convert integers implicitly. Lavapipe (Mesa 22.3) narrows comparisons of
        // converted numbers wrongly, so it must not see that they were converted.
        let widened = |text: String, name: &str| match name {
            "i32" if self.wide => format!("(i64({text}) | i64(hidden_zero()))"),
            _ => text,
        };
        let call = |i: &str, lane: &str| {
            let args = self.arguments.iter().map(|a| match a {
                Argument::Result => widened(format!("v{lane}"), elem),
                Argument::Other => widened(format!("u{lane}"), elem),
                Argument::Operand(o) => {
                    let name = types.get(*o).map_or("f32", |t| Elem::of(*t).wgsl());
                    widened(format!("{}_at({})", NAMES[*o], self.place(*o, i)), name)
                }
            });
            format!("apply({})", args.collect::<Vec<_>>().join(", "))
        };
        let both = format!("vec2<{elem}>({}, {})", call("a", ".x"), call("b", ".y"));
        let given = |ty: &str| {
            let second = if self.of_two() {
                format!(", u: {ty}")
            } else {
                String::new()
            };
            format!("v: {ty}{second}")
        };
        let halves = |part: &str| {
            let second = if self.of_two() {
                format!(", u.{part}")
            } else {
                String::new()
            };
            format!("v.{part}{second}")
        };
        let mut s = format!(
            "fn {y}_put2(i: u32, {}) {{ let a = 2u * i; let b = a + 1u; {y}_raw2(i, {both}); }}
fn {y}_put4(i: u32, {}) {{ {y}_put2(2u * i, {}); {y}_put2(2u * i + 1u, {}); }}\n",
            given(&format!("vec2<{elem}>")),
            given(&format!("vec4<{elem}>")),
            halves("xy"),
            halves("zw")
        );
        if single {
            let _ = writeln!(
                s,
                "fn {y}_put(i: u32, {}) {{ {y}_raw(i, {}); }}",
                given(elem),
                call("i", "")
            );
        }
        s
    }
}
