//! Undeclared members, names that repeat, and default bounds.

use super::*;

#[test]
fn undeclared_members_need_additional_properties() {
    let declared = json!({"type": "object", "properties": {"a": {}, "b": {}}});
    check(
        &declared,
        &["{}", r#"{"a":1}"#, r#"{"b":2}"#, r#"{"a":{"x":[{}]},"b":2}"#],
        &[
            r#"{"c":1}"#,
            r#"{"a":1,"c":1}"#,
            r#"{"a":1,"a":2}"#,
            r#"{"a":1,"\u0061":2}"#,
        ],
    );
    let required = json!({"type": "object", "properties": {"a": {}}, "required": ["z"]});
    check(
        &required,
        &[r#"{"a":1,"z":2}"#],
        &[r#"{"a":1}"#, r#"{"z":1,"y":2}"#],
    );
    // Each part of a conjunction may declare members.
    let both = json!({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}], "type": "object"});
    check(&both, &[r#"{"a":1,"b":2}"#], &[r#"{"a":1,"c":2}"#]);
    let open = json!({"allOf": [{"properties": {"a": {}}, "additionalProperties": true}, {"properties": {"b": {}}}], "type": "object"});
    check(&open, &[r#"{"a":1,"c":2}"#], &[r#"{"c":1,"c":2}"#]);
    let patterns = json!({"type": "object", "patternProperties": {"^x": {"type": "null"}}});
    check(
        &patterns,
        &[r#"{"x1":null,"x2":null}"#],
        &[r#"{"y":null}"#, r#"{"x":1}"#],
    );
    // Nothing is declared.
    check(&json!({"type": "object"}), &["{}", r#"{"a":{"b":1}}"#], &[]);
    check(&json!({}), &["{}", r#"[{"a":{"b":1}}]"#], &[]);
    for empty in [
        json!({"type": "object", "properties": {}}),
        json!({"type": "object", "additionalProperties": false}),
        json!({"type": "object", "properties": {"a": false}}),
        json!({"type": "object", "maxProperties": 0}),
        json!({"anyOf": [{"type": "object", "properties": {}}, false], "required": []}),
    ] {
        refused(&empty, "only the empty object {} matches it");
    }
    check(
        &json!({"type": ["object", "null"], "properties": {}}),
        &["{}", "null"],
        &[r#"{"a":1}"#],
    );
    check(
        &json!({"properties": {"a": {"type": "object", "properties": {}}}, "type": "object"}),
        &[r#"{"a":{}}"#],
        &[],
    );
    refused(
        &json!({"type": "object", "properties": {"a": {}}, "minProperties": 2}),
        "others need `additionalProperties`",
    );
}

/// Follows `wishes` byte by byte, where the grammar allows it, and takes the first byte that it
/// allows elsewhere. Ends where the text may end and nothing is left to wish.
fn written(grammar: &mut Grammar, wishes: &str) -> String {
    grammar.start().unwrap();
    let (mut text, mut wishes) = (Vec::new(), wishes.bytes().peekable());
    let mut refused = 0;
    while text.len() < 9000 {
        let mut logits = vec![0.0; 258];
        grammar.mask(&mut logits).unwrap();
        let allowed = |b: u8| logits[usize::from(b)] == 0.0;
        let next = match wishes.next_if(|b| allowed(*b)) {
            Some(byte) => {
                refused = 0;
                byte
            }
            None if logits[END] == 0.0 => break,
            None => {
                // After three other bytes, the next wish.
                refused = (refused + 1) % 4;
                wishes.next_if(|_| refused == 0);
                (0x21..=255).find(|b| allowed(*b)).unwrap()
            }
        };
        grammar.accept(u32::from(next)).unwrap();
        text.push(next);
    }
    String::from_utf8(text).unwrap()
}

#[test]
fn names_do_not_repeat() {
    let open = json!({"type": "object", "additionalProperties": {}});
    check(
        &open,
        &[
            r#"{"a":1,"b":{"a":1},"ab":[{"a":1},{"a":1}],"":0}"#,
            r#"{"a":"a\",\"b","b":"{\"a"}"#,
            r#"{"a":1,"\u00e9b":2}"#,
        ],
        &[
            r#"{"a":1,"a":2}"#,
            r#"{"":1,"":2}"#,
            r#"{"x":{"é":1,"\u00e9":2}}"#,
            r#"{"\ud83d\ude00":1,"😀":2}"#,
            r#"[{"n\/":1,"n/":1}]"#,
            r#"{"a":{"b":1},"a":1}"#,
        ],
    );
    // A repeated name changes into another one where it can, and does not begin where it cannot.
    let text = written(&mut grammar(&open), r#"{"ab":1,"ab":2}"#);
    assert_eq!(
        serde_json::from_str::<Value>(&text)
            .unwrap()
            .as_object()
            .unwrap()
            .len(),
        2,
        "{text}"
    );
    for names in [
        json!({"enum": ["a", "b"]}),
        json!({"pattern": "^[ab]$"}),
        json!({"pattern": "^(a|é)$"}),
        json!({"pattern": "^(a|😀)$"}),
        json!({"pattern": "^20(10|11)-01$"}),
        json!({"pattern": "^(ab|ac)$"}),
    ] {
        let schema = json!({"type": "object", "propertyNames": names, "additionalProperties": {"const": 1}});
        for wish in [
            r#"{"a":1,"a":1,"a":1}"#,
            r#"{"é":1,"\u00e9":1,"\u00e9":1}"#,
            r#"{"\ud83d\ude00":1,"\ud83d\ude00":1}"#,
            r#"{"2010-01":1,"2010-01":1,"2010-01":1}"#,
            r#"{"ab":1,"ab":1,"ab":1}"#,
        ] {
            let text = written(&mut grammar(&schema), wish);
            // The map would hide duplicates.
            let value: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(
                text.matches(':').count(),
                value.as_object().unwrap().len(),
                "{schema}: {text}"
            );
        }
    }
}

fn nines(count: usize) -> String {
    "9".repeat(count)
}

fn text(characters: usize) -> String {
    format!("\"{}\"", "é".repeat(characters))
}

fn list(count: usize) -> String {
    format!("[{}]", vec!["1"; count].join(","))
}

fn object(count: usize) -> String {
    let members: Vec<String> = (0..count).map(|i| format!("\"{i}\":1")).collect();
    format!("{{{}}}", members.join(","))
}

#[test]
fn values_without_bounds_get_some() {
    check(
        &json!({"type": "integer"}),
        &[&nines(40), &format!("-{}", nines(40))],
        &[&nines(41)],
    );
    check(
        &json!({"type": "number"}),
        &[&format!("{}.{}e-{}", nines(20), nines(18), nines(2))],
        &[&format!("{}.{}e-{}", nines(20), nines(18), nines(3))],
    );
    check(&json!({"type": "string"}), &[&text(4096)], &[&text(4097)]);
    check(&json!({"type": "array"}), &[&list(256)], &[&list(257)]);
    check(&json!({"type": "object"}), &[&object(256)], &[&object(257)]);
    check(
        &json!({"pattern": "^é+$", "type": "string"}),
        &[&text(4096)],
        &[&text(4097)],
    );
}

#[test]
fn bounds_of_the_schema_are_kept() {
    check(
        &json!({"type": "string", "maxLength": 5000}),
        &[&text(5000)],
        &[&text(5001)],
    );
    check(
        &json!({"type": "array", "maxItems": 300}),
        &[&list(300)],
        &[&list(301)],
    );
    check(
        &json!({"type": "array", "minItems": 300}),
        &[&list(300)],
        &[&list(301)],
    );
    check(
        &json!({"type": "array", "prefixItems": [{}, {}]}),
        &[&list(256), &list(2), "[]"],
        &[&list(257)],
    );
    check(
        &json!({"type": "object", "maxProperties": 270}),
        &[&object(270)],
        &[&object(271)],
    );
    check(
        &json!({"type": "integer", "minimum": 1e50}),
        &[&nines(51), &nines(80)],
        &["1", &nines(81)],
    );
    check(&json!({"const": 1e30}), &["1e30", "1e+30"], &["1"]);
}

#[test]
fn bounds_that_are_reached_are_reported() {
    let options = SchemaOptions {
        json_unbounded: true,
        ..SchemaOptions::default()
    };
    let mut lifted = Grammar::json_schema_with("{}", &options, tokenizer(), &[END as u32]).unwrap();
    for long in [nines(41), text(4097), list(257), object(257)] {
        assert!(ends(&mut lifted, &long));
        assert_eq!(lifted.reached(), []);
    }
    let mut bounded = grammar(&json!({}));
    for (long, bound) in [
        (nines(40), Some(DefaultBound::Digits)),
        (format!("[{}]", nines(40)), Some(DefaultBound::Digits)),
        (text(4096), Some(DefaultBound::Characters)),
        (list(256), Some(DefaultBound::Items)),
        (object(256), Some(DefaultBound::Items)),
        (format!("[{}, {}, {}]", nines(39), text(4095), list(255)), None),
    ] {
        assert!(ends(&mut bounded, &long));
        assert_eq!(bounded.reached(), Vec::from_iter(bound), "{long}");
    }
}

/// The default bounds at which `text` ends, which `schema` allows.
fn reached(schema: &Value, text: &str) -> Vec<DefaultBound> {
    let mut grammar = grammar(schema);
    assert!(ends(&mut grammar, text), "{schema}");
    grammar.reached()
}

/// Declarations of `count` members.
fn named(count: usize) -> serde_json::Map<String, Value> {
    (0..count).map(|i| (i.to_string(), json!({"const": 1}))).collect()
}

#[test]
fn bounds_of_the_schema_are_not_reported_as_defaults() {
    for (schema, text) in [
        (json!({"type": "array", "maxItems": 300}), list(300)),
        (json!({"type": "array", "maxItems": 256}), list(256)),
        (json!({"type": "array", "maxItems": 300}), list(256)),
        (json!({"type": "string", "maxLength": 5000}), text(4096)),
        (json!({"type": "string", "maxLength": 4096}), text(4096)),
        (json!({"enum": ["x", "é".repeat(4096)]}), text(4096)),
        (
            json!({"properties": {"a": {"maxLength": 4096}, "b": {"type": "string"}}}),
            format!("{{\"a\": {}}}", text(4096)),
        ),
        (
            json!({"type": "integer", "minimum": 5, "exclusiveMaximum": 1e40}),
            nines(40),
        ),
        (json!({"type": "object", "maxProperties": 256}), object(256)),
        // All members are declared.
        (json!({"type": "object", "properties": named(256)}), object(256)),
        (
            json!({"type": "object", "properties": named(300), "additionalProperties": {"const": 1}}),
            object(300),
        ),
        (
            json!({"type": "object", "properties": named(300), "additionalProperties": false}),
            object(256),
        ),
        (
            json!({"type": "array", "prefixItems": vec![json!({"const": 1}); 256], "items": false}),
            list(256),
        ),
    ] {
        assert_eq!(reached(&schema, &text), [], "{schema}");
    }
}

#[test]
fn bounds_of_the_schema_do_not_hide_defaults() {
    for (schema, text, bound) in [
        (
            json!({"type": "object"}),
            format!("{{{}: 1}}", text(4096)),
            DefaultBound::Characters,
        ),
        // A value of this length is none of the names.
        (
            json!({"additionalProperties": {"type": "string", "maxLength": 5000}}),
            format!("{{{}: \"\"}}", text(4096)),
            DefaultBound::Characters,
        ),
        (
            json!({"type": "array", "minItems": 300}),
            list(300),
            DefaultBound::Items,
        ),
        (
            json!({"type": "array", "prefixItems": [{}, {}]}),
            list(256),
            DefaultBound::Items,
        ),
        (
            json!({"properties": named(2), "additionalProperties": {"const": 1}}),
            object(258),
            DefaultBound::Items,
        ),
        (
            json!({"type": "integer", "minimum": 1e50}),
            nines(80),
            DefaultBound::Digits,
        ),
        (
            json!({"type": "integer", "minimum": 5, "maximum": 1e41}),
            nines(40),
            DefaultBound::Digits,
        ),
        // Short values of the schema do not matter.
        (
            json!({"anyOf": [{"enum": ["x", 3]}, {"type": "string"}, {"type": "number"}]}),
            text(4096),
            DefaultBound::Characters,
        ),
    ] {
        assert_eq!(reached(&schema, &text), [bound], "{schema}");
    }
}
