//! Runs that are ended and go on.

use super::*;

#[test]
fn an_interrupted_run_goes_on_and_a_changed_one_starts_over() {
    let dir = tied();
    let (input, out) = (dir.path().join("in"), dir.path().join("out"));
    let options = Options::default();
    let whole = quantize(&input, &dir.path().join("whole"), &options, &mut |_| ()).unwrap();
    // The third weight begins when the second is finished.
    let interrupted = |options: &Options| {
        let call = std::panic::AssertUnwindSafe(|| {
            quantize(&input, &out, options, &mut |p| {
                if p.tensor == "down" {
                    std::panic::resume_unwind(Box::new("interrupted"));
                }
            })
        });
        assert!(std::panic::catch_unwind(call).is_err());
        assert_eq!(names(&dir), [".quantize-out", "in", "whole"]);
        assert!(
            !dir.path().join(".quantize-out/model").join(MODEL).exists(),
            "it holds no model that loads"
        );
    };
    interrupted(&options);
    let summary = quantize(&input, &out, &options, &mut |_| ()).unwrap();
    assert_eq!(
        (summary.resumed, summary.weights.clone()),
        (2, whole.weights.clone())
    );
    assert_eq!(names(&dir), ["in", "out", "whole"]);
    let bytes = |folder: &str, file: &str| std::fs::read(dir.path().join(folder).join(file)).unwrap();
    for file in [MODEL, "model.onnx.data"] {
        assert!(bytes("out", file) == bytes("whole", file), "{file}");
    }
    let entries = std::fs::read_dir(&out).unwrap();
    assert_eq!(entries.count(), 2, "the model and its data");

    // Other options fit weights alone that they do not change.
    std::fs::remove_dir_all(&out).unwrap();
    interrupted(&options);
    let other = Options {
        method: Method::Rtn,
        ..options
    };
    assert_eq!(quantize(&input, &out, &other, &mut |_| ()).unwrap().resumed, 0);
    std::fs::remove_dir_all(&out).unwrap();
    interrupted(&options);
    let other = Options {
        head_bits: Bits::Four,
        ..options
    };
    assert_eq!(quantize(&input, &out, &other, &mut |_| ()).unwrap().resumed, 1);

    // A part that is not what was written, and a source that is another.
    std::fs::remove_dir_all(&out).unwrap();
    interrupted(&options);
    let part = dir.path().join(".quantize-out/parts/0.bin");
    let mut damaged = std::fs::read(&part).unwrap();
    damaged[77] ^= 1;
    std::fs::write(&part, damaged).unwrap();
    let summary = quantize(&input, &out, &options, &mut |_| ()).unwrap();
    assert_eq!((summary.resumed, summary.weights), (1, whole.weights));
    std::fs::remove_dir_all(&out).unwrap();
    interrupted(&options);
    let data = input.join("model.onnx.data");
    let mut changed = std::fs::read(&data).unwrap();
    changed[2] ^= 1;
    std::fs::write(&data, changed).unwrap();
    assert_eq!(quantize(&input, &out, &options, &mut |_| ()).unwrap().resumed, 1);
}

#[test]
fn two_runs_do_not_share_an_output() {
    let dir = tied();
    let (input, out) = (dir.path().join("in"), dir.path().join("out"));
    let mut tried = false;
    quantize(&input, &out, &Options::default(), &mut |_| {
        if !std::mem::replace(&mut tried, true) {
            let e = quantize(&input, &out, &Options::default(), &mut |_| ()).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
        }
    })
    .unwrap();
    assert!(tried && out.join(MODEL).exists());
}

#[test]
fn files_of_an_earlier_run_are_not_taken_for_those_of_the_model() {
    let dir = tied();
    let (input, out) = (dir.path().join("in"), dir.path().join("out"));
    std::fs::write(input.join("tokenizer.json"), "of this model").unwrap();
    // A run that was ended while it copied left half of a file, and one of another model.
    for folder in [".quantize-out", ".quantize-out/model"] {
        std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        std::fs::write(dir.path().join(folder).join("tokenizer.json"), "of t").unwrap();
        std::fs::write(dir.path().join(folder).join("other.json"), "{}").unwrap();
    }
    run(&dir, &Options::default()).unwrap();
    assert_eq!(
        std::fs::read(out.join("tokenizer.json")).unwrap(),
        b"of this model"
    );
    let entries = std::fs::read_dir(&out).unwrap();
    assert_eq!(entries.count(), 3, "the model, its data, the tokenizer");
    assert_eq!(names(&dir), ["in", "out"]);
}

#[test]
fn an_output_that_came_into_the_way_costs_nothing() {
    let dir = tied();
    let (input, out) = (dir.path().join("in"), dir.path().join("out"));
    let e = quantize(&input, &out, &Options::default(), &mut |p| {
        if p.done == p.total {
            std::fs::create_dir_all(&out).unwrap();
            std::fs::write(out.join("theirs"), "x").unwrap();
        }
    });
    let e = e.unwrap_err();
    assert!(matches!(&e, Error::Io { path, .. } if *path == out), "{e}");
    assert_eq!(names(&dir), [".quantize-out", "in", "out"]);
    std::fs::remove_dir_all(&out).unwrap();
    let summary = run(&dir, &Options::default()).unwrap();
    assert_eq!(summary.resumed, 3, "all weights are taken as they were made");
    assert_eq!(names(&dir), ["in", "out"]);
}
