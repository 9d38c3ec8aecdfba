//! Which device is chosen, and what is said where there is none.

use super::of;
use super::play::{self, Outcome};
use std::path::Path;
use tlite_fake_driver::{Config, Profile};
use tlite_testing::Text;
use transformer_lite::unstable::error::Stage;
use transformer_lite::unstable::graph::onnx::write::{ModelWriter, NodeSpec, Size};
use transformer_lite::unstable::tensor::DType;

/// A model of one operator, for `tlite run`.
pub fn relu(dir: &Path) -> Result<String, String> {
    let shape = [Size::Fixed(4)];
    let mut model = ModelWriter::create(Stage::Convert, dir, "relu.onnx", "g").text()?;
    model.opset("", 18);
    model.add_input("x", DType::F32, &shape).text()?;
    model.add_output("y", DType::F32, &shape).text()?;
    let node = NodeSpec {
        domain: "",
        op: "Relu",
        name: "relu",
        inputs: &["x"],
        outputs: &["y"],
        attributes: &[],
    };
    model.add_node(node).text()?;
    model.finish().text()?;
    Ok(dir.join("relu.onnx").display().to_string())
}

/// Two Adrenos, whose driver gives both one name.
pub fn models_of_one_name() -> Outcome {
    let dir = tempfile::tempdir().text()?;
    let model = relu(dir.path())?;
    let cache = dir.path().join("cache").display().to_string();
    let args = [
        "run",
        &model,
        "--random",
        "--json",
        "--backend",
        "opencl",
        "--cache-dir",
        &cache,
    ];
    let models = ["Adreno(TM) 740", "Adreno(TM) 750"];
    for (i, version) in models.into_iter().enumerate() {
        let config = Config {
            version: Some(version.to_owned()),
            ..of(Profile::Adreno)
        };
        let report = play::run(&args, &config)?.report()?;
        if !report["driver"].as_str().is_some_and(|d| d.contains(version)) {
            return Err(format!("no {version} in {report}"));
        }
        let devices = play::run(&["devices", "--json"], &config)?.report()?;
        let told = devices["devices"].as_array().into_iter().flatten();
        if !told
            .filter_map(|d| d["driver"].as_str())
            .any(|d| d.contains(version))
        {
            return Err(format!("no {version} in {devices}"));
        }
        let list = ["cache", "list", "--json", "--cache-dir", &cache];
        let list = play::run_without(&list)?.report()?;
        let files = list["files"].as_array().ok_or("no files")?;
        for model in &models[..=i] {
            let of_model = |f: &&serde_json::Value| {
                f["kind"] == "program" && f["driver"].as_str().is_some_and(|d| d.contains(model))
            };
            if files.iter().filter(of_model).count() == 0 {
                return Err(format!("nothing of {model} after {version}: {list}"));
            }
        }
    }
    Ok(())
}

/// A loader that is there with a platform that finds nothing, as on a phone whose driver an app may
/// not open.
pub fn no_device(code: i32) -> Outcome {
    let dir = tempfile::tempdir().text()?;
    let model = relu(dir.path())?;
    let config = Config {
        no_device: Some(code),
        ..of(Profile::Adreno)
    };
    let platform = "QUALCOMM Snapdragon(TM)";
    let run = play::run(
        &["run", &model, "--random", "--json", "--backend", "opencl"],
        &config,
    )?;
    run.failed_by(2, "NoDevice", &[platform])?;
    // A list without it is one that says so.
    let report = play::run(&["devices", "--json"], &config)?.report()?;
    let mut absent = report["absent"].as_array().into_iter().flatten();
    let told = absent.find(|a| a["backend"] == "opencl");
    match told.and_then(|a| a["why"].as_str()) {
        Some(told) if told.contains(platform) => Ok(()),
        _ => Err(format!("{platform} wanted: {report}")),
    }
}

/// Devices of one name are told apart by their number.
pub fn two_devices() -> Outcome {
    let dir = tempfile::tempdir().text()?;
    let model = relu(dir.path())?;
    let config = Config {
        twice: true,
        ..of(Profile::Mali)
    };
    let on = |device: &str| {
        let args = [
            "run",
            &model,
            "--random",
            "--json",
            "--backend",
            "opencl",
            "--no-cache",
            "--device",
            device,
        ];
        play::run(&args, &config)
    };
    on("mali")?.refused(2, "Usage", &["--device", "\"mali\"", "Mali-G720", "#1"])?;
    on("mali#3")?.refused(2, "Usage", &["--device", "\"mali\"", "2", "#3"])?;
    for device in ["mali#1", "mali#2"] {
        let run = on(device)?;
        if run.device()? != "Mali-G720" {
            return Err(format!("{device} is {}", run.device()?));
        }
        run.quiet()?;
    }
    Ok(())
}
