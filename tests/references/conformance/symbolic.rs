//! Operators over symbolic sizes: one plan, one recording, several values of the symbols, odd and
//! even.

use std::sync::Arc;
use tlite_testing::Device;
use transformer_lite::unstable::executor::Executor;
use transformer_lite::unstable::graph::derive::derive;
use transformer_lite::unstable::graph::op::attention::Attention;
use transformer_lite::unstable::graph::op::case::{Input, input};
use transformer_lite::unstable::graph::op::concat::Concat;
use transformer_lite::unstable::graph::op::constant_of_shape::ConstantOfShape;
use transformer_lite::unstable::graph::op::conv::Conv;
use transformer_lite::unstable::graph::op::expand::Expand;
use transformer_lite::unstable::graph::op::gather::Gather;
use transformer_lite::unstable::graph::op::kv_append::KvAppend;
use transformer_lite::unstable::graph::op::matmul::MatMul;
use transformer_lite::unstable::graph::op::pointwise::{Binary, Expr, Pointwise, Unary};
use transformer_lite::unstable::graph::op::pool::{self, Pool};
use transformer_lite::unstable::graph::op::range::Range;
use transformer_lite::unstable::graph::op::reduce::{Kind, Reduce};
use transformer_lite::unstable::graph::op::rms_norm::RmsNorm;
use transformer_lite::unstable::graph::op::rotary::{Pairs, Rotary};
use transformer_lite::unstable::graph::op::slice::Slice;
use transformer_lite::unstable::graph::op::softmax::Softmax;
use transformer_lite::unstable::graph::op::transpose::Transpose;
use transformer_lite::unstable::graph::op::window::{AutoPad, Window};
use transformer_lite::unstable::graph::{Edit, Graph, Op, State};
use transformer_lite::unstable::num;
use transformer_lite::unstable::plan::{Options, Plan};
use transformer_lite::unstable::shape::{Bindings, Dim, Fact, Known, Quotient, Shape, Symbol};
use transformer_lite::unstable::tensor::{DType, HostTensor};
use transformer_lite::unstable::validate::case::Scenario;
use transformer_lite::unstable::validate::compare::{bound, compare};

type Make = fn() -> Result<Scenario, String>;

/// An operand: its sizes as text, and how it is filled.
enum Operand {
    /// Data of the run.
    Data(&'static str, fn(Input) -> Input),
    /// A constant of these sizes.
    Constant(&'static [usize]),
    /// A list of integers known as expressions.
    List(&'static str),
    /// One integer known as an expression, of rank 0.
    Number(&'static str),
    /// The same as a float.
    Float(&'static str),
}

use Operand::{Constant, Data, Float, List, Number};

fn plain(i: Input) -> Input {
    i
}

fn dims(text: &str) -> Result<Vec<Dim>, String> {
    text.split(',')
        .map(|d| Dim::parse(d.trim()).map_err(|e| format!("{d}: {e}")))
        .collect()
}

/// Symbols `s` and `t` take the values of `runs`; the bounds are the largest.
fn scenario(op: impl Op + 'static, operands: &[Operand], runs: &[(i64, i64)]) -> Result<Scenario, String> {
    let mut facts = Vec::new();
    for (o, seed) in operands.iter().zip(1..) {
        facts.push(match o {
            Data(shape, fill) => {
                let made = fill(input(&[1])).make(0).map_err(|e| e.to_string())?;
                Fact::new(made.dtype(), Shape(dims(shape)?))
            }
            Constant(shape) => Fact::of(Arc::new(input(shape).make(seed).map_err(|e| e.to_string())?)),
            List(text) => {
                let known = dims(text)?;
                Fact {
                    known: Known::Dims(known.clone()),
                    ..Fact::new(DType::I64, Shape::fixed(&[known.len()]))
                }
            }
            Number(text) => Fact {
                known: Known::Dims(dims(text)?),
                ..Fact::new(DType::I64, Shape::fixed(&[]))
            },
            Float(text) => {
                let whole = |num| Quotient { num, den: 1 };
                Fact {
                    known: Known::Quotients(dims(text)?.into_iter().map(whole).collect()),
                    ..Fact::new(DType::F32, Shape::fixed(&[]))
                }
            }
        });
    }
    let mut all = Vec::new();
    for (s, t) in runs {
        let bindings = Bindings::from([("s", *s), ("t", *t)]);
        let mut tensors = Vec::new();
        for ((o, fact), seed) in operands.iter().zip(&facts).zip(1..) {
            let shape = fact.shape.eval(&bindings).map_err(|e| e.to_string())?;
            let made = match (o, &fact.known) {
                (Data(_, fill), _) => fill(input(&shape)).make(seed),
                (_, Known::Const(t)) => Ok(t.as_ref().clone()),
                (_, Known::Dims(d)) => {
                    let list: Result<Vec<i64>, _> = d.iter().map(|d| d.eval(&bindings)).collect();
                    HostTensor::from_i64(&shape, &list.map_err(|e| e.to_string())?)
                }
                (_, Known::Quotients(q)) => {
                    let list: Result<Vec<i64>, _> = q.iter().map(|q| q.num.eval(&bindings)).collect();
                    #[expect(clippy::cast_precision_loss, reason = "lengths of tests")]
                    let list: Vec<f32> = list
                        .map_err(|e| e.to_string())?
                        .into_iter()
                        .map(|v| v as f32)
                        .collect();
                    HostTensor::from_f32(&shape, &list)
                }
                (_, Known::No) => return Err("an operand without contents".to_owned()),
            };
            tensors.push(made.map_err(|e| e.to_string())?);
        }
        all.push((bindings, tensors));
    }
    let most = |f: fn(&(i64, i64)) -> i64| runs.iter().map(f).max().unwrap_or(0);
    let bounds = Bindings::from([("s", most(|r| r.0)), ("t", most(|r| r.1))]);
    Ok(Scenario {
        op: Box::new(op),
        operands: facts,
        bounds,
        runs: all,
        slack: 1.0,
        dispatches: None,
    })
}

/// Values of `s` and `t`: growing, shrinking, odd, even, one, above a work-group.
const RUNS: &[(i64, i64)] = &[(1, 1), (5, 9), (2, 4), (7, 70), (1, 131), (4, 7)];

/// A scenario with the usual values.
fn usual(op: impl Op + 'static, operands: &[Operand]) -> Result<Scenario, String> {
    scenario(op, operands, RUNS)
}

fn data(shape: &'static str) -> Operand {
    Data(shape, plain)
}

/// All scenarios by name.
pub fn scenarios() -> Vec<(&'static str, Make)> {
    [matmuls(), rows(), attention(), moves(), ranges(), windows()].concat()
}

fn matmuls() -> Vec<(&'static str, Make)> {
    const PLAIN: MatMul = MatMul { trans_b: false };
    const TRANSPOSED: MatMul = MatMul { trans_b: true };
    vec![
        ("matmul/s,33xt", || {
            usual(PLAIN, &[data("3,s,33"), data("3,33,t")])
        }),
        ("matmul/odd_weight", || {
            usual(PLAIN, &[data("1,s,31"), Constant(&[31, 7])])
        }),
        ("matmul/even_weight", || {
            usual(PLAIN, &[data("1,s,64"), Constant(&[64, 130])])
        }),
        ("matmul/inner_symbol", || {
            usual(PLAIN, &[data("2,s,t"), data("2,t,6")])
        }),
        ("matmul/transposed", || {
            usual(TRANSPOSED, &[data("1,3,s,8"), data("1,1,t,8")])
        }),
    ]
}

/// Elementwise operators, and those that work on rows.
fn rows() -> Vec<(&'static str, Make)> {
    const SOFTMAX: Softmax = Softmax {
        axis: -1,
        flatten: false,
    };
    const NORM: RmsNorm = RmsNorm { epsilon: 1e-5 };
    fn reduce(kind: Kind, axes: &[i64], keep: bool) -> Reduce {
        let axes = Some(axes.to_vec());
        Reduce {
            kind,
            axes,
            keep,
            noop_without_axes: false,
        }
    }
    fn negate() -> Pointwise {
        let expr = Expr::Unary(Unary::Neg, Box::new(Expr::Input(0)));
        let name = "Neg".into();
        Pointwise { name, expr }
    }
    fn few(shape: &'static str) -> Operand {
        Data(shape, |i| i.ints(0, 9))
    }
    vec![
        ("softmax/s,t", || {
            usual(SOFTMAX, &[Data("1,3,s,t", |i| i.range(-8.0, 8.0))])
        }),
        ("softmax/one_row", || usual(SOFTMAX, &[data("1,t")])),
        ("pointwise/mask", || {
            usual(
                Pointwise::binary("Add", Binary::Add),
                &[data("1,3,s,t"), data("1,1,s,t")],
            )
        }),
        ("pointwise/outer", || {
            usual(Pointwise::binary("Less", Binary::Less), &[few("s,1"), few("t")])
        }),
        ("pointwise/flat", || usual(negate(), &[data("s,t")])),
        ("rms_norm/odd", || usual(NORM, &[data("1,s,33"), Constant(&[33])])),
        ("rms_norm/even", || {
            usual(NORM, &[data("1,s,130"), Constant(&[130])])
        }),
        ("reduce/sum", || {
            usual(reduce(Kind::Sum, &[-1], true), &[data("s,t")])
        }),
        ("reduce/mean", || {
            usual(reduce(Kind::Mean, &[-1], false), &[data("s,t,5")])
        }),
        ("reduce/inner", || {
            usual(reduce(Kind::Mean, &[0, 2], false), &[data("s,3,t,5")])
        }),
    ]
}

fn attention() -> Vec<(&'static str, Make)> {
    const HALVES: Rotary = Rotary { pairs: Pairs::Halves };
    const NEIGHBOURS: Rotary = Rotary {
        pairs: Pairs::Neighbours,
    };
    const LONG: &[(i64, i64)] = &[(1, 700), (1, 3), (1, 513), (1, 129), (1, 128)];
    vec![
        ("attention/mask", || {
            let mask = Data("1,1,s,s+t", |i| i.range(-4.0, 0.0));
            let kv = || data("1,s+t,2,8");
            usual(Attention::scaled(0.3), &[data("1,s,4,8"), kv(), kv(), mask])
        }),
        ("attention/causal", || {
            let kv = || data("1,s+t,2,8");
            let op = Attention {
                causal: true,
                ..Attention::scaled(0.3)
            };
            usual(op, &[data("1,s,4,8"), kv(), kv()])
        }),
        ("attention/decode", || {
            let kv = || data("1,t,3,64");
            usual(Attention::scaled(0.125), &[data("1,1,9,64"), kv(), kv()])
        }),
        ("attention/split", || {
            let kv = || data("1,t,2,24");
            scenario(Attention::scaled(0.125), &[data("1,1,6,24"), kv(), kv()], LONG)
        }),
        ("rotary/s", || {
            usual(HALVES, &[data("1,s,3,6"), data("1,s,1,6"), data("1,s,1,6")])
        }),
        ("rotary/s/neighbours", || {
            usual(NEIGHBOURS, &[data("s,1,3,6"), data("s,1,1,2"), data("s,1,1,2")])
        }),
    ]
}

/// Operators that move elements.
fn moves() -> Vec<(&'static str, Make)> {
    const BY_ROWS: Gather = Gather { axis: 0 };
    const ENDLESS: Operand = List("9223372036854775807");
    fn transpose(perm: Option<&[i64]>) -> Transpose {
        let perm = perm.map(<[i64]>::to_vec);
        Transpose { perm }
    }
    vec![
        ("concat/inner", || {
            usual(Concat { axis: -1 }, &[data("3,s"), data("3,t")])
        }),
        ("concat/outer", || {
            usual(Concat { axis: 0 }, &[data("s,3"), data("t,3"), data("1,3")])
        }),
        ("transpose/heads", || {
            usual(transpose(Some(&[0, 2, 1, 3])), &[data("1,s,3,t")])
        }),
        ("transpose/all", || {
            usual(transpose(None), &[Data("s,2,t", |i| i.ints(-9, 9))])
        }),
        ("slice/last_row", || {
            usual(Slice, &[data("1,s,33"), List("s-1"), ENDLESS, List("1")])
        }),
        ("slice/from_end", || {
            usual(Slice, &[data("s,2*t"), List("t"), List("2*t"), List("1")])
        }),
        ("gather/table", || {
            usual(BY_ROWS, &[Constant(&[9, 33]), Data("1,s", |i| i.ints(-9, 8))])
        }),
        ("gather/computed", || {
            usual(BY_ROWS, &[data("t,6"), Data("s", |i| i.ints(-1, 0))])
        }),
        ("expand/groups", || {
            usual(Expand, &[data("1,2,1,t,3"), List("1,2,s,t,3")])
        }),
    ]
}

fn ranges() -> Vec<(&'static str, Make)> {
    vec![
        ("range/down", || {
            usual(Range, &[Number("s+t"), Number("-3"), Number("-2")])
        }),
        ("range/from_zero", || {
            usual(Range, &[Number("0"), Number("t+1"), Number("1")])
        }),
        ("range/past", || {
            usual(Range, &[Number("t"), Number("s+t"), Number("1")])
        }),
        ("range/floats", || {
            usual(Range, &[Float("t"), Float("s+t"), Float("1")])
        }),
        ("constant_of_shape/floats", || {
            let value = HostTensor::from_f32(&[1], &[-3.0]).map_err(|e| e.to_string())?;
            usual(ConstantOfShape { value }, &[List("s,t,3")])
        }),
    ]
}

fn windows() -> Vec<(&'static str, Make)> {
    vec![
        ("conv/padded", || {
            let window = Window {
                pads: vec![1, 2, 0, 1],
                strides: vec![2, 1],
                ..Window::new(&[])
            };
            let operands = [data("1,3,s+2,2*t+1"), Constant(&[9, 3, 3, 3])];
            usual(Conv { window, group: 1 }, &operands)
        }),
        ("conv/same", || {
            let window = Window {
                auto_pad: AutoPad::SameLower,
                strides: vec![2, 2],
                ..Window::new(&[])
            };
            let operands = [data("s,4,t,s+t"), Constant(&[6, 2, 2, 3])];
            usual(Conv { window, group: 2 }, &operands)
        }),
        ("conv/pixels", || {
            let window = Window::new(&[]);
            usual(
                Conv { window, group: 1 },
                &[data("1,5,s,t"), Constant(&[12, 5, 1, 1])],
            )
        }),
        ("pool/same", || {
            let kind = pool::Kind::Average { include_pad: true };
            let window = Window {
                auto_pad: AutoPad::SameUpper,
                strides: vec![2, 3],
                ..Window::new(&[3, 2])
            };
            usual(Pool { kind, window }, &[data("1,2,s+t,t")])
        }),
    ]
}

/// Rows are appended to a state, some of them after a step back; what a later node reads is always
/// their concatenation.
pub fn kv_append(device: &Device, storage: DType) -> Result<(), String> {
    let _turn = device.turn();
    let error = |e: transformer_lite::unstable::error::Error| e.to_string();
    let mut graph = Graph::default();
    let mut edit = Edit::new(&mut graph);
    let past = edit.add_value("past", Some(Fact::new(DType::F32, Shape(dims("1,t,3,2")?))));
    let new = edit.add_value("new", Some(Fact::new(DType::F32, Shape(dims("1,s,3,2")?))));
    edit.add_input(new);
    let [present, out] = ["present", "out"].map(|n| edit.add_value(n, None));
    edit.add_node(
        "append",
        Vec::new(),
        Box::new(KvAppend { axis: 1 }),
        vec![Some(past), Some(new)],
        vec![present],
    );
    let negate = Pointwise {
        name: "Neg".into(),
        expr: Expr::Unary(Unary::Neg, Box::new(Expr::Input(0))),
    };
    edit.add_node(
        "negate",
        Vec::new(),
        Box::new(negate),
        vec![Some(present)],
        vec![out],
    );
    edit.add_output(out);
    edit.add_state(State {
        input: past,
        output: present,
        axis: 1,
        past: Symbol::new("t"),
        window: None,
    });
    derive(&mut graph).map_err(error)?;
    let rows = 12;
    let bounds = Bindings::from([("s", 5), ("t", rows)]);
    let options = Options {
        float: storage,
        bounds,
        state_rows: rows,
        ..Options::default()
    };
    let plan = Plan::compile(&graph, &device.caps, &options).map_err(error)?;
    let (shared, guards) = device.share().guarded();
    let mut executor = Executor::new(Box::new(shared), &graph, vec![plan]).map_err(error)?;
    let mut kept: Vec<f32> = Vec::new();
    for (seed, (t, s)) in (1..).zip([(0, 3), (3, 1), (4, 1), (2, 5), (7, 5), (0, 1)]) {
        let tensor = input(&[1, s, 3, 2]).make(seed).map_err(|e| e.to_string())?;
        kept.truncate(t * 6);
        kept.extend(tensor.f32s().map_err(|e| e.to_string())?.iter().map(|v| -v));
        executor.write(0, "new", &tensor).map_err(error)?;
        let bindings = Bindings::from([("s", num::signed(s)), ("t", num::signed(t))]);
        executor.run(0, &bindings).map_err(error)?;
        let found = executor.read(0, "out").map_err(error)?;
        let wanted = HostTensor::from_f32(&[1, s + t, 3, 2], &kept).map_err(|e| e.to_string())?;
        compare(&wanted, &found, bound(storage, 1)).map_err(|e| format!("{t} + {s} rows: {e}"))?;
        guards.check()?;
    }
    Ok(())
}
