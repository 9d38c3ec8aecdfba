//! Weights and quantized matrices that the caller gives.

use super::*;

/// The weight "up" is quantized elsewhere, in groups of this size.
struct Elsewhere(usize);

impl Methods for Elsewhere {
    fn name(&self) -> &'static str {
        "elsewhere"
    }

    fn of<'a>(&'a self, _: &str, _: usize) -> Result<Box<dyn ColumnMethod + 'a>> {
        Ok(Box::new(ByGroup::from(Method::Mse)))
    }

    fn packed(&self, weight: &str) -> Result<Option<Packed>> {
        let tensor = noise(&[HIDDEN, INNER], 2);
        let (values, method) = (tensor.to_f32().unwrap(), ByGroup::from(Method::Mse));
        let at = |k: usize, n: usize| values[k * INNER + n];
        let packed = Packed::quantize(Bits::Four, self.0, HIDDEN, INNER, &method, &at).unwrap();
        Ok((weight == "up").then_some(packed))
    }

    fn key(&self, _: &str) -> String {
        String::new()
    }
}

#[test]
fn weight_packed_elsewhere_is_written_unchanged() {
    let [plain, other] = [tied(), tied()];
    let options = Options::default();
    let expected = run(&plain, &options).unwrap();
    let quantize = |methods: &mut Elsewhere, output: &str| {
        let [from, to] = ["in", output].map(|name| other.path().join(name));
        quantize_with(&from, &to, &options, methods, &mut |_| ())
    };
    let summary = quantize(&mut Elsewhere(128), "out").unwrap();
    let data = |dir: &tempfile::TempDir| std::fs::read(dir.path().join("out").join(DATA)).unwrap();
    assert!(data(&plain) == data(&other));
    let names = |s: &Summary| s.weights.iter().map(|w| w.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&summary), names(&expected));
    let ratio = summary.weights[1].mse / expected.weights[1].mse;
    assert!((ratio - 1.0).abs() < 1e-9, "{ratio}");
    let error = quantize(&mut Elsewhere(16), "wrong").unwrap_err().to_string();
    assert!(
        error.contains("weight \"up\": expected") && error.contains("group: 16"),
        "{error}"
    );
}

#[test]
fn values_of_named_weights_are_replaced() {
    let dir = tied();
    std::fs::write(dir.path().join("in/config.json"), "{}").unwrap();
    let [from, to] = ["in", "out"].map(|name| dir.path().join(name));
    std::fs::create_dir(&to).unwrap();
    let up = noise(&[HIDDEN, INNER], 9);
    let up = up.to_f32().unwrap();
    replace_into(&from, &to, &|name| (name == "up").then_some(&up)).unwrap();
    assert!(to.join("config.json").exists());
    let mut expected = Tiny::new();
    expected.body_of(HIDDEN, &noise(&[HIDDEN, INNER], 9));
    assert_eq!(logits(&to), logits(&expected.finish().path().join("in")));

    std::fs::remove_dir_all(&to).unwrap();
    std::fs::create_dir(&to).unwrap();
    let error = replace_into(&from, &to, &|name| (name == "up").then_some(&up[1..])).unwrap_err();
    assert!(error.to_string().contains("tensor \"up\""), "{error}");
    assert!(!to.join(MODEL).exists());
}
