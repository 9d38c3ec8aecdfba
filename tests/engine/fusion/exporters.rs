//! Forms of exporters: repeated heads, heads before rows, one place of an axis, parts.

use super::*;

/// Keys and values repeated for the query heads of their group, after the heads' axis or before it;
/// the heads lie before or after the sequence when they are repeated.
fn repeated(after: bool, sequence_first: bool) -> Build {
    let mut b = Build::default();
    let orders = if sequence_first {
        ["s,1,4,6", "t,1,2,6"]
    } else {
        ["1,s,4,6", "1,t,2,6"]
    };
    let (q, k, v) = (
        b.input("q", orders[0]),
        b.input("k", orders[1]),
        b.input("v", orders[1]),
    );
    let (to_heads, back): (&[i64], &[i64]) = if sequence_first {
        (&[1, 2, 0, 3], &[2, 0, 1, 3])
    } else {
        (&[0, 2, 1, 3], &[0, 2, 1, 3])
    };
    let q = b.swap(q, to_heads);
    let [k, v] = [k, v].map(|x| {
        let x = if sequence_first { x } else { b.swap(x, to_heads) };
        let heads = if sequence_first { 2 } else { 1 };
        let at = b.list(&[heads + i64::from(after)]);
        let one = b.node(Reshape::Unsqueeze, &[x, at]);
        let mut wide = [1; 5];
        wide[usize::try_from(heads).unwrap() + usize::from(after)] = 2;
        let wide = b.list(&wide);
        let wide = b.node(Expand, &[one, wide]);
        let joined = b.list(if sequence_first {
            &[0, 0, 4, 6]
        } else {
            &[0, 4, -1, 6]
        });
        let all = b.node(Reshape::Reshape { allow_zero: false }, &[wide, joined]);
        if sequence_first {
            b.swap(all, to_heads)
        } else {
            all
        }
    });
    let scores = b.node(MatMul { trans_b: true }, &[q, k]);
    let two = b.floats(&[], &[2.0]);
    let scores = b.binary(Binary::Div, scores, two);
    attend(&mut b, scores, v, back);
    b
}

/// The rest of attention: softmax, the sum of values, the order of axes at the end.
fn attend(b: &mut Build, scores: ValueId, v: ValueId, back: &[i64]) {
    let softmax = Softmax {
        axis: -1,
        flatten: false,
    };
    let weights = b.node(softmax, &[scores]);
    let sum = b.node(MatMul { trans_b: false }, &[weights, v]);
    let y = b.swap(sum, back);
    b.output(y);
}

#[test]
fn repeated_heads_are_read_once() {
    let sizes = [("s", 3), ("t", 5)];
    for sequence_first in [false, true] {
        let mut right = repeated(true, sequence_first);
        assert_eq!(right.pass(ATTENTION, &sizes), 1, "{sequence_first}");
        assert!(right.has("Attention") && !right.has("Expand"));
        // Query head h uses key head h % 2 here: at most the repeated heads are read as they are.
        let mut other = repeated(false, sequence_first);
        assert_eq!(other.pass(ATTENTION, &sizes), usize::from(sequence_first));
        assert!(other.has("Expand"));
    }
}

#[test]
fn a_number_divided_by_scores_is_no_scale() {
    let mut b = Build::default();
    let [q, k, v] = [("q", "1,s,3,4"), ("k", "1,t,3,4"), ("v", "1,t,3,4")].map(|(name, sizes)| {
        let x = b.input(name, sizes);
        b.swap(x, &[0, 2, 1, 3])
    });
    let scores = b.node(MatMul { trans_b: true }, &[q, k]);
    let two = b.floats(&[], &[2.0]);
    let scores = b.binary(Binary::Div, two, scores);
    attend(&mut b, scores, v, &[0, 2, 1, 3]);
    assert_eq!(b.pass(ATTENTION, &[("s", 3), ("t", 5)]), 0);
}

/// Two rotary embeddings by the same angles, over heads that lie before the rows.
fn rotary_of_heads(transposed: bool, angles: &str) -> Build {
    let mut b = Build::default();
    let (cos, sin) = (b.input("cos", angles), b.input("sin", angles));
    for (name, rows, heads) in [("q", "1,s,3,8", "1,3,s,8"), ("k", "1,s,2,8", "1,2,s,8")] {
        let x = if transposed {
            let x = b.input(name, rows);
            b.swap(x, &[0, 2, 1, 3])
        } else {
            b.input(name, heads)
        };
        let (low, high) = (b.part(x, 0, 4), b.part(x, 4, i64::MAX));
        let high = b.unary(Unary::Neg, high);
        let turned = b.node(Concat { axis: -1 }, &[high, low]);
        let (plain, turned) = (b.binary(Binary::Mul, x, cos), b.binary(Binary::Mul, turned, sin));
        let y = b.binary(Binary::Add, plain, turned);
        b.output(y);
    }
    b
}

#[test]
fn rotary_embeddings_of_transposed_heads() {
    let mut b = rotary_of_heads(true, "1,1,s,8");
    assert_eq!(b.pass(ROTARY, &[("s", 3)]), 2);
    // Each embedding and its transpose back, and the angles of both once.
    assert_eq!((b.has("Rotary"), b.has("Concat"), b.nodes()), (true, false, 6));
    let mut b = rotary_of_heads(false, "1,1,s,8");
    assert_eq!(b.pass(ROTARY, &[("s", 3)]), 0, "heads that are not transposed");
    let mut b = rotary_of_heads(true, "1,1,1,8");
    assert_eq!(b.pass(ROTARY, &[("s", 3)]), 0, "one angle for all rows");
}

#[test]
fn products_over_one_element() {
    let product = |a: &str, c: &str, trans_b| {
        let mut b = Build::default();
        let (x, y) = (b.input("a", a), b.input("b", c));
        let y = b.node(MatMul { trans_b }, &[x, y]);
        b.output(y);
        b
    };
    let mut b = product("2,5,1", "2,1,s", false);
    assert_eq!((b.pass(OUTER_PRODUCT, &[("s", 3)]), b.has("Mul")), (1, true));
    assert_eq!(
        product("2,5,2", "2,2,s", false).pass(OUTER_PRODUCT, &[("s", 3)]),
        0
    );
    assert_eq!(
        product("2,5,1", "2,s,1", true).pass(OUTER_PRODUCT, &[("s", 3)]),
        0
    );
}

/// A product that makes the output `logits`, through a transpose if there is one.
fn logits(rows: &str, perm: Option<&[i64]>) -> Build {
    let mut b = Build::default();
    let (x, w) = (b.input("x", rows), b.input("w", "8,8"));
    let mut edit = Edit::new(&mut b.0);
    let (y, out) = (edit.add_value("product", None), edit.add_value("logits", None));
    let product = if perm.is_some() { y } else { out };
    let op = MatMul { trans_b: false };
    edit.add_node(
        "product",
        Vec::new(),
        Box::new(op),
        vec![Some(x), Some(w)],
        vec![product],
    );
    if let Some(perm) = perm {
        let op = Transpose {
            perm: Some(perm.to_vec()),
        };
        edit.add_node("end", Vec::new(), Box::new(op), vec![Some(y)], vec![out]);
    }
    edit.add_output(out);
    b
}

#[test]
fn the_last_row_of_logits() {
    for (rows, perm, found) in [
        ("1,s,8", None, "[1, 1, 8]"),
        ("s,1,8", Some(&[1, 0, 2][..]), "[1, 1, 8]"),
        ("1,8,8", Some(&[0, 2, 1]), "[1, 8, 8]"),
    ] {
        let mut b = logits(rows, perm);
        let passes = vec![LAST_ROW];
        let edit_limit = usize::MAX;
        // As a decoder states it.
        Edit::new(&mut b.0).set_constraints(Constraints::parse("s >= 1").unwrap());
        Pipeline { passes, edit_limit }.run(&mut b.0).unwrap();
        let out = b.0.output("logits").unwrap();
        assert_eq!(
            b.0.fact(out).unwrap().shape.to_string(),
            found,
            "{rows}, {perm:?}"
        );
    }
}

#[test]
fn as_many_last_rows_of_logits_as_are_asked_for() {
    for (rows, perm, found) in [
        ("1,s,8", None, "[1, logits_rows, 8]"),
        ("s,1,8", Some(&[1, 0, 2][..]), "[1, logits_rows, 8]"),
    ] {
        let mut b = logits(rows, perm);
        let passes = vec![LAST_ROWS];
        let edit_limit = usize::MAX;
        Edit::new(&mut b.0).set_constraints(Constraints::parse("s >= 1").unwrap());
        Pipeline { passes, edit_limit }.run(&mut b.0).unwrap();
        let out = b.0.output("logits").unwrap();
        assert_eq!(b.0.fact(out).unwrap().shape.to_string(), found);
        let given = b.0.input(ROWS).unwrap();
        assert_eq!(b.0.fact(given).unwrap().shape.to_string(), "[logits_rows]");
    }
}

#[test]
fn rows_are_cut_before_a_soft_cap() {
    for (other, found) in [(false, "[1, 1, 8]"), (true, "[1, s, 8]")] {
        let mut b = Build::default();
        let (x, w) = (b.input("x", "1,s,8"), b.input("w", "8,8"));
        let y = b.node(MatMul { trans_b: false }, &[x, w]);
        let cap = HostTensor::from_f32(&[], &[30.0]).unwrap();
        let cap = Edit::new(&mut b.0).add_const("cap", Arc::new(cap));
        let scaled = b.node(Pointwise::binary("Div", Binary::Div), &[y, cap]);
        let mut edit = Edit::new(&mut b.0);
        let out = edit.add_value("logits", None);
        let capped = Box::new(Pointwise::binary("Mul", Binary::Mul));
        edit.add_node(
            "end",
            Vec::new(),
            capped,
            vec![Some(scaled), Some(cap)],
            vec![out],
        );
        edit.add_output(out);
        if other {
            // All of the uncapped ones are wanted elsewhere.
            edit.add_output(y);
        }
        Edit::new(&mut b.0).set_constraints(Constraints::parse("s >= 1").unwrap());
        let passes = vec![LAST_ROW];
        let edit_limit = usize::MAX;
        Pipeline { passes, edit_limit }.run(&mut b.0).unwrap();
        assert_eq!(b.0.fact(out).unwrap().shape.to_string(), found);
    }
}

#[test]
fn sizes_that_are_numbers_become_constants() {
    let mut b = Build::default();
    let x = b.input("x", "s,6");
    let shape = b.node(ShapeOf { start: 1, end: None }, &[x]);
    let half = b.list(&[2]);
    let half = b.node(Pointwise::binary("Div", Binary::Div), &[shape, half]);
    let y = b.node(Reshape::Identity, &[half]);
    b.output(y);
    b.output(x);
    let passes = vec![FOLD];
    let edit_limit = usize::MAX;
    let reports = Pipeline { passes, edit_limit }.run(&mut b.0).unwrap();
    assert_eq!((reports[0].edits, b.nodes()), (3, 0));
    let known = b.0.fact(y).unwrap().as_const().unwrap().to_i64().unwrap();
    assert_eq!(known, [3]);
}

#[test]
fn one_place_of_an_inner_axis_is_sliced() {
    let gather = |axis: i64, rank: usize, index: &[i64]| {
        let mut b = Build::default();
        let x = b.input("x", "3,s,4");
        let index = HostTensor::from_i64(&vec![index.len(); rank], index).unwrap();
        let index = Edit::new(&mut b.0).add_const("index", Arc::new(index));
        let y = b.node(Gather { axis }, &[x, index]);
        b.output(y);
        b
    };
    let sizes = [("s", 3)];
    for (axis, rank, index) in [(-1, 0, 2), (2, 0, -1), (1, 0, 0), (-1, 1, -2), (1, 1, -1)] {
        let mut b = gather(axis, rank, &[index]);
        assert_eq!(
            (b.pass(GATHER_TO_SLICE, &sizes), b.has("Gather")),
            (1, false),
            "{index} of {axis}"
        );
    }
    // A place that the axis may not have is an error in any form.
    for (rank, shape) in [(0, "[3, 4]"), (1, "[3, 1, 4]")] {
        let mut b = gather(1, rank, &[3]);
        assert_eq!(
            (b.pass(GATHER_TO_SLICE, &[("s", 4)]), b.has("Gather")),
            (1, false)
        );
        let y = b.0.outputs()[0];
        assert_eq!(b.0.fact(y).unwrap().shape.to_string(), shape);
        let [assumed] = b.0.assumptions() else {
            panic!("{:?}", b.0.assumptions())
        };
        let at = |s| assumed.assumed.dim.eval(&Bindings::from([("s", s)])).unwrap();
        assert_eq!((at(4), at(2) == 0), (0, false));
    }
    assert_eq!(
        gather(0, 0, &[1]).pass(GATHER_TO_SLICE, &sizes),
        0,
        "rows of a table"
    );
    assert_eq!(
        gather(2, 1, &[1, 0]).pass(GATHER_TO_SLICE, &sizes),
        0,
        "two places"
    );
}

#[test]
fn parts_of_a_split_are_sliced() {
    let split = |x: &str, axis: i64, sizes: &[i64]| {
        let mut b = Build::default();
        let (x, list) = (b.input("x", x), b.list(sizes));
        let op = Split {
            axis,
            sizes: None,
            parts: sizes.len(),
            uneven: false,
        };
        let mut edit = Edit::new(&mut b.0);
        let parts: Vec<ValueId> = sizes.iter().map(|_| edit.add_value("part", None)).collect();
        edit.add_node(
            "split",
            Vec::new(),
            Box::new(op),
            vec![Some(x), Some(list)],
            parts.clone(),
        );
        parts.into_iter().for_each(|p| edit.add_output(p));
        b
    };
    for (x, axis, sizes) in [
        ("s,6", -1, [1, 3, 2]),
        ("2,6,s", 1, [2, 2, 2]),
        ("6,s", 0, [5, 1, 0]),
    ] {
        let mut b = split(x, axis, &sizes);
        assert_eq!((b.pass(SPLIT, &[("s", 3)]), b.has("Split")), (1, false), "{x}");
    }
}

/// What is off in an embedding of neighbours.
#[derive(Default)]
struct Off {
    sum: bool,
    odd_by_cosines: bool,
    other_rest: bool,
}

/// The rotary embedding of neighbours in the first `r` elements of heads of 8.
fn rotary_of_neighbours(r: i64, off: &Off) -> Build {
    let mut b = Build::default();
    let (x, z) = (b.input("x", "s,1,3,8"), b.input("z", "s,1,3,8"));
    let angles = format!("s,1,1,{}", r / 2);
    let (cos, sin) = (b.input("cos", &angles), b.input("sin", &angles));
    let turn = if r < 8 { b.part(x, 0, r) } else { x };
    let pairs = b.reshape(turn, &[0, 0, 0, r / 2, 2]);
    let mut pick = |i| {
        let one = b.part(pairs, i, i + 1);
        b.reshape(one, &[0, 0, 0, r / 2])
    };
    let (even, odd) = (pick(0), pick(1));
    let (ec, os) = (b.binary(Binary::Mul, even, cos), b.binary(Binary::Mul, sin, odd));
    let crossed = if off.odd_by_cosines { even } else { odd };
    let (oc, es) = (
        b.binary(Binary::Mul, crossed, cos),
        b.binary(Binary::Mul, even, sin),
    );
    let first = b.binary(if off.sum { Binary::Add } else { Binary::Sub }, ec, os);
    let second = b.binary(Binary::Add, es, oc);
    let both = [first, second].map(|v| b.reshape(v, &[0, 0, 0, r / 2, 1]));
    let both = b.node(Concat { axis: -1 }, &both);
    let mut y = b.reshape(both, &[0, 0, 0, r]);
    if r < 8 {
        let rest = b.part(if off.other_rest { z } else { x }, r, 8);
        y = b.node(Concat { axis: -1 }, &[y, rest]);
    }
    b.output(y);
    b
}

#[test]
fn rotary_embeddings_of_neighbours() {
    for r in [8, 4] {
        let mut b = rotary_of_neighbours(r, &Off::default());
        assert_eq!(b.pass(ROTARY_INTERLEAVED, &[("s", 3)]), 1, "{r}");
        assert_eq!((b.has("Rotary"), b.nodes()), (true, 1), "{r}");
    }
    let wrong = [
        Off {
            sum: true,
            ..Off::default()
        },
        Off {
            odd_by_cosines: true,
            ..Off::default()
        },
    ];
    for off in wrong {
        assert_eq!(
            rotary_of_neighbours(4, &off).pass(ROTARY_INTERLEAVED, &[("s", 3)]),
            0
        );
    }
    // The part of each head is an embedding all the same.
    let mut b = rotary_of_neighbours(
        4,
        &Off {
            other_rest: true,
            ..Off::default()
        },
    );
    assert_eq!(b.pass(ROTARY_INTERLEAVED, &[("s", 3)]), 1);
    assert!(b.has("Concat"));
}
