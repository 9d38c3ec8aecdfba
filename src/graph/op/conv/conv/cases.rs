//! Conformance cases of [`Conv`].

use super::Conv;
use crate::graph::op::case::{Case, input};
use crate::graph::op::window::{AutoPad, Window};

/// Taps that are further apart than the image is large.
fn far_apart() -> Window {
    Window {
        dilations: vec![300, 300],
        pads: vec![150; 4],
        ..Window::new(&[])
    }
}

pub(super) fn cases() -> Vec<Case> {
    let case = |group, x: &[usize], w: &[usize], window: Window| {
        Case::new(Conv { window, group }, vec![input(x), input(w).constant()])
    };
    let plain = || Window::new(&[]);
    let window = |strides: &[i64], pads: &[i64]| Window {
        strides: strides.to_vec(),
        pads: pads.to_vec(),
        ..plain()
    };
    let dilated = |pads: &[i64]| Window {
        dilations: vec![2, 3],
        ..window(&[], pads)
    };
    let padded = |auto_pad, strides: &[i64]| Window {
        auto_pad,
        ..window(strides, &[])
    };
    let biased = |x: &[usize], w: &[usize], window: Window, known: bool| {
        let bias = input(&w[..1]);
        let w = if known { input(w).constant() } else { input(w) };
        Case::new(
            Conv { window, group: 1 },
            vec![input(x), w, if known { bias.constant() } else { bias }],
        )
    };
    vec![
        case(1, &[2, 3, 9, 7], &[5, 3, 3, 3], window(&[2, 2], &[1; 4])),
        case(1, &[1, 4, 5, 6], &[6, 4, 1, 1], plain()),
        case(1, &[3, 5, 7, 7], &[17, 5, 1, 1], plain()),
        case(1, &[1, 3, 8, 41], &[9, 3, 1, 1], window(&[2, 2], &[])),
        case(4, &[1, 4, 11, 8], &[4, 1, 3, 5], window(&[1, 2], &[0, 2, 1, 3])),
        case(3, &[2, 3, 7, 35], &[6, 1, 3, 3], window(&[], &[1; 4])),
        case(5, &[1, 5, 6, 37], &[5, 1, 3, 3], window(&[2, 2], &[1; 4])),
        case(2, &[1, 6, 7, 7], &[4, 3, 3, 2], dilated(&[2, 1, 2, 1])),
        case(3, &[2, 3, 9, 33], &[3, 1, 1, 1], window(&[4, 7], &[])),
        case(2, &[1, 2, 5, 6], &[2, 1, 2, 2], far_apart()),
        case(2, &[1, 4, 6, 9], &[22, 2, 2, 2], plain()),
        // Close to the number of iterations at which drivers stop loops.
        Case {
            slack: 16.0,
            ..case(1, &[1, 6000, 3, 3], &[8, 6000, 3, 3], plain())
        },
        case(3, &[2, 3, 8], &[6, 1, 4], window(&[3], &[])),
        case(1, &[1, 2, 70], &[3, 2, 5], window(&[], &[2, 2])),
        case(1, &[1, 3, 8, 12], &[7, 3, 4, 4], window(&[4, 4], &[])),
        case(1, &[2, 9, 1, 1], &[10, 9, 1, 1], plain()),
        // Several tiles and blocks, the last ones partial, with and without whole vectors; groups
        // of many channels.
        case(1, &[2, 40, 9, 15], &[70, 40, 1, 1], plain()),
        case(1, &[1, 66, 10, 14], &[35, 66, 1, 1], plain()),
        case(1, &[2, 18, 5, 7], &[16, 18, 1, 1], window(&[2, 2], &[])),
        case(1, &[2, 16, 11, 13], &[67, 16, 3, 3], window(&[], &[1; 4])),
        case(1, &[1, 7, 20, 17], &[24, 7, 3, 3], window(&[2, 2], &[1, 0, 0, 1])),
        case(2, &[2, 20, 9, 14], &[36, 10, 3, 2], dilated(&[2, 1, 2, 2])),
        case(3, &[1, 48, 6, 6], &[60, 16, 1, 1], plain()),
        case(1, &[1, 2, 1, 1], &[3, 2, 3, 3], window(&[], &[1; 4])),
        case(
            1,
            &[1, 2, 4, 5, 6],
            &[3, 2, 2, 3, 2],
            window(&[], &[1, 0, 1, 0, 1, 0]),
        )
        .host_only("kernels have two spatial axes"),
        case(
            1,
            &[1, 2, 6, 9],
            &[2, 2, 3, 4],
            padded(AutoPad::SameUpper, &[2, 2]),
        ),
        case(
            1,
            &[1, 2, 6, 9],
            &[2, 2, 3, 4],
            padded(AutoPad::SameLower, &[2, 2]),
        ),
        case(1, &[1, 2, 6, 9], &[2, 2, 3, 4], padded(AutoPad::Valid, &[])),
        biased(&[1, 2, 5, 5], &[5, 2, 3, 3], Window::new(&[3, 3]), true),
        biased(&[2, 20, 5, 5], &[20, 20, 1, 1], plain(), true),
        biased(&[1, 6, 9, 8], &[33, 6, 3, 3], plain(), false),
        biased(&[2, 2, 5, 19], &[5, 2, 3, 3], window(&[], &[1; 4]), false),
    ]
}
