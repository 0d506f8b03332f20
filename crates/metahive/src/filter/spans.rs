//! The digests of the blocks of the table that a job writes: see `table_seal.rs`.
//!
//! The filter hears at a boundary of the blocks that have ended since the one before. If the engine was
//! allowed to cut, a block ended before the first entry after a boundary. After a forced cut the end is
//! unknown, and the blocks form one span.

use crate::table_seal::Span;

/// The spans of the table that is being written, with the sums of their entries.
#[derive(Debug, Default)]
pub(super) struct Spans {
    finished: Vec<Span>,
    /// Ended blocks of the span under way.
    blocks: u64,
    /// Sum of the entries of that span.
    digest: u32,
    /// Of those since the last boundary.
    pending: u32,
}

impl Spans {
    /// An entry with this checksum was written.
    #[inline]
    pub(super) fn add(&mut self, sum: u64) {
        self.pending = self.pending.wrapping_add(sum as u32);
    }

    /// A block has ended, which has noted entries with the sum `noted` in addition to the others.
    pub(super) fn block_ended(&mut self, noted: u64, is_forced: bool) {
        self.blocks += 1;
        self.digest = self.digest.wrapping_add(noted as u32);
        if !is_forced {
            // Entries since the last boundary lie in the next block.
            let span = Span { blocks: self.blocks, digest: self.digest };
            self.finished.push(span);
            self.blocks = 0;
            self.digest = 0;
        }
    }

    /// After all blocks that have ended: what was written so far lies in the next.
    #[inline]
    pub(super) fn boundary(&mut self) {
        self.digest = self.digest.wrapping_add(self.pending);
        self.pending = 0;
    }

    /// The spans of the table, whose last block has ended.
    pub(super) fn finish(&mut self) -> Vec<Span> {
        debug_assert_eq!(self.pending, 0, "a boundary comes before the last block ends");
        let mut ended = std::mem::take(self);
        if ended.blocks > 0 {
            // The last one was forced.
            ended.finished.push(Span { blocks: ended.blocks, digest: ended.digest });
        }
        ended.finished
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(feed: impl FnOnce(&mut Spans)) -> Vec<(u64, u32)> {
        let mut spans = Spans::default();
        feed(&mut spans);
        spans.finish().into_iter().map(|span| (span.blocks, span.digest)).collect()
    }

    #[test]
    fn a_block_ends_in_front_of_the_entry_after_the_boundary() {
        let found = spans(|spans| {
            spans.boundary();
            spans.add(1);
            spans.boundary();
            spans.add(2);
            spans.block_ended(8, false);
            spans.boundary();
            spans.add(4);
            spans.boundary();
            spans.block_ended(16, false);
        });
        assert_eq!(found, [(1, 9), (1, 22)]);
    }

    #[test]
    fn blocks_that_were_cut_by_force_are_one_span() {
        let found = spans(|spans| {
            spans.boundary();
            spans.add(1);
            spans.block_ended(0, true);
            spans.block_ended(0, true);
            spans.boundary();
            spans.add(2);
            spans.block_ended(0, false);
            spans.boundary();
            spans.add(4);
            spans.boundary();
            spans.block_ended(0, true);
        });
        assert_eq!(found, [(3, 1), (1, 6)]);
    }
}
