use super::*;

/// Numbers from 0 to 1.
fn noise(count: usize) -> impl Iterator<Item = f32> {
    (0..count as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32)
}

/// Two columns of 256 weights on grids of `levels`, with a scale for each group.
fn grid(group: usize, levels: f32) -> Vec<f32> {
    let scales: Vec<f32> = noise(512 / group).map(|v| 0.5 + v).collect();
    noise(512)
        .enumerate()
        .map(|(i, v)| scales[i / group] * ((v * levels).floor() - levels / 2.0) / levels)
        .collect()
}

#[test]
fn grids_are_found_by_their_group() {
    for group in [16, 32, 64] {
        assert_eq!(
            group_of(&grid(group, 16.0), 256, Bits::Four, 128),
            Some(group),
            "{group}"
        );
    }
}

#[test]
fn floats_and_finer_grids_have_no_group() {
    let floats: Vec<f32> = noise(512).map(|v| v - 0.5).collect();
    for bits in [Bits::Four, Bits::Eight] {
        assert_eq!(group_of(&floats, 256, bits, 128), None, "{bits}");
    }
    assert_eq!(group_of(&grid(32, 256.0), 256, Bits::Four, 128), None);
    // What the usual size keeps needs no smaller one.
    assert_eq!(group_of(&grid(128, 16.0), 256, Bits::Four, 128), None);
    assert_eq!(group_of(&[f32::NAN; 256], 256, Bits::Four, 128), None);
}
