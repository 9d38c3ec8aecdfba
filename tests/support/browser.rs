//! Pages opened in headless Chromium.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What the viewer of reports has drawn: its element `main`, as Chromium prints it. `place` is what
/// follows the file's name: `#N=3`.
pub fn opened(html: &str, place: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("page.html");
    std::fs::write(&file, html).unwrap();
    let program = std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium".to_owned());
    let out = std::fs::File::create(dir.path().join("out")).unwrap();
    let child = Command::new(&program)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--virtual-time-budget=5000",
            "--dump-dom",
        ])
        .arg(format!(
            "--user-data-dir={}",
            dir.path().join("profile").display()
        ))
        .arg(format!("file://{}{place}", file.display()))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .stdout(out)
        .spawn();
    let mut child = child.unwrap_or_else(|e| {
        panic!("{program}: {e}. The page is tested in Chromium: sudo apt-get install chromium, or set CHROMIUM to its path")
    });
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > Duration::from_secs(120) {
            child.kill().unwrap();
            panic!("{program} did not open the page in two minutes");
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(status.success(), "{program}: {status}");
    let dom = std::fs::read_to_string(dir.path().join("out")).unwrap();
    let body = dom.split("<body").nth(1).and_then(|b| b.split('>').next());
    let body = body.unwrap_or_else(|| panic!("no body in {dom}"));
    assert!(!body.contains("data-error"), "the script failed: {body}");
    assert!(
        body.contains("data-ready=\"yes\""),
        "the script did not finish: {body}"
    );
    let view = dom.split("<main").nth(1).and_then(|d| d.split("</main>").next());
    view.unwrap_or_else(|| panic!("no view in {dom}")).to_owned()
}
