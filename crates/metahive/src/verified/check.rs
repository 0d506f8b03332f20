//! The comparison of the entries of a block with their metadata.
//!
//! Verified reads call it for the entry that they found, for its neighbours, and for whole blocks.

use std::borrow::Cow;

use lsm_core::error::{Error, Result};
use lsm_core::hooks::Entry;
use lsm_core::raw::{EntryAt, Found, OpenTable, TableBlock, TablePlace};
use lsm_core::types::{EntryKind, SeqNo};

use super::VerifiedBy;
use crate::checksum;
use crate::counts::Counts;
use crate::metahive::MetaHive;
use crate::payload::{HEAD_BYTES, Payload};
use crate::shared::Shared;
use crate::table_seal::{INCOMPLETE, TableSeal};

/// A comparison of a span keeps so many blocks in memory until their sum is known.
const SIBLINGS_MAX: usize = 64;

/// Why there is no answer.
pub(super) enum CheckError {
    /// An entry disagrees with its metadata, as they lie in memory. Reading again may help.
    Damage(Error),
    /// Anything else.
    Failed(Error),
}

impl From<Error> for CheckError {
    fn from(error: Error) -> CheckError {
        CheckError::Failed(error)
    }
}

/// The seal of a table, decoded once for as long as the table is open.
struct CachedSeal {
    /// The provider that it was read for.
    provider: String,
    is_integrity: bool,
    seal: Result<Option<TableSeal>>,
}

impl CachedSeal {
    fn new(table: OpenTable<'_>, shared: &Shared) -> CachedSeal {
        let provider = shared.provider.name();
        let seal = TableSeal::of(&table.properties().user, provider);
        CachedSeal { provider: provider.to_owned(), is_integrity: shared.is_integrity, seal }
    }

    #[inline]
    fn is_for(&self, shared: &Shared) -> bool {
        (self.is_integrity && shared.is_integrity) || self.provider == shared.provider.name()
    }
}

/// Verifies for one partition.
#[derive(Clone, Copy)]
pub(super) struct EntryCheck<'a> {
    shared: &'a Shared,
    pub(super) retries_max: u32,
}

impl<'a> EntryCheck<'a> {
    pub(super) fn of(hive: &'a MetaHive) -> EntryCheck<'a> {
        EntryCheck { shared: hive.shared(), retries_max: hive.retries_max() }
    }

    /// Damage that another reading has undone.
    pub(super) fn mended(&self) {
        self.shared.add(Counts { reads_mended: 1, ..Counts::default() });
    }

    /// The seal of a table; `None` if it is not sealed.
    #[inline]
    fn seal<'t>(&self, table: OpenTable<'t>) -> Result<Option<Cow<'t, TableSeal>>> {
        let cached = table.hook_value(|| CachedSeal::new(table, self.shared));
        match cached.filter(|cached| cached.is_for(self.shared)) {
            Some(CachedSeal { seal: Ok(seal), .. }) => Ok(seal.as_ref().map(Cow::Borrowed)),
            Some(CachedSeal { seal: Err(error), .. }) => Err(error.clone()),
            // The table has the value of another hook, or of the provider before.
            None => Ok(CachedSeal::new(table, self.shared).seal?.map(Cow::Owned)),
        }
    }

    /// The witness for the entries of a table.
    pub(super) fn by(&self, table: OpenTable<'_>) -> Result<VerifiedBy> {
        Ok(if self.seal(table)?.is_some() { VerifiedBy::Metadata } else { VerifiedBy::Block })
    }

    /// Verifies the entry that a read came to, with `key` as its key, and what may have hidden a
    /// newer one from it: versions of the key before it in the block; and the entry before those,
    /// which may have been one, if metadata lies apart. Beside its entry metadata would not sort
    /// any more once the key has changed.
    #[inline]
    pub(super) fn entry(
        &self,
        place: &TablePlace<'_>,
        found: &Found<'_>,
        key: &[u8],
    ) -> Result<VerifiedBy, CheckError> {
        let TablePlace { block, at, .. } = place;
        let Some(seal) = self.seal(block.table())? else { return Ok(VerifiedBy::Block) };
        let entry = stored(key, found.stored_seq, found.kind, found.value);
        let is_next_to_owner = self.pair(&seal, block, *at, &entry)?;
        let mut first = at.index();
        // Newer versions of the key lie before the found one. If a bit changed one of their
        // numbers, the search passed it, and the found value is too old.
        while first > 0 && block.is_version(first) {
            first -= 1;
            self.nth(&seal, block, first, &mut Vec::new())?;
        }
        if !is_next_to_owner && first > 0 {
            self.nth(&seal, block, first - 1, &mut Vec::new())?;
        }
        // After what can name the key: a digest names only the block.
        if !block.is_whole() {
            self.whole(&seal, block)?;
        }
        Ok(VerifiedBy::Metadata)
    }

    /// Verifies a block in which `key` was not found, and that it is not there.
    #[cold]
    pub(super) fn absence(
        &self,
        block: &TableBlock<'_>,
        key: &[u8],
        seen: SeqNo,
    ) -> Result<(), CheckError> {
        self.block(block)?;
        // By a walk over the entries and no search: a damaged word or restart may lead a search
        // past a sound entry.
        if block.holds(key, seen) {
            return Err(damage(block, "the key is in the block and the search passed it", key));
        }
        Ok(())
    }

    /// Verifies all entries of a block, and that they are all.
    pub(super) fn block(&self, block: &TableBlock<'_>) -> Result<(), CheckError> {
        let Some(seal) = self.seal(block.table())? else { return Ok(()) };
        let mut buffer = Vec::new();
        for i in 0..block.len() {
            self.nth(&seal, block, i, &mut buffer)?;
        }
        self.whole(&seal, block)
    }

    /// Verifies, by the metadata of its entries, that a block has the entries that were written to it
    /// and no other. Once is enough for as long as the block is in memory.
    ///
    /// The blocks of a span share one sum, so that the first read of any of them reads the others,
    /// too. This finds no damage in their bytes: each entry is compared when it is asked for.
    #[cold]
    fn whole(&self, seal: &TableSeal, block: &TableBlock<'_>) -> Result<(), CheckError> {
        let number = if seal.spans.is_empty() { None } else { block.number() };
        let Some((first, span)) = number.and_then(|number| seal.span_of(number)) else {
            block.set_whole();
            return Ok(());
        };
        let mut sum = 0u32;
        let mut siblings = Vec::new();
        for other in first..first + span.blocks {
            if Some(other) == number {
                sum = sum.wrapping_add(self.digest(block)?);
                continue;
            }
            // The seal counts more blocks than the index has: some are gone with their lines in it.
            let Some(sibling) = block.sibling(other)? else {
                return Err(CheckError::Damage(block.corruption(INCOMPLETE)));
            };
            sum = sum.wrapping_add(self.digest(&sibling)?);
            // Beyond that number blocks are read once more when they are asked for, instead of
            // being held all together.
            if siblings.len() < SIBLINGS_MAX {
                siblings.push(sibling);
            }
        }
        if sum != span.digest {
            return Err(CheckError::Damage(block.corruption(INCOMPLETE)));
        }
        block.set_whole();
        // The sum is one of all: without this, a read in each of them would read all of them.
        siblings.iter().for_each(TableBlock::set_whole);
        Ok(())
    }

    /// The sum of the entries of a block by what their metadata says of them.
    fn digest(&self, block: &TableBlock<'_>) -> Result<u32, CheckError> {
        let mut sum = 0u32;
        let mut buffer = Vec::new();
        for i in 0..block.len() {
            let (at, key, value) = block.entry(i, &mut buffer);
            let seq = key.trailer.seq();
            let kind = key.trailer.kind().unwrap_or(EntryKind::Poison);
            let hidden = block.hidden_of(at, key.user, seq)?;
            let metadata = hidden.as_ref().and_then(|hidden| hidden.after_seq());
            let payload = metadata.filter(|_| self.shared.is_integrity);
            let payload = payload.and_then(|metadata| Payload::after_seq(seq, metadata));
            // Metadata that agrees with itself stands for its entry, so values are not hashed
            // again. Other entries are hashed.
            let payload = payload.filter(Payload::is_sound);
            let entry_sum = match payload {
                Some(payload) => payload.sum,
                None => checksum::of_entry(key.user, value, seq, kind),
            };
            sum = sum.wrapping_add(entry_sum as u32);
        }
        Ok(sum)
    }

    /// Verifies visible entry `i` of a block; its key is put together in `buffer`.
    fn nth(
        &self,
        seal: &TableSeal,
        block: &TableBlock<'_>,
        i: usize,
        buffer: &mut Vec<u8>,
    ) -> Result<(), CheckError> {
        let (at, key, value) = block.entry(i, buffer);
        let seq = key.trailer.seq();
        let kind = key.trailer.kind().unwrap_or(EntryKind::Poison);
        self.pair(seal, block, at, &stored(key.user, seq, kind, value)).map(|_| ())
    }

    /// Compares an entry with its metadata; says whether that lies in the same block.
    #[inline]
    fn pair(
        &self,
        seal: &TableSeal,
        block: &TableBlock<'_>,
        at: EntryAt,
        entry: &Entry<'_>,
    ) -> Result<bool, CheckError> {
        let hidden = block.hidden_of(at, entry.key, entry.stored_seq)?;
        let (metadata, is_next_to_owner) = match &hidden {
            Some(hidden) => (hidden.after_seq(), hidden.is_next_to_owner()),
            None => match seal.open_payload(entry.key, entry.stored_seq.get()) {
                Some(payload) => (payload.get(HEAD_BYTES..), false),
                None => {
                    let what = "the entry has no metadata in a table that is sealed";
                    return Err(damage(block, what, entry.key));
                }
            },
        };
        if metadata.is_some_and(|metadata| self.shared.entry_is_good(entry, metadata)) {
            return Ok(is_next_to_owner);
        }
        Err(damage(block, "the entry disagrees with its metadata", entry.key))
    }
}

fn stored<'a>(key: &'a [u8], seq: SeqNo, kind: EntryKind, value: &'a [u8]) -> Entry<'a> {
    Entry { key, seq, stored_seq: seq, kind, value, hidden: false }
}

#[cold]
fn damage(block: &TableBlock<'_>, what: impl Into<String>, key: &[u8]) -> CheckError {
    CheckError::Damage(block.corruption(what).at_key(key))
}
