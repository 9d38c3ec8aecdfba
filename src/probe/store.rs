//! Probes as files, one for each device and driver, so that a device is measured once.

use super::{Probe, measure};
use crate::backend::{Backend, Caps};
use crate::error::{Error, Result, Stage};
use crate::files::write_whole;
use std::path::{Path, PathBuf};

/// Folder of the user for what can be made anew: that of the system's conventions, with our name. `None` where the environment names none.
pub fn cache_folder() -> Option<PathBuf> {
    let of = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let base = of("XDG_CACHE_HOME").or_else(|| of("LOCALAPPDATA"));
    let base = base.or_else(|| Some(of("HOME")?.join(".cache")))?;
    Some(base.join("transformer-lite"))
}

/// The file of a device's probe in the cache folder `cache`.
fn file(cache: &Path, caps: &Caps) -> PathBuf {
    let key = format!("{}\n{}\n{}", caps.backend, caps.device, caps.driver);
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let name: String = caps.device.chars().map(plain).take(40).collect();
    let sum = crc32fast::hash(key.as_bytes());
    cache
        .join("probe")
        .join(format!("{}-{name}-{sum:08x}.json", caps.backend))
}

/// The stored probe of a device; `None` where there is none, or none of this build that can be read.
pub fn load(cache: &Path, caps: &Caps) -> Option<Probe> {
    let file = file(cache, caps);
    let bytes = std::fs::read(&file).ok()?;
    let probe = serde_json::from_slice::<Probe>(&bytes);
    if let Err(e) = &probe {
        log::warn!("{}: {e}; the device is measured anew", file.display());
    }
    probe.ok().filter(|p| p.is_of(caps))
}

/// Stores a probe of the device and returns its file.
pub fn save(cache: &Path, caps: &Caps, probe: &Probe) -> Result<PathBuf> {
    let file = file(cache, caps);
    let folder = file.parent().unwrap_or(cache);
    std::fs::create_dir_all(folder).map_err(|e| Error::io("cannot make a folder", folder, e))?;
    let text = serde_json::to_vec_pretty(probe)
        .map_err(|e| Error::file(Stage::Run, &file, format!("cannot be written: {e}")))?;
    write_whole(&file, |out| out.write_all(&text))?;
    Ok(file)
}

/// The stored probe of the device, or a new one, which is stored if there is where. `hear` is told what happened, a sentence each, before it takes
/// time and where nothing could be stored.
pub fn of_device(backend: &mut dyn Backend, hear: &mut dyn FnMut(&str)) -> Result<Probe> {
    let caps = backend.caps().clone();
    let cache = cache_folder();
    if let Some(probe) = cache.as_deref().and_then(|c| load(c, &caps)) {
        return Ok(probe);
    }
    hear(&format!("measuring {}, once", caps.device));
    let probe =
        measure(backend).map_err(|e| Error::device(Stage::Run, format!("measuring {}", caps.device), e))?;
    match cache.map(|c| save(&c, &caps, &probe)) {
        Some(Ok(_)) => {}
        Some(Err(e)) => hear(&format!("note: what was measured cannot be kept: {e}")),
        None => hear("note: what was measured cannot be kept: neither XDG_CACHE_HOME nor HOME is set"),
    }
    Ok(probe)
}

#[cfg(test)]
mod tests {
    use super::*;
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
            matrix_flops_per_s: None,
            launch_s: 1e-6,
            clock: "host".to_owned(),
            not_measured: BTreeMap::from([("f16_flops_per_s".to_owned(), "none".to_owned())]),
        }
    }

    #[test]
    fn what_is_stored_is_found_for_the_same_device_and_driver() {
        let dir = tempfile::tempdir().unwrap();
        let caps = Caps {
            device: "A/B \"x\" ../c".to_owned(),
            ..Caps::neutral()
        };
        assert_eq!(load(dir.path(), &caps), None);
        let saved = save(dir.path(), &caps, &probe(&caps)).unwrap();
        assert_eq!(saved.parent(), Some(dir.path().join("probe").as_path()));
        assert_eq!(load(dir.path(), &caps), Some(probe(&caps)));
        let newer = Caps {
            driver: "another".to_owned(),
            ..caps.clone()
        };
        assert_eq!(load(dir.path(), &newer), None);
        // Of another build, and no probe at all.
        let old = Probe {
            version: 0,
            ..probe(&caps)
        };
        save(dir.path(), &caps, &old).unwrap();
        assert_eq!(load(dir.path(), &caps), None);
        std::fs::write(&saved, "{").unwrap();
        assert_eq!(load(dir.path(), &caps), None);
    }

    #[test]
    fn memory_is_as_fast_as_the_faster_way_to_read_it() {
        let peaks = probe(&Caps::neutral()).peaks();
        assert_eq!((peaks.bytes_per_s, peaks.f32_flops_per_s), (3.0, 4.0));
        assert_eq!(peaks.matrix_flops_per_s, None);
    }
}
