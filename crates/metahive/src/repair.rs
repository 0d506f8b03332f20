//! The repair of a faulty entry, from each possible source of its correct bytes.
//!
//! The engine calls it between two runs of a job, without locks. A normal job writes the repaired
//! entry to a new table.
//!
//! ```text
//! re-read          the device, bypassing every cache, because the damage may be in memory
//! key of metadata  the bytes of the entry under the key of its metadata
//! one-bit search   the bytes of the entry with one bit flipped
//! log              the write-ahead log, if it still has the entry
//! replica          another copy, through the application
//! ```
//!
//! Invariants:
//! 1. A repaired entry agrees with its metadata. If no metadata is intact, the entry comes from a
//!    frame or block whose checksum agrees.
//! 2. An entry that no source repairs is poisoned: a read returns corruption, never an older version.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use lsm_core::error::Result;
use lsm_core::hooks::{Entry, Fault, Origin, OwnedEntry, Patch, RepairSources};
use lsm_core::types::{EntryKind, KeyRef, SeqNo, Trailer};

use crate::bits;
use crate::checksum;
use crate::detail::{Cause, Detail, EntryPlace};
use crate::metahive::Shared;
use crate::payload::{HEAD_BYTES, Payload, entry_key, is_metadata, metadata_key};
use crate::verdict::judge;

/// Another copy of the data, which the application provides.
pub trait Replica: Send + Sync + 'static {
    /// Returns the entry with this stored key and sequence number, if the replica has it. `verified` of
    /// the entry says whether the replica has verified it. If there is intact metadata, the repair also
    /// compares the entry with it.
    fn fetch(&self, key: &[u8], seq: SeqNo) -> Result<Option<OwnedEntry>>;

    /// Returns the entries of a gap: for every stored key from `from` to `to` (both included), the newest
    /// entry that is not newer than `through`. A key without an entry counts as absent. An answer with an
    /// entry that is not `verified` is ignored. Returns `None` if the replica does not know, or is older
    /// than the gap. Default: `None`.
    fn fetch_range(
        &self,
        from: &[u8],
        to: &[u8],
        through: SeqNo,
    ) -> Result<Option<Vec<OwnedEntry>>> {
        let _ = (from, to, through);
        Ok(None)
    }
}

/// A handler of damage that no source repairs.
pub trait ErrorHandler: Send + Sync + 'static {
    /// Receives a fault whose entry is poisoned from now on. `found` is the content of its place at the
    /// last read.
    fn on_unrepaired(&self, fault: &Fault, found: Option<&OwnedEntry>);
}

/// Options of repairs.
#[derive(Clone)]
pub struct RepairOptions {
    /// Maximum number of reads of the device. Default 3: if three reads agree, the bytes are on the
    /// medium.
    pub retries_max: u32,
    /// Maximum length of an entry (key and value) for the search of one bit. Default 65,536 bytes,
    /// about 2 s; 0 turns the search off.
    pub one_bit_bytes_max: usize,
    /// `true` if repairs read the log. Default: `true`.
    pub log: bool,
    /// The replica. Default: none.
    pub replica: Option<Arc<dyn Replica>>,
    /// The handler of damage that could not be repaired. Default: none.
    pub error_handler: Option<Arc<dyn ErrorHandler>>,
}

impl Default for RepairOptions {
    fn default() -> RepairOptions {
        RepairOptions {
            retries_max: 3,
            one_bit_bytes_max: 64 << 10,
            log: true,
            replica: None,
            error_handler: None,
        }
    }
}

impl fmt::Debug for RepairOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RepairOptions")
            .field("retries_max", &self.retries_max)
            .field("one_bit_bytes_max", &self.one_bit_bytes_max)
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}

/// The distance behind an entry at which its metadata is looked for, in entries.
const ENTRIES_BEHIND_MAX: u32 = 1024;
/// The distance around an entry at which its neighbours are looked for, in entries.
const ENTRIES_AROUND_MAX: u32 = 8;

/// Returns what takes the places of faulty entries.
pub(crate) fn repair(
    faults: &[Fault],
    sources: &mut dyn RepairSources,
    options: &RepairOptions,
    shared: &Shared,
) -> Vec<Patch> {
    // The filter reports an entry before the metadata that came apart from it.
    let mut repaired = HashSet::new();
    let mut patches = Vec::with_capacity(faults.len());
    for fault in faults {
        patches.push(patch(fault, sources, options, shared, &mut repaired));
    }
    patches
}

/// Climbs the ladder for one fault. `repaired` are the places of the entries before it that were
/// repaired.
fn patch(
    fault: &Fault,
    sources: &mut dyn RepairSources,
    options: &RepairOptions,
    shared: &Shared,
    repaired: &mut HashSet<EntryPlace>,
) -> Patch {
    // The filter of this process has made the message. If it does not decode, memory has changed
    // it, and nothing says what the entry should be.
    let Ok(detail) = Detail::decode(&fault.detail) else { return Patch::Poison };
    let mut ladder = Ladder { fault, detail, sources, options, shared, found: None };
    if ladder.detail.cause == Cause::Orphan {
        // Metadata is never repaired by itself: it is made anew from the entry that is found for
        // it.
        return ladder.orphan(repaired);
    }
    match ladder.climb() {
        Some((entry, source)) => {
            repaired.insert(EntryPlace::from(&fault.at));
            replace(entry, source)
        }
        None => {
            ladder.give_up();
            Patch::Poison
        }
    }
}

fn sum_of(entry: &OwnedEntry) -> u64 {
    checksum::of_entry(&entry.key, &entry.value, entry.seq, entry.kind)
}

fn replace(entry: OwnedEntry, source: &str) -> Patch {
    let OwnedEntry { key, seq, kind, value, .. } = entry;
    Patch::Replace { key, seq, kind, value, source: source.to_owned() }
}

struct Ladder<'a> {
    fault: &'a Fault,
    detail: Detail,
    sources: &'a mut dyn RepairSources,
    options: &'a RepairOptions,
    shared: &'a Shared,
    /// The bytes of the last reading.
    found: Option<OwnedEntry>,
}

impl Ladder<'_> {
    fn climb(&mut self) -> Option<(OwnedEntry, &'static str)> {
        // The entry of the fault is the first reading. The later readings replace it.
        if !self.fault.value.is_empty() {
            let Fault { key, seq, kind, value, .. } = self.fault.clone();
            self.found = Some(OwnedEntry { key, seq, kind, value, verified: false });
        }
        // What the database has at this place comes first. The log is searched segment by
        // segment, and a replica may be another machine, so both come last.
        if let Some(entry) = self.reread() {
            return Some((entry, "re-read"));
        }
        if let Some(entry) = self.under_the_key_of_its_metadata() {
            return Some((entry, "key of metadata"));
        }
        if let Some(found) = self.search() {
            return Some(found);
        }
        self.elsewhere()
    }

    /// Returns `true` if the entry is what was written. Without sound metadata the checksum of
    /// where it came from decides, except for the table itself when that is sealed: there the
    /// metadata must be.
    fn is_good(&self, entry: &OwnedEntry, is_reread: bool) -> bool {
        let Some(payload) = &self.detail.payload else {
            // `verified` of a second reading is the checksum of its block. In a sealed table that
            // is no proof: an entry without metadata may have been put there before the block was
            // written.
            return entry.verified && !(is_reread && self.detail.is_sealed);
        };
        if self.shared.is_integrity {
            let Ok(metadata) = Payload::decode(payload) else {
                return entry.verified && !is_reread;
            };
            let is_sound = metadata.is_sound();
            return judge(sum_of(entry), &metadata).entry_is_good()
                || (!is_sound && entry.verified && !is_reread);
        }
        let Some((_, metadata)) = payload.split_at_checked(HEAD_BYTES) else { return false };
        let entry = Entry {
            key: &entry.key,
            seq: entry.seq,
            stored_seq: entry.seq,
            kind: entry.kind,
            value: &entry.value,
            hidden: false,
        };
        self.shared.provider.check(&entry, metadata).entry_is_good()
    }

    fn reread(&mut self) -> Option<OwnedEntry> {
        for _ in 0..self.options.retries_max {
            // A reading that fails is one attempt of several: the device may give the bytes at the
            // next.
            let Ok(Some(entry)) = self.sources.reread(&self.fault.at) else { continue };
            if self.is_good(&entry, true) {
                return Some(entry);
            }
            // The metadata may be what was misread, or overlooked.
            if let Some(payload) = self.reread_metadata(&entry) {
                let before = self.detail.payload.replace(payload);
                if self.is_good(&entry, true) {
                    return Some(entry);
                }
                // The metadata as it was read first: the second reading has proved nothing.
                self.detail.payload = before.or(self.detail.payload.take());
            }
            // Read past every cache. So the searches start from the bytes of the medium, and not
            // from those that memory may have changed.
            self.found = Some(entry);
        }
        None
    }

    /// The V+ of an entry, from the block that the entry lies in.
    fn reread_metadata(&mut self, entry: &OwnedEntry) -> Option<Vec<u8>> {
        let plus = metadata_key(&entry.key);
        for behind in 1..=ENTRIES_BEHIND_MAX {
            let at = self.fault.at.entry.checked_add(behind)?;
            let next = self.sources.reread(&Origin { entry: at, ..self.fault.at }).ok()??;
            if next.key == plus
                && next.seq == entry.seq
                && is_metadata(&next.key, next.kind, &next.value, next.seq)
            {
                return Some(next.value);
            }
            // Entries ascend, so the metadata is not further behind.
            if next.key > plus {
                return None;
            }
        }
        None
    }

    fn under_the_key_of_its_metadata(&self) -> Option<OwnedEntry> {
        // Both keys were written alike. If the one of the entry was damaged since, the other still
        // has it.
        let (partner, _) = self.detail.partner.as_ref()?;
        let key = entry_key(partner)?.to_vec();
        let entry = OwnedEntry { key, ..self.found.clone()? };
        self.is_good(&entry, true).then_some(entry)
    }

    fn search(&mut self) -> Option<(OwnedEntry, &'static str)> {
        if !self.shared.is_integrity {
            return None;
        }
        let entry = self.found.clone()?;
        let metadata = Payload::decode(self.detail.payload.as_ref()?).ok()?;
        let len = entry.key.len() + entry.value.len();
        if len > self.options.one_bit_bytes_max {
            return None;
        }
        let (_, entry) = bits::one_bit(&entry, &metadata)?;
        // The order as well: a wrong bit of the key could agree with the checksum by chance,
        // and would put the entry elsewhere.
        self.is_in_order(&entry).then_some((entry, "one-bit search"))
    }

    /// Returns `true` if the entry may stand where it stands: between its neighbours, under a key that
    /// users can have.
    fn is_in_order(&mut self, entry: &OwnedEntry) -> bool {
        let is_user_key = !entry.key.is_empty() && entry_key(&entry.key).is_none();
        let key = internal(entry);
        is_user_key
            && self.neighbour(u32::checked_sub).is_none_or(|before| internal(&before) < key)
            && self.neighbour(u32::checked_add).is_none_or(|behind| internal(&behind) > key)
    }

    /// The nearest entry of the block that is no metadata: the key of that may be derived from
    /// the damaged one.
    fn neighbour(&mut self, step: fn(u32, u32) -> Option<u32>) -> Option<OwnedEntry> {
        for distance in 1..=ENTRIES_AROUND_MAX {
            let entry = step(self.fault.at.entry, distance)?;
            let found = self.sources.reread(&Origin { entry, ..self.fault.at }).ok()??;
            if entry_key(&found.key).is_none() {
                return Some(found);
            }
        }
        None
    }

    /// The log, then the replica, under the names that the entry may have.
    fn elsewhere(&mut self) -> Option<(OwnedEntry, &'static str)> {
        let names = self.names();
        // The log before the replica: it is the same database's own copy, and nearer.
        if self.options.log {
            // Each name is asked: any of the four parts of the two halves may be the damaged one.
            for (key, seq) in &names {
                // A source that fails is passed over: the next may have the entry, and without any
                // it is poisoned and not lost unseen.
                let found = self.sources.in_log(key, *seq).ok().flatten();
                if let Some(entry) = found.filter(|entry| self.is_the_one(entry, key, *seq)) {
                    return Some((entry, "log"));
                }
            }
        }
        let replica = self.options.replica.as_ref()?;
        for (key, seq) in &names {
            let found = replica.fetch(key, *seq).ok().flatten();
            if let Some(entry) = found.filter(|entry| self.is_the_one(entry, key, *seq)) {
                return Some((entry, "replica"));
            }
        }
        None
    }

    /// Key and sequence number as the metadata has them, and as the entry has.
    fn names(&self) -> Vec<(Vec<u8>, SeqNo)> {
        let own_key = match self.detail.cause {
            Cause::Orphan => entry_key(&self.fault.key).unwrap_or(&self.fault.key),
            Cause::Disagrees | Cause::Unpaired => &self.fault.key,
        };
        let partner = self.detail.partner.as_ref().and_then(|(key, _)| entry_key(key));
        let payload = self.detail.payload.as_deref().map(Payload::decode);
        let head =
            payload.and_then(std::result::Result::ok).map_or(self.fault.seq, |payload| payload.seq);
        let mut names = Vec::new();
        // The key of the metadata first: the entry's own key may be the damage.
        for key in partner.into_iter().chain([own_key]) {
            for seq in [head, self.fault.seq] {
                if !names.contains(&(key.to_vec(), seq)) {
                    names.push((key.to_vec(), seq));
                }
            }
        }
        names
    }

    fn is_the_one(&self, entry: &OwnedEntry, key: &[u8], seq: SeqNo) -> bool {
        entry.key == key && entry.seq == seq && self.is_good(entry, false)
    }

    /// Metadata whose entry is gone. If the entry was found under another key the metadata has
    /// served; else the entry is restored in its place, or poisoned under the key that it had.
    fn orphan(&mut self, repaired: &HashSet<EntryPlace>) -> Patch {
        let partner = self.detail.partner.take();
        if partner.is_some_and(|(_, place)| repaired.contains(&place)) {
            return Patch::Leave;
        }
        if let Some((entry, source)) = self.elsewhere() {
            return replace(entry, source);
        }
        self.give_up();
        // Poison in its place: left out, the entry would let an older version of its key show.
        let Some((key, seq)) = self.names().into_iter().next() else { return Patch::Leave };
        Patch::Replace {
            key,
            seq,
            kind: EntryKind::Poison,
            value: Vec::new(),
            source: "none: its metadata alone is left".to_owned(),
        }
    }

    fn give_up(&self) {
        if let Some(handler) = &self.options.error_handler {
            handler.on_unrepaired(self.fault, self.found.as_ref());
        }
    }
}

fn internal(entry: &OwnedEntry) -> KeyRef<'_> {
    KeyRef::new(&entry.key, Trailer::new(entry.seq, entry.kind))
}
