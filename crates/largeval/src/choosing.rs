//! The choice of the chunk files whose values jobs move, and the reaction to one that failed.
//!
//! Kept by the store under its lock, in [`Chunks`]. Plain data: it opens no file.
//!
//! Invariants:
//! 1. No more is chosen than there is room for, because an old file is deleted only when all of its
//!    values are moved.
//! 2. A chunk whose values could not be moved rests, so that no job tries repeatedly in vain. Every
//!    rest except that for damage ends: with more room, with time, or when the application asks.

use std::cmp::Reverse;
use std::time::Duration;

use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::hooks::{ChunkId, KeySpan};

use crate::chunks::{Chunk, Chunks};

/// At most this share of the live values, or the number of bytes, whichever is more, is moved at a
/// time while values are put. A job walks over the tables of the keys between, and others wait for
/// it.
const MOVED_SHARE: u64 = 16;
const MOVED_BYTES_MIN: u64 = 64 << 20;
/// So much free space, in bytes, or the share, whichever is less, is left for the log and the
/// tables.
const KEPT_FREE: u64 = 1 << 20;
const KEPT_SHARE: u64 = 8;
/// If a value of a chunk cannot be read or written, the chunk rests so long at first, then twice as
/// long each time.
const REST: Duration = Duration::from_secs(60);
const REST_DOUBLINGS_MAX: u32 = 6;

/// The end of the rest of a chunk, whose values are not moved meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkRest {
    /// The next open: some are damaged, or no job reaches them.
    Open,
    /// There is so much room, in bytes.
    Room(u64),
    /// This time, by the clock.
    Until(Duration),
}

/// The moment of a choice.
#[derive(Clone, Copy, Debug)]
pub struct ChoiceTime {
    /// Bytes that are free on the disk.
    pub free: u64,
    /// The time by the clock.
    pub now: Duration,
}

impl ChoiceTime {
    /// Bytes of values that may be moved.
    fn room(self) -> u64 {
        self.free - (self.free / KEPT_SHARE).min(KEPT_FREE)
    }

    /// Bytes that have to be free, for so much room.
    fn free_for(room: u64) -> u64 {
        room.saturating_add((room / (KEPT_SHARE - 1) + 1).min(KEPT_FREE))
    }

    fn lacks(self, room: u64) -> Error {
        let needs = ChoiceTime::free_for(room);
        let message = format!(
            "moving large values out of a chunk file needs {needs} bytes of free space, and {} bytes are free",
            self.free
        );
        Error::new(ErrorKind::NoSpace, message)
    }
}

/// The chunks that are due.
#[derive(Clone, Copy, Debug)]
pub struct Due {
    /// Chunks with at least so many thousandths of garbage.
    pub garbage_permille: u64,
    /// All of them; otherwise those with the largest share of garbage first, and the others when
    /// these are empty: while values are overwritten, the rest becomes garbage without a move.
    pub all: bool,
    /// The application asks: resting chunks are tried again.
    pub asked: bool,
}

/// The present choice, and the reason why values that are due are not moved.
#[derive(Debug, Default)]
pub struct MoveChoice {
    /// Chunks were chosen, and no move of them has failed yet.
    is_sound: bool,
    /// Bytes to choose at most, since a job of the last choice failed for lack of space.
    most: Option<u64>,
    /// Nothing of what is due has room.
    lack: Option<Error>,
    /// The failure for which chunks rest.
    failure: Option<Error>,
}

impl Chunk {
    fn rests(&self, moment: ChoiceTime) -> bool {
        matches!(self.rest, Some(ChunkRest::Until(time)) if moment.now < time)
    }

    /// Returns `true` if its values could not be moved, and are not damaged.
    fn has_failed(&self) -> bool {
        matches!(self.rest, Some(ChunkRest::Room(_) | ChunkRest::Until(_)))
    }

    /// The room that moving its values takes.
    fn needed_room(&self) -> u64 {
        match self.rest {
            Some(ChunkRest::Room(room)) => self.live.bytes.max(room),
            _ => self.live.bytes,
        }
    }

    fn fail(&mut self, is_full: bool, moment: ChoiceTime) {
        self.is_moving = false;
        self.rest = Some(if is_full {
            // More than there was, whatever the system reports as free: a quota may be less than
            // that.
            ChunkRest::Room(moment.room().saturating_add(self.live.bytes / 2 + 1))
        } else {
            let longer = REST * (1 << self.failures.min(REST_DOUBLINGS_MAX));
            self.failures = self.failures.saturating_add(1);
            ChunkRest::Until(moment.now + longer)
        });
    }
}

impl Chunks {
    /// Chooses the chunks whose values should be moved, as many as there is room for; returns the
    /// hull of their keys. Chunks that were chosen before and are still live are given up.
    pub fn choose_moving(&mut self, due: Due, moment: ChoiceTime) -> Option<KeySpan> {
        self.end_choice(due);
        let share = (self.live_bytes() / MOVED_SHARE).max(MOVED_BYTES_MIN);
        let most = if due.all { u64::MAX } else { share };
        let choice = &mut self.choice;
        let chunks = self.by_id.values_mut();
        let mut candidates: Vec<&mut Chunk> = chunks
            .filter(|chunk| chunk.is_movable() && chunk.is_worth_moving(due.garbage_permille))
            .collect();
        candidates.retain(|chunk| !chunk.rests(moment));
        let lacking = candidates.iter().map(|chunk| chunk.needed_room()).min();
        let lacking = lacking.filter(|room| *room > moment.room());
        choice.lack = lacking.map(|room| moment.lacks(room));
        // Stable, so that of two equal ones the older one comes first.
        candidates.sort_by_key(|chunk| Reverse(chunk.garbage_permille()));
        // One alone may take all of the room, because its file is deleted afterwards. Several leave half of it.
        let fitting = choice.most.unwrap_or(u64::MAX).min(moment.room() / 2);
        let mut moved = 0_u64;
        for chunk in candidates {
            let more = moved.saturating_add(chunk.live.bytes);
            let fits = chunk.needed_room() <= moment.room() && (moved == 0 || more <= fitting);
            if fits && moved < most {
                moved = more;
                chunk.is_moving = true;
                chunk.rest = None;
            }
        }
        self.choice.is_sound = moved > 0;
        self.moving_span()
    }

    /// Chooses the chunks with keys from `from` to `to`, both included, or to the last, to move
    /// their values into the order of their keys, whatever garbage there is. Returns the hull of
    /// all that are chosen now.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] if there is no room for all of them: moved one after the other they
    /// would not be in order. None is chosen then.
    pub fn choose_within(
        &mut self,
        from: &[u8],
        to: Option<&[u8]>,
        moment: ChoiceTime,
    ) -> Result<Option<KeySpan>> {
        let mut room = 0_u64;
        for chunk in self.by_id.values_mut() {
            let overlaps = *chunk.largest >= *from && to.is_none_or(|to| *chunk.smallest <= *to);
            // A single value is in order, and without garbage it gains nothing.
            let gains = chunk.live.blocks > 1 || chunk.garbage_bytes() > 0;
            chunk.is_moving = chunk.is_movable() && overlaps && gains;
            if chunk.is_moving {
                chunk.rest = None;
                room = room.saturating_add(chunk.live.bytes);
            }
        }
        if room > moment.room() {
            self.by_id.values_mut().for_each(|chunk| chunk.is_moving = false);
            return Err(moment.lacks(room));
        }
        Ok(self.moving_span())
    }

    /// Gives up the last choice as far as it is still live.
    fn end_choice(&mut self, due: Due) {
        let mut is_done = std::mem::take(&mut self.choice.is_sound);
        for chunk in self.by_id.values_mut() {
            // Jobs went over its keys and left values in it. Choosing it again and again would be
            // endless work.
            if chunk.is_moving && chunk.live.blocks > 0 {
                chunk.rest = chunk.rest.or(Some(ChunkRest::Open));
                is_done = false;
            }
            chunk.is_moving = false;
            let is_due = chunk.is_worth_moving(due.garbage_permille);
            chunk.rest.take_if(|rest| *rest != ChunkRest::Open && (due.asked || !is_due));
        }
        if is_done {
            self.choice.most = None;
        }
    }

    /// A value of a chunk could not be read. The others of the chunk are still moved.
    pub fn note_unread(&mut self, id: ChunkId, error: &Error, moment: ChoiceTime) {
        let Some(chunk) = self.by_id.get_mut(&id).filter(|chunk| chunk.is_moving) else { return };
        if error.is_corruption() {
            chunk.rest = Some(ChunkRest::Open);
        } else if chunk.rest.is_none() {
            chunk.fail(false, moment);
            chunk.is_moving = true;
            self.choice.failure = Some(error.clone());
        }
    }

    /// A value could not be written. No job moves more of the present choice.
    pub fn note_unwritten(&mut self, error: &Error, moment: ChoiceTime) {
        self.choice.failure = Some(error.clone());
        self.choice.is_sound = false;
        let is_full = error.kind() == ErrorKind::NoSpace;
        let moving = self.by_id.values_mut().filter(|chunk| chunk.is_moving);
        moving.for_each(|chunk| chunk.fail(is_full, moment));
    }

    /// The job that should have moved the choice failed, and its work was discarded. If it found no
    /// space, the next choice is smaller.
    pub fn note_job_failed(&mut self, error: &Error, moment: ChoiceTime) {
        let chosen = self.by_id.values_mut().filter(|chunk| chunk.is_moving);
        let chosen: Vec<&mut Chunk> = chosen.filter(|chunk| chunk.live.blocks > 0).collect();
        if error.kind() == ErrorKind::NoSpace && chosen.len() > 1 {
            let bytes: u64 = chosen.iter().map(|chunk| chunk.live.bytes).sum();
            self.choice.most = Some(bytes / 2);
            self.choice.is_sound = false;
            chosen.into_iter().for_each(|chunk| chunk.is_moving = false);
        } else {
            self.note_unwritten(error, moment);
        }
    }

    /// The reason why values that are due, or that the application asked to be moved, are not
    /// moved.
    pub fn unmoved(&self) -> Option<&Error> {
        let has_failed = self.by_id.values().any(Chunk::has_failed);
        // A store without files makes no further choice.
        let lack = self.choice.lack.as_ref().filter(|_| !self.by_id.is_empty());
        lack.or(self.choice.failure.as_ref().filter(|_| has_failed))
    }

    /// The hull of the keys whose values are to be moved.
    fn moving_span(&self) -> Option<KeySpan> {
        // One that was chosen before may have been emptied, and readers still hold it.
        let moving = self.by_id.values().filter(|chunk| chunk.is_moving && chunk.live.blocks > 0);
        moving.fold(None, |hull, chunk| Some(KeySpan::hull(hull, &chunk.smallest, &chunk.largest)))
    }
}
