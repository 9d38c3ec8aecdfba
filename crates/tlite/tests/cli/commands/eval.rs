//! `tlite eval`.

use super::{fails, path};
use serde_json::{Value, json};
use std::path::Path;
use tlite_testing::gguf::Traits;
use tlite_testing::{tiny_model, tlite};
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::llm::engine::{Decoder, HostModel};
use transformer_lite::unstable::llm::{LanguageModel, Tokenizer};

/// The words of the questions of [`write`].
const WORDS: [&str; 8] = [
    "truth",
    "single man",
    "fortune",
    "a wife",
    "né",
    "x",
    "want of",
    "good",
];

/// Writes `count` questions with three choices each, and a blank line after each.
fn write(file: &Path, count: usize) {
    let question = |i: usize| {
        let word = |at: usize| WORDS[(i + at) % WORDS.len()];
        json!({"question": format!("It is a {} ", word(0)), "choices": [word(1), word(3), word(4)],
            "answer": i % 3, "id": [i]})
    };
    let lines = (0..count).map(|i| format!("{}\n \n", question(i)));
    std::fs::write(file, lines.collect::<String>()).unwrap();
}

fn ran(args: &[&str]) -> Vec<u8> {
    let output = tlite(args);
    let code = output.status.code();
    assert_eq!(code, Some(0), "{args:?}: {}", super::stderr(&output));
    output.stdout
}

/// The log-likelihood of the tokens after `context`, in one run from an empty cache.
fn in_one_pass(host: &mut HostModel, tokens: &[u32], context: usize) -> f64 {
    host.truncate(0);
    let rows = host.forward_all(&tokens[..tokens.len() - 1]).unwrap();
    let rows = rows.chunks(host.vocab()).zip(&tokens[1..]);
    let score = |(row, token): (&[f32], &u32)| {
        let total: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
        f64::from(row[*token as usize]) - total.ln()
    };
    rows.skip(context - 1).map(score).sum()
}

#[test]
fn scores_are_those_of_one_pass_for_each_choice() {
    let (dir, model) = tiny_model("llama", Traits::default());
    let [file, answers] = ["questions.jsonl", "answers.jsonl"].map(|n| dir.path().join(n));
    write(&file, 8);
    let base = ["eval", path(&model), path(&file), "--backend", "reference"];
    let report = ran(&[&base[..], &["--json", "--output", path(&answers)]].concat());
    let report: Value = serde_json::from_slice(&report).unwrap();

    let tokenizer = Tokenizer::load(&model).unwrap();
    let start = tokenizer.start().unwrap();
    let decoder = Decoder::load(&model.join("model.onnx"), &Target::HOST).unwrap();
    let mut host = HostModel::new(decoder, 64).unwrap();
    let (mut right, mut right_norm, mut tokens) = (0, 0, 0);
    let answers = std::fs::read_to_string(answers).unwrap();
    let questions = std::fs::read_to_string(&file).unwrap();
    let questions = questions.lines().filter(|l| l.len() > 1);
    for (i, (question, found)) in questions.zip(answers.lines()).enumerate() {
        let [question, found]: [Value; 2] = [question, found].map(|l| serde_json::from_str(l).unwrap());
        assert_eq!((&found["line"], &found["id"]), (&json!(2 * i + 1), &json!([i])));
        let text = question["question"].as_str().unwrap();
        let context = tokenizer.encode(text.trim_end(), false).unwrap().len() + start.len();
        tokens += context;
        let mut scores = Vec::new();
        for (n, choice) in question["choices"].as_array().unwrap().iter().enumerate() {
            let choice = choice.as_str().unwrap();
            let whole = tokenizer.encode(&format!("{text} {choice}"), false).unwrap();
            let whole = [&start[..], &whole].concat();
            tokens += whole.len() - context - 1;
            let wanted = in_one_pass(&mut host, &whole, context);
            let score = found["log_likelihoods"][n].as_f64().unwrap();
            assert!((score - wanted).abs() < 1e-5, "{score} is not {wanted}");
            scores.push((score, score / choice.chars().count() as f64));
        }
        let best = |of: fn(&(f64, f64)) -> f64| {
            let by = |a: &usize, b: &usize| of(&scores[*a]).total_cmp(&of(&scores[*b]));
            (0..scores.len()).max_by(by).unwrap()
        };
        let [plain, norm] = [best(|s| s.0), best(|s| s.1)];
        assert_eq!(
            (&found["choice"], &found["choice_norm"]),
            (&json!(plain), &json!(norm))
        );
        right += usize::from(plain == i % 3);
        right_norm += usize::from(norm == i % 3);
    }
    let shares = [right, right_norm].map(|n| n as f64 / 8.0);
    assert_eq!(
        (&report["acc"], &report["acc_norm"]),
        (&json!(shares[0]), &json!(shares[1]))
    );
    assert_eq!(
        (&report["questions"], &report["tokens"]),
        (&json!(8), &json!(tokens))
    );
    assert_eq!(report["interrupted"], json!(false));

    let text = String::from_utf8(ran(&[&base[..], &["--limit", "3"]].concat())).unwrap();
    tlite_testing::assert_carries(&text, &["3", "acc", "acc_norm"]);
    // With --model, the only argument is the file.
    let short = [
        "eval",
        "-m",
        path(&model),
        path(&file),
        "--limit",
        "3",
        "--backend",
        "reference",
    ];
    assert_eq!(ran(&short), text.as_bytes());
}

#[test]
fn questions_that_cannot_be_used() {
    let (dir, model) = tiny_model("llama", Traits::default());
    let file = dir.path().join("questions.jsonl");
    let base = ["eval", path(&model), path(&file), "--backend", "reference"];
    let refused = |text: &str, values: &[&str]| {
        std::fs::write(&file, text).unwrap();
        fails(&base, 2, &[&["FILE", "questions.jsonl"], values].concat());
    };
    refused("", &["0", "1"]);
    refused(" \n\n", &["0", "1"]);
    let good = json!({"question": "It is", "choices": ["a", "b"], "answer": 1}).to_string();
    let after = |count: usize, last: &str| format!("{good}\n").repeat(count) + last;
    refused(&after(6, "{\"question\": \"a\", "), &["7", "JSON", "column 18"]);
    refused(&after(1, "[1]"), &["2", "JSON"]);
    for (line, field, values) in [
        (
            json!({"question": "a", "choices": ["a", "b"]}),
            "answer",
            ["0 to 1", "answer"],
        ),
        (json!({"question": "a", "answer": 0}), "choices", ["2", "choices"]),
        (
            json!({"choices": ["a", "b"], "answer": 0}),
            "question",
            ["text", "question"],
        ),
        (
            json!({"question": "a", "choices": ["a", "b"], "answer": 2}),
            "answer",
            ["0 to 1", "2"],
        ),
        (
            json!({"question": "a", "choices": ["a", "b"], "answer": "A"}),
            "answer",
            ["0 to 1", "A"],
        ),
        (
            json!({"question": "a", "choices": [], "answer": 0}),
            "choices",
            ["2", "[]"],
        ),
        (
            json!({"question": "a", "choices": ["a", ""], "answer": 0}),
            "choices",
            ["2", "\"\""],
        ),
        (
            json!({"question": 1, "choices": ["a", "b"], "answer": 0}),
            "question",
            ["text", "1"],
        ),
    ] {
        let values = [&["line 3", field], &values[..]].concat();
        refused(&after(2, &line.to_string()), &values);
    }
    let long = json!({"question": "wife ".repeat(5000), "choices": ["a", "b"], "answer": 1});
    refused(
        &after(3, &long.to_string()),
        &["line 4", "question", "context", "64"],
    );
    std::fs::write(&file, [&good.as_bytes()[..20], b"\xff"].concat()).unwrap();
    fails(&base, 2, &["FILE", "UTF-8", "20"]);
    std::fs::write(&file, &good).unwrap();
    fails(
        &[&base[..], &["--context", "2"]].concat(),
        2,
        &["line 1", "context", "2"],
    );
    fails(&[&base[..], &["--limit", "0"]].concat(), 2, &["--limit", "0"]);
    fails(
        &[&base[..], &["--output", path(&file)]].concat(),
        2,
        &["--output"],
    );
    fails(&["eval", path(&model)], 2, &["FILE"]);
    fails(
        &["eval", path(&model), path(&file), "-m", "x"],
        2,
        &["FILE", "--model"],
    );
    let absent = dir.path().join("absent");
    fails(&["eval", path(&model), path(&absent)], 2, &["FILE", "absent"]);
}
