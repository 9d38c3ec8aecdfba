//! The backends that benchmarks run on.

use transformer_lite::unstable::backend::BackendKind;
use transformer_lite::unstable::devices;

/// The backends that have a device. Panics where `REQUIRE_BACKENDS`, a list with commas, names one
/// that has none.
pub fn backends() -> Vec<BackendKind> {
    let mut found = Vec::new();
    let mut missing = Vec::new();
    for kind in BackendKind::compiled() {
        match devices::list(kind) {
            Ok(all) if !all.is_empty() => found.push(kind),
            Ok(_) => missing.push((kind.to_string(), "the driver lists no device".to_owned())),
            Err(e) => missing.push((kind.to_string(), e.to_string())),
        }
    }
    let required = std::env::var("REQUIRE_BACKENDS").unwrap_or_default();
    for name in required.split(',').map(str::trim).filter(|n| !n.is_empty()) {
        if found.iter().any(|kind| kind.to_string() == name) {
            continue;
        }
        let why = missing.iter().find(|(kind, _)| kind == name);
        let why = why.map_or("this build has no such backend", |(_, why)| why);
        panic!("REQUIRE_BACKENDS names {name}: {why}");
    }
    for (name, why) in missing {
        eprintln!("not measured: {name}: {why}");
    }
    found
}
