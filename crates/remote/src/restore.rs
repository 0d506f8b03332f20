//! Restore of a database to a moment of its history, into an empty folder.
//!
//! Invariants:
//! 1. The manifests come last: a restore that ends in its middle leaves no folder that opens as a database.
//! 2. A restore that returns has read each live file back, and none is damaged.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lsm_core::fs::{AppendMode, File};
use siltstone::secondary::Target;
use siltstone::{Db, Error, ErrorKind, Result, SeqNo, VerifyOptions};

use crate::cache::ObjectCache;
use crate::folder::Folder;
use crate::history::History;
use crate::reader::RemoteReader;
use crate::remote_file::RemoteFile;
use crate::settings::Settings;
use crate::utc_time::UtcTime;

/// A moment of a database's history, see [`Remote::restore`](crate::Remote::restore).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestoreTarget {
    /// The newest commit that is stored.
    Latest,
    /// The newest stored state without a commit after this sequence number. Commits that shared a put are restored
    /// together.
    Seq(SeqNo),
    /// The newest state that was stored by this time, by the clock of the store.
    Time(SystemTime),
}

/// A state that was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoredState {
    /// The last journal object of the state.
    pub number: u64,
    /// The sequence number of its last commit; 0 if it has none.
    pub seq: SeqNo,
    /// The files that were made, and their bytes.
    pub files: u64,
    /// See `files`.
    pub bytes: u64,
}

/// A state that can be restored.
struct Point {
    seq: SeqNo,
    time: Duration,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seq = self.seq.get();
        write!(f, "sequence number {seq}, stored {}", UtcTime(self.time))
    }
}

/// See [`Remote::restore`](crate::Remote::restore).
pub(crate) fn restore(settings: &Settings, dir: &Path, at: RestoreTarget) -> Result<RestoredState> {
    let dir = std::path::absolute(dir)?;
    let fs = &settings.fs;
    fs.create_dir(&dir)?;
    if !fs.list(&dir, "")?.is_empty() {
        let message = format!("{} is not empty: a restore makes a new folder", dir.display());
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    let mut history = History::hold(settings)?;
    let folder = history.find(settings, at)?;
    let seq = last_seq(settings, &folder)?;
    let mut made = RestoredState { number: folder.number, seq, files: 0, bytes: 0 };
    let cache = Arc::new(ObjectCache::new(history.bucket.clone(), settings.cache_bytes));
    let mut names: Vec<&String> = folder.files.keys().collect();
    names.sort_by_key(|name| name.ends_with(".manifest"));
    for name in names {
        let state = &folder.files[name];
        let path = dir.join(name);
        let remote = RemoteFile::new(state.clone(), cache.clone(), path.clone());
        let written = state.read().written;
        let file = fs.open_append(&path, AppendMode::IfAbsent)?;
        let mut buf = vec![0; 1 << 20];
        let mut done = 0;
        while done < written {
            let wanted = (written - done).min(buf.len() as u64) as usize;
            let count = remote.read_at_uncached(done, &mut buf[..wanted])?;
            file.append(&buf[..count])?;
            done += count as u64;
            history.renew()?;
        }
        let len = state.read().len;
        if len > written {
            file.preallocate(len)?;
        }
        file.sync()?;
        made.files += 1;
        made.bytes += written;
    }
    fs.sync_dir(&dir)?;
    check(settings, &dir, seq)?;
    Ok(made)
}

/// Opens a restored folder, and reads it back.
fn check(settings: &Settings, dir: &Path, seq: SeqNo) -> Result<()> {
    if settings.fs.list(dir, "")?.is_empty() {
        return Ok(());
    }
    let db = Db::builder(dir).fs(settings.fs.clone()).open()?;
    let report = db.verify(VerifyOptions::default())?;
    if let Some(damage) = report.damage().first() {
        return Err(Error::corruption(damage.file.clone(), damage.offset, damage.what.clone()));
    }
    let reached = db.visible_seq();
    if reached != seq {
        let what = format!("the restored state ends at sequence number {reached}, not {seq}");
        return Err(Error::corruption(PathBuf::from(dir), None, what));
    }
    db.close()
}

/// The sequence number of the last commit of a state.
fn last_seq(settings: &Settings, folder: &Folder) -> Result<SeqNo> {
    if !folder.files.keys().any(|name| name.ends_with(".manifest")) {
        return Ok(SeqNo::ZERO);
    }
    let reader = RemoteReader::of_state(settings, folder.copied());
    let secondary = reader.secondary().open()?;
    Ok(secondary.sync(Target::Latest)?.seq)
}

impl History {
    /// The state at a moment.
    fn find(&mut self, settings: &Settings, at: RestoreTarget) -> Result<Folder> {
        let found = match at {
            RestoreTarget::Latest => Some(self.newest()?).filter(|newest| newest.number > 0),
            RestoreTarget::Time(time) => {
                let time = time.duration_since(UNIX_EPOCH).unwrap_or_default();
                self.state_by_time(time)?
            }
            RestoreTarget::Seq(seq) => self.state_by_seq(settings, seq)?,
        };
        match found {
            Some(folder) => Ok(folder),
            None => Err(self.out_of_range(settings)?),
        }
    }

    fn state_by_time(&mut self, time: Duration) -> Result<Option<Folder>> {
        let old = self.bases.iter().filter(|(_, put)| *put <= time);
        let Some(base) = old.map(|(number, _)| *number).max() else { return Ok(None) };
        let times = self.times_after(base)?;
        let last = times.iter().take_while(|(_, put)| *put <= time).last();
        let number = last.map_or(base, |(number, _)| *number);
        if number == 0 { Ok(None) } else { self.state(number).map(Some) }
    }

    fn state_by_seq(&mut self, settings: &Settings, seq: SeqNo) -> Result<Option<Folder>> {
        let newest = self.newest()?;
        if last_seq(settings, &newest)? < seq {
            return Ok(None);
        }
        // The first base beyond, and the last one before it. A sequence number only grows along the journal.
        let mut low = 0;
        let mut high = self.bases.len();
        while low < high {
            let middle = low.midpoint(high);
            let base = self.base(self.bases[middle].0)?;
            if last_seq(settings, &base)? <= seq { low = middle + 1 } else { high = middle }
        }
        let Some(before) = low.checked_sub(1) else { return Ok(None) };
        let mut from = self.bases[before].0;
        let mut until = self.bases.get(low).map_or(newest.number + 1, |(number, _)| *number);
        while until - from > 1 {
            let middle = from.midpoint(until);
            let state = self.state(middle)?;
            if last_seq(settings, &state)? <= seq { from = middle } else { until = middle }
        }
        let found = self.state(from)?;
        Ok((found.number > 0).then_some(found))
    }

    /// The error of a moment outside the history.
    fn out_of_range(&mut self, settings: &Settings) -> Result<Error> {
        let newest = self.newest()?;
        if newest.number == 0 {
            return Ok(Error::new(ErrorKind::InvalidArgument, "the bucket has no database"));
        }
        let mut oldest = self.bases.first().copied().unwrap_or_default();
        let times = self.times_after(oldest.0)?;
        let last = times.last().copied().unwrap_or(oldest);
        if oldest.0 == 0 {
            // The first state of a whole journal is that of its first object.
            oldest = times.first().copied().unwrap_or((1, Duration::ZERO));
        }
        let (number, time) = oldest;
        let oldest = Point { seq: last_seq(settings, &self.state(number)?)?, time };
        let newest = Point { seq: last_seq(settings, &newest)?, time: last.1 };
        let message = format!(
            "the bucket does not have this moment\n  the oldest is {oldest}\n  the newest is {newest}"
        );
        Ok(Error::new(ErrorKind::InvalidArgument, message))
    }
}
