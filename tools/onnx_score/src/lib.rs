//! Shared by the runners of other engines: reads ONNX test cases, compares results, and serves
//! requests.

use prost::Message;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

/// Error bounds of ONNX's own runner.
const RELATIVE: f64 = 1e-3;
const ABSOLUTE: f64 = 1e-7;

/// The fields of ONNX's messages that are used.
mod proto {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Tensor {
        #[prost(int64, repeated, tag = "1")]
        pub dims: Vec<i64>,
        #[prost(int32, tag = "2")]
        pub data_type: i32,
        #[prost(float, repeated, tag = "4")]
        pub float_data: Vec<f32>,
        #[prost(int32, repeated, tag = "5")]
        pub int32_data: Vec<i32>,
        #[prost(int64, repeated, tag = "7")]
        pub int64_data: Vec<i64>,
        #[prost(bytes = "vec", tag = "9")]
        pub raw_data: Vec<u8>,
        #[prost(double, repeated, tag = "10")]
        pub double_data: Vec<f64>,
        #[prost(uint64, repeated, tag = "11")]
        pub uint64_data: Vec<u64>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Value {
        #[prost(string, tag = "1")]
        pub name: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Graph {
        #[prost(message, repeated, tag = "11")]
        pub input: Vec<Value>,
        #[prost(message, repeated, tag = "12")]
        pub output: Vec<Value>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Model {
        #[prost(message, optional, tag = "7")]
        pub graph: Option<Graph>,
    }
}

/// Elements, possibly widened by an engine.
#[derive(Clone, Debug)]
pub enum Data {
    Float(Vec<f64>),
    Int(Vec<i64>),
}

/// A tensor from a case or from an engine.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// ONNX's number for the element type; not compared in results.
    pub kind: i32,
    /// `None` if the engine does not report it.
    pub shape: Option<Vec<usize>>,
    pub data: Data,
}

/// An input of a case.
pub struct Input {
    pub name: String,
    pub file: PathBuf,
    pub tensor: Tensor,
}

fn read(file: &Path) -> Result<Tensor, String> {
    let bytes = std::fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let t = proto::Tensor::decode(bytes.as_slice()).map_err(|e| e.to_string())?;
    let raw = &t.raw_data;
    fn each<const N: usize, T>(raw: &[u8], f: impl Fn([u8; N]) -> T) -> Vec<T> {
        raw.as_chunks::<N>().0.iter().map(|b| f(*b)).collect()
    }
    let given = !raw.is_empty();
    let ints = |f: &dyn Fn() -> Vec<i64>| {
        Data::Int(if given { f() } else { t.int32_data.iter().map(|v| i64::from(*v)).collect() })
    };
    let halves = |f: &dyn Fn(u16) -> f64| {
        Data::Float(if given {
            each(raw, |b| f(u16::from_le_bytes(b)))
        } else {
            t.int32_data.iter().map(|v| f(*v as u16)).collect()
        })
    };
    let data = match t.data_type {
        1 if given => Data::Float(each(raw, |b| f64::from(f32::from_le_bytes(b)))),
        1 => Data::Float(t.float_data.iter().map(|v| f64::from(*v)).collect()),
        2 | 9 => ints(&|| each(raw, |[b]: [u8; 1]| i64::from(b))),
        3 => ints(&|| each(raw, |b| i64::from(i8::from_le_bytes(b)))),
        4 => ints(&|| each(raw, |b| i64::from(u16::from_le_bytes(b)))),
        5 => ints(&|| each(raw, |b| i64::from(i16::from_le_bytes(b)))),
        6 => ints(&|| each(raw, |b| i64::from(i32::from_le_bytes(b)))),
        7 if given => Data::Int(each(raw, i64::from_le_bytes)),
        7 => Data::Int(t.int64_data.clone()),
        10 => halves(&|v| half::f16::from_bits(v).to_f64()),
        11 if given => Data::Float(each(raw, f64::from_le_bytes)),
        11 => Data::Float(t.double_data.clone()),
        12 if given => Data::Int(each(raw, |b| i64::from(u32::from_le_bytes(b)))),
        13 if given => Data::Int(each(raw, |b| u64::from_le_bytes(b) as i64)),
        12 | 13 => Data::Int(t.uint64_data.iter().map(|v| *v as i64).collect()),
        16 => halves(&|v| half::bf16::from_bits(v).to_f64()),
        other => return Err(format!("unsupported element type {other}")),
    };
    let shape = t.dims.iter().map(|d| usize::try_from(*d).map_err(|e| e.to_string())).collect::<Result<_, _>>()?;
    Ok(Tensor { kind: t.data_type, shape: Some(shape), data })
}

fn compare(found: &Tensor, wanted: &Tensor) -> Result<(), String> {
    if found.shape.is_some() && found.shape != wanted.shape {
        return Err(format!("shape {:?}, expected {:?}", found.shape, wanted.shape));
    }
    let same = match (&found.data, &wanted.data) {
        (Data::Int(a), Data::Int(b)) => a == b,
        (Data::Float(a), Data::Float(b)) => {
            let close = |(x, y): (&f64, &f64)| {
                x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= ABSOLUTE + RELATIVE * y.abs()
            };
            a.len() == b.len() && a.iter().zip(b).all(close)
        }
        _ => return Err("expected floats and found integers, or the reverse".to_owned()),
    };
    if same { Ok(()) } else { Err("elements differ".to_owned()) }
}

/// Runs a case: calls `engine` for each data set with the model, the inputs and the output names.
fn case(folder: &Path, engine: &dyn Fn(&Path, &[Input], &[String]) -> Result<Vec<Tensor>, String>) -> Result<(), String> {
    let model = folder.join("model.onnx");
    let bytes = std::fs::read(&model).map_err(|e| e.to_string())?;
    let graph = proto::Model::decode(bytes.as_slice()).map_err(|e| e.to_string())?.graph.unwrap_or_default();
    let outputs: Vec<String> = graph.output.into_iter().map(|v| v.name).collect();
    for i in 0.. {
        let set = folder.join(format!("test_data_set_{i}"));
        if !set.is_dir() {
            return if i == 0 { Err("no data".to_owned()) } else { Ok(()) };
        }
        let mut inputs = Vec::new();
        for (n, value) in graph.input.iter().enumerate() {
            let file = set.join(format!("input_{n}.pb"));
            inputs.push(Input { name: value.name.clone(), tensor: read(&file)?, file });
        }
        let found = engine(&model, &inputs, &outputs)?;
        for (n, name) in outputs.iter().enumerate() {
            let wanted = read(&set.join(format!("output_{n}.pb")))?;
            let found = found.get(n).ok_or("an output is missing")?;
            compare(found, &wanted).map_err(|e| format!("output \"{name}\": {e}"))?;
        }
    }
    Ok(())
}

/// Reads case folders from standard input, one per line, and answers each with a line: `passed`, or
/// `failed` and the reason.
pub fn serve(engine: impl Fn(&Path, &[Input], &[String]) -> Result<Vec<Tensor>, String>) {
    let mut out = std::io::stdout();
    for folder in std::io::stdin().lock().lines().map_while(Result::ok) {
        let run = std::panic::AssertUnwindSafe(|| case(Path::new(&folder), &engine));
        let result = std::panic::catch_unwind(run).unwrap_or_else(|_| Err("it panicked".to_owned()));
        let line = match result {
            Ok(()) => "passed".to_owned(),
            Err(e) => format!("failed {}", e.replace('\n', " ")),
        };
        if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}
