//! The files of a promotion: its claim, and its [`Fork`].
//!
//! Written and read by `db/ownership.rs`, each once, by `put_if_absent`. A claim is made before the old
//! primary is fenced, and the process that opens the database holds the lock of the newest claim. A fork is
//! made after the fence. It holds the whole state of the manifest and not only a place in it, so that
//! recovery needs no other file of the manifest. The bytes of a claim:
//!
//! ```text
//! offset size name
//!      0    8 magic            "SILTCLAI"
//!      8    4 format version   1
//!     12    4 epoch            the epoch in its name
//!     16   16 database id
//!     32    8 checksum         XXH3-64 of the 32 bytes before
//! ```
//!
//! The bytes of a fork:
//!
//! ```text
//! offset size name
//!      0    8 magic            "SILTFORK"
//!      8    4 format version   1
//!     12    4 claim            the epoch in its name
//!     16   16 database id
//!     32    4 begins           the epoch that begins after it
//!     36    4 flags            1 = the log ends at the segment and offset below; 2 = the salts of the
//!                              log's segments are derived, see `wal/segment.rs`
//!     40    8 segment          of the log, 0 if there is none
//!     48    8 offset           after the last frame that counts
//!     56    8 generation       file number of the manifest that the state was read from
//!     64    4 epoch            of that generation
//!     68    4 length           of the payload
//!     72    8 edit number      the last edit that counts
//!     80    8 payload checksum XXH3-64
//!     88    8 header checksum  XXH3-64 of the 88 bytes before
//!     96    - payload          the snapshot that a manifest would begin with, see `edit.rs`
//! ```
//!
//! Invariant: a fork is final once its name exists. Every later open begins at its state.

mod describe;

use std::path::Path;

use super::DbVersion;
use super::recover::read_all;
use super::snapshot::{decode_snapshot, encode_snapshot};
use crate::codec::{Malformed, Reader, checksum64, put_u32, put_u64, put_u128};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::Fs;
use crate::fs::names::{self, FileKind, FileName};
use crate::types::{DbId, Epoch, FileNo, LogPlace};

pub use describe::{describe_claim, describe_fork};

/// The first bytes of a claim.
pub const CLAIM_MAGIC: [u8; 8] = *b"SILTCLAI";
/// The first bytes of a fork.
pub const FORK_MAGIC: [u8; 8] = *b"SILTFORK";
const FORMAT_VERSION: u32 = 1;
/// Length of a claim in bytes.
pub const CLAIM_BYTES: usize = 40;
const HEADER_BYTES: usize = 96;
const FLAG_CUT: u32 = 1;
const FLAG_DERIVED_SALTS: u32 = 2;

/// The bytes of the claim of `epoch`.
pub fn claim_bytes(db: DbId, epoch: Epoch) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(CLAIM_BYTES);
    put_front(&mut bytes, CLAIM_MAGIC, db, epoch);
    let sum = checksum64(&bytes);
    put_u64(&mut bytes, sum);
    bytes
}

/// Returns an error unless the claim of `epoch` in `dir` is valid and of the database `db`.
///
/// # Errors
/// `Corruption`; `Unsupported` if newer code made it; those of reading.
pub fn check_claim(fs: &dyn Fs, dir: &Path, db: DbId, epoch: Epoch) -> Result<()> {
    let path = dir.join(names::claim(epoch));
    let bytes = read_all(&*fs.open_read(&path)?)?;
    let front = read_front(&bytes, CLAIM_MAGIC, CLAIM_BYTES, &path)?;
    front.check(db, epoch, &path)
}

fn put_front(out: &mut Vec<u8>, magic: [u8; 8], db: DbId, epoch: Epoch) {
    out.extend_from_slice(&magic);
    put_u32(out, FORMAT_VERSION);
    put_u32(out, epoch.0);
    put_u128(out, db.0);
}

/// The fields with which both files begin.
struct Front {
    epoch: Epoch,
    db: DbId,
}

impl Front {
    fn check(&self, db: DbId, epoch: Epoch, path: &Path) -> Result<()> {
        if self.db != db {
            return Err(Error::corruption(path, 16, "the file is of another database"));
        }
        if self.epoch != epoch {
            return Err(Error::corruption(path, 12, "the file is of another epoch than its name"));
        }
        Ok(())
    }
}

/// Reads the front of a file whose header, checksum included, is `header_bytes` long.
fn read_front(bytes: &[u8], magic: [u8; 8], header_bytes: usize, path: &Path) -> Result<Front> {
    let Some(header) = bytes.get(..header_bytes) else {
        return Err(Error::corruption(path, 0, "the file is shorter than its header"));
    };
    let (covered, sum) = header.split_at(header_bytes - 8);
    if !covered.starts_with(&magic) || checksum64(covered).to_le_bytes() != *sum {
        return Err(Error::corruption(path, 0, "the header does not match its checksum"));
    }
    let fields = decode_front(covered);
    let (version, front) = fields.map_err(|fault| Error::corruption(path, 0, fault.to_string()))?;
    if version != FORMAT_VERSION {
        let message = format!("{} needs newer code: format version {version}", path.display());
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(front)
}

fn decode_front(covered: &[u8]) -> Result<(u32, Front), Malformed> {
    let mut r = Reader::new(covered);
    r.take(8)?;
    let version = r.u32()?;
    let epoch = Epoch(r.u32()?);
    let db = DbId(r.u128()?);
    Ok((version, Front { epoch, db }))
}

/// The place at which the epochs before a claim end, with the state there.
#[derive(Clone, Debug)]
pub struct Fork {
    /// The epoch of the claim.
    pub claim: Epoch,
    /// The epoch that begins after it.
    pub begins: Epoch,
    /// The state of the manifest.
    pub version: DbVersion,
    /// The manifest generation that the state was read from.
    pub generation: FileName,
    /// The end of the log, if nothing after it counts; `None`: the log ends as after a crash.
    pub cut: Option<LogPlace>,
    /// `true` if the salts of the log's segments are derived from their identity.
    pub has_derived_salts: bool,
}

/// The fields of a fork after its front.
struct ForkFields {
    begins: Epoch,
    flags: u32,
    place: LogPlace,
    generation: FileName,
    length: u32,
    edit_number: u64,
    payload_checksum: u64,
}

impl ForkFields {
    /// Reads the header of the fork of `claim` at the begin of `bytes`.
    fn read(bytes: &[u8], claim: Epoch, path: &Path) -> Result<(Front, ForkFields)> {
        let front = read_front(bytes, FORK_MAGIC, HEADER_BYTES, path)?;
        front.check(front.db, claim, path)?;
        let fields = ForkFields::decode(&bytes[..HEADER_BYTES])
            .map_err(|fault| Error::corruption(path, 32, fault.to_string()))?;
        Ok((front, fields))
    }

    fn decode(header: &[u8]) -> Result<ForkFields, Malformed> {
        let mut r = Reader::new(header);
        r.take(32)?;
        let begins = Epoch(r.u32()?);
        let flags = r.u32()?;
        let segment = FileNo(r.u64()?);
        let place = LogPlace { segment, offset: r.u64()? };
        let number = FileNo(r.u64()?);
        let generation = FileName::new(FileKind::Manifest, number, Epoch(r.u32()?));
        let length = r.u32()?;
        let edit_number = r.u64()?;
        let payload_checksum = r.u64()?;
        Ok(ForkFields { begins, flags, place, generation, length, edit_number, payload_checksum })
    }
}

impl Fork {
    /// The bytes of its file.
    ///
    /// # Errors
    /// A limit, if the state takes more than 4 GiB.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let payload = encode_snapshot(&self.version);
        let length = u32::try_from(payload.len())
            .map_err(|_| Error::limit("edit length", payload.len() as u64, u32::MAX.into()))?;
        let cut_flag = if self.cut.is_some() { FLAG_CUT } else { 0 };
        let salts_flag = if self.has_derived_salts { FLAG_DERIVED_SALTS } else { 0 };
        let place = self.cut.unwrap_or(LogPlace { segment: FileNo(0), offset: 0 });
        let mut out = Vec::with_capacity(HEADER_BYTES + payload.len());
        put_front(&mut out, FORK_MAGIC, self.version.db_id, self.claim);
        put_u32(&mut out, self.begins.0);
        put_u32(&mut out, cut_flag | salts_flag);
        put_u64(&mut out, place.segment.0);
        put_u64(&mut out, place.offset);
        put_u64(&mut out, self.generation.number.0);
        put_u32(&mut out, self.generation.epoch.0);
        put_u32(&mut out, length);
        put_u64(&mut out, self.version.edit_number);
        put_u64(&mut out, checksum64(&payload));
        let sum = checksum64(&out);
        put_u64(&mut out, sum);
        out.extend_from_slice(&payload);
        Ok(out)
    }

    /// The fork of the claim of `claim` in `dir`; `None` if there is none.
    ///
    /// # Errors
    /// `Corruption`; `Unsupported` if newer code made it; those of reading.
    pub fn read(fs: &dyn Fs, dir: &Path, claim: Epoch) -> Result<Option<Fork>> {
        let path = dir.join(names::fork(claim));
        let file = match fs.open_read(&path) {
            Err(error) if error.is_missing() => return Ok(None),
            opened => opened?,
        };
        Fork::decode(&read_all(&*file)?, claim, &path).map(Some)
    }

    /// The epoch that begins after the fork of `claim` in `dir`; `None` if there is no fork. The state is
    /// not read: after the promotion it is not needed.
    ///
    /// # Errors
    /// As [`Fork::read`], of the header.
    pub fn begins(fs: &dyn Fs, dir: &Path, claim: Epoch) -> Result<Option<Epoch>> {
        let path = dir.join(names::fork(claim));
        let file = match fs.open_read(&path) {
            Err(error) if error.is_missing() => return Ok(None),
            opened => opened?,
        };
        let mut header = [0; HEADER_BYTES];
        let len = file.read_at(0, &mut header)?;
        let fields = ForkFields::read(&header[..len], claim, &path)?.1;
        Ok(Some(fields.begins))
    }

    /// Decodes the bytes of the file of the claim of `claim`.
    fn decode(bytes: &[u8], claim: Epoch, path: &Path) -> Result<Fork> {
        let (front, fields) = ForkFields::read(bytes, claim, path)?;
        let payload = &bytes[HEADER_BYTES..];
        let is_whole = payload.len() as u64 == u64::from(fields.length)
            && checksum64(payload) == fields.payload_checksum;
        if !is_whole {
            let what = "the state does not match its checksum";
            return Err(Error::corruption(path, HEADER_BYTES as u64, what));
        }
        let at = HEADER_BYTES as u64;
        let version = decode_snapshot(front.db, fields.edit_number, payload, path, at)?;
        if fields.begins <= version.epoch {
            let what = "the fork begins an epoch that is over";
            return Err(Error::corruption(path, 32, what));
        }
        Ok(Fork {
            claim,
            begins: fields.begins,
            version,
            generation: fields.generation,
            cut: (fields.flags & FLAG_CUT != 0).then_some(fields.place),
            has_derived_salts: fields.flags & FLAG_DERIVED_SALTS != 0,
        })
    }
}

#[cfg(test)]
mod tests;
