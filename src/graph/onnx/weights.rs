//! Initializers: stored inline, or in memory-mapped files beside the model.

use super::panels::{LAYOUT, Stored};
use super::{dtype_of, proto};
use crate::error::{Error, Result, Stage};
use crate::files::read::open_file;
use crate::mapped::{Copied, Mapped};
use crate::tensor::{Bytes, DType, HostTensor};
use std::collections::HashMap;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Metadata key for the CRC-32 of a tensor's bytes in a data file, 8 hexadecimal digits.
pub(super) const CHECKSUM: &str = "crc32";

/// Memory-maps a whole file.
pub fn map(path: &Path) -> Result<Mapped> {
    let (file, _) = open(path)?;
    Mapped::new(&file).map_err(|e| Error::io("cannot map", path, e))
}

/// The bytes of a file: copied into memory if `copied`, else mapped.
pub fn bytes(path: &Path, copied: bool) -> Result<Arc<dyn Bytes>> {
    if !copied {
        return Ok(Arc::new(map(path)?));
    }
    let (file, length) = open(path)?;
    let too_large = |e| Error::parse(Stage::Import, path, "the file is too large to be read", e);
    let length = usize::try_from(length).map_err(too_large)?;
    let copy = Copied::new(&file, length).map_err(|e| Error::io("cannot read", path, e))?;
    Ok(Arc::new(copy.map_err(|e| Error::exceeded(Stage::Import, e))?))
}

/// Opens a file that has at least a byte, and returns its length.
fn open(path: &Path) -> Result<(File, u64)> {
    match open_file(path)? {
        (_, 0) => {
            let what = "the file is empty; download it again";
            Err(Error::file(Stage::Import, path, what))
        }
        opened => Ok(opened),
    }
}

/// Reads the tensors of one model.
pub struct Weights {
    folder: PathBuf,
    model: PathBuf,
    /// Opened files; `None` for a missing file that is allowed to be absent.
    files: HashMap<String, Option<Arc<dyn Bytes>>>,
    may_be_absent: bool,
    copied: bool,
}

/// Maximum size in bytes of a sparse tensor once dense: a small file can declare a huge one.
const MAX_DENSE: usize = 1 << 30;

impl Weights {
    pub fn new(model: &Path) -> Self {
        let folder = model.parent().map_or_else(PathBuf::new, Path::to_owned);
        Self {
            folder,
            model: model.to_owned(),
            files: HashMap::new(),
            may_be_absent: false,
            copied: false,
        }
    }

    /// If `copied`, files are copied into memory instead of mapped.
    pub fn copied(mut self, copied: bool) -> Self {
        self.copied = copied;
        self
    }

    /// If `allowed`, tensors in missing files are [absent](HostTensor::absent) instead of an error.
    pub fn may_be_absent(mut self, allowed: bool) -> Self {
        self.may_be_absent = allowed;
        self
    }

    /// The file that holds a tensor's external data. `None` if it is missing and allowed to be.
    fn external(&mut self, name: &str, location: &str) -> Result<Option<Arc<dyn Bytes>>> {
        if let Some(f) = self.files.get(location) {
            return Ok(f.clone());
        }
        let relative = Path::new(location);
        let inside = relative
            .components()
            .all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
        if !inside || location.is_empty() {
            return Err(Error::file(
                Stage::Import,
                &self.model,
                format!("tensor \"{name}\" refers to \"{location}\", which is outside the model's folder"),
            ));
        }
        let path = self.folder.join(relative);
        if self.may_be_absent && path.try_exists().is_ok_and(|there| !there) {
            self.files.insert(location.to_owned(), None);
            return Ok(None);
        }
        let here = |folder: &Path| match folder.as_os_str().is_empty() {
            true => PathBuf::from("."),
            false => folder.to_owned(),
        };
        let real = |path: &Path| {
            path.canonicalize().map_err(|e| {
                let what = match e.kind() {
                    ErrorKind::NotFound => {
                        format!(
                            "the file \"{location}\" with the tensor \"{name}\" is missing; \
                             download it to the same folder"
                        )
                    }
                    _ => format!("tensor \"{name}\": its data file \"{location}\" cannot be opened"),
                };
                Error::parse(Stage::Import, &self.model, what, e)
            })
        };
        // The file itself may be a link to anywhere, as in caches that link to a blob store: the
        // owner of the folder made the link, not the model.
        let folder = here(path.parent().unwrap_or(Path::new("")));
        if !real(&folder)?.starts_with(real(&here(&self.folder))?) {
            return Err(Error::file(
                Stage::Import,
                &self.model,
                format!(
                    "tensor \"{name}\" refers to \"{location}\", whose folder is a link \
                     out of the model's folder"
                ),
            ));
        }
        if !real(&path)?.is_file() {
            let what = format!("tensor \"{name}\" refers to \"{location}\", which is not a file");
            return Err(Error::file(Stage::Import, &self.model, what));
        }
        let file = bytes(&path, self.copied)?;
        self.files.insert(location.to_owned(), Some(file.clone()));
        Ok(Some(file))
    }

    /// The tensor of an initializer or attribute.
    pub fn tensor(&mut self, t: &proto::TensorProto) -> Result<HostTensor> {
        let bad = |what: String| {
            Error::file(
                Stage::Import,
                &self.model,
                format!("tensor \"{}\": {what}", t.name),
            )
        };
        let dtype = dtype_of(i64::from(t.data_type)).map_err(|e| {
            let what = format!("tensor \"{}\" cannot be read", t.name);
            Error::parse(Stage::Import, &self.model, what, e)
        })?;
        let shape: Vec<usize> = t
            .dims
            .iter()
            .map(|d| usize::try_from(*d).map_err(|_| bad(format!("size {d} is negative"))))
            .collect::<Result<_>>()?;
        let count = shape
            .iter()
            .try_fold(1usize, |n, d| n.checked_mul(*d))
            .ok_or_else(|| bad(format!("shape {shape:?} is too large")))?;
        if t.data_location == 1 {
            return self.external_tensor(t, dtype, &shape, count);
        }
        if let Some(layout) = metadata(t, LAYOUT) {
            return Err(bad(format!(
                "its layout is \"{layout}\", which only data files may have"
            )));
        }
        let tensor = if !t.raw_data.is_empty() || count == 0 {
            HostTensor::from_packed(dtype, &shape, &t.raw_data)
        } else {
            match dtype {
                DType::F32 => HostTensor::from_f32(&shape, &t.float_data),
                DType::F64 => HostTensor::from_f64(&shape, &t.double_data),
                DType::I64 => HostTensor::from_i64(&shape, &t.int64_data),
                DType::U64 => HostTensor::from_u64(&shape, &t.uint64_data),
                DType::U32 => {
                    let word =
                        |v: &u64| u32::try_from(*v).map_err(|_| bad(format!("element {v} exceeds 32 bits")));
                    let words: Vec<u32> = t.uint64_data.iter().map(word).collect::<Result<_>>()?;
                    HostTensor::from_u32(&shape, &words)
                }
                // All other types use 32-bit fields: floats as their bits, packed types as bytes.
                _ => {
                    let size = if dtype.bits() < 8 { 1 } else { dtype.size() };
                    let fields = t
                        .int32_data
                        .iter()
                        .flat_map(|v| v.to_le_bytes().into_iter().take(size));
                    HostTensor::from_packed(dtype, &shape, &fields.collect::<Vec<u8>>())
                }
            }
        };
        tensor.map_err(|e| bad(e.to_string()))
    }

    /// A sparse tensor as a dense one, with its name.
    pub fn sparse(&mut self, sparse: &proto::SparseTensorProto) -> Result<(String, HostTensor)> {
        let (Some(values), Some(indices)) = (&sparse.values, &sparse.indices) else {
            let what = "a sparse tensor has no values or no indices";
            return Err(Error::file(Stage::Import, &self.model, what));
        };
        let (name, path) = (values.name.clone(), self.model.clone());
        let bad = |what: &dyn std::fmt::Display| {
            Error::file(Stage::Import, &path, format!("sparse tensor \"{name}\": {what}"))
        };
        let elements = self.tensor(values)?;
        let at = self.tensor(indices).map_err(|e| bad(&format!("indices: {e}")))?;
        let size = |d: &i64| usize::try_from(*d).map_err(|_| bad(&format!("size {d} is negative")));
        let shape = sparse.dims.iter().map(size).collect::<Result<Vec<usize>>>()?;
        let at = at.to_i64().map_err(|e| bad(&e))?;
        // Positions in the flat tensor, or along each axis.
        let each = if indices.dims.len() == 2 { shape.len() } else { 1 };
        let all = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let all = all.ok_or_else(|| bad(&format!("shape {shape:?} is too large")))?;
        let sizes = if each == 1 { vec![all] } else { shape.clone() };
        let wanted = each.saturating_mul(elements.len());
        if at.len() != wanted {
            return Err(bad(&format!(
                "expected {wanted} index elements for {} values, found {}",
                elements.len(),
                at.len()
            )));
        }
        if elements.dtype().bits() < 8 {
            return Err(bad(&format!(
                "elements of {} are not supported; expected at least 8 bits",
                elements.dtype()
            )));
        }
        if all.saturating_mul(elements.dtype().size()) > MAX_DENSE {
            return Err(bad(&format!("shape {shape:?} takes more than 1 GiB")));
        }
        let dense = HostTensor::zeros(elements.dtype(), &shape).map_err(|e| bad(&e))?;
        let mut bytes = dense.bytes().map_err(|e| bad(&e))?.to_vec();
        let width = elements.dtype().size();
        let given = elements.bytes().map_err(|e| bad(&e))?;
        for (position, value) in at.chunks_exact(each.max(1)).zip(given.chunks_exact(width)) {
            let flat = position.iter().zip(&sizes).try_fold(0, |flat, (i, n)| {
                let i = usize::try_from(*i).ok().filter(|i| i < n)?;
                Some(flat * n + i)
            });
            let place = flat.and_then(|flat| bytes.get_mut(flat * width..(flat + 1) * width));
            let outside = || bad(&format!("index {position:?} is outside the shape {shape:?}"));
            let place = place.ok_or_else(outside)?;
            place.copy_from_slice(value);
        }
        let tensor = HostTensor::from_bytes(elements.dtype(), &shape, &bytes).map_err(|e| bad(&e))?;
        Ok((values.name.clone(), tensor))
    }

    fn external_tensor(
        &mut self,
        t: &proto::TensorProto,
        dtype: DType,
        shape: &[usize],
        count: usize,
    ) -> Result<HostTensor> {
        let key = |name: &str| {
            t.external_data
                .iter()
                .find(|e| e.key == name)
                .map(|e| e.value.as_str())
        };
        let location = key("location").unwrap_or("").to_owned();
        let model = self.model.clone();
        let bad = |what: String| Error::file(Stage::Import, &model, format!("tensor \"{}\": {what}", t.name));
        let number = |name: &str| match key(name) {
            None => Ok(None),
            Some(v) => v
                .parse::<usize>()
                .map(Some)
                .map_err(|_| bad(format!("external data {name} \"{v}\" is not a number"))),
        };
        let (offset, length) = (number("offset")?.unwrap_or(0), number("length")?);
        let bytes = count
            .checked_mul(dtype.bits())
            .ok_or_else(|| bad(format!("shape {shape:?} is too large")))?
            .div_ceil(8);
        if let Some(length) = length.filter(|l| *l != bytes) {
            return Err(bad(format!(
                "{dtype}{shape:?} needs {bytes} bytes, but its external data has {length}"
            )));
        }
        let panels = match metadata(t, LAYOUT) {
            Some(layout) => Some(Stored::new(layout, dtype, shape).map_err(bad)?),
            None => None,
        };
        let shape = panels.as_ref().map_or(shape, |stored| &stored.shape);
        let Some(file) = self.external(&t.name, &location)? else {
            let what = format!("tensor \"{}\"", t.name);
            return HostTensor::absent(dtype, shape, &what).map_err(|e| bad(e.to_string()));
        };
        let have = file.bytes().len();
        let end = offset.checked_add(bytes);
        let Some(data) = end.and_then(|end| file.bytes().get(offset..end)) else {
            return Err(bad(format!(
                "the file \"{location}\" is cut off or damaged (needs at least {} bytes, has {have}); \
                 download it again",
                offset.saturating_add(bytes)
            )));
        };
        let checksum = metadata(t, CHECKSUM);
        // A model that is only inspected need not be read as a whole.
        if let (Some(wanted), false) = (checksum, self.may_be_absent) {
            let found = format!("{:08x}", crc32fast::hash(data));
            if found != wanted {
                return Err(bad(format!(
                    "the checksum of its {bytes} bytes in \"{location}\" is {found}, expected {wanted}; \
                     the file is damaged, download it again"
                )));
            }
        }
        if let Some(stored) = panels {
            return stored.tensor(dtype, file, offset).map_err(bad);
        }
        let tensor = if dtype.bits() < 8 {
            HostTensor::from_packed(dtype, shape, data)
        } else {
            HostTensor::from_shared(dtype, shape, file, offset)
        };
        tensor.map_err(|e| bad(e.to_string()))
    }
}

/// The metadata of a tensor by its key.
fn metadata<'a>(t: &'a proto::TensorProto, key: &str) -> Option<&'a str> {
    let entry = t.metadata_props.iter().find(|e| e.key == key);
    entry.map(|e| e.value.as_str())
}
