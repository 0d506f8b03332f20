//! A look at a whole bucket: [`BucketStatus`], what is in it and why; [`BucketReport`], what is wrong with it; and
//! the copy into another bucket.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use siltstone::{Error, ErrorKind, Result, VerifyOptions, VerifyReport};

use crate::bucket::{Bucket, Put, unfinished_target};
use crate::collect::claimant_of;
use crate::folder::{FencedWriter, Folder};
use crate::format::{
    CLAIM_BYTES, base_name, encode_base, journal_name, number_of_base, number_of_journal,
};
use crate::history::History;
use crate::journal::{Boundary, load, read_base};
use crate::reader::RemoteReader;
use crate::retention::Retention;
use crate::settings::{Ack, Settings};
use crate::store::ObjectEntry;

/// A number of objects, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// The number of objects.
    pub objects: u64,
    /// The bytes in them.
    pub bytes: u64,
}

impl Amount {
    fn add(&mut self, entry: &ObjectEntry) {
        self.objects += 1;
        self.bytes += entry.len;
    }
}

/// A lease of a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseStatus {
    /// Its number, in hexadecimal digits.
    pub id: String,
    /// The states from this journal object on are kept.
    pub number: u64,
    /// Objects that are kept for files which the reader has open.
    pub objects: u64,
    /// The time of the last renewal, by the clock of the store, since 1970.
    pub renewed: Duration,
    /// It counts, as it has not expired by the last put into the bucket.
    pub is_live: bool,
}

/// The content of a bucket, see [`Remote::status`](crate::Remote::status).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketStatus {
    /// The last journal object; 0 for a bucket without a database.
    pub number: u64,
    /// The claimant of it: the last writer.
    pub claimant: u128,
    /// The acknowledgement of that writer.
    pub ack: Ack,
    /// The time of the last journal object, by the clock of the store, since 1970.
    pub stored: Duration,
    /// The newest base, if there is one.
    pub base: Option<u64>,
    /// The oldest state that can be restored, as the journal object that it ends with.
    pub oldest: u64,
    /// The time at which that state was put.
    pub oldest_stored: Duration,
    /// Needed by an open of the newest state; with all claims and boundaries, which are kept for ever.
    pub live: Amount,
    /// Needed by earlier states only, and kept by [`Remote::retention`](crate::Remote::retention).
    pub retained: Amount,
    /// Kept by a lease only.
    pub leased: Amount,
    /// Kept by nothing: the next rounds of the primary delete it, after the grace.
    pub garbage: Amount,
    /// All leases.
    pub leases: Vec<LeaseStatus>,
}

/// Something that is wrong in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongObject {
    /// The object, or the file of the database whose objects are damaged.
    pub name: String,
    /// The defect.
    pub what: String,
}

/// The findings of [`Remote::verify`](crate::Remote::verify).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketReport {
    /// The objects that were looked at, and their bytes.
    pub checked: Amount,
    /// All that is wrong.
    pub wrong: Vec<WrongObject>,
}

impl BucketReport {
    /// Returns `true` if nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.wrong.is_empty()
    }

    fn note(&mut self, name: &str, what: impl ToString) {
        self.wrong.push(WrongObject { name: name.to_owned(), what: what.to_string() });
    }
}

/// All objects below `dir`.
fn list_all(bucket: &Bucket, dir: &str) -> Result<Vec<ObjectEntry>> {
    let listed = bucket.list_all(dir)?;
    let mut all = listed.objects;
    for folder in listed.folders {
        all.extend(list_all(bucket, &folder)?);
    }
    Ok(all)
}

/// The reason why an object is there.
struct Reasons {
    folder: Folder,
    live: BTreeSet<Arc<str>>,
    dropped: BTreeMap<Arc<str>, u64>,
    held: BTreeSet<Arc<str>>,
    newest_base: u64,
    /// The base that the retention keeps, and the older one that leases keep.
    by_age: u64,
    by_leases: u64,
}

impl Reasons {
    /// The amount that an object which states before `number` need belongs to.
    fn history<'a>(&self, status: &'a mut BucketStatus, number: u64) -> &'a mut Amount {
        match number {
            _ if number > self.by_age => &mut status.retained,
            _ if number > self.by_leases => &mut status.leased,
            _ => &mut status.garbage,
        }
    }

    fn amount<'a>(&self, status: &'a mut BucketStatus, entry: &ObjectEntry) -> &'a mut Amount {
        let name = &*entry.name;
        if let Some(number) = number_of_journal(name) {
            let is_live = number > self.newest_base || entry.len <= CLAIM_BYTES;
            return if is_live { &mut status.live } else { self.history(status, number) };
        }
        if let Some(number) = number_of_base(name) {
            let is_live = number == self.newest_base;
            return if is_live { &mut status.live } else { self.history(status, number + 1) };
        }
        if self.live.contains(name) {
            return &mut status.live;
        }
        if let Some(number) = self.dropped.get(name) {
            let is_held = self.held.contains(name) && *number <= self.by_leases;
            return if is_held { &mut status.leased } else { self.history(status, *number) };
        }
        let Some(claimant) = claimant_of(name) else { return &mut status.garbage };
        let fenced = self.folder.fenced.iter().find(|it| it.claimant == claimant);
        match fenced {
            // Its journal object may come.
            None if claimant == self.folder.writer => &mut status.live,
            None => &mut status.garbage,
            Some(fenced) => self.history(status, fenced.number),
        }
    }
}

/// See [`Remote::status`](crate::Remote::status).
pub(crate) fn status(settings: &Settings) -> Result<BucketStatus> {
    let bucket = settings.bucket();
    let (folder, boundary) = load(&bucket)?;
    let mut seen = Retention::read(&bucket)?;
    let now = seen.last_put();
    let newest_base = seen.bases.last().map(|(number, _)| *number);
    let by_age = seen.base_of_age(now, settings.retention).unwrap_or(0);
    let oldest = seen.bases.iter().map(|(number, _)| *number).find(|it| it + 1 >= boundary.first);
    let leases = seen.leases.iter().map(|found| LeaseStatus {
        id: format!("{:032x}", found.lease.id),
        number: found.lease.number,
        objects: found.lease.objects.len() as u64,
        renewed: found.renewed,
        is_live: found.is_live(now),
    });
    let leases = leases.collect();
    seen.expire(|found| found.is_live(now));
    // The first state of a whole journal is that of its first object, not of a base.
    let is_whole = boundary.first <= 1;
    let mut status = BucketStatus {
        number: folder.number,
        claimant: folder.writer,
        ack: folder.ack,
        stored: Duration::ZERO,
        base: newest_base,
        oldest: if is_whole { folder.number.min(1) } else { oldest.unwrap_or(0) },
        oldest_stored: Duration::ZERO,
        live: Amount::default(),
        retained: Amount::default(),
        leased: Amount::default(),
        garbage: Amount::default(),
        leases,
    };
    let dropped = folder.dropped.iter().map(|it| (it.object.clone(), it.number));
    let reasons = Reasons {
        live: folder.objects(),
        dropped: dropped.collect(),
        held: seen.held(),
        newest_base: newest_base.unwrap_or(0),
        by_age,
        by_leases: seen.base_under_leases(by_age).unwrap_or(0),
        folder,
    };
    for dir in ["journal", "base", "table", "part"] {
        for entry in list_all(&bucket, dir)? {
            reasons.amount(&mut status, &entry).add(&entry);
            note_times(&mut status, &entry, is_whole);
        }
    }
    for dir in ["boundary", "lease", "takeover"] {
        for entry in bucket.list_all(dir)?.objects {
            match unfinished_target(&entry.name) {
                None => status.live.add(&entry),
                Some(_) => status.garbage.add(&entry),
            }
        }
    }
    bucket.list_all("probe")?.objects.iter().for_each(|entry| status.garbage.add(entry));
    Ok(status)
}

/// Notes the time of `entry`, if it ends the newest or the oldest state. Journal objects come before bases.
fn note_times(status: &mut BucketStatus, entry: &ObjectEntry, is_whole: bool) {
    let journal = number_of_journal(&entry.name);
    let base = number_of_base(&entry.name);
    // A copied bucket has no journal before its first writer.
    let has_no_journal = status.stored.is_zero();
    if journal == Some(status.number) || has_no_journal && base == Some(status.number) {
        status.stored = entry.modified;
    }
    let begins = if is_whole { journal } else { base };
    if begins == Some(status.oldest) {
        status.oldest_stored = entry.modified;
    }
}

/// See [`Remote::verify`](crate::Remote::verify).
pub(crate) fn verify(settings: &Settings) -> Result<BucketReport> {
    let mut history = History::hold(settings)?;
    let mut report = BucketReport::default();
    let mut needed: BTreeMap<Arc<str>, u64> = BTreeMap::new();
    let mut newest = None;
    let bases: Vec<u64> = history.bases.iter().map(|(number, _)| *number).collect();
    for number in &bases {
        if *number > 0 {
            match read_base(&history.bucket, *number) {
                Ok(Some(folder)) => newest = Some(note_needs(&mut needed, folder)),
                Ok(None) => report.note(&base_name(*number), "the base is missing"),
                Err(error) if error.is_corruption() => report.note(&base_name(*number), error),
                Err(error) => return Err(error),
            }
            report.checked.objects += 1;
        }
        history.renew()?;
    }
    let first = bases.first().copied().unwrap_or(0);
    let last = verify_journal(&mut history, &mut report, &mut needed, first)?;
    if newest.as_ref().is_none_or(|folder| folder.number < last) && last > 0 {
        newest = match history.state(last) {
            Ok(folder) => Some(folder),
            Err(error) if history.bucket.given_up().is_some() => return Err(error),
            // The base or the journal object that prevents it is noted.
            Err(_) if !report.is_sound() => None,
            Err(error) if error.is_corruption() => {
                report.note("the newest state", error);
                None
            }
            Err(error) => return Err(error),
        };
    }
    verify_objects(&mut history, &mut report, &needed)?;
    if let Some(folder) =
        newest.filter(|folder| folder.files.keys().any(|it| it.ends_with(".manifest")))
    {
        let reader = RemoteReader::of_state(settings, folder);
        let secondary = reader.secondary().open();
        let content = secondary.and_then(|secondary| secondary.verify(VerifyOptions::default()));
        // A file that the store does not give is no damage, also if it gives the next one.
        if let Some(error) = reader.given_up()
            && !content.as_ref().is_ok_and(VerifyReport::is_sound)
        {
            let message = format!("the newest state cannot be read: {error}");
            return Err(Error::new(ErrorKind::Io, message));
        }
        match content {
            Ok(content) => {
                for damage in content.damage() {
                    let name =
                        damage.file.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    let at = damage.offset.map(|at| format!(" at {at}")).unwrap_or_default();
                    report.note(&name, format!("{}{at}", damage.what));
                }
                for file in &content.unsupported {
                    report.note("the newest state", file);
                }
            }
            Err(error) => report.note("the newest state", error),
        }
    }
    report.wrong.dedup();
    Ok(report)
}

/// Notes the ends of the pieces of `folder`.
fn note_needs(needed: &mut BTreeMap<Arc<str>, u64>, folder: Folder) -> Folder {
    for file in folder.files.values() {
        for piece in &file.read().pieces {
            let end = needed.entry(piece.object.clone()).or_default();
            *end = (*end).max(piece.at + piece.len);
        }
    }
    folder
}

/// Reads the journal after `first`; returns its last object.
fn verify_journal(
    history: &mut History,
    report: &mut BucketReport,
    needed: &mut BTreeMap<Arc<str>, u64>,
    first: u64,
) -> Result<u64> {
    let entries = list_all(&history.bucket, "journal")?;
    let numbers: Vec<u64> = entries.iter().filter_map(|it| number_of_journal(&it.name)).collect();
    let mut next = first + 1;
    for number in numbers.iter().copied().filter(|number| *number > first) {
        for missing in next..number {
            report.note(&journal_name(missing), "the journal object is missing");
        }
        next = number + 1;
        match crate::journal::journal_object(&history.bucket, number) {
            Ok(Some(object)) => object.changes.iter().for_each(|change| note_piece(needed, change)),
            Ok(None) => {
                report.note(&journal_name(number), "the journal object is missing");
            }
            Err(error) if error.is_corruption() => {
                report.note(&journal_name(number), error);
            }
            Err(error) => return Err(error),
        }
        report.checked.objects += 1;
        history.renew()?;
    }
    Ok(next - 1)
}

fn note_piece(needed: &mut BTreeMap<Arc<str>, u64>, change: &crate::folder::StoredChange) {
    if let crate::folder::StoredChange::Piece { piece, .. } = change {
        let end = needed.entry(piece.object.clone()).or_default();
        *end = (*end).max(piece.at + piece.len);
    }
}

/// Checks that all objects with data are there, and long enough.
fn verify_objects(
    history: &mut History,
    report: &mut BucketReport,
    needed: &BTreeMap<Arc<str>, u64>,
) -> Result<()> {
    let mut lengths = BTreeMap::new();
    for dir in ["table", "part"] {
        let all = list_all(&history.bucket, dir)?;
        lengths.extend(all.into_iter().map(|entry| (entry.name, entry.len)));
        history.renew()?;
    }
    for (name, end) in needed {
        report.checked.objects += 1;
        report.checked.bytes += end;
        match lengths.get(&**name) {
            None => report.note(name, "the object is missing"),
            Some(len) if len < end => {
                report.note(name, format!("{len} bytes, and {end} are needed"));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// See [`Remote::copy_to`](crate::Remote::copy_to).
pub(crate) fn copy(from: &Settings, to: &Settings) -> Result<Amount> {
    let target = to.bucket();
    if load(&target)?.0.number > 0 {
        let message = "the other bucket has a database already: a copy needs an empty one";
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    let mut history = History::hold(from)?;
    let mut folder = history.newest()?;
    if folder.number == 0 {
        return Err(Error::new(ErrorKind::InvalidArgument, "the bucket has no database"));
    }
    let mut copied = Amount::default();
    let mut objects = BTreeMap::new();
    folder = note_needs(&mut objects, folder);
    let bucket = history.bucket.clone();
    for (object, len) in objects {
        target.put_long(&object, len, &mut |range| {
            history.renew()?;
            let wanted = range.end - range.start;
            let bytes = bucket.get_range(&object, range)?;
            let whole = bytes.filter(|bytes| bytes.len() as u64 == wanted);
            let what = "the object is missing, or ends too early";
            whole.ok_or_else(|| Error::corruption(Path::new(&*object), None, what))
        })?;
        copied.objects += 1;
        copied.bytes += len;
        history.renew()?;
    }
    // The history stays where it is. No folder is that of the copy's writer: the folder of the old one would be made as
    // the copy says, without its later commits.
    folder.dropped.clear();
    folder.fenced = vec![FencedWriter { claimant: folder.writer, number: folder.number }];
    folder.writer = target.random_id();
    // No one serves the copy.
    folder.lease = Duration::ZERO;
    let bytes = encode_base(&folder);
    if target.put_new(&base_name(folder.number), &bytes)? == Put::Taken {
        let message = "another copy, or a primary, has used the other bucket meanwhile";
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    copied.objects += 1;
    copied.bytes += bytes.len() as u64;
    // A reader that was opened before waits for the journal object 1.
    Boundary::load(&target)?.put(&target, folder.number + 1, folder.writer)?;
    Ok(copied)
}
