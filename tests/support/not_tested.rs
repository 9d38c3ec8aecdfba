//! Tests that leave something out for want of a driver, a model or a program say so.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

/// Backend names in the environment variable `REQUIRE_BACKENDS`, a list with commas.
pub fn required() -> Vec<String> {
    let list = std::env::var("REQUIRE_BACKENDS").unwrap_or_default();
    list.split(',')
        .map(|s| s.trim().to_owned())
        .filter(|s| !s.is_empty())
        .collect()
}

/// Writes that something is not tested to standard error, once for each reason. The harness hides
/// what tests print; it does not hide this.
pub fn not_tested(why: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.insert(why.to_owned()) {
        let line = format!("NOT TESTED: {}\n", why.lines().next().unwrap_or_default());
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
}
