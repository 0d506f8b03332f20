//! Faults of memory that change hidden entries before they are judged, for tests of the detection.
//! The faults of visible entries are in `compaction/survivors.rs`, behind the judge.

use super::JudgedIter;
use crate::hooks::{Origin, OwnedEntry};
use crate::types::EntryKind;

/// Bytes of the sequence number at the front of a payload.
const SEQ_BYTES: usize = 8;

impl JudgedIter {
    /// The payload of the hidden entry of slot `at` behind its sequence number, as a fault leaves it.
    #[cold]
    pub(super) fn struck(&self, at: usize, payload: &[u8]) -> Vec<u8> {
        let Some(inject) = &self.by.inject else { return payload.to_vec() };
        let slot = &self.decoder.slots[at];
        let place = Origin {
            file: Some(self.by.table.file),
            level: self.by.table.level,
            block_offset: self.offset,
            // It lies behind its owner unless another key sorts between the two.
            entry: slot.index + 1,
            block_verified: true,
        };
        let seq = slot.trailer.seq();
        let mut owned = OwnedEntry {
            key: [self.decoder.key(at), self.reader.hidden_suffix().unwrap_or_default()].concat(),
            seq,
            kind: EntryKind::Tombstone,
            value: [&seq.get().to_le_bytes()[..], payload].concat(),
            verified: true,
        };
        inject(place, &mut owned);
        owned.value.split_off(owned.value.len().min(SEQ_BYTES))
    }
}
