//! The report of `tlite selftest` as JUnit XML, which CI systems show.

use super::{Report, Row};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A test suite for each device, and one with a skipped case for each backend without a device.
pub fn xml(report: &Report) -> String {
    let (failed, absent) = (report.failed, report.absent.len());
    let tests = report.passed + failed + absent;
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <testsuites name=\"tlite selftest\" tests=\"{tests}\" failures=\"{failed}\" skipped=\"{absent}\">\n"
    );
    for row in &report.devices {
        suite(&mut out, row);
    }
    if absent > 0 {
        let head = format!("tests=\"{absent}\" failures=\"0\" skipped=\"{absent}\"");
        let _infallible = writeln!(out, "  <testsuite name=\"absent\" {head}>");
        for why in &report.absent {
            let (backend, why) = why.split_once(':').unwrap_or((why, ""));
            let (backend, why) = (escaped(backend), escaped(why.trim()));
            let _infallible = writeln!(
                out,
                "    <testcase classname=\"absent\" name=\"{backend}\"><skipped message=\"{why}\"/></testcase>"
            );
        }
        out.push_str("  </testsuite>\n");
    }
    out.push_str("</testsuites>\n");
    out
}

fn suite(out: &mut String, row: &Row) {
    let name = escaped(&format!("{}: {}", row.backend, row.device));
    let head = format!(
        "tests=\"{}\" failures=\"{}\" skipped=\"0\" time=\"{:.3}\"",
        row.passed + row.failed.len(),
        row.failed.len(),
        row.seconds
    );
    let _infallible = writeln!(out, "  <testsuite name=\"{name}\" {head}>");
    // Names that occur again are numbered.
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for case in &row.passed_cases {
        let count = seen.entry(case).or_default();
        *count += 1;
        let case = match *count {
            1 => escaped(case),
            again => escaped(&format!("{case} #{again}")),
        };
        let _infallible = writeln!(out, "    <testcase classname=\"{name}\" name=\"{case}\"/>");
    }
    for failure in &row.failed {
        let (case, why) = (escaped(&failure.case), escaped(&failure.why));
        let _infallible = writeln!(
            out,
            "    <testcase classname=\"{name}\" name=\"{case}\"><failure message=\"{why}\"/></testcase>"
        );
    }
    out.push_str("  </testsuite>\n");
}

/// `text` as the value of an attribute. Characters that XML cannot have become U+FFFD.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            '\t' => out.push_str("&#9;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use transformer_lite::unstable::backend::DeviceKind;
    use transformer_lite::unstable::validate::selftest::Failure;

    #[test]
    fn suites_have_cases_failures_and_what_was_skipped() {
        let row = Row {
            backend: "opencl",
            device: "A & B".to_owned(),
            driver: "1".to_owned(),
            kind: DeviceKind::Discrete,
            extensions: Vec::new(),
            passed: 1,
            passed_cases: vec!["Add/f32".to_owned()],
            failed: vec![Failure {
                case: "Mul/f32".to_owned(),
                why: "NMSE 2 > 1\nat \"[1]\"\u{1b}".to_owned(),
            }],
            quarantined: Vec::new(),
            seconds: 1.5,
        };
        let report = Report {
            version: "1",
            system: "linux",
            architecture: "x",
            quick: true,
            passed: 1,
            failed: 1,
            devices: vec![row],
            absent: vec!["wgpu: no adapter".to_owned()],
        };
        let xml = xml(&report);
        for part in [
            "<testsuites name=\"tlite selftest\" tests=\"3\" failures=\"1\" skipped=\"1\">",
            "<testsuite name=\"opencl: A &amp; B\" tests=\"2\" failures=\"1\" skipped=\"0\" time=\"1.500\">",
            "<testcase classname=\"opencl: A &amp; B\" name=\"Add/f32\"/>",
            "<failure message=\"NMSE 2 &gt; 1&#10;at &quot;[1]&quot;\u{fffd}\"/>",
            "name=\"wgpu\"><skipped message=\"no adapter\"/>",
        ] {
            assert!(xml.contains(part), "{part} in {xml}");
        }
        let opened = xml.matches("<testcase").count();
        let closed = xml.matches("</testcase>").count() + xml.matches("/>\n").count();
        assert_eq!((opened, closed), (3, 3), "{xml}");
    }
}
