//! The context of a store in the tests of this crate, and the tests of its formats.

mod golden;

use std::path::Path;
use std::sync::Arc;

use lsm_core::clock::Clock;
use lsm_core::fs::{Fs, MemFs, OpenFiles};
use lsm_core::hooks::{EventQueue, StoreContext, StoreWishes};
use lsm_core::types::{DbId, Epoch, FileNo, FileNumbers, PartitionId};

/// The context of a store in the new folder `/db`.
pub fn context(fs: &MemFs, clock: Arc<dyn Clock>) -> StoreContext {
    context_over(Arc::new(fs.clone()), clock)
}

/// As [`context`], over any file system.
pub fn context_over(fs: Arc<dyn Fs>, clock: Arc<dyn Clock>) -> StoreContext {
    fs.create_dir(Path::new("/db")).unwrap();
    StoreContext {
        partition: PartitionId(7),
        partition_name: "p".into(),
        db_id: DbId(0x0123_4567_89ab_cdef_0011_2233_4455_6677),
        epoch: Epoch(3),
        dir: "/db".into(),
        files: OpenFiles::new(fs.clone(), 64),
        fs,
        clock,
        numbers: Arc::new(FileNumbers::new(FileNo(0x2d))),
        is_read_only: false,
        events: EventQueue::default(),
        wishes: StoreWishes::default(),
        is_following: false,
        other: None,
    }
}
