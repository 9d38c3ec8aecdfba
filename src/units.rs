//! Numbers as people read them.

/// A number of bytes, in powers of 1000.
pub fn size_text(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if value < 999.95 {
            return if unit == "B" {
                format!("{bytes} B")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1000.0;
    }
    format!("{value:.1} TB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let texts = [0, 999, 1000, 999_949, 999_950, 98_400_000, 5_000_000_000_000].map(size_text);
        assert_eq!(
            texts,
            [
                "0 B", "999 B", "1.0 kB", "999.9 kB", "1.0 MB", "98.4 MB", "5.0 TB"
            ]
        );
    }
}
