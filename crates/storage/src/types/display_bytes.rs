//! [`DisplayBytes`]: a number of bytes as text for people.

use std::fmt;

/// A number of bytes, exact where it is small.
pub struct DisplayBytes(pub u64);

impl fmt::Display for DisplayBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
        // From ten of a unit on, so that at least two digits count.
        match units.into_iter().find(|(_, shift)| self.0 >> shift >= 10) {
            Some((unit, shift)) => {
                write!(f, "{:.1} {unit}", self.0 as f64 / (1_u64 << shift) as f64)
            }
            None => write!(f, "{} B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_exact_where_they_are_few() {
        for (bytes, text) in [
            (0, "0 B"),
            (10_239, "10239 B"),
            (10_240, "10.0 KiB"),
            (10 << 20, "10.0 MiB"),
            ((10 << 20) - 1, "10240.0 KiB"),
            (10 << 30, "10.0 GiB"),
            (u64::MAX, "17179869184.0 GiB"),
        ] {
            assert_eq!(DisplayBytes(bytes).to_string(), text);
        }
    }
}
