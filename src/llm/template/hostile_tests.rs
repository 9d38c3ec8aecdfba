//! Tests with templates that try to take the host down, and that what guards add changes nothing.

use super::*;
use serde_json::json;

/// A stack that the expressions below would overflow.
const SMALL_STACK: usize = 1 << 20;

fn template(text: &str) -> Result<ChatTemplate> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("chat_template.jinja"), text).unwrap();
    ChatTemplate::load(&ModelFolder::open(dir.path()).unwrap())
}

pub(super) fn rendered(text: String, values: Values) -> Result<String> {
    let thread = std::thread::Builder::new().stack_size(SMALL_STACK);
    let work = move || {
        let mut template = template(&text)?;
        // Smaller than by default, so that the tests are quick.
        let limits = Limits {
            template_output: 2 << 20,
            ..Limits::default()
        };
        template.set_limits(limits);
        template.render(&[Message::user("Hi")], &values, true, &Cancel::default())
    };
    thread.spawn(work).unwrap().join().unwrap()
}

fn kind(text: impl Into<String>) -> ErrorKind {
    let text = text.into();
    let start: String = text.chars().take(60).collect();
    match rendered(text, Values::new()) {
        Ok(text) => panic!("{start}: rendered {} bytes", text.len()),
        Err(e) => e.kind(),
    }
}

/// Repeats `step`, which may use `ns.x`, after `ns.x = start`.
fn looped(start: &str, step: &str, then: &str) -> String {
    let set = "{% set ns = namespace(x=START) %}{% for i in range(9999) %}{% set ns.x = STEP %}{% endfor %}";
    set.replace("START", start).replace("STEP", step) + then
}

#[test]
fn templates_without_end_exceed_their_steps() {
    for text in [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{% for a in range(99999) %}{% endfor %}{% endmacro %}{% for a in range(99999) %}{{ f() }}{% endfor %}",
    ] {
        assert_eq!(kind(text), ErrorKind::LimitExceeded, "{text}");
    }
}

#[test]
fn values_without_bound_are_refused() {
    let long = "{% set s = 'x' * 1000000 %}{% for a in range(9999) %}";
    for text in [
        looped("'x'", "ns.x ~ ns.x", ""),
        looped("'x'", "ns.x + ns.x", ""),
        looped("[1]", "ns.x + ns.x", ""),
        looped("[1]", "ns.x * 2", ""),
        looped("[1]", "[ns.x, ns.x]", "{{ ns.x }}"),
        looped("[1]", "{'a': ns.x, 'b': ns.x}", "{{ ns.x | tojson }}"),
        "{{ '%2000000000d' | format(3) }}".to_owned(),
        "{{ '%*d' | format(2000000000, 3) }}".to_owned(),
        "{{ '%.2000000000f' | format(3) }}".to_owned(),
        "{{ '{:>2000000000}'.format(3) }}".to_owned(),
        "{{ ('{0}' * 1000).format('x' * 1000000) }}".to_owned(),
        "{{ ['%2000000000d'] | map('format', 3) | list }}".to_owned(),
        "{{ ['a'] | map('indent', 2000000000) | list }}".to_owned(),
        "{{ ['x' * 9999] | map('replace', 'x', 'y' * 99999) | list }}".to_owned(),
        "{{ [1] | batch(2000000000, 0) | list | length }}".to_owned(),
        "{{ [1] | slice(2000000000) | list | length }}".to_owned(),
        "{{ 'a\nb' | indent(2000000000) }}".to_owned(),
        "{{ ('x' * 100000).replace('x', 'y' * 100000) | length }}".to_owned(),
        "{{ ('x' * 100000) | replace('', 'y' * 100000) | length }}".to_owned(),
        "{{ range(99999) | join('x' * 100000) }}".to_owned(),
        "{{ ('x' * 100000).join('y' * 99999) }}".to_owned(),
        "{{ 'x' * 99999999 ~ 'x' * 99999999 }}".to_owned(),
        "{{ (1, 2, 3) * 30000000 }}".to_owned(),
        "{{ '%*d' % (2000000000, 3) }}".to_owned(),
        "{{ '%2000000000s' % 3 }}".to_owned(),
        "{{ ('%(a)s' * 1000) % {'a': 'x' * 1000000} }}".to_owned(),
        "{{ 'a'.center(2000000000) }}".to_owned(),
        "{% set f = '{:>2000000000}'.format %}{{ f(3) }}".to_owned(),
        "{% set f = ('x' * 1000000).count %}{% for a in range(9999) %}{% set n = f('x') %}{% endfor %}"
            .to_owned(),
        "{{ '7'.zfill(2000000000) }}".to_owned(),
        "{{ ('\t' * 1000).expandtabs(2000000000) }}".to_owned(),
        "{{ ('x' * 100000) | replace(old='x', new='y' * 100000) | length }}".to_owned(),
        "{{ ('x\n' * 10000) | indent(width=1000000) }}".to_owned(),
        "{{ ('x ' * 10000) | wordwrap(1, wrapstring='y' * 1000000) }}".to_owned(),
        "{{ [1] | slice(slices=2000000000) | list | length }}".to_owned(),
        "{{ range(99999) | join(d='x' * 100000) }}".to_owned(),
        format!("{long}{{{{ s }}}}{{% endfor %}}"),
        format!("{{% set x %}}{long}{{{{ s }}}}{{% endfor %}}{{% endset %}}"),
        format!(
            "{{% set x %}}{long}{}{{% endfor %}}{{% endset %}}",
            "y".repeat(500_000)
        ),
        format!("{long}{{% if s ~ 'a' < s ~ 'b' %}}{{% endif %}}{{% endfor %}}"),
        format!("{long}{{% if 'y' in s %}}{{% endif %}}{{% endfor %}}"),
        format!("{long}{{% set d = {{s: 1}} %}}{{% endfor %}}"),
        format!("{long}{{% for c in s %}}{{% break %}}{{% endfor %}}{{% endfor %}}"),
        format!("{long}{{% set t = s | upper %}}{{% endfor %}}"),
        format!("{long}{{% if s is lower %}}{{% endif %}}{{% endfor %}}"),
        "{% set x = 'x' %}".to_owned() + &"{% set x = x ~ x %}".repeat(40),
        "{% set x = ['x'] %}".to_owned() + &"{% set x = x * 9 %}".repeat(40),
        "{{ [range(9999) | list] | tojson(separators=('x' * 100000, ':')) | length }}".to_owned(),
        "{{ [range(9999) | list] | tojson(indent='x' * 100000) | length }}".to_owned(),
        "{{ (['x' * 1000000] * 1000) | map('upper') | list | length }}".to_owned(),
        "{{ (['x' * 1000000] * 1000) | map('map', 'upper') | list | length }}".to_owned(),
        "{% set m = {'x' * 1000000: 1} %}{{ ([{'a': m}] * 9999) | selectattr('a', 'eq', {'b': 1}) | list }}"
            .to_owned(),
    ] {
        assert_eq!(kind(text.clone()), ErrorKind::LimitExceeded, "{text:.80}");
    }
}

#[test]
fn deep_templates_and_values_are_refused() {
    for text in [
        format!("{{{{ 1{} }}}}", "+1".repeat(6000)),
        format!("{{{{ 1{} }}}}", "+1".repeat(25_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(50_000)),
        format!("{{{{ messages{} }}}}", "|list".repeat(100_000)),
        format!("{{{{ messages{} }}}}", ".a".repeat(100_000)),
        format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(50_000)),
        looped("[1]", "[ns.x]", ""),
        looped("[1]", "(ns.x,)", ""),
        looped("[1]", "dict(x=ns.x)", ""),
        looped("[1]", "ns.x | batch(1)", ""),
        looped("[[1]]", "ns.x | map('batch', 1) | list", ""),
    ] {
        assert_eq!(kind(text.clone()), ErrorKind::LimitExceeded, "{text:.80}");
    }
    // Lists that would be lazy are not nested.
    for step in ["ns.x[0:]", "ns.x[::-1]", "ns.x | reverse"] {
        assert!(
            rendered(looped("[1]", step, "{{ ns.x }}"), Values::new()).is_ok(),
            "{step}"
        );
    }
    // Cycles would never be freed.
    for text in [
        "{% set ns.x = ns %}",
        "{% set ns.x = [{'a': ns}] %}",
        "{% set ns.x = cycler(ns) %}",
        "{% set ns.x = [ns].index %}",
        "{% set ns.x = cycler(1) %}{% set ns.x = cycler(ns.x) %}",
    ] {
        let text = format!("{{% set ns = namespace() %}}{text}{{{{ ns }}}}");
        assert_eq!(kind(text), ErrorKind::TemplateRefused);
    }
    assert_eq!(
        kind("{% block b %}{{ self.b() }}{% endblock %}"),
        ErrorKind::TemplateRefused
    );
    assert_eq!(
        kind("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
        ErrorKind::TemplateRefused
    );
    assert_eq!(
        kind("{% for a in [1] %}{{ loop.cycle() }}{% endfor %}"),
        ErrorKind::TemplateRefused
    );
    let mut deep = json!(1);
    for _ in 0..250 {
        deep = json!([deep]);
    }
    let values: Values = [("tools".to_owned(), deep)].into_iter().collect();
    let e = rendered("{{ tools }}".to_owned(), values).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::LimitExceeded);
}

#[test]
fn guards_change_no_result() {
    for (text, expected) in [
        (
            "{{ [1, 2, 3][1:] }}{{ 'abc'[::-1] }}{{ 'abc'[-1] }}",
            "[2, 3]cbac",
        ),
        (
            "{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}",
            "a1",
        ),
        (
            "{{ [1] + [2] }}{{ 'a' * 3 }}{{ 3 * 'b' }}{{ [1] * 2 }}",
            "[1, 2]aaabbb[1, 1]",
        ),
        (
            "{{ 2 * 3 * 4 }} {{ 2 ** 3 * 2 }} {{ 7 // 2 * 2 }} {{ 1.5 * 2 }} {{ 2 * -1 }}",
            "24 16 6 3.0 -2",
        ),
        (
            "{{ 1 < 2 < 3 }}{{ 3 < 2 < 3 }}{{ 'a' not in 'abc' }}{{ 2 in [1, 2] }}",
            "TrueFalseFalseTrue",
        ),
        (
            "{% for i in range(9) if i > 5 and i < 8 %}{{ i }}{% endfor %}",
            "67",
        ),
        (
            "{% for x in [1, [2, 3]] recursive %}{{ loop(x) if x is sequence else x }}{% endfor %}",
            "123",
        ),
        (
            "{% macro m(a, b=2) %}{{ a * b }}{% endmacro %}{{ m(3) }}{{ m(3, b=4) }}",
            "612",
        ),
        (
            "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}x{% endcall %}",
            "<x>",
        ),
        (
            "{% set x, y = (1, 2) %}{{ x }}{{ y }}{% set z | upper %}q{% endset %}{{ z }}",
            "12Q",
        ),
        (
            "{% for i in [1, 2] %}{{ loop.cycle('a', 'b') }}{% else %}none{% endfor %}",
            "ab",
        ),
        ("{{ '%5d' | format(3) }}{{ '{:>3}'.format('a') }}", "    3  a"),
        ("{{ '{:{}}|'.format('a', 3) }}", "a  |"),
        ("{{ (-9223372036854775807 - 1) % -1 }}", "0"),
        (
            "{{ ['b', 'a'] | sort | join('-') }}{{ [{'n': 1}] | map(attribute='n') | list }}",
            "a-b[1]",
        ),
        (
            "{{ [{'n': 1}, {'n': 2}] | selectattr('n', 'eq', 2) | list | length }}",
            "1",
        ),
        (
            "{{ '  x ' | trim }}{{ 'xay'.strip('xy') }}{{ 'a,b'.split(',')[-1] }}",
            "xab",
        ),
        (
            "{{ messages[0]['content'] }}{{ messages[0].get('none', 'no') }}",
            "Hino",
        ),
        ("{% block b %}x{% endblock %}{{ self.b() }}", "xx"),
    ] {
        let found =
            rendered(text.to_owned(), Values::new()).unwrap_or_else(|e| panic!("{text}: {}", e.chain()));
        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn limits_and_cancel_end_a_rendering() {
    let mut short = template("{% for a in range(100) %}0123456789{% endfor %}").unwrap();
    let render = |template: &ChatTemplate, cancel: &Cancel| {
        template
            .render(&[Message::user("")], &Values::new(), true, cancel)
            .map_err(|e| e.kind())
    };
    let never = Cancel::default();
    assert_eq!(render(&short, &never).unwrap().len(), 1000);
    let limits = Limits {
        template_output: 999,
        ..Limits::default()
    };
    short.set_limits(limits);
    assert_eq!(render(&short, &never), Err(ErrorKind::LimitExceeded));
    let limits = Limits {
        template_steps: 100,
        ..Limits::default()
    };
    short.set_limits(limits);
    assert_eq!(render(&short, &never), Err(ErrorKind::LimitExceeded));
    let limits = Limits {
        template_steps: u64::MAX,
        ..Limits::default()
    };
    short.set_limits(limits);
    assert_eq!(render(&short, &never).unwrap().len(), 1000);
    never.cancel();
    assert_eq!(render(&short, &never), Err(ErrorKind::Interrupted));
}

#[test]
fn template_files_are_regular_and_small() {
    assert_eq!(
        template(&"x".repeat(1 << 20)).map(|_| ()).map_err(|e| e.kind()),
        Ok(())
    );
    let large = template(&"x".repeat((1 << 20) + 1)).err().unwrap();
    assert_eq!(large.kind(), ErrorKind::LimitExceeded);
    let dir = tempfile::tempdir().unwrap();
    let config = json!({"chat_template": "x".repeat((1 << 20) + 1)}).to_string();
    std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
    let folder = ModelFolder::open(dir.path()).unwrap();
    assert_eq!(
        ChatTemplate::load(&folder).err().unwrap().kind(),
        ErrorKind::LimitExceeded
    );
    std::fs::create_dir(dir.path().join("chat_template.jinja")).unwrap();
    assert_eq!(
        ChatTemplate::load(&folder).err().unwrap().kind(),
        ErrorKind::InvalidFile
    );
}
