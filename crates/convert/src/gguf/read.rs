//! Reading of GGUF files, versions 2 and 3, through a memory map.

use super::dequant::{self, GgmlType};
use crate::memory;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::{Error, ErrorKind, Result, Stage};
use transformer_lite::unstable::files::kind::{self, GGUF_MAGIC as MAGIC};
use transformer_lite::unstable::files::read::open_file;
use transformer_lite::unstable::mapped::Mapped;
use transformer_lite::unstable::tensor::Bytes;

/// Bytes of magic number, version and two counts.
const HEADER: u64 = 24;
const DEFAULT_ALIGNMENT: u64 = 32;
/// Arrays may hold arrays, up to this depth.
const MAX_DEPTH: usize = 4;
/// A tensor has at most this many sizes.
const MAX_DIMS: u32 = 4;
/// Fewest bytes of a metadata entry: length of the key, type, value.
const MIN_ENTRY: u64 = 8 + 4 + 1;
/// Fewest bytes of a tensor entry: length of the name, number of sizes, one size, type, offset.
const MIN_TENSOR: u64 = 8 + 4 + 8 + 4 + 8;

/// Bytes of memory that a short text in an array takes, roughly.
const ITEM: usize = 64;

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    /// Values of one type.
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Value {
    /// Name of the value's type.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::F32(_) => "f32",
            Self::Bool(_) => "bool",
            Self::String(_) => "string",
            Self::Array(_) => "array",
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F64(_) => "f64",
        }
    }

    /// A non-negative integer of any width.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::U64(v) => Some(v),
            Self::I8(v) => v.try_into().ok(),
            Self::I16(v) => v.try_into().ok(),
            Self::I32(v) => v.try_into().ok(),
            Self::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// A number with a fractional part, rounded to `f32`.
    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Self::F32(v) => Some(v),
            #[expect(clippy::cast_possible_truncation, reason = "rounding is meant")]
            Self::F64(v) => Some(v as f32),
            _ => None,
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(v) = self { Some(*v) } else { None }
    }

    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(v) = self { Some(v) } else { None }
    }

    pub fn as_strings(&self) -> Option<&[String]> {
        if let Self::Array(Array::String(v)) = self {
            Some(v)
        } else {
            None
        }
    }
}

impl Array {
    /// Its items as integers, if they are.
    pub fn integers(&self) -> Option<Vec<i128>> {
        macro_rules! wide {
            ($v:expr) => {
                Some($v.iter().map(|v| i128::from(*v)).collect())
            };
        }
        match self {
            Self::U8(v) => wide!(v),
            Self::I8(v) => wide!(v),
            Self::U16(v) => wide!(v),
            Self::I16(v) => wide!(v),
            Self::U32(v) => wide!(v),
            Self::I32(v) => wide!(v),
            Self::U64(v) => wide!(v),
            Self::I64(v) => wide!(v),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::String(_) | Self::Array(_) => None,
        }
    }
}

/// An entry of the tensor table. Its data lie inside the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, unique in the file.
    pub name: String,
    /// Sizes in the order of the file: the innermost first.
    pub dims: Vec<usize>,
    /// Type of the stored blocks.
    pub ggml_type: GgmlType,
    pub elements: usize,
    /// Index of the file that has it.
    part: usize,
    /// First byte in that file.
    start: usize,
    /// Length in bytes; `None` for a type with an unknown layout.
    bytes: Option<usize>,
}

impl TensorInfo {
    /// Length in bytes; `None` for a type with an unknown layout.
    pub fn bytes(&self) -> Option<usize> {
        self.bytes
    }
}

/// An open GGUF file, or several that a model is split into.
pub struct Gguf {
    /// The first file.
    path: PathBuf,
    /// Further files.
    others: Vec<PathBuf>,
    sources: Vec<Box<dyn Bytes>>,
    version: u32,
    metadata: Vec<(String, Value)>,
    keys: HashMap<String, usize>,
    tensors: Vec<TensorInfo>,
    names: HashMap<String, usize>,
}

/// Reads the header front to back; every error names the file.
struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

macro_rules! scalar {
    ($self:ident, $t:ty) => {{
        let mut raw = [0u8; size_of::<$t>()];
        raw.copy_from_slice($self.take(size_of::<$t>() as u64)?);
        <$t>::from_le_bytes(raw)
    }};
}

macro_rules! scalars {
    ($self:ident, $t:ty, $count:expr, $what:expr) => {{
        const SIZE: usize = size_of::<$t>();
        let length = $self.array_bytes($count, SIZE as u64)?;
        let raw = $self.take(length)?;
        let items = raw.as_chunks::<SIZE>().0;
        let mut out = memory::room(items.len(), $what)?;
        out.extend(items.iter().map(|b| <$t>::from_le_bytes(*b)));
        out
    }};
}

impl<'a> Cursor<'a> {
    /// An error for content that contradicts the format.
    fn bad(&self, what: impl fmt::Display) -> Error {
        Error::damaged(Stage::Convert, self.path, format!("at byte {}: {what}", self.at))
    }

    /// An error for a file that should have `length` more bytes here.
    fn cut_off(&self, length: u64) -> Error {
        let needs = (self.at as u64).saturating_add(length);
        Error::cut_off(Stage::Convert, self.path, needs, self.bytes.len() as u64)
    }

    /// The version of the format, at the start of a file.
    fn version(&mut self) -> Result<u32> {
        let bytes = self.bytes;
        if !bytes.starts_with(&MAGIC) && !MAGIC.starts_with(bytes) {
            let start = bytes.get(..MAGIC.len()).unwrap_or(bytes).escape_ascii();
            let what = kind::explained(&format!("not a GGUF file (it begins with \"{start}\")"), bytes);
            return Err(Error::file(Stage::Convert, self.path, what));
        }
        self.array_bytes(1, HEADER)?;
        self.take(MAGIC.len() as u64)?;
        let version = self.u32()?;
        if (2..=3).contains(&version) {
            return Ok(version);
        }
        let order = match (2..=3).contains(&version.swap_bytes()) {
            true => " (a big-endian file)",
            false => "",
        };
        let what = format!("expected GGUF version 2 or 3, found {version}{order}");
        Err(Error::file(Stage::Convert, self.path, what))
    }

    fn left(&self) -> u64 {
        self.bytes.len().saturating_sub(self.at) as u64
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8]> {
        let slice = usize::try_from(length)
            .ok()
            .and_then(|n| self.at.checked_add(n))
            .and_then(|end| self.bytes.get(self.at..end))
            .ok_or_else(|| self.cut_off(length))?;
        self.at += slice.len();
        Ok(slice)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(scalar!(self, u32))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(scalar!(self, u64))
    }

    fn bool(&mut self, what: &str) -> Result<bool> {
        match scalar!(self, u8) {
            0 => Ok(false),
            1 => Ok(true),
            v => Err(self.bad(format!("{what}: expected the truth value 0 or 1, found {v}"))),
        }
    }

    fn string(&mut self, what: &str) -> Result<String> {
        let length = self.u64()?;
        let raw = self.take(length)?;
        std::str::from_utf8(raw)
            .map(str::to_owned)
            .map_err(|e| self.bad(format!("{what}: expected UTF-8 text: {e}")))
    }

    /// Bytes of `count` items of at least `size` bytes. An error if the file has fewer.
    fn array_bytes(&self, count: u64, size: u64) -> Result<u64> {
        let bytes = count.saturating_mul(size);
        if bytes <= self.left() {
            Ok(bytes)
        } else {
            Err(self.cut_off(bytes))
        }
    }

    /// Reads `count` items of an array, which the file can hold.
    fn items<T>(&mut self, count: u64, what: &str, read: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let length = usize::try_from(count).map_err(|e| self.bad(format!("{what}: {e}")))?;
        // Texts and nested arrays are allocated one by one.
        memory::check(length.saturating_mul(ITEM), what)?;
        let mut out = memory::room(length, what)?;
        for _ in 0..count {
            out.push(read(self)?);
        }
        Ok(out)
    }

    fn value(&mut self, what: &str) -> Result<Value> {
        let code = self.u32()?;
        Ok(match code {
            0 => Value::U8(scalar!(self, u8)),
            1 => Value::I8(scalar!(self, i8)),
            2 => Value::U16(scalar!(self, u16)),
            3 => Value::I16(scalar!(self, i16)),
            4 => Value::U32(scalar!(self, u32)),
            5 => Value::I32(scalar!(self, i32)),
            6 => Value::F32(scalar!(self, f32)),
            7 => Value::Bool(self.bool(what)?),
            8 => Value::String(self.string(what)?),
            9 => Value::Array(self.array(what, 1)?),
            10 => Value::U64(scalar!(self, u64)),
            11 => Value::I64(scalar!(self, i64)),
            12 => Value::F64(scalar!(self, f64)),
            _ => return Err(self.bad(format!("{what}: expected a value type of 0 to 12, found {code}"))),
        })
    }

    fn array(&mut self, what: &str, depth: usize) -> Result<Array> {
        if depth > MAX_DEPTH {
            return Err(self.bad(format!("{what}: arrays are nested more than {MAX_DEPTH} deep")));
        }
        let code = self.u32()?;
        let count = self.u64()?;
        Ok(match code {
            0 => Array::U8(scalars!(self, u8, count, what)),
            1 => Array::I8(scalars!(self, i8, count, what)),
            2 => Array::U16(scalars!(self, u16, count, what)),
            3 => Array::I16(scalars!(self, i16, count, what)),
            4 => Array::U32(scalars!(self, u32, count, what)),
            5 => Array::I32(scalars!(self, i32, count, what)),
            6 => Array::F32(scalars!(self, f32, count, what)),
            7 => {
                self.array_bytes(count, 1)?;
                Array::Bool(self.items(count, what, |c| c.bool(what))?)
            }
            8 => {
                self.array_bytes(count, 8)?;
                Array::String(self.items(count, what, |c| c.string(what))?)
            }
            9 => {
                self.array_bytes(count, 12)?;
                Array::Array(self.items(count, what, |c| c.array(what, depth + 1))?)
            }
            10 => Array::U64(scalars!(self, u64, count, what)),
            11 => Array::I64(scalars!(self, i64, count, what)),
            12 => Array::F64(scalars!(self, f64, count, what)),
            _ => return Err(self.bad(format!("{what}: expected an item type of 0 to 12, found {code}"))),
        })
    }

    /// A table entry, with the offset in the data section.
    fn tensor(&mut self, index: u64) -> Result<(TensorInfo, u64)> {
        let name = self.string(&format!("name of tensor {index}"))?;
        let what = format!("tensor \"{name}\"");
        let rank = self.u32()?;
        if rank == 0 || rank > MAX_DIMS {
            return Err(self.bad(format!("{what}: expected 1 to {MAX_DIMS} sizes, found {rank}")));
        }
        let sizes = (0..rank).map(|_| self.u64()).collect::<Result<Vec<_>>>()?;
        let dims: Option<Vec<usize>> = sizes
            .iter()
            .map(|d| usize::try_from(*d).ok().filter(|d| *d > 0))
            .collect();
        let dims = dims.ok_or_else(|| self.bad(format!("{what}: sizes {sizes:?} cannot be used")))?;
        let elements = dims
            .iter()
            .try_fold(1usize, |n, d| n.checked_mul(*d))
            .filter(|n| {
                n.checked_mul(size_of::<f64>())
                    .is_some_and(|b| isize::try_from(b).is_ok())
            })
            .ok_or_else(|| self.bad(format!("{what}: sizes {dims:?} are too large")))?;
        let ggml_type = GgmlType(self.u32()?);
        let offset = self.u64()?;
        let bytes = match ggml_type.block() {
            None => None,
            Some((per_block, size)) => {
                let row = dims.first().copied().unwrap_or(1);
                if row % per_block != 0 {
                    return Err(self.bad(format!(
                        "{what}: rows of {row} elements are not a multiple of the {per_block} of a {ggml_type} block"
                    )));
                }
                let bytes = (elements / per_block).checked_mul(size);
                Some(bytes.ok_or_else(|| self.bad(format!("{what}: sizes {dims:?} are too large")))?)
            }
        };
        Ok((
            TensorInfo {
                name,
                dims,
                ggml_type,
                elements,
                part: 0,
                start: 0,
                bytes,
            },
            offset,
        ))
    }
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, tensors) = (&self.path, self.tensors.len());
        f.debug_struct("Gguf")
            .field("path", path)
            .field("tensors", &tensors)
            .finish_non_exhaustive()
    }
}

impl Gguf {
    /// Opens a file and reads its metadata and tensor table; tensor data are only mapped.
    ///
    /// An error for anything but a complete little-endian GGUF file of version 2 or 3: each length,
    /// count and offset is checked against the size of the file before use. The file must not
    /// change while it is open.
    pub(super) fn open_one(path: &Path) -> Result<Self> {
        let (file, length) = open_file(path)?;
        if length == 0 {
            // An empty file cannot be mapped.
            let what = kind::explained("not a GGUF file", &[]);
            return Err(Error::file(Stage::Convert, path, what));
        }
        let map = Mapped::new(&file).map_err(|e| Error::io("cannot map", path, e))?;
        Self::from_bytes(path, Box::new(map))
    }

    /// Reads a file in memory; errors name it `path`.
    pub fn from_bytes(path: &Path, source: Box<dyn Bytes>) -> Result<Self> {
        let bytes = source.bytes();
        let mut c = Cursor { path, bytes, at: 0 };
        let version = c.version()?;
        let tensor_count = c.u64()?;
        let entry_count = c.u64()?;
        c.array_bytes(tensor_count, MIN_TENSOR)?;
        c.array_bytes(entry_count, MIN_ENTRY)?;

        let mut metadata = Vec::new();
        let mut keys = HashMap::new();
        for index in 0..entry_count {
            let key = c.string(&format!("key {index}"))?;
            let value = c.value(&format!("value of \"{key}\""))?;
            if keys.insert(key.clone(), metadata.len()).is_some() {
                return Err(c.bad(format!("the key \"{key}\" occurs twice")));
            }
            metadata.push((key, value));
        }
        let alignment = match keys.get("general.alignment").and_then(|i| metadata.get(*i)) {
            None => DEFAULT_ALIGNMENT,
            Some((_, v)) => v
                .as_u64()
                .filter(|a| a.is_power_of_two() && *a <= 1 << 30)
                .ok_or_else(|| c.bad(format!("general.alignment: expected a power of two, found {v:?}")))?,
        };

        let mut entries = Vec::new();
        let mut names = HashMap::new();
        for index in 0..tensor_count {
            let (info, offset) = c.tensor(index)?;
            if names.insert(info.name.clone(), entries.len()).is_some() {
                return Err(c.bad(format!("the tensor \"{}\" occurs twice", info.name)));
            }
            entries.push((info, offset));
        }
        let data_start = (c.at as u64).next_multiple_of(alignment);
        let size = bytes.len() as u64;
        let (mut tensors, mut end, mut cut) = (Vec::new(), data_start, None);
        for (mut info, offset) in entries {
            if offset % alignment != 0 {
                let what = format!(
                    "tensor \"{}\": offset {offset} is not a multiple of the alignment {alignment}",
                    info.name
                );
                return Err(Error::damaged(Stage::Convert, path, what));
            }
            let start = data_start.saturating_add(offset);
            let its_end = start.saturating_add(info.bytes.unwrap_or(0) as u64);
            if its_end > size && cut.is_none() {
                cut = Some(format!("tensor \"{}\" at bytes {start} to {its_end}", info.name));
            }
            end = end.max(its_end);
            info.start = usize::try_from(start).unwrap_or(usize::MAX);
            tensors.push(info);
        }
        // The end of the last tensor is what a whole file has at least.
        if let Some(tensor) = cut {
            let what = format!("it ends at byte {size}, before the end of {tensor}; {end} bytes needed");
            return Err(Error::damaged(Stage::Convert, path, what));
        }
        Ok(Self {
            path: path.to_owned(),
            others: Vec::new(),
            sources: vec![source],
            version,
            metadata,
            keys,
            tensors,
            names,
        })
    }

    /// Adds the tensors of another part of the same model. An error for one that occurs twice.
    pub(super) fn append(&mut self, part: Self) -> Result<()> {
        for mut tensor in part.tensors {
            tensor.part = self.sources.len();
            let name = tensor.name.clone();
            if self.names.insert(name.clone(), self.tensors.len()).is_some() {
                let what = format!("the tensor \"{name}\" is in an earlier part too");
                return Err(Error::damaged(Stage::Convert, &part.path, what));
            }
            self.tensors.push(tensor);
        }
        self.others.push(part.path);
        self.sources.extend(part.sources);
        Ok(())
    }

    /// The file, or the first part of a model that is split.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All files of the model.
    pub fn paths(&self) -> Vec<PathBuf> {
        [&self.path].into_iter().chain(&self.others).cloned().collect()
    }

    /// Version of the format.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Metadata in the order of the file.
    pub fn metadata(&self) -> &[(String, Value)] {
        &self.metadata
    }

    /// Tensor table in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The value of a key, if present.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.keys
            .get(key)
            .and_then(|i| self.metadata.get(*i))
            .map(|(_, v)| v)
    }

    /// A tensor by name, if present.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.names.get(name).and_then(|i| self.tensors.get(*i))
    }

    /// An error that names this file.
    pub fn bad(&self, what: impl Into<String>) -> Error {
        Error::file(Stage::Convert, &self.path, what)
    }

    /// An error that names this file, which is valid, and what of it is not implemented.
    pub fn unsupported(&self, what: impl Into<String>) -> Error {
        self.bad(what).of_kind(ErrorKind::Unsupported)
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        get: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        self.get(key)
            .map(|v| {
                get(v).ok_or_else(|| {
                    self.bad(format!(
                        "metadata \"{key}\": expected {expected}, found a value of type {}",
                        v.kind()
                    ))
                })
            })
            .transpose()
    }

    /// A non-negative integer, if the key is present; an error for another type.
    pub fn opt_usize(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, "a non-negative integer", |v| {
            v.as_u64().and_then(|v| usize::try_from(v).ok())
        })
    }

    /// A number, if the key is present; an error for another type.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>> {
        self.typed(key, "a floating-point number", Value::as_f32)
    }

    /// A truth value, if the key is present; an error for another type.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a truth value", Value::as_bool)
    }

    /// Text, if the key is present; an error for another type.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", Value::as_str)
    }

    /// Texts, if the key is present; an error for another type.
    pub fn opt_strings(&self, key: &str) -> Result<Option<&[String]>> {
        self.typed(key, "an array of strings", Value::as_strings)
    }

    /// The value that a getter found, or an error that names the missing key.
    pub fn required<T>(&self, key: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.bad(format!("metadata \"{key}\" is missing")))
    }

    /// The stored bytes of a tensor. An error for a type with an unknown layout.
    pub fn data(&self, info: &TensorInfo) -> Result<&[u8]> {
        info.bytes
            .and_then(|n| {
                let source = self.sources.get(info.part)?;
                source.bytes().get(info.start..info.start.checked_add(n)?)
            })
            .ok_or_else(|| self.unsupported_type(info))
    }

    fn unsupported_type(&self, info: &TensorInfo) -> Error {
        self.unsupported(format!(
            "tensor \"{}\" has the unsupported type {}; supported: {}",
            info.name,
            info.ggml_type,
            dequant::SUPPORTED.map(|t| t.to_string()).join(", ")
        ))
    }

    /// The elements `first..first + out.len()` of a tensor as `f32`, the innermost size varying
    /// fastest. Both ends must be multiples of the type's block length, which every row is. An
    /// error for a type that cannot be decoded, and for an element that is not finite.
    pub fn read_f32(&self, info: &TensorInfo, first: usize, out: &mut [f32]) -> Result<()> {
        let data = self.data(info)?;
        let (per_block, size) = info
            .ggml_type
            .block()
            .ok_or_else(|| self.unsupported_type(info))?;
        let part = (first.is_multiple_of(per_block) && out.len().is_multiple_of(per_block))
            .then(|| data.get(first / per_block * size..first.checked_add(out.len())? / per_block * size))
            .flatten()
            .ok_or_else(|| {
                self.bad(format!(
                    "tensor \"{}\": elements {first} to {} do not exist",
                    info.name,
                    first.saturating_add(out.len())
                ))
            })?;
        if !dequant::dequantize(info.ggml_type, part, out) {
            return Err(self.unsupported_type(info));
        }
        match (first..).zip(&*out).find(|(_, v)| !v.is_finite()) {
            None => Ok(()),
            Some((element, v)) => {
                let (name, kind) = (&info.name, info.ggml_type);
                let at = info.start + element / per_block * size;
                let what = format!(
                    "tensor \"{name}\": element {element} is {v}; expected a finite number. Its {kind} block \
                     starts at byte {at} of the file"
                );
                let path = info.part.checked_sub(1).and_then(|i| self.others.get(i));
                Err(Error::file(Stage::Convert, path.unwrap_or(&self.path), what))
            }
        }
    }

    /// An error naming a tensor that cannot be decoded, if there is one.
    pub fn check_types(&self) -> Result<()> {
        let unknown = |t: &&TensorInfo| !dequant::SUPPORTED.contains(&t.ggml_type);
        self.tensors
            .iter()
            .find(unknown)
            .map_or(Ok(()), |t| Err(self.unsupported_type(t)))
    }

    /// An error naming a tensor that is not in `used`, if there is one.
    pub fn check_all_used(&self, used: &HashSet<String>) -> Result<()> {
        match self.tensors.iter().find(|t| !used.contains(&t.name)) {
            Some(t) => Err(self.bad(format!("tensor \"{}\" is not part of this architecture", t.name))),
            None => Ok(()),
        }
    }
}
