//! The page of a report.

use super::Report;

/// The page.
pub fn render(report: &Report) -> String {
    let _ = report;
    String::new()
}
