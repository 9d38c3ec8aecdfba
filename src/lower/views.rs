//! Operands as views of memory: limits on the bytes that a device can bind and on the elements that
//! kernels can count, and values that are stored inside other values.

use super::collected::Nested;
use super::{Block, Location, LowerCx, Operand};
use crate::backend::DeviceProfile;
use crate::graph::op::{OpError, OpResult};
use crate::num;
use crate::shape::Dim;
use crate::tensor::DType;

/// Maximum number of elements in an operand or result; kernels count them in 32 bits.
const MAX_ELEMENTS: u32 = u32::MAX;

/// Maximum number of bytes that a kernel can bind and index, with elements of `size` bytes.
fn largest(device: &DeviceProfile, size: u64) -> u64 {
    device
        .max_view_bytes
        .min(u64::from(MAX_ELEMENTS).saturating_mul(size))
}

/// Splits `count` items, each of `elements` elements of `size` bytes, into ranges (first, count)
/// that fit in a view. The length of each range but the last is a multiple of `unit`.
fn split(
    device: &DeviceProfile,
    count: usize,
    (elements, size): (usize, usize),
    unit: usize,
) -> OpResult<Vec<(usize, usize)>> {
    let wide = num::wide(size);
    let limit = usize::try_from(largest(device, wide)).unwrap_or(usize::MAX);
    let bytes = elements.saturating_mul(size);
    let most = (limit / bytes.max(1) / unit).saturating_mul(unit);
    if most == 0 {
        return Err(OpError::Unsupported(format!(
            "{unit} items of {bytes} bytes exceed the largest view of {limit} bytes that a kernel can bind and index"
        )));
    }
    Ok((0..count.div_ceil(most))
        .map(|i| (i * most, most.min(count - i * most)))
        .collect())
}

impl LowerCx<'_> {
    /// Splits `count` items, each of `elements` elements of `size` bytes, into ranges (first,
    /// count) that a kernel can bind and index. The length of each range but the last is a multiple
    /// of `unit`.
    pub fn split(
        &self,
        count: usize,
        (elements, size): (usize, usize),
        unit: usize,
    ) -> OpResult<Vec<(usize, usize)>> {
        split(self.scope.device, count, (elements, size), unit)
    }

    /// Requires that `count`, the number of elements of an operand or result, is small enough for
    /// kernels to count. `what` names the operand or result in errors.
    pub fn countable(&mut self, what: &str, count: &Dim) -> OpResult<()> {
        let most = i64::from(MAX_ELEMENTS);
        if self.upper_bound(count).is_some_and(|n| n <= most) {
            return Ok(());
        }
        let room = Dim::from(most).sub(count)?;
        self.require(
            room,
            &format!("kernels count the elements of the {what} in 32 bits"),
        );
        Ok(())
    }

    /// Byte offset of element `start` in a tensor of `dtype` on the device. `None` if it is not
    /// constant or a view cannot begin there.
    fn view_offset(&self, dtype: DType, start: &Dim) -> Option<u64> {
        let size = num::wide(dtype.device_bytes());
        let bytes = u64::try_from(start.as_const()?).ok()?.checked_mul(size)?;
        bytes
            .is_multiple_of(self.scope.device.view_align.max(8))
            .then_some(bytes)
    }

    /// Whether a view can begin at element `start` of result `o` in all runs.
    pub fn is_view_start(&mut self, o: usize, start: &Dim) -> OpResult<bool> {
        let to = self.output(o)?;
        Ok(matches!(to.location, Location::Value(_)) && self.view_offset(to.dtype, start).is_some())
    }

    /// Declares that result `o` consists of contiguous elements of operand `i`, beginning at
    /// `start`. If a view cannot begin there, returns `false` without effect, and the caller must
    /// copy the elements.
    pub fn view(&mut self, o: usize, i: usize, start: &Dim) -> OpResult<bool> {
        let (out, input) = (self.output_id(o)?, self.input_id(i)?);
        let from = self.resolve(input)?;
        if !matches!(from.location, Location::Value(_)) {
            return Ok(false);
        }
        let Some(offset) = self.view_offset(from.dtype, start) else {
            return Ok(false);
        };
        if self.scope.graph.is_output(out) && self.out.storage_types.get(&out) != Some(&from.dtype) {
            return Ok(false);
        }
        let of = from.location;
        self.out.parts.insert(Location::Value(out), Nested { of, offset });
        self.out.storage_types.insert(out, from.dtype);
        Ok(true)
    }

    /// Requests that operand `i` be written directly to result `o`, beginning at element `start`.
    /// If that is not possible, returns `false`, and the caller must copy the elements. Nothing
    /// emitted later may read operand `i` from another location.
    pub fn join(&mut self, i: usize, o: usize, start: &Dim) -> OpResult<bool> {
        let (out, input) = (self.output_id(o)?, self.input_id(i)?);
        let to = self.stored(self.root(out))?;
        let from = self.resolve(input)?;
        let (Location::Value(_), Location::Value(root)) = (to.location, from.location) else {
            return Ok(false);
        };
        let Some(offset) = self.view_offset(to.dtype, start) else {
            return Ok(false);
        };
        let given = self.scope.graph.is_input(root) || self.scope.graph.is_output(root);
        if given || from.dtype != to.dtype || self.out.parts.contains_key(&from.location) {
            return Ok(false);
        }
        let of = to.location;
        self.out.parts.insert(from.location, Nested { of, offset });
        Ok(true)
    }

    /// The `count` elements of result `o` beginning at `start`, as an operand to write. `None` if a
    /// view cannot begin there.
    pub fn window(&mut self, o: usize, start: &Dim, count: Dim) -> OpResult<Option<Operand>> {
        let to = self.output(o)?;
        let (Location::Value(_), Some(offset)) = (to.location, self.view_offset(to.dtype, start)) else {
            return Ok(None);
        };
        let window = self.temp(to.dtype, count);
        self.out.parts.insert(
            window.location,
            Nested {
                of: to.location,
                offset,
            },
        );
        Ok(Some(window))
    }

    /// Scratch memory that holds all results one after another. Result `o` has space for `room[o]`
    /// elements and is aligned for a view. If the results cannot share one range that a kernel can
    /// bind, returns the reason as the inner error, without effect.
    pub fn block(&mut self, room: &[u64]) -> OpResult<Result<Block, String>> {
        let mut locations = Vec::with_capacity(room.len());
        let mut stored = None;
        for o in 0..self.output_count() {
            let out = self.output(o)?;
            if !matches!(out.location, Location::Value(_)) {
                return Ok(Err(format!("result {o} is already placed")));
            }
            if *stored.get_or_insert(out.dtype) != out.dtype {
                return Ok(Err("the results have different storage types".to_owned()));
            }
            locations.push(out.location);
        }
        let (Some(dtype), true) = (stored, locations.len() == room.len()) else {
            return Err(OpError::expected("results", room.len(), locations.len()));
        };
        let size = num::wide(dtype.device_bytes());
        let align = self.scope.device.view_align.max(8);
        let mut starts = Vec::with_capacity(room.len());
        let end = room.iter().try_fold(0u64, |end, count| {
            let start = end.checked_next_multiple_of(align)?;
            starts.push(start / size);
            start.checked_add(count.checked_mul(size)?)
        });
        let most = largest(self.scope.device, size);
        let end = end.and_then(|n| n.checked_next_multiple_of(8));
        let Some(bytes) = end.filter(|n| *n <= most) else {
            let bytes = end.map_or_else(|| "too many bytes".to_owned(), |n| format!("{n} bytes"));
            return Ok(Err(format!("the results take {bytes}, a kernel can bind {most}")));
        };
        let operand = self.temp(
            dtype,
            num::exact::<i64, _>(bytes / size, "a number of elements")?.into(),
        );
        for (location, start) in locations.into_iter().zip(&starts) {
            let (of, offset) = (operand.location, start * size);
            self.out.parts.insert(location, Nested { of, offset });
        }
        Ok(Ok(Block { operand, starts }))
    }

    /// Declares that result `o` consists of the same bytes as operand `i`, possibly with another
    /// shape. Emits no dispatch.
    pub fn alias(&mut self, o: usize, i: usize) -> OpResult<()> {
        let (out, input) = (self.output_id(o)?, self.input_id(i)?);
        let root = self.root(input);
        self.out.alias.insert(out, root);
        // A name of bytes whose elements have another type passes that on.
        match self.out.storage_types.get(&input).filter(|_| input != root) {
            Some(own) => self.out.storage_types.insert(out, *own),
            None => self.out.storage_types.remove(&out),
        };
        Ok(())
    }

    /// Like [`LowerCx::alias`], for a result whose elements have another type on the device.
    pub fn alias_as(&mut self, o: usize, i: usize, dtype: DType) -> OpResult<()> {
        self.alias(o, i)?;
        let out = self.output_id(o)?;
        self.out.storage_types.insert(out, dtype);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(max_view_bytes: u64) -> DeviceProfile {
        DeviceProfile {
            max_view_bytes,
            ..DeviceProfile::generic_gpu()
        }
    }

    /// The output head of a model with a large vocabulary, on a device that can bind all its memory
    /// at once.
    #[test]
    fn a_part_has_no_more_elements_than_kernels_count() {
        let (columns, depth) = (256_000, 18_432);
        for size in [2, 4] {
            let parts = split(&device(35 << 30), columns, (depth, size), 2).unwrap();
            assert!(parts.len() > 1, "{parts:?}");
            let mut end = 0;
            for (first, count) in parts {
                assert_eq!((first, first % 2), (end, 0));
                assert!(u32::try_from(count * depth).is_ok(), "{count} columns");
                end = first + count;
            }
            assert_eq!(end, columns);
        }
    }

    #[test]
    fn bytes_bound_parts_where_they_are_fewer() {
        assert_eq!(split(&device(1000), 10, (25, 4), 4).unwrap(), [(0, 8), (8, 2)]);
        assert_eq!(split(&device(1000), 0, (25, 4), 4).unwrap(), []);
        assert!(split(&device(1000), 10, (100, 4), 4).is_err());
        // A column of 2^32 elements is one element too long.
        let all = 1 << 32;
        assert!(split(&device(u64::MAX), 2, (all, 2), 1).is_err());
        assert_eq!(split(&device(u64::MAX), 2, (all - 1, 2), 1).unwrap().len(), 2);
    }
}
