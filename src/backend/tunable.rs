//! Kernel settings, such as tile sizes, that can be chosen by measurement on a device.
//!
//! A kernel family takes part with a [`Tunable`] and by calling [`Tunable::of`] in `lower`, whose
//! answer is passed to the call ([`crate::lower::Call::tuned_by`]). A choice applies only to
//! what it was measured for, as named by the text of the shape (including bounds of symbols).
//! Everything else uses the default.

use super::DeviceProfile;
use super::kernel::Kernel;
use super::kernel::subgroup_size::SubgroupSize;
use std::fmt;

/// A kernel with settings that can be tuned.
#[derive(Debug)]
pub struct Tunable {
    pub kernel: &'static Kernel,
    /// Names of the settings. [`SUBGROUP_SETTING`] is a subgroup size ([`SubgroupSize::of`]);
    /// [`BY_IMAGE`] is 1 or 0.
    pub names: &'static [&'static str],
    /// The valid settings on a device, the default first.
    pub choices: fn(&DeviceProfile) -> Vec<Vec<u32>>,
}

/// The settings chosen for a kernel and a shape.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Tuned {
    /// Name of the kernel.
    pub kernel: String,
    /// Checksum of the kernel's source; the entry is ignored if the source has changed.
    pub checksum: u32,
    /// The shape; [`ANY`] for every shape without an entry of its own.
    pub shape: String,
    pub choice: Vec<u32>,
}

/// Name of the setting for the subgroup size.
pub const SUBGROUP_SETTING: &str = "wave";

/// Name of the setting that is 1 if weights are read through an image.
pub const BY_IMAGE: &str = "weights by image";

/// See [`Tuned::shape`].
pub const ANY: &str = "*";

/// The settings of a dispatch.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// The kernel and its settings.
    pub tunable: &'static Tunable,
    pub shape: String,
    pub choice: Vec<u32>,
    /// Whether they are the default.
    pub is_default: bool,
}

impl Tunable {
    /// The settings of a dispatch for `shape` on a device.
    pub fn of(&'static self, device: &DeviceProfile, shape: String) -> Tuning {
        let choices = (self.choices)(device);
        let entry = |shape: &str| {
            let of = |t: &&Tuned| t.kernel == self.kernel.name && t.shape == shape;
            let found = device.tuned.iter().find(of)?;
            let right = found.checksum == self.kernel.checksum() && choices.contains(&found.choice);
            right.then(|| found.choice.clone())
        };
        let chosen = entry(&shape).or_else(|| entry(ANY));
        let default = choices.first().cloned().unwrap_or_default();
        Tuning {
            tunable: self,
            shape,
            is_default: chosen.as_ref().is_none_or(|c| *c == default),
            choice: chosen.unwrap_or(default),
        }
    }

    /// An entry for [`DeviceProfile::tuned`].
    pub fn entry(&self, shape: &str, choice: &[u32]) -> Tuned {
        Tuned {
            kernel: self.kernel.name.to_owned(),
            checksum: self.kernel.checksum(),
            shape: shape.to_owned(),
            choice: choice.to_vec(),
        }
    }

    /// The settings with their names, followed by the subgroup size and the image use if set.
    pub fn text(&self, choice: &[u32]) -> String {
        let parts = self.names.iter().zip(choice);
        parts
            .filter_map(|(n, v)| match *n {
                SUBGROUP_SETTING => SubgroupSize::of(*v).map(|subgroup| subgroup.to_string()),
                BY_IMAGE => (*v > 0).then(|| BY_IMAGE.to_owned()),
                _ => Some(format!("{n} {v}")),
            })
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// The subgroup size in these settings.
    pub fn subgroup_size(&self, choice: &[u32]) -> Option<SubgroupSize> {
        SubgroupSize::of(self.number(SUBGROUP_SETTING, choice))
    }

    /// Whether weights are read through an image with these settings.
    pub fn is_by_image(&self, choice: &[u32]) -> bool {
        self.number(BY_IMAGE, choice) > 0
    }

    /// The setting with this name; 0 if there is none.
    fn number(&self, name: &str, choice: &[u32]) -> u32 {
        let mut parts = self.names.iter().zip(choice);
        parts.find(|(n, _)| **n == name).map_or(0, |(_, v)| *v)
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.tunable.kernel.name, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static KERNEL: Kernel = crate::kernel!("reduce/softmax" { rows, cols: U32 } [x: In, y: Out]);
    static TUNABLE: Tunable = Tunable {
        kernel: &KERNEL,
        names: &["rows", "items"],
        choices: |device| {
            [[1, 64], [2, 64], [4, device.max_workgroup]]
                .map(Vec::from)
                .into()
        },
    };

    #[test]
    fn what_is_chosen_is_taken_where_it_is_right() {
        let of = |tuned: Vec<Tuned>, shape: &str| {
            let device = DeviceProfile {
                tuned,
                ..DeviceProfile::generic_gpu()
            };
            let tuning = TUNABLE.of(&device, shape.to_owned());
            (tuning.choice, tuning.is_default)
        };
        let default = (vec![1, 64], true);
        assert_eq!(of(Vec::new(), "a"), default);
        let a = TUNABLE.entry("a", &[2, 64]);
        assert_eq!(of(vec![a.clone()], "a"), (vec![2, 64], false));
        assert_eq!(of(vec![a.clone()], "b"), default);
        let any = TUNABLE.entry(ANY, &[4, 1024]);
        assert_eq!(of(vec![any.clone(), a.clone()], "a"), (vec![2, 64], false));
        assert_eq!(of(vec![any, a.clone()], "b"), (vec![4, 1024], false));
        // No set of numbers of this device, or of other texts.
        assert_eq!(of(vec![TUNABLE.entry("a", &[4, 64])], "a"), default);
        let mut old = a;
        old.checksum ^= 1;
        assert_eq!(of(vec![old], "a"), default);
        assert_eq!(TUNABLE.text(&[2, 64]), "rows 2, items 64");
        let tunable = Tunable {
            names: &["rows", SUBGROUP_SETTING, BY_IMAGE],
            ..TUNABLE
        };
        let named = |subgroup: SubgroupSize| format!("rows 2, {subgroup}");
        assert_eq!(
            tunable.text(&[2, 2, 1]),
            format!("{}, {BY_IMAGE}", named(SubgroupSize::Full))
        );
        assert!(tunable.is_by_image(&[2, 2, 1]) && !tunable.is_by_image(&[2, 2, 0]));
        let texts = [0, 1, 16].map(|subgroup| tunable.text(&[2, subgroup, 0]));
        assert_eq!(
            texts,
            [
                "rows 2".to_owned(),
                named(SubgroupSize::Half),
                named(SubgroupSize::Lanes(16))
            ]
        );
        assert_eq!(
            [0, 1].map(|n| tunable.subgroup_size(&[2, n, 0])),
            [None, Some(SubgroupSize::Half)]
        );
    }
}
