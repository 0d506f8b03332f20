//! The journal as all but its writer read it: the newest base, and the objects after it; [`Boundary`], the lowest
//! number that is not deleted.
//!
//! Journal objects are deleted once newer bases and leases allow it (`collect.rs`). Their names are then free, so a
//! missing object may be the end of the journal or a deleted one, and an object may be that of a claimant who slept
//! and has put it under a freed name. So nothing that was read counts before a look at the boundary, which is put
//! before anything is deleted.
//!
//! ```text
//! boundary/{index, 20 digits}
//! offset size name
//!      0    8 magic "SILTBNDY"
//!      8    4 format version 1
//!     12    4 zero
//!     16    8 index
//!     24    8 first: the lowest number of a journal object that is not deleted
//!     32   16 claimant
//!     48    8 checksum: XXH3-64 of all before
//! ```
//!
//! Invariants:
//! 1. Boundaries are put by put-if-absent, each after a look at the one before, with a higher number. They are never
//!    deleted. So the last one is the highest, also if a writer that has slept puts one late.
//! 2. If the boundary is at or below a number after that object was looked for, then neither it nor a later one had
//!    been deleted when it was looked for.

use std::path::PathBuf;

use lsm_core::codec::{put_sum, put_u32, put_u64, put_u128};
use siltstone::{Error, ErrorKind, Result};

use crate::bucket::{Bucket, Put};
use crate::folder::Folder;
use crate::format::{
    JournalObject, base_name, decode_base, decode_named, header, journal_folder, journal_name,
    number_of_base, number_of_journal,
};

const BOUNDARY_MAGIC: [u8; 8] = *b"SILTBNDY";
/// Objects that are read before a look at the boundary: they are in memory.
const BATCH_OBJECTS: usize = 64;
const BATCH_BYTES: usize = 16 << 20;
/// Objects that are asked for at once: at first, and at most.
const AT_ONCE_MIN: usize = 2;
const AT_ONCE_MAX: usize = 8;
/// Attempts to read a state, while its journal is deleted each time before it is read.
const LOADS_MAX: u32 = 20;

fn boundary_name(index: u64) -> String {
    format!("boundary/{index:020}")
}

/// The lowest number of a journal object that is not deleted, as far as it is known here.
#[derive(Clone, Debug, Default)]
pub(crate) struct Boundary {
    /// Of the last boundary object; 0 for none.
    index: u64,
    pub(crate) first: u64,
}

impl Boundary {
    /// Reads the last boundary.
    pub(crate) fn load(bucket: &Bucket) -> Result<Boundary> {
        let listed = bucket.list("boundary")?.objects;
        let indices =
            listed.iter().filter_map(|it| it.name.strip_prefix("boundary/")?.parse().ok());
        let mut boundary = Boundary::default();
        if let Some(index) = indices.max()
            && let Some(bytes) = bucket.get(&boundary_name(index))?
        {
            boundary = Boundary { index, first: decode_boundary(index, &bytes)? };
        }
        Ok(boundary)
    }

    /// Reads the boundaries that were put since.
    pub(crate) fn look(&mut self, bucket: &Bucket) -> Result<()> {
        while let Some(bytes) = bucket.get(&boundary_name(self.index + 1))? {
            self.first = self.first.max(decode_boundary(self.index + 1, &bytes)?);
            self.index += 1;
        }
        Ok(())
    }

    /// Looks, and returns whether the journal object `number` was deleted, or may be.
    pub(crate) fn has_freed(&mut self, bucket: &Bucket, number: u64) -> Result<bool> {
        self.look(bucket)?;
        Ok(self.first > number)
    }

    /// Puts a boundary. Returns `false` if another one was put meanwhile.
    pub(crate) fn put(&mut self, bucket: &Bucket, first: u64, claimant: u128) -> Result<bool> {
        let index = self.index + 1;
        let bytes = encode_boundary(index, first, claimant);
        let put = bucket.put_new(&boundary_name(index), &bytes)?;
        self.look(bucket)?;
        Ok(put == Put::Stored)
    }
}

pub(crate) fn encode_boundary(index: u64, first: u64, claimant: u128) -> Vec<u8> {
    let mut bytes = BOUNDARY_MAGIC.to_vec();
    put_u32(&mut bytes, 1);
    put_u32(&mut bytes, 0);
    put_u64(&mut bytes, index);
    put_u64(&mut bytes, first);
    put_u128(&mut bytes, claimant);
    put_sum(&mut bytes);
    bytes
}

pub(crate) fn decode_boundary(index: u64, bytes: &[u8]) -> Result<u64> {
    decode_named(boundary_name(index), bytes, |reader| {
        if header(reader, BOUNDARY_MAGIC)? != 0 {
            return Err(reader.malformed("an unknown kind of boundary"));
        }
        if reader.u64()? != index {
            return Err(reader.malformed("the index of another boundary"));
        }
        let first = reader.u64()?;
        reader.u128()?;
        Ok(first)
    })
}

/// The last journal object of a list; zero if there is none.
pub(crate) fn last_number(bucket: &Bucket) -> Result<u64> {
    let Some(folder) = bucket.list("journal")?.folders.pop() else { return Ok(0) };
    let objects = bucket.list(&folder)?.objects;
    Ok(objects.iter().filter_map(|entry| number_of_journal(&entry.name)).max().unwrap_or(0))
}

/// The end of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum ReplayEnd {
    /// All objects are taken in.
    End,
    /// The next objects were deleted, or may be: a newer base has what they had.
    Freed,
}

/// Reads the newest base, and the journal after it up to its end.
///
/// # Errors
/// Those of the store; corruption of an object, or one that is missing in the middle.
pub(crate) fn load(bucket: &Bucket) -> Result<(Folder, Boundary)> {
    let (folder, mut boundary) = load_before(bucket, u64::MAX)?;
    check_end(bucket, &mut boundary, folder.number)?;
    Ok((folder, boundary))
}

/// Reads the state before the journal object `until`.
///
/// # Errors
/// As [`load`].
pub(crate) fn load_before(bucket: &Bucket, until: u64) -> Result<(Folder, Boundary)> {
    for _ in 0..LOADS_MAX {
        let Some(mut folder) = base_before(bucket, until)? else { continue };
        let mut boundary = Boundary::load(bucket)?;
        if follow(bucket, &mut boundary, &mut folder, until)? == ReplayEnd::End {
            return Ok((folder, boundary));
        }
    }
    let message =
        "the journal was deleted each time before it was read; is the retention long enough?";
    Err(Error::new(ErrorKind::Io, message))
}

/// The newest base of a state before `until`, an empty folder if there is none; `None` if it was deleted meanwhile.
fn base_before(bucket: &Bucket, until: u64) -> Result<Option<Folder>> {
    let listed = bucket.list("base")?.objects;
    let numbers = listed.iter().filter_map(|entry| number_of_base(&entry.name));
    match numbers.filter(|number| *number < until).max() {
        None => Ok(Some(Folder::default())),
        Some(number) => read_base(bucket, number),
    }
}

/// The base `number`; `None` if there is none.
///
/// # Errors
/// Those of the store; corruption of the base.
pub(crate) fn read_base(bucket: &Bucket, number: u64) -> Result<Option<Folder>> {
    let bytes = bucket.get(&base_name(number))?;
    bytes.map(|bytes| decode_base(number, &bytes)).transpose()
}

/// The object `number` of the journal; `None` if there is none.
///
/// # Errors
/// Those of the store; corruption of the object.
pub(crate) fn journal_object(bucket: &Bucket, number: u64) -> Result<Option<JournalObject>> {
    let bytes = bucket.get(&journal_name(number))?;
    bytes.map(|bytes| JournalObject::decode(number, &bytes)).transpose()
}

/// Objects that were read, and do not count before a look at the boundary.
pub(crate) struct ObjectBatch {
    objects: Vec<Result<JournalObject>>,
    /// The object after them is missing.
    pub(crate) is_last: bool,
}

impl ObjectBatch {
    /// Reads the objects from `from` on, before `until`.
    pub(crate) fn read(bucket: &Bucket, from: u64, until: u64) -> Result<ObjectBatch> {
        // The object after the one that is asked for saves a turn: a look ends with one that is missing.
        ObjectBatch::read_by(bucket, from, until, AT_ONCE_MIN)
    }

    /// Reads the objects from `from` on. Asks for one object first, if it is likely that there is none: each costs a GET.
    pub(crate) fn look(bucket: &Bucket, from: u64, expects_none: bool) -> Result<ObjectBatch> {
        ObjectBatch::read_by(bucket, from, u64::MAX, if expects_none { 1 } else { AT_ONCE_MIN })
    }

    fn read_by(bucket: &Bucket, from: u64, until: u64, at_once: usize) -> Result<ObjectBatch> {
        let mut batch = ObjectBatch { objects: Vec::new(), is_last: false };
        let mut bytes = 0;
        let mut longest = 0;
        let mut number = from;
        let mut at_once = if bucket.is_stepped { 1 } else { at_once };
        while number < until && batch.objects.len() < BATCH_OBJECTS && bytes < BATCH_BYTES {
            let numbers = number..until.min(number.saturating_add(at_once as u64));
            let names: Vec<String> = numbers.map(journal_name).collect();
            for got in bucket.get_each(&names) {
                let Some(found) = got? else {
                    batch.is_last = true;
                    return Ok(batch);
                };
                bytes += found.len();
                longest = longest.max(found.len());
                let object = JournalObject::decode(number, &found);
                let is_damaged = object.is_err();
                batch.objects.push(object);
                if is_damaged {
                    return Ok(batch);
                }
                number += 1;
            }
            if !bucket.is_stepped {
                // All of them are in memory.
                let fitting = (BATCH_BYTES / longest.max(1)).max(1);
                at_once = (at_once * 2).min(AT_ONCE_MAX).min(fitting);
            }
        }
        batch.is_last = number >= until;
        Ok(batch)
    }

    /// Returns `true` if there is no object.
    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Returns `true` if all objects are changes of `writer`. They count without a look at the boundary: a writer puts
    /// the same bytes under a number, whenever a put takes effect. An object of another one may be a claim that has
    /// slept, under a freed number.
    pub(crate) fn is_of(&self, writer: u128) -> bool {
        self.objects
            .iter()
            .all(|it| it.as_ref().is_ok_and(|it| it.claimant == writer && !it.is_claim))
    }

    /// Takes the objects in, after the look.
    ///
    /// # Errors
    /// Corruption of an object: those before it are in the folder.
    pub(crate) fn take_in(self, folder: &mut Folder) -> Result<()> {
        self.objects.into_iter().try_for_each(|object| folder.take_in(&object?))
    }
}

/// Takes in the objects after those of `folder`, before `until` or up to the end of the journal.
///
/// # Errors
/// Those of the store; corruption of an object; one that is missing before `until`, which exists.
pub(crate) fn follow(
    bucket: &Bucket,
    boundary: &mut Boundary,
    folder: &mut Folder,
    until: u64,
) -> Result<ReplayEnd> {
    loop {
        let from = folder.number + 1;
        let batch = ObjectBatch::read(bucket, from, until)?;
        if boundary.has_freed(bucket, from)? {
            return Ok(ReplayEnd::Freed);
        }
        let is_last = batch.is_last;
        batch.take_in(folder)?;
        if !is_last {
            continue;
        }
        if until < u64::MAX && folder.number + 1 < until {
            return Err(missing(folder.number + 1, until));
        }
        return Ok(ReplayEnd::End);
    }
}

/// Checks that no object exists after the end that a replay has found.
fn check_end(bucket: &Bucket, boundary: &mut Boundary, number: u64) -> Result<()> {
    let next = number + 1;
    let mut later = Vec::new();
    for folder in [journal_folder(next), journal_folder(next + crate::format::FOLDER_OBJECTS)] {
        let listed = bucket.list(&folder)?.objects;
        later.extend(listed.iter().filter_map(|entry| number_of_journal(&entry.name)));
    }
    let Some(later) = later.into_iter().find(|it| *it > next) else { return Ok(()) };
    // Both may have come since, or were deleted since.
    if journal_object(bucket, next)?.is_some() || boundary.has_freed(bucket, next)? {
        return Ok(());
    }
    Err(missing(next, later))
}

fn missing(number: u64, later: u64) -> Error {
    let what = format!("the object is missing, and journal object {later} exists");
    Error::corruption(PathBuf::from(journal_name(number)), None, what)
}
