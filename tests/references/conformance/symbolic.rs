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

/// All scenarios by name.
pub fn scenarios() -> Vec<(&'static str, Make)> {
    vec![
        ("matmul/s,33xt", || {
            scenario(
                MatMul { trans_b: false },
                &[Data("3,s,33", plain), Data("3,33,t", plain)],
                RUNS,
            )
        }),
        ("matmul/odd_weight", || {
            scenario(
                MatMul { trans_b: false },
                &[Data("1,s,31", plain), Constant(&[31, 7])],
                RUNS,
            )
        }),
        ("matmul/even_weight", || {
            scenario(
                MatMul { trans_b: false },
                &[Data("1,s,64", plain), Constant(&[64, 130])],
                RUNS,
            )
        }),
        ("matmul/inner_symbol", || {
            scenario(
                MatMul { trans_b: false },
                &[Data("2,s,t", plain), Data("2,t,6", plain)],
                RUNS,
            )
        }),
        ("matmul/transposed", || {
            scenario(
                MatMul { trans_b: true },
                &[Data("1,3,s,8", plain), Data("1,1,t,8", plain)],
                RUNS,
            )
        }),
        ("softmax/s,t", || {
            scenario(
                Softmax {
                    axis: -1,
                    flatten: false,
                },
                &[Data("1,3,s,t", |i| i.range(-8.0, 8.0))],
                RUNS,
            )
        }),
        ("softmax/one_row", || {
            scenario(
                Softmax {
                    axis: -1,
                    flatten: false,
                },
                &[Data("1,t", plain)],
                RUNS,
            )
        }),
        ("pointwise/mask", || {
            let add = Pointwise::binary("Add", Binary::Add);
            scenario(add, &[Data("1,3,s,t", plain), Data("1,1,s,t", plain)], RUNS)
        }),
        ("pointwise/outer", || {
            let less = Pointwise::binary("Less", Binary::Less);
            scenario(
                less,
                &[Data("s,1", |i| i.ints(0, 9)), Data("t", |i| i.ints(0, 9))],
                RUNS,
            )
        }),
        ("pointwise/flat", || {
            let op = Pointwise {
                name: "Neg".into(),
                expr: Expr::Unary(Unary::Neg, Box::new(Expr::Input(0))),
            };
            scenario(op, &[Data("s,t", plain)], RUNS)
        }),
        ("attention/mask", || {
            let op = Attention::scaled(0.3);
            let mask = Data("1,1,s,s+t", |i| i.range(-4.0, 0.0));
            scenario(
                op,
                &[
                    Data("1,s,4,8", plain),
                    Data("1,s+t,2,8", plain),
                    Data("1,s+t,2,8", plain),
                    mask,
                ],
                RUNS,
            )
        }),
        ("attention/decode", || {
            let op = Attention::scaled(0.125);
            let kv = || Data("1,t,3,64", plain);
            scenario(op, &[Data("1,1,9,64", plain), kv(), kv()], RUNS)
        }),
        ("attention/split", || {
            let op = Attention::scaled(0.125);
            let kv = || Data("1,t,2,24", plain);
            let runs = &[(1, 700), (1, 3), (1, 513), (1, 129), (1, 128)];
            scenario(op, &[Data("1,1,6,24", plain), kv(), kv()], runs)
        }),
        ("concat/inner", || {
            scenario(
                Concat { axis: -1 },
                &[Data("3,s", plain), Data("3,t", plain)],
                RUNS,
            )
        }),
        ("concat/outer", || {
            scenario(
                Concat { axis: 0 },
                &[Data("s,3", plain), Data("t,3", plain), Data("1,3", plain)],
                RUNS,
            )
        }),
        ("rms_norm/odd", || {
            scenario(
                RmsNorm { epsilon: 1e-5 },
                &[Data("1,s,33", plain), Constant(&[33])],
                RUNS,
            )
        }),
        ("rms_norm/even", || {
            scenario(
                RmsNorm { epsilon: 1e-5 },
                &[Data("1,s,130", plain), Constant(&[130])],
                RUNS,
            )
        }),
        ("rotary/s", || {
            let angles = || Data("1,s,1,6", plain);
            let halves = Rotary { pairs: Pairs::Halves };
            scenario(halves, &[Data("1,s,3,6", plain), angles(), angles()], RUNS)
        }),
        ("rotary/s/neighbours", || {
            let angles = || Data("s,1,1,2", plain);
            let neighbours = Rotary {
                pairs: Pairs::Neighbours,
            };
            scenario(neighbours, &[Data("s,1,3,6", plain), angles(), angles()], RUNS)
        }),
        ("reduce/sum", || {
            let op = Reduce {
                kind: Kind::Sum,
                axes: Some(vec![-1]),
                keep: true,
                noop_without_axes: false,
            };
            scenario(op, &[Data("s,t", plain)], RUNS)
        }),
        ("reduce/mean", || {
            let op = Reduce {
                kind: Kind::Mean,
                axes: Some(vec![-1]),
                keep: false,
                noop_without_axes: false,
            };
            scenario(op, &[Data("s,t,5", plain)], RUNS)
        }),
        ("transpose/heads", || {
            scenario(
                Transpose {
                    perm: Some(vec![0, 2, 1, 3]),
                },
                &[Data("1,s,3,t", plain)],
                RUNS,
            )
        }),
        ("transpose/all", || {
            scenario(
                Transpose { perm: None },
                &[Data("s,2,t", |i| i.ints(-9, 9))],
                RUNS,
            )
        }),
        ("slice/last_row", || {
            let lists = [List("s-1"), List("9223372036854775807"), List("1")];
            let [start, end, axes] = lists;
            scenario(Slice, &[Data("1,s,33", plain), start, end, axes], RUNS)
        }),
        ("slice/from_end", || {
            scenario(
                Slice,
                &[Data("s,2*t", plain), List("t"), List("2*t"), List("1")],
                RUNS,
            )
        }),
        ("gather/table", || {
            scenario(
                Gather { axis: 0 },
                &[Constant(&[9, 33]), Data("1,s", |i| i.ints(-9, 8))],
                RUNS,
            )
        }),
        ("gather/computed", || {
            scenario(
                Gather { axis: 0 },
                &[Data("t,6", plain), Data("s", |i| i.ints(-1, 0))],
                RUNS,
            )
        }),
        ("range/down", || {
            scenario(Range, &[Number("s+t"), Number("-3"), Number("-2")], RUNS)
        }),
        ("range/from_zero", || {
            scenario(Range, &[Number("0"), Number("t+1"), Number("1")], RUNS)
        }),
        ("range/past", || {
            scenario(Range, &[Number("t"), Number("s+t"), Number("1")], RUNS)
        }),
        ("range/floats", || {
            scenario(Range, &[Float("t"), Float("s+t"), Float("1")], RUNS)
        }),
        ("constant_of_shape/floats", || {
            let value = HostTensor::from_f32(&[1], &[-3.0]).map_err(|e| e.to_string())?;
            scenario(ConstantOfShape { value }, &[List("s,t,3")], RUNS)
        }),
        ("conv/padded", || {
            let window = Window {
                pads: vec![1, 2, 0, 1],
                strides: vec![2, 1],
                ..Window::new(&[])
            };
            let operands = [Data("1,3,s+2,2*t+1", plain), Constant(&[9, 3, 3, 3])];
            scenario(Conv { window, group: 1 }, &operands, RUNS)
        }),
        ("conv/same", || {
            let window = Window {
                auto_pad: AutoPad::SameLower,
                strides: vec![2, 2],
                ..Window::new(&[])
            };
            let operands = [Data("s,4,t,s+t", plain), Constant(&[6, 2, 2, 3])];
            scenario(Conv { window, group: 2 }, &operands, RUNS)
        }),
        ("conv/pixels", || {
            let operands = [Data("1,5,s,t", plain), Constant(&[12, 5, 1, 1])];
            scenario(
                Conv {
                    window: Window::new(&[]),
                    group: 1,
                },
                &operands,
                RUNS,
            )
        }),
        ("pool/same", || {
            let kind = pool::Kind::Average { include_pad: true };
            let window = Window {
                auto_pad: AutoPad::SameUpper,
                strides: vec![2, 3],
                ..Window::new(&[3, 2])
            };
            scenario(Pool { kind, window }, &[Data("1,2,s+t,t", plain)], RUNS)
        }),
        ("reduce/inner", || {
            let op = Reduce {
                kind: Kind::Mean,
                axes: Some(vec![0, 2]),
                keep: false,
                noop_without_axes: false,
            };
            scenario(op, &[Data("s,3,t,5", plain)], RUNS)
        }),
        ("expand/groups", || {
            scenario(Expand, &[Data("1,2,1,t,3", plain), List("1,2,s,t,3")], RUNS)
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
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let bindings = Bindings::from([("s", count(s)), ("t", count(t))]);
        executor.run(0, &bindings).map_err(error)?;
        let found = executor.read(0, "out").map_err(error)?;
        let wanted = HostTensor::from_f32(&[1, s + t, 3, 2], &kept).map_err(|e| e.to_string())?;
        compare(&wanted, &found, bound(storage, 1)).map_err(|e| format!("{t} + {s} rows: {e}"))?;
        guards.check()?;
    }
    Ok(())
}
