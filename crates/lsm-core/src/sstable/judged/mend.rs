//! [`Damaged`]: a damaged block of the walk, in the form that a judge's repair needs.

use super::decode::Decoder;
use super::hidden_apart;
use crate::error::{Error, Result};
use crate::hooks::{DamagedBlock, DecodedBlock, DecodedEntry, JudgedTable, OwnedEntry};
use crate::sstable::reader::SstReader;
use crate::sstable::stored::{Access, Extent};
use crate::types::{EntryKind, SeqNo};

pub(super) struct Damaged<'a> {
    pub reader: &'a SstReader,
    pub extent: Extent,
    pub index: u64,
    pub before: Option<(&'a [u8], SeqNo)>,
    pub table: &'a JudgedTable,
    /// The error that fails the job.
    pub failed: &'a mut Option<Error>,
}

impl DamagedBlock for Damaged<'_> {
    fn index(&self) -> u64 {
        self.index
    }

    fn offset(&self) -> u64 {
        self.extent.offset
    }

    fn read(&mut self) -> Result<Vec<u8>> {
        match self.reader.source().read_stored(Access::Uncached, self.extent) {
            // An empty block: nothing of it decodes.
            Err(error) if error.is_corruption() => Ok(Vec::new()),
            Err(error) => {
                // Kept beside the result, because a judge may treat an error as damage and go on.
                // The job must fail: bytes that cannot be read now may be readable later.
                *self.failed = Some(error.clone());
                Err(error)
            }
            stored => stored,
        }
    }

    fn is_verified(&self, stored: &[u8]) -> bool {
        self.reader.source().open(self.extent.offset, stored).is_ok()
    }

    fn with_one_bit_turned(&self, stored: &[u8]) -> Option<Vec<u8>> {
        self.reader.source().with_one_bit_turned(self.extent.offset, stored)
    }

    fn unpack(&self, stored: &[u8]) -> Option<Vec<u8>> {
        let payload = self.reader.source().unpack_unverified(self.extent.offset, stored)?;
        Some(payload.bytes[..payload.len].to_vec())
    }

    fn decode(&mut self, payload: &[u8]) -> DecodedBlock {
        let mut decoder = Decoder::with_pieces();
        let is_whole = decoder.decode(payload, self.reader);
        let pieces = decoder.pieces.take().unwrap_or_default();
        let mut entries = Vec::with_capacity(decoder.slots.len());
        for (at, (slot, pieces)) in decoder.slots.iter().zip(pieces).enumerate() {
            let key = decoder.key(at).to_vec();
            let hidden = match &slot.hidden {
                Some(range) => Some(payload[range.clone()].to_vec()),
                None => hidden_apart(self.reader, &key, slot.trailer.seq()),
            };
            entries.push(DecodedEntry {
                entry: OwnedEntry {
                    key,
                    seq: slot.trailer.seq(),
                    // The decoder took known kinds alone, so this is no guess that could be
                    // written.
                    kind: slot.trailer.kind().unwrap_or(EntryKind::Poison),
                    value: payload[slot.value.clone()].to_vec(),
                    verified: false,
                },
                hidden,
                index: slot.index,
                start: pieces.start,
                shared: pieces.shared,
                suffix: pieces.suffix,
                value: slot.value.clone(),
                hidden_at: pieces.hidden_at,
            });
        }
        DecodedBlock { entries, is_whole }
    }

    fn before(&self) -> Option<(&[u8], SeqNo)> {
        self.before
    }

    fn table(&self) -> &JudgedTable {
        self.table
    }
}
