//! Command lines that users of llama.cpp, llama-bench and Ollama type: each runs, or says in one
//! line what to type here.

use std::process::Stdio;
use tlite_testing::gguf::Traits;
use tlite_testing::{command, tiny_model};

/// What becomes of a line.
enum Expected {
    /// It runs and prints something.
    Runs,
    /// It is wrong usage; the one line about it contains this.
    Says(&'static str),
}
use Expected::{Runs, Says};

/// `M` is the model, `T` a file with text.
const LINES: [(&str, Expected); 44] = [
    // llama-cli.
    ("generate -m M -p hello -n 4", Runs),
    ("generate -m M -p hello -n 4 -ngl 99", Runs),
    ("generate -m M -p hello -n 4 -ngl 0", Runs),
    ("generate -m M -p hello -n 4 -t 2", Runs),
    ("generate -m M -p hello -n 4 -c 64 -fa on", Runs),
    ("generate -m M -p hello -n 4 -fa", Runs),
    (
        "generate -m M -p hello -n 4 --ctx-size 64 --flash-attn auto",
        Runs,
    ),
    ("generate -m M -f T -n 4", Runs),
    ("generate -m M -p hello -n 4 -s 42 --temp 0.7", Runs),
    (
        "generate -m M -p hello -n 4 --seed -1 --top-k 40 --top-p 0.9",
        Runs,
    ),
    ("generate -m M -p hello --n-predict 4 --repeat-penalty 1.1", Runs),
    ("generate -m M -p hello -n -1 -c 32", Runs),
    ("generate -m M -p hello -n 4 -no-cnv", Runs),
    (
        "generate -m M -p hello -n 4 -st --jinja --no-display-prompt",
        Runs,
    ),
    ("generate -m M -p hello -n 4 --no-mmap", Runs),
    ("generate -m M -p hello -n 4 -dev none", Runs),
    ("generate -m M -p hello -n 8 -j {\"enum\":[1,2]}", Runs),
    ("generate -m M -p hello -n 4 -r world", Runs),
    ("generate -m M -p hello -n 4 --log-disable", Runs),
    ("generate -m M -p hello -n 4 -ctk q4_0", Says("--kv q8")),
    ("generate -m M -p hello -cnv", Says("tlite chat")),
    ("generate -m M -p hello -i", Says("tlite chat")),
    ("generate -m M -p hello -b 512", Runs),
    ("generate -m M -p hello -ub 512", Runs),
    ("generate -m M -p hello -ngl 20", Says("--device cpu")),
    ("generate -m M -p hello --mlock", Runs),
    ("generate -m M -p hello --lora a.gguf", Says("tlite convert")),
    ("generate -m M -p hello --mirostat 2", Says("--min-p")),
    (
        "generate -m M -p hello --chat-template chatml",
        Says("chat_template.jinja"),
    ),
    ("chat -m M -cnv -sys kind", Runs),
    ("chat -m M -ngl 99 --color -i", Runs),
    ("chat -m M -p hello", Says("tlite generate")),
    ("chat -m M -no-cnv", Says("tlite generate")),
    ("-m M -p hello", Says("tlite chat")),
    // llama-bench and llama-perplexity.
    ("bench -m M -p 8 -n 4 -r 1", Runs),
    ("bench -m M -p 8 -n 4 -r 1 -ngl 99 -fa 1 -t 2 -o json", Runs),
    ("perplexity -m M -f T", Runs),
    // Ollama.
    ("show M", Runs),
    ("ls", Runs),
    ("run llama3.2", Says("tlite pull")),
    ("pull llama3.2", Says("OWNER/REPO")),
    ("ps", Says("tlite list")),
    ("serve", Says("tlite serve MODEL")),
    ("stop llama3.2", Says("tlite list")),
];

#[test]
fn what_others_type_runs_or_is_explained() {
    let (dir, model) = tiny_model("llama", Traits::default());
    let template = "{% for m in messages %}{{ m.content }} {% endfor %}";
    std::fs::write(model.join("chat_template.jinja"), template).unwrap();
    let text = dir.path().join("text.txt");
    std::fs::write(&text, "hello world ".repeat(10)).unwrap();
    for (line, expected) in &LINES {
        let args = line.split(' ').map(|word| match word {
            "M" => model.as_os_str(),
            "T" => text.as_os_str(),
            word => word.as_ref(),
        });
        let output = command()
            .args(args)
            .current_dir(&dir)
            .env("TLITE_MODELS", dir.path().join("models"))
            .env("OCL_ICD_VENDORS", dir.path())
            .env("VK_DRIVER_FILES", dir.path().join("none.json"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        let code = output.status.code();
        match expected {
            // A chat without input says only where it runs.
            Runs => assert!(
                code == Some(0) && !(output.stdout.is_empty() && errors.is_empty()),
                "{line}: {code:?} {errors}"
            ),
            Says(what) => assert!(
                code == Some(2) && errors.contains(what) && errors.trim_end().lines().count() == 1,
                "{line}: {code:?} {errors}"
            ),
        }
    }
}
