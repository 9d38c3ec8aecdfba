use super::*;

#[test]
fn addresses_are_joined() {
    let at = "http://h:1/a/b?x=/y";
    for (location, expected) in [
        ("https://o/c", "https://o/c"),
        ("//o/c", "http://o/c"),
        ("/c?d", "http://h:1/c?d"),
        ("/c?d=https://o/e", "http://h:1/c?d=https://o/e"),
        ("c", "http://h:1/a/c"),
    ] {
        assert_eq!(joined(at, location), expected);
    }
    assert_eq!(joined("http://h", "c"), "http://h/c");
    assert_eq!(authority("https://h:1?x"), "https://h:1");
    assert_eq!(host("https://user:word@h:1/x"), "h:1");
    assert_eq!(escaped("a b/ü+.gguf"), "a%20b/%C3%BC%2B.gguf");
}
