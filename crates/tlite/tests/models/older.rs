//! Files that an earlier version wrote (`tests/data/older`): they load, with the same answers.

use std::path::Path;
use std::process::Stdio;
use tlite_testing::suite::Suite;
use tlite_testing::{Device, Outcome, ROOT, Text, equal};
use transformer_lite::unstable::backend::BackendKind;

pub fn trials(suite: &mut Suite) {
    for device in suite.devices() {
        let kv = match device.kind {
            BackendKind::Cpu => "float",
            BackendKind::OpenCl => "q8",
            BackendKind::Wgpu => continue,
        };
        suite.add(format!("an_earlier_version@{}", device.kind), move || {
            loads(&device, kv)
        });
    }
}

fn loads(device: &Device, kv: &str) -> Outcome {
    let older = Path::new(ROOT).join("tests/data/older");
    let work = tempfile::tempdir().text()?;
    let kernels = work.path().join("kernels");
    std::fs::create_dir(&kernels).text()?;
    for file in std::fs::read_dir(older.join("kernels")).text()? {
        let file = file.text()?;
        std::fs::copy(file.path(), kernels.join(file.file_name())).text()?;
    }
    let prompt_cache = work.path().join("prompt");
    std::fs::copy(older.join(format!("{}.prompt", device.kind)), &prompt_cache).text()?;
    let text = std::fs::read_to_string(older.join("answer.json")).text()?;
    let wanted: serde_json::Value = serde_json::from_str(&text).text()?;
    let run = |prompt_cache: &Path| -> Result<serde_json::Value, String> {
        let output = tlite_testing::command()
            .args([
                "generate",
                "--raw",
                "--json",
                "--temperature",
                "0",
                "-n",
                "12",
                "--kv",
                kv,
            ])
            .args(["--backend", device.kind.name(), "--device", &device.caps.device])
            .args(["-p", wanted["prompt"].as_str().ok_or("no prompt")?])
            .arg("-m")
            .arg(older.join("model"))
            .arg("--prompt-cache")
            .arg(prompt_cache)
            .arg("--cache-dir")
            .arg(&kernels)
            .stdin(Stdio::null())
            .output()
            .text()?;
        equal(&output.status.code(), &Some(0)).map_err(|e| format!("{e}: {output:?}"))?;
        serde_json::from_slice(&output.stdout).text()
    };
    let (continued, fresh) = (run(&prompt_cache)?, run(&work.path().join("new"))?);
    equal(&(continued["reused_tokens"].as_u64() > Some(0)), &true)?;
    equal(&continued["tokens"], &fresh["tokens"])?;
    // Another instruction set or driver may round differently.
    match wanted["driver"] == device.caps.driver.as_str() {
        true => equal(&fresh["tokens"], &wanted["tokens"]),
        false => Ok(()),
    }
}
