//! The digests of the blocks of the table that a job writes: see `table_seal.rs`.
//!
//! The filter learns only at a boundary how many blocks are finished. If one block was finished and
//! the engine was allowed to cut, the block ended before the first entry after the last boundary.
//! After a forced cut the end is unknown, and the blocks form one span.

use crate::table_seal::Span;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Spans {
    finished: Vec<Span>,
    /// Blocks that are finished and belong to the span under way.
    blocks: u64,
    /// Sum of the entries of that span.
    digest: u32,
    /// Of those since the last boundary.
    pending: u32,
    /// Finished blocks and forced cuts of the table at the last boundary.
    seen: u64,
    forced: u64,
}

impl Spans {
    /// An entry with this checksum was written.
    #[inline]
    pub(super) fn add(&mut self, sum: u64) {
        self.pending = self.pending.wrapping_add(sum as u32);
    }

    /// At a boundary `blocks` of the table are finished, after so many forced cuts. Returns `true` if
    /// there was one since the last boundary.
    #[inline]
    pub(super) fn boundary(&mut self, blocks: u64, forced: u64) -> bool {
        let was_forced = forced != self.forced;
        let more = blocks.saturating_sub(self.seen);
        // The engine cuts where it was last allowed to, which is the last boundary. So what was
        // written since lies in the next block.
        if more == 1 && !was_forced {
            self.finished.push(Span { blocks: self.blocks + 1, digest: self.digest });
            self.blocks = 0;
            self.digest = self.pending;
        } else {
            self.blocks += more;
            self.digest = self.digest.wrapping_add(self.pending);
        }
        self.pending = 0;
        self.seen = blocks;
        self.forced = forced;
        was_forced
    }

    /// The spans of the table, which ends here.
    pub(super) fn finish(&mut self) -> Vec<Span> {
        let mut ended = std::mem::take(self);
        let digest = ended.digest.wrapping_add(ended.pending);
        // One more block: the last one ends with the table, behind every boundary.
        ended.finished.push(Span { blocks: ended.blocks + 1, digest });
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
    fn a_block_ends_in_front_of_the_entry_behind_the_boundary() {
        let found = spans(|spans| {
            spans.boundary(0, 0);
            spans.add(1);
            spans.boundary(0, 0);
            spans.add(2);
            spans.boundary(1, 0);
            spans.add(4);
            spans.boundary(1, 0);
        });
        assert_eq!(found, [(1, 1), (1, 6)]);
    }

    #[test]
    fn blocks_that_were_cut_by_force_are_one_span() {
        let found = spans(|spans| {
            spans.boundary(0, 0);
            spans.add(1);
            spans.boundary(2, 2);
            spans.add(2);
            spans.boundary(3, 2);
            spans.add(4);
        });
        assert_eq!(found, [(3, 1), (1, 6)]);
    }
}
