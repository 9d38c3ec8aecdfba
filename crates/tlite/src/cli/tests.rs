use super::*;
use std::any::TypeId;

/// The commands with their names as typed, subcommands included, built for 80 columns.
fn commands() -> Vec<(String, clap::Command)> {
    fn add(out: &mut Vec<(String, clap::Command)>, command: &clap::Command, name: &str) {
        for sub in command.get_subcommands().filter(|s| s.get_name() != "help") {
            let name = format!("{name} {}", sub.get_name()).trim().to_owned();
            out.push((name.clone(), sub.clone()));
            add(out, sub, &name);
        }
    }
    let mut root = command().term_width(80);
    root.build();
    let mut out = vec![(String::new(), root.clone())];
    add(&mut out, &root, "");
    out
}

/// Splits a line as a shell does, as far as examples need it.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => words.last_mut().unwrap().push(c),
        }
    }
    words.retain(|w| !w.is_empty());
    words
}

#[test]
fn the_description_is_consistent() {
    command().debug_assert();
}

#[test]
fn every_command_is_in_one_group() {
    let mut root = command();
    root.build();
    let help = root.clone().render_long_help().to_string();
    for name in root.get_subcommands().map(clap::Command::get_name) {
        let groups = GROUPS.iter().filter(|(_, names)| names.contains(&name));
        assert_eq!(groups.count(), 1, "{name}");
        let lines = help
            .lines()
            .filter(|l| l.trim_start().split(' ').next() == Some(name));
        assert_eq!(lines.count(), 1, "{name} in {help}");
    }
}

#[test]
fn short_help_fits_a_screen() {
    for (name, mut command) in commands() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        assert!(
            !about.is_empty() && about.chars().count() <= 65,
            "{name}: {about}"
        );
        let help = command.render_help().to_string();
        let lines = help.trim_end().lines().count();
        assert!(lines <= 40, "tlite {name} -h has {lines} lines:\n{help}");
        let mut lines = help.lines();
        let wide = lines.find(|l| l.chars().count() > 80);
        assert_eq!(wide, None, "tlite {name} -h");
    }
}

#[test]
fn every_help_ends_with_three_examples() {
    for (name, mut command) in commands() {
        let short = (!name.is_empty()).then(|| command.render_help());
        for help in short
            .into_iter()
            .chain([command.render_long_help()])
            .map(|h| h.to_string())
        {
            let examples = help.split("\nExamples:\n").nth(1);
            let examples = examples.unwrap_or_else(|| panic!("tlite {name}: no examples in {help}"));
            let lines: Vec<&str> = examples.lines().take_while(|l| l.starts_with("  ")).collect();
            assert_eq!(lines.len(), 3, "tlite {name}: {examples}");
            assert!(examples.contains(&format!("tlite {name}")), "{examples}");
            assert_eq!(examples.trim_end().lines().count(), 3, "tlite {name}: {examples}");
            for line in lines {
                let words = words(line);
                let start = words.iter().rposition(|w| w == "tlite").unwrap();
                let args = words[start..]
                    .iter()
                    .take_while(|w| !["|", ">"].contains(&w.as_str()));
                let parsed = super::command().try_get_matches_from(args);
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
            }
        }
    }
}

#[test]
fn wrong_values_get_no_misleading_tip() {
    let parsed = command().try_get_matches_from(["tlite", "generate", "m", "hi", "--backend", "cuda"]);
    let e = plain(parsed.unwrap_err());
    assert_eq!(e.get(ContextKind::SuggestedValue), None);
    let text = e.to_string();
    assert!(
        ["auto", "opencl", "wgpu", "cpu", "reference"]
            .iter()
            .all(|b| text.contains(b)),
        "{text}"
    );
}

#[test]
fn host_is_a_hidden_name_of_the_reference() {
    let parsed = command().try_get_matches_from(["tlite", "generate", "m", "hi", "--backend", "host"]);
    assert!(parsed.is_ok());
}

#[test]
fn options_for_numbers_take_negative_numbers() {
    let numbers = [
        TypeId::of::<f32>(),
        TypeId::of::<f64>(),
        TypeId::of::<i32>(),
        TypeId::of::<i64>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
    ];
    let mut used = Vec::new();
    for (name, command) in commands() {
        for arg in command.get_arguments().filter(|a| a.get_action().takes_values()) {
            let is_number = numbers.iter().any(|n| arg.get_value_parser().type_id() == *n);
            assert!(
                !is_number || arg.is_allow_negative_numbers_set(),
                "tlite {name}: the name of the value of {arg} is not in NUMBERS"
            );
            used.extend(arg.get_value_names().into_iter().flatten().cloned());
        }
    }
    for number in NUMBERS {
        assert!(
            used.iter().any(|n| n.as_str() == number),
            "no option has a value {number}"
        );
    }
    let option = |value| clap::Command::new("test").arg(clap::Arg::new("a").long("a").value_name(value));
    for (value, takes) in [
        ("F", true),
        ("N,...", true),
        ("TEXT", false),
        ("NAME=N,...", false),
    ] {
        let parsed = with_negative_numbers(option(value)).try_get_matches_from(["test", "--a", "-1"]);
        assert_eq!(parsed.is_ok(), takes, "{value}");
    }
}
