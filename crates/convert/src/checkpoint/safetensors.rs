//! Memory-mapped `safetensors` files: the header length in eight bytes, the header in JSON, the
//! tensors' bytes.

use crate::memory;
use half::{bf16, f16};
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::files::kind;
use transformer_lite::unstable::files::read::{open_file, read_config};
use transformer_lite::unstable::mapped::Mapped;
use transformer_lite::unstable::tensor::Bytes;

/// Maximum header size in the format, in bytes.
const MAX_HEADER: usize = 100_000_000;

/// An entry of the header.
#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

/// A tensor of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// Name in the file.
    pub name: &'a str,
    /// Type name in the format.
    pub dtype: &'a str,
    /// Sizes, outermost axis first.
    pub shape: &'a [usize],
    /// Little-endian elements.
    pub bytes: &'a [u8],
    path: &'a Path,
}

impl Tensor<'_> {
    /// An error about this tensor.
    pub fn bad(&self, what: impl AsRef<str>) -> Error {
        let what = format!("tensor \"{}\": {}", self.name, what.as_ref());
        Error::file(Stage::Convert, self.path, what)
    }

    /// An error unless it has this type and shape.
    pub fn expect(&self, dtype: &str, shape: &[usize]) -> Result<()> {
        self.expect_shape(shape)?;
        if self.dtype == dtype {
            return Ok(());
        }
        Err(self.bad(format!("expected elements of type {dtype}, found {}", self.dtype)))
    }

    /// An error unless it has this shape.
    pub fn expect_shape(&self, shape: &[usize]) -> Result<()> {
        if self.shape == shape {
            return Ok(());
        }
        let found = self.shape;
        Err(self.bad(format!(
            "expected shape {shape:?} from the configuration, found {found:?}"
        )))
    }

    /// The bits of element `i` of an `I32` tensor; 0 past the end.
    pub fn word(&self, i: usize) -> u32 {
        let bytes = self.bytes.as_chunks::<4>().0;
        bytes.get(i).map_or(0, |b| u32::from_le_bytes(*b))
    }

    /// All elements as `f32`. An error unless the shape matches and all are finite.
    pub fn finite(&self, shape: &[usize]) -> Result<Vec<f32>> {
        self.expect_shape(shape)?;
        let mut all = memory::zeros(shape.iter().product(), self.name)?;
        self.floats(0, &mut all)?;
        match all.iter().position(|v| !v.is_finite()) {
            Some(i) => Err(self.bad(format!("element {i} is {}", all[i]))),
            None => Ok(all),
        }
    }

    /// Elements `first .. first + out.len()` as `f32`. An error for types other than floats.
    pub fn floats(&self, first: usize, out: &mut [f32]) -> Result<()> {
        fn read<const N: usize>(
            bytes: &[u8],
            first: usize,
            out: &mut [f32],
            to: impl Fn([u8; N]) -> f32,
        ) -> bool {
            let end = first.checked_add(out.len());
            let part = end.and_then(|end| bytes.as_chunks::<N>().0.get(first..end));
            for (to_, from) in out.iter_mut().zip(part.unwrap_or_default()) {
                *to_ = to(*from);
            }
            part.is_some()
        }
        let there = match self.dtype {
            "F32" => read(self.bytes, first, out, f32::from_le_bytes),
            "F16" => read(self.bytes, first, out, |b| f16::from_le_bytes(b).to_f32()),
            "BF16" => read(self.bytes, first, out, |b| bf16::from_le_bytes(b).to_f32()),
            other => {
                return Err(self.bad(format!(
                    "expected elements of type F32, F16 or BF16, found {other}"
                )));
            }
        };
        if there {
            Ok(())
        } else {
            Err(self.bad(format!(
                "elements {first} to {} do not exist",
                first.saturating_add(out.len())
            )))
        }
    }
}

struct TensorEntry {
    file: usize,
    dtype: String,
    shape: Vec<usize>,
    bytes: Range<usize>,
}

/// The tensors of a checkpoint's files.
pub struct Shards {
    files: Vec<(PathBuf, Mapped)>,
    tensors: HashMap<String, TensorEntry>,
    names: Vec<String>,
}

/// Bits per element of known types.
fn bits(dtype: &str) -> Option<usize> {
    Some(match dtype {
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" => 8,
        "F16" | "BF16" | "I16" | "U16" => 16,
        "F32" | "I32" | "U32" => 32,
        "F64" | "I64" | "U64" => 64,
        _ => return None,
    })
}

/// The file that says which tensor is in which file of a checkpoint.
pub const INDEX: &str = "model.safetensors.index.json";

/// The files of a checkpoint: those listed in an index, or the only one.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let index = folder.join(INDEX);
    if index.is_file() {
        let text = read_config(&index)?;
        let parsed: Index = serde_json::from_slice(&text)
            .map_err(|e| Error::parse(Stage::Convert, &index, "invalid index of safetensors files", e))?;
        let mut names: Vec<&String> = parsed.weight_map.values().collect();
        names.sort();
        names.dedup();
        return names
            .into_iter()
            .map(|name| {
                if Path::new(name).file_name().is_some_and(|f| f == name.as_str()) {
                    return Ok(folder.join(name));
                }
                let what = format!("\"{name}\" is not a file name in the folder");
                Err(Error::file(Stage::Convert, &index, what))
            })
            .collect();
    }
    let whole = folder.join("model.safetensors");
    if whole.is_file() {
        return Ok(vec![whole]);
    }
    let entries = std::fs::read_dir(folder).map_err(|e| Error::io("cannot read", folder, e))?;
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == "safetensors"))
        .collect();
    found.sort();
    match found.len() {
        1 => Ok(found),
        0 => {
            let what = "there is no .safetensors file in the folder; download the weights too";
            Err(Error::file(Stage::Convert, folder, what))
        }
        n => {
            let what = format!(
                "there are {n} .safetensors files but no model.safetensors.index.json that lists them; download it too"
            );
            Err(Error::file(Stage::Convert, folder, what))
        }
    }
}

impl Shards {
    /// Opens the checkpoint in `folder`. All lengths and offsets are checked against the file size.
    /// The files must not change while they are open.
    pub fn open(folder: &Path) -> Result<Self> {
        let mut out = Self {
            files: Vec::new(),
            tensors: HashMap::new(),
            names: Vec::new(),
        };
        for path in files(folder)? {
            let (file, length) = open_file(&path).map_err(|e| match &e {
                Error::Io { source, .. } if source.kind() == ErrorKind::NotFound => {
                    let what =
                        "the file is missing; model.safetensors.index.json lists it, so download it too";
                    Error::file(Stage::Convert, &path, what)
                }
                _ => e,
            })?;
            if length == 0 {
                // An empty file cannot be mapped.
                let what = kind::explained("not a safetensors file", &[]);
                return Err(Error::file(Stage::Convert, &path, what));
            }
            let map = Mapped::new(&file).map_err(|e| Error::io("cannot map", &path, e))?;
            out.add(path, map)?;
        }
        Ok(out)
    }

    fn add(&mut self, path: PathBuf, map: Mapped) -> Result<()> {
        let bad = |what: String| Error::file(Stage::Convert, &path, what);
        let all = map.bytes();
        let length = all.first_chunk().map(|b| u64::from_le_bytes(*b));
        let length = length.and_then(|n| usize::try_from(n).ok());
        let cut_off = |needs: usize| Error::cut_off(Stage::Convert, &path, needs as u64, all.len() as u64);
        // The header is JSON; what else begins with a length is not known.
        let other = all.get(8).is_some_and(|first| *first != b'{') || length.is_some_and(|n| n > MAX_HEADER);
        if other {
            return Err(bad(kind::explained("not a safetensors file", all)));
        }
        let length = length.ok_or_else(|| cut_off(8))?;
        let header = all.get(8..8 + length).ok_or_else(|| cut_off(8 + length))?;
        let mut entries: BTreeMap<String, serde_json::Value> =
            serde_json::from_slice(header).map_err(|e| Error::damaged(Stage::Convert, &path, e))?;
        entries.remove("__metadata__");
        let data = 8 + header.len();
        let mut needs = data;
        for (name, entry) in entries {
            let bad =
                |what: String| Error::damaged(Stage::Convert, &path, format!("tensor \"{name}\": {what}"));
            let Entry {
                dtype,
                shape,
                data_offsets: [start, end],
            } = serde_json::from_value(entry).map_err(|e| bad(e.to_string()))?;
            let count = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
            let wanted = bits(&dtype)
                .zip(count)
                .and_then(|(bits, n)| Some(n.checked_mul(bits)? / 8));
            // The bytes of an unknown type are not checked.
            let fits = bits(&dtype).is_none() || wanted.is_some_and(|n| end.checked_sub(start) == Some(n));
            let range = data.checked_add(start).zip(data.checked_add(end));
            let Some((start, end)) = range.filter(|(start, end)| fits && start <= end) else {
                return Err(bad(format!("{dtype} {shape:?} at bytes {start} to {end}")));
            };
            needs = needs.max(end);
            let place = TensorEntry {
                file: self.files.len(),
                dtype,
                shape,
                bytes: start..end,
            };
            if self.tensors.insert(name.clone(), place).is_some() {
                return Err(bad("occurs twice".to_owned()));
            }
            self.names.push(name);
        }
        // The end of the last tensor is what a whole file has at least.
        if needs > all.len() {
            return Err(cut_off(needs));
        }
        self.files.push((path, map));
        Ok(())
    }

    /// Names of all tensors.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// A tensor by name.
    pub fn get(&self, name: &str) -> Option<Tensor<'_>> {
        let (name, place) = self.tensors.get_key_value(name)?;
        let (path, map) = self.files.get(place.file)?;
        Some(Tensor {
            name,
            dtype: &place.dtype,
            shape: &place.shape,
            bytes: map.bytes().get(place.bytes.clone())?,
            path,
        })
    }
}
