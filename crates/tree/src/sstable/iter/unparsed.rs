//! The moves of a table cursor in an unparsed block: each entry is compared with the one that the cursor comes from.

use std::cmp::Ordering;

use super::VisibleEntries;
use crate::sstable::reader::SstReader;
use crate::sstable::unparsed::{UnparsedBlock, UnparsedEntry};
use crate::types::KeyRef;

impl VisibleEntries {
    /// Makes entry `at` the present one; notes damage and returns `false` if it is not as it must be.
    pub(super) fn enter_unparsed(
        &mut self,
        reader: &SstReader,
        block: &UnparsedBlock,
        at: usize,
    ) -> bool {
        let entry = self.unparsed.entry(&block.view(reader.mapped_file()), at);
        self.take(entry)
    }

    /// As [`VisibleEntries::enter_unparsed`], of an entry next to the present one, which has this order to it.
    #[inline]
    pub(super) fn step_unparsed(
        &mut self,
        reader: &SstReader,
        block: &UnparsedBlock,
        at: usize,
        order: Ordering,
    ) -> bool {
        let entry = self.unparsed.entry(&block.view(reader.mapped_file()), at);
        // Versions are in order by the sequence numbers that readers see as well: in an ingested table a key
        // has one entry.
        let present = KeyRef::new(&self.key, self.trailer);
        let in_order = entry.filter(|entry| entry.order(present) == order);
        self.take(in_order)
    }

    pub(super) fn seek_unparsed(
        &mut self,
        reader: &SstReader,
        block: &UnparsedBlock,
        target: KeyRef<'_>,
    ) -> bool {
        match self.unparsed.seek(&block.view(reader.mapped_file()), target) {
            Some(None) => false,
            found => self.take(found.flatten()),
        }
    }

    pub(super) fn seek_before_unparsed(
        &mut self,
        reader: &SstReader,
        block: &UnparsedBlock,
        target: KeyRef<'_>,
    ) -> bool {
        let view = block.view(reader.mapped_file());
        let Some(found) = self.unparsed.seek(&view, target) else { return self.take(None) };
        match found.map_or(self.count, |entry| entry.at).checked_sub(1) {
            Some(before) => self.enter_unparsed(reader, block, before),
            None => false,
        }
    }

    /// The value of the present entry. Out of line: cursors lend values of parsed blocks far more often.
    #[inline(never)]
    pub(super) fn unparsed_value<'a>(
        &self,
        reader: &'a SstReader,
        block: &'a UnparsedBlock,
    ) -> &'a [u8] {
        &block.view(reader.mapped_file()).bytes[self.value.clone()]
    }

    /// Makes an entry the present one; notes damage and returns `false` if there is none.
    #[inline]
    fn take(&mut self, entry: Option<UnparsedEntry<'_>>) -> bool {
        let Some(UnparsedEntry { at, key, trailer, value }) = entry else {
            self.is_damaged = true;
            return false;
        };
        self.key.clear();
        self.key.extend_from_slice(key.shared);
        self.key.extend_from_slice(key.suffix);
        self.unparsed_seq = trailer.seq();
        self.trailer = match self.global_seq {
            Some(seq) => trailer.with_seq(seq),
            None => trailer,
        };
        (self.at, self.value) = (at, value);
        true
    }
}
