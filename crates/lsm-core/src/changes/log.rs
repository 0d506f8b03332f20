//! [`ChangeLog`]: the log after a token, frame by frame, over segments and epochs.
//!
//! Used by `mod.rs`. The frames are read by the reader of recovery and secondaries (`wal/reader.rs`), which checks
//! that each segment continues the one before it.
//!
//! Invariants:
//! 1. The token grows when a batch, or a hole in the sequence numbers, is yielded, and by the batch or hole.
//! 2. After an error the reader is gone, and the next call begins again at the token.
//! 3. An epoch that has ended is left only at the place where the manifest says that it ended.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::beginning::{Beginning, find_beginning, listed_segments, open_segment};
use super::{ChangedPartition, CommittedBatch, FeedItem, KeyChange, Shown};
use crate::error::Result;
use crate::fs::OpenFiles;
use crate::types::{Epoch, FileNo, SeqNo};
use crate::version::{DbVersion, LogCut};
use crate::wal::{
    Attested, BatchRef, LogPlace, LogReader, LogReaderOptions, Lsn, MustReach, Record,
};

/// The operations of a batch that a feed yields.
pub(super) type Operations = Vec<(ChangedPartition, KeyChange)>;

/// The log of one epoch.
struct EpochLog {
    epoch: Epoch,
    reader: LogReader,
    /// The end of the epoch; `None` for the present one.
    end: Option<LogCut>,
    /// The edit whose segments the reader has.
    edit: u64,
    reach: Lsn,
}

/// The log of a database after a token.
pub(crate) struct ChangeLog {
    files: Arc<OpenFiles>,
    dir: PathBuf,
    token: SeqNo,
    /// The token to begin with, and the one that stands for it: see [`ChangeLog::token`].
    from: SeqNo,
    durable_from: SeqNo,
    present: Option<EpochLog>,
    /// A batch that comes after the hole that was yielded last.
    after_hole: Option<CommittedBatch>,
}

/// The content of the log at one place.
enum InLog {
    Batch(CommittedBatch),
    /// A batch that was yielded before.
    Old,
    /// Nothing that may be shown.
    Nothing,
}

impl ChangeLog {
    /// The log in the folder `dir` after `token`. Nothing is read yet.
    pub(crate) fn new(files: &Arc<OpenFiles>, dir: &Path, token: SeqNo) -> ChangeLog {
        let files = files.clone();
        ChangeLog {
            files,
            dir: dir.to_owned(),
            token,
            from: token,
            durable_from: token,
            present: None,
            after_hole: None,
        }
    }

    /// For a log that is durable through `seq`.
    pub(crate) fn durable_through(self, seq: SeqNo) -> ChangeLog {
        ChangeLog { durable_from: self.from.min(seq), ..self }
    }

    /// The token to go on with. At first it may be smaller than the one to begin with: that may be the number of a
    /// write to a partition without a log, which a power cut takes, and another commit gets.
    pub(crate) fn token(&self) -> SeqNo {
        if self.token == self.from { self.durable_from } else { self.token }
    }

    /// The place through which the log of `version` is attested as durable, of the part that is not read yet. It
    /// must reach `committed`. `None` if this does not read the present epoch.
    ///
    /// # Errors
    /// Those of [`LogReader::attested`].
    pub(crate) fn attested(&self, version: &DbVersion, committed: Lsn) -> Result<Option<Attested>> {
        match &self.present {
            Some(log) if log.epoch == version.epoch && log.edit == version.edit_number => {
                let known = version.log_durable_through();
                log.reader.attested(known, Some(committed)).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Opens the log, or takes in the segments of `version`, so that it can be asked what is attested.
    ///
    /// # Errors
    /// As [`ChangeLog::next`].
    pub(crate) fn prepare(&mut self, version: &DbVersion) -> Result<()> {
        let prepared = self.follow(version).and_then(|()| match self.present {
            None => self.open(version).map(drop),
            Some(_) => Ok(()),
        });
        if prepared.is_err() {
            self.present = None;
        }
        prepared
    }

    /// The next commit, or hole in the sequence numbers, of what is `shown`; `None` if there is none. `decode` returns
    /// the operations of a batch.
    ///
    /// # Errors
    /// [`ErrorKind::TooOld`](crate::error::ErrorKind::TooOld); corruption; those of reading and of `decode`. A
    /// missing file may come from a list that is older than the folder.
    pub(super) fn next(
        &mut self,
        shown: &Shown,
        decode: &dyn Fn(&BatchRef<'_>) -> Result<Operations>,
    ) -> Result<Option<FeedItem>> {
        if let Some(batch) = self.after_hole.take() {
            self.token = batch.seq;
            return Ok(Some(FeedItem::Commit(batch)));
        }
        let next = self.next_of(shown, decode);
        if next.is_err() {
            self.present = None;
        }
        next
    }

    fn next_of(
        &mut self,
        shown: &Shown,
        decode: &dyn Fn(&BatchRef<'_>) -> Result<Operations>,
    ) -> Result<Option<FeedItem>> {
        let version = &*shown.version;
        loop {
            self.follow(version)?;
            if self.present.is_none() && !self.open(version)? {
                return Ok(None);
            }
            let token = self.token;
            let log = self.present.as_mut().expect("opened above");
            match log.find(shown.reach, token, decode)? {
                InLog::Batch(batch) => return Ok(Some(self.yielded(batch))),
                InLog::Old => {}
                InLog::Nothing => {
                    let Some(end) = log.end else {
                        // All of it is durable: what is not whole there is damaged. Without a bound it is
                        // all that is there.
                        let committed =
                            if shown.reach.0 == u64::MAX { Lsn(0) } else { shown.reach };
                        let must_reach = MustReach { committed, ..MustReach::default() };
                        return log.reader.check_reaches(&must_reach).map(|()| None);
                    };
                    let place = LogPlace { segment: end.segment, offset: end.offset };
                    log.reader.check_reaches(&MustReach {
                        closed: Some(place),
                        ..MustReach::default()
                    })?;
                    self.present = None;
                    // The last numbers of the epoch are in no frame.
                    if self.token < end.last_seq {
                        return Ok(Some(self.hole_through(end.last_seq)));
                    }
                }
            }
        }
    }

    /// Yields a batch, or the hole before it.
    fn yielded(&mut self, batch: CommittedBatch) -> FeedItem {
        if batch.first_seq > self.token.plus(1) {
            let before = SeqNo::new(batch.first_seq.get() - 1).expect("it is below another one");
            self.after_hole = Some(batch);
            return self.hole_through(before);
        }
        self.token = batch.seq;
        FeedItem::Commit(batch)
    }

    fn hole_through(&mut self, seq: SeqNo) -> FeedItem {
        let first_seq = self.token.plus(1);
        self.token = seq;
        FeedItem::Unlogged { first_seq, seq }
    }

    /// Opens the log of the epoch that the token lies in; `false` if there is nothing after it.
    fn open(&mut self, version: &DbVersion) -> Result<bool> {
        let found = find_beginning(&self.files, &self.dir, version, self.token)?;
        let Beginning::Segment(first, epoch) = found else { return Ok(false) };
        let listed = listed_segments(version);
        let own = listed.range(first..).filter(|(_, its_epoch)| **its_epoch == epoch);
        let sources =
            own.map(|(number, epoch)| open_segment(&self.files, &self.dir, *number, *epoch));
        let mut options = LogReaderOptions::new(version.db_id);
        let end = (epoch != version.epoch).then(|| version.retained.ends[&epoch]);
        options.cut = end.map(|end| LogPlace { segment: end.segment, offset: end.offset });
        let reader = LogReader::new(sources.collect::<Result<_>>()?, options)?;
        let edit = version.edit_number;
        self.present = Some(EpochLog { epoch, reader, end, edit, reach: Lsn(u64::MAX) });
        Ok(true)
    }

    /// Takes in the segments that `version` lists. Forgets the reader if its place is not listed any more, or if
    /// its epoch has ended meanwhile: what follows the token is found again.
    fn follow(&mut self, version: &DbVersion) -> Result<()> {
        let Some(log) = self.present.as_mut() else { return Ok(()) };
        if log.edit == version.edit_number {
            return Ok(());
        }
        let is_present = log.epoch == version.epoch;
        let listed = listed_segments(version);
        let place = log.reader.position().place.segment;
        let last = log.reader.last_listed();
        let own = listed.iter().filter(|(_, epoch)| **epoch == log.epoch);
        // Those before the place are kept as well, but were not opened.
        let new: Vec<(FileNo, Epoch)> = own
            .filter(|(number, _)| **number > place && log.reader.source(**number).is_none())
            .map(|(number, epoch)| (*number, *epoch))
            .collect();
        let is_in_order =
            new.first().is_none_or(|(first, _)| last.is_none_or(|last| *first > last));
        let is_whole = is_present == log.end.is_none();
        if !is_whole || !listed.contains_key(&place) || !is_in_order {
            self.present = None;
            return Ok(());
        }
        if is_present {
            for (number, epoch) in new {
                log.reader.add_segment(open_segment(&self.files, &self.dir, number, epoch)?);
            }
            // Closes files that the writer has deleted: an open handle would keep their space.
            log.reader.forget_passed(|number| listed.contains_key(&number));
        }
        log.edit = version.edit_number;
        Ok(())
    }
}

impl EpochLog {
    /// The content at the present place, of the part of the log before `reach`.
    fn find(
        &mut self,
        reach: Lsn,
        token: SeqNo,
        decode: &dyn Fn(&BatchRef<'_>) -> Result<Operations>,
    ) -> Result<InLog> {
        // A place in the log of this epoch says nothing about an earlier one, which ends at its cut.
        let reach = if self.end.is_some() { Lsn(u64::MAX) } else { reach };
        if self.reader.lsn().is_some_and(|lsn| lsn >= reach) {
            return Ok(InLog::Nothing);
        }
        if self.reach != reach {
            self.reach = reach;
            self.reader.look_again(reach);
        }
        let Some(frame) = self.reader.next_frame()? else { return Ok(InLog::Nothing) };
        let Record::Batch(batch) = frame.record else { return Ok(InLog::Old) };
        if batch.last_seq <= token {
            return Ok(InLog::Old);
        }
        let changes = decode(&batch)?;
        Ok(InLog::Batch(CommittedBatch {
            first_seq: batch.first_seq,
            seq: batch.last_seq,
            changes,
        }))
    }
}
