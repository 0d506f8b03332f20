//! [`Remote`]: the place of a database in an object store, and the calls that open it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lsm_core::fs::{Fs, OsFs};
use object_store::ObjectStore;
use siltstone::{Error, ErrorKind, Result};

use crate::primary::Primary;
use crate::reader::RemoteReader;
use crate::settings::{Ack, Settings};
use crate::store::{ObjectStoreCalls, Store, SystemTimer, Timer};

/// A place in an object store that holds one database, and the options of its users.
#[derive(Clone)]
#[must_use = "a remote does nothing until a primary or a reader is opened"]
pub struct Remote(Settings);

impl Remote {
    /// Uses a store of the crate `object_store`, below `prefix`.
    ///
    /// # Errors
    /// The system has no resources.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str) -> Result<Remote> {
        Ok(Remote::with_store(Arc::new(ObjectStoreCalls::new(store, prefix.into())?)))
    }

    /// Uses the store that `url` names: `file:///folder`, a folder that all machines share, or `memory:///`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a text that is no URL, or that names a store which this build does not
    /// have.
    pub fn url(url: &str) -> Result<Remote> {
        let parsed = url.parse().map_err(|error| invalid(url, &error))?;
        let (store, prefix) =
            object_store::parse_url(&parsed).map_err(|error| invalid(url, &error))?;
        Ok(Remote::with_store(Arc::new(ObjectStoreCalls::new(Arc::from(store), prefix)?)))
    }

    /// Uses a new store in the memory of this process, for tests.
    ///
    /// # Errors
    /// The system has no resources.
    pub fn memory() -> Result<Remote> {
        Remote::new(Arc::new(object_store::memory::InMemory::new()), "")
    }

    /// Uses a store of the application.
    pub fn with_store(store: Arc<dyn Store>) -> Remote {
        Remote(Settings {
            store,
            timer: Arc::new(SystemTimer::new()),
            fs: Arc::new(OsFs),
            ack: Ack::Stored,
            interval: Duration::from_millis(100),
            patience: Duration::from_secs(60),
            cache_bytes: 64 << 20,
            is_stepped: false,
        })
    }

    /// Sets the meaning of an acknowledgement. Default: [`Ack::Stored`].
    pub fn ack(mut self, ack: Ack) -> Remote {
        self.0.ack = ack;
        self
    }

    /// Sets the time within which a primary puts changes that no sync waits for. Default: 100 ms, at most 10 puts
    /// a second; `docs/remote.md` has the price. Nothing is put while nothing changes.
    pub fn interval(mut self, interval: Duration) -> Remote {
        self.0.interval = interval;
        self
    }

    /// Sets the time for which a call of the store is tried again before it fails. Default: one minute. After a
    /// failed sync the database takes no writes until the bucket answers again.
    pub fn patience(mut self, patience: Duration) -> Remote {
        self.0.patience = patience;
        self
    }

    /// Sets the memory for blocks of objects, in bytes. Default: 64 MiB for each primary and reader.
    pub fn cache_bytes(mut self, bytes: u64) -> Remote {
        self.0.cache_bytes = bytes;
        self
    }

    /// Sets the local file system of primaries. Default: the operating system's.
    pub fn fs(mut self, fs: Arc<dyn Fs>) -> Remote {
        self.0.fs = fs;
        self
    }

    /// Sets the timer of attempts, for tests.
    pub fn timer(mut self, timer: Arc<dyn Timer>) -> Remote {
        self.0.timer = timer;
        self
    }

    /// Starts no thread: [`Primary::ship`] does its work. For simulations.
    pub fn stepped(mut self) -> Remote {
        self.0.is_stepped = true;
        self
    }

    /// Claims the database for the folder `path`, which may have a database already if the bucket has none. The
    /// writer before is fenced.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] if another folder was the last one: see [`Remote::take_over`].
    /// [`ErrorKind::Locked`] if another process uses the folder. [`ErrorKind::Unsupported`] if the store does not
    /// enforce put-if-absent. [`ErrorKind::InvalidArgument`] after a power cut under [`Ack::Local`] if both the
    /// folder and the bucket lack something. Corruption of an object; those of the store and the folder.
    ///
    /// # Cost
    /// About ten puts, the newest base, the journal after it, and the bytes of logs.
    pub fn primary(&self, path: impl AsRef<Path>) -> Result<Primary> {
        Primary::open(&self.0, path.as_ref(), false)
    }

    /// Claims the database for the folder `path`, which is empty or of an earlier state, and is made as the bucket
    /// says. The writer before is fenced: it acknowledges nothing from now on.
    ///
    /// Every commit that was stored is kept. Tables are read from the bucket until
    /// [`Primary::restore`] has brought them to the local disk.
    ///
    /// # Errors
    /// As [`Remote::primary`], but for the first.
    ///
    /// # Cost
    /// As [`Remote::primary`].
    pub fn take_over(&self, path: impl AsRef<Path>) -> Result<Primary> {
        Primary::open(&self.0, path.as_ref(), true)
    }

    /// Opens the folder of the database for reading. Nothing is written.
    ///
    /// # Errors
    /// Corruption of an object; those of the store.
    ///
    /// # Cost
    /// The newest base, and the journal after it.
    pub fn reader(&self) -> Result<RemoteReader> {
        RemoteReader::open(&self.0)
    }
}

fn invalid(url: &str, error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("{url:?} names no store of this build: {error}"))
}
