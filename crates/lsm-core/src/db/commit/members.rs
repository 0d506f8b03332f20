//! The batches of a group: encoded, appended, settled, or refused.
//!
//! Called by the leader of the group alone (`commit.rs`), under the log writer's lock.

use super::{Commit, CommitEnv, Visible};
use crate::db::log::LogWriter;
use crate::db::prepared::Prepared;
use crate::db::require::{GroupWrites, MemoryCheck, Refusal};
use crate::error::Result;
use crate::types::{Epoch, SeqNo};
use crate::wal::Lsn;

/// The progress of a batch of a group.
pub(super) enum MemberState {
    /// It is invisible and stays so.
    Refused(Refusal),
    /// Its frame is in the log's buffer and begins here.
    Encoded(Lsn),
    /// Its frame is in the segment.
    Appended(Lsn),
    /// It is visible without a frame: its partitions have no log.
    Unlogged,
}

/// A batch of a group.
pub(super) struct Member<'a> {
    pub(super) batch: &'a Prepared<'a>,
    pub(super) first_seq: SeqNo,
    pub(super) state: MemberState,
}

impl Member<'_> {
    pub(super) fn is_refused(&self) -> bool {
        matches!(self.state, MemberState::Refused(_))
    }

    /// The answer to it, in a group after which the log ends at `end`.
    pub(super) fn outcome(&self, epoch: Epoch, end: Lsn) -> Result<Visible, Refusal> {
        if let MemberState::Refused(refusal) = &self.state {
            return Err(refusal.clone());
        }
        let seq = self.first_seq.plus(self.batch.operations() - 1);
        Ok((Commit { seq, epoch }, end))
    }
}

/// Adds a batch to `group`, and encodes it unless it is refused. If the segment has no room for it, the group is
/// appended first. A large batch is appended at once, after the group; `is_alone` means that no other is in the
/// group.
pub(super) fn encode<'a>(
    env: &dyn CommitEnv,
    writer: &mut LogWriter<'_>,
    group: &mut [Member<'a>],
    writes: &mut GroupWrites<'a>,
    batch: &'a Prepared<'a>,
    is_alone: bool,
) -> Member<'a> {
    // Numbers are taken one batch at a time, after its checks: a refused batch leaves no hole.
    let first_seq = writer.next_seq();
    let state = encode_at_end(env, writer, group, writes, batch, is_alone);
    if !matches!(state, MemberState::Refused(_)) {
        writer.take_seqs(batch.operations());
    }
    Member { batch, first_seq, state }
}

fn encode_at_end<'a>(
    env: &dyn CommitEnv,
    writer: &mut LogWriter<'_>,
    group: &mut [Member<'a>],
    writes: &mut GroupWrites<'a>,
    batch: &'a Prepared<'a>,
    is_alone: bool,
) -> MemberState {
    if let Err(error) = env.check_batch(batch) {
        return MemberState::Refused(error.into());
    }
    if let Err(refusal) = check_requirements(writer, group, writes, batch) {
        return MemberState::Refused(refusal);
    }
    if !batch.is_logged() {
        return MemberState::Unlogged;
    }
    let frame = batch.frame();
    let sections = frame.as_slice();
    let is_large = LogWriter::is_large(sections, is_alone);
    if is_large || !writer.has_room(sections) {
        append(writer, group);
    }
    if batch.asks_sync() {
        writer.note_asker();
    }
    let written = if is_large {
        writer.append_large(sections, batch.operations()).map(MemberState::Appended)
    } else {
        writer.encode_batch(sections, batch.operations()).map(MemberState::Encoded)
    };
    written.unwrap_or_else(|error| MemberState::Refused(error.into()))
}

/// Checks the requirements of a batch against the members before it.
#[inline]
fn check_requirements<'a>(
    writer: &LogWriter<'_>,
    group: &[Member<'a>],
    writes: &mut GroupWrites<'a>,
    batch: &Prepared<'_>,
) -> Result<(), Refusal> {
    let Some(requirements) = &batch.requirements else { return Ok(()) };
    // A member whose append fails later counts, too: this batch is then refused although nothing
    // was written before it, and its caller may try again.
    for member in &group[writes.members..] {
        if !member.is_refused() {
            writes.add(member.batch);
        }
    }
    writes.members = group.len();
    match requirements.check(writer.last_seq(), writes)? {
        MemoryCheck::Holds => Ok(()),
        MemoryCheck::Unproven => Err(Refusal::Unproven),
    }
}

/// Appends the encoded frames. If that fails, exactly the members whose frames were in it are
/// refused: an earlier append of the group is in the log and stays there.
pub(super) fn append(writer: &mut LogWriter<'_>, group: &mut [Member<'_>]) {
    let appended = writer.append();
    for member in group {
        if let MemberState::Encoded(lsn) = member.state {
            // Only frames of this append. A member that is `Appended` already is in the log
            // whatever happens here: if it were refused, recovery would restore a write that was
            // reported as failed.
            member.state = match &appended {
                Ok(()) => MemberState::Appended(lsn),
                Err(error) => MemberState::Refused(error.clone().into()),
            };
        }
    }
}

/// Settles the appended frames. If another process has fenced this one, the whole group is refused,
/// unlogged batches as well: `false`.
pub(super) fn settle(writer: &LogWriter<'_>, group: &mut [Member<'_>]) -> bool {
    let Err(fenced) = writer.settle() else { return true };
    for member in group.iter_mut().filter(|member| !member.is_refused()) {
        member.state = MemberState::Refused(fenced.clone().into());
    }
    false
}
