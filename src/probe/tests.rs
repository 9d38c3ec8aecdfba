//! Sizes of buffers and loops; readings that differ.

use super::*;

#[test]
fn buffers_fit_the_device_and_loops_the_driver() {
    for (max, memory) in [(1 << 27, 0), (1 << 20, 0), (1 << 40, 1 << 28)] {
        for kind in [DeviceKind::Cpu, DeviceKind::Discrete, DeviceKind::Integrated] {
            let caps = Caps {
                memory_bytes: memory,
                kind,
                ..Caps::generic_gpu()
            };
            let caps = caps.with(|device| device.max_view_bytes = max);
            let shape = Shape::of(&caps);
            assert!(shape.bytes > 0 && shape.bytes <= max && (memory == 0 || shape.bytes <= memory / 8));
            let each = shape.bytes / 16 / u64::from(shape.work_items());
            assert!(each < u64::from(MAX_ROUNDS), "{kind:?}: {each}");
        }
    }
}

#[test]
fn readings_that_differ_are_marked_until_two_agree() {
    let reading = |f32_flops_per_s: f64, launch_s: f64| Probe {
        version: VERSION,
        backend: "cpu".to_owned(),
        device: "device".to_owned(),
        driver: String::new(),
        copy_bytes_per_s: 100.0,
        read_bytes_per_s: 100.0,
        image_bytes_per_s: None,
        f32_flops_per_s,
        f16_flops_per_s: None,
        int8_ops_per_s: None,
        int16_ops_per_s: None,
        matrix_flops_per_s: None,
        launch_s,
        clock: "host".to_owned(),
        not_measured: BTreeMap::new(),
        unsteady: BTreeMap::new(),
    };
    let fastest = |rates: &[f64]| {
        let readings: Vec<Probe> = (1u8..).zip(rates).map(|(i, r)| reading(*r, i.into())).collect();
        let probe = Probe::fastest(&readings).unwrap();
        assert_eq!(probe.launch_s, 1.0);
        (
            probe.f32_flops_per_s,
            probe.unsteady.get("f32_flops_per_s").copied(),
            probe,
        )
    };
    assert_eq!(fastest(&[100.0, 95.0]).1, None);
    let (rate, apart, probe) = fastest(&[50.0, 100.0]);
    assert_eq!((rate, apart), (100.0, Some(0.5)));
    assert!(
        probe
            .warning()
            .is_some_and(|w| w.contains("f32_flops_per_s") && w.contains("50 %"))
    );
    assert_eq!(probe.unsteady.len(), 1, "the other rates are steady");
    // The third reading agrees with the fastest, or is faster by far, or says nothing.
    assert_eq!(fastest(&[50.0, 100.0, 99.0]).1, None);
    assert_eq!(fastest(&[50.0, 100.0, 200.0]).1, Some(0.5));
    assert_eq!(fastest(&[50.0, 100.0, 40.0]).1, Some(0.5));
    assert_eq!(fastest(&[100.0, 95.0, 40.0]).1, None);
    assert_eq!(fastest(&[100.0, 95.0]).2.warning(), None);
}
