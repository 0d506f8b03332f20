//! Values that jobs move: to another chunk file, or back into the tree.
//!
//! Called by the engine for each handle in the input of a job.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lsm_core::error::{Error, Result};
use lsm_core::hooks::{Entry, PendingHandle, Relocation};
use lsm_core::limits::FORMAT_VALUE_BYTES_MAX;

use crate::block::{Block, ByteSource, Parallelism};
use crate::choosing::ChoiceTime;
use crate::format::Handle;
use crate::shared::Shared;
use crate::writing::{BlockWriter, FinishedBlock};

/// After a value of a table could not be written to a chunk file, jobs move no others there for so long.
const RELOCATION_REST: Duration = Duration::from_secs(1);

/// The reason for which a value is not moved.
enum Unmoved {
    /// Its file could not be opened.
    Unopened(Error),
    /// It could not be read, or is damaged.
    Unread(Error),
    /// Its new place could not be written.
    Unwritten(Error),
}

impl Shared {
    /// Waits as the limit on moving requires.
    fn keep_pace(&self, bytes: u64) {
        let clock = &self.context.clock;
        let now = clock.now();
        let mut state = self.state.lock();
        state.pace.take(bytes, now);
        // A new limit is stored at once, and takes effect for the next piece.
        let debt = state.pace.debt();
        drop(state);
        while debt.park(|| clock.now()) {}
    }

    /// Free bytes of the disk. If the file system does not report them, they are unlimited.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.context.fs.free_bytes(&self.context.dir).unwrap_or(u64::MAX)
    }

    /// The free space, and the time.
    pub(crate) fn moment(&self) -> ChoiceTime {
        let free = self.free_bytes();
        ChoiceTime { free, now: self.context.clock.now() }
    }

    /// The writer of what is moved, with room for a block of so many bytes.
    fn mover(self: &Arc<Self>, key: &[u8], from: &Handle) -> Result<BlockWriter> {
        let chunk_bytes = self.options().chunk_bytes;
        // Taken out: two jobs that move at once would mix their blocks in one file. The second gets
        // another writer.
        let mover = self.state.lock().mover.take();
        let writer = match mover {
            Some(writer) if writer.end < chunk_bytes => writer,
            Some(full) => {
                self.seal(&mut self.state.lock(), full.chunk);
                self.new_writer()?
            }
            None => self.new_writer()?,
        };
        let log2 = from.sub_block_log2;
        // With the old time, size and form. A move is no write of the user, and the root hash in
        // the handle covers the stored form of the sub-blocks.
        let mut to = BlockWriter::new(self, writer, key, log2, from.stored_us, from.form);
        // Before a byte is copied: half a value would take the last space until its file is moved.
        to.reserve(from.block_bytes())?;
        Ok(to)
    }

    /// Copies a value to the end of another chunk in its stored form, verified on its way.
    fn relocate(self: &Arc<Self>, key: &[u8], block: &Block) -> Result<PendingHandle, Unmoved> {
        let from = block.handle;
        // Verified against the handle before a byte is copied, and each piece against these: a new
        // chunk never contains damage under fresh checksums.
        let table = block.sub_blocks().map_err(Unmoved::Unread)?;
        let mut to = self.mover(key, &from).map_err(Unmoved::Unwritten)?;
        let mut stored = Vec::new();
        for index in 0..from.sub_block_count() {
            let place = table.place(&from, index);
            stored.resize(place.stored_len, 0);
            let read = block.read_stored(&place, from.table_offset(), &mut stored);
            read.map_err(Unmoved::Unread)?;
            to.push_stored(&stored, place.len).map_err(Unmoved::Unwritten)?;
            // Without a lock, because this may wait.
            self.keep_pace(place.stored_len as u64);
        }
        let FinishedBlock { pending, writer, stored_len } =
            to.finish().map_err(Unmoved::Unwritten)?;
        self.counters.bytes_moved.fetch_add(stored_len, Ordering::Relaxed);
        let mut state = self.state.lock();
        // Another job may have returned its writer meanwhile. This one then takes puts.
        match state.mover {
            None if !state.syncs.is_condemned(writer.chunk) => state.mover = Some(writer),
            _ => self.keep_or_seal(&mut state, writer),
        }
        Ok(pending)
    }

    /// Moves the value of a handle if its chunk should be emptied or is condemned, or if it is
    /// below the threshold.
    fn move_handle(self: &Arc<Self>, entry: Entry<'_>) -> Result<Relocation, Unmoved> {
        let handle = self.handle(entry.value).map_err(Unmoved::Unread)?;
        let state = self.state.lock();
        let is_small = handle.len < state.options.threshold_bytes;
        let is_moving = state.syncs.is_condemned(handle.chunk)
            || state.chunks.by_id.get(&handle.chunk).is_some_and(|chunk| chunk.is_moving);
        drop(state);
        // A longer value fits into no table, whatever the threshold says.
        let goes_back = is_small && handle.len <= FORMAT_VALUE_BYTES_MAX;
        // Most values stay: no file is opened for them.
        if !goes_back && !is_moving {
            return Ok(Relocation::Stay);
        }
        let block = self.block(entry.value, ByteSource::Cached).map_err(Unmoved::Unopened)?;
        if goes_back {
            let mut value = vec![0; handle.len as usize];
            let read = block.read_whole(&mut value, Parallelism::Threads(1));
            read.map_err(Unmoved::Unread)?;
            return Ok(Relocation::Inline(value));
        }
        Ok(Relocation::Moved(self.relocate(entry.key, &block)?))
    }

    /// The place of a handle's value after a job: the old place if the value cannot be moved now.
    pub(crate) fn relocate_handle(self: &Arc<Self>, entry: Entry<'_>) -> Relocation {
        // A value that stays costs its space, and readers see no difference. A failed job would
        // keep the tables around it from being merged.
        self.move_handle(entry).unwrap_or_else(|unmoved| {
            let moment = self.moment();
            let mut state = self.state.lock();
            match unmoved {
                Unmoved::Unopened(error) | Unmoved::Unread(error) => {
                    if let Ok(handle) = Handle::decode(entry.value) {
                        state.chunks.note_unread(handle.chunk, &error, moment);
                    }
                }
                Unmoved::Unwritten(error) => state.chunks.note_unwritten(&error, moment),
            }
            Relocation::Stay
        })
    }

    /// Moves a value that is in doubt to another file.
    ///
    /// # Errors
    /// Those of the new file, or of opening the old one. A value that cannot be read stays where it
    /// is, as damage of its key.
    pub(crate) fn rescue_handle(self: &Arc<Self>, entry: Entry<'_>) -> Result<Relocation> {
        match self.move_handle(entry) {
            Ok(relocated) => Ok(relocated),
            Err(Unmoved::Unread(_)) => Ok(Relocation::Stay),
            Err(Unmoved::Unopened(error)) if error.is_corruption() => Ok(Relocation::Stay),
            Err(Unmoved::Unopened(error) | Unmoved::Unwritten(error)) => Err(error),
        }
    }

    /// Notes that a value of a table could not be written: jobs move no others for some time.
    pub(crate) fn rest_from_relocating(&self) {
        self.state.lock().relocates_from = self.context.clock.now() + RELOCATION_REST;
    }

    /// Returns `true` if a value of a table could not be written a moment ago.
    pub(crate) fn rests_from_relocating(&self) -> bool {
        self.context.clock.now() < self.state.lock().relocates_from
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicU64;

    use lsm_core::clock::{Clock, Pace};
    use lsm_core::fs::MemFs;

    use super::*;
    use crate::options::LargeValueOptions;
    use crate::tests::context;

    /// A second passes at each look, and the limit is lifted at the third.
    #[derive(Default)]
    struct LimitLifter {
        looks: AtomicU64,
        store: OnceLock<Arc<Shared>>,
    }

    impl Clock for LimitLifter {
        fn now(&self) -> Duration {
            let looks = self.looks.fetch_add(1, Ordering::Relaxed);
            if let (2, Some(store)) = (looks, self.store.get()) {
                store.state.lock().pace = Pace::new(0);
            }
            Duration::from_secs(looks)
        }
    }

    #[test]
    fn a_limit_that_changes_while_somebody_waits_for_it_stays_changed() {
        let clock = Arc::new(LimitLifter::default());
        let fs = MemFs::new();
        let context = context(&fs, clock.clone());
        let options = LargeValueOptions::new().move_bytes_per_second(1000);
        let store = Arc::new(Shared::new(context, options).unwrap());
        clock.store.set(store.clone()).ok().unwrap();
        store.keep_pace(5000);
        let looks = clock.looks.load(Ordering::Relaxed);
        assert!(looks > 4, "{looks} looks: it waited");
        store.keep_pace(1 << 30);
        let looks = clock.looks.load(Ordering::Relaxed) - looks;
        assert_eq!(looks, 2, "one to take, and one that finds nothing to wait for");
    }
}
