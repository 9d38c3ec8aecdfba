//! Kernel validation results per device: which kernels gave right results, and which variants are
//! quarantined because they did not. Also the measured kernel settings ([`super::tunable`]).
//!
//! Everything is kept in the [`Store`], so that a start checks nothing again. A result belongs to
//! the whole text of a specialised kernel, to device and driver, and to this version of the
//! library, which decides the arguments of a check. Damaged or missing entries are determined
//! again; without a store every start does so. If the list of quarantined variants is lost,
//! variants are checked again at their next use.

use super::kernel::KernelSpec;
use super::profile::{is_recent, seconds};
use super::tunable::Tuned;
use super::{BackendKind, Caps, Quarantined};
use crate::cache::{Key, Kind, Store};
use crate::error::Result;
use std::time::SystemTime;

/// Contents of the file of a kernel that gave right results.
const RIGHT: &[u8] = b"right";
/// Contents of the file of a kernel that gave wrong results.
const WRONG: &[u8] = b"wrong";
/// Start of the file of a program that did not build; the time in seconds since 1970 follows.
const REFUSED: &str = "refused ";

/// The first line of the text of a key.
fn origin(backend: &str) -> String {
    format!("// {} {backend}\n", env!("CARGO_PKG_VERSION"))
}

fn key(caps: &Caps, subject: String, text: &str) -> Key {
    Key {
        device: caps.device.clone(),
        driver: caps.driver.clone(),
        subject,
        text: origin(caps.backend) + text,
    }
}

/// `None` if the text cannot be expanded; compiling reports that.
fn key_of(caps: &Caps, spec: &KernelSpec) -> Option<Key> {
    let language = caps.profile.language()?;
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
    caps.profile.quarantined = quarantined(store, caps, SystemTime::now());
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

/// Variants quarantined on the device at the time `now`.
pub fn quarantined(store: Option<&Store>, caps: &Caps, now: SystemTime) -> Vec<Quarantined> {
    let list = store.and_then(|s| list(s, &list_key(caps), now));
    list.unwrap_or_default()
}

/// The stored list of quarantined variants; `None` if there is none.
fn list(store: &Store, key: &Key, now: SystemTime) -> Option<Vec<Quarantined>> {
    let bytes = store.get(Kind::Quarantine, key)?;
    match serde_json::from_slice::<Vec<Quarantined>>(&bytes) {
        Ok(mut all) => {
            all.retain(|q| !q.is_over(now));
            Some(all)
        }
        Err(e) => {
            log::warn!(
                "cannot read the list of quarantined kernels of {}: {e}; checking them again",
                key.device
            );
            None
        }
    }
}

/// Adds variants to the stored list. Another process may have extended it in the meantime.
pub fn store_quarantined(store: &Store, caps: &Caps, new: &[Quarantined]) {
    let mut all = quarantined(Some(store), caps, SystemTime::now());
    all.retain(|q| new.iter().all(|n| n.variant != q.variant));
    all.extend_from_slice(new);
    match serde_json::to_vec(&all) {
        Ok(bytes) => store.put(Kind::Quarantine, &list_key(caps), &bytes),
        Err(e) => log::warn!("cannot save the list of quarantined kernels: {e}"),
    }
}

/// The kernel variants that are quarantined on a device.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct DeviceQuarantine {
    /// Name of the backend.
    pub backend: &'static str,
    /// Name of the device.
    pub device: String,
    /// Names and versions of its driver.
    pub driver: String,
    /// The variants.
    pub kernels: Vec<Quarantined>,
}

impl Store {
    /// The kernel variants that this version of the library does not use, by device. Fails if the
    /// folder cannot be read.
    pub fn quarantined(&self) -> Result<Vec<DeviceQuarantine>> {
        let keys = self.entries_of(Some(Kind::Quarantine))?.into_iter();
        let keys = keys.filter_map(|entry| entry.key);
        let lists = keys.filter_map(|key| {
            let backend = BackendKind::ALL
                .into_iter()
                .find(|b| key.text == origin(b.name()))?;
            let kernels = list(self, &key, SystemTime::now())?;
            Some(DeviceQuarantine {
                backend: backend.name(),
                device: key.device,
                driver: key.driver,
                kernels,
            })
        });
        Ok(lists.filter(|list| !list.kernels.is_empty()).collect())
    }

    /// Ends the quarantine of all kernel variants and returns their number. Models that are loaded
    /// later try them again. Fails if a file cannot be removed.
    pub fn clear_quarantined(&self) -> Result<usize> {
        let count = self.quarantined()?.iter().map(|list| list.kernels.len()).sum();
        self.clear(Some(Kind::Quarantine)).map(|_| count)
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
            listed: list(store, &list_key(caps), SystemTime::now()).is_some(),
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
            store_quarantined(self.store, self.caps, &[]);
            self.listed = true;
        }
        for key in specs.filter_map(|spec| key_of(self.caps, spec)) {
            self.store.put(Kind::Verdict, &key, RIGHT);
        }
    }
}

/// The stored validation result of another program that a backend made from kernels: `true` if it
/// gave right results, `false` if it gave wrong ones or did not build. `program` is its name,
/// `text` its whole source including build options.
pub fn program_result(store: Option<&Store>, caps: &Caps, program: &str, text: &str) -> Option<bool> {
    let found = store?.get(Kind::Verdict, &key(caps, program.to_owned(), text))?;
    result_of(&found, SystemTime::now())
}

fn result_of(found: &[u8], now: SystemTime) -> Option<bool> {
    match found {
        RIGHT => Some(true),
        WRONG => Some(false),
        _ => {
            let since = std::str::from_utf8(found).ok()?.strip_prefix(REFUSED)?;
            is_recent(since.parse().ok()?, now).then_some(false)
        }
    }
}

/// Stores that a program did not build. It is tried again after
/// 7 days.
pub fn store_refused_program(store: &Store, caps: &Caps, program: &str, text: &str) {
    let result = format!("{REFUSED}{}", seconds(SystemTime::now()));
    let key = key(caps, program.to_owned(), text);
    store.put(Kind::Verdict, &key, result.as_bytes());
}

/// Stores the result that [`program_result`] returns.
pub fn store_program_result(store: &Store, caps: &Caps, program: &str, text: &str, is_right: bool) {
    let result = if is_right { RIGHT } else { WRONG };
    store.put(Kind::Verdict, &key(caps, program.to_owned(), text), result);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::kernel::image::ImageKind;
    use crate::backend::kernel::{Features, Form, Kernel};
    use crate::backend::profile::RETRY_AFTER;
    use crate::backend::{DeviceProfile, QuarantineCause};
    use crate::tensor::DType;
    use std::collections::BTreeMap;

    static TWIN: Kernel = crate::kernel!("reduce/softmax" { rows, cols: U32 } [x: In, y: Out]);
    static FAST: Kernel = crate::kernel!("reduce/softmax" { rows, cols: U32 } [x: In, y: Out])
        .variant_of(&TWIN, |c| c.fast_local);

    fn spec(rows: i64) -> KernelSpec {
        KernelSpec {
            kernel: &FAST,
            workgroup: 64,
            defines: BTreeMap::from([("ROWS", rows)]),
            operands: vec![Some(DType::F16); 2],
            in_place: None,
            epilogue: None,
            images: BTreeMap::new(),
        }
    }

    fn is_right(store: &Store, caps: &Caps, spec: &KernelSpec) -> bool {
        ValidatedKernels::new(store, caps).contains(spec)
    }

    fn keep_right(store: &Store, caps: &Caps, spec: &KernelSpec) {
        ValidatedKernels::new(store, caps).add(std::iter::once(spec));
    }

    fn wrong(kernel: &'static Kernel, variant: &str) -> Quarantined {
        Quarantined::new(kernel, variant, QuarantineCause::WrongResults, "wrong")
    }

    fn listed(store: Option<&Store>) -> Vec<Quarantined> {
        quarantined(store, &Caps::generic_gpu(), SystemTime::now())
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
        store_quarantined(&store, &caps, &[wrong(&FAST, "softmax")]);
        assert_eq!(listed(Some(&store)).len(), 1);
        // The second has no causes and times.
        let old = br#"[{"variant": "softmax", "checksum": 1, "why": "wrong"}]"#;
        for damage in [None, Some(&old[..]), Some(&b"{"[..])] {
            match damage {
                None => store.remove(Kind::Quarantine, &list_key(&caps)),
                Some(bytes) => store.put(Kind::Quarantine, &list_key(&caps), bytes),
            }
            assert!(!is_right(&store, &caps, &spec(1)), "{damage:?}");
            assert!(is_right(&store, &caps, &plain), "nothing else takes its place");
        }
    }

    #[test]
    fn what_two_processes_find_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().to_owned(), 1 << 20);
        for variant in ["softmax", "softmax WIDE", "softmax"] {
            store_quarantined(&store, &Caps::generic_gpu(), &[wrong(&FAST, variant)]);
        }
        let all = listed(Some(&store));
        let mut names: Vec<&str> = all.iter().map(|q| q.variant.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["softmax", "softmax WIDE"]);
    }

    #[test]
    fn what_may_pass_is_tried_again_after_some_days() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().to_owned(), 1 << 20);
        let caps = Caps::generic_gpu();
        let day = |day: u64| SystemTime::UNIX_EPOCH + RETRY_AFTER / 7 * u32::try_from(day).unwrap();
        let found = [
            ("softmax A", QuarantineCause::WrongResults),
            ("softmax B", QuarantineCause::DoesNotBuild),
            ("softmax C", QuarantineCause::LaunchRefused),
        ];
        let found = found.map(|(variant, cause)| Quarantined {
            since: seconds(day(100)),
            ..Quarantined::new(&FAST, variant, cause, "fails")
        });
        let bytes = serde_json::to_vec(&found).unwrap();
        store.put(Kind::Quarantine, &list_key(&caps), &bytes);
        let left = |now| quarantined(Some(&store), &caps, now);
        for now in [day(100), day(106)] {
            assert_eq!(left(now), found);
        }
        // The last is of a clock that was set back.
        for now in [day(107), day(10_000), day(99)] {
            assert_eq!(left(now), found[..1]);
        }
        let refused = format!("{REFUSED}{}", seconds(day(100)));
        let result = |now| result_of(refused.as_bytes(), now);
        assert_eq!((result(day(106)), result(day(107))), (Some(false), None));
        assert_eq!(result_of(b"refused soon", day(1)), None);
    }

    #[test]
    fn quarantined_kernels_are_listed_by_device_and_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().to_owned(), 1 << 20);
        assert_eq!(store.quarantined().unwrap(), []);
        let caps = Caps::generic_gpu();
        let other = Caps {
            backend: "wgpu",
            ..caps.clone()
        };
        keep_right(&store, &caps, &spec(1));
        assert_eq!(store.quarantined().unwrap(), [], "a list of nothing");
        for (caps, variants) in [(&caps, &["softmax", "softmax WIDE"][..]), (&other, &["softmax"])] {
            let new: Vec<_> = variants.iter().map(|v| wrong(&FAST, v)).collect();
            store_quarantined(&store, caps, &new);
        }
        let mut found = store.quarantined().unwrap();
        found.sort_by_key(|list| list.backend);
        let found: Vec<_> = found.iter().map(|l| (l.backend, l.kernels.len())).collect();
        assert_eq!(found, [("opencl", 2), ("wgpu", 1)]);
        assert_eq!(store.clear_quarantined().unwrap(), 3);
        assert_eq!(store.quarantined().unwrap(), []);
        assert!(!is_right(&store, &caps, &spec(1)), "it is checked again");
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
        static SINGLE: Kernel = crate::kernel!("reduce/softmax" { rows, cols: U32 } [x: In, y: Out Single]);
        static FIELDS: Kernel = crate::kernel!("reduce/softmax" { rows: U32 } [x: In, y: Out]);
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
        let of = |text: &str| program_result(Some(&store), &caps, "probe", text);
        assert_eq!(of("a"), None);
        store_program_result(&store, &caps, "probe", "a", true);
        store_program_result(&store, &caps, "probe", "b", false);
        assert_eq!((of("a"), of("b"), of("c")), (Some(true), Some(false), None));
        assert_eq!(program_result(None, &caps, "probe", "a"), None);
    }

    #[test]
    fn what_is_damaged_is_not_known() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().to_owned(), 1 << 20);
        let caps = Caps::generic_gpu();
        let found = [wrong(&FAST, "softmax")];
        keep_right(&store, &caps, &spec(1));
        store_quarantined(&store, &caps, &found);
        assert_eq!(listed(Some(&store)), found);
        for file in store.entries().unwrap() {
            let mut bytes = std::fs::read(&file.path).unwrap();
            if let Some(last) = bytes.last_mut() {
                *last ^= 1;
            }
            std::fs::write(&file.path, bytes).unwrap();
        }
        assert!(!is_right(&store, &caps, &spec(1)));
        assert_eq!(listed(Some(&store)), []);
        // Whole, but of another form.
        store.put(Kind::Quarantine, &list_key(&caps), b"{");
        assert_eq!(listed(Some(&store)), []);
        assert_eq!(listed(None), []);
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
        device.quarantine(wrong(&FAST, "softmax"));
        device.quarantine(wrong(&FAST, "softmax"));
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
        device.quarantine(wrong(&TWIN, "softmax images"));
        assert!(device.images_of(&TWIN).is_none() && device.supports(&TWIN));
    }

    #[test]
    fn a_form_is_taken_or_left_by_itself() {
        static FORMS: Kernel = crate::kernel!("reduce/softmax" { rows, cols: U32 } [x: In, y: Out])
            .with_forms(&[
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
        able.quarantine(wrong(&FORMS, "softmax ROWS"));
        assert!(
            able.supports(&FORMS)
                && able.supports_form(&FORMS, "WIDE")
                && !able.supports_form(&FORMS, "ROWS")
        );
    }
}
