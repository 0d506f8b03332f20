//! The bytes of the objects of the journal and of bases.
//!
//! A journal object has the changes of a folder in the order in which they were made. A base is the whole
//! state after one of them. All integers are little-endian; *v* is a variable-length integer, *name* and
//! *bytes* are a length *v* and so many bytes.
//!
//! ```text
//! journal/{number / 1000, 17 digits}/{number, 20 digits}
//!                                        base/{number, 20 digits}
//! offset size name                       offset size name
//!      0    8 magic "SILTJRNL"                0    8 magic "SILTBASE"
//!      8    4 format version 1 or 2           8    4 format version 1 or 2
//!     12    4 kind: 0 changes, 1 claim       12    4 acknowledgement, as in a journal object
//!     16    8 number                         16    8 number of the last object that it contains
//!     24   16 claimant                       24   16 claimant of that object
//!     40   16 put id                         40    v number of files, then each:
//!     56    4 acknowledgement:                  name, v length, v number of pieces,
//!             0 stored, 1 local                 then each: v offset, v length, name of the
//!     60    v number of changes, then each:     object, v offset in it;
//!             1 byte kind, name of the file,    v offset of the tail, bytes of the tail
//!             fields                            v number of dropped objects, then each:
//!                                               v number that dropped it, name
//!                                               v number of fenced writers, then each:
//!                                               16 claimant, v number of the claim after it
//!   last    8 checksum: XXH3-64 of all before, in both
//!
//! Version 2 is that of claims with a read lease, and of bases of their writers: 4 bytes more, before the `v` at offset
//! 60 or 40, have the lease in milliseconds. A program that does not wait for leases refuses it.
//!
//! kind of change   fields
//! 1 create         -
//! 2 append         v offset, bytes
//! 3 piece          v offset, v length, name of the object, v offset in it
//! 4 extend         v length: zeros up to there
//! 5 delete         -
//! ```
//!
//! Invariants:
//! 1. A claim has no changes: its writer does not know the state before it is stored.
//! 2. A claimant makes at most one object of a number, and puts it again with the same put id.

use std::path::PathBuf;
use std::time::Duration;

use lsm_core::codec::{
    Malformed, Reader, decode_checked, put_bytes, put_sum, put_u32, put_u64, put_u128, put_varint,
};
use siltstone::{Error, Result};

use crate::folder::{DroppedObject, FencedWriter, FileBytes, Folder, ObjectPiece, StoredChange};
use crate::settings::Ack;

const JOURNAL_MAGIC: [u8; 8] = *b"SILTJRNL";
const BASE_MAGIC: [u8; 8] = *b"SILTBASE";
const VERSION: u32 = 1;
/// The version of claims and bases with a read lease.
const VERSION_WITH_LEASE: u32 = 2;

/// The name of a journal object.
pub(crate) fn journal_name(number: u64) -> String {
    format!("{}/{number:020}", journal_folder(number))
}

/// The journal objects in one folder: one page of a listing.
pub(crate) const FOLDER_OBJECTS: u64 = 1000;

/// The folder of a journal object.
pub(crate) fn journal_folder(number: u64) -> String {
    format!("journal/{:017}", number / FOLDER_OBJECTS)
}

/// The number in the name of a journal object.
pub(crate) fn number_of_journal(name: &str) -> Option<u64> {
    let number = name.rsplit_once('/')?.1.parse().ok()?;
    (journal_name(number) == name).then_some(number)
}

/// The length of the longest claim: that with a lease. Each object with changes is longer.
pub(crate) const CLAIM_BYTES: u64 = 73;

/// The longest read lease: a claimant waits for it.
pub(crate) const READ_LEASE_MAX: Duration = Duration::from_secs(60);

/// The name of a base.
pub(crate) fn base_name(number: u64) -> String {
    format!("base/{number:020}")
}

/// The number in the name of a base.
pub(crate) fn number_of_base(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("base/")?;
    let number = digits.parse().ok()?;
    (base_name(number) == name).then_some(number)
}

/// An object of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalObject {
    pub(crate) number: u64,
    pub(crate) claimant: u128,
    pub(crate) put_id: u128,
    pub(crate) is_claim: bool,
    pub(crate) ack: Ack,
    /// The read lease of the writer, in whole milliseconds; zero in objects that are no claims.
    pub(crate) lease: Duration,
    pub(crate) changes: Vec<StoredChange>,
}

pub(crate) fn put_name(out: &mut Vec<u8>, name: &str) {
    put_bytes(out, name.as_bytes());
}

fn put_piece(out: &mut Vec<u8>, piece: &ObjectPiece) {
    put_varint(out, piece.offset);
    put_varint(out, piece.len);
    put_name(out, &piece.object);
    put_varint(out, piece.at);
}

impl JournalObject {
    /// The bytes of the object.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = JOURNAL_MAGIC.to_vec();
        put_u32(&mut out, version_of(self.lease));
        put_u32(&mut out, u32::from(self.is_claim));
        put_u64(&mut out, self.number);
        put_u128(&mut out, self.claimant);
        put_u128(&mut out, self.put_id);
        put_u32(&mut out, self.ack.number());
        put_lease(&mut out, self.lease);
        put_varint(&mut out, self.changes.len() as u64);
        for change in &self.changes {
            put_change(&mut out, change);
        }
        put_sum(&mut out);
        out
    }

    /// Decodes the object `number`.
    ///
    /// # Errors
    /// Corruption that names the object and the offset.
    pub(crate) fn decode(number: u64, bytes: &[u8]) -> Result<JournalObject> {
        decode_named(journal_name(number), bytes, |reader| {
            let (version, kind) = leased_header(reader, JOURNAL_MAGIC)?;
            if kind > 1 {
                return Err(reader.malformed("an unknown kind of journal object"));
            }
            if reader.u64()? != number {
                return Err(reader.malformed("the number of another object"));
            }
            let claimant = reader.u128()?;
            let put_id = reader.u128()?;
            let ack = ack_of(reader)?;
            let lease = lease_of(reader, version)?;
            if kind == 0 && !lease.is_zero() {
                return Err(reader.malformed("a lease in an object that is no claim"));
            }
            let count = reader.varint()?;
            if kind == 1 && count > 0 {
                return Err(reader.malformed("a claim with changes"));
            }
            // Not allocated by the count, which nothing has checked.
            let mut changes = Vec::new();
            for _ in 0..count {
                changes.push(change_of(reader)?);
            }
            let is_claim = kind == 1;
            Ok(JournalObject { number, claimant, put_id, is_claim, ack, lease, changes })
        })
    }
}

fn put_change(out: &mut Vec<u8>, change: &StoredChange) {
    let kind = match change {
        StoredChange::Create { .. } => 1,
        StoredChange::Append { .. } => 2,
        StoredChange::Piece { .. } => 3,
        StoredChange::Extend { .. } => 4,
        StoredChange::Delete { .. } => 5,
    };
    out.push(kind);
    put_name(out, change.name());
    match change {
        StoredChange::Create { .. } | StoredChange::Delete { .. } => {}
        StoredChange::Append { offset, bytes, .. } => {
            put_varint(out, *offset);
            put_bytes(out, bytes);
        }
        StoredChange::Piece { piece, .. } => put_piece(out, piece),
        StoredChange::Extend { len, .. } => put_varint(out, *len),
    }
}

fn change_of(reader: &mut Reader<'_>) -> Result<StoredChange, Malformed> {
    let kind = reader.u8()?;
    let name = file_name_of(reader)?;
    Ok(match kind {
        1 => StoredChange::Create { name },
        2 => {
            let offset = reader.varint()?;
            StoredChange::Append { name, offset, bytes: reader.bytes()?.to_vec() }
        }
        3 => StoredChange::Piece { name, piece: piece_of(reader)? },
        4 => StoredChange::Extend { name, len: reader.varint()? },
        5 => StoredChange::Delete { name },
        _ => return Err(reader.malformed("an unknown kind of change")),
    })
}

/// The bytes of the base of `folder`.
pub(crate) fn encode_base(folder: &Folder) -> Vec<u8> {
    let mut out = BASE_MAGIC.to_vec();
    put_u32(&mut out, version_of(folder.lease));
    put_u32(&mut out, folder.ack.number());
    put_u64(&mut out, folder.number);
    put_u128(&mut out, folder.writer);
    put_lease(&mut out, folder.lease);
    put_varint(&mut out, folder.files.len() as u64);
    for (name, file) in &folder.files {
        let file = file.read();
        debug_assert_eq!(file.written, file.tail_at + file.tail.len() as u64, "the tail is there");
        put_name(&mut out, name);
        put_varint(&mut out, file.len);
        put_varint(&mut out, file.pieces.len() as u64);
        file.pieces.iter().for_each(|piece| put_piece(&mut out, piece));
        put_varint(&mut out, file.tail_at);
        put_bytes(&mut out, &file.tail);
    }
    put_varint(&mut out, folder.dropped.len() as u64);
    for DroppedObject { number, object } in &folder.dropped {
        put_varint(&mut out, *number);
        put_name(&mut out, object);
    }
    put_varint(&mut out, folder.fenced.len() as u64);
    for FencedWriter { claimant, number } in &folder.fenced {
        put_u128(&mut out, *claimant);
        put_varint(&mut out, *number);
    }
    put_sum(&mut out);
    out
}

/// Decodes the base `number`.
///
/// # Errors
/// As [`JournalObject::decode`].
pub(crate) fn decode_base(number: u64, bytes: &[u8]) -> Result<Folder> {
    decode_named(base_name(number), bytes, |reader| {
        let (version, ack) = leased_header(reader, BASE_MAGIC)?;
        let ack = Ack::of_number(ack).ok_or(reader.malformed("an unknown acknowledgement"))?;
        if reader.u64()? != number {
            return Err(reader.malformed("the number of another object"));
        }
        let writer = reader.u128()?;
        let lease = lease_of(reader, version)?;
        // Its writer has put the base after its own wait.
        let mut folder = Folder { number, ack, writer, lease, wait: lease, ..Folder::default() };
        for _ in 0..reader.varint()? {
            let name = file_name_of(reader)?;
            let len = reader.varint()?;
            let mut pieces = Vec::new();
            for _ in 0..reader.varint()? {
                pieces.push(piece_of(reader)?);
            }
            let tail_at = reader.varint()?;
            let tail = reader.bytes()?.to_vec();
            let written = tail_at.saturating_add(tail.len() as u64);
            let created = 0;
            let file = FileBytes { len, pieces, tail_at, tail, written, created };
            if !file.is_sound() {
                return Err(reader.malformed("pieces beyond the end of their file"));
            }
            folder.insert(name, file);
        }
        for _ in 0..reader.varint()? {
            let number = reader.varint()?;
            folder.dropped.push(DroppedObject { number, object: data_name_of(reader)?.into() });
        }
        for _ in 0..reader.varint()? {
            let claimant = reader.u128()?;
            folder.fenced.push(FencedWriter { claimant, number: reader.varint()? });
        }
        Ok(folder)
    })
}

fn version_of(lease: Duration) -> u32 {
    if lease.is_zero() { VERSION } else { VERSION_WITH_LEASE }
}

fn put_lease(out: &mut Vec<u8>, lease: Duration) {
    if !lease.is_zero() {
        put_u32(out, lease.as_millis() as u32);
    }
}

fn lease_of(reader: &mut Reader<'_>, version: u32) -> Result<Duration, Malformed> {
    if version < VERSION_WITH_LEASE {
        return Ok(Duration::ZERO);
    }
    let lease = Duration::from_millis(u64::from(reader.u32()?));
    if lease.is_zero() || lease > READ_LEASE_MAX {
        return Err(reader.malformed("a read lease of no time, or of more than a minute"));
    }
    Ok(lease)
}

/// The version, and the number after it, of an object that may have a lease.
fn leased_header(reader: &mut Reader<'_>, magic: [u8; 8]) -> Result<(u32, u32), Malformed> {
    if reader.take(magic.len())? != magic {
        return Err(Malformed { what: "another magic", at: 0 });
    }
    let version = reader.u32()?;
    if !(VERSION..=VERSION_WITH_LEASE).contains(&version) {
        return Err(reader.malformed("an unknown format version"));
    }
    Ok((version, reader.u32()?))
}

pub(crate) fn header(reader: &mut Reader<'_>, magic: [u8; 8]) -> Result<u32, Malformed> {
    if reader.take(magic.len())? != magic {
        return Err(Malformed { what: "another magic", at: 0 });
    }
    if reader.u32()? != VERSION {
        return Err(reader.malformed("an unknown format version"));
    }
    reader.u32()
}

fn ack_of(reader: &mut Reader<'_>) -> Result<Ack, Malformed> {
    let number = reader.u32()?;
    Ack::of_number(number).ok_or(reader.malformed("an unknown acknowledgement"))
}

fn piece_of(reader: &mut Reader<'_>) -> Result<ObjectPiece, Malformed> {
    let offset = reader.varint()?;
    let len = reader.varint()?;
    let object = data_name_of(reader)?;
    let at = reader.varint()?;
    if offset.checked_add(len).is_none() || at.checked_add(len).is_none() {
        return Err(reader.malformed("a piece beyond all lengths"));
    }
    Ok(ObjectPiece { offset, len, object: object.into(), at })
}

/// The name of an object with data: also what is deleted is only ever one of these.
pub(crate) fn data_name_of(reader: &mut Reader<'_>) -> Result<String, Malformed> {
    let object = name_of(reader)?;
    let is_data = object.starts_with("table/") || object.starts_with("part/");
    if !is_data || object.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(reader.malformed("the name of no object with data"));
    }
    Ok(object)
}

fn name_of(reader: &mut Reader<'_>) -> Result<String, Malformed> {
    let bytes = reader.bytes()?;
    let text = std::str::from_utf8(bytes).ok();
    text.map(str::to_owned).ok_or(reader.malformed("a name that is no text"))
}

/// The name of a file: it becomes a name in a local folder, so it must be one that a database gives.
fn file_name_of(reader: &mut Reader<'_>) -> Result<String, Malformed> {
    let name = name_of(reader)?;
    match crate::folder::class_of(&name) {
        Some(_) => Ok(name),
        None => Err(reader.malformed("the name of no file that is shipped")),
    }
}

/// Checks the checksum of an object, and decodes all bytes before it.
pub(crate) fn decode_named<T>(
    name: String,
    bytes: &[u8],
    decode: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>,
) -> Result<T> {
    decode_checked(bytes, decode)
        .map_err(|wrong| Error::corruption(PathBuf::from(name), wrong.at as u64, wrong.what))
}

#[cfg(test)]
mod tests;
