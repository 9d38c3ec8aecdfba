//! The folder of a fuzzing process, and pseudo-random numbers.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The folder `FUZZ_WORK`, which the caller creates and removes.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = std::env::var_os("FUZZ_WORK").map(PathBuf::from);
        folder.expect("FUZZ_WORK: expected an empty folder")
    })
}

/// Writes a file of [`folder`] and returns its path.
pub fn put(name: &str, data: &[u8]) -> PathBuf {
    let path = folder().join(name);
    std::fs::write(&path, data).expect("FUZZ_WORK can be written");
    path
}

/// Saves a finding.
pub fn save(target: &str, data: &[u8]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("findings");
    let path = folder.join(format!("{target}-panic-{:08x}", crc32fast::hash(data)));
    match std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, data)) {
        Ok(()) => eprintln!("Test unit written to {}", path.display()),
        Err(e) => eprintln!("{} cannot be written: {e}", path.display()),
    }
}

/// An input of the folders in `FUZZ_SEEDS`, which are separated by colons; `None` without the
/// variable. libFuzzer keeps no seeds if it cannot see what they reach.
pub fn seed(random: &mut Random) -> Option<&'static [u8]> {
    static SEEDS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    let seeds = SEEDS.get_or_init(|| {
        let folders = std::env::var("FUZZ_SEEDS").unwrap_or_default();
        let entries = folders.split(':').flat_map(std::fs::read_dir).flatten();
        let files = entries.map(|e| e.map(|e| e.path()).and_then(std::fs::read));
        files
            .collect::<Result<_, _>>()
            .expect("FUZZ_SEEDS: folders of files")
    });
    random.choose(seeds).map(Vec::as_slice)
}

/// A new empty folder in [`folder`], in place of an earlier one.
pub fn emptied(name: &str) -> PathBuf {
    let path = folder().join(name);
    if path.exists() {
        std::fs::remove_dir_all(&path).expect("FUZZ_WORK can be written");
    }
    std::fs::create_dir_all(&path).expect("FUZZ_WORK can be written");
    path
}

/// Splits at the first four zero bytes.
pub fn split(data: &[u8]) -> (&[u8], Option<&[u8]>) {
    match data.windows(4).position(|w| w == [0; 4]) {
        Some(at) => (&data[..at], Some(&data[at + 4..])),
        None => (data, None),
    }
}

/// Marsaglia's xorshift.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u32) -> Self {
        Self(u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `n`, or 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn choose<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        list.get(self.below(list.len()))
    }

    pub fn choose_mut<'a, T>(&mut self, list: &'a mut [T]) -> Option<&'a mut T> {
        list.get_mut(self.below(list.len()))
    }
}
