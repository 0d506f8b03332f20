//! [`Shared`]: the provider and the counts of a partition, for its filters, verifiers and repairs.

use std::sync::{Arc, Mutex, PoisonError};

use lsm_core::hooks::Entry;
use lsm_core::types::Process;

use crate::checksum;
use crate::counts::Counts;
use crate::payload::{HEAD_BYTES, LONG_METADATA_BYTES, METADATA_BYTES, Payload};
use crate::provider::{Integrity, MetadataProvider};
use crate::table_seal::TableSeal;
use crate::verdict::{Verdict, judge};

/// The checksum of an entry of a table without a seal: no checksum but by a chance of 1 in 2^64.
pub(crate) const NOT_SEALED: u64 = 0;

/// The state that the factory and its filters share.
pub(crate) struct Shared {
    pub(crate) provider: Arc<dyn MetadataProvider>,
    /// `true` if the provider is [`Integrity`], which the filter does without calling it.
    pub(crate) is_integrity: bool,
    counts: Mutex<Counts>,
    /// No other one takes the lock.
    process: Process,
}

impl Shared {
    pub(crate) fn new(provider: Arc<dyn MetadataProvider>, is_integrity: bool) -> Arc<Shared> {
        Arc::new(Shared {
            provider,
            is_integrity,
            counts: Mutex::default(),
            process: Process::current(),
        })
    }

    /// Returns `true` if an entry is good by its metadata, both as they are stored. Of integrity's
    /// the second copy is not asked as long as the first one agrees.
    #[inline]
    pub(crate) fn entry_is_good(&self, entry: &Entry<'_>, metadata: &[u8]) -> bool {
        if !self.is_integrity {
            return self.provider.check(entry, metadata).entry_is_good();
        }
        let sum = checksum::of_entry(entry.key, entry.value, entry.stored_seq, entry.kind);
        // The usual case without decoding: if the first copy agrees, the entry is what was written,
        // whatever became of the second.
        let is_first = metadata.starts_with(&sum.to_le_bytes());
        is_first && [METADATA_BYTES, LONG_METADATA_BYTES].contains(&metadata.len())
            || Integrity.check(entry, metadata).entry_is_good()
    }

    /// The checksum of an entry, and what its metadata says of it. In a table that is not sealed every entry is
    /// what its block says.
    pub(crate) fn compare(
        &self,
        seal: Option<&TableSeal>,
        entry: &Entry<'_>,
        hidden: Option<&[u8]>,
    ) -> (u64, Verdict) {
        let sum = checksum::of_entry(entry.key, entry.value, entry.stored_seq, entry.kind);
        let Some(seal) = seal else { return (NOT_SEALED, Verdict::Valid) };
        // The list in the seal is searched only where the block has nothing: it holds the few pairs
        // that the end of the table came between.
        let kept = match hidden {
            Some(_) => None,
            None => seal.open_payload(entry.key, entry.stored_seq.get()),
        };
        let kept = kept.and_then(|payload| payload.get(HEAD_BYTES..));
        // In a sealed table every entry was written with metadata, so one without it is damaged or
        // misplaced.
        let Some(metadata) = hidden.or(kept) else { return (sum, Verdict::DataCorrupt) };
        if !self.is_integrity {
            return (sum, self.provider.check(entry, metadata));
        }
        match Payload::after_seq(entry.stored_seq, metadata) {
            Some(metadata) => (sum, judge(sum, &metadata)),
            None => (sum, Verdict::DataCorrupt),
        }
    }

    /// The counts so far.
    pub(crate) fn counts(&self) -> Counts {
        if !self.process.is_current() {
            return Counts::default();
        }
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, counts: Counts) {
        if !self.process.is_current() {
            return;
        }
        // A poisoned lock is no reason to fail a job: counts are shown to people, and nothing is
        // decided by them.
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner) += counts;
    }
}
