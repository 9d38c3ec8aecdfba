//! NumPy's `.npy` format, versions 1 to 3, for the element types of [`DType`].

use half::f16;
use npyz::{NpyFile, Order, Serialize, WriterBuilder};
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use transformer_lite::unstable::error::{Error, ErrorKind, Result, Stage};
use transformer_lite::unstable::files::read::open_file;
use transformer_lite::unstable::files::{room, write_whole};
use transformer_lite::unstable::tensor::{DType, HostTensor, TensorError};

/// Bytes of a header with its length. Those of tensors have about a hundred.
const MAX_HEADER: u64 = 4096;

/// Brackets within brackets in a header. A shape is a tuple in a dictionary. The time that the
/// reader takes doubles with each level.
const MAX_NESTING: usize = 4;

/// Elements in row-major order, of a file of `count` elements in `bytes` bytes.
fn elements<T: npyz::Deserialize + Clone, R: Read>(
    file: NpyFile<R>,
    count: usize,
    bytes: u64,
) -> std::io::Result<Vec<T>> {
    let turned = (file.order() == Order::Fortran && file.shape().len() > 1).then(|| file.shape().to_vec());
    if (count as u64).saturating_mul(size_of::<T>() as u64) > bytes {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let mut data = Vec::new();
    data.try_reserve_exact(count)?;
    for v in file.data::<T>().map_err(std::io::Error::other)? {
        data.push(v?);
    }
    if data.len() != count {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let Some(shape) = turned else { return Ok(data) };
    let shape: Vec<usize> = shape.iter().filter_map(|n| usize::try_from(*n).ok()).collect();
    // Column-major strides, walked in row-major order.
    let mut strides = vec![1; shape.len()];
    for i in 1..shape.len() {
        strides[i] = strides[i - 1] * shape[i - 1];
    }
    let mut index = vec![0; shape.len()];
    let mut out = Vec::new();
    out.try_reserve_exact(count)?;
    for _ in 0..data.len() {
        let at: usize = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
        out.extend(data.get(at).cloned());
        for (i, n) in index.iter_mut().zip(&shape).rev() {
            *i += 1;
            if *i < *n {
                break;
            }
            *i = 0;
        }
    }
    Ok(out)
}

/// The header with its length, by the first bytes of a file. `None` for another format.
fn header_length(start: &[u8]) -> Option<u64> {
    let (major, sizes) = start.strip_prefix(b"\x93NUMPY")?.split_at_checked(2)?;
    match major.first()? {
        1 => Some(10 + u64::from(u16::from_le_bytes(*sizes.first_chunk()?))),
        _ => Some(12 + u64::from(u32::from_le_bytes(*sizes.first_chunk()?))),
    }
}

/// The shape in a header, if the product of its sizes exceeds 64 bits: the reader would panic on
/// it.
fn uncountable(header: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(header);
    let shape = text.split_once("'shape':").map_or("", |(_, rest)| rest);
    let shape = shape.split_once(')').map_or("", |(sizes, _)| sizes);
    let shape = shape.trim_start_matches([' ', '(']);
    let sizes = shape.split(',').filter_map(|n| n.trim().parse::<u64>().ok());
    let product = sizes.fold(1u64, |product, n| product.saturating_mul(n.max(1)));
    (product == u64::MAX).then(|| shape.to_owned())
}

/// The deepest nesting of brackets in a header.
fn nesting(header: &[u8]) -> usize {
    let (mut open, mut deepest) = (0usize, 0);
    for byte in header {
        match byte {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(open);
    }
    deepest
}

/// Reads a regular file. Errors: no such file, not a `.npy` file, an element type that the engine
/// does not have, too few elements; too little memory for them.
pub fn read(path: &Path) -> Result<HostTensor> {
    let (mut file, length) = open_file(path)?;
    let bad = |what: String| Error::file(Stage::Run, path, what);
    let cannot = |e| Error::io("cannot read", path, e);
    let mut start = Vec::new();
    Read::by_ref(&mut file)
        .take(MAX_HEADER)
        .read_to_end(&mut start)
        .and_then(|_| file.seek(SeekFrom::Start(0)))
        .map_err(cannot)?;
    let header = header_length(&start).unwrap_or_default();
    if header > length {
        return Err(Error::cut_off(Stage::Run, path, header, length));
    }
    if header > MAX_HEADER {
        let what = format!("a header of {header} bytes; the limit is {MAX_HEADER}");
        return Err(bad(what).of_kind(ErrorKind::LimitExceeded));
    }
    let text = usize::try_from(header).ok().and_then(|n| start.get(..n));
    let text = text.unwrap_or(&start);
    if nesting(text) > MAX_NESTING {
        let what = format!("the header nests brackets more than {MAX_NESTING} levels deep; a tensor's has 2");
        return Err(bad(what));
    }
    if let Some(shape) = uncountable(text) {
        return Err(bad(format!("shape [{shape}] has too many elements")));
    }
    let file = NpyFile::new(BufReader::new(file))
        .map_err(|e| bad(format!("not a .npy file, or the file is damaged: {e}")))?;
    let dtype = file.dtype().descr();
    let shape: Option<Vec<usize>> = file.shape().iter().map(|n| usize::try_from(*n).ok()).collect();
    let shape = shape.ok_or_else(|| bad("a size exceeds the address range of this machine".to_owned()))?;
    let count = shape.iter().try_fold(1usize, |p, n| p.checked_mul(*n));
    let count = count.ok_or_else(|| bad(format!("shape {shape:?} has too many elements")))?;
    let bytes = length - header;
    let io = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::OutOfMemory => {
            bad(format!("no memory for {count} elements of shape {shape:?}")).of_kind(ErrorKind::OutOfMemory)
        }
        _ => bad(format!(
            "cannot read the {count} elements of shape {shape:?}: {e}"
        )),
    };
    let made: Result<HostTensor, TensorError> = match dtype
        .trim_matches('\'')
        .trim_start_matches(['<', '>', '|', '='])
    {
        "f8" => HostTensor::from_f64(&shape, &elements(file, count, bytes).map_err(io)?),
        "f4" => HostTensor::from_f32(&shape, &elements(file, count, bytes).map_err(io)?),
        "f2" => HostTensor::from_f16(&shape, &elements::<f16, _>(file, count, bytes).map_err(io)?),
        "i8" => HostTensor::from_i64(&shape, &elements(file, count, bytes).map_err(io)?),
        "i4" => HostTensor::from_i32(&shape, &elements(file, count, bytes).map_err(io)?),
        "i2" => HostTensor::from_i16(&shape, &elements(file, count, bytes).map_err(io)?),
        "u8" => HostTensor::from_u64(&shape, &elements(file, count, bytes).map_err(io)?),
        "u4" => HostTensor::from_u32(&shape, &elements(file, count, bytes).map_err(io)?),
        "u2" => HostTensor::from_u16(&shape, &elements(file, count, bytes).map_err(io)?),
        "u1" => HostTensor::from_bytes(DType::U8, &shape, &elements(file, count, bytes).map_err(io)?),
        "i1" => {
            let data: Vec<i8> = elements(file, count, bytes).map_err(io)?;
            let mut bytes = room(data.len())?;
            bytes.extend(data.iter().map(|v| v.cast_unsigned()));
            HostTensor::from_bytes(DType::I8, &shape, &bytes)
        }
        "b1" => HostTensor::from_bool(&shape, &elements(file, count, bytes).map_err(io)?),
        _ => {
            return Err(bad(format!(
                "element type {dtype} is not supported; expected f8, f4, f2, i8, i4, i2, i1, u8, u4, u2, u1 or b1; \
                 numpy.ndarray.astype converts"
            )));
        }
    };
    made.map_err(|e| bad(e.to_string()))
}

fn put<T: Serialize + npyz::AutoSerialize>(
    out: &mut dyn Write,
    shape: &[u64],
    data: impl IntoIterator<Item = T>,
) -> std::io::Result<()> {
    let writer = npyz::WriteOptions::new().default_dtype().shape(shape).writer(out);
    let mut writer = writer.begin_nd()?;
    writer.extend(data)?;
    writer.finish()
}

/// Writes a tensor whole or not at all.
pub fn write(path: &Path, tensor: &HostTensor) -> Result<()> {
    let shape: Vec<u64> = tensor.shape().iter().map(|n| *n as u64).collect();
    let error = |e: TensorError| std::io::Error::other(e);
    write_whole(path, |out| match tensor.dtype() {
        DType::F64 => put(out, &shape, tensor.f64s().map_err(error)?.iter().copied()),
        DType::F32 => put(out, &shape, tensor.f32s().map_err(error)?.iter().copied()),
        DType::F16 => put(out, &shape, tensor.f16s().map_err(error)?.iter().copied()),
        DType::I64 => put(out, &shape, tensor.i64s().map_err(error)?.iter().copied()),
        DType::I32 => put(out, &shape, tensor.i32s().map_err(error)?.iter().copied()),
        DType::I16 => put(out, &shape, tensor.i16s().map_err(error)?.iter().copied()),
        DType::U64 => put(out, &shape, tensor.u64s().map_err(error)?.iter().copied()),
        DType::U32 => put(out, &shape, tensor.u32s().map_err(error)?.iter().copied()),
        DType::U16 => put(out, &shape, tensor.u16s().map_err(error)?.iter().copied()),
        DType::U8 => put(out, &shape, tensor.bytes().map_err(error)?.iter().copied()),
        DType::I8 => {
            let bytes = tensor.bytes().map_err(error)?;
            put(out, &shape, bytes.iter().map(|v| i8::from_le_bytes([*v])))
        }
        DType::Bool => put(
            out,
            &shape,
            tensor.bytes().map_err(error)?.iter().map(|v| *v != 0),
        ),
        other => Err(std::io::Error::other(format!(
            ".npy files do not support elements of type {other}"
        ))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tlite_testing::assert_error;

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.npy");
        let values: Vec<i64> = (0..6).collect();
        for dtype in [
            DType::I64,
            DType::I32,
            DType::I16,
            DType::U64,
            DType::U32,
            DType::U16,
            DType::U8,
            DType::I8,
        ] {
            let t = HostTensor::from_ints(dtype, &[2, 3], &values).unwrap();
            write(&path, &t).unwrap();
            assert_eq!(read(&path).unwrap(), t);
        }
        for dtype in [DType::F64, DType::F32, DType::F16] {
            let t = HostTensor::from_floats(dtype, &[3, 1, 2], &[0.5, -1.0, 2.0, 3.5, 1e4, 0.0]).unwrap();
            write(&path, &t).unwrap();
            assert_eq!(read(&path).unwrap(), t);
        }
        let t = HostTensor::from_bool(&[], &[true]).unwrap();
        write(&path, &t).unwrap();
        assert_eq!(read(&path).unwrap(), t);
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            1,
            "nothing else is left"
        );
    }

    /// A file as NumPy writes it: version 1, a header padded to 64 bytes, data.
    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut out = b"\x93NUMPY\x01\x00".to_vec();
        let mut header = header.to_owned();
        while !(out.len() + 2 + header.len() + 1).is_multiple_of(64) {
            header.push(' ');
        }
        header.push('\n');
        out.extend(u16::try_from(header.len()).unwrap().to_le_bytes());
        out.extend(header.as_bytes());
        out.extend(data);
        out
    }

    #[test]
    fn foreign_orders_are_read_and_wrong_files_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.npy");
        // [[1, 2, 3], [4, 5, 6]] in column-major and big-endian order.
        let header = "{'descr': '>i4', 'fortran_order': True, 'shape': (2, 3), }";
        let data: Vec<u8> = [1i32, 4, 2, 5, 3, 6]
            .iter()
            .flat_map(|v| v.to_be_bytes())
            .collect();
        std::fs::write(&path, file(header, &data)).unwrap();
        let t = HostTensor::from_i32(&[2, 3], &[1, 2, 3, 4, 5, 6]).unwrap();
        assert_eq!(read(&path).unwrap(), t);
        for (header, data, value) in [
            (header, &data[..20], "6"),
            (
                "{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }",
                &[0; 8][..],
                "c8",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 3), }",
                &[0; 8][..],
                "9223372036854775807",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (1152921504606846976,), }",
                &[0; 8][..],
                "1152921504606846976",
            ),
            ("{'descr': ", &[][..], ".npy"),
        ] {
            std::fs::write(&path, file(header, data)).unwrap();
            let e = read(&path).unwrap_err();
            assert_error(&e, ErrorKind::InvalidFile, &["x.npy", value]);
        }
    }

    #[test]
    fn headers_are_limited() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.npy");
        let header = |length: u32| [b"\x93NUMPY\x02\x00", &length.to_le_bytes()[..], &[b' '; 8000]].concat();
        for (length, kind) in [
            (u32::MAX, ErrorKind::InvalidFile),
            (8001, ErrorKind::InvalidFile),
            (8000, ErrorKind::LimitExceeded),
        ] {
            std::fs::write(&path, header(length)).unwrap();
            assert_eq!(read(&path).unwrap_err().kind(), kind, "{length}");
        }
        #[cfg(unix)]
        assert_eq!(
            read(Path::new("/dev/zero")).unwrap_err().kind(),
            ErrorKind::InvalidFile
        );
    }
}
