//! Kernel validation results per device: which kernels gave right results, and which variants are
//! quarantined because they did not. Also the measured kernel settings ([`super::tunable`]).
//!
//! Everything is kept in the [`Store`], so that a start checks nothing again. A result belongs to
//! the whole text of a specialised kernel, to device and driver, and to this version of the
//! library, which decides the arguments of a check. Damaged or missing entries are determined
//! again; without a store every start does so. If the list of quarantined variants is lost,
//! variants are checked again at their next use.

use super::kernel::KernelSpec;
use super::tunable::Tuned;
use super::{Caps, Quarantined};
use crate::cache::{Key, Kind, Store};

/// Contents of the file of a kernel that gave right results.
const RIGHT: &[u8] = b"right";
/// Contents of the file of a kernel that gave wrong results.
const WRONG: &[u8] = b"wrong";

fn key(caps: &Caps, subject: String, text: &str) -> Key {
    let version = env!("CARGO_PKG_VERSION");
    Key {
        device: caps.device.clone(),
        driver: caps.driver.clone(),
        subject,
        text: format!("// {version} {}\n{text}", caps.backend),
    }
}

/// `None` if the text cannot be expanded; compiling reports that.
fn key_of(caps: &Caps, spec: &KernelSpec) -> Option<Key> {
    let language = caps.profile.language;
    let text = spec.expand(language).ok()?;
    let options = language.options().to_string_lossy();
    Some(key(caps, spec.to_string(), &format!("// {options}\n{text}")))
}

fn list_key(caps: &Caps) -> Key {
    key(caps, "quarantine".to_owned(), "")
}

fn tuned_key(caps: &Caps) -> Key {
    key(caps, "tuning".to_owned(), "")
}

/// Applies the stored results to a device that was just opened: quarantined variants and measured
/// settings.
pub fn apply(store: Option<&Store>, caps: &mut Caps) {
    caps.profile.quarantined = quarantined(store, caps);
    caps.profile.tuned = tuned(store, caps);
}

/// The stored kernel settings.
fn tuned(store: Option<&Store>, caps: &Caps) -> Vec<Tuned> {
    let Some(bytes) = store.and_then(|s| s.get(Kind::Tuning, &tuned_key(caps))) else {
        return Vec::new();
    };
    serde_json::from_slice(&bytes).unwrap_or_else(|e| {
        log::warn!(
            "cannot read the tuned kernel settings of {}: {e}; using the defaults",
            caps.device
        );
        Vec::new()
    })
}

/// Stores [`DeviceProfile::tuned`](super::DeviceProfile::tuned) for later starts.
pub fn store_tuned(store: &Store, caps: &Caps) {
    match serde_json::to_vec(&caps.profile.tuned) {
        Ok(bytes) => store.put(Kind::Tuning, &tuned_key(caps), &bytes),
        Err(e) => log::warn!("cannot save the tuned kernel settings: {e}"),
    }
}

/// Variants quarantined on the device.
pub fn quarantined(store: Option<&Store>, caps: &Caps) -> Vec<Quarantined> {
    store.and_then(|s| list(s, caps)).unwrap_or_default()
}

/// The stored list of quarantined variants; `None` if there is none.
fn list(store: &Store, caps: &Caps) -> Option<Vec<Quarantined>> {
    let bytes = store.get(Kind::Verdict, &list_key(caps))?;
    let read = serde_json::from_slice(&bytes);
    read.map_err(|e| {
        log::warn!(
            "cannot read the list of quarantined kernels of {}: {e}; checking them again",
            caps.device
        );
    })
    .ok()
}

/// Adds [`DeviceProfile::quarantined`](super::DeviceProfile::quarantined) to the stored list.
/// Another process may have extended that list in the meantime.
pub fn store_quarantined(store: &Store, caps: &Caps) {
    let mut all = quarantined(Some(store), caps);
    all.retain(|q| {
        !caps
            .profile
            .quarantined
            .iter()
            .any(|own| own.variant == q.variant)
    });
    all.extend(caps.profile.quarantined.iter().cloned());
    match serde_json::to_vec(&all) {
        Ok(bytes) => store.put(Kind::Verdict, &list_key(caps), &bytes),
        Err(e) => log::warn!("cannot save the list of quarantined kernels: {e}"),
    }
}

/// The kernels that passed validation on a device.
#[derive(Debug)]
pub struct ValidatedKernels<'a> {
    store: &'a Store,
    caps: &'a Caps,
    /// The store has a list of quarantined variants.
    listed: bool,
}

impl<'a> ValidatedKernels<'a> {
    /// Reads the state of the store.
    pub fn new(store: &'a Store, caps: &'a Caps) -> Self {
        Self {
            store,
            caps,
            listed: list(store, caps).is_some(),
        }
    }

    /// Whether a kernel has passed validation.
    pub fn contains(&self, spec: &KernelSpec) -> bool {
        if !self.listed && !spec.variants().is_empty() {
            return false;
        }
        let found = key_of(self.caps, spec).and_then(|key| self.store.get(Kind::Verdict, &key));
        found.as_deref() == Some(RIGHT)
    }

    /// Stores that these kernels passed validation.
    pub fn add<'s>(&mut self, specs: impl Iterator<Item = &'s KernelSpec>) {
        if !self.listed {
            // Another process may have written a list in the meantime.
            store_quarantined(self.store, self.caps);
            self.listed = true;
        }
        for key in specs.filter_map(|spec| key_of(self.caps, spec)) {
            self.store.put(Kind::Verdict, &key, RIGHT);
        }
    }
}

/// The stored validation result of another program that a backend made from kernels: `true` if it
/// gave right results. `program` is its name, `text` its whole source including build options.
pub fn program_result(store: Option<&Store>, caps: &Caps, program: &str, text: &str) -> Option<bool> {
    let found = store?.get(Kind::Verdict, &key(caps, program.to_owned(), text))?;
    match found.as_slice() {
        RIGHT => Some(true),
        WRONG => Some(false),
        _ => None,
    }
}

/// Stores the result that [`program_result`] returns.
pub fn store_program_result(store: &Store, caps: &Caps, program: &str, text: &str, is_right: bool) {
    let result = if is_right { RIGHT } else { WRONG };
    store.put(Kind::Verdict, &key(caps, program.to_owned(), text), result);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::DeviceProfile;
    use crate::backend::kernel::image::ImageKind;
    use crate::backend::kernel::{Features, Form, Kernel};
    use crate::tensor::DType;
    use std::collections::{BTreeMap, BTreeSet};

    static TWIN: Kernel = crate::kernel!("softmax" { rows, cols: U32 } [x: In, y: Out]);
    static FAST: Kernel =
        crate::kernel!("softmax" { rows, cols: U32 } [x: In, y: Out]).variant_of(&TWIN, |c| c.fast_local);

    fn spec(rows: i64) -> KernelSpec {
        KernelSpec {
            kernel: &FAST,
            workgroup: 64,
            defines: BTreeMap::from([("ROWS", rows)]),
            operands: vec![Some(DType::F16); 2],
            in_place: None,
            epilogue: None,
            images: BTreeMap::new(),
            vec4: BTreeSet::new(),
        }
    }

    fn is_right(store: &Store, caps: &Caps, spec: &KernelSpec) -> bool {
        ValidatedKernels::new(store, caps).contains(spec)
    }

    fn keep_right(store: &Store, caps: &Caps, spec: &KernelSpec) {
        ValidatedKernels::new(store, caps).add(std::iter::once(spec));
    }

    /// The device with this variant of `kernel` quarantined.
    fn without(caps: &Caps, kernel: &'static Kernel, variant: &str) -> Caps {
        let caps = caps.clone();
        caps.with(|device| device.quarantine(kernel, variant, "wrong"))
    }

    #[test]
    fn without_the_list_variants_are_checked_again() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().to_owned(), 1 << 20);
        let caps = Caps::generic_gpu();
        let plain = KernelSpec {
            kernel: &TWIN,
            ..spec(1)
        };
        keep_right(&store, &caps, &spec(1));
        keep_right(&store, &caps, &plain);
        // Cases find a fault of it, and the list is lost.
        store_quarantined(&store, &without(&caps, &FAST, "softmax"));
        assert_eq!(quarantined(Some(&store), &caps).len(), 1);
        for damage in [None, Some(&b"{"[..])] {
            match damage {
                None => store.remove(Kind::Verdict, &list_key(&caps)),
                Some(bytes) => store.put(Kind::Verdict, &list_key(&caps), bytes),
            }
            assert!(!is_right(&store, &caps, &spec(1)), "{damage:?}");
            assert!(is_right(&store, &caps, &plain), "nothing else takes its place");
        }
    }

    #[test]
    fn what_two_processes_find_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().to_owned(), 1 << 20);
        let of = |variant: &str| without(&Caps::generic_gpu(), &FAST, variant);
        for variant in ["softmax", "softmax WIDE", "softmax"] {
            store_quarantined(&store, &of(variant));
        }
        let all = quarantined(Some(&store), &Caps::generic_gpu());
        let mut names: Vec<&str> = all.iter().map(|q| q.variant.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["softmax", "softmax WIDE"]);
    }

    #[test]
    fn results_belong_to_a_text_a_device_and_a_driver() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().to_owned(), 1 << 20);
        let caps = Caps::generic_gpu();
        assert!(!is_right(&store, &caps, &spec(1)));
        keep_right(&store, &caps, &spec(1));
        assert!(is_right(&store, &caps, &spec(1)));
        assert!(!is_right(&store, &caps, &spec(2)), "another text");
        for (device, driver, backend) in [
            ("b", "none", "opencl"),
            ("none", "b", "opencl"),
            ("none", "none", "wgpu"),
        ] {
            let other = Caps {
                device: device.to_owned(),
                driver: driver.to_owned(),
                backend,
                ..Caps::generic_gpu()
            };
            assert!(!is_right(&store, &other, &spec(1)), "{device} {driver} {backend}");
        }
    }

    #[test]
    fn a_checksum_is_of_all_that_a_program_is_made_of() {
        static SINGLE: Kernel = crate::kernel!("softmax" { rows, cols: U32 } [x: In, y: Out Single]);
        static FIELDS: Kernel = crate::kernel!("softmax" { rows: U32 } [x: In, y: Out]);
        assert_eq!(TWIN.checksum(), FAST.checksum(), "the same programs");
        for other in [&SINGLE, &FIELDS] {
            assert_ne!(
                TWIN.checksum(),
                other.checksum(),
                "the same texts, other accessors"
            );
        }
    }

    #[test]
    fn programs_are_right_or_wrong_by_their_text() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().to_owned(), 1 << 20);
        let caps = Caps::generic_gpu();
        let of = |text: &str| program_result(Some(&store), &caps, "softmax in parts", text);
        assert_eq!(of("a"), None);
        store_program_result(&store, &caps, "softmax in parts", "a", true);
        store_program_result(&store, &caps, "softmax in parts", "b", false);
        assert_eq!((of("a"), of("b"), of("c")), (Some(true), Some(false), None));
        assert_eq!(program_result(None, &caps, "softmax in parts", "a"), None);
    }

    #[test]
    fn what_is_damaged_is_not_known() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().to_owned(), 1 << 20);
        let caps = without(&Caps::generic_gpu(), &FAST, "softmax");
        keep_right(&store, &caps, &spec(1));
        store_quarantined(&store, &caps);
        assert_eq!(
            quarantined(Some(&store), &Caps::generic_gpu()),
            caps.profile.quarantined
        );
        for file in store.entries().unwrap() {
            let mut bytes = std::fs::read(&file.path).unwrap();
            if let Some(last) = bytes.last_mut() {
                *last ^= 1;
            }
            std::fs::write(&file.path, bytes).unwrap();
        }
        assert!(!is_right(&store, &caps, &spec(1)));
        assert_eq!(quarantined(Some(&store), &Caps::generic_gpu()), Vec::new());
        // Whole, but of another form.
        store.put(Kind::Verdict, &list_key(&caps), b"{");
        assert_eq!(quarantined(Some(&store), &Caps::generic_gpu()), Vec::new());
        assert_eq!(quarantined(None, &Caps::generic_gpu()), Vec::new());
    }

    #[test]
    fn a_variant_is_taken_where_it_can_be_and_is_not_quarantined() {
        let generic = DeviceProfile::generic_gpu();
        let mut device = DeviceProfile {
            fast_local: true,
            ..generic.clone()
        };
        assert!(device.supports(&FAST) && device.supports(&TWIN));
        assert!(!generic.supports(&FAST) && generic.supports(&TWIN));
        device.quarantine(&FAST, "softmax", "wrong");
        device.quarantine(&FAST, "softmax", "wrong again");
        assert_eq!(device.quarantined.len(), 1);
        assert!(!device.supports(&FAST));
        device.quarantined[0].checksum ^= 1;
        assert!(device.supports(&FAST), "another text is tried anew");
    }

    #[test]
    fn a_kernel_that_reads_images_is_a_form_of_itself() {
        let mut device = DeviceProfile::generic_gpu();
        device.images.reads = Some(ImageKind::Image1dBuffer);
        let spec = KernelSpec {
            kernel: &TWIN,
            images: BTreeMap::from([(0, ImageKind::Image1dBuffer)]),
            ..spec(4)
        };
        assert_eq!(spec.variants(), ["softmax images"]);
        assert_eq!(spec.without_images().variants(), Vec::<String>::new());
        assert_eq!(device.images_of(&TWIN), Some(ImageKind::Image1dBuffer));
        device.quarantine(&TWIN, "softmax images", "wrong");
        assert!(device.images_of(&TWIN).is_none() && device.supports(&TWIN));
    }

    #[test]
    fn a_form_is_taken_or_left_by_itself() {
        static FORMS: Kernel = crate::kernel!("softmax" { rows, cols: U32 } [x: In, y: Out]).with_forms(&[
            Form {
                define: "WIDE",
                needs: |c| c.fast_local,
                features: Features::NONE,
            },
            Form {
                define: "ROWS",
                needs: |_| true,
                features: Features::NONE,
            },
        ]);
        let generic = DeviceProfile::generic_gpu();
        let mut able = DeviceProfile {
            fast_local: true,
            ..generic.clone()
        };
        assert!(able.supports_form(&FORMS, "WIDE") && !generic.supports_form(&FORMS, "WIDE"));
        assert!(!able.supports_form(&FORMS, "OTHER") && !able.supports_form(&TWIN, "ROWS"));
        let spec = KernelSpec {
            kernel: &FORMS,
            ..spec(4)
        };
        assert_eq!(spec.variants(), ["softmax ROWS"]);
        able.quarantine(&FORMS, "softmax ROWS", "wrong");
        assert!(
            able.supports(&FORMS)
                && able.supports_form(&FORMS, "WIDE")
                && !able.supports_form(&FORMS, "ROWS")
        );
    }
}
