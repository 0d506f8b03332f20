//! Syncs of many files at once, for the file systems of the machine.
//!
//! A device that takes several requests, and a file system that commits for all waiting threads,
//! make ten syncs at a time cost about as much as one. Called by
//! [`Fs::sync_files`](super::Fs::sync_files).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::File;
use crate::error::Result;

/// Syncs under way at once.
const THREADS_MAX: usize = 16;

/// Syncs all of them, also after one that fails; returns the first error.
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
            if outcome.is_ok() {
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
    fn every_file_is_synced_also_behind_one_that_fails() {
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
}
