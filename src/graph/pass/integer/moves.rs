//! Operators that move elements.
//!
//! They move whole words if the axis that is stored last is kept, or is cut or joined at multiples
//! of four elements. Otherwise they run on ordinary 8-bit tensors, in the axis order of the model.

use super::domain::{Domain, New, Stored, channels};
use super::shapes::usual_axis;
use super::values::{Quantized, Result8, known};
use super::view::View;
use super::{Built, Found, Refusal, Site, refuse};
use crate::graph::op::concat::Concat;
use crate::graph::op::depth_to_space::DepthToSpace;
use crate::graph::op::expand::Expand;
use crate::graph::op::gather::Gather;
use crate::graph::op::gather_elements::GatherElements;
use crate::graph::op::gather_nd::GatherNd;
use crate::graph::op::int8::WORD;
use crate::graph::op::int8_layout::ByteView;
use crate::graph::op::pad::{self, Pad};
use crate::graph::op::reshape::Reshape;
use crate::graph::op::resize::{self, Resize};
use crate::graph::op::slice::Slice;
use crate::graph::op::split::Split;
use crate::graph::op::tile::Tile;
use crate::graph::op::transpose::Transpose;
use crate::graph::{Edit, Op, OpError, ValueId};
use crate::num;
use crate::quant::fixed::{Arithmetic, Output};
use crate::shape::Dim;
use crate::tensor::{DType, HostTensor};
use std::sync::Arc;

#[derive(Debug)]
struct Move {
    op: Box<dyn Op>,
    /// Operands, each with a table that rescales it to the map of the results, if its own differs.
    operands: Vec<(Quantized, Option<Vec<i8>>)>,
    /// The remaining operands, which are not quantized.
    others: Vec<Option<ValueId>>,
    /// The integer that constant padding holds.
    padding: Option<i8>,
    results: Vec<Quantized>,
}

impl Site for Move {
    fn build(&self, domain: &mut Domain, edit: &mut Edit<'_>, new: &New<'_>) -> Built<()> {
        let (op, results) = (self.op.as_ref(), self.results.as_slice());
        let mut same = Vec::with_capacity(self.operands.len());
        for (q, table) in &self.operands {
            same.push(match (table, results.first()) {
                (Some(table), Some(to)) => domain.remapped(edit, new, q, table, to)?,
                _ => q.clone(),
            });
        }
        let operands = same.as_slice();
        if let ([x], [to]) = (operands, results)
            && let Some(form) = domain.any(x)
        {
            if let Some(transpose) = op.downcast::<Transpose>() {
                let perm = transpose.axes(x.shape.len())?;
                return transposed(domain, edit, new, form.value, form.axis, &perm, to);
            }
            if op.downcast::<Reshape>().is_some()
                && let Some((axis, shape)) = same_rows(x, form.axis, to)?
            {
                let y = reshaped(edit, new, form.value, &shape)?;
                domain.set(to, axis, y);
                return Ok(());
            }
        }
        if let (Some(resize), [x], [to]) = (op.downcast::<Resize>(), operands, results) {
            return resized(domain, edit, new, resize, &self.others, x, to);
        }
        if let (Some(concat), [to]) = (op.downcast::<Concat>(), results)
            && concatenated(domain, edit, new, concat, operands, to)?
        {
            return Ok(());
        }
        if let [x] = operands
            && let Some(form) = domain.any(x)
            && parted(domain, edit, new, self, x, form)?
        {
            return Ok(());
        }
        let mut inputs = Vec::with_capacity(operands.len());
        for q in operands {
            inputs.push(Some(domain.plain(edit, q)?));
        }
        inputs.extend(self.others.iter().copied());
        if let (Some(padding), [q]) = (self.padding, operands) {
            let value = i64::from(padding) + if q.dtype == DType::U8 { 128 } else { 0 };
            let value = HostTensor::from_ints(q.dtype, &[], &[value])?;
            let value = edit.add_const(&format!("{}/value", new.name), Arc::new(value));
            inputs.resize(inputs.len().max(3), None);
            inputs[2] = Some(value);
        }
        let mut values = Vec::new();
        for to in results {
            let name = format!("{}/moved", edit.value(to.value).name);
            values.push(edit.add_value(&name, None));
        }
        edit.add_node(new.name, new.origin.clone(), op.boxed(), inputs, values.clone());
        for (to, v) in results.iter().zip(values) {
            domain.set_plain(to, v);
        }
        Ok(())
    }
}

/// Whether an operator only moves elements: those of all operands for `Concat`, otherwise those of
/// its first operand. The other operands are positions, sizes and padding values.
pub(super) fn is_move(op: &(dyn Op + 'static)) -> bool {
    op.downcast::<Concat>().is_some()
        || op.downcast::<DepthToSpace>().is_some()
        || op.downcast::<Expand>().is_some()
        || op.downcast::<Gather>().is_some()
        || op.downcast::<GatherElements>().is_some()
        || op.downcast::<GatherNd>().is_some()
        || op.downcast::<Pad>().is_some()
        || op.downcast::<Reshape>().is_some()
        || op.downcast::<Resize>().is_some()
        || op.downcast::<Slice>().is_some()
        || op.downcast::<Split>().is_some()
        || op.downcast::<Tile>().is_some()
        || op.downcast::<Transpose>().is_some()
}

/// The site of a node that only moves elements, if its results share one map.
pub(super) fn find(view: &View<'_, '_>, arithmetic: Arithmetic) -> Found {
    let concat = view.op.downcast::<Concat>().is_some();
    let count = if concat { view.operand_count() } else { 1 };
    let operands: Vec<Quantized> = (0..count).map(|i| view.operand(i)).collect::<Result<_, _>>()?;
    let results: Vec<Result8> = view.results()?;
    let mut others = view.others(count);
    let padding = match view.op.downcast::<Pad>() {
        Some(pad) if pad.pads.is_some() => {
            return Err(refuse("a Pad with pads as an attribute (opset 10 or earlier)"));
        }
        Some(pad) => {
            // Operand 2 is the padding value, a float.
            let value = others.get_mut(1).and_then(Option::take);
            let constant = pad.mode == pad::Mode::Constant;
            constant.then(|| view.number(value, pad.value)).transpose()?
        }
        None => None,
    };
    if let Some(resize) = view.op.downcast::<Resize>() {
        can_resize(view, resize)?;
    }
    let unbounded = [f32::NEG_INFINITY, f32::INFINITY];
    let first = results
        .first()
        .ok_or_else(|| refuse("a missing output"))?
        .to
        .clone();
    let same = |q: &Quantized| q.map == first.map && q.dtype == first.dtype;
    if results.iter().any(|r| !same(&r.to) || r.bounds != unbounded) {
        return Err(refuse("outputs that differ in quantization or are clamped"));
    }
    let output = Output::new(first.map.zero);
    let table =
        |q: &Quantized| (!same(q)).then(|| super::table::rescaling(q.map, first.map, output, arithmetic));
    let padding = padding.map(|v| output.quantized(v, first.map.scale));
    Ok(Box::new(Move {
        op: view.op.boxed(),
        others,
        padding,
        operands: operands.into_iter().map(|q| (q.clone(), table(&q))).collect(),
        results: results.into_iter().map(|r| r.to).collect(),
    }))
}

/// Checks that a resize selects nearest elements, with constant sizes, and leaves the axis that is
/// stored last alone.
fn can_resize(view: &View<'_, '_>, resize: &Resize) -> Result<(), Refusal> {
    let nearest = matches!(resize.mode, resize::Mode::Nearest(_));
    if !nearest || resize.coordinates == resize::Coordinates::TfCropAndResize {
        return Err(refuse("a resize other than nearest, or with tf_crop_and_resize"));
    }
    let (x, to) = (view.operand(0)?.shape, view.result()?.to.shape);
    let axis = usual_axis(&x)?;
    let given = resize.scales.clone().or_else(|| view.floats(resize.scales_at));
    let scale = given.and_then(|list| list.get(axis).copied()).unwrap_or(1.0);
    #[expect(clippy::float_cmp, reason = "another scale selects other elements")]
    if resize.axes.is_some() || x.get(axis) != to.get(axis) || scale != 1.0 {
        return Err(refuse(
            "a resize with an axes attribute, or along the channel axis",
        ));
    }
    match view.others(1).iter().flatten().all(|v| view.is_known(*v)) {
        true => Ok(()),
        false => Err(refuse("resize sizes or scales that are not constant")),
    }
}

/// Concatenates words. Returns false if an operand does not consist of whole words.
fn concatenated(
    domain: &mut Domain,
    edit: &mut Edit<'_>,
    new: &New<'_>,
    concat: &Concat,
    operands: &[Quantized],
    to: &Quantized,
) -> Built<bool> {
    let at = crate::graph::op::axis(concat.axis, to.shape.len())?;
    let stored = operands.iter().find_map(|q| domain.any(q)).map(|s| s.axis);
    let Some(axis) = stored.or_else(|| usual_axis(&to.shape).ok()) else {
        return Ok(false);
    };
    let whole = |q: &Quantized| channels(q, axis).is_ok_and(|n| at != axis || n % num::signed(WORD) == 0);
    if !operands.iter().all(whole) {
        return Ok(false);
    }
    let mut words = Vec::new();
    for q in operands {
        let x = domain.request(edit, q, axis)?;
        words.push(Domain::add(edit, new, ByteView::Words, &[x]));
    }
    let op = Concat {
        axis: num::signed(place(at, axis, to.shape.len())),
    };
    let y = Domain::add(edit, new, op, &words);
    let y = Domain::add(edit, new, ByteView::Bytes, &[y]);
    domain.set(to, axis, y);
    Ok(true)
}

/// Splits or slices words. Returns false for other operators, and if the parts do not consist of
/// whole words or depend on operands that are not constant.
fn parted(
    domain: &mut Domain,
    edit: &mut Edit<'_>,
    new: &New<'_>,
    site: &Move,
    x: &Quantized,
    form: Stored,
) -> Built<bool> {
    let rank = x.shape.len();
    let (op, others): (Box<dyn Op>, Vec<ValueId>) = if let Some(split) = site.op.downcast::<Split>() {
        let at = crate::graph::op::axis(split.axis, rank)?;
        let sizes = site.results.iter().map(|to| to.shape.get(at)?.as_const());
        let sizes = sizes.collect::<Option<Vec<i64>>>();
        let Some(sizes) = sizes.and_then(|list| {
            if at == form.axis {
                word_sizes(&list)
            } else {
                Some(list)
            }
        }) else {
            return Ok(false);
        };
        let split = Split {
            axis: num::signed(place(at, form.axis, rank)),
            parts: sizes.len(),
            sizes: Some(sizes),
            uneven: false,
        };
        (Box::new(split), Vec::new())
    } else if site.op.downcast::<Slice>().is_some() {
        let Some(lists) = word_slice(edit, &site.others, x, form.axis)? else {
            return Ok(false);
        };
        let mut others = Vec::with_capacity(lists.len());
        for (what, list) in ["starts", "ends", "axes", "steps"].iter().zip(lists) {
            let list = HostTensor::from_i64(&[list.len()], &list)?;
            others.push(edit.add_const(&format!("{}/{what}", new.name), Arc::new(list)));
        }
        (Box::new(Slice), others)
    } else {
        return Ok(false);
    };
    let words = Domain::add(edit, new, ByteView::Words, &[form.value]);
    let inputs = std::iter::once(words).chain(others).map(Some).collect();
    let parts: Vec<ValueId> = site
        .results
        .iter()
        .map(|to| {
            let name = format!("{}/moved", edit.value(to.value).name);
            edit.add_value(&name, None)
        })
        .collect();
    edit.add_node(new.name, new.origin.clone(), op, inputs, parts.clone());
    for (to, part) in site.results.iter().zip(parts) {
        let y = Domain::add(edit, new, ByteView::Bytes, &[part]);
        domain.set(to, form.axis, y);
    }
    Ok(true)
}

/// The words that hold `n` bytes.
fn in_words(n: i64) -> i64 {
    let word = num::signed(WORD);
    n / word + i64::from(n % word != 0)
}

/// Sizes in words. Only the last part may end within a word.
fn word_sizes(sizes: &[i64]) -> Option<Vec<i64>> {
    let word = num::signed(WORD);
    let (_, before) = sizes.split_last()?;
    let whole = before.iter().all(|n| n % word == 0);
    whole.then(|| sizes.iter().map(|n| in_words(*n)).collect())
}

/// Starts, ends, axes and steps of a slice of `x` in words, where axis `last` is stored last.
fn word_slice(
    edit: &Edit<'_>,
    others: &[Option<ValueId>],
    x: &Quantized,
    last: usize,
) -> Built<Option<[Vec<i64>; 4]>> {
    let given = |i: usize| others.get(i).copied().flatten();
    let list = |i: usize| known(edit, given(i)?)?.to_i64().ok();
    let (Some(mut starts), Some(mut ends)) = (list(0), list(1)) else {
        return Ok(None);
    };
    let axes = match (given(2), list(2)) {
        (None, _) => (0..starts.len()).map(num::signed).collect(),
        (Some(_), Some(axes)) => axes,
        _ => return Ok(None),
    };
    let steps = match (given(3), list(3)) {
        (None, _) => vec![1; starts.len()],
        (Some(_), Some(steps)) => steps,
        _ => return Ok(None),
    };
    let (word, size) = (num::signed(WORD), channels(x, last)?);
    let rank = x.shape.len();
    let mut places = Vec::with_capacity(axes.len());
    for (i, axis) in axes.iter().enumerate() {
        let at = crate::graph::op::axis(*axis, rank)?;
        places.push(num::signed(place(at, last, rank)));
        if at != last {
            continue;
        }
        let (Some(start), Some(end)) = (starts.get_mut(i), ends.get_mut(i)) else {
            return Ok(None);
        };
        for v in [&mut *start, &mut *end] {
            let from_front = if *v < 0 { v.saturating_add(size) } else { *v };
            *v = from_front.clamp(0, size);
        }
        if steps.get(i) != Some(&1) || *start % word != 0 || *end % word != 0 && *end != size {
            return Ok(None);
        }
        (*start, *end) = (in_words(*start), in_words(*end));
    }
    Ok(Some([starts, ends, places, steps]))
}

/// `x`, which stores the channels last, with zero points inserted after each element, so that
/// elements are `steps` apart along each spatial axis.
pub(super) fn spread(
    edit: &mut Edit<'_>,
    new: &New<'_>,
    x: ValueId,
    q: &Quantized,
    steps: &[i64],
) -> Built<ValueId> {
    if steps.iter().all(|s| *s == 1) {
        return Ok(x);
    }
    let words = Domain::add(edit, new, ByteView::Words, &[x]);
    let sizes: Vec<i64> = q.shape.iter().skip(2).filter_map(Dim::as_const).collect();
    let last = in_words(channels(q, 1)?);
    // An axis of size 1 after each spatial axis is padded to the step and merged with it.
    let (mut split, mut joined, mut after) = (vec![-1], vec![-1], vec![0]);
    for (size, step) in sizes.iter().zip(steps) {
        split.extend([*size, 1]);
        joined.push(size * step);
        after.extend([0, step - 1]);
    }
    split.push(last);
    joined.push(last);
    after.push(0);
    let mut pads = vec![0; after.len()];
    pads.extend(after);
    #[expect(clippy::cast_possible_truncation, reason = "8 bits")]
    let byte = q.map.zero as i8;
    let zero = i64::from(i32::from_le_bytes([byte.cast_unsigned(); 4]));
    let mut constant =
        |what: &str, t: HostTensor| edit.add_const(&format!("{}/{what}", new.name), Arc::new(t));
    let split = constant("split", HostTensor::from_i64(&[split.len()], &split)?);
    let joined = constant("joined", HostTensor::from_i64(&[joined.len()], &joined)?);
    let pads = constant("pads", HostTensor::from_i64(&[pads.len()], &pads)?);
    let zero = constant("zero", HostTensor::from_ints(DType::I32, &[], &[zero])?);
    let reshape = || Reshape::Reshape { allow_zero: false };
    let pad = Pad {
        mode: pad::Mode::Constant,
        pads: None,
        value: 0.0,
    };
    let y = Domain::add(edit, new, reshape(), &[words, split]);
    let y = Domain::add(edit, new, pad, &[y, pads, zero]);
    let y = Domain::add(edit, new, reshape(), &[y, joined]);
    Ok(Domain::add(edit, new, ByteView::Bytes, &[y]))
}

/// Position of axis `at` in a stored form that has axis `axis` last.
fn place(at: usize, axis: usize, rank: usize) -> usize {
    match at.cmp(&axis) {
        std::cmp::Ordering::Less => at,
        std::cmp::Ordering::Equal => rank.saturating_sub(1),
        std::cmp::Ordering::Greater => at - 1,
    }
}

fn transposed(
    domain: &mut Domain,
    edit: &mut Edit<'_>,
    new: &New<'_>,
    x: ValueId,
    axis: usize,
    perm: &[usize],
    to: &Quantized,
) -> Built<()> {
    // The axis that is stored last stays last; only the order of the others changes.
    let own = perm.iter().position(|a| *a == axis);
    let own = own.ok_or_else(|| OpError::expected("permutation", "all axes", axis))?;
    let others = perm.iter().filter(|a| **a != axis);
    let mut order: Vec<i64> = others.map(|a| num::signed(place(*a, axis, perm.len()))).collect();
    order.push(num::signed(perm.len()) - 1);
    if order.iter().copied().eq(0..num::signed(perm.len())) {
        domain.set(to, own, x);
        return Ok(());
    }
    let words = Domain::add(edit, new, ByteView::Words, &[x]);
    let y = Domain::add(edit, new, Transpose { perm: Some(order) }, &[words]);
    let y = Domain::add(edit, new, ByteView::Bytes, &[y]);
    domain.set(to, own, y);
    Ok(())
}

/// Selects nearest elements along axes other than the one that is stored last.
fn resized(
    domain: &mut Domain,
    edit: &mut Edit<'_>,
    new: &New<'_>,
    resize: &Resize,
    others: &[Option<ValueId>],
    x: &Quantized,
    to: &Quantized,
) -> Built<()> {
    let rank = x.shape.len();
    let axis = usual_axis(&x.shape)?;
    let value = domain.request(edit, x, axis)?;
    let words = Domain::add(edit, new, ByteView::Words, &[value]);
    // Lists with an entry per axis take the axis order of the stored form.
    let mut op = resize.clone();
    if let Some(scales) = op.scales.as_mut().filter(|s| s.len() == rank) {
        scales[axis..].rotate_left(1);
    }
    let mut inputs = vec![Some(words)];
    for v in others {
        let Some(v) = *v else {
            inputs.push(None);
            continue;
        };
        let list = super::values::known(edit, v);
        let list = list.ok_or_else(|| OpError::expected("sizes", "constants", "data"))?;
        let list = if list.len() != rank {
            Some(v).filter(|_| !list.is_empty())
        } else if list.dtype().is_float() {
            let mut scales = list.to_f32()?.into_owned();
            scales[axis..].rotate_left(1);
            let list = HostTensor::from_f32(&[rank], &scales)?;
            Some(edit.add_const(&format!("{}/scales", new.name), Arc::new(list)))
        } else {
            let mut sizes = list.to_i64()?;
            sizes[axis] = in_words(sizes[axis]);
            sizes[axis..].rotate_left(1);
            let list = HostTensor::from_i64(&[rank], &sizes)?;
            Some(edit.add_const(&format!("{}/sizes", new.name), Arc::new(list)))
        };
        inputs.push(list);
    }
    let y = edit.add_value(&format!("{}/int8", new.name), None);
    edit.add_node(new.name, new.origin.clone(), Box::new(op), inputs, vec![y]);
    let y = Domain::add(edit, new, ByteView::Bytes, &[y]);
    domain.set(to, axis, y);
    Ok(())
}

/// The axis of the result that is stored last, and the stored shape, if a reshape keeps the axis
/// that is stored last whole and in place.
fn same_rows(x: &Quantized, axis: usize, to: &Quantized) -> Built<Option<(usize, Vec<Dim>)>> {
    let ones = |list: &[Dim], from: usize| list.iter().skip(from).all(|d| d.is(1));
    let size = &x.shape[axis];
    // Elements along the axis must be contiguous in the order of the model.
    if !ones(&x.shape, axis + 1) {
        return Ok(None);
    }
    let fits = |a: &usize| to.shape.get(*a) == Some(size) && ones(&to.shape, a + 1);
    let Some(own) = (0..to.shape.len()).rev().find(fits) else {
        return Ok(None);
    };
    let mut shape: Vec<Dim> = to.shape.clone();
    shape.remove(own);
    if shape.iter().filter(|d| d.as_const().is_none()).count() > 1 {
        return Ok(None);
    }
    shape.push(crate::graph::op::int8::padded(size)?);
    Ok(Some((own, shape)))
}

/// Reshapes all axes of a value of the integer domain but the last.
pub(super) fn reshaped(edit: &mut Edit<'_>, new: &New<'_>, x: ValueId, shape: &[Dim]) -> Built<ValueId> {
    let words = Domain::add(edit, new, ByteView::Words, &[x]);
    // At most one size is not constant; it follows from the others.
    let (lead, last) = crate::graph::op::int8::last(shape)?;
    let mut sizes: Vec<i64> = lead.iter().map(|d| d.as_const().unwrap_or(-1)).collect();
    let last = last
        .as_const()
        .ok_or_else(|| OpError::expected("channels", "a constant", last))?;
    sizes.push(last / num::signed(WORD));
    let target = HostTensor::from_i64(&[sizes.len()], &sizes)?;
    let target = edit.add_const(&format!("{}/shape", new.name), Arc::new(target));
    let y = Domain::add(
        edit,
        new,
        Reshape::Reshape { allow_zero: false },
        &[words, target],
    );
    Ok(Domain::add(edit, new, ByteView::Bytes, &[y]))
}
