//! The cursor of a job over a table whose blocks a hook verifies: each entry with its checksum and its place.

use std::sync::Arc;

use super::{KEY_BYTES_TYPICAL, SstIter};
use crate::error::{Error, Result};
use crate::hooks::{
    BlockVerifier, EachEntry, Entry, Fault, Inject, InputBlock, JobFindings, Origin, OwnedEntry,
    VerifiedBlock, VerifiedEntry, catch,
};
use crate::iter::InternalIter;
use crate::sstable::block::Block;
use crate::sstable::stored::Access;
use crate::sstable::table_block::{BlockCheck, OpenTable, TableBlock};
use crate::sstable::unparsed::CursorBlock;
use crate::types::{EntryKind, FileNo};

/// Has a hook verify the blocks of the inputs of a job.
#[derive(Clone)]
pub struct JobCheck {
    /// The hook.
    pub verifier: Arc<dyn BlockVerifier>,
    /// Those of the job.
    pub findings: JobFindings,
    /// The level of the tables.
    pub level: usize,
    /// Injected faults of memory in hidden entries before they are verified, for tests.
    pub inject: Option<Arc<Inject>>,
}

impl BlockCheck for JobCheck {
    fn check(&self, block: &mut TableBlock<'_>, verified: &mut VerifiedBlock) -> Result<()> {
        verified.sums.clear();
        verified.payloads.clear();
        verified.rebuilt.clear();
        let seen = JobBlock { block, inject: self.inject.as_deref() };
        self.verifier.verify(&seen, verified)?;
        assert_eq!(verified.sums.len(), block.len(), "each entry has a checksum");
        if !verified.rebuilt.is_empty() {
            self.report(block, verified);
        }
        Ok(())
    }

    fn end(&self, table: OpenTable<'_>) -> Result<()> {
        match catch("a filter's verifier", || self.verifier.end(table.file()))? {
            None => Ok(()),
            Some(what) => Err(table.corruption(what)),
        }
    }
}

/// A block in the form that its verifier needs.
struct JobBlock<'a, 'b> {
    block: &'a TableBlock<'b>,
    inject: Option<&'a Inject>,
}

impl InputBlock for JobBlock<'_, '_> {
    fn file(&self) -> FileNo {
        self.block.table().file()
    }

    fn number(&self) -> Option<u64> {
        self.block.number()
    }

    fn entry_count(&self) -> usize {
        self.block.len()
    }

    fn column(&self) -> Option<(&[u8], usize)> {
        // A fault is injected into one entry after the other.
        self.block.hidden_column().filter(|_| self.inject.is_none())
    }

    fn entries(&self, each: &mut EachEntry<'_>) -> Result<()> {
        let global_seq = self.block.table().global_seq();
        let mut buffer = Vec::new();
        for i in 0..self.block.len() {
            let (at, key, value) = self.block.entry(i, &mut buffer);
            let stored_seq = key.trailer.seq();
            let seq = global_seq.unwrap_or(stored_seq);
            let kind = key.trailer.kind().unwrap_or(EntryKind::Poison);
            let entry = Entry { key: key.user, seq, stored_seq, kind, value, hidden: false };
            let hidden = self.block.hidden_of(at, key.user, stored_seq)?;
            let hidden = hidden.as_ref().and_then(|hidden| hidden.after_seq());
            match (self.inject, hidden) {
                (Some(inject), Some(hidden)) => {
                    let injected = self.injected(inject, self.block.place(at), &entry, hidden);
                    each(&entry, injected.get(size_of::<u64>()..))?;
                }
                _ => each(&entry, hidden)?,
            }
        }
        Ok(())
    }

    fn corruption(&self, what: &str) -> Error {
        self.block.corruption(what)
    }
}

impl JobBlock<'_, '_> {
    /// The whole payload of the hidden entry of `owner`, as a fault leaves it.
    #[cold]
    fn injected(&self, inject: &Inject, place: u32, owner: &Entry<'_>, hidden: &[u8]) -> Vec<u8> {
        let at = Origin {
            file: Some(self.file()),
            block_offset: self.block.offset(),
            // It lies after its owner unless another key sorts between the two.
            entry: place + 1,
            block_verified: true,
            ..Origin::MEMTABLE
        };
        let seq = owner.stored_seq;
        let mut owned = OwnedEntry {
            key: [owner.key, self.block.hidden_suffix()].concat(),
            seq,
            kind: EntryKind::Tombstone,
            value: [&seq.get().to_le_bytes()[..], hidden].concat(),
            verified: true,
        };
        inject(at, &mut owned);
        owned.value
    }
}

impl JobCheck {
    /// Reports the hidden entries that the job makes again.
    #[cold]
    fn report(&self, block: &TableBlock<'_>, verified: &mut VerifiedBlock) {
        let at = Origin {
            file: Some(block.table().file()),
            level: self.level,
            block_offset: block.offset(),
            ..Origin::MEMTABLE
        };
        let faults = verified.rebuilt.drain(..).map(|fault| Fault { at, ..fault });
        let faults = faults.map(|fault| (fault, "made again from its entry".to_owned()));
        self.findings.add(|findings| findings.repaired.extend(faults));
    }
}

impl SstIter {
    /// The present entry, what its [`JobCheck`] says of it, and its place in a table of `level`. Only while
    /// valid.
    // Into the loop of a job, through the layers of cursors: in a call, all of it goes through memory.
    #[inline(always)]
    pub fn verified(&self, level: usize) -> (Entry<'_>, VerifiedEntry<'_>, Origin) {
        let (extent, body) = self.walk.block();
        let entries = self.walk.entries();
        let block = parsed(body);
        let seq = entries.trailer.seq();
        let stored_seq = match entries.global_seq {
            None => seq,
            Some(_) => block.trailer(block.head(entries.at)).seq(),
        };
        let entry = Entry {
            key: &entries.key,
            seq,
            stored_seq,
            kind: entries.trailer.kind().expect("a stored entry has a kind"),
            value: &block.bytes()[entries.value.clone()],
            hidden: false,
        };
        let hidden = entries.verified.payloads.get(entries.at).and_then(Option::as_deref);
        let at = Origin {
            file: Some(self.walk.reader().file()),
            level,
            block_offset: extent.offset,
            // A block has fewer entries than bytes, and those are counted in 32 bits.
            entry: block.entries_before(entries.at) as u32,
            block_verified: true,
        };
        (entry, VerifiedEntry { note: entries.verified.sums[entries.at], hidden }, at)
    }

    /// Reads the block of the present entry again, past every cache and into other memory. Returns `false` if
    /// it cannot be read or has another entry there. A merge then chose this entry by a key that had changed in
    /// memory, and the entry that is there now may not be the next one.
    #[cold]
    pub fn read_again(&mut self) -> Result<bool> {
        let extent = self.walk.block().0;
        let (reader, entries, body) = self.walk.on_block();
        let read = reader.source().read_stored(Access::Uncached, extent);
        let block = match read.and_then(|stored| reader.open_block(extent, &stored)) {
            Ok(block) if block.len() == parsed(body).len() => block,
            Ok(_) => return Ok(false),
            Err(error) if error.is_corruption() => return Ok(false),
            Err(error) => return Err(error),
        };
        let key = std::mem::replace(&mut entries.key, Vec::with_capacity(KEY_BYTES_TYPICAL));
        let trailer = entries.trailer;
        let at = entries.at;
        entries.enter_block(&block);
        entries.enter(&block, at);
        let is_same = entries.key == key && entries.trailer == trailer;
        self.walk.replace_block(CursorBlock::Parsed(block));
        Ok(is_same)
    }

    /// Shows the check the end of the table, which the cursor has passed.
    ///
    /// # Errors
    /// Those of the check.
    pub fn end(&self) -> Result<()> {
        debug_assert!(!self.valid(), "the cursor is after the last entry");
        match &self.walk.entries().check {
            Some(check) => check.end(OpenTable::new(self.walk.reader())),
            None => Ok(()),
        }
    }
}

fn parsed(body: &CursorBlock) -> &Block {
    match body {
        CursorBlock::Parsed(block) => block,
        CursorBlock::Unparsed(_) => unreachable!("a check sees whole blocks"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Compression;
    use crate::sstable::ReadMode;
    use crate::sstable::stored::StoredPayload;
    use crate::sstable::tests::{Entries, entry, open, options, write};

    fn entries() -> Entries {
        (0..40).map(|n| entry(&[b'k', n], 7, EntryKind::Value, &[n; 30])).collect()
    }

    /// A cursor on entry 20.
    fn cursor() -> SstIter {
        let (bytes, _) = write(&entries(), options(4096, Compression::None), 1 << 20);
        let mut iter = open(&bytes, None).unwrap().iter(ReadMode::Streaming);
        iter.seek(None).unwrap();
        for _ in 0..20 {
            iter.next().unwrap();
        }
        iter
    }

    #[test]
    fn an_entry_that_changed_in_memory_is_read_again() {
        let mut iter = cursor();
        // One bit of its value flips in the block that the cursor holds.
        let at = iter.walk.entries().value.start;
        let extent = iter.walk.block().0;
        let (reader, entries, _) = iter.walk.on_block();
        let payload = reader.source().read(extent).unwrap();
        let mut bytes = payload.bytes.to_vec();
        bytes[at] ^= 4;
        let payload = StoredPayload { bytes: bytes.into(), len: payload.len };
        let changed = Arc::new(Block::parse(payload, None).unwrap());
        entries.enter(&changed, 20);
        iter.walk.replace_block(CursorBlock::Parsed(changed));
        assert_eq!((iter.key().user, iter.value()[0]), (&[b'k', 20][..], 16));
        assert!(iter.read_again().unwrap());
        for n in 20..40 {
            assert_eq!((iter.key().user, iter.value()), (&[b'k', n][..], &[n; 30][..]));
            iter.next().unwrap();
        }
        assert!(!iter.valid());
    }

    /// A merge that compared the wrong key may have taken the entry too early or too late.
    #[test]
    fn an_entry_whose_key_changed_in_memory_is_not_read_again() {
        let mut iter = cursor();
        iter.walk.on_block().1.key[1] ^= 1;
        assert!(!iter.read_again().unwrap());
        let mut iter = cursor();
        let entries = iter.walk.on_block().1;
        entries.trailer = entries.trailer.with_seq(crate::types::SeqNo::ZERO);
        assert!(!iter.read_again().unwrap());
    }
}
