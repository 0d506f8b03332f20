//! Zstandard: frames, dictionaries and their training. Used by tables and large values.
//!
//! The code is C, so it is compiled with the feature `zstd` alone. Every build has these names. Without the
//! feature nothing is compressed or decompressed; callers ask [`IS_BUILT_IN`] first, and return
//! [`lacks_zstd`].
//!
//! ```text
//! frames.rs   with the feature
//! absent.rs   without it
//! ```
//!
//! Invariant: a decompression writes nothing outside of its target, and allocates nothing that the frame names.

#[cfg(not(feature = "zstd"))]
mod absent;
#[cfg(feature = "zstd")]
mod frames;

use std::path::PathBuf;

#[cfg(not(feature = "zstd"))]
pub use absent::{NoCompressor as Compressor, NoDictionary as Dictionary, decompress, train};
#[cfg(feature = "zstd")]
pub use frames::{Compressor, Dictionary, decompress, train};

use crate::error::Error;

/// `true` if this build has the feature `zstd`.
pub const IS_BUILT_IN: bool = cfg!(feature = "zstd");
/// No byte of a frame expands further than this: a block of a frame has at least 4 bytes, and makes 128 KiB at most.
pub const RATIO_MAX: u64 = (128 << 10) / 4;

/// The error of `what`, which is in `file` or was to be written there, in a build without the feature.
pub fn lacks_zstd(file: impl Into<PathBuf>, what: &str) -> Error {
    let what = format!("{what} with zstd, and this build lacks the feature `zstd`");
    Error::unsupported_in(file, what)
}
