//! Syncs of many files at once, for the file systems of the machine.
//!
//! A device that takes several requests, and a file system that commits for all waiting threads,
//! make ten syncs at a time cost about as much as one. Called by
//! [`Fs::sync_files`](super::Fs::sync_files).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::{File, is_out_of_handles};
use crate::error::Result;

/// Syncs under way at once.
const THREADS_MAX: usize = 16;

/// Syncs all of them, also after one that fails; returns the first error. A failed sync counts before a file
/// that could not be opened for its sync, which leaves nothing in doubt.
pub(super) fn sync_files(files: &[Arc<dyn File>]) -> Result<()> {
    let next = AtomicUsize::new(0);
    let outcome = Mutex::new(Ok(()));
    std::thread::scope(|scope| {
        // From 1: the calling thread is one of them.
        for number in 1..THREADS_MAX.min(files.len()) {
            let thread = std::thread::Builder::new().name(format!("siltstone-sync-{number}"));
            // If no thread can be started, this one does the work.
            let _ = thread.spawn_scoped(scope, || sync_next(files, &next, &outcome));
        }
        sync_next(files, &next, &outcome);
    });
    outcome.into_inner()
}

fn sync_next(files: &[Arc<dyn File>], next: &AtomicUsize, outcome: &Mutex<Result<()>>) {
    while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
        // The others are synced all the same: each of them is condemned or durable by itself.
        if let Err(error) = file.sync() {
            let mut outcome = outcome.lock();
            if outcome.as_ref().map_or_else(is_out_of_handles, |()| true) {
                *outcome = Err(error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{AppendMode, FaultAction, FaultAt, FaultFs, FaultRule, Fs, MemFs, OpKind};

    #[test]
    fn every_file_is_synced_also_after_one_that_fails() {
        let faults = FaultFs::over_mem(MemFs::new());
        faults.create_dir("/db".as_ref()).unwrap();
        let files: Vec<Arc<dyn File>> = (0..100)
            .map(|number| {
                let path = format!("/db/{number}");
                let file = faults.open_append(path.as_ref(), AppendMode::IfAbsent).unwrap();
                file.append(b"bytes").unwrap();
                file
            })
            .collect();
        sync_files(&files).unwrap();
        assert!(sync_files(&[]).is_ok());
        let at = FaultAt::Nth { kind: OpKind::Sync, suffix: "/7".to_owned(), nth: 0 };
        faults.add_rule(FaultRule::sticky(at, FaultAction::Eio));
        faults.start_log();
        assert!(sync_files(&files).is_err());
        assert_eq!(faults.take_log().len(), 100);
    }

    /// A file that is closed between its appends, as one of an `AppendedFile`.
    struct Closed(FaultFs);

    impl File for Closed {
        fn append(&self, _: &[u8]) -> Result<()> {
            unreachable!("it is only synced")
        }

        fn read_at(&self, _: u64, _: &mut [u8]) -> Result<usize> {
            unreachable!("it is only synced")
        }

        fn read_at_uncached(&self, _: u64, _: &mut [u8]) -> Result<usize> {
            unreachable!("it is only synced")
        }

        fn sync(&self) -> Result<()> {
            self.0.open_append("/db/closed".as_ref(), AppendMode::Existing)?.sync()
        }

        fn len(&self) -> Result<u64> {
            unreachable!("it is only synced")
        }

        fn preallocate(&self, _: u64) -> Result<()> {
            unreachable!("it is only synced")
        }

        fn punch(&self, _: u64, _: u64) -> Result<()> {
            unreachable!("it is only synced")
        }
    }

    /// Has all operations of this kind fail.
    fn fail_all(faults: &FaultFs, kind: OpKind, action: FaultAction) {
        let at = FaultAt::Nth { kind, suffix: String::new(), nth: 0 };
        faults.add_rule(FaultRule::sticky(at, action));
    }

    #[test]
    fn a_failed_sync_counts_before_a_file_that_cannot_be_opened() {
        let faults = FaultFs::over_mem(MemFs::new());
        faults.create_dir("/db".as_ref()).unwrap();
        faults.open_append("/db/closed".as_ref(), AppendMode::IfAbsent).unwrap();
        let open = faults.open_append("/db/open".as_ref(), AppendMode::IfAbsent).unwrap();
        let closed: Arc<dyn File> = Arc::new(Closed(faults.clone()));
        for files in [[closed.clone(), open.clone()], [open, closed]] {
            fail_all(&faults, OpKind::OpenExisting, FaultAction::Emfile);
            assert!(is_out_of_handles(&sync_files(&files).unwrap_err()));
            fail_all(&faults, OpKind::Sync, FaultAction::Eio);
            assert!(sync_files(&files).unwrap_err().is_failed_sync());
            faults.heal();
        }
    }
}
