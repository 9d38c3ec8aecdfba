//! Roles of a decoder's inputs: tokens, positions, mask, caches; and the relations between their
//! sizes.
//!
//! Exporters name sizes freely: `past_sequence_length + sequence_length`, `total_sequence_length`,
//! or `sumN` with a cache of `sumN - N`. All follow from two numbers: the tokens of a run and the
//! tokens in the cache before it.

use crate::error::{Error, Result, Stage};
use crate::executor::Executor;
use crate::graph::derive::derive;
use crate::graph::pass::{POSITIONS, pattern};
use crate::graph::{Edit, Graph, NodeId, ValueId};
use crate::num::{self, signed};
use crate::shape::{Dim, DimError, Fact, Symbol};
use crate::tensor::{DType, HostTensor};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Inputs other than caches.
pub(super) const KNOWN: [&str; 3] = [IDS, POSITIONS, MASK];
pub(super) const IDS: &str = "input_ids";
pub(super) const MASK: &str = "attention_mask";

fn bad(what: impl Into<String>) -> Error {
    Error::other(Stage::Import, what)
}

fn symbols(d: &Dim) -> BTreeSet<Symbol> {
    let mut all = BTreeSet::new();
    d.symbols(&mut all);
    all
}

/// The cache inputs: floats with at least three axes, under any name.
pub(super) fn caches(graph: &Graph) -> Vec<ValueId> {
    let is_cache = |v: &ValueId| {
        let value = graph.value(*v);
        let fact = value.fact.as_ref();
        !KNOWN.contains(&value.name.as_str())
            && fact.is_some_and(|f| f.dtype.is_float() && f.shape.rank() >= 3)
    };
    graph.inputs().iter().copied().filter(is_cache).collect()
}

/// Expresses the sizes of a decoder's inputs by two symbols: the last axis of `input_ids` for the
/// tokens of a run, and, if there is a cache, one for the tokens in it before the run. Sizes that
/// do not follow from their roles stay unchanged. An error if expressions become too large.
pub(super) fn name_lengths(graph: &mut Graph) -> Result<(), DimError> {
    let last = |v: Option<ValueId>| v.and_then(|v| graph.value(v).fact.as_ref()?.shape.0.last().cloned());
    let Some(sequence) = last(graph.input(IDS)).and_then(|d| d.as_symbol().cloned()) else {
        return Ok(());
    };
    let batch = graph.input(IDS).and_then(|v| {
        let sizes = &graph.value(v).fact.as_ref()?.shape.0;
        sizes.first()?.as_symbol().cloned()
    });
    let mut with: BTreeMap<Symbol, Dim> = BTreeMap::new();
    let mut past: Option<Symbol> = None;
    for v in caches(graph) {
        let Some(fact) = graph.value(v).fact.as_ref() else {
            continue;
        };
        let grows =
            |d: &&Dim| d.as_const().is_none() && d.as_symbol().is_none_or(|s| Some(s) != batch.as_ref());
        let growing: Vec<&Dim> = fact.shape.0.iter().filter(grows).collect();
        let [size] = growing.as_slice() else { continue };
        let size = size.replace(&with)?;
        match (size.as_symbol(), &past) {
            (Some(s), None) => past = Some(s.clone()),
            (Some(s), Some(p)) if s != p && *s != sequence => {
                with.insert(s.clone(), Dim::from(p));
            }
            (Some(_), Some(_)) => {}
            (None, _) => {
                let Some((total, rest)) = solved(&size, &sequence)? else {
                    continue;
                };
                let own = past.get_or_insert_with(|| unused(graph, "past"));
                with.insert(total, Dim::from(&*own).sub(&rest)?);
            }
        }
    }
    let mut total = Dim::from(&sequence);
    if let Some(past) = &past {
        total = total.add(&Dim::from(past))?;
    }
    let sizes = |name: &str| -> Vec<Dim> {
        let fact = graph.input(name).and_then(|v| graph.value(v).fact.as_ref());
        fact.map(|f| f.shape.0.clone()).unwrap_or_default()
    };
    let mut is = |d: Option<&Dim>, wanted: &Dim| {
        let own = d.and_then(Dim::as_symbol);
        if let Some(s) =
            own.filter(|s| Some(*s) != past.as_ref() && **s != sequence && Some(*s) != batch.as_ref())
        {
            with.entry(s.clone()).or_insert_with(|| wanted.clone());
        }
    };
    let (mask, positions) = (sizes(MASK), sizes(POSITIONS));
    is(mask.last(), &total);
    if let [_, _, queries, _] = mask.as_slice() {
        is(Some(queries), &Dim::from(&sequence));
    }
    is(positions.last(), &Dim::from(&sequence));
    Edit::new(graph).replace_symbols(&with)?;
    mask_all_keys(graph, total);
    Ok(())
}

/// Sets the mask's key axis to `total` if the graph has another expression that is not a number:
/// Optimum writes `past_sequence_length + 1`, which is right only for runs of one token.
fn mask_all_keys(graph: &mut Graph, total: Dim) {
    let Some(mask) = graph.input(MASK) else { return };
    let Some(mut fact) = graph.value(mask).fact.clone() else {
        return;
    };
    match fact.shape.0.last_mut() {
        Some(keys) if keys.as_const().is_none() && *keys != total => *keys = total,
        _ => return,
    }
    Edit::new(graph).set_fact(mask, fact);
}

/// Splits `size` into a symbol other than `sequence` and an addend.
fn solved(size: &Dim, sequence: &Symbol) -> Result<Option<(Symbol, Dim)>, DimError> {
    let mut others = symbols(size).into_iter().filter(|s| s != sequence);
    let (Some(total), None) = (others.next(), others.next()) else {
        return Ok(None);
    };
    let rest = size.sub(&Dim::from(&total))?;
    Ok((!rest.depends_on(&total)).then_some((total, rest)))
}

/// True if the input is used only as a cache: rows are appended by a `Concat` or by attention,
/// possibly after a transpose.
fn is_appended_to(graph: &Graph, input: ValueId, consumers: &[Vec<NodeId>]) -> bool {
    let mut work = vec![input];
    let mut appended = false;
    while let Some(v) = work.pop() {
        for node in consumers[v.index()].iter().filter_map(|id| graph.node(*id)) {
            let first = node.inputs.first() == Some(&Some(v));
            match node.op.name() {
                "Transpose" | "Reshape" if first => work.extend(&node.outputs),
                "Concat" if first => appended = true,
                "Attention" | "GroupQueryAttention" | "MultiHeadAttention" if !first => appended = true,
                "Shape" => {}
                _ => return false,
            }
        }
    }
    appended
}

/// Decides comparisons of the total length with a constant as for a full cache of `context` tokens,
/// so that `LongRoPE` uses the same frequencies in all runs and for all keys. Returns the largest
/// constant below the context, if any.
pub(super) fn decide_lengths(graph: &mut Graph, context: usize) -> Result<Option<i64>> {
    name_lengths(graph).map_err(|e| bad(e.to_string()))?;
    let mut derived = graph.clone();
    // The passes report shape errors, with better information.
    if derive(&mut derived).is_err() {
        return Ok(None);
    }
    let context = signed(context);
    let consumers = derived.consumers();
    let mut decided = Vec::new();
    for (_, node) in derived.nodes().filter(|(_, n)| n.op.name() == "Greater") {
        let (Some(length), Some(number), Some(result)) = (
            pattern::input(node, 0),
            pattern::input(node, 1),
            node.outputs.first(),
        ) else {
            continue;
        };
        let length = derived.fact(length)?.as_dims().and_then(|d| d.first().cloned());
        let number = derived.fact(number)?.as_const().and_then(|t| t.to_i64().ok());
        let (Some(length), Some([number])) = (length, number.as_deref()) else {
            continue;
        };
        // Masks and windows compare lengths too; only selections between constants matter here.
        let chooses = |id: &NodeId| {
            let node = derived.node(*id).filter(|n| n.op.name() == "Where");
            let known =
                |v: Option<ValueId>| v.is_some_and(|v| derived.fact(v).is_ok_and(|f| f.as_const().is_some()));
            node.is_some_and(|n| known(pattern::input(n, 1)) && known(pattern::input(n, 2)))
        };
        if !consumers[result.index()].iter().all(chooses) {
            continue;
        }
        let shape = derived.fact(*result)?.shape.as_fixed();
        if let (None, Some(shape)) = (
            length.as_const(),
            shape.filter(|s| s.iter().product::<usize>() == 1),
        ) {
            decided.push((*result, shape, *number));
        }
    }
    let mut edit = Edit::new(graph);
    for (result, shape, number) in &decided {
        let value = HostTensor::from_bool(shape, &[context > *number]).map_err(|e| bad(e.to_string()))?;
        edit.set_fact(*result, Fact::of(Arc::new(value)));
        edit.make_const(*result);
    }
    Ok(decided
        .into_iter()
        .map(|(_, _, n)| n)
        .filter(|n| *n < context)
        .max())
}

/// Removes all rows from the cache inputs and keeps `logits` as the only output. Returns false, and
/// changes nothing, if no input is appended to. Inputs that do not grow stay.
pub(super) fn empty_caches(graph: &mut Graph) -> Result<bool> {
    let failed = |e: String| bad(format!("cannot empty the caches: {e}"));
    let consumers = graph.consumers();
    let mut caches = caches(graph);
    caches.retain(|v| is_appended_to(graph, *v, &consumers));
    let sequence = graph.input(IDS).and_then(|v| {
        let sizes = &graph.value(v).fact.as_ref()?.shape.0;
        sizes.last()?.as_symbol().cloned()
    });
    let mut none = BTreeMap::new();
    for v in &caches {
        let sizes = graph.value(*v).fact.iter().flat_map(|f| &f.shape.0);
        let grow = sizes.flat_map(symbols).filter(|s| Some(s) != sequence.as_ref());
        none.extend(grow.map(|s| (s, Dim::from(0))));
    }
    if none.is_empty() {
        return Ok(false);
    }
    let logits = graph.output("logits");
    let mut edit = Edit::new(graph);
    edit.replace_symbols(&none).map_err(|e| failed(e.to_string()))?;
    for v in caches {
        let fact = edit.fact(v)?;
        let Some(shape) = fact.shape.as_fixed() else {
            continue;
        };
        let empty = HostTensor::zeros(fact.dtype, &shape).map_err(|e| failed(e.to_string()))?;
        edit.set_fact(v, Fact::of(Arc::new(empty)));
        edit.remove_input(v);
    }
    edit.keep_outputs(|v| Some(v) == logits);
    Ok(true)
}

/// A symbol that no input size uses: `name`, with a number appended if needed.
pub(super) fn unused(graph: &Graph, name: &str) -> Symbol {
    let facts = graph
        .inputs()
        .iter()
        .filter_map(|v| graph.value(*v).fact.as_ref());
    let used: BTreeSet<Symbol> = facts.flat_map(|f| f.shape.0.iter().flat_map(symbols)).collect();
    let names = std::iter::once(name.to_owned()).chain((1..).map(|i| format!("{name}_{i}")));
    let free = names.map(|n| Symbol::new(&n)).find(|s| !used.contains(s));
    free.unwrap_or_else(|| Symbol::new(name))
}

/// Checks that positions and mask, if present, have a form that [`inputs`] can make.
pub(super) fn check(graph: &Graph) -> Result<()> {
    let fact = |name| graph.input(name).map(|v| graph.fact(v)).transpose();
    if let Some(f) = fact(POSITIONS)?
        && !(f.dtype.is_int() && matches!(f.shape.rank(), 1 | 2))
    {
        return Err(bad(format!(
            "{POSITIONS}: expected integers [batch, sequence], found {f}"
        )));
    }
    if let Some(f) = fact(MASK)? {
        let ones = f.shape.rank() == 2;
        let added = f.shape.rank() == 4 && f.dtype.is_float();
        if !ones && !added {
            return Err(bad(format!(
                "{MASK}: expected [batch, keys], or floats [1, 1, sequence, keys] that are added to \
                 scores, found {f}"
            )));
        }
    }
    Ok(())
}

/// The graph's inputs for `tokens` after `past` cached tokens, in their declared types.
pub(super) fn inputs(graph: &Graph, tokens: &[u32], past: usize) -> Result<Vec<(&'static str, HostTensor)>> {
    let mut rows = RunInputs::default();
    rows.extend(tokens, past)?;
    let mut out = Vec::with_capacity(KNOWN.len());
    for (name, fact, data) in rows.inputs(graph) {
        let data: Vec<i64> = data.iter().map(|v| i64::from(*v)).collect();
        let tensor = HostTensor::from_ints(fact.dtype, rows.shape(fact), &data);
        out.push((name, tensor.map_err(|e| unusable(name, &e))?));
    }
    out.extend(mask_of(graph, past + tokens.len())?.map(|mask| (MASK, mask)));
    Ok(out)
}

/// A mask `[1, keys]` for this many keys that hides nothing, if the graph takes a mask; other masks
/// are not inputs ([`mask::compute`](super::mask::compute)).
pub(super) fn mask_of(graph: &Graph, keys: usize) -> Result<Option<HostTensor>> {
    let mask = input_fact(graph, MASK).map(|f| match f.dtype {
        float if float.is_float() => HostTensor::from_floats(float, &[1, keys], &vec![1.0; keys]),
        DType::Bool => HostTensor::from_bool(&[1, keys], &vec![true; keys]),
        int => HostTensor::from_ints(int, &[1, keys], &vec![1; keys]),
    });
    mask.transpose().map_err(|e| unusable(MASK, &e))
}

fn input_fact<'g>(graph: &'g Graph, name: &str) -> Option<&'g Fact> {
    graph.value(graph.input(name)?).fact.as_ref()
}

fn unusable(name: &str, e: &crate::tensor::TensorError) -> Error {
    Error::other(Stage::Run, format!("input \"{name}\": {e}"))
}

/// Tokens of a run and their positions.
#[derive(Debug, Default)]
pub(super) struct RunInputs {
    tokens: Vec<i32>,
    positions: Vec<i32>,
    /// The shape of inputs with a batch axis: one, and the number of rows.
    shape: [usize; 2],
}

impl RunInputs {
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.shape = [1, 0];
    }

    /// Adds tokens at positions from `start` on.
    pub fn extend(&mut self, tokens: &[u32], start: usize) -> Result<()> {
        for (token, position) in tokens.iter().zip(start..) {
            self.tokens.push(int(*token, "a token ID")?);
            self.positions.push(int(position, "a position")?);
        }
        self.shape = [1, self.tokens.len()];
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn positions(&self) -> &[i32] {
        &self.positions
    }

    /// The inputs that the graph takes of tokens and positions: name, declared type, and values.
    fn inputs<'a>(&'a self, graph: &'a Graph) -> impl Iterator<Item = (&'static str, &'a Fact, &'a [i32])> {
        let all = [(IDS, self.tokens.as_slice()), (POSITIONS, &self.positions)];
        all.into_iter()
            .filter_map(|(name, data)| Some((name, input_fact(graph, name)?, data)))
    }

    /// The shape of an input with this fact.
    fn shape(&self, fact: &Fact) -> &[usize] {
        let [_, rows] = &self.shape;
        match fact.shape.rank() {
            1 => std::slice::from_ref(rows),
            _ => &self.shape,
        }
    }

    /// Uploads tokens and, if the graph takes them, positions as inputs of a plan.
    pub fn write(&self, graph: &Graph, executor: &mut Executor, plan: usize) -> Result<()> {
        self.inputs(graph)
            .try_for_each(|(name, fact, data)| executor.write_i32(plan, name, self.shape(fact), data))
    }
}

/// A number as a device stores it; `what` names it in the error.
pub(super) fn int<N: Copy + std::fmt::Display>(n: N, what: &'static str) -> Result<i32>
where
    i32: TryFrom<N>,
{
    Ok(num::exact(n, what)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Op;
    use crate::graph::op::concat::Concat;
    use crate::graph::op::matmul::MatMul;
    use crate::graph::op::pointwise::{Binary, Expr, Pointwise};
    use crate::graph::op::shape_of::ShapeOf;
    use crate::shape::Shape;

    /// A graph of inputs alone, with these sizes.
    fn graph(inputs: &[(&str, DType, &str)]) -> Graph {
        let mut graph = Graph::default();
        let mut edit = Edit::new(&mut graph);
        for (name, dtype, sizes) in inputs {
            let dims = sizes.split(',').map(|d| Dim::parse(d.trim()).unwrap()).collect();
            let v = edit.add_value(name, Some(Fact::new(*dtype, Shape(dims))));
            edit.add_input(v);
        }
        graph
    }

    fn named(inputs: &[(&str, DType, &str)]) -> Vec<String> {
        let mut graph = graph(inputs);
        name_lengths(&mut graph).unwrap();
        let text = |v: &ValueId| graph.fact(*v).unwrap().shape.to_string();
        graph.inputs().iter().map(text).collect()
    }

    const I: DType = DType::I64;
    const F: DType = DType::F32;

    #[test]
    fn lengths_follow_from_two() {
        let paper = [
            ("input_ids", I, "1, N"),
            ("attention_mask", F, "1, 1, N, sumN"),
            ("past_key_in0", F, "1, sumN - N, 2, 8"),
            ("past_value_in0", F, "1, sumN - N, 2, 8"),
        ];
        assert_eq!(
            named(&paper),
            [
                "[1, N]",
                "[1, 1, N, N + past]",
                "[1, past, 2, 8]",
                "[1, past, 2, 8]"
            ]
        );
        let genai = [
            ("input_ids", I, "batch, sequence"),
            ("attention_mask", I, "batch, total"),
            ("position_ids", I, "batch, positions"),
            ("past.0.key", F, "batch, 2, past, 8"),
            ("past.0.value", F, "batch, 2, past_1, 8"),
        ];
        let wanted = [
            "[batch, sequence]",
            "[batch, past + sequence]",
            "[batch, sequence]",
            "[batch, 2, past, 8]",
            "[batch, 2, past, 8]",
        ];
        assert_eq!(named(&genai), wanted);
        let optimum = [
            ("input_ids", I, "batch, sequence"),
            ("attention_mask", I, "batch, past + 1"),
            ("past.0.key", F, "batch, 2, past, 8"),
        ];
        let wanted = [
            "[batch, sequence]",
            "[batch, past + sequence]",
            "[batch, 2, past, 8]",
        ];
        assert_eq!(named(&optimum), wanted);
        // What is used already is no new name, and a cache as long as the run is left to be
        // refused.
        let taken = [
            ("input_ids", I, "past, N"),
            ("cache", F, "past, total - N, 8"),
            ("other", F, "N, 2, 8"),
        ];
        assert_eq!(named(&taken), ["[past, N]", "[past, past_1, 8]", "[N, 2, 8]"]);
        let apart = [("input_ids", I, "1, N"), ("cache", F, "1, 2*N + 3*a, 8")];
        assert_eq!(named(&apart)[1], "[1, 2*N + 3*a, 8]");
    }

    #[test]
    fn inputs_have_the_declared_types() {
        let graph = graph(&[
            ("input_ids", DType::I32, "1, N"),
            ("position_ids", I, "N"),
            ("attention_mask", F, "1, N + past"),
        ]);
        check(&graph).unwrap();
        let made = inputs(&graph, &[5, 6], 1).unwrap();
        let [(_, ids), (_, positions), (_, mask)] = made.as_slice() else {
            panic!("{made:?}")
        };
        assert_eq!((ids.dtype(), ids.to_i64().unwrap()), (DType::I32, vec![5, 6]));
        assert_eq!(
            (positions.shape(), positions.to_i64().unwrap()),
            (&[2][..], vec![1, 2])
        );
        assert_eq!((mask.dtype(), mask.shape()), (DType::F32, &[1, 3][..]));
        assert_eq!(mask.to_f32().unwrap().as_ref(), [1.0; 3]);
    }

    /// Adds a node with one result.
    fn node(edit: &mut Edit<'_>, op: Box<dyn Op>, inputs: &[ValueId]) -> ValueId {
        let v = edit.add_value("logits", None);
        let inputs = inputs.iter().copied().map(Some).collect();
        edit.add_node("node", Vec::new(), op, inputs, vec![v]);
        v
    }

    #[test]
    fn only_what_is_appended_to_is_a_cache() {
        let of = |join: bool| {
            let mut graph = graph(&[
                ("input_ids", I, "1, N"),
                ("rows", F, "1, 2, past, 8"),
                ("more", F, "1, 2, N, 8"),
            ]);
            let inputs: Vec<ValueId> = graph.inputs().to_vec();
            let mut edit = Edit::new(&mut graph);
            let op: Box<dyn Op> = if join {
                Box::new(Concat { axis: 2 })
            } else {
                Box::new(MatMul { trans_b: true })
            };
            let all = node(&mut edit, op, &[inputs[1], inputs[2]]);
            edit.add_output(all);
            let emptied = empty_caches(&mut graph).unwrap();
            (emptied, graph.inputs().len())
        };
        assert_eq!(of(true), (true, 1));
        // As states of an encoder are read, or a picture.
        assert_eq!(of(false), (false, 3));
    }

    #[test]
    fn lengths_choose_between_constants_by_the_context() {
        let of = |context| {
            let mut graph = graph(&[("input_ids", I, "1, N"), ("attention_mask", I, "1, N")]);
            let mask = graph.inputs()[1];
            let mut edit = Edit::new(&mut graph);
            let number = |edit: &mut Edit<'_>, v: i64| edit.add_int("number", v).unwrap();
            let [original, long, short] = [4, 7, 8].map(|v| number(&mut edit, v));
            let length = node(&mut edit, Box::new(ShapeOf { start: 1, end: None }), &[mask]);
            let is_long = node(
                &mut edit,
                Box::new(Pointwise::binary("Greater", Binary::Greater)),
                &[length, original],
            );
            let [a, b, c] = [0, 1, 2].map(|i| Box::new(Expr::Input(i)));
            let choice = Pointwise {
                name: "Where".to_owned(),
                expr: Expr::Select(a, b, c),
            };
            let chosen = node(&mut edit, Box::new(choice), &[is_long, long, short]);
            edit.add_output(chosen);
            let length = decide_lengths(&mut graph, context).unwrap();
            derive(&mut graph).unwrap();
            let chosen = graph.fact(chosen).unwrap().as_const().unwrap().to_i64().unwrap();
            (length, chosen)
        };
        assert_eq!(of(4), (None, vec![8]));
        assert_eq!(of(5), (Some(4), vec![7]));
    }

    #[test]
    fn other_masks_are_refused() {
        for (name, dtype, sizes) in [
            ("attention_mask", I, "1, 1, N, N"),
            ("attention_mask", F, "1, N, N"),
            ("position_ids", I, "3, 1, N"),
            ("position_ids", F, "1, N"),
        ] {
            let e = check(&graph(&[(name, dtype, sizes)])).unwrap_err();
            crate::testing::assert_carries(e, &[name, sizes]);
        }
    }
}
