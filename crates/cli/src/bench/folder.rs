//! [`Folder`]: the folder of a benchmark, and what all benchmarks call its parts.

use std::path::{Path, PathBuf};

use siltstone::limits::BACKGROUND_BYTES_PER_SECOND_MIN;

use crate::output::{Failure, note};

/// Name of the partition that is measured.
pub(super) const PARTITION: &str = "bench";

/// A number of bytes with an optional unit: `4096`, `64KiB`, `256MiB`, `1GiB`.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return Err(format!("unknown unit {unit:?}; use B, KiB, MiB or GiB")),
    };
    let number: u64 = number.parse().map_err(|_| "no number in front".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "too large".to_owned())
}

/// A rate of background writes: zero, for none, or as many bytes a second as the engine takes.
pub(crate) fn parse_rate(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        rate @ 1..BACKGROUND_BYTES_PER_SECOND_MIN => {
            Err(format!("{rate} is less than {BACKGROUND_BYTES_PER_SECOND_MIN}"))
        }
        rate => Ok(rate),
    }
}

/// The folder that is measured; a temporary one removes itself.
pub(super) enum Folder {
    Temporary(tempfile::TempDir),
    Given(PathBuf),
}

impl Folder {
    pub(super) fn new(given: Option<&Path>) -> Result<Folder, Failure> {
        if let Some(path) = given {
            return Ok(Folder::Given(path.to_owned()));
        }
        let made = tempfile::Builder::new().prefix("siltstone-bench-").tempdir();
        made.map(Folder::Temporary)
            .map_err(|e| Failure::Io(format!("cannot make a temporary folder: {e}")))
    }

    /// Removes a temporary folder, and prints the path of any other.
    pub(super) fn end(self) -> Result<(), Failure> {
        match self {
            Folder::Temporary(folder) => {
                let path = folder.path().to_owned();
                folder.close().map_err(|e| Failure::io("remove", &path, &e))
            }
            Folder::Given(path) => {
                note(format_args!("the database stays in {}", path.display()));
                Ok(())
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Folder::Temporary(folder) => folder.path(),
            Folder::Given(path) => path,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_a_bound() {
        for (text, expected) in [
            ("0", 0),
            ("4096", 4096),
            ("7B", 7),
            ("64KiB", 65_536),
            ("1MiB", 1 << 20),
            ("3GiB", 3 << 30),
        ] {
            assert_eq!(parse_bytes(text), Ok(expected), "{text}");
        }
        let most = u64::MAX >> 30;
        assert_eq!(parse_bytes(&format!("{most}GiB")), Ok(most << 30));
        assert_eq!(parse_bytes(&format!("{}GiB", most + 1)), Err("too large".to_owned()));
        for wrong in ["", "KiB", "1 MiB", "-1", "1kb", "1.5GiB", "18446744073709551616"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
