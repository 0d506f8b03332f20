//! [`StoredBlock`]: a block of the walk in the form that its repair needs.

use std::borrow::Cow;
use std::ops::Range;

use super::block::TolerantBlock;
use crate::error::{Error, Result};
use crate::hooks::{DamagedBlock, DecodedBlock, DecodedEntry, Entry, OwnedEntry};
use crate::sstable::read_ahead::ReadAhead;
use crate::sstable::reader::SstReader;
use crate::sstable::stored::{Access, Extent, LARGE_PAYLOAD_BYTES};
use crate::types::{EntryKind, SeqNo};

pub(super) struct StoredBlock<'a> {
    pub reader: &'a SstReader,
    pub extent: Extent,
    pub before: Option<(&'a [u8], SeqNo)>,
    pub global_seq: Option<SeqNo>,
    pub ahead: &'a mut ReadAhead,
    /// Kept for its buffers.
    pub decoder: &'a mut TolerantBlock,
    /// The error that fails the job.
    pub failed: Option<Error>,
}

impl StoredBlock<'_> {
    /// The payload of the hidden entry of a decoded entry, without its first 8 bytes.
    fn hidden<'p>(
        &self,
        payload: &'p [u8],
        at: Option<Range<usize>>,
        key: &[u8],
        seq: SeqNo,
    ) -> Option<Cow<'p, [u8]>> {
        match at {
            Some(at) => Some(payload[at].into()),
            None => hidden_apart(self.reader, key, seq).map(Into::into),
        }
    }
}

impl DamagedBlock for StoredBlock<'_> {
    fn offset(&self) -> u64 {
        self.extent.offset
    }

    fn read(&mut self, is_again: bool) -> Result<Vec<u8>> {
        let source = self.reader.source();
        let read = match is_again {
            true => source.read_stored(Access::Uncached, self.extent),
            false if self.extent.len >= LARGE_PAYLOAD_BYTES as u64 => {
                source.read_stored(Access::Plain, self.extent)
            }
            false => self.ahead.stored(self.reader, self.extent).map(<[u8]>::to_vec),
        };
        match read {
            // An empty block: nothing of it decodes.
            Err(error) if error.is_corruption() => Ok(Vec::new()),
            Err(error) => {
                // Kept together with the result, because a repair may treat an error as damage and go on.
                // The job must fail: bytes that cannot be read now may be readable later.
                self.failed = Some(error.clone());
                Err(error)
            }
            stored => stored,
        }
    }

    fn is_verified(&self, stored: &[u8]) -> bool {
        self.reader.source().is_block(self.extent.offset, stored)
    }

    fn with_one_bit_turned(&self, stored: &[u8]) -> Option<Vec<u8>> {
        self.reader.source().with_one_bit_turned(self.extent.offset, stored)
    }

    fn unpack(&self, stored: &[u8]) -> Option<Vec<u8>> {
        let payload = self.reader.source().unverified_payload(self.extent.offset, stored)?;
        Some(payload.bytes[..payload.len].to_vec())
    }

    fn accepts(
        &mut self,
        payload: &[u8],
        check: &mut dyn FnMut(&Entry<'_>, Option<&[u8]>) -> bool,
    ) -> bool {
        self.decoder.load(payload, self.reader.hidden_suffix());
        let mut key = Vec::new();
        self.decoder.is_complete
            && self.decoder.visible().all(|of| {
                self.decoder.put_key(of, &mut key);
                let Some(kind) = of.trailer.kind() else { return false };
                let stored_seq = of.trailer.seq();
                let seq = self.global_seq.unwrap_or(stored_seq);
                let value = &payload[of.value.clone()];
                let entry = Entry { key: &key, seq, stored_seq, kind, value, hidden: false };
                check(
                    &entry,
                    self.hidden(payload, of.metadata.clone(), &key, stored_seq).as_deref(),
                )
            })
    }

    fn decode(&mut self, payload: &[u8]) -> DecodedBlock {
        self.decoder.load(payload, self.reader.hidden_suffix());
        let entries = self.decoder.visible().map(|of| {
            let mut key = Vec::new();
            self.decoder.put_key(of, &mut key);
            let seq = of.trailer.seq();
            let hidden = self.hidden(payload, of.metadata.clone(), &key, seq);
            let hidden = hidden.map(Cow::into_owned);
            // The decoder took known kinds alone, so this is no guess that could be written.
            let kind = of.trailer.kind().unwrap_or(EntryKind::Poison);
            let value = payload[of.value.clone()].to_vec();
            DecodedEntry {
                entry: OwnedEntry { key, seq, kind, value, verified: false },
                hidden,
                index: of.index,
                start: of.start,
                shared: of.shared.clone(),
                suffix: of.rest.clone(),
                value: of.value.clone(),
            }
        });
        DecodedBlock { entries: entries.collect(), is_whole: self.decoder.is_complete }
    }

    fn before(&self) -> Option<(&[u8], SeqNo)> {
        self.before
    }
}

/// The payload of a hidden entry that lies in another block than its owner, without its first 8
/// bytes.
#[cold]
fn hidden_apart(reader: &SstReader, key: &[u8], seq: SeqNo) -> Option<Vec<u8>> {
    let suffix = reader.hidden_suffix().filter(|_| !reader.is_walked_only())?;
    let key = [key, suffix].concat();
    // A hidden entry that cannot be read counts as missing: the repair says what follows from that.
    let (_, block) = reader.block_of_hidden(&key, seq, true).ok()??;
    let head = block.find_hidden(&key, seq, suffix)?;
    head.after_seq(block.bytes()).map(<[u8]>::to_vec)
}
