//! Activations and rows of caches in signed bytes.

/// The codes of `values`, and the factor that they are multiplied by: the largest magnitude over 127. Codes are rounded to the nearest, ties to
/// even (Arm's paper, section IV, quantizes activations so).
pub fn to_bytes(values: &[f32]) -> (impl Iterator<Item = i8>, f32) {
    let most = values.iter().fold(0f32, |m, v| m.max(v.abs()));
    let inverse = if most > 0.0 { 127.0 / most } else { 0.0 };
    #[expect(clippy::cast_possible_truncation, reason = "magnitudes are at most 127")]
    let code = move |v: &f32| (v * inverse).round_ties_even() as i8;
    (values.iter().map(code), most / 127.0)
}
