//! The bases of a primary; and the objects that its journal has dropped, until they are deleted.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::MutexGuard;
use siltstone::Result;

use super::ranges::read_range;
use super::{BASE_BYTES, BASE_OBJECTS, JournalState, Shipper};
use crate::format::{base_name, encode_base};

/// Longer tails of files are an object of their own, which the next base names again.
const TAIL_BYTES_MAX: u64 = 64 << 10;

impl Shipper {
    /// Puts what waits, and a base if one is due.
    ///
    /// # Errors
    /// As [`Shipper::ship_through`].
    pub(crate) fn tend(&self) -> Result<()> {
        self.ship_through(self.noted())?;
        self.put_due_base()
    }

    /// Puts a base if one is due.
    pub(super) fn put_due_base(&self) -> Result<()> {
        let state = self.state.lock();
        let objects = state.folder.number - state.base_number;
        let is_due = objects >= BASE_OBJECTS || state.bytes_since_base >= BASE_BYTES;
        if !is_due || objects == 0 || state.ended.is_some() {
            return Ok(());
        }
        match self.put_base(state) {
            // A file was deleted meanwhile. The next base is of a state without it.
            Err(error) if error.is_missing() => Ok(()),
            put => put,
        }
    }

    /// Puts the whole state as of the last stored object, with the tails of its files.
    /// Commits go on meanwhile.
    fn put_base(&self, state: MutexGuard<'_, JournalState>) -> Result<()> {
        let begun = state.folder.clone();
        let mut folder = begun.copied();
        let before = state.bytes_since_base;
        drop(state);
        let mut settled = Vec::new();
        let (fs, dir) = &self.local;
        for (name, file) in &mut folder.files {
            let mut file = file.write();
            if file.tail_at >= file.written || self.state.lock().remote_only.contains_key(name) {
                continue;
            }
            let local = fs.open_read(&dir.join(name))?;
            let range = file.tail_at..file.written;
            if range.end - range.start > TAIL_BYTES_MAX {
                let piece = self.put_log_end(name, range, &*local)?;
                settled.push((name.clone(), piece.clone()));
                file.settle_tail(piece);
            } else {
                let mut tail = vec![0; (range.end - range.start) as usize];
                read_range(name, &*local, range.start, &mut tail)?;
                file.tail = tail;
            }
        }
        // A name may be given again once its deletion is stored: the bytes may be those of the new file.
        if !self.state.lock().folder.has_all_of(&begun) {
            // The next base is of a state without it.
            return Ok(());
        }
        let number = folder.number;
        // The state after an object is the same, whoever puts it.
        self.bucket.put_new(&base_name(number), &encode_base(&folder))?;
        let mut state = self.state.lock();
        state.base_number = state.base_number.max(number);
        state.bytes_since_base = state.bytes_since_base.saturating_sub(before);
        for (name, piece) in settled {
            if let Some(file) = state.folder.file(&name) {
                file.write().settle_tail(piece);
            }
        }
        Ok(())
    }

    /// The objects that were dropped by the journal object `number` or before.
    pub(crate) fn dropped_through(&self, number: u64) -> Vec<Arc<str>> {
        let state = self.state.lock();
        let dropped = state.folder.dropped.iter().filter(|it| it.number <= number);
        dropped.map(|it| it.object.clone()).collect()
    }

    /// Forgets objects that are deleted, and writers that were fenced by `number` or before, whose objects are, too.
    pub(crate) fn forget(&self, number: u64, gone: &BTreeSet<Arc<str>>) {
        let mut state = self.state.lock();
        state.folder.dropped.retain(|it| !gone.contains(&it.object));
        state.folder.fenced.retain(|it| it.number > number);
    }

    /// The objects that the stored state names, or has dropped.
    pub(crate) fn needed(&self) -> BTreeSet<Arc<str>> {
        let state = self.state.lock();
        let mut needed = state.folder.objects();
        needed.extend(state.folder.dropped.iter().map(|it| it.object.clone()));
        needed
    }

    /// Returns `true` if `claimant` is another one, and was fenced by `number` or before: no base after that names an
    /// object of it that this journal does not know.
    pub(crate) fn is_long_fenced(&self, claimant: u128, number: u64) -> bool {
        let state = self.state.lock();
        let is_recent =
            state.folder.fenced.iter().any(|it| it.claimant == claimant && it.number > number);
        claimant != self.claimant && !is_recent
    }
}
