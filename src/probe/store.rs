//! Probes in the [`Store`], one per backend, device and driver, so that a device is measured once.

use super::{Probe, VERSION, measure};
use crate::backend::{Backend, Caps};
use crate::cache::{Key, Kind, Store};
use crate::error::{Error, Result, Stage};

fn key(caps: &Caps) -> Key {
    Key {
        device: caps.device.clone(),
        driver: caps.driver.clone(),
        subject: format!("{} memory, arithmetic, launches", caps.backend),
        // A processor may be opened with fewer threads.
        text: format!("probe {VERSION}, {} units", caps.profile.compute_units),
    }
}

/// The stored probe of a device; `None` if there is none from this build that can be read.
pub fn load(store: &Store, caps: &Caps) -> Option<Probe> {
    let bytes = store.get(Kind::Probe, &key(caps))?;
    let probe = serde_json::from_slice::<Probe>(&bytes);
    if let Err(e) = &probe {
        log::warn!(
            "cannot read the measurements of {}: {e}; measuring again",
            caps.device
        );
    }
    probe.ok().filter(|p| p.is_of(caps))
}

/// Stores a probe of the device and returns a sentence about the outcome.
pub fn save(store: Option<&Store>, caps: &Caps, probe: &Probe) -> String {
    let lost = |why: &str| format!("cannot save the measurements: {why}");
    let Some(store) = store else {
        return lost("there is no cache folder; set --cache-dir");
    };
    match serde_json::to_vec(probe) {
        Ok(bytes) => store.put(Kind::Probe, &key(caps), &bytes),
        Err(e) => return lost(&e.to_string()),
    }
    let folder = store.folder().display();
    match load(store, caps) {
        Some(_) => format!("saved in {folder}"),
        None => lost(&format!("cannot write to {folder}")),
    }
}

/// The stored probe of the device, or a new one, which is stored if there is a store. `on_progress`
/// is called with a sentence before the measurement, with the outcome of storing it, and with
/// [`Probe::warning`].
pub fn of_device(
    backend: &mut dyn Backend,
    store: Option<&Store>,
    on_progress: &mut dyn FnMut(&str),
) -> Result<Probe> {
    let caps = backend.caps().clone();
    if let Some(probe) = store.and_then(|store| load(store, &caps)) {
        probe.warning().iter().for_each(|what| on_progress(what));
        return Ok(probe);
    }
    on_progress(&format!("measuring {} (once)", caps.device));
    let probe =
        measure(backend).map_err(|e| Error::device(Stage::Run, format!("measuring {}", caps.device), e))?;
    probe.warning().iter().for_each(|what| on_progress(what));
    on_progress(&save(store, &caps, &probe));
    Ok(probe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::DEFAULT_LIMIT;
    use crate::testing::assert_carries;
    use std::collections::BTreeMap;

    fn probe(caps: &Caps) -> Probe {
        Probe {
            version: super::super::VERSION,
            backend: caps.backend.to_owned(),
            device: caps.device.clone(),
            driver: caps.driver.clone(),
            copy_bytes_per_s: 2.0,
            read_bytes_per_s: 3.0,
            image_bytes_per_s: None,
            f32_flops_per_s: 4.0,
            f16_flops_per_s: None,
            int8_ops_per_s: Some(5.0),
            int16_ops_per_s: None,
            matrix_flops_per_s: None,
            launch_s: 1e-6,
            clock: "host".to_owned(),
            not_measured: BTreeMap::from([("f16_flops_per_s".to_owned(), "none".to_owned())]),
            unsteady: BTreeMap::new(),
        }
    }

    #[test]
    fn what_is_stored_is_found_for_the_same_device_and_driver() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().join("cache"), DEFAULT_LIMIT);
        let caps = Caps {
            device: "A/B \"x\" ../c".to_owned(),
            ..Caps::generic_gpu()
        };
        assert_eq!(load(&store, &caps), None);
        let message = save(Some(&store), &caps, &probe(&caps));
        assert!(message.contains(&dir.path().display().to_string()), "{message}");
        assert_eq!(load(&store, &caps), Some(probe(&caps)));
        // It is listed and cleared with the rest.
        let entries = store.entries().unwrap();
        assert!(
            matches!(entries.as_slice(), [one] if one.kind == Kind::Probe && one.key == Some(key(&caps))),
            "{entries:?}"
        );
        let newer = Caps {
            driver: "another".to_owned(),
            ..caps.clone()
        };
        assert_eq!(load(&store, &newer), None);
        // Of another build, and no probe at all.
        let old = Probe {
            version: 0,
            ..probe(&caps)
        };
        assert_ne!(save(Some(&store), &caps, &old), message);
        assert_eq!(load(&store, &caps), None);
        store.put(Kind::Probe, &key(&caps), b"{");
        assert_eq!(load(&store, &caps), None);
        assert_eq!(store.clear(Some(Kind::Probe)).unwrap().0, 1);
        assert_carries(save(None, &caps, &probe(&caps)), &["--cache-dir"]);
    }

    #[test]
    fn memory_is_as_fast_as_the_faster_way_to_read_it() {
        let peaks = probe(&Caps::generic_gpu()).peaks();
        assert_eq!((peaks.bytes_per_s, peaks.f32_flops_per_s), (3.0, 4.0));
        assert_eq!(peaks.matrix_flops_per_s, None);
    }
}
