//! Results of Jinja 3.1, set up as in transformers, and templates that are rejected instead.

use super::hostile_tests::rendered;
use super::*;
use serde_json::json;

fn check(cases: &[(&str, &str)]) {
    let x = json!({
        "d": {"b": 1, "a": [1, {"c": "x'y"}], "é": null}, "l": [3, 1, 2, 2], "n": 3, "z": null,
        "objs": [{"k": "x", "v": 1}, {"k": "y", "v": 2}, {"k": "x", "v": 3}],
    });
    for (text, expected) in cases {
        let values: Values = [("x".to_owned(), x.clone())].into_iter().collect();
        let found = rendered((*text).to_owned(), values);
        assert_eq!(
            found.unwrap_or_else(|e| panic!("{text}: {}", e.chain())),
            *expected,
            "{text}"
        );
    }
}

#[test]
fn operators_and_numbers_are_those_of_python() {
    check(PERCENT);
    check(NUMBERS);
}

#[test]
fn methods_are_those_of_python() {
    check(TEXTS);
    check(LISTS);
}

#[test]
fn filters_and_tests_are_those_of_jinja() {
    check(FILTERS);
    check(TESTS);
}

#[test]
fn constants_and_blocks_are_those_of_jinja() {
    check(ESCAPES);
    check(WHOLE);
}

/// Python rejects these too, or their results are not supported.
#[test]
fn what_would_differ_is_refused() {
    for expression in [
        "'%s' % ()",
        "'%d' % 'x'",
        "'%s' % ('a', 'b')",
        "'%q' % 1",
        "'abc%' % 1",
        "5 % 0",
        "+'a'",
        "'abc'.index('z')",
        "'{}{}'.format(1)",
        "'{'.format(1)",
        "'{:5}'.format(none)",
        "'a'.split('')",
        "'a'.rjust(3, 'xy')",
        "'a'.upper(1)",
        "'a'.split(nope=1)",
        "','.join([1])",
        "'a'.nosuch()",
        "'ab'.upper",
        "[].append(1)",
        "{}.update({})",
        "(1, 2).copy()",
        "'aaa'|truncate(2)",
        "'aaa'|replace('a')",
        "'a'|indent(2, first=true, nope=1)",
        "[3, 'a']|sort",
        "[1, none]|max",
        "none|length",
        "nope|int",
        "nope|tojson",
        "range(2)|tojson",
        "range(100001)",
        "{'a b': 1}|xmlattr",
        "'a &amp; b'|striptags",
        "dict([1])",
        "cycler()",
        "'\\N{BULLET}'",
        "'\\ud83d'",
        "'\\x4'",
        "'٣'|int",
        "self",
        "[1, 2]|random",
        "'a b'|split",
        "'a'|lines",
        "['a']|map('#own', 'upper')|list",
        "x.n < 'a'",
    ] {
        let values: Values = [("x".to_owned(), json!({"n": 1}))].into_iter().collect();
        let found = rendered(format!("{{{{ {expression} }}}}"), values);
        assert!(found.is_err(), "{expression}: {found:?}");
    }
    for text in [
        "{% for i in none %}{% endfor %}",
        "{% for i in [1] %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
        "{% for i in [1] %}{% with a = 1 %}{% continue %}{% endwith %}{% endfor %}",
        "{% for i in [1] %}{% set loop = 2 %}{% endfor %}",
        "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    ] {
        assert!(rendered(text.to_owned(), Values::new()).is_err(), "{text}");
    }
}

const PERCENT: &[(&str, &str)] = &[
    ("{{ '%d items %s' % (3, 'x') }}", "3 items x"),
    (
        "{{ '%5.2f|%-6s|%06d|%+d' % (1.239, 'ab', 42, 7) }}",
        " 1.24|ab    |000042|+7",
    ),
    ("{{ '%s' % none ~ true }}", "NoneTrue"),
    ("{{ '%r %a' % ('it\\'s', 'é') }}", "\"it's\" '\\xe9'"),
    ("{{ '%d%%' % 5.9 }}", "5%"),
    ("{{ '%(a)s-%(b)03d' % {'a': 'x', 'b': 7} }}", "x-007"),
    ("{{ '%s' % [1, 'a'] }}", "[1, 'a']"),
    ("{{ '%*d|%.*f' % (5, 3, 2, 3.14159) }}", "    3|3.14"),
    (
        "{{ '%x %X %e %g %c' % (255, 255, 12345.678, 0.0001, 65) }}",
        "ff FF 1.234568e+04 0.0001 A",
    ),
    (
        "{{ '%.3s|%10s|%-4s|' % ('abcdef', 'ab', 'c') }}",
        "abc|        ab|c   |",
    ),
    ("{{ '%s: %s' | format('a', 1.0) }}", "a: 1.0"),
    ("{{ '%(k)s'|format(k=(1,)) }}", "(1,)"),
    (
        "{{ [7 % 3, -7 % 3, 7 % -3, 7.5 % 2, -7.5 % 2] }}",
        "[1, 2, -2, 1.5, 0.5]",
    ),
];

const NUMBERS: &[(&str, &str)] = &[
    (
        "{{ [+1, -+3, +3 ** 2, 1 + +1, x.l[+1], +true] }}",
        "[1, -3, 9, 2, 1, 1]",
    ),
    (
        "{{ ['x'|int, ' 4_2 '|int, '12.7'|int, '1e3'|int, 'nan'|int, none|int(5)] }}",
        "[0, 42, 12, 1000, 0, 5]",
    ),
    (
        "{{ ['0x1f'|int(0, 16), '1f'|int(base=16), 'x'|int(default=3), true|int] }}",
        "[31, 31, 3, 1]",
    ),
    (
        "{{ ['x'|float, ' 1_0.5'|float, 'z'|float(default=2.5)] }}",
        "[0.0, 10.5, 2.5]",
    ),
    (
        "{{ [2.5|round, 2.567|round(2), 2.1|round(method='ceil'), 5|round, 5|round(method='ceil'), 1250|round(-2)] }}",
        "[2.0, 2.57, 3.0, 5, 5.0, 1200]",
    ),
    (
        "{{ [1e16, 1e-5, -0.0, 1.0, 2 ** 64, 100.5] }}",
        "[1e+16, 1e-05, -0.0, 1.0, 18446744073709551616, 100.5]",
    ),
    (
        "{{ [true|abs, -5.5|abs, 'a' * -1, true + true] }}",
        "[1, 5.5, '', 2]",
    ),
    (
        "{{ [1500|filesizeformat(true), 1|filesizeformat, 1000000|filesizeformat] }}",
        "['1.5 KiB', '1 Byte', '1.0 MB']",
    ),
];

const TEXTS: &[(&str, &str)] = &[
    (
        "{{ '{!r}|{:>{w}}|{:.1%}|{a[b]}|{{}}|{:5}|'.format('x', 'a', 0.256, true, w=4, a={'b': none}) }}",
        "'x'|   a|25.6%|None|{}|    1|",
    ),
    (
        "{{ 'a,b,c'.rsplit(',', 1) + 'a b  c'.split(maxsplit=1) + ' a b '.rsplit() }}",
        "['a,b', 'c', 'a', 'b  c', 'a', 'b']",
    ),
    (
        "{{ 'a-b-c'.partition('-') + 'a-b-c'.rpartition('-') + 'abc'.partition('-') }}",
        "('a', '-', 'b-c', 'a-b', '-', 'c', 'abc', '', '')",
    ),
    (
        "{{ 'abc'.removeprefix('ab') ~ 'abc'.removesuffix('c') ~ 'abc'.removeprefix('x') }}",
        "cababc",
    ),
    (
        "{{ ['abc'.index('c'), 'abcabc'.rindex('a'), 'abcabc'.find('a', 1), 'abc'.find('z'), 'aaa'.count('a', 1)] }}",
        "[2, 3, 3, -1, 2]",
    ),
    (
        "{{ ['7'.zfill(3), '-7'.zfill(4), 'a'.center(4, '*'), 'ab'.center(5), 'a'.ljust(3, '.'), 'a'.rjust(3)] }}",
        "['007', '-007', '*a**', '  ab ', 'a..', '  a']",
    ),
    (
        "{{ 'ab\\tc'.expandtabs(4) ~ 'aXb'.swapcase() ~ \"it's 3rd\".title() }}",
        "ab  cAxBIt'S 3Rd",
    ),
    (
        "{{ 'a\\nb\\r\\nc\\x0bd\\u2028e'.splitlines() + 'a\\n\\nb\\n'.splitlines(keepends=true) }}",
        "['a', 'b', 'c', 'd', 'e', 'a\\n', '\\n', 'b\\n']",
    ),
    (
        "{{ 'abc'.startswith(('z', 'a')) and not 'abc'.startswith('b', 2) }}",
        "True",
    ),
    (
        "{{ ['12'.isdecimal(), '²'.isdigit(), '½'.isnumeric(), 'a_1'.isidentifier(), 'Ab Cd'.istitle(), 'a\\n'.isprintable()] }}",
        "[True, True, True, True, True, False]",
    ),
    (
        "{{ ['\\x1c a \\x1f'.strip(), 'xaxb'.lstrip('xa'), 'aXbXc'.replace('X', '', 1), 'abc'.replace('', '-', 2)] }}",
        "['a', 'b', 'abXc', '-a-bc']",
    ),
    ("{{ 'é\"'.encode() ~ '-'.join(x.d) }}", "b'\\xc3\\xa9\"'b-a-é"),
];

const LISTS: &[(&str, &str)] = &[
    (
        "{{ [x.l.index(1), x.l.index(2, 3), x.l.count(2), (1, 2, 2).count(2), x.l.copy(), x.d.copy()] }}",
        "[1, 3, 2, 2, [3, 1, 2, 2], {'b': 1, 'a': [1, {'c': \"x'y\"}], 'é': None}]",
    ),
    (
        "{{ [x.d.get('q'), x.d.get('q', 7), dict([('a', 1)], c=3), dict(x.d, **{'b': 5}).b] }}",
        "[None, 7, {'a': 1, 'c': 3}, 5]",
    ),
    (
        "{{ x.d.items() ~ x.d.keys() ~ x.d.values() }}",
        "dict_items([('b', 1), ('a', [1, {'c': \"x'y\"}]), ('é', None)])dict_keys(['b', 'a', 'é'])dict_values([1, [1, {'c': \"x'y\"}], None])",
    ),
    (
        "{{ [('a', 1), (1,), (), (1, 2)[1:], (1, 2) + (3,)] }}",
        "[('a', 1), (1,), (), (2,), (1, 2, 3)]",
    ),
    (
        "{{ x.d.items()|list ~ x.d|dictsort }}",
        "[('b', 1), ('a', [1, {'c': \"x'y\"}]), ('é', None)][('a', [1, {'c': \"x'y\"}]), ('b', 1), ('é', None)]",
    ),
    (
        "{{ x.objs|groupby('k') ~ x.objs|groupby(attribute='k')|map(attribute='grouper')|list }}",
        "[('x', [{'k': 'x', 'v': 1}, {'k': 'x', 'v': 3}]), ('y', [{'k': 'y', 'v': 2}])]['x', 'y']",
    ),
    (
        "{{ [{'k': 'b'}, {'k': 'B'}, {'k': 'a'}]|groupby('k')|map('first')|list }}",
        "['a', 'b']",
    ),
    (
        "{{ [x.l|batch(3, fill_with='x')|list, x.l|slice(3, 'x')|list, ['A', 'a']|max, ['é', 'z', 'É']|sort] }}",
        "[[[3, 1, 2], [2, 'x', 'x']], [[3, 1], [2, 'x'], [2, 'x']], 'A', ['z', 'é', 'É']]",
    ),
    (
        "{{ [x.l|sort(true), x.objs|sort(attribute='k,v')|map(attribute='v')|list, ['a', 'A', 'b']|unique|list] }}",
        "[[3, 2, 2, 1], [1, 3, 2], ['a', 'b']]",
    ),
    (
        "{{ ['1', 'x']|map('int', default=7)|list ~ x.objs|map(attribute='q', default=0)|list }}",
        "[1, 7][0, 0, 0]",
    ),
    (
        "{{ [range(3), range(0, 10, 5), namespace(a=1), range(5)|list] }}",
        "[range(0, 3), range(0, 10, 5), <Namespace {'a': 1}>, [0, 1, 2, 3, 4]]",
    ),
    (
        "{{ {1: 2, none: 3, 1.5: (4,)}|tojson ~ x.l|tojson(indent='--') ~ {'b': 1, 'a': 2}|tojson(sort_keys=true) }}",
        "{\"1\": 2, \"null\": 3, \"1.5\": [4]}[\n--3,\n--1,\n--2,\n--2\n]{\"a\": 2, \"b\": 1}",
    ),
    (
        "{{ 'a\\x7fé\\u2028'|tojson(true) ~ 'a\\u2028'|tojson }}",
        "\"a\\u007f\\u00e9\\u2028\"\"a\u{2028}\"",
    ),
    (
        "{{ ['\\u2028', '\\x7f', '\\xa0', 'é', '\\u200b', '\\U000e0001'] }}",
        "['\\u2028', '\\x7f', '\\xa0', 'é', '\\u200b', '\\U000e0001']",
    ),
];

const FILTERS: &[(&str, &str)] = &[
    (
        "{{ [nope|length, nope|items|list, nope|first is defined, ''|d('a', boolean=true), nope|d(default_value='b')] }}",
        "[0, [], False, 'a', 'b']",
    ),
    (
        "{{ ['foo bar baz qux'|truncate(9), 'foo bar baz qux'|truncate(9, true), 'foo bar baz'|truncate(length=9, end='…', leeway=0)] }}",
        "['foo...', 'foo ba...', 'foo bar…']",
    ),
    (
        "{{ ['aaa'|replace('a', 'b', 2), 'aaa'|replace(old='a', new='c', count=1), 123|replace(2, 9)] }}",
        "['bba', 'caa', '193']",
    ),
    (
        "{{ ['a b&c/d'|urlencode, {'a b': 'c&d'}|urlencode, '<b>x</b>  y'|striptags, 'abc'|center(7)] }}",
        "['a%20b%26c/d', 'a+b=c%26d', 'x y', '  abc  ']",
    ),
    (
        "{{ [\"don't stop_me 3x\"|wordcount, 'one two three four'|wordwrap(9), 'abcdefghij kl'|wordwrap(4)] }}",
        "[4, 'one two\\nthree\\nfour', 'abcd\\nefgh\\nij\\nkl']",
    ),
    (
        "{{ [{'a': 'x\"y', 'b': none}|xmlattr, 'ab'|pprint, '<\\'\"/&>'|e, '<'|e|forceescape] }}",
        "[' a=\"x&#34;y\"', \"'ab'\", Markup('&lt;&#39;&#34;/&amp;&gt;'), Markup('&amp;lt;')]",
    ),
    (
        "{{ 'a\\n\\nb'|indent(width='> ', first=true) ~ 'a\\nb'|indent(2, blank=true) }}",
        "> a\n\n> ba\n  b",
    ),
    (
        "{{ [1, none, true, 1.0, [2]]|join(' ') ~ x.objs|join(d='-', attribute='k') }}",
        "1 None True 1.0 [2]x-y-x",
    ),
    (
        "{{ 'a' ~ true ~ none ~ 1.0 ~ [1] ~ (1, 2) }}",
        "aTrueNone1.0[1](1, 2)",
    ),
];

const TESTS: &[(&str, &str)] = &[
    (
        "{{ ['a' is sequence, {} is sequence, 5 is sequence, x.d.items() is sequence, namespace() is mapping, none is iterable] }}",
        "[True, True, False, False, False, False]",
    ),
    (
        "{{ [range is callable, 5 is callable, cycler(1) is callable, joiner() is callable, 'a'.upper is callable] }}",
        "[True, False, False, True, True]",
    ),
    (
        "{{ ['upper' is filter, 5 is filter, 'odd' is test, 4 is divisibleby(num=2), 5 is upper, 'ABC' is upper] }}",
        "[True, False, True, True, False, True]",
    ),
    (
        "{{ [x.d.items is defined, x.d.b is defined, {'items': 1}.items is mapping, {'items': 1}['items'], {'items': 1}.items()|list] }}",
        "[True, True, False, 1, [('items', 1)]]",
    ),
];

const ESCAPES: &[(&str, &str)] = &[
    ("{{ '\\a\\v\\b\\f'|tojson }}", "\"\\u0007\\u000b\\b\\f\""),
    ("{{ '\\/\\q\\d' ~ '\\é' }}", "\\/\\q\\d\\xe9"),
    ("{{ '\\101\\60\\x5c\\u0027\\U0001F600' }}", "A0\\'😀"),
    ("{{ 'a\\\nb' ~ 'c\nd' }}", "abc\nd"),
    ("{{ 'a' 'b\\n' \"c\\\"'\" }}", "ab\nc\"'"),
];

const WHOLE: &[(&str, &str)] = &[
    (
        "{% set c = cycler('a','b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}",
        "abab",
    ),
    ("{% set j = joiner('|') %}{{ j() }}a{{ j() }}b", "a|b"),
    (
        "{% set q = 1 %}{% generation %}{{ q }}{% set q = 2 %}{{ q }}{% endgeneration %}{{ q }}",
        "121",
    ),
    (
        "{{ '{% generation %}' }}{% raw %}{% generation %}{% endraw %}{%- generation -%} a {%- endgeneration %}\nb",
        "{% generation %}{% generation %}ab",
    ),
    (
        "{% set loop = 1 %}{{ loop }}{% for i in [1] %}{{ loop.index }}{% endfor %}{{ loop }}",
        "111",
    ),
    (
        "{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f(*[5], **{'b': 6}) }}{{ f(*(7, 8)) }}",
        "5678",
    ),
    (
        "{% macro v(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ v(1, 2, 3, 4, c=5) }}{{ v() }}{{ v(*[1, 2, 3], **{'z': 1}) }}",
        "12(3, 4){'c': 5}2(){}12(3,){'z': 1}",
    ),
    (
        "{% macro v() %}{{ kwargs }}{{ caller() }}{% endmacro %}{% call v(z=2) %}c{% endcall %}",
        "{'z': 2}c",
    ),
    (
        "{% macro v(a) %}{{ a }}{{ varargs }}{% endmacro %}{% set w = v %}{{ w(1, 2) }}{{ w(*[3]) }}",
        "1(2,)3()",
    ),
    ("{% set f = x.d.get %}{{ f('b') }}{{ f('q', 7) }}", "17"),
    (
        "{% for k, v in {'items': 1, 'get': 2}.items() %}{{ k }}{{ v }}{% endfor %}",
        "items1get2",
    ),
    (
        "{% autoescape true %}{{ '<\\'\"/&>' }}{{ '<'|safe }}{{ [\"<'\"] }}{% endautoescape %}",
        "&lt;&#39;&#34;/&amp;&gt;<[&#34;&lt;&#39;&#34;]",
    ),
];
