//! The example grammars of llama.cpp (in `llama_cpp`, with their licence), and small ones.

use crate::error::ErrorKind;
use crate::llm::constraint::Constraint;
use crate::llm::testing::write_byte_level_tokenizer;
use crate::llm::{Grammar, Tokenizer};

const END: usize = 257;

fn made(text: &str) -> crate::error::Result<Grammar> {
    let dir = tempfile::tempdir().unwrap();
    write_byte_level_tokenizer(dir.path());
    Grammar::lark(text, &Tokenizer::load(dir.path()).unwrap(), &[END as u32])
}

/// Whether the grammar allows each byte of the text, and then its end.
fn matches(grammar: &mut Grammar, text: &str) -> bool {
    grammar.start().unwrap();
    for byte in text.bytes() {
        let mut logits = vec![0.0; 258];
        grammar.mask(&mut logits).unwrap();
        let allowed = logits[usize::from(byte)] == 0.0;
        if grammar.accept(u32::from(byte)).is_err() {
            assert!(!allowed, "{text}: {byte}");
            return false;
        }
        assert!(allowed, "{text}: {byte}");
    }
    let mut logits = vec![0.0; 258];
    grammar.mask(&mut logits).unwrap();
    logits[END] == 0.0
}

fn check(grammar: &str, allowed: &[&str], forbidden: &[&str]) {
    let mut made = made(grammar).unwrap_or_else(|e| panic!("{grammar}: {e}"));
    for (texts, expected) in [(allowed, true), (forbidden, false)] {
        for text in texts {
            assert_eq!(matches(&mut made, text), expected, "{grammar}: {text:?}");
        }
    }
}

#[test]
fn grammars_of_llama_cpp_match_their_languages() {
    check(
        include_str!("llama_cpp/json.gbnf"),
        &[
            r#"{"a":1}"#,
            "{}",
            r#"{ "a": [true, {"b": "x\n\u00e9"}, -1.5e12 ], "é": null }"#,
            "{\n\t\"a\":\"\" }",
        ],
        &[
            "[1]",
            r#"{"a":1,}"#,
            "{  }",
            r#"{"a"  :1}"#,
            r#"{"a":tru}"#,
            "{\"a\":\"\n\"}",
        ],
    );
    check(
        include_str!("llama_cpp/json_arr.gbnf"),
        &["[\n]", "[\n{\"a\": 1},\n2]"],
        &["[]", "[\n1, 2]", "{}"],
    );
    check(
        include_str!("llama_cpp/arithmetic.gbnf"),
        &["a=1\n", "a1 +(b_*2) = 3 \n\nx=y\n", "a= \n b\n\n"],
        &["a=1", "1a=2\n", "a+=1\n", "(a=1\n"],
    );
    check(
        include_str!("llama_cpp/list.gbnf"),
        &["- one\n", "- one two\n- drei é\n"],
        &["", "- \n", "one\n", "- a\u{2028}\n", "- a"],
    );
    check(
        include_str!("llama_cpp/chess.gbnf"),
        &["1. e4 e5\n2. Nf3 Nc6\n3. Bb5 a6\n", "1. e4 e5\n2. O-O exd8=Q#\n"],
        &["1. e4 e5\n", "1. e9 e5\n2. a3 a4\n", "1. e4 e5\n2. O-O-O-O a4\n"],
    );
    check(
        include_str!("llama_cpp/c.gbnf"),
        &[
            "",
            "int main(){}",
            "int f(int x){int int = 1;return x*( 2+y );}",
            "char g(){while(a<=b){intx = -1;}if(a==b){}else{}// note\n/* a * b */}",
            "float h(){f (a, b);for(int i = 0; i<3; i = i+1){}}",
        ],
        &[
            "int main(){",
            "main(){}",
            "int f(){x=1;}",
            "int f(){/* a }",
            "int f(){return 1 ;}",
        ],
    );
    check(
        include_str!("llama_cpp/english.gbnf"),
        &["Hello, world!", "a\\b\tc"],
        &["", " a", "a  b", "é"],
    );
    check(
        include_str!("llama_cpp/japanese.gbnf"),
        &["ぁ、一 ヿ"],
        &["a", "ぁ "],
    );
}

#[test]
fn the_longest_match_of_the_lexer_changes_nothing() {
    // Each text can be divided in a way that a greedy lexer does not see.
    check("root ::= (\"a\" | \"ab\") \"b\"", &["ab", "abb"], &["a", "abbb"]);
    check(
        "root ::= [a-z]+ \"e\" tail\ntail ::= \"(\" tail? \")\"",
        &["apple()", "ee(())"],
        &["e()", "abc()", "apple(()"],
    );
    check(
        "root ::= name x\nname ::= [a-z]* \"x\"\nx ::= \"x\" | \"(\" x \")\"",
        &["xx", "abx(x)", "xxx"],
        &["x", "ab"],
    );
    check("root ::= \"\"", &[""], &["a"]);
    check(
        "root ::= x* \"b\"?\nx ::= \"\" | \"a\" | \"(\" x \")\"",
        &["", "aa()b", "(a)(())", "b"],
        &["bb", "(b)"],
    );
    check("root ::= root \"a\" | \"b\"", &["b", "baa"], &["a", "ab"]);
}

#[test]
fn notation_is_read_as_by_llama_cpp() {
    check(
        "root ::= \"a\"{2} [b]{1,} \"c\"{0,2} . # any\n",
        &["aabbcc!", "aabé"],
        &["abc!", "aab", "aabcccc"],
    );
    check(
        "# comment\nroot::=(  # first\n  a |\n  b\n)\na ::= \"x\\x41\\u00e9\\U0001F600\" |\n   [^\\x00-`b-z]\n\nb ::= [-+\\]\\\\]",
        &["xAé😀", "a", "-", "+", "]", "\\", "~", "😀"],
        &["b", "`", "x"],
    );
    check(
        "root ::= \"ab\"* | (\"c\" | \"d\")+ ",
        &["", "abab", "cdc"],
        &["aba", "abc"],
    );
    check(
        "root ::= \"a\"{0,700}",
        &["", &"a".repeat(700)],
        &[&"a".repeat(701)],
    );
}

#[test]
fn faults_name_the_line() {
    for (text, place) in [
        ("root ::= \"a\"\nx ::= <think>", "line 2: `<think>` is a token"),
        ("root ::= !<[12]>*", "line 1: `!<[12]>` is a token"),
        ("root ::= a\n\na ::= b", "line 3: there is no rule `b`"),
        ("start ::= \"a\"", "no rule `root`"),
        ("root ::= \"a\nb", "line 2"),
        ("root ::= [a-", "line 1"),
        ("root ::= [z-a]", "line 1: the range from 'z' to 'a'"),
        ("root ::= []", "line 1: a class without characters"),
        ("root ::= (\"a\"", "line 1: expected `)`"),
        ("root ::= \"a\"{3,2}", "line 1: `{3,2}`"),
        ("root ::= \"a\"{99999}", "line 1: `{99999}`"),
        ("root ::= \"\\q\"", "line 1: `\\q`"),
        ("root ::= \"\\ud800\"", "line 1: `\\u`"),
        (
            "root ::= \"a\"\nroot ::= \"b\"",
            "line 2: the rule `root` is defined twice",
        ),
        (
            "root ::= \"a\"\n  | \"b\"",
            "line 2: expected the name of a rule, found `| \"b\"`",
        ),
        ("root ::= %", "line 1: expected the end of the rule, found `%`"),
        ("root ::= \"a\" root", "no text matches it"),
        (
            "root ::= \"b\" r{2000}{2000}{2000}\nr ::= \"(\" r? \")\"",
            "line 1: with this rule, the grammar needs more than 200000 parts",
        ),
        (
            &format!(
                "root ::= a\na ::= {}\nr ::= \"(\" r? \")\"",
                "r{0,2000} ".repeat(11)
            ),
            "line 2: with this rule, the grammar needs more than 20000 rules",
        ),
        (
            &format!("root ::= \"a\"{}", "*".repeat(1_000_000)),
            "line 1: repetitions are nested",
        ),
        (
            &format!("root ::= {}", "(".repeat(5000)),
            "line 1: parentheses are nested",
        ),
    ] {
        let e = made(text).err().unwrap_or_else(|| panic!("{text}"));
        assert_eq!(e.kind(), ErrorKind::Usage, "{text}: {e}");
        assert!(
            e.to_string().contains(place) && e.to_string().len() < 300,
            "{text}: {e}"
        );
    }
    // Rules that double their size are not copied.
    let mut doubling = String::from("root ::= r0\n");
    for i in 0..60 {
        doubling += &format!("r{i} ::= r{} r{}\n", i + 1, i + 1);
    }
    assert!(made(&(doubling + "r60 ::= \"a\"?")).is_ok());
}

/// `root ::= r1`, and so on up to the rule `end`.
fn chain(count: usize, end: &str) -> String {
    let mut text = String::from("root ::= r1\n");
    for i in 1..count {
        text += &format!("r{i} ::= r{}\n", i + 1);
    }
    format!("{text}r{count} ::= {end}\n")
}

#[test]
fn long_chains_of_rules_are_read_in_linear_time() {
    // As regular expressions, which would be nested this deep.
    check(&chain(5000, "\"a\"?"), &["", "a"], &["b", "aa"]);
    let mut end = made(&chain(15_000, "\"a\" | \"(\" root \")\"")).unwrap();
    assert!(matches(&mut end, "((a))") && !matches(&mut end, "(a"));
    for end in ["\"a\"", "root?"] {
        let e = made(&chain(200_000, end)).err().unwrap().to_string();
        assert!(e.contains("more than 20000 rules") && e.contains("line "), "{e}");
    }
    // Every level of parentheses may be repeated. The parser may refuse that, but does not crash.
    for inner in ["\"a\"", "\"a\" root"] {
        let deep = format!("root ::= {}{inner}{}", "(".repeat(100), ")?*+?*+?*".repeat(100));
        if let Err(e) = made(&deep) {
            assert_eq!(e.kind(), ErrorKind::Usage, "{e}");
        }
    }
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(90), ")?".repeat(90));
    check(&deep, &["", "a"], &["b", "aa"]);
}
