use super::*;

#[test]
fn batches_stay_within_the_budget() {
    let of = |ks: &[usize]| ks.iter().map(|k| (String::new(), *k)).collect::<Vec<_>>();
    let lengths = |ks: &[usize]| batch(&of(ks), 1 << 30).len();
    assert_eq!(lengths(&[8192, 8192, 8192, 8192, 8]), 4);
    assert_eq!(lengths(&[100_000, 8]), 1);
    assert_eq!((lengths(&[8, 8]), lengths(&[])), (2, 0));
}
