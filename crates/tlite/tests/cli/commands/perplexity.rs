//! `tlite perplexity`.

use super::{fails, path};
use tlite_testing::gguf::Traits;
use tlite_testing::{tiny_model, tlite};
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::llm::engine::{Decoder, HostModel};
use transformer_lite::unstable::llm::{LanguageModel, Tokenizer};

const TEXT: &str = "It is a truth universally acknowledged, that a single man in possession of a good fortune, \
                    must be in want of a wife.";

fn json(args: &[&str]) -> serde_json::Value {
    let output = tlite(args);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{args:?}: {}",
        super::stderr(&output)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The figures of windows of 16 are those of the logits that the library gives for them, one by
/// one.
#[test]
fn figures_are_those_of_the_logits() {
    let (dir, model) = tiny_model("llama", Traits::default());
    let file = dir.path().join("text.txt");
    std::fs::write(&file, TEXT).unwrap();
    let base = [
        "perplexity",
        path(&model),
        "--text",
        path(&file),
        "--backend",
        "reference",
        "--context",
        "16",
    ];
    let found = json(&[&base[..], &["--json", "--reference", path(&model)]].concat());

    let tokenizer = Tokenizer::load(&model).unwrap();
    let (tokens, start) = (tokenizer.encode(TEXT, false).unwrap(), tokenizer.start().unwrap());
    let scored = if start.is_empty() {
        &tokens[1..]
    } else {
        &tokens[..]
    };
    assert!(start.len() <= 1 && scored.len() > 40);
    let decoder = Decoder::load(&model.join("model.onnx"), &Target::HOST).unwrap();
    let mut host = HostModel::new(decoder, 16).unwrap();
    let mut sum = 0.0;
    for (i, part) in scored.chunks(16).enumerate() {
        host.truncate(0);
        let lead = start.first().copied().unwrap_or(tokens[16 * i]);
        let fed = [&[lead], &part[..part.len() - 1]].concat();
        for (row, token) in host.forward_all(&fed).unwrap().chunks(host.vocab()).zip(part) {
            let total: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
            sum += total.ln() - f64::from(row[*token as usize]);
        }
    }
    let wanted = (sum / scored.len() as f64).exp();
    let perplexity = found["perplexity"].as_f64().unwrap();
    assert!(
        (perplexity / wanted - 1.0).abs() < 1e-9,
        "{perplexity} is not {wanted}"
    );
    assert_eq!(found["reference_perplexity"], found["perplexity"]);
    assert_eq!(
        (found["kl_mean"].as_f64(), found["kl_p99"].as_f64()),
        (Some(0.0), Some(0.0))
    );
    assert_eq!(found["top1_agreement"].as_f64(), Some(1.0));
    assert_eq!(found["tokens"].as_u64(), Some(scored.len() as u64));
    assert_eq!(found["windows"].as_u64(), Some(scored.len().div_ceil(16) as u64));

    let fewer = json(&[&base[..], &["--json", "--tokens", "20"]].concat());
    assert_eq!(
        (fewer["tokens"].as_u64(), fewer["windows"].as_u64()),
        (Some(20), Some(2))
    );
    assert!(fewer.get("kl_mean").is_none());
    let output = tlite(&base);
    let text = String::from_utf8(output.stdout).unwrap();
    tlite_testing::assert_carries(&text, &[&format!("{perplexity:.4}")]);
}

/// Quantized to 8 bits a model stays near, to 4 bits less so.
#[test]
fn a_quantized_model_diverges_by_its_bits() {
    let (dir, model) = tiny_model("qwen2", Traits::default());
    let file = dir.path().join("text.txt");
    std::fs::write(&file, TEXT).unwrap();
    let divergence = |name: &str, head: &str| {
        let out = dir.path().join(name);
        let args = [
            "quantize",
            path(&model),
            "-o",
            path(&out),
            "--format",
            "e0m4",
            "--head-bits",
            head,
        ];
        assert_eq!(
            tlite(&[&args[..], &["--group-size", "32"]].concat())
                .status
                .code(),
            Some(0)
        );
        let args = [
            "perplexity",
            path(&out),
            "--text",
            path(&file),
            "--reference",
            path(&model),
        ];
        let found = json(&[&args[..], &["--json", "--backend", "reference"]].concat());
        let [mean, top] = ["kl_mean", "kl_p99"].map(|k| found[k].as_f64().unwrap());
        assert!(mean > 0.0 && mean < top, "{found}");
        assert_ne!(found["perplexity"], found["reference_perplexity"]);
        mean
    };
    let [coarse, fine] = [divergence("four", "4"), divergence("eight", "8")];
    assert!(fine < coarse, "{fine} {coarse}");
}

#[test]
fn texts_and_references_that_cannot_be_used() {
    let (dir, model) = tiny_model("llama", Traits::default());
    let at = |name: &str| dir.path().join(name);
    let refused = |text: &std::path::Path, more: &[&str], code, values: &[&str]| {
        let base = [
            "perplexity",
            path(&model),
            "--text",
            path(text),
            "--backend",
            "reference",
        ];
        fails(&[&base[..], more].concat(), code, values);
    };
    for (name, bytes) in [("good", TEXT.as_bytes()), ("empty", b""), ("broken", b"ab\xff")] {
        std::fs::write(at(name), bytes).unwrap();
    }
    refused(&at("absent"), &[], 2, &["--text", "absent"]);
    refused(&at("empty"), &[], 2, &["--text", "0"]);
    refused(&at("broken"), &[], 2, &["--text", "broken", "UTF-8", "2"]);
    let good = at("good");
    for (option, value) in [("--context", "0"), ("--tokens", "0"), ("--tokens", "-1")] {
        refused(&good, &[option, value], 2, &[option, value]);
    }
    refused(&good, &["--context", "1000000"], 2, &["--context", "1000000"]);
    refused(&good, &["--reference", path(&at("absent"))], 2, &["absent"]);
    // A model of another family has another tokenizer; one that is changed is told by what it makes
    // of the text.
    let other = at("other");
    std::fs::create_dir(&other).unwrap();
    for entry in std::fs::read_dir(&model).unwrap() {
        let from = entry.unwrap().path();
        std::fs::copy(&from, other.join(from.file_name().unwrap())).unwrap();
    }
    let tokenizer = std::fs::read_to_string(model.join("tokenizer.json")).unwrap();
    let mut changed: serde_json::Value = serde_json::from_str(&tokenizer).unwrap();
    changed["model"]["merges"] = serde_json::json!([]);
    std::fs::write(other.join("tokenizer.json"), changed.to_string()).unwrap();
    let tokens = |folder: &std::path::Path| Tokenizer::load(folder).unwrap().encode(TEXT, false).unwrap();
    let (own, changed) = (tokens(&model), tokens(&other));
    let differs = own.iter().zip(&changed).position(|(a, b)| a != b).unwrap();
    let values = [own[differs], changed[differs]].map(|id| id.to_string());
    refused(
        &good,
        &["--reference", path(&other)],
        2,
        &["--reference", &differs.to_string(), &values[0], &values[1]],
    );
    fails(&["perplexity", path(&model)], 2, &["--text"]);
}
