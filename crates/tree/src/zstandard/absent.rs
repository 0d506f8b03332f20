//! The names of `frames.rs` in a build without the feature `zstd`.

/// Compresses nothing.
#[derive(Default)]
pub struct NoCompressor(());

impl NoCompressor {
    /// See [`NoCompressor`].
    pub fn new() -> NoCompressor {
        NoCompressor::default()
    }

    /// See [`NoCompressor`].
    pub fn with_dictionary(_: &[u8]) -> NoCompressor {
        NoCompressor::default()
    }

    /// Appends nothing; `false`.
    pub fn compress(&mut self, _: &[u8], _: &mut Vec<u8>) -> bool {
        false
    }

    /// Gives nothing to `sink`; `false`.
    pub fn compress_pieces<E>(
        &mut self,
        _: &[&[u8]],
        _: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        Ok(false)
    }
}

/// No dictionary: none can be made.
pub enum NoDictionary {}

impl NoDictionary {
    /// None.
    pub fn new(_: &[u8]) -> Option<NoDictionary> {
        None
    }

    /// Memory that it takes, in bytes.
    pub fn memory_bytes(&self) -> usize {
        match *self {}
    }
}

/// Decompresses nothing; `false`.
pub fn decompress(_: &[u8], _: &mut [u8], _: Option<&NoDictionary>) -> bool {
    false
}

/// Trains nothing.
pub fn train(_: &[u8], _: &[usize], _: usize) -> Option<Vec<u8>> {
    None
}
