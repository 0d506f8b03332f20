//! The changes of the log, of epochs and of numbers: those that belong to no partition.
//!
//! Called by [`VersionBuilder`] alone, and bound by its invariants.

use super::{Refused, VersionBuilder, refuse};
use crate::version::change::Change;
use crate::version::{FlushBeyondSync, LogCut};

impl VersionBuilder {
    pub(super) fn log_change(&mut self, change: &Change) -> Result<(), Refused> {
        match *change {
            Change::SegmentAdded { file, epoch } => {
                self.used(file);
                if self.version.log_segments.insert(file, epoch).is_some() {
                    return refuse(format!("log segment {file} is added twice"));
                }
            }
            Change::SegmentRemoved { file } => {
                if self.version.log_segments.remove(&file).is_none() {
                    return refuse(format!("log segment {file} is removed but absent"));
                }
                // The remaining log begins with the front of a later segment.
                self.version.replay_from.take_if(|from| from.segment == file);
            }
            Change::EpochBegan { epoch, cut } => {
                // Only an empty database may go from epoch 0 to epoch 0.
                if epoch < self.version.epoch || (epoch == self.version.epoch && epoch.0 != 0) {
                    return refuse(format!("epoch {epoch} is not newer than the epoch before it"));
                }
                self.version.epoch = epoch;
                self.version.log_cut = cut;
                // The log continues: the place where it was closed is no longer its end.
                self.version.log_closed = None;
                self.version.replay_from = None;
                self.version.flush_beyond_sync = None;
                cut.iter().for_each(|cut| self.known(cut.last_seq));
            }
            Change::LogClosed(end) => {
                self.version.log_closed = Some(end);
                self.known(end.last_seq);
            }
            Change::SegmentRetained { file, segment } => {
                self.used(file);
                // No files have more together, and sums of lengths fit.
                let all = self.version.retained.bytes().checked_add(segment.bytes);
                if all.is_none_or(|all| i64::try_from(all).is_err()) {
                    return refuse(format!("log segment {file} of {} bytes", segment.bytes));
                }
                let is_live = self.version.log_segments.contains_key(&file);
                if is_live || self.version.retained.segments.insert(file, segment).is_some() {
                    return refuse(format!("log segment {file} is retained twice, or live"));
                }
            }
            Change::SegmentForgotten { file } => {
                if !self.version.retained.forget(file) {
                    return refuse(format!("log segment {file} is forgotten but not retained"));
                }
            }
            // Without a segment the end is of no use.
            Change::RetainedEnd { epoch, end } if !self.version.retained.segments.is_empty() => {
                self.version.retained.ends.insert(epoch, end);
            }
            Change::RetainedEnd { .. } => {}
            Change::ReplayFrom(from) => self.replay_from(from)?,
            Change::FlushBeyondSync(ahead) => self.flush_beyond_sync(ahead)?,
            // The larger one counts: an older edit must not bring a used number back.
            Change::NextFile(next) => self.version.next_file = self.version.next_file.max(next),
            Change::NextPartition(next) => {
                self.version.next_partition = self.version.next_partition.max(next);
            }
            Change::LastSeq(seq) => self.known(seq),
            Change::Superseded { .. } => {
                return refuse("the end of a generation is inside an edit");
            }
            _ => unreachable!("VersionBuilder::change handles the changes of partitions"),
        }
        Ok(())
    }

    fn replay_from(&mut self, from: LogCut) -> Result<(), Refused> {
        let LogCut { segment, offset, last_seq } = from;
        if !self.version.log_segments.contains_key(&segment) {
            return refuse(format!("replay begins in segment {segment}, which is not live"));
        }
        // What is in tables stays there.
        let before = self.version.replay_from;
        if before.is_some_and(|before| (before.segment, before.offset) > (segment, offset)) {
            return refuse(format!("replay goes back to offset {offset} of segment {segment}"));
        }
        self.known(last_seq);
        self.version.replay_from = Some(from);
        Ok(())
    }

    fn flush_beyond_sync(&mut self, ahead: FlushBeyondSync) -> Result<(), Refused> {
        let FlushBeyondSync { flushed, durable } = ahead;
        if durable >= flushed {
            return refuse(format!("a flush through {flushed} is ahead of {durable}"));
        }
        // Neither tables nor log lose anything within an epoch.
        let before = self.version.flush_beyond_sync;
        if before.is_some_and(|before| before.flushed > flushed || before.durable > durable) {
            return refuse(format!("a flush ahead of the log goes back to {flushed}"));
        }
        self.known(flushed);
        self.version.flush_beyond_sync = Some(ahead);
        Ok(())
    }
}
