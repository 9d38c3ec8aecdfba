//! [`Program`] against [`Dim::eval`].

use super::expr;
use crate::shape::program::{Program, ProgramError};
use crate::shape::{Bindings, Dim, DimError, Symbol};
use proptest::prelude::*;

fn d(s: &str) -> Dim {
    Dim::parse(s).unwrap_or_else(|e| panic!("{e}"))
}

fn symbols(names: &[&str]) -> Vec<Symbol> {
    names.iter().map(|n| Symbol::new(n)).collect()
}

#[test]
fn equal_parts_are_computed_once() {
    let exprs = [
        d("a*b*c"),
        d("a*b + 1"),
        d("2*a*b*c"),
        d("(a*b + 1)//4"),
        d("7"),
        d("a"),
    ];
    let mut p = Program::compile(&exprs, &symbols(&["a", "b", "c"])).unwrap();
    assert_eq!(p.steps(), 5, "a*b, *c, +1, *2, /4");
    assert_eq!([0, 1, 2, 3, 4, 5].map(|i| p.depends(i)), [7, 3, 7, 3, 0, 1]);
    let (mut out, mut dirty) = ([0; 6], Vec::new());
    p.eval_changed(&[2, 3, 5], &mut out, &mut dirty).unwrap();
    assert_eq!(out, [30, 7, 60, 1, 7, 2]);
    assert_eq!(dirty, [0, 1, 2, 3, 4, 5]);
    p.eval_changed(&[2, 3, 6], &mut out, &mut dirty).unwrap();
    dirty.sort_unstable();
    assert_eq!((out, dirty.as_slice()), ([36, 7, 72, 1, 7, 2], [0, 2].as_slice()));
    p.eval_changed(&[2, 3, 6], &mut out, &mut dirty).unwrap();
    assert!(dirty.is_empty());
}

#[test]
fn errors_name_expression_and_values() {
    let mut p = Program::compile(&[d("a + 1"), d("a*b // (b - 3)")], &symbols(&["a", "b"])).unwrap();
    let mut out = [8, 9];
    let error = p.eval(&[5, 3], &mut out).unwrap_err();
    assert_eq!(
        error.to_string(),
        "floor(a*b/(b - 3)) with a=5, b=3: division of a*b by b - 3, which is 0"
    );
    let error = p.eval(&[i64::MAX, 3], &mut out).unwrap_err();
    assert!(
        matches!(
            error,
            ProgramError::Value {
                source: DimError::Overflow(_),
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(out, [8, 9], "a failed evaluation writes nothing");
    assert!(matches!(
        p.eval(&[1], &mut out),
        Err(ProgramError::Length { found: 1, .. })
    ));
    assert!(matches!(
        p.eval(&[1, 4], &mut [0]),
        Err(ProgramError::Length { found: 1, .. })
    ));
    p.eval(&[1, 4], &mut out).unwrap();
    assert_eq!(out, [2, 4]);
    let error = Program::compile(&[d("a + q")], &symbols(&["a"])).unwrap_err();
    assert_eq!(error, DimError::Unbound(Symbol::new("q")));
}

#[test]
fn more_symbols_than_bits() {
    let names: Vec<String> = (0..100).map(|i| format!("s{i}")).collect();
    let exprs: Vec<Dim> = names.iter().map(|n| d(&format!("{n} + 1"))).collect();
    let all: Vec<Symbol> = names.iter().map(|n| Symbol::new(n)).collect();
    let mut p = Program::compile(&exprs, &all).unwrap();
    let (mut values, mut out, mut dirty) = (vec![0; 100], vec![0; 100], Vec::new());
    p.eval_changed(&values, &mut out, &mut dirty).unwrap();
    values[62] = 5;
    values[99] = 7;
    p.eval_changed(&values, &mut out, &mut dirty).unwrap();
    assert_eq!((out[62], out[99], out[98], dirty), (6, 8, 1, vec![62, 99]));
}

proptest! {
    #[test]
    fn programs_agree_with_expressions(
        exprs in prop::collection::vec(expr(), 1..6),
        runs in prop::collection::vec(prop::array::uniform3(prop_oneof![8 => -9i64..30, 1 => any::<i64>()]), 1..6),
    ) {
        let dims: Vec<Dim> = exprs.iter().filter_map(|e| Dim::parse(&e.text()).ok()).collect();
        let mut p = Program::compile(&dims, &symbols(&["a", "b", "c"])).unwrap();
        let mut fresh = p.clone();
        let (mut out, mut dirty) = (vec![0; dims.len()], Vec::new());
        for values in runs {
            let bindings = Bindings::from([("a", values[0]), ("b", values[1]), ("c", values[2])]);
            let expected: Result<Vec<i64>, DimError> = dims.iter().map(|d| d.eval(&bindings)).collect();
            let before = out.clone();
            let mut all = vec![0; dims.len()];
            match (&expected, p.eval_changed(&values, &mut out, &mut dirty), fresh.eval(&values, &mut all)) {
                (Ok(v), Ok(()), Ok(())) => {
                    prop_assert_eq!(v, &all);
                    prop_assert_eq!(v, &out);
                    for i in 0..out.len() {
                        let named = dirty.contains(&u32::try_from(i).unwrap());
                        prop_assert!(named || before[i] == out[i]);
                    }
                }
                (Err(_), Err(ProgramError::Value { .. }), Err(ProgramError::Value { .. })) => {
                    prop_assert_eq!(&before, &out);
                }
                other => return Err(TestCaseError::fail(format!("{dims:?}: {other:?}"))),
            }
        }
    }
}
