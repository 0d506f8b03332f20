//! Verification of entries in memory: those of a block, or the group of one key.
//!
//! Verified reads and tools call it. Compactions and scrubs use the pass in `filter.rs`.

use lsm_core::hooks::Entry;

use crate::payload::HEAD_BYTES;
use crate::payload::{entry_key, is_metadata};
use crate::provider::MetadataProvider;
use crate::verdict::Verdict;

/// The state of an entry of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It was compared with its metadata.
    Judged(Verdict),
    /// Its metadata is not in the group. In a sealed table that is damage, unless the pair is
    /// split.
    Unsealed,
    /// It is metadata, and has served.
    Metadata,
    /// It is metadata, and its entry is not in the group.
    Orphan,
}

/// The verdict on an entry by its metadata, both as they are stored.
pub fn verify(provider: &dyn MetadataProvider, entry: &Entry<'_>, payload: &[u8]) -> Verdict {
    match payload.split_at_checked(HEAD_BYTES) {
        Some((_, metadata)) => provider.check(entry, metadata),
        None => Verdict::DataCorrupt,
    }
}

/// The state of each of `entries`, which are stored entries of one table in internal order.
///
/// # Cost
/// One pass and a binary search for each metadata entry; two words for each entry.
pub fn verify_group(provider: &dyn MetadataProvider, entries: &[Entry<'_>]) -> Vec<State> {
    let mut states = vec![State::Unsealed; entries.len()];
    for (at, entry) in entries.iter().enumerate() {
        let is_hidden =
            entry.hidden || is_metadata(entry.key, entry.kind, entry.value, entry.stored_seq);
        if !is_hidden {
            continue;
        }
        let of = entry_key(entry.key).and_then(|key| {
            // Metadata sorts after its entry.
            let before = &entries[..at];
            let found = before.binary_search_by(|other| {
                other.key.cmp(key).then_with(|| entry.stored_seq.cmp(&other.stored_seq))
            });
            found.ok()
        });
        match of {
            Some(of) => {
                states[at] = State::Metadata;
                // The state of the entry is set when its metadata comes. An entry whose metadata
                // never comes stays unsealed.
                states[of] = State::Judged(verify(provider, &entries[of], entry.value));
            }
            None => states[at] = State::Orphan,
        }
    }
    states
}
