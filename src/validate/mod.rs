//! Kernel validation: compares what kernels compute on a device with
//! [`Op::eval`](crate::graph::Op::eval).

pub mod case;
pub mod compare;
pub mod first_run;
pub mod selftest;

use crate::executor::Observed;
use crate::tensor::{DType, HostTensor};
use compare::compare;

/// Bound on the normalized mean square error of a node inside a model, whose operands were computed
/// on the device. Rounding errors stay far below it, even at the steps of functions such as
/// `Floor`. A single wrong element exceeds it, unless there are thousands of correct ones.
const LOOSE: f64 = 1e-4;
/// One in this many integers may differ, since integers may be computed from floats.
const INTEGERS: usize = 64;

/// Compares a node's results with the reference. `Ok(false)` if nothing could be compared.
pub fn validate_node(observed: &Observed) -> Result<bool, String> {
    let inputs: Vec<Option<&HostTensor>> = observed.inputs.iter().map(Option::as_ref).collect();
    let wanted = match observed.op.run(&inputs) {
        Ok(wanted) => wanted,
        Err(e) => {
            log::debug!("node \"{}\" has no reference: {e}", observed.name);
            return Ok(false);
        }
    };
    // Zeros computed from zeros do not show that a kernel is correct.
    let blank = inputs
        .iter()
        .flatten()
        .any(|t| t.dtype().is_float() && !has_numbers(t));
    // The user's data, not the kernel, is at fault if a driver loses such numbers.
    let special = inputs.iter().flatten().any(|t| has_special(t));
    let mut compared = false;
    for (i, (wanted, found)) in wanted.iter().zip(&observed.results).enumerate() {
        if let Some((found, stored)) = found {
            let result = close(wanted, found, *stored);
            let result = match result.map_err(|e| format!("result {i} of {}: {e}", observed.op.name())) {
                Err(why) if special => {
                    log::debug!("node \"{}\" has NaN or infinite operands: {why}", observed.name);
                    return Ok(false);
                }
                other => other?,
            };
            compared |= result.is_some_and(|numbers| numbers || !blank);
        }
    }
    Ok(compared)
}

/// Compares a result, stored as `stored`, with the reference. Reference values outside the range of
/// `stored` count as its limit. Where the reference is NaN or infinite, nothing is compared, since
/// some drivers do not keep such numbers. Returns `Some(true)` if the remaining elements contain
/// nonzero numbers, and `None` if nothing remains.
fn close(wanted: &HostTensor, found: &HostTensor, stored: DType) -> Result<Option<bool>, String> {
    let text = |e: crate::tensor::TensorError| e.to_string();
    if wanted.len() != found.len() || wanted.dtype() != found.dtype() {
        return Err(format!("expected {wanted:?}, found {found:?}"));
    }
    if !wanted.dtype().is_float() {
        let (w, f) = (wanted.to_bits().map_err(text)?, found.to_bits().map_err(text)?);
        let wrong = w.iter().zip(&f).filter(|(w, f)| w != f).count();
        if wrong > w.len() / INTEGERS {
            compare(wanted, found, LOOSE)?;
        }
        return Ok((!w.is_empty()).then(|| w.iter().any(|w| *w != 0)));
    }
    let most = if stored == DType::F16 { 65504.0 } else { f32::MAX };
    let (w, f) = (wanted.to_f32().map_err(text)?, found.to_f32().map_err(text)?);
    let known = w.iter().zip(f.iter()).filter(|(w, _)| w.is_finite());
    let (w, f): (Vec<f32>, Vec<f32>) = known
        .map(|(w, f)| {
            let end = |v: &f32| v.clamp(-most, most);
            (end(w), if f.is_infinite() { end(f) } else { *f })
        })
        .unzip();
    let tensor = |data: &[f32]| HostTensor::from_f32(&[data.len()], data).map_err(text);
    compare(&tensor(&w)?, &tensor(&f)?, LOOSE)?;
    Ok((!w.is_empty()).then(|| w.iter().any(|w| *w != 0.0)))
}

/// Whether the tensor has NaN or positive infinity. Negative infinity is common, in masks, and
/// hides nothing.
fn has_special(tensor: &HostTensor) -> bool {
    let special = |data: &[f32]| data.iter().any(|v| v.is_nan() || *v == f32::INFINITY);
    tensor.dtype().is_float() && tensor.to_f32().is_ok_and(|data| special(&data))
}

/// Whether the tensor has nonzero elements, not counting NaNs.
fn has_numbers(tensor: &HostTensor) -> bool {
    let numbers = |data: &[f32]| data.iter().any(|v| !v.is_nan() && *v != 0.0);
    tensor.to_f32().is_ok_and(|data| numbers(&data))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::op::pointwise::{Binary, Pointwise};

    fn floats(data: &[f32]) -> HostTensor {
        HostTensor::from_f32(&[data.len()], data).unwrap()
    }

    #[test]
    fn rounding_is_right_and_a_wrong_element_is_not() {
        let wanted: Vec<f32> = (0..576).map(|i| (f32::from(i as u16) * 0.37).sin()).collect();
        let rounded: Vec<f32> = wanted.iter().map(|v| half::f16::from_f32(*v).to_f32()).collect();
        let check = |found: &[f32]| close(&floats(&wanted), &floats(found), DType::F16);
        assert_eq!(check(&rounded), Ok(Some(true)));
        for wrong in [0.0, 3.0, f32::NAN] {
            let mut found = rounded.clone();
            found[100] = wrong;
            assert!(check(&found).is_err(), "{wrong}");
        }
    }

    #[test]
    fn integers_are_compared_to_the_ends_of_their_types() {
        let of = |v: u64| HostTensor::from_i128s(DType::U64, &[1], &[v.into()]).unwrap();
        assert_eq!(close(&of(u64::MAX), &of(u64::MAX), DType::I64), Ok(Some(true)));
        assert!(close(&of(u64::MAX), &of(u64::MAX - 1), DType::I64).is_err());
    }

    #[test]
    fn what_kernels_do_not_know_is_not_compared() {
        let wanted = floats(&[f32::NEG_INFINITY, f32::NAN, -1e30, 1.0]);
        let found = floats(&[-65504.0, 7.0, -65504.0, 1.0]);
        assert_eq!(close(&wanted, &found, DType::F16), Ok(Some(true)));
        assert!(close(&wanted, &found, DType::F32).is_err());
    }

    #[test]
    fn kernels_are_not_blamed_for_special_data() {
        let check = |x: &[f32], found: &[f32]| {
            validate_node(&Observed {
                op: Box::new(Pointwise::binary("Max", Binary::Max)),
                name: "node".to_owned(),
                kernels: vec![0],
                inputs: vec![Some(floats(x)), Some(floats(&[0.0, 0.0]))],
                results: vec![Some((floats(found), DType::F32))],
            })
        };
        assert_eq!(
            check(&[f32::NAN, 2.0], &[0.0, 2.0]),
            Ok(true),
            "NaN is not compared"
        );
        for special in [f32::NAN, f32::INFINITY] {
            assert_eq!(check(&[special, 2.0], &[0.0, f32::NAN]), Ok(false), "{special}");
        }
        assert!(check(&[f32::NEG_INFINITY, 2.0], &[0.0, 3.0]).is_err());
        assert!(check(&[1.0, 2.0], &[1.0, f32::NAN]).is_err());
    }

    #[test]
    fn meaningless_results_are_not_compared() {
        let result = |data: &[f32]| close(&floats(data), &floats(data), DType::F32);
        assert_eq!(result(&[0.0, f32::NAN]), Ok(Some(false)));
        assert_eq!(result(&[f32::NAN, f32::NAN]), Ok(None));
        assert_eq!(result(&[]), Ok(None));
        let doubled = |of: &[f32]| {
            let result = floats(&of.iter().map(|v| 2.0 * v).collect::<Vec<_>>());
            validate_node(&Observed {
                op: Box::new(Pointwise::binary("Add", Binary::Add)),
                name: "node".to_owned(),
                kernels: vec![0],
                inputs: vec![Some(floats(of)), Some(floats(of))],
                results: vec![Some((result, DType::F32))],
            })
        };
        assert_eq!(doubled(&[0.0, 1.0]), Ok(true));
        assert_eq!(doubled(&[0.0, 0.0]), Ok(false));
        assert!(close(&floats(&[0.0, f32::NAN]), &floats(&[1.0, 0.0]), DType::F32).is_err());
    }

    #[test]
    fn missing_results_or_references_are_not_compared() {
        let observed = |inputs: Vec<Option<HostTensor>>, results| Observed {
            op: Box::new(crate::graph::op::softmax::Softmax {
                axis: 0,
                flatten: false,
            }),
            name: "node".to_owned(),
            kernels: vec![0],
            inputs,
            results,
        };
        let ones = || Some(floats(&[1.0, 1.0]));
        let halves = |v| vec![Some((floats(&[v, 0.5]), DType::F32))];
        assert_eq!(validate_node(&observed(vec![ones()], halves(0.5))), Ok(true));
        assert!(validate_node(&observed(vec![ones()], halves(0.7))).is_err());
        assert_eq!(
            validate_node(&observed(vec![ones()], vec![None])),
            Ok(false),
            "nothing to compare"
        );
        assert_eq!(
            validate_node(&observed(vec![None], halves(0.7))),
            Ok(false),
            "no reference"
        );
    }

    #[test]
    fn few_integers_may_differ() {
        let ints = |wrong: usize| {
            let data: Vec<i64> = (0..128).map(|i| i64::from(i < wrong)).collect();
            HostTensor::from_i64(&[128], &data).unwrap()
        };
        assert_eq!(close(&ints(0), &ints(2), DType::I32), Ok(Some(false)));
        assert!(close(&ints(0), &ints(3), DType::I32).is_err());
    }
}
