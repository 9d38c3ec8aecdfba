//! `tlite devices --probe`, `tlite roofline` and `tlite profile`: what they print, write and
//! refuse, on each device there is.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use transformer_lite::unstable::backend::{Caps, DeviceKind};
use transformer_lite::unstable::error::Stage;
use transformer_lite::unstable::graph::onnx::write::{ModelWriter, NodeSpec, Size};
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// Runs the command with this folder for what it keeps.
fn tlite(cache: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tlite"))
        .args(args)
        .env("TLITE_CACHE_DIR", cache)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[track_caller]
fn json(cache: &Path, args: &[&str]) -> Value {
    let output = tlite(cache, &[args, &["--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Fails with wrong usage, and an error that carries `values`.
#[track_caller]
fn refused(cache: &Path, args: &[&str], values: &[&str]) {
    let output = tlite(cache, args);
    tlite_testing::assert_failed(args, &output, 2, values);
}

/// `y = relu(x w)` of `x [N, 64]`, in `folder`.
fn product(folder: &Path) {
    let mut w = ModelWriter::create(Stage::Convert, folder, "model.onnx", "product").unwrap();
    w.opset("", 17);
    w.add_input("x", DType::F32, &[Size::from("N"), Size::from(64)])
        .unwrap();
    let weight = HostTensor::from_f32(&[64, 32], &vec![0.01; 64 * 32]).unwrap();
    w.add_external("w", &weight).unwrap();
    for (op, inputs, output) in [("MatMul", &["x", "w"][..], "a"), ("Relu", &["a"], "y")] {
        w.add_node(NodeSpec {
            domain: "",
            op,
            name: output,
            inputs,
            outputs: &[output],
            attributes: &[],
        })
        .unwrap();
    }
    w.add_output("y", DType::F32, &[Size::from("N"), Size::from(32)])
        .unwrap();
    w.finish().unwrap();
}

#[track_caller]
fn number(of: &Value, field: &str) -> f64 {
    of[field].as_f64().unwrap_or_else(|| panic!("{field} of {of}"))
}

/// What is in a list of a report.
#[track_caller]
fn list<'a>(of: &'a Value, field: &str) -> &'a [Value] {
    of[field].as_array().unwrap_or_else(|| panic!("{field} of {of}"))
}

/// The command on a device, with models to measure against it.
struct Place<'a> {
    cache: &'a Path,
    /// The folder of [`product`], where the command also writes.
    product: &'a Path,
    decoder: &'a str,
    backend: String,
    caps: Caps,
}

impl Place<'_> {
    /// The arguments, separated by spaces, with those that select the device; `MODEL` stands for
    /// the decoder and `PRODUCT` for the other model.
    fn arguments(&self, line: &str) -> Vec<String> {
        let device = ["--backend", &self.backend, "--device", &self.caps.device];
        let arguments = line.split(' ').map(|argument| match argument {
            "MODEL" => self.decoder,
            "PRODUCT" => self.product.to_str().unwrap(),
            other => other,
        });
        arguments.chain(device).map(str::to_owned).collect()
    }

    #[track_caller]
    fn run(&self, line: &str) -> Value {
        let arguments = self.arguments(line);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        json(self.cache, &arguments)
    }
}

#[test]
fn devices_are_measured_once_and_models_against_them() {
    let cache = tempfile::tempdir().unwrap();
    let models = tempfile::tempdir().unwrap();
    product(models.path());
    let (_dir, decoder) = tlite_testing::tiny_model("llama", Default::default());
    for device in tlite_testing::present() {
        let _turn = device.turn();
        let place = Place {
            cache: cache.path(),
            product: models.path(),
            decoder: decoder.to_str().unwrap(),
            backend: device.kind.to_string(),
            caps: device.caps.clone(),
        };
        let probe = probe(&place);
        rooflines(&place, &probe);
        made_up_model(&place);
        if place.caps.profiling {
            profiles(&place);
            speeds_beside_limits(&place);
        } else {
            let arguments = place.arguments("profile PRODUCT --bind N=10");
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            refused(place.cache, &arguments, &[&place.caps.device]);
        }
    }
}

/// Measures the device, which is kept.
fn probe(place: &Place<'_>) -> Value {
    let name = place.caps.device.as_str();
    let start = std::time::Instant::now();
    let probed = json(place.cache, &["devices", "--probe", "--device", name]);
    let seconds = start.elapsed().as_secs_f64();
    eprintln!("{}: probed in {seconds:.1} s", place.backend);
    let mut rows = list(&probed, "devices").iter();
    let row = rows.find(|r| r["backend"] == place.backend.as_str()).unwrap();
    assert!(!list(row, "extensions").is_empty(), "{row}");
    let probe = &row["probe"];
    for field in ["copy_bytes_per_s", "read_bytes_per_s", "f32_flops_per_s"] {
        // A slow core moves and computes more than this, and no device a thousand times what
        // today's do.
        assert!((1e7..1e17).contains(&number(probe, field)), "{field}: {probe}");
    }
    assert!((0.0..0.01).contains(&number(probe, "launch_s")), "{probe}");
    for field in [
        "image_bytes_per_s",
        "f16_flops_per_s",
        "int8_ops_per_s",
        "matrix_flops_per_s",
    ] {
        let told = probe["not_measured"][field].is_string();
        assert_ne!(probe[field].is_number(), told, "{field}: {probe}");
    }
    let kept = json(place.cache, &["cache", "list"]);
    let is_probe = |f: &Value| f["kind"] == "probe" && f["device"] == name;
    assert!(list(&kept, "files").iter().any(is_probe), "{kept}");
    probe.clone()
}

fn rooflines(place: &Place<'_>, probe: &Value) {
    let roofline = place.run("roofline PRODUCT --bind N=10");
    let used = &roofline["probe"]["f32_flops_per_s"];
    assert_eq!(used, &probe["f32_flops_per_s"], "what was kept is used");
    let halves = place.run("roofline PRODUCT --bind N=10 --float f16");
    let read = |of: &Value| number(&of["work"][0]["whole"], "read_bytes");
    assert!(read(&halves) < read(&roofline), "{halves}");
    let work = &roofline["work"][0];
    let is_product = |k: &&Value| k["op"].as_str().unwrap().starts_with("MatMul");
    let product = list(work, "kinds").iter().find(is_product).unwrap();
    let flops = 2.0 * 10.0 * 64.0 * 32.0;
    assert!(
        (flops..=flops + 1000.0).contains(&number(product, "flops")),
        "{product}"
    );
    assert!(number(&work["whole"], "least_s") > 0.0, "{work}");
    let decoded = place.run("roofline MODEL --prefill 16,32 --depth 8 --context 64");
    let names = list(&decoded, "work").iter().map(|w| w["name"].as_str().unwrap());
    assert!(names.eq(["prefill 16", "prefill 32", "decode at 8"]), "{decoded}");
}

/// Of the true size: a token takes the 30 layers' weights at least.
fn made_up_model(place: &Place<'_>) {
    let made_up = place.run("roofline --random smollm2-135m --depth 8 --context 64");
    assert_eq!(made_up["model"], "smollm2-135m", "{made_up}");
    let mut work = list(&made_up, "work").iter();
    let decoded = work.find(|w| w["name"] == "decode at 8").unwrap();
    let bytes = number(&decoded["whole"], "read_bytes");
    assert!((0.8e8..1.2e8).contains(&bytes), "{bytes} bytes");
    assert_eq!(
        number(decoded, "launches"),
        number(&decoded["whole"], "launches"),
        "{decoded}"
    );
}

fn profiles(place: &Place<'_>) {
    let random = "profile --random smollm2-135m --layers 1 --context 64 --prefill 8 --past 8";
    let profiled = place.run(random);
    assert_eq!(list(&profiled, "runs").len(), 2, "{profiled}");
    let [trace, page] = ["trace.json", "page.html"].map(|name| place.product.join(name));
    let profiled = place.run(&format!(
        "profile MODEL --prefill 16 --past 8 --context 64 --trace {} --html {}",
        trace.display(),
        page.display()
    ));
    let runs = list(&profiled, "runs");
    for run in runs {
        let whole = &run["whole"];
        assert!(
            number(whole, "seconds") > 0.0 && number(whole, "flops") > 0.0,
            "{run}"
        );
        let shares: f64 = list(run, "kinds").iter().map(|k| number(k, "share")).sum();
        assert!((shares - 1.0).abs() < 1e-6, "shares of operators sum to {shares}");
        let launches = list(run, "lines").iter().map(|l| l["launches"].as_u64().unwrap());
        assert_eq!(launches.sum::<u64>(), list(run, "events").len() as u64, "{run}");
    }
    let events: Value = serde_json::from_str(&std::fs::read_to_string(&trace).unwrap()).unwrap();
    let mut last = (0, 0.0);
    for e in list(&events, "traceEvents") {
        let at = (e["pid"].as_u64().unwrap(), e["ts"].as_f64().unwrap());
        assert!(at >= last, "{at:?} behind {last:?}");
        last = at;
    }
    shows(&std::fs::read_to_string(&page).unwrap(), runs);
    let other = place.run("profile PRODUCT --bind N=10");
    assert_eq!(other["runs"][0]["name"], "run", "{other}");
}

/// The page has a picture of each run, with each operator, and nothing from elsewhere.
fn shows(html: &str, runs: &[Value]) {
    let dom = tlite_testing::browser::opened(html, "");
    let pictures: Vec<&str> = dom.split("class=\"v-roofline\"").skip(1).collect();
    assert_eq!(pictures.len(), runs.len(), "{dom}");
    for (picture, run) in std::iter::zip(pictures, runs) {
        let picture = picture.split("</svg>").next().unwrap();
        assert!(picture.contains("<polyline"), "{picture}");
        let kinds = list(run, "kinds").iter();
        let on_device: Vec<_> = kinds.filter(|k| number(k, "launches") > 0.0).collect();
        assert_eq!(picture.matches("<circle").count(), on_device.len(), "{picture}");
        for kind in on_device {
            let op = kind["op"].as_str().unwrap();
            assert!(
                picture.contains(&format!("data-op=\"{op}\"")),
                "{op} is not in the picture"
            );
            let arithmetic = kind["arithmetic"].as_str().unwrap();
            assert!(picture.contains(&format!(", {arithmetic}</title>")), "{picture}");
        }
    }
    for word in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!html.contains(word), "the page has {word}");
    }
}

fn speeds_beside_limits(place: &Place<'_>) {
    let bench = place.run("bench MODEL --prefill 16 --decode 4 --repeat 1 --context 64");
    let other = place.run(
        "bench --random smollm2-135m --layers 1 --group-size channel --prefill 1 --decode 1 --repeat 1 \
         --context 64 --act int8 --kv q8",
    );
    let way = match place.caps.kind {
        // Of a GPU's driver it is not known whether it records.
        DeviceKind::Cpu => "off",
        _ => bench["recording"].as_str().unwrap(),
    };
    // Native kernels store caches in halves.
    let float = match place.caps.kind {
        DeviceKind::Cpu if place.caps.profile.language().is_some() => "f32",
        _ => "f16",
    };
    let used = |json: &Value| ["act", "kv", "recording"].map(|key| json[key].as_str().map(str::to_owned));
    let wanted = |act, kv| [act, kv, way].map(|text: &str| Some(text.to_owned()));
    assert_eq!(used(&bench), wanted("float", float), "{bench}");
    assert_eq!(used(&other), wanted("int8", "q8"), "{other}");
    let planned = place.run("roofline MODEL --prefill 16 --depth 2 --context 64");
    for (line, work) in std::iter::zip(list(&bench, "results"), list(&planned, "work")) {
        assert_eq!(
            line["launches"].as_f64(),
            work["launches"].as_f64(),
            "{line} {work}"
        );
        assert_eq!(line["most_tokens_per_s"], work["most_tokens_per_s"], "{line}");
        for field in ["most_tokens_per_s", "share_of_most"] {
            assert!(number(line, field) > 0.0, "{line}");
        }
    }
}

#[test]
fn wrong_questions_are_refused() {
    let cache = tempfile::tempdir().unwrap();
    let models = tempfile::tempdir().unwrap();
    product(models.path());
    let small = models.path().to_str().unwrap();
    let at = |args: &[&str], values: &[&str]| refused(cache.path(), args, values);
    at(
        &["devices", "--probe", "--device", "nosuch"],
        &["--device", "nosuch"],
    );
    at(&["roofline", "/no/such"], &["MODEL", "/no/such"]);
    at(
        &["roofline", small, "--backend", "reference"],
        &["--backend", "reference"],
    );
    at(&["profile", small, "--backend", "reference"], &["--backend"]);
    at(
        &["profile", small, "--html", "/no/such/folder/x.html"],
        &["--html"],
    );
    let found = tlite_testing::present();
    if found.is_empty() {
        return;
    }
    let _turns: Vec<_> = found.iter().map(tlite_testing::Device::turn).collect();
    at(&["roofline", small], &["--bind", "N=1"]);
    at(&["roofline", small, "--prefill", "8"], &["--prefill"]);
    for option in [
        ["--context", "64"],
        ["--kv", "q8"],
        ["--act", "int8"],
        ["--padding", "128"],
    ] {
        at(
            &[&["roofline", small, "--bind", "N=1"][..], &option].concat(),
            &[option[0]],
        );
    }
    at(&["profile", small], &["--bind", "N="]);
    let (_dir, decoder) = tlite_testing::tiny_model("llama", Default::default());
    let decoder = decoder.to_str().unwrap();
    at(
        &["roofline", decoder, "--context", "64", "--depth", "64"],
        &["--depth", "65"],
    );
    at(&["roofline", decoder, "--bind", "N=1"], &["--bind", "--prefill"]);
}
