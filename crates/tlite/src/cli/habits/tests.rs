use super::super::command;
use super::*;

fn words(line: &str) -> Vec<OsString> {
    line.split(' ').map(OsString::from).collect()
}

/// What a line is here.
fn here(line: &str) -> String {
    let out = translated(&command(), words(line), false).unwrap_or_else(|e| panic!("{line}: {e}"));
    let out: Vec<&str> = out.iter().map(|a| a.to_str().unwrap()).collect();
    out.join(" ")
}

#[test]
fn options_of_others_become_those_here() {
    for (line, meant) in [
        (
            "tlite generate -m m -ngl 99 -fa -p hi",
            "tlite generate -m m -p hi",
        ),
        (
            "tlite generate -m m -fa on -t 4 hi",
            "tlite generate -m m --threads 4 hi",
        ),
        ("tlite chat m -ngl 99 -t 8", "tlite chat m --threads 8"),
        ("tlite chat m -ngl 0", "tlite chat m --device cpu"),
        ("tlite chat m -dev none", "tlite chat m --device cpu"),
        ("tlite chat m --device none", "tlite chat m --device cpu"),
        ("tlite chat m -s -1 --temp 0", "tlite chat m --temp 0"),
        ("tlite chat m -s 5", "tlite chat m --seed 5"),
        ("tlite chat m -ctk q8_0 -ctv q8_0", "tlite chat m --kv q8"),
        ("tlite chat -hf a/b", "tlite chat --model hf:a/b"),
        ("tlite chat -hf hf:a/b", "tlite chat --model hf:a/b"),
        ("tlite generate m x -no-cnv", "tlite generate m x --raw"),
        ("tlite chat m -cnv --color --jinja", "tlite chat m"),
        (
            "tlite generate m x --ctx-size=99",
            "tlite generate m x --context 99",
        ),
        (
            "tlite generate m x --no-mmap",
            "tlite generate m x --limits files=read",
        ),
        ("tlite generate m x -j {}", "tlite generate m x --json-schema {}"),
        (
            "tlite bench -m m -p 512 -n 128 -r 3 -o json",
            "tlite bench -m m --prefill 512 --decode 128 --repeat 3 --json",
        ),
        ("tlite show m", "tlite inspect m"),
        ("tlite run m.onnx --random", "tlite run m.onnx --random"),
        ("tlite run hf:a/b", "tlite chat hf:a/b"),
        ("tlite run hf:a/b hello", "tlite generate hf:a/b hello"),
        ("tlite run hf:a/b --random", "tlite run hf:a/b --random"),
        (
            "tlite run --temp 0.5 hf:a/b hello",
            "tlite generate --temp 0.5 hf:a/b hello",
        ),
        (
            "tlite run hf:a/b -n 10 hello",
            "tlite generate hf:a/b -n 10 hello",
        ),
        ("tlite run hf:a/b -n 10", "tlite chat hf:a/b -n 10"),
        (
            "tlite run -m hf:a/b -p hello",
            "tlite generate -m hf:a/b -p hello",
        ),
        ("tlite run hf.co/a/b hello", "tlite generate hf.co/a/b hello"),
        // What changes no result is ignored.
        (
            "tlite generate m x --batch-size 512 --mlock -tb 2",
            "tlite generate m x",
        ),
        // Values and what follows -- are left alone.
        ("tlite generate m -p -ngl", "tlite generate m -p -ngl"),
        ("tlite generate m -- -ngl", "tlite generate m -- -ngl"),
        (
            "tlite generate m -n4 -vc4096 hi",
            "tlite generate m -n4 -vc4096 hi",
        ),
    ] {
        assert_eq!(here(line), meant, "{line}");
    }
}

#[test]
fn what_is_piped_in_is_part_of_the_prompt() {
    for (line, meant) in [
        ("tlite run hf:a/b", "tlite generate hf:a/b -"),
        ("tlite run hf:a/b hello", "tlite generate hf:a/b hello --stdin"),
        ("tlite run m.onnx", "tlite run m.onnx"),
        ("tlite chat hf:a/b", "tlite chat hf:a/b"),
    ] {
        let out = translated(&command(), words(line), true).unwrap();
        let out: Vec<&str> = out.iter().map(|a| a.to_str().unwrap()).collect();
        assert_eq!(out.join(" "), meant, "{line}");
    }
}

#[test]
fn what_has_no_counterpart_is_explained_in_one_line() {
    for line in [
        "tlite ps",
        "tlite -m m.gguf",
        "tlite chat m --lora x",
        "tlite chat m -ngl 20",
        "tlite chat m -fa off",
        "tlite chat m -ctk q4_0",
        "tlite generate m x -c 0",
        "tlite bench m --backend=cuda",
        "tlite generate m x --mirostat 2",
        "tlite chat m -no-cnv",
        // Letters after a number's option, or after -h.
        "tlite generate m x -nkvx",
        "tlite devices -hf",
    ] {
        let error = translated(&command(), words(line), false).unwrap_err();
        let text = error.to_string();
        assert_eq!(
            (error.exit_code(), text.trim_end().lines().count()),
            (2, 1),
            "{line}: {text}"
        );
    }
}

#[test]
fn table_names_options_that_exist_and_each_option_once() {
    let root = command();
    let all = [GROUPS[1].1, &[""]].concat();
    for line in TABLE.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let row = Row::of(line).unwrap_or_else(|| panic!("{line}"));
        let commands: Vec<&&str> = all
            .iter()
            .filter(|c| row.names.split_whitespace().any(|n| row.is_about(c, n)))
            .collect();
        assert!(!commands.is_empty(), "{line}");
        let Here::Is(here) = row.here else { continue };
        let mut here = here.split_whitespace();
        if let Some(option) = here.next() {
            let exists = |c: &&&str| match **c {
                "" => root.find_subcommand(option).is_some(),
                name => own(root.find_subcommand(name).unwrap(), option).is_some(),
            };
            assert!(commands.iter().any(exists), "{line}");
        }
        for (command, name) in commands
            .iter()
            .flat_map(|c| row.names.split_whitespace().map(move |n| (**c, n)))
        {
            let rows = TABLE
                .lines()
                .filter_map(Row::of)
                .filter(|r| r.is_about(command, name));
            assert_eq!(rows.count(), 1, "{command} {name}");
        }
    }
}
