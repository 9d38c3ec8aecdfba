use super::*;
use tlite_testing::{assert_carries, assert_usage};
use transformer_lite::unstable::graph::onnx::write::{Attr, ModelWriter, NodeSpec};
use transformer_lite::unstable::llm::LanguageModel;

/// Adds a node of ONNX's own domain with one result, which also names it.
pub(super) fn node(
    w: &mut ModelWriter,
    op: &str,
    inputs: &[&str],
    output: &str,
    attributes: &[(&str, Attr)],
) {
    w.add_node(NodeSpec {
        domain: "",
        op,
        name: output,
        inputs,
        outputs: &[output],
        attributes,
    })
    .unwrap();
}

/// Tells `[token, 1]` and `[cache length]` for each token, in two pieces.
struct Telling {
    cache: Vec<u32>,
}

impl LanguageModel for Telling {
    fn vocab(&self) -> usize {
        1
    }
    fn context(&self) -> usize {
        4
    }
    fn len(&self) -> usize {
        self.cache.len()
    }
    fn forward(&mut self, _: &[u32], _: &mut Vec<f32>) -> Result<()> {
        Ok(())
    }
    fn forward_all(&mut self, _: &[u32]) -> Result<Vec<f32>> {
        Ok(vec![])
    }
    fn truncate(&mut self, len: usize) -> usize {
        self.cache.truncate(len);
        self.cache.len()
    }
}

impl Observe for Telling {
    fn observe(&mut self, tokens: &[u32], take: &mut dyn FnMut(usize, &[f32]) -> Result<()>) -> Result<()> {
        for part in tokens.chunks(2) {
            let rows: Vec<f32> = part.iter().flat_map(|t| [*t as f32, 1.0]).collect();
            self.cache.extend(part);
            assert!(
                self.cache.len() <= self.context(),
                "windows begin with an empty cache"
            );
            take(0, &rows)?;
            take(1, &vec![self.cache.len() as f32; part.len()])?;
        }
        Ok(())
    }
}

fn open(names: &[String]) -> Result<Box<dyn Observe>> {
    assert_eq!(names, ["a", "b"]);
    Ok(Box::new(Telling { cache: vec![] }))
}

fn inputs() -> Vec<Input> {
    vec![("a".to_owned(), 2), ("b".to_owned(), 1)]
}

#[test]
fn windows_are_summed_up() {
    let text = Text {
        tokens: vec![1, 2, 3, 4, 5, 6, 7],
        start: vec![9],
    };
    let seen = std::sync::Mutex::new(Vec::new());
    let progress = |p: Progress| seen.lock().unwrap().push((p.done, p.total));
    let calibration = Calibration::new(&text, 4, 5, "host", &open, &progress).unwrap();
    assert_eq!(calibration.windows, [vec![9, 1, 2, 3], vec![9, 4, 5]]);
    let hessians = calibration.hessians(&inputs()).unwrap();
    assert_eq!(hessians[0].sum(), [81.0 * 2.0 + 55.0, 33.0, 33.0, 7.0]);
    assert_eq!((hessians[0].rows(), hessians[1].rows()), (7, 7));
    let squares = calibration.squares(&inputs()).unwrap();
    for (m, s) in hessians.iter().zip(&squares) {
        assert_eq!(m.mean_squares(), *s);
    }
    assert_eq!(*seen.lock().unwrap(), [(1, 2), (2, 2), (1, 2), (2, 2)]);
    let other = Calibration::new(&text, 4, 6, "host", &open, &progress).unwrap();
    assert_ne!(calibration.key(), other.key());
    let elsewhere = Calibration::new(&text, 4, 5, "a device", &open, &progress).unwrap();
    assert_ne!(calibration.key(), elsewhere.key());
}

#[test]
fn what_cannot_be_used_is_refused() {
    let quiet = |_| ();
    let text = |tokens: &[u32]| Text {
        tokens: tokens.to_vec(),
        start: vec![9],
    };
    let new = |t: &Text, window| {
        Calibration::new(t, window, 9, "host", &open, &quiet)
            .err()
            .unwrap()
    };
    assert_usage(&new(&text(&[]), 4), "calibration", &[]);
    assert_usage(&new(&text(&[1]), 1), "calibration", &["1"]);
    let good = text(&[1, 2]);
    let calibration = Calibration::new(&good, 4, 9, "host", &open, &quiet).unwrap();
    let wrong = [("a".to_owned(), 5), ("b".to_owned(), 1)];
    for e in [
        calibration.hessians(&wrong).unwrap_err(),
        calibration.squares(&wrong).unwrap_err(),
    ] {
        assert_carries(e, &["\"a\"", "4", "5"]);
    }
}
