//! Splits a serialized message into its fields, so that unchanged fields, known or not, can be
//! copied byte by byte.

/// One field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    pub tag: u64,
    pub whole: &'a [u8],
    /// Content of a length-delimited field; empty for others.
    pub content: &'a [u8],
}

/// Splits a message into its fields; `None` if it is damaged or uses groups.
pub fn fields(message: &[u8]) -> Option<Vec<Field<'_>>> {
    let mut out = Vec::new();
    let mut rest = message;
    while !rest.is_empty() {
        let start = rest;
        let key = varint(&mut rest)?;
        let mut content: &[u8] = &[];
        match key & 7 {
            0 => {
                varint(&mut rest)?;
            }
            1 => rest = rest.get(8..)?,
            2 => {
                let length = usize::try_from(varint(&mut rest)?).ok()?;
                content = rest.get(..length)?;
                rest = rest.get(length..)?;
            }
            5 => rest = rest.get(4..)?,
            _ => return None,
        }
        let whole = start.get(..start.len() - rest.len())?;
        out.push(Field {
            tag: key >> 3,
            whole,
            content,
        });
    }
    Some(out)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Appends a length-delimited field.
pub fn put(out: &mut Vec<u8>, tag: u64, content: &[u8]) {
    put_varint(out, tag << 3 | 2);
    put_varint(out, content.len() as u64);
    out.extend_from_slice(content);
}

fn put_varint(out: &mut Vec<u8>, v: u64) {
    prost::encoding::encode_varint(v, out);
}

#[cfg(test)]
mod tests;
