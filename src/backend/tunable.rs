//! Numbers of kernels, such as sizes of tiles, that measuring on a device may choose.
//!
//! A family joins by a [`Tunable`] and by asking [`Tunable::of`] in `lower`, whose answer goes to the call
//! ([`crate::plan::lower::Call::tuned_by`]). What is chosen belongs to all that the choice was measured for, which the text of the shape names, bounds
//! of symbols included; anything else takes the default.

use super::Caps;
use super::kernel::Kernel;
use super::wave::Wave;
use std::fmt;

/// A kernel with numbers that may be chosen.
#[derive(Debug)]
pub struct Tunable {
    /// The kernel.
    pub kernel: &'static Kernel,
    /// What the numbers are; [`ASKED_WAVE`] of a wave ([`Wave::of`]), [`BY_IMAGE`] of 1 or 0.
    pub names: &'static [&'static str],
    /// The sets of numbers that are right on a device, the default first.
    pub choices: fn(&Caps) -> Vec<Vec<u32>>,
}

/// What was chosen for a kernel and a shape.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Tuned {
    /// Name of the kernel.
    pub kernel: String,
    /// [`Kernel::checksum`]; for other texts it counts no more.
    pub checksum: u32,
    /// The shape; [`ANY`] for each that has no entry of its own.
    pub shape: String,
    /// The numbers.
    pub choice: Vec<u32>,
}

/// The name of the number of a wave.
pub const ASKED_WAVE: &str = "wave";

/// The name of the number that is 1 where weights are read through an image.
pub const BY_IMAGE: &str = "weights by image";

/// See [`Tuned::shape`].
pub const ANY: &str = "*";

/// The numbers by which a dispatch is cut.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// The kernel and what it can be cut by.
    pub tunable: &'static Tunable,
    /// What it computes.
    pub shape: String,
    /// The numbers.
    pub choice: Vec<u32>,
    /// They are the default.
    pub is_default: bool,
}

impl Tunable {
    /// What a dispatch for `shape` is cut by on a device.
    pub fn of(&'static self, caps: &Caps, shape: String) -> Tuning {
        let choices = (self.choices)(caps);
        let entry = |shape: &str| {
            let of = |t: &&Tuned| t.kernel == self.kernel.name && t.shape == shape;
            let found = caps.tuned.iter().find(of)?;
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

    /// An entry for [`Caps::tuned`].
    pub fn entry(&self, shape: &str, choice: &[u32]) -> Tuned {
        Tuned {
            kernel: self.kernel.name.to_owned(),
            checksum: self.kernel.checksum(),
            shape: shape.to_owned(),
            choice: choice.to_vec(),
        }
    }

    /// Numbers with their names, the wave, if one is asked for, and what is read through an image.
    pub fn text(&self, choice: &[u32]) -> String {
        let parts = self.names.iter().zip(choice);
        parts
            .filter_map(|(n, v)| match *n {
                ASKED_WAVE => Wave::of(*v).map(|wave| wave.to_string()),
                BY_IMAGE => (*v > 0).then(|| BY_IMAGE.to_owned()),
                _ => Some(format!("{n} {v}")),
            })
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// The wave of these numbers.
    pub fn wave(&self, choice: &[u32]) -> Option<Wave> {
        Wave::of(self.number(ASKED_WAVE, choice))
    }

    /// By these numbers weights are read through an image.
    pub fn is_by_image(&self, choice: &[u32]) -> bool {
        self.number(BY_IMAGE, choice) > 0
    }

    /// The number of this name; 0 where there is none.
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

    static KERNEL: Kernel = crate::kernel!(softmax { rows: U32, cols: U32 } [x: In Elem, y: Out Elem]);
    static TUNABLE: Tunable = Tunable {
        kernel: &KERNEL,
        names: &["rows", "items"],
        choices: |caps| [[1, 64], [2, 64], [4, caps.max_workgroup]].map(Vec::from).into(),
    };

    #[test]
    fn what_is_chosen_is_taken_where_it_is_right() {
        let of = |tuned: Vec<Tuned>, shape: &str| {
            let caps = Caps {
                tuned,
                ..Caps::neutral()
            };
            let tuning = TUNABLE.of(&caps, shape.to_owned());
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
        let waves = Tunable {
            names: &["rows", ASKED_WAVE, BY_IMAGE],
            ..TUNABLE
        };
        let named = |wave: Wave| format!("rows 2, {wave}");
        assert_eq!(
            waves.text(&[2, 2, 1]),
            format!("{}, {BY_IMAGE}", named(Wave::Full))
        );
        assert!(waves.is_by_image(&[2, 2, 1]) && !waves.is_by_image(&[2, 2, 0]));
        let texts = [0, 1, 16].map(|wave| waves.text(&[2, wave, 0]));
        assert_eq!(
            texts,
            ["rows 2".to_owned(), named(Wave::Half), named(Wave::Lanes(16))]
        );
        assert_eq!([0, 1].map(|n| waves.wave(&[2, n, 0])), [None, Some(Wave::Half)]);
    }
}
