use super::*;

#[test]
fn names_are_those_of_folders() {
    for (name, cleaned) in [
        ("SmolLM2-135M.Q4_0", "SmolLM2-135M.Q4_0"),
        ("a b/c\u{1b}[0m", "a-b-c--0m"),
        ("..", "model"),
        (".hidden", "hidden"),
        ("", "model"),
    ] {
        assert_eq!(clean(name), cleaned, "{name:?}");
    }
    assert_eq!(clean(&"x".repeat(300)).len(), NAME_LENGTH);
}
