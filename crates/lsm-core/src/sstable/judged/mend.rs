//! The repair of a damaged block of the walk; [`Damaged`] is the block in the form that a judge needs.

use super::decode::Decoder;
use super::{JudgedIter, append, hidden_apart};
use crate::error::{Error, Result};
use crate::hooks::{
    BlockVerdict, DamagedBlock, DecodedBlock, DecodedEntry, Entry, JudgedTable, Mended, OwnedEntry,
    Piece, catch,
};
use crate::sstable::reader::SstReader;
use crate::sstable::stored::{Access, Extent};
use crate::types::{EntryKind, KeyRef, SeqNo, Trailer};

impl JudgedIter {
    /// Puts what the judge makes of it in the place of a damaged block.
    #[cold]
    pub(super) fn mend(&mut self, extent: Extent) -> Result<()> {
        let mut failed = None;
        let mut block = Damaged {
            reader: &self.reader,
            extent,
            index: self.number,
            before: self.before.seq.map(|seq| (&self.before.key[..], seq)),
            table: &self.by.table,
            decoder: &mut self.decoder,
            failed: &mut failed,
        };
        let judge = &mut self.by.judge;
        let mended = catch("a filter's judge", || judge.mend(&mut block))?;
        // Before the findings: an error of the device may pass, and must not become a loss.
        if let Some(error) = failed {
            return Err(error);
        }
        let Mended { pieces, repaired, lost, verdict } = mended;
        self.by.findings.add(|findings| {
            findings.repaired.extend(repaired);
            findings.lost.extend(lost);
        });
        if verdict == BlockVerdict::AllDamaged {
            self.lose_span();
            return Ok(());
        }
        // Before the pieces: they move the key that a loss would begin behind.
        self.note_span(verdict);
        let mut bytes = Vec::new();
        self.decoder.clear();
        for piece in pieces {
            let Piece::Sound { entry, note, hidden, index } = piece else {
                self.is_lost_behind = true;
                continue;
            };
            let key = KeyRef::new(&entry.key, Trailer::new(entry.seq, entry.kind));
            if self.is_lost_behind {
                let has_versions = self.by.judge.has_versions();
                self.add_gap(&entry.key, has_versions);
            }
            self.before.key.clone_from(&entry.key);
            self.before.seq = Some(entry.seq);
            let value = append(&mut bytes, &entry.value);
            let hidden = hidden.map(|hidden| append(&mut bytes, &hidden));
            self.decoder.push(key, value, hidden, index, note);
        }
        self.bytes = bytes;
        Ok(())
    }
}

pub(super) struct Damaged<'a> {
    pub reader: &'a SstReader,
    pub extent: Extent,
    pub index: u64,
    pub before: Option<(&'a [u8], SeqNo)>,
    pub table: &'a JudgedTable,
    /// For its room.
    pub decoder: &'a mut Decoder,
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

    fn accepts(
        &mut self,
        payload: &[u8],
        check: &mut dyn FnMut(&Entry<'_>, Option<&[u8]>) -> bool,
    ) -> bool {
        if !self.decoder.decode(payload, self.reader) {
            return false;
        }
        self.decoder.slots.iter().enumerate().all(|(at, slot)| {
            let Some(kind) = slot.trailer.kind() else { return false };
            let key = self.decoder.key(at);
            let stored_seq = slot.trailer.seq();
            let seq = self.table.global_seq.unwrap_or(stored_seq);
            let value = &payload[slot.value.clone()];
            let entry = Entry { key, seq, stored_seq, kind, value, hidden: false };
            match self.decoder.hidden(at) {
                Some(hidden) => check(&entry, Some(&payload[hidden])),
                None => check(&entry, hidden_apart(self.reader, key, stored_seq).as_deref()),
            }
        })
    }

    fn decode(&mut self, payload: &[u8]) -> DecodedBlock {
        let mut decoder = Decoder::with_pieces();
        let is_whole = decoder.decode(payload, self.reader);
        let pieces = decoder.pieces.take().unwrap_or_default();
        let mut entries = Vec::with_capacity(decoder.slots.len());
        for (at, (slot, pieces)) in decoder.slots.iter().zip(pieces).enumerate() {
            let key = decoder.key(at).to_vec();
            let hidden = match decoder.hidden(at) {
                Some(range) => Some(payload[range].to_vec()),
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
