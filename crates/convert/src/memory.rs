//! Allocations whose sizes come from files: too little memory is an error.

use transformer_lite::unstable::error::{Error, ErrorKind, Result, Stage};

/// An empty vector with room for `count` elements. An error of kind [`ErrorKind::OutOfMemory`]
/// names `what` it is for.
pub fn room<T>(count: usize, what: &str) -> Result<Vec<T>> {
    let mut out = Vec::new();
    out.try_reserve_exact(count).map_err(|_| {
        let bytes = count.saturating_mul(size_of::<T>());
        let what = format!("not enough memory for {bytes} bytes: {what}");
        Error::other(Stage::Convert, what).of_kind(ErrorKind::OutOfMemory)
    })?;
    Ok(out)
}

/// `count` zeros; errors as of [`room`].
pub fn zeros<T: Clone + Default>(count: usize, what: &str) -> Result<Vec<T>> {
    let mut out = room(count, what)?;
    out.resize(count, T::default());
    Ok(out)
}

/// An error as of [`room`] unless so many bytes can be allocated. Call it before work that makes
/// many small allocations, each of which ends the process if it fails.
pub fn check(bytes: usize, what: &str) -> Result<()> {
    // Without this, the compiler removes an allocation that nothing uses.
    std::hint::black_box(room::<u8>(bytes, what)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_is_an_error() {
        let too_much = isize::MAX as usize;
        for found in [room::<u64>(too_much, "x").map(drop), check(too_much, "x")] {
            assert_eq!(found.unwrap_err().kind(), ErrorKind::OutOfMemory);
        }
        assert_eq!(zeros::<u8>(3, "x").unwrap(), [0; 3]);
    }
}
