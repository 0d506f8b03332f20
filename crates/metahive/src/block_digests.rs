//! [`BlockDigests`]: checks block after block of a table against the digests of its seal, which show that
//! no entry is missing, and that none was added.
//!
//! Verifiers of jobs and repairs use it. A digest covers a span: one block, seldom more.

use lsm_core::hooks::TableVerdict;

use crate::table_seal::TableSeal;

/// The state of the span that a block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpanState {
    /// More of its blocks follow.
    Open,
    /// Its blocks are what was written.
    Sound,
    /// Its blocks, the last one included, are not what was written.
    Unsound,
}

/// Compares the sums of the blocks of one table with the digests in its seal.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each says a thing of its own")]
pub(crate) struct BlockDigests {
    /// Blocks and entries so far, those before the walk included, if it did not begin at the first block.
    blocks: u64,
    entries: u64,
    /// Entries in blocks after those that the seal counts.
    surplus: u64,
    /// The number of the span, the blocks of it that have come, and their digest.
    span: usize,
    span_blocks: u64,
    span_digest: u32,
    /// The walk began in the middle of the span.
    is_partial: bool,
    /// Entries of the span are lost.
    is_broken: bool,
    /// Entries of the table are lost.
    has_lost: bool,
    is_from_middle: bool,
}

impl BlockDigests {
    /// Of a walk that begins after so many blocks.
    pub(crate) fn after(seal: Option<&TableSeal>, blocks: u64) -> BlockDigests {
        let mut digests =
            BlockDigests { blocks, is_from_middle: blocks > 0, ..BlockDigests::default() };
        let mut first = 0;
        for span in seal.map_or(&[][..], |seal| &seal.spans) {
            if first + span.blocks > blocks {
                digests.span_blocks = blocks - first;
                digests.is_partial = first < blocks;
                break;
            }
            first += span.blocks;
            digests.span += 1;
        }
        digests
    }

    /// The number of blocks so far.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Takes in a block by the sum of the checksums of its entries, and by their number. `is_whole` is `false` if
    /// some of its entries are lost, and that is reported already.
    pub(crate) fn add(
        &mut self,
        seal: Option<&TableSeal>,
        sum: u64,
        entries: u64,
        is_whole: bool,
    ) -> SpanState {
        self.blocks += 1;
        self.entries += entries;
        self.span_blocks += 1;
        self.span_digest = self.span_digest.wrapping_add(sum as u32);
        self.is_broken |= !is_whole;
        self.has_lost |= !is_whole;
        let span = seal.and_then(|seal| seal.spans.get(self.span));
        // Blocks after the last span hold metadata alone. An entry in one of them was put there.
        self.surplus += if span.is_none() { entries } else { 0 };
        let blocks = span.map_or(1, |span| span.blocks);
        if self.span_blocks < blocks {
            return SpanState::Open;
        }
        // Of a span that the walk began in, the digest covers blocks that were not read.
        let agrees = self.is_partial || span.is_none_or(|span| span.digest == self.span_digest);
        // In a span of one block the loss is known. In a longer one nothing else shows that the other blocks have
        // all of their entries.
        let is_sound = if self.is_broken { blocks == 1 } else { agrees };
        self.span += 1;
        self.span_blocks = 0;
        self.span_digest = 0;
        self.is_broken = false;
        self.is_partial = false;
        if is_sound {
            return SpanState::Sound;
        }
        self.has_lost = true;
        SpanState::Unsound
    }

    /// The verdict on the table after its last block.
    pub(crate) fn end(&self, seal: Option<&TableSeal>) -> TableVerdict {
        let Some(seal) = seal.filter(|_| !self.is_from_middle) else { return TableVerdict::Whole };
        let entries = self.entries;
        let sealed = seal.sealed;
        if seal.spans.is_empty() {
            // Nothing but their number shows that entries are missing.
            return if entries < sealed { TableVerdict::Lost } else { TableVerdict::Whole };
        }
        let sealed_blocks: u64 = seal.spans.iter().map(|span| span.blocks).sum();
        // The seal counts the blocks before the last metadata is written. If the last entry has a block
        // of its own, its metadata lies in blocks after those.
        if self.blocks < sealed_blocks || (self.blocks > sealed_blocks && self.surplus > 0) {
            return TableVerdict::Lost;
        }
        // After a loss the number differs for a reason that is reported already.
        if entries == sealed || self.has_lost {
            return TableVerdict::Whole;
        }
        let what = format!("the seal of the table counts {sealed} entries, it has {entries}");
        TableVerdict::Miscounted(what)
    }
}
