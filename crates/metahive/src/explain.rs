//! [`explain()`]: every stored version of one key, with its place and the verdict of its metadata.
//!
//! Invariants:
//! 1. A table's entries of the key go through the filter as in a scrub: both say the same.
//! 2. Everything shown is of one moment. [`Explanation::damage`] names what cannot be shown.

use std::fmt;

use lsm_core::error::{Damage, Result};
use lsm_core::hooks::Origin;
use lsm_core::raw::{EntryKind, RawEntry, RawTable, RawVersion, VersionExpiry, Walk, Walkable};
use lsm_core::types::{InGap, SeqNo};

use crate::inspect::{EntryFault, Inspector, Sealing};
use crate::payload::{Payload, metadata_key};
use crate::verdict::Verdict;

/// Everything that is stored of a key, at one moment. Its text ([`fmt::Display`]) is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// Name of the partition.
    pub partition: String,
    /// The user key.
    pub key: Vec<u8>,
    /// Its versions, newest first.
    pub versions: Vec<ExplainedVersion>,
    /// The sequence number at which the partition was cleared, if something may lie below it: versions
    /// with smaller numbers are seen by older snapshots alone.
    pub cleared_at: Option<SeqNo>,
    /// The same for the last deletion of a range with the key.
    pub range_deleted_at: Option<SeqNo>,
    /// Metadata of the key without its entry. In a sealed table that is a fault; elsewhere the
    /// next compaction drops it.
    pub orphans: Vec<ExplainedVersion>,
    /// The damage that may hide further versions.
    pub damage: Vec<Damage>,
}

/// A version of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExplainedVersion {
    /// The version itself, and where it lies.
    pub version: RawVersion,
    /// The sealing of its table; `None` in a memtable.
    pub sealing: Option<Sealing>,
    /// Its metadata, if there is some.
    pub metadata: Option<ExplainedMetadata>,
    /// `true` if a flush or a compaction makes metadata that is missing: the partition has
    /// MetaHive.
    pub is_sealed_later: bool,
    /// The fault of it or of its metadata.
    pub fault: Option<EntryFault>,
    /// The time at which it expires, by the stored rule of the partition.
    pub expiry: Option<VersionExpiry>,
}

/// The metadata of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExplainedMetadata {
    /// Its place; `None` in the properties of the table, because the table's end comes between the
    /// two.
    pub at: Option<Origin>,
    /// V+: the sequence number of its entry, and what the provider made.
    pub payload: Vec<u8>,
    /// V+ taken apart, if the provider is integrity and the length is right.
    pub integrity: Option<Payload>,
}

impl Explanation {
    /// Returns `true` if a version, its metadata or its block is damaged, or some may not be shown.
    pub fn is_damaged(&self) -> bool {
        let mut all = self.versions.iter().chain(&self.orphans);
        !self.damage.is_empty()
            || all.any(|v: &ExplainedVersion| v.fault.is_some() || !v.version.at.block_verified)
    }
}

impl ExplainedVersion {
    /// The verdict of its metadata; `None` if it has none and need not have some, or has another
    /// provider's.
    pub fn verdict(&self) -> Option<Verdict> {
        match &self.fault {
            Some(fault) => Some(fault.verdict),
            None if matches!(self.sealing, Some(Sealing::Foreign(_))) => None,
            None => self.metadata.as_ref().map(|_| Verdict::Valid),
        }
    }
}

/// Every version of the user key `key` in every memtable and table of the partition, with its
/// metadata and the verdict on it. The provider is chosen as in [`scrub()`](crate::scrub()).
///
/// # Errors
/// Damage is no error but in the explanation. A closed database, a dropped partition;
/// `Unsupported` if a filter other than MetaHive seals the partition.
///
/// # Cost
/// Reads one block, or a few, of each table whose range covers the key; blooms are not asked.
/// Copies the values of all versions.
///
/// # Examples
/// ```
/// # fn main() -> lsm_core::Result<()> {
/// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
/// let db = lsm_core::Db::builder("/db").fs(fs).open()?;
/// let users = db.partition("users")?;
/// users.put("alice", "admin")?;
/// users.delete("alice")?;
/// let explanation = metahive::explain(&users, b"alice")?;
/// assert_eq!(explanation.versions.len(), 2);
/// println!("{explanation}");
/// # Ok(())
/// # }
/// ```
pub fn explain(partition: &impl Walkable, key: &[u8]) -> Result<Explanation> {
    let walk = Walk::open(partition)?;
    let inspector = Inspector::of(&walk)?;
    let stored = inspector.stored_key(key);
    let is_sealed_later = inspector.has_metahive;
    let mut explanation = Explanation {
        partition: walk.partition().to_owned(),
        key: key.to_vec(),
        versions: walk
            .memtable_versions(&stored)?
            .into_iter()
            .map(|version| ExplainedVersion {
                version,
                sealing: None,
                metadata: None,
                is_sealed_later,
                fault: None,
                expiry: None,
            })
            .collect(),
        cleared_at: walk.cleared_at(),
        range_deleted_at: walk.range_deleted_at(&stored),
        orphans: Vec::new(),
        damage: Vec::new(),
    };
    for gap in walk.gaps().open() {
        if gap.effect_on(&stored, SeqNo::MAX, None) != InGap::Unaffected {
            explanation.damage.extend(walk.lost(gap));
        }
    }
    // In the order of a read, so newest first.
    for table in walk.tables().filter(|table| table.meta().covers(&stored)) {
        if let Err(error) = explain_table(&inspector, &table, &stored, &mut explanation) {
            let mut damage = Damage::of(&error, &table.path());
            damage.level = Some(table.level());
            explanation.damage.push(damage);
        }
    }
    for explained in &mut explanation.versions {
        explained.expiry = walk.expiry_of(key, &explained.version);
    }
    Ok(explanation)
}

/// Adds what the table holds of the key, also what was read before an error.
fn explain_table(
    inspector: &Inspector,
    table: &RawTable,
    stored: &[u8],
    explanation: &mut Explanation,
) -> Result<()> {
    let plus = metadata_key(stored);
    let mut versions = Vec::new();
    let mut metadata = Vec::new();
    // An error is returned at the end, after what was read before it.
    // The same search as of a read, but for blooms: one that hides the key is among what this looks
    // for.
    let read = table.versions(stored, &mut versions);
    let read = read.and(table.versions(&plus, &mut metadata));
    // The key of another entry's metadata is no one's key.
    versions.retain(|version| !version.hidden);
    let (sealing, seal, faults) = match inspector.begin(table)? {
        Err(foreign) => (Sealing::Foreign(foreign), None, Vec::new()),
        Ok(mut inspection) => {
            // In a table that is not sealed, the key with the suffix may be one of a user.
            metadata.retain(|found| inspection.may_be_metadata(&raw(&plus, found)));
            for version in &versions {
                inspection.take(&raw(stored, version));
            }
            for found in &metadata {
                inspection.take(&raw(&plus, found));
            }
            (inspection.sealing(), inspection.seal.take(), inspection.finish().faults)
        }
    };
    let fault_at = |at: Origin| faults.iter().find(|fault| fault.at == at).cloned();
    for version in versions {
        // Taken out of the list, so that what is left at the end belongs to no version.
        let own = metadata.iter().position(|found| belong_together(&version, found));
        let own = own.map(|at| metadata.remove(at)).map(|found| (Some(found.at), found.value));
        // The pair that the table ended between: its metadata is in the properties.
        let kept = seal.as_ref().and_then(|s| s.open_payload(stored, version.stored_seq.get()));
        let found = own.or_else(|| kept.map(|payload| (None, payload.to_vec())));
        let metadata = found.map(|(at, payload)| ExplainedMetadata {
            at,
            integrity: Payload::decode(&payload).ok().filter(|_| inspector.is_integrity()),
            payload,
        });
        let of_metadata = metadata.as_ref().and_then(|metadata| metadata.at);
        let fault = fault_at(version.at).or_else(|| of_metadata.and_then(fault_at));
        let sealing = Some(sealing.clone());
        explanation.versions.push(ExplainedVersion {
            version,
            sealing,
            metadata,
            is_sealed_later: inspector.has_metahive,
            fault,
            expiry: None,
        });
    }
    explanation.orphans.extend(metadata.into_iter().map(|found| ExplainedVersion {
        fault: fault_at(found.at),
        version: found,
        sealing: Some(sealing.clone()),
        metadata: None,
        is_sealed_later: inspector.has_metahive,
        expiry: None,
    }));
    read
}

fn raw<'a>(key: &'a [u8], version: &'a RawVersion) -> RawEntry<'a> {
    let RawVersion { seq, stored_seq, kind, hidden, at, .. } = *version;
    RawEntry { key, seq, stored_seq, kind, value: &version.value, hidden, at }
}

/// As the filter pairs them: by the sequence number, or by that at the head of V+.
fn belong_together(version: &RawVersion, metadata: &RawVersion) -> bool {
    // Either sequence number may be the damage, so one that agrees is enough to show the two
    // together.
    let head = version.seq.get().to_le_bytes();
    metadata.seq == version.seq || metadata.value.starts_with(&head)
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key.escape_ascii();
        let versions = self.versions.len();
        let plural = if versions == 1 { "" } else { "s" };
        write!(f, "key \"{key}\" in partition {:?}: {versions} version{plural}", self.partition)?;
        if let Some(floor) = self.cleared_at {
            write!(f, "\nthe partition was cleared at {floor}: readers see nothing older")?;
        }
        if let Some(floor) = self.range_deleted_at {
            write!(f, "\na range with the key was deleted at {floor}: readers see nothing older")?;
        }
        for (number, version) in (1..).zip(&self.versions) {
            write!(f, "\n{number}. {version}")?;
        }
        for orphan in &self.orphans {
            write!(f, "\nmetadata without its entry: {orphan}")?;
        }
        for damage in &self.damage {
            write!(f, "\nthere may be more: {damage}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ExplainedVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RawVersion { seq, stored_seq, kind, value, at, path, sealed, .. } = &self.version;
        write!(f, "sequence {seq}")?;
        if stored_seq != seq {
            write!(f, " (stored as {stored_seq})")?;
        }
        match kind {
            EntryKind::Value => write!(f, ", value of {} bytes, ", value.len())?,
            EntryKind::Operand => write!(f, ", operand of {} bytes, ", value.len())?,
            EntryKind::Tombstone => f.write_str(", tombstone, ")?,
            EntryKind::Handle => write!(f, ", handle of {} bytes, ", value.len())?,
            EntryKind::Poison => f.write_str(", poison: reads as corruption, ")?,
            EntryKind::Clear | EntryKind::DeleteRange => {
                unreachable!("no entry deletes other keys")
            }
        }
        match path {
            None if *sealed => f.write_str("in a memtable that waits for its flush")?,
            None => f.write_str("in the active memtable")?,
            Some(path) => {
                let Origin { level, block_offset, entry, .. } = at;
                write!(f, "level {level}, {}, ", path.display())?;
                write!(f, "block at {block_offset}, entry {entry}")?;
            }
        }
        if !at.block_verified {
            f.write_str(", in a block whose checksum does not agree")?;
        }
        if let Some(expiry) = &self.expiry {
            write_expiry(expiry, f)?;
        }
        f.write_str("\n   ")?;
        match (&self.metadata, &self.sealing) {
            (Some(metadata), _) => self.write_metadata(metadata, f)?,
            (None, None | Some(Sealing::Unsealed)) if !self.is_sealed_later => {
                f.write_str("no metadata: the partition has no MetaHive")?;
            }
            (None, None) => f.write_str("no metadata yet: the flush makes it")?,
            (None, Some(Sealing::Unsealed)) => {
                f.write_str("no metadata: the next compaction of the table makes it")?;
            }
            (None, Some(Sealing::Sealed)) => {
                f.write_str("no metadata, in a table that is sealed")?;
            }
            (None, Some(Sealing::Foreign(what))) => write!(f, "no metadata of ours: {what}")?,
        }
        if let Some(verdict) = self.verdict() {
            write!(f, "\n   {verdict:?}")?;
        }
        self.fault.iter().try_for_each(|fault| write!(f, ": {}", fault.what))
    }
}

fn write_expiry(expiry: &VersionExpiry, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let VersionExpiry { at, now, hides, .. } = *expiry;
    if at > now {
        return write!(f, "\n   expires in {:?}", at.saturating_sub(now));
    }
    let seen = if hides { "reads do not see it" } else { "reads see it until it is removed" };
    write!(f, "\n   expired {:?} ago: {seen}", now.saturating_sub(at))
}

impl ExplainedVersion {
    fn write_metadata(
        &self,
        metadata: &ExplainedMetadata,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        match metadata.at {
            None => f.write_str("metadata in the table's properties: ")?,
            Some(at) if at.block_offset == self.version.at.block_offset => {
                write!(f, "metadata in the same block, entry {}: ", at.entry)?;
            }
            Some(at) => {
                write!(f, "metadata in the block at {}, entry {}: ", at.block_offset, at.entry)?;
            }
        }
        match metadata.integrity {
            Some(Payload { seq, sum, sum_of_sum }) => {
                write!(f, "sequence {seq}, checksum {sum:016x}, its checksum {sum_of_sum}")
            }
            None => metadata.payload.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}
