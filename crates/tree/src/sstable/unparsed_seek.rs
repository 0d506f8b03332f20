//! A point read in the payload of a block that is used once: nothing of it is parsed or kept.
//!
//! [`Block::parse`](super::block::Block::parse) checks all entries and prepares them for searches, which
//! takes longer than everything else that a read does with a block from the page cache. A point read bisects the
//! restart keys and walks through one group of entries, and checks those that it passes in the same way. Where
//! anything is unusual, the block is parsed, which names the defect, or goes on where
//! hidden entries ask for more.

use std::cell::Cell;
use std::cmp::Ordering;
use std::ops::Range;

use crate::error::Result;
use crate::types::{KeyRef, SeqNo, Trailer};

use super::block_entry::compare_tails;
use super::compression::CompressionKind;
use super::stored::{Access, Extent, TableSource};
use super::unparsed::{GROUP, GROUP_LINES, UnparsedPayload};

/// Longest block that is not parsed where it is used once; a thread has buffers of this length. A longer one
/// has values that share its memory.
pub(super) const UNPARSED_BYTES_MAX: usize = 16 << 10;

/// Buffers for blocks that are looked at once. They keep their length, so that nothing is cleared again.
#[derive(Default)]
struct Scratch {
    stored: Vec<u8>,
    plain: Vec<u8>,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = const {
        Cell::new(Scratch { stored: Vec::new(), plain: Vec::new() })
    };
}

/// The first `len` bytes of a buffer, which grows to that length.
fn grown(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}

impl TableSource {
    /// Shows `look` the payload of the block at `extent`, which is read and verified and not kept. `None` if it
    /// is so long that it should have memory of its own.
    pub(super) fn look_at<T>(
        &self,
        extent: Extent,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        let len = self.checked_len(extent)?;
        if len > UNPARSED_BYTES_MAX {
            return Ok(None);
        }
        // Taken out, so that a look inside of `look` would have buffers of its own.
        let mut scratch = SCRATCH.take();
        let looked = self.look_with(&mut scratch, extent.offset, len, look);
        SCRATCH.set(scratch);
        looked
    }

    fn look_with<T>(
        &self,
        scratch: &mut Scratch,
        offset: u64,
        len: usize,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        let stored = grown(&mut scratch.stored, len);
        self.read_exact(Access::Plain, offset, stored)?;
        let (len, kind) = self.verify(offset, stored)?;
        if kind == CompressionKind::None {
            return Ok(Some(look(&stored[..len])));
        }
        let compressed = self.compressed(offset, kind, &stored[..len])?;
        if compressed.plain_len > UNPARSED_BYTES_MAX {
            return Ok(None);
        }
        let plain = grown(&mut scratch.plain, compressed.plain_len);
        self.decompress_into(offset, &compressed, plain)?;
        Ok(Some(look(plain)))
    }
}

/// The result of a search in an unparsed payload.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UnparsedSeek {
    /// The entry, and the range of its value in the payload.
    Found(Trailer, Range<usize>),
    /// The block has no such entry.
    Missing,
}

/// Looks for the newest entry of `user_key` that is not newer than `seq`, in a payload that verified.
/// `None` if the block is to be parsed instead.
pub(super) fn seek_unparsed(
    payload: &[u8],
    user_key: &[u8],
    seq: SeqNo,
    may_have_hidden: bool,
) -> Option<UnparsedSeek> {
    let payload = UnparsedPayload::of(payload, may_have_hidden)?;
    let found = payload.find(KeyRef::seek(user_key, seq))?;
    // Where the last entry is a hidden one, older versions of its key may lie in the next block.
    if found == UnparsedSeek::Missing && may_have_hidden { None } else { Some(found) }
}

impl UnparsedPayload<'_> {
    /// The walk of a point read through the group of the target. A seek of a cursor finds the same, but notes the
    /// places of the entries on its way: with it, point reads of mapped blocks take 8 % longer (design note 34).
    fn find(&self, target: KeyRef<'_>) -> Option<UnparsedSeek> {
        let first = self.group_of(target)? * GROUP;
        let mut at = self.restart(first / GROUP)?;
        self.touch_lines(at, GROUP_LINES);
        let mut restart: &[u8] = &[];
        for i in first..self.len() {
            let entry = self.entry(at)?;
            if i % GROUP == 0 {
                restart = entry.suffix;
                if entry.shared != 0 {
                    return None;
                }
            }
            let shared = restart.get(..entry.shared)?;
            match compare_tails(shared, entry.suffix, target.user) {
                Ordering::Equal if entry.trailer <= target.trailer => {
                    return Some(UnparsedSeek::Found(entry.trailer, entry.value));
                }
                Ordering::Greater => return Some(UnparsedSeek::Missing),
                // A smaller key, or a version that is newer than the reader.
                _ => at = entry.value.end,
            }
        }
        Some(UnparsedSeek::Missing)
    }
}
