//! Symmetric int8 quantization of activations and cache rows.

/// The int8 values of `values`, and their scale: the largest magnitude divided by 127. Rounds to
/// nearest, ties to even (as in Arm's paper, section IV).
pub fn to_bytes(values: &[f32]) -> (impl Iterator<Item = i8>, f32) {
    let most = values.iter().fold(0f32, |m, v| m.max(v.abs()));
    let inverse = if most > 0.0 { 127.0 / most } else { 0.0 };
    #[expect(clippy::cast_possible_truncation, reason = "magnitudes are at most 127")]
    let code = move |v: &f32| (v * inverse).round_ties_even() as i8;
    (values.iter().map(code), most / 127.0)
}
