//! Entries of a memtable whose checksums do not match, and their repair.
//!
//! A memtable never changes: a repaired memtable is a copy, which the flush writes instead. The
//! caller has the sources of a repair. A repair may only return entries that the checksum confirms.

use std::sync::Arc;

use super::iter::is_intact;
use super::skiplist::{Inserted, NewEntry, NewValue, NodeRef, SkipList, VersionRef};
use super::{Memtable, key_check};
use crate::codec::checksum64;
use crate::types::{EntryChecksum, EntryKind, KeyRef, SeqNo, Trailer};

/// Longest entry in which every single bit is tried, in bytes. That takes a second or less.
const BITS_TRIED_BYTES_MAX: usize = 4 << 10;

/// An entry whose bytes have changed since its insertion, as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedEntry {
    /// The key, damaged or not.
    pub key: Vec<u8>,
    /// Sequence number and kind, damaged or not.
    pub trailer: Trailer,
    /// The value, damaged or not.
    pub value: Vec<u8>,
    /// The checksum of the bytes that were inserted.
    sum: EntryChecksum,
    /// `true` if the key is the inserted one: its own checksum matches.
    pub is_key_sound: bool,
    /// A number above every older version of the key in the memtable.
    above_older: SeqNo,
}

/// An entry as it was inserted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrueEntry {
    /// The key.
    pub key: Vec<u8>,
    /// Sequence number and kind.
    pub trailer: Trailer,
    /// The value.
    pub value: Vec<u8>,
}

impl TrueEntry {
    fn sum(&self) -> Option<EntryChecksum> {
        EntryChecksum::of_entry(&self.key, self.trailer, &self.value)
    }
}

impl DamagedEntry {
    fn new(node: NodeRef<'_>, version: VersionRef<'_>) -> DamagedEntry {
        let older = version.older().map_or(SeqNo::ZERO, |older| older.trailer().seq());
        DamagedEntry {
            key: node.key().to_vec(),
            trailer: version.trailer(),
            value: version.value().to_vec(),
            sum: version.sum(),
            is_key_sound: key_check(checksum64(node.key())) == node.key_check(),
            // From the older version and not from this one, whose number may be the damage.
            above_older: older.plus(1),
        }
    }

    /// Returns `true` if `entry` is the inserted one: the checksum confirms it, or it equals the
    /// found one, so that the checksum is damaged.
    pub fn accepts(&self, entry: &TrueEntry) -> bool {
        entry.sum() == Some(self.sum)
            || entry.key == self.key && entry.trailer == self.trailer && entry.value == self.value
    }

    /// The entry with one bit flipped back that matches its checksum. Tries nothing for an entry
    /// longer than a few KiB.
    pub fn with_one_bit_undone(&self) -> Option<TrueEntry> {
        // Each trial hashes the entry again: the cost grows with the square of its length.
        if self.key.len() + self.value.len() > BITS_TRIED_BYTES_MAX {
            return None;
        }
        let DamagedEntry { key, trailer, value, .. } = self.clone();
        let mut entry = TrueEntry { key, trailer, value };
        // The flipped bit may be in the checksum. Then the entry is correct as it is.
        if entry.sum().is_some_and(|found| found.differing_bits(self.sum) == 1) {
            return Some(entry);
        }
        if let Some(trailer) = self.other_trailers().find(|trailer| {
            EntryChecksum::of_entry(&entry.key, *trailer, &entry.value) == Some(self.sum)
        }) {
            entry.trailer = trailer;
            return Some(entry);
        }
        // The value before the key: it is usually longer, so a flipped bit is more likely there.
        for bit in 0..8 * entry.value.len() {
            entry.value[bit / 8] ^= 1 << (bit % 8);
            if entry.sum() == Some(self.sum) {
                return Some(entry);
            }
            entry.value[bit / 8] ^= 1 << (bit % 8);
        }
        for bit in 0..8 * entry.key.len() {
            entry.key[bit / 8] ^= 1 << (bit % 8);
            if entry.sum() == Some(self.sum) {
                return Some(entry);
            }
            entry.key[bit / 8] ^= 1 << (bit % 8);
        }
        None
    }

    /// Trailers of another kind, or with one bit of the number flipped.
    fn other_trailers(&self) -> impl Iterator<Item = Trailer> {
        let found = self.trailer;
        let kinds = [
            EntryKind::Tombstone,
            EntryKind::Value,
            EntryKind::Handle,
            EntryKind::Operand,
            EntryKind::Poison,
        ];
        let of_kind = kinds.into_iter().map(move |kind| Trailer::new(found.seq(), kind));
        let numbers = (0..56).filter_map(move |bit| SeqNo::new(found.seq().get() ^ 1 << bit));
        // The true kind is unknown if it is damaged, so numbers are tried with the most frequent
        // one.
        let kind = found.kind().unwrap_or(EntryKind::Value);
        of_kind.chain(numbers.map(move |seq| Trailer::new(seq, kind)))
    }

    /// The entry that marks the key's record as damaged. It is newer than every older version in
    /// the memtable, and than `flushed`, so that none of them passes for the present one. It is no
    /// newer than that, because the found number may be damaged. `None` if the key is not known.
    pub fn poison(&self, flushed: SeqNo) -> Option<TrueEntry> {
        let seq = self.above_older.max(flushed.plus(1));
        let trailer = Trailer::new(seq, EntryKind::Poison);
        self.is_key_sound.then(|| TrueEntry { key: self.key.clone(), trailer, value: Vec::new() })
    }
}

impl Memtable {
    /// The entries whose checksums do not match.
    ///
    /// # Cost
    /// Reads the whole memtable.
    pub fn damaged(&self) -> Vec<DamagedEntry> {
        let entries = all_entries(self.list());
        let damaged = entries.filter(|(node, version)| !is_intact(*node, *version));
        damaged.map(|(node, version)| DamagedEntry::new(node, version)).collect()
    }

    /// A copy in which `repaired` replace the entries whose checksums do not match; `None` if they
    /// do not fit among the intact versions.
    ///
    /// # Cost
    /// Inserts every entry again.
    pub fn mended(&self, repaired: &[TrueEntry]) -> Option<Arc<Memtable>> {
        // Under the same id, by which the flush and the work list refer to the memtable.
        let copy = self.successor(self.id);
        let mut entries: Vec<(KeyRef<'_>, NewEntry<'_>)> = Vec::new();
        for (node, version) in all_entries(self.list()) {
            // Damaged entries are left out: the repaired ones are in `repaired`.
            if is_intact(node, version) {
                let key_check = node.key_check();
                let trailer = version.trailer();
                let sum = version.sum();
                let value = version.new_value();
                let entry = NewEntry { key: node.key(), key_check, trailer, sum, value };
                entries.push((KeyRef::new(node.key(), trailer), entry));
            }
        }
        for TrueEntry { key, trailer, value } in repaired {
            let hash = checksum64(key);
            let kind = trailer.kind().unwrap_or(EntryKind::Poison);
            let entry = NewEntry {
                key,
                key_check: key_check(hash),
                trailer: *trailer,
                sum: EntryChecksum::new(hash, kind, value).numbered(trailer.seq()),
                value: NewValue::Copied(value),
            };
            entries.push((KeyRef::new(key, *trailer), entry));
        }
        // Oldest version first, because a list takes a version only if it is the newest of its key.
        entries
            .sort_by(|(a, _), (b, _)| a.user.cmp(b.user).then_with(|| a.trailer.cmp(&b.trailer)));
        let mut writer = copy.list().writer();
        for (_, entry) in &entries {
            match writer.insert(entry) {
                // A repaired sequence number may be that of an intact version of the key.
                Inserted::NotNewer => return None,
                Inserted::Version { .. } => {}
                Inserted::Key => copy.note_key(checksum64(entry.key)),
            }
        }
        drop(writer);
        copy.take_counters_of(self);
        Some(Arc::new(copy))
    }
}

/// All entries, newest version of a key first.
fn all_entries(list: &SkipList) -> impl Iterator<Item = (NodeRef<'_>, VersionRef<'_>)> {
    let nodes = std::iter::successors(list.first(), |node| node.next());
    nodes.flat_map(|node| {
        std::iter::successors(Some(node.newest()), |version| version.older())
            .map(move |version| (node, version))
    })
}
