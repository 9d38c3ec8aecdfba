use super::number::{Bound, Decimal, range};
use super::scalar::Scalar;
use super::*;
use crate::llm::constraint::Constraint;
use crate::llm::testing::write_byte_level_tokenizer;
use crate::llm::{Grammar, Tokenizer};
use llguidance::derivre::RegexBuilder;
use serde_json::json;

mod members;

const END: usize = 257;

fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: std::sync::LazyLock<Tokenizer> = std::sync::LazyLock::new(|| {
        let dir = tempfile::tempdir().unwrap();
        write_byte_level_tokenizer(dir.path());
        Tokenizer::load(dir.path()).unwrap()
    });
    &TOKENIZER
}

fn grammar(schema: &Value) -> Grammar {
    Grammar::json_schema(&schema.to_string(), tokenizer(), &[END as u32]).unwrap()
}

/// Whether the grammar accepts the whole text and may end there.
fn ends(grammar: &mut Grammar, text: &str) -> bool {
    grammar.start().unwrap();
    let mut logits = vec![0.0; 258];
    for (i, byte) in text.bytes().enumerate() {
        // A mask renews the work limit of the parser.
        if i % 500 == 499 {
            grammar.mask(&mut logits).unwrap();
        }
        if grammar.accept(u32::from(byte)).is_err() {
            return false;
        }
    }
    logits.fill(0.0);
    grammar.mask(&mut logits).is_ok() && logits[END] == 0.0
}

fn check(schema: &Value, allowed: &[&str], forbidden: &[&str]) {
    let mut grammar = grammar(schema);
    for (texts, expected) in [(allowed, true), (forbidden, false)] {
        for text in texts {
            assert_eq!(ends(&mut grammar, text), expected, "{schema}: {text}");
        }
    }
}

fn refused(schema: &Value, place: &str) {
    let made = Grammar::json_schema(&schema.to_string(), tokenizer(), &[]);
    let e = made.err().unwrap_or_else(|| panic!("{schema}"));
    assert_eq!(e.kind(), crate::error::ErrorKind::Usage, "{e}");
    assert!(e.to_string().contains(place), "{schema}: {e}");
}

fn number(text: &str) -> Decimal {
    let Value::Number(number) = serde_json::from_str(text).unwrap() else {
        panic!("{text}")
    };
    Decimal::new(&number)
}

/// A decimal in thousandths.
fn thousandths(text: &str) -> i64 {
    let (whole, fraction) = text
        .trim_start_matches('-')
        .split_once('.')
        .unwrap_or((text.trim_start_matches('-'), ""));
    let size: i64 = format!("{whole}{fraction:0<3}").parse().unwrap();
    if text.starts_with('-') { -size } else { size }
}

/// Decimals of up to two digits before the point and three after it.
fn short_decimals() -> Vec<String> {
    let mut all = Vec::new();
    for whole in (0..=12).chain([15, 25, 99]) {
        all.push(whole.to_string());
        for places in 1..=3 {
            let step = [0, 1, 1, 7][places];
            for fraction in (0..10_usize.pow(places as u32)).step_by(step) {
                all.push(format!("{whole}.{fraction:0places$}"));
            }
        }
    }
    let negative: Vec<String> = all.iter().map(|t| format!("-{t}")).collect();
    all.extend(negative);
    all
}

#[test]
fn ranges_hold_exactly_the_decimals_between_their_bounds() {
    let decimals = short_decimals();
    let bounds = [
        "0", "0.15", "0.1", "1", "2.25", "9.99", "10", "12.5", "-0.75", "-1", "-10.05", "0.001",
    ];
    let ends = || bounds.iter().map(Some).chain([None]);
    for (low, high) in ends().flat_map(|low| ends().map(move |high| (low, high))) {
        for inclusive in [true, false] {
            let bound = |text: Option<&&str>| {
                text.map(|t| Bound {
                    value: number(t),
                    inclusive,
                })
            };
            let Some(ast) = Scalar::Number.regex(range(bound(low).as_ref(), bound(high).as_ref())) else {
                continue;
            };
            let mut builder = RegexBuilder::new();
            let expr = builder.mk(&ast).unwrap();
            let mut regex = builder.to_regex(expr);
            for text in &decimals {
                let value = thousandths(text);
                let above =
                    low.is_none_or(|b| value > thousandths(b) || inclusive && value == thousandths(b));
                let below =
                    high.is_none_or(|b| value < thousandths(b) || inclusive && value == thousandths(b));
                assert_eq!(
                    regex.is_match(text),
                    above && below,
                    "{low:?} {high:?} {inclusive}: {text}"
                );
            }
        }
    }
}

#[test]
fn multiples_are_exact_with_any_number_of_digits() {
    for (factor, thousandth) in [
        ("0.25", 250),
        ("0.3", 300),
        ("7", 7000),
        ("0.01", 10),
        ("1.5", 1500),
        ("40", 40_000),
    ] {
        for holds in [true, false] {
            let mut builder = RegexBuilder::new();
            let expr = builder
                .mk(&super::number::multiples(&number(factor), holds).unwrap())
                .unwrap();
            let mut regex = builder.to_regex(expr);
            let most = factor.split_once('.').map_or(0, |(_, fraction)| fraction.len());
            for text in short_decimals() {
                let places = text.split_once('.').map_or(0, |(_, fraction)| fraction.len());
                let expected = (thousandths(&text) % thousandth == 0) == holds;
                // Longer fractions that do not end in zeros match neither expression.
                if places <= most {
                    assert_eq!(regex.is_match(&text), expected, "{factor} {holds}: {text}");
                } else {
                    assert!(!regex.is_match(&text) || expected, "{factor} {holds}: {text}");
                }
            }
        }
    }
}

#[test]
fn valid_numbers_may_end() {
    for (bounds, allowed, forbidden) in [
        (
            json!({"minimum": 0, "maximum": 0.15}),
            vec![
                "0.1", "0.15", "0.150", "1e-1", "1.5e-01", "0", "-0.0", "0.00001", "9.9E-10",
            ],
            vec!["0.16", "2e-1", "1.51e-1", "0.", "00", "-0.1", "1e0"],
        ),
        (
            json!({"minimum": -273.15}),
            vec!["-273.1", "-273", "-2.7315e2", "1e300", "5"],
            vec!["-273.16", "-274", "-2.7316e+2", "-1e3"],
        ),
        (
            json!({"maximum": 9999.99}),
            vec!["9999.9", "9999", "-1e9", "9.99e3"],
            vec!["10000", "1e4"],
        ),
        (
            json!({"exclusiveMinimum": 0}),
            vec!["0.001", "1e-9", "12.5E3"],
            vec!["0", "0.0", "-0", "-1", "0e3"],
        ),
        (
            json!({"maximum": 5, "exclusiveMaximum": true}),
            vec!["4.99"],
            vec!["5", "5.0"],
        ),
        (
            json!({"minimum": 1e-7, "maximum": 1.7976931348623157e308}),
            vec!["1", "0.0000001", "1e308", "1e-7"],
            vec!["0", "1e-8", "1.8e308", "1e309"],
        ),
        (
            json!({"minimum": 18_446_744_073_709_551_615_u64}),
            vec!["18446744073709551615"],
            vec!["18446744073709551614"],
        ),
        (
            json!({"multipleOf": 0.25, "maximum": 3}),
            vec!["2.25", "-0.5", "3"],
            vec!["2.3", "3.25"],
        ),
        (json!({"const": 0.1}), vec!["0.1"], vec!["0.10", "0.2"]),
        (
            json!({"enum": [100, -2.5]}),
            vec!["100", "100.0", "-2.5"],
            vec!["2.5", "10"],
        ),
        (
            json!({}),
            vec!["1e5", "-0", "12.50E-3"],
            vec!["01", "+1", ".5", "1."],
        ),
    ] {
        let mut schema = bounds;
        schema["type"] = json!("number");
        check(&schema, &allowed, &forbidden);
    }
}

#[test]
fn valid_integers_may_end() {
    let integer = json!({"type": "integer", "minimum": -3, "exclusiveMaximum": 120.5});
    check(
        &integer,
        &["-3", "0", "-0", "12", "120"],
        &["-4", "121", "1.0", "1e1"],
    );
    let multiple = json!({"type": "integer", "multipleOf": 7, "minimum": 10});
    check(&multiple, &["14", "70"], &["7", "15"]);
    refused(
        &json!({"properties": {"a/b": {"multipleOf": 0}}}),
        "`multipleOf` at #/properties/a~1b",
    );
    refused(
        &json!({"minimum": "1"}),
        "`minimum` at #: expected a number, found \"1\"",
    );
    refused(
        &json!({"type": "number", "minimum": 2, "maximum": 1}),
        "no text matches it",
    );
    // Longer texts would take minutes to plan.
    refused(
        &json!({"minLength": 99_999_999, "maxLength": 100_000_000}),
        "`minLength` at #: needs texts of at least 99999999 characters",
    );
    refused(
        &json!({"items": {"not": {"maxLength": 1_000_000}}}),
        "`maxLength` at #/items/not",
    );
    refused(
        &json!({"pattern": "^(a{1000}){1000}$"}),
        "`pattern` at #: \"^(a{1000}){1000}$\": needs texts of at least 1000000 bytes",
    );
}

#[test]
fn strings_keep_all_escapes() {
    let all = [
        r#""\u00e9""#,
        r#""\/""#,
        r#""\ud83d\ude00""#,
        r#""\u4F60""#,
        "\"é\u{7f}\"",
        r#""\b\f\n\r\t\"\\""#,
    ];
    check(
        &json!({"type": "string"}),
        &all,
        &[
            r#""\ud83d""#,
            r#""\ude00\ud83d""#,
            r#""\x41""#,
            "\"\n\"",
            r#""\u12""#,
        ],
    );
    let short = json!({"type": "string", "minLength": 1, "maxLength": 2});
    check(
        &short,
        &[r#""\ud83d\ude00\u0041""#, "\"éa\""],
        &["\"\"", r#""abc""#, r#""\u0041\u0042c""#],
    );
    let pattern = json!({"type": "string", "pattern": "^[a-zé😀]+$"});
    check(
        &pattern,
        &[r#""caf\u00e9""#, r#""a""#, r#""\uD83D\uDE00""#],
        &[r#""\u0041""#, r#""\u0061""#, r#""\ud83d\ude01""#, "\"\""],
    );
    let path = json!({"type": "string", "pattern": "a/b"});
    check(
        &path,
        &[r#""x a\/b""#, r#""a/b""#],
        &[r#""a\\b""#, r#""a\u002Fb.""#],
    );
    let word = json!({"enum": ["naïve", "a/b"]});
    check(
        &word,
        &[r#""na\u00EFve""#, r#""naïve""#, r#""a\/b""#],
        &[r#""na\u00eeve""#, r#""naive""#],
    );
    let member =
        json!({"type": "object", "properties": {"é": {"const": "x"}}, "additionalProperties": {"const": 1}});
    check(
        &member,
        &[r#"{"\u00e9":"x"}"#, r#"{"é": "x", "ab": 1}"#, r#"{"e":1}"#],
        &[
            r#"{"\u00e9":1}"#,
            r#"{"é":1}"#,
            r#"{"é":"\u0078"}"#,
            r#"{"\u0065":1}"#,
        ],
    );
    check(
        &json!({"type": "string", "pattern": "^a|b$"}),
        &[r#""ax""#, r#""xb""#],
        &[r#""xa""#, r#""bx""#],
    );
    check(
        &json!({"type": "string", "pattern": r"^\d{3}-(\w|\\)+$"}),
        &[r#""123-a\\""#],
        &[r#""12-a""#],
    );
    check(
        &json!({"type": "string", "pattern": r"\p{Lu}"}),
        &[r#""a\u00c9""#, "\"É\""],
        &["\"é\""],
    );
    refused(&json!({"items": {"pattern": "(?=a)"}}), "`pattern` at #/items");
    refused(&json!({"pattern": r"\bword"}), "`pattern` at #");
}

#[test]
fn white_space_is_bounded() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let blanks = |n| " ".repeat(n);
    let indented = format!("{{\n{}\"a\": 1\n}}", blanks(20));
    let (long, two) = (format!("{{{}\"a\":1}}", blanks(21)), "{\n\n\"a\":1}");
    check(
        &schema,
        &[&indented, "{\"a\":1}", "{\r\n\t\"a\" : 1}"],
        &[&long, two],
    );
    for (space, allowed) in [(WhiteSpace::Compact, "{\"a\":1}"), (WhiteSpace::Unlimited, &long)] {
        let text = schema.to_string();
        let options = SchemaOptions {
            json_space: space,
            ..SchemaOptions::default()
        };
        let mut grammar = Grammar::json_schema_with(&text, &options, tokenizer(), &[END as u32]).unwrap();
        assert!(ends(&mut grammar, allowed));
        assert_eq!(ends(&mut grammar, two), space == WhiteSpace::Unlimited);
    }
}

#[test]
fn references_and_formats_are_understood() {
    let schema = json!({
        "$defs": {"a/b": {"const": 1}, "a~c": {"const": 2}, "d e": {"const": 3}, "x": {"$anchor": "here", "const": 4}},
        "prefixItems": [{"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/a~0c"}, {"$ref": "#/$defs/d%20e"}, {"$ref": "#here"}],
        "type": "array", "minItems": 4, "items": false
    });
    check(&schema, &["[1,2,3,4]"], &["[2,2,3,4]", "[1,2,3]", "[1,2,3,4,5]"]);
    let tree = json!({"$id": "https://example.com/t", "type": "object", "additionalProperties": false,
        "properties": {"left": {"$ref": "#"}, "value": {"$ref": "https://example.com/t#/$defs/v"}}, "$defs": {"v": {"type": "null"}}});
    check(
        &tree,
        &[r#"{"left": {"left": {}, "value": null}}"#],
        &[r#"{"left": null}"#],
    );
    for (format, good, bad) in [
        ("date", "2024-02-29", "2024-13-01"),
        ("time", "23:59:60Z", "24:00:00Z"),
        ("date-time", "2024-02-29T01:02:03.5+01:00", "2024-02-29"),
        ("duration", "P1DT2H", "P"),
        ("email", "a.b@example.com", "a.example.com"),
        ("hostname", "example.com", "-a"),
        ("ipv4", "127.0.0.1", "256.0.0.1"),
        ("ipv6", "fe80::1", "1::2::3"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
        ("uri", "https://a.example/b?c=%20#d", "a b"),
        ("phone-number-of-mars", "anything", "\u{1}"),
    ] {
        check(
            &json!({"type": "string", "format": format}),
            &[&format!("{good:?}")],
            &[&format!("\"{bad}\"")],
        );
    }
    refused(&json!({"$ref": "#/nowhere"}), "`$ref` at #: \"#/nowhere\"");
    refused(
        &json!({"items": {"$ref": "https://example.com/other"}}),
        "`$ref` at #/items",
    );
    refused(&json!({"$ref": "#"}), "circular");
}

#[test]
fn negations_and_conditions_are_expressed() {
    check(
        &json!({"not": {"type": "string"}}),
        &["1", "null", "[]", "{\"a\": \"b\"}"],
        &["\"a\""],
    );
    check(
        &json!({"type": "string", "not": {"enum": ["a", "b"]}}),
        &["\"c\"", "\"ab\""],
        &["\"a\"", r#""\u0061""#],
    );
    check(
        &json!({"type": "number", "not": {"minimum": 3}}),
        &["2.9"],
        &["3"],
    );
    check(
        &json!({"type": "integer", "not": {"const": 0}}),
        &["1", "-1"],
        &["0"],
    );
    check(
        &json!({"not": {"required": ["a"]}, "type": "object"}),
        &["{}", "{\"b\":1}"],
        &["{\"a\":1}"],
    );
    let conditional = json!({
        "type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "x": {"type": "integer"}},
        "required": ["kind"], "additionalProperties": false,
        "if": {"properties": {"kind": {"const": "a"}}}, "then": {"required": ["x"]}, "else": {"properties": {"x": false}}
    });
    check(
        &conditional,
        &[r#"{"kind":"a","x":1}"#, r#"{"kind":"b"}"#],
        &[r#"{"kind":"a"}"#, r#"{"kind":"b","x":1}"#],
    );
}

#[test]
fn alternatives_and_dependencies_are_expressed() {
    let one = json!({"oneOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 3}]});
    check(&one, &["2", "6"], &["3", "5", "null"]);
    let tagged = json!({"oneOf": [
        {"type": "object", "properties": {"t": {"const": 1}}, "required": ["t"], "additionalProperties": false},
        {"type": "object", "properties": {"t": {"const": 2}, "u": {"type": "array", "items": {"type": "null"}}}, "required": ["t"]}]});
    check(
        &tagged,
        &[r#"{"t":1}"#, r#"{"t":2,"u":[null,null]}"#],
        &[r#"{"t":1,"u":[]}"#, r#"{"t":3}"#],
    );
    let distinct =
        json!({"type": "array", "uniqueItems": true, "minItems": 1, "items": {"enum": ["a", "b", 3]}});
    check(
        &distinct,
        &["[\"b\",\"a\"]", "[3]", "[\"a\",3,\"b\"]"],
        &["[]", "[\"a\",\"a\"]", "[\"a\",\"\\u0061\"]"],
    );
    check(
        &json!({"dependentRequired": {"a": ["b"]}, "type": "object"}),
        &["{}", "{\"a\":1,\"b\":2}"],
        &["{\"a\":1}"],
    );
    check(
        &json!({"type": "object", "propertyNames": {"pattern": "^x"}}),
        &["{\"xa\":1}"],
        &["{\"a\":1}"],
    );
    let numbers = json!({"type": "object", "patternProperties": {"^n": {"type": "integer"}}, "properties": {"no": {"maximum": 3}}, "additionalProperties": false});
    check(
        &numbers,
        &[r#"{"no":3,"n":12}"#, "{}"],
        &[r#"{"no":4}"#, r#"{"no":"x"}"#, r#"{"m":1}"#],
    );
}

#[test]
fn inexpressible_schemas_name_keyword_and_place() {
    for (schema, place) in [
        (
            json!({"properties": {"a": {"not": {"items": {"type": "string"}}}}}),
            "`items` at #/properties/a/not cannot be negated",
        ),
        (
            json!({"items": {"type": "array", "uniqueItems": true}}),
            "`uniqueItems` at #/items",
        ),
        (
            json!({"oneOf": [{"type": "array", "items": {"type": "null"}}, {"type": "array"}]}),
            "`oneOf` at #: its alternatives overlap",
        ),
        (
            json!({"contains": {"type": "null"}}),
            "`contains` at # is not supported",
        ),
        (
            json!({"unevaluatedProperties": false}),
            "`unevaluatedProperties` at #",
        ),
    ] {
        refused(&schema, place);
    }
}

#[test]
fn objects_and_arrays_have_the_right_sizes() {
    let members = |n: usize| (0..n).map(|i| format!("\"{i}\":0")).collect::<Vec<_>>().join(",");
    let sized = json!({"type": "object", "properties": {"0": {}, "1": {}, "2": {}}, "minProperties": 2, "maxProperties": 4, "additionalProperties": true});
    let texts: Vec<String> = (0..7).map(|n| format!("{{{}}}", members(n))).collect();
    check(
        &sized,
        &[&texts[2], &texts[3], &texts[4], "{\"1\":0,\"z\":1}"],
        &[&texts[0], &texts[1], &texts[5], &texts[6]],
    );
    for most in [0, 1, 2, 3, 7, 8, 13] {
        let mut grammar =
            grammar(&json!({"type": "array", "items": {"const": 1}, "minItems": most / 2, "maxItems": most}));
        for n in 0..most + 3 {
            let text = format!("[{}]", vec!["1"; n].join(","));
            assert_eq!(
                ends(&mut grammar, &text),
                (most / 2..=most).contains(&n),
                "{most}: {text}"
            );
        }
    }
    check(
        &json!({"type": "array", "prefixItems": [{"const": 1}, false], "items": {"const": 2}}),
        &["[]", "[1]"],
        &["[1,2]", "[2]"],
    );
    check(
        &json!({"const": {"a": [1, {"b": null}]}}),
        &[r#"{"a": [1, {"b": null}]}"#],
        &["{}", r#"{"a":[1]}"#],
    );
    check(
        &json!({"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"minimum": 3}}, "required": ["a"]}], "type": "object"}),
        &["{\"a\":3}"],
        &["{\"a\":2}", "{\"a\":3.5}", "{}"],
    );
    check(&json!(true), &["[{\"a\": [1e3, null]}, \"x\"]"], &["nul", "[1,]"]);
    refused(&json!(false), "no text matches it");
    refused(
        &json!({"type": "object", "required": ["a"], "properties": {"a": {"enum": []}}}),
        "no text matches it",
    );
}

#[test]
fn large_schemas_end() {
    let names: Vec<String> = (0..300).map(|i| format!("property_{i}")).collect();
    let properties: serde_json::Map<String, Value> = names
        .iter()
        .map(|n| (n.clone(), json!({"type": "string", "maxLength": 3})))
        .collect();
    check(
        &json!({"type": "object", "properties": properties, "additionalProperties": {}}),
        &["{\"property_7\":\"abc\",\"other\":{}}"],
        &["{\"property_7\":7}"],
    );
    check(
        &json!({"type": "array", "items": {"type": "integer"}, "maxItems": 30_000}),
        &["[1,2]"],
        &["[1,]"],
    );
    // Chains of references are followed without recursion.
    let mut definitions = serde_json::Map::new();
    for i in 0..3000 {
        definitions.insert(
            format!("d{i}"),
            json!({"type": "array", "items": {"$ref": format!("#/$defs/d{}", (i + 1) % 3000)}}),
        );
    }
    check(
        &json!({"$ref": "#/$defs/d0", "$defs": definitions}),
        &["[[[]]]"],
        &["[1]"],
    );
    let mut doubled = json!({"type": "string"});
    for _ in 0..30 {
        doubled = json!({"allOf": [doubled, {"anyOf": [{"type": "object"}, {"type": "string"}]}]});
    }
    check(&doubled, &["\"a\""], &["1"]);
    let options: Vec<Value> = (0..40)
        .map(|i| json!({"type": "object", "required": [format!("n{i}")]}))
        .collect();
    refused(
        &json!({"allOf": [{"anyOf": options}, {"anyOf": options}, {"anyOf": options}]}),
        "too many combinations",
    );
    let letters = ('a'..='z').map(|c| (c.to_string(), json!({"minLength": 1})));
    let patterns: serde_json::Map<String, Value> = letters.collect();
    refused(&json!({"patternProperties": patterns}), "overlap");
    refused(
        &json!({"not": {"const": vec![0; 20_000]}}),
        "too many combinations",
    );
    let consts: Vec<Value> = (0..501).map(|i| json!({"const": format!("{i}")})).collect();
    refused(&json!({"oneOf": consts}), "501 alternatives");
    check(
        &json!({"oneOf": consts.split_at(300).0}),
        &["\"7\""],
        &["\"300\""],
    );
}
