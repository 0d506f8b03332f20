//! [`FilesUnderWay`]: tables in the folder of the database that no edit of the manifest names yet.
//!
//! Whoever makes a table for the database notes it here (`compaction/outputs.rs`, ingests), and takes it out
//! when it deletes the file. The database takes out what it installs, and what waits for its deletion.
//! `Db::stats` asks: a compaction of a whole level takes as much space as the level, long before its tables
//! count.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::Fs;

/// Tables in the folder of the database that no edit of the manifest names yet.
#[derive(Default)]
pub struct FilesUnderWay(Mutex<BTreeSet<PathBuf>>);

impl FilesUnderWay {
    /// Notes a file that is there.
    pub fn add(&self, path: &Path) {
        self.0.lock().insert(path.to_owned());
    }

    /// Notes that the file is listed, waits for its deletion, or is gone.
    pub fn remove(&self, path: &Path) {
        self.0.lock().remove(path);
    }

    /// The bytes that they have by now.
    ///
    /// # Cost
    /// Opens each of them.
    pub fn bytes(&self, fs: &dyn Fs) -> u64 {
        // A copy, because no file is touched under a leaf.
        let paths = self.0.lock().clone();
        let lengths =
            paths.iter().filter_map(|path| fs.open_read(path).and_then(|it| it.len()).ok());
        lengths.sum()
    }
}
