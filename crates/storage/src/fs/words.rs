//! [`SharedWords`]: a file as words of memory that several processes see at once.
//!
//! Made by [`Fs::map_words`](super::Fs::map_words), used by a primary to publish its state to
//! secondaries. Nothing in such a file is ever durable, and nothing that a database needs may be in
//! one: after a crash of the machine its bytes are undefined.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The way in which [`Fs::map_words`](super::Fs::map_words) opens a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapMode {
    /// Makes the file, whose name must be free, with so many words of zero, to be written.
    Create(usize),
    /// Opens an existing file to be written.
    Write,
    /// Opens an existing file. Its words are only read: a store to them ends the process.
    Read,
}

/// Words of memory that are shared by every process that maps the same file.
///
/// Stores become visible to others as those of another thread of this process would: the orderings
/// of the operations on them are sufficient.
pub trait SharedWords: Send + Sync + 'static {
    /// The words.
    fn words(&self) -> &[AtomicU64];
}

/// Words in the memory of this process, for file systems in memory.
pub(super) struct HeapWords(Box<[AtomicU64]>);

impl HeapWords {
    pub(super) fn zeros(count: usize) -> Arc<HeapWords> {
        Arc::new(HeapWords((0..count).map(|_| AtomicU64::new(0)).collect()))
    }
}

impl SharedWords for HeapWords {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}
