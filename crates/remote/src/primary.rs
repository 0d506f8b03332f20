//! [`Primary`]: a claimed database, from the claim to the drop, with the thread that puts what no sync waits for.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use lsm_core::fs::Fs;
use parking_lot::{Condvar, Mutex};
use siltstone::{Builder, Db, Result};

use crate::fs::ShippingFs;
use crate::opening::{ClaimedFolder, claim};
use crate::settings::Settings;
use crate::shipper::{Shipper, Status};

/// The right to write a database of a bucket, for one folder. The database is opened by [`Primary::builder`], and
/// closed before this is dropped: the thread that ships ends with this.
pub struct Primary {
    fs: ShippingFs,
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
    stop: Arc<StopSignal>,
}

#[derive(Default)]
struct StopSignal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Primary {
    pub(crate) fn open(remote: &Settings, path: &Path, takes_over: bool) -> Result<Primary> {
        let path = std::path::absolute(path)?;
        let ClaimedFolder { shipper, cache, lock } = claim(remote, &path, takes_over)?;
        let fs = ShippingFs {
            inner: remote.fs.clone(),
            root: path.clone(),
            shipper,
            cache,
            restore_turn: Arc::default(),
            _lock: lock.into(),
        };
        let stop = Arc::<StopSignal>::default();
        let mut thread = None;
        if !remote.is_stepped {
            let shipper = Arc::downgrade(&fs.shipper);
            let stop = stop.clone();
            let interval = remote.interval;
            let named = std::thread::Builder::new().name("siltstone-ship".to_owned());
            thread = Some(named.spawn(move || tend(&shipper, &stop, interval))?);
        }
        Ok(Primary { fs, path, thread, stop })
    }

    /// Returns options of the database. It may be opened and closed several times.
    pub fn builder(&self) -> Builder {
        Db::builder(&self.path).fs(self.fs())
    }

    /// Returns the file system that ships the folder.
    pub fn fs(&self) -> Arc<dyn Fs> {
        Arc::new(self.fs.clone())
    }

    /// Puts all changes that wait, and a base if one is due. The thread does that every
    /// [`Remote::interval`](crate::Remote::interval).
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](siltstone::ErrorKind::Fenced) if another writer has the database; those of the store.
    pub fn ship(&self) -> Result<()> {
        self.fs.shipper.tend()
    }

    /// Brings the tables and chunk files to the local disk that only the bucket has. Open ones are read from the
    /// bucket until they are opened again.
    ///
    /// # Errors
    /// Those of the store and the folder. Files before the failed one are here.
    ///
    /// # Cost
    /// Reads each file once. [`Status::remote_files`] shows the rest.
    pub fn restore(&self) -> Result<()> {
        self.fs.shipper.remote_only().iter().try_for_each(|name| self.fs.restore(name))
    }

    /// Returns the place in the journal, and what waits.
    pub fn status(&self) -> Status {
        self.fs.shipper.status()
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        *self.stop.is_set.lock() = true;
        self.stop.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // Its last work has put what waited. A panic of it was reported by the thread.
            let _ = thread.join();
        }
    }
}

/// Puts what waits every `interval`, and once more at the stop.
fn tend(shipper: &Weak<Shipper>, stop: &StopSignal, interval: Duration) {
    loop {
        let mut is_set = stop.is_set.lock();
        if !*is_set {
            stop.changed.wait_for(&mut is_set, interval);
        }
        let is_last = *is_set;
        drop(is_set);
        let Some(shipper) = shipper.upgrade() else { return };
        // An error is that of the next sync, too; what is not stored waits.
        let _ = shipper.tend();
        if is_last {
            return;
        }
    }
}
