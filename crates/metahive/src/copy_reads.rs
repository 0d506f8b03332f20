//! The answers of a [`Replica`](crate::Replica) whose copy is a partition: of a secondary, or of a database that is opened
//! for reading.
//!
//! Called through `ReadVerified` of the public crate, by `crates/remote/src/replica.rs` and by applications that ask a node for
//! its entries.
//!
//! Invariants:
//! 1. An entry of another sequence number is no answer: an older value never takes the place of a newer one.
//! 2. An answer about a range is whole. What disagrees with its metadata, or lies in a gap of the copy, makes it an error.

use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::hooks::OwnedEntry;
use lsm_core::raw::{self, EntryKind, ReadAt, Walkable};
use lsm_core::types::SeqNo;

use crate::verified::VerifiedRange;

/// Returns the version of the stored key `key` that is stored with the sequence number `seq`, if a block whose checksum
/// agrees, or a memtable, of `copy` has it: the answer of [`Replica::fetch`](crate::Replica::fetch). A large value comes
/// as its handle, which is right in a copy of the same folder only.
///
/// # Errors
/// A closed or dropped partition; damage of the copy that may hide the version; those of its files.
///
/// # Cost
/// Reads a block, or a few, of each table whose range covers the key.
pub fn fetch_from(copy: &impl Walkable, key: &[u8], seq: SeqNo) -> Result<Option<OwnedEntry>> {
    let versions = raw::versions(copy, key)?.into_iter();
    let mut found =
        versions.filter(|it| it.stored_seq == seq && !it.hidden && it.at.block_verified);
    Ok(found.next().map(|it| OwnedEntry {
        key: key.to_vec(),
        seq,
        kind: it.kind,
        value: it.value,
        verified: true,
    }))
}

/// Returns the values of the stored keys from `from` to `to`, both included, as they were at the operation `through`: the
/// answer of [`Replica::fetch_range`](crate::Replica::fetch_range). Each value is compared with its metadata; large values
/// come as they are. All entries have the number `through`. `None` if `copy` has not come to that operation.
///
/// `copy` is of the history of the damaged partition, and has all its operations: it is no secondary of the tables only.
///
/// # Errors
/// Those of [`verified_range`](crate::verified_range), for any of the keys: a gap, or damage of the copy.
/// `LimitExceeded` if keys and values have more than `bytes_max` bytes.
///
/// # Cost
/// That of a scan, and the memory of the entries.
///
/// # Examples
/// ```
/// use lsm_core::hooks::Hooks;
/// use metahive::{MetaHive, fetch_range_from};
///
/// # fn main() -> lsm_core::Result<()> {
/// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
/// # let db = lsm_core::Db::builder("/db").fs(fs).open()?;
/// # let hooks = Hooks::new().filter(std::sync::Arc::new(MetaHive::default()));
/// # let users = db.partition_with("users", lsm_core::options::PartitionOptions::default(), Some(hooks))?;
/// let then = users.put("alice", "admin")?.seq;
/// users.put("bob", "guest")?;
/// let entries = fetch_range_from(&users, b"a", b"z", then, 1 << 20)?.unwrap_or_default();
/// assert_eq!(entries.len(), 1);
/// assert_eq!((&entries[0].key[..], &entries[0].value[..]), (&b"alice"[..], &b"admin"[..]));
/// // It has not come to a later operation, and does not answer for it.
/// let later = lsm_core::types::SeqNo::MAX;
/// assert!(fetch_range_from(&users, b"a", b"z", later, 1 << 20)?.is_none());
/// # Ok(())
/// # }
/// ```
pub fn fetch_range_from(
    copy: &impl ReadAt,
    from: &[u8],
    to: &[u8],
    through: SeqNo,
    bytes_max: u64,
) -> Result<Option<Vec<OwnedEntry>>> {
    let (point, hooks) = copy.read_point()?;
    let form = point.key_form();
    let Some(point) = point.as_of(through) else { return Ok(None) };
    // A key is stored as it is, or longer by a zero byte: the range of keys has each whose stored form is asked for.
    let range = form.user(from).to_vec()..=to.to_vec();
    let mut entries = Vec::new();
    let mut bytes = 0;
    for found in VerifiedRange::at(Ok((point, hooks)), range) {
        let (key, found) = found?;
        let key = form.stored(key.to_vec());
        if key[..] < *from || key[..] > *to {
            continue;
        }
        bytes += (key.len() + found.value.len()) as u64;
        if bytes > bytes_max {
            let what = format!(
                "the entries of the gap have more than {bytes_max} bytes: repair it range by range"
            );
            return Err(Error::new(ErrorKind::LimitExceeded, what));
        }
        let value = found.value.to_vec();
        let kind = EntryKind::Value;
        entries.push(OwnedEntry { key, seq: through, kind, value, verified: true });
    }
    Ok(Some(entries))
}
