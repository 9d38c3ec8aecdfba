//! The page that `tlite inspect --html` writes, opened in headless Chromium: its numbers are those
//! of the library at lengths that neither was printed for, and names from the model stay text.

use std::path::Path;
use tlite::cli::page::{About, render};
use tlite::inspect::{PlanReport, Report, Request, inspect};
use tlite_testing::browser::opened;
use transformer_lite::unstable::error::Stage;
use transformer_lite::unstable::graph::onnx::write::{ModelWriter, NodeSpec, Size};
use transformer_lite::unstable::plan::Padding;
use transformer_lite::unstable::shape::{Bindings, Constraints, Dim, Symbol};
use transformer_lite::unstable::tensor::DType;

fn page(report: &Report) -> String {
    let about = About {
        kind: "inspect",
        ..About::default()
    };
    render(report, &about).unwrap()
}

/// The number of bytes that the element of this id shows.
fn bytes(dom: &str, id: &str) -> u64 {
    let element = dom
        .split(&format!("id=\"{id}\""))
        .nth(1)
        .unwrap_or_else(|| panic!("no element {id}"));
    let number = element
        .split("data-bytes=\"")
        .nth(1)
        .and_then(|t| t.split('"').next());
    number
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("no bytes in {id}"))
}

/// Arena, largest live set and sum of all tensors of a plan with these lengths, from its
/// expressions.
fn expected(plan: &PlanReport, lengths: &[(&str, i64)]) -> [u64; 3] {
    let mut bindings = Bindings::new();
    for (name, v) in lengths {
        bindings.set(&Symbol::parse(name).unwrap(), *v);
    }
    for (name, v) in &plan.fixed {
        bindings.set(&Symbol::parse(name).unwrap(), *v);
    }
    if let Some(p) = &plan.padding {
        let symbol = Symbol::parse(&p.symbol).unwrap();
        let padding = Padding {
            symbol: symbol.clone(),
            beyond: p.beyond,
            multiple: p.multiple,
        };
        let padded = padding.apply(bindings.get(&symbol).unwrap(), plan.bounds[&p.symbol]);
        bindings.set(&symbol, padded);
    }
    let at = |text: &str| u64::try_from(Dim::parse(text).unwrap().eval(&bindings).unwrap()).unwrap();
    let own = || {
        plan.tensors
            .iter()
            .filter(|t| t.view_of.is_none() && t.in_place_of.is_none())
    };
    let live = (0..=plan.steps.len()).map(|s| {
        own()
            .filter(|t| t.first <= s && s <= t.last)
            .map(|t| at(&t.size).max(8))
            .sum::<u64>()
    });
    [
        at(&plan.arena_formula),
        live.max().unwrap(),
        plan.tensors.iter().map(|t| at(&t.size).max(8)).sum(),
    ]
}

#[track_caller]
fn agrees(report: &Report, plan: usize, lengths: &[(&str, i64)]) {
    let wanted = expected(&report.plans[plan], lengths);
    let place: Vec<String> = lengths.iter().map(|(n, v)| format!("{n}={v}")).collect();
    let place = format!("#plan={}&{}", report.plans[plan].name, place.join("&"));
    let dom = opened(&page(report), &place);
    let found = ["arena-now", "live-now", "sum-now"].map(|id| bytes(&dom, id));
    assert_eq!(found, wanted, "{place}: arena, live set, sum of tensors");
    let reserved = bytes(&dom, "arena-reserved");
    assert_eq!(reserved, report.arena_bytes, "{place}: memory at the bounds");
}

#[test]
fn a_decoder_at_other_lengths() {
    let (_dir, model) = tlite_testing::tiny_model("llama", Default::default());
    let request = Request {
        context: Some(64),
        chunk: 16,
        ..Request::default()
    };
    let report = inspect(&model, &request).unwrap();
    let d = report.model.decoder.clone().unwrap();
    agrees(&report, 0, &[(&d.past, 5), (&d.sequence, 7)]);
    agrees(&report, 1, &[(&d.past, 10)]);
    // The report is large enough for gzip, in base64.
    assert!(page(&report).contains("id=\"report\">\"H4sI"));
    // What is moved beyond the bounds stays at them.
    let dom = opened(&page(&report), &format!("#{}=100000", d.past));
    assert_eq!(bytes(&dom, "arena-now"), report.plans[0].arena_bytes);
}

/// `y = relu(x) + relu(x) x w`, with names that would run if they were markup.
fn small(dir: &Path, bad: &str) {
    let mut w = ModelWriter::create(Stage::Convert, dir, "model.onnx", bad).unwrap();
    w.opset("", 17);
    let size = [Size::from("N"), Size::from(16)];
    w.add_input(&format!("x{bad}"), DType::F32, &size).unwrap();
    let weight: Vec<f32> = vec![0.5; 256];
    let tensor = transformer_lite::unstable::tensor::HostTensor::from_f32(&[16, 16], &weight).unwrap();
    w.add_external(&format!("w{bad}"), &tensor).unwrap();
    let mut node = |op: &str, inputs: &[String], output: &str| {
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let name = format!("{output} of {bad}");
        let output = format!("{output}{bad}");
        w.add_node(NodeSpec {
            domain: "",
            op,
            name: &name,
            inputs: &inputs,
            outputs: &[&output],
            attributes: &[],
        })
        .unwrap();
    };
    node("Relu", &[format!("x{bad}")], "a");
    node("MatMul", &[format!("a{bad}"), format!("w{bad}")], "b");
    node("Add", &[format!("a{bad}"), format!("b{bad}")], "y");
    w.add_output(&format!("y{bad}"), DType::F32, &size).unwrap();
    w.finish().unwrap();
}

#[test]
fn names_stay_text() {
    let dir = tempfile::tempdir().unwrap();
    let bad = "</script><script>document.body.dataset.error='ran'</script><img src=x onerror=\"document.body.dataset.error='ran'\">{{data}}&lt;";
    small(dir.path(), bad);
    let request = Request {
        bounds: Constraints::parse("N <= 8").unwrap(),
        ..Request::default()
    };
    let report = inspect(dir.path(), &request).unwrap();
    assert!(report.operators.iter().any(|o| o.name.contains("<img")));
    let html = page(&report);
    assert!(html.contains("\\u003cimg") && !html.contains("\"values\":"));
    assert_eq!(
        html.matches("</script>").count(),
        2,
        "the page's own data and script"
    );
    let dom = opened(&html, "#view=planned&N=3");
    // It is shown, as text.
    assert!(dom.contains("of &lt;/script&gt;&lt;script&gt;"), "{dom}");
    assert!(!dom.contains("<img"));
    agrees(&report, 0, &[("N", 3)]);
}

#[test]
fn the_page_asks_for_nothing() {
    let (_dir, model) = tlite_testing::tiny_model("qwen2", Default::default());
    let html = page(&inspect(&model, &Request::default()).unwrap());
    for word in [
        "http://",
        "https://",
        "src=",
        "@import",
        "url(",
        "fetch(",
        "XMLHttpRequest",
        "WebSocket",
        "import(",
    ] {
        assert!(!html.contains(word), "the page has {word}");
    }
}
