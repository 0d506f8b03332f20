//! [`Place`]: the database that a server serves, and the ways to open it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use remote::Remote;
use siltstone::clock::Clock;
use siltstone::fs::Fs;
use siltstone::secondary::Secondary;
use siltstone::{Builder, Db, Result};

use crate::storage_calls::{CountedCalls, StorageCalls};

/// A database that primary and readers share: a folder of this machine, or a bucket.
#[derive(Clone)]
pub struct Place(Kind);

#[derive(Clone)]
enum Kind {
    Folder { path: PathBuf, fs: Option<Arc<dyn Fs>>, clock: Option<Arc<dyn Clock>> },
    Bucket { remote: Remote, folder: Option<PathBuf>, calls: Arc<StorageCalls> },
}

impl Place {
    /// A folder, whose readers are processes on the same machine.
    pub fn folder(path: impl AsRef<Path>) -> Place {
        Place(Kind::Folder { path: path.as_ref().to_owned(), fs: None, clock: None })
    }

    /// The same, on another file system and with another clock.
    pub fn folder_on(path: impl AsRef<Path>, fs: Arc<dyn Fs>, clock: Arc<dyn Clock>) -> Place {
        Place(Kind::Folder { path: path.as_ref().to_owned(), fs: Some(fs), clock: Some(clock) })
    }

    /// A bucket. `folder` is the folder of a primary: a reader needs none until it is promoted.
    pub fn bucket(remote: Remote, folder: Option<PathBuf>) -> Place {
        let calls = Arc::<StorageCalls>::default();
        let counted = calls.clone();
        let remote =
            remote.wrap_store(|inner| Arc::new(CountedCalls { inner, calls: counted }) as _);
        Place(Kind::Bucket { remote, folder, calls })
    }

    pub(crate) fn is_bucket(&self) -> bool {
        matches!(self.0, Kind::Bucket { .. })
    }

    /// The requests to the bucket; `None` for a folder.
    pub(crate) fn storage_calls(&self) -> Option<&StorageCalls> {
        match &self.0 {
            Kind::Folder { .. } => None,
            Kind::Bucket { calls, .. } => Some(calls),
        }
    }

    fn configured(
        builder: Builder,
        fs: Option<&Arc<dyn Fs>>,
        clock: Option<&Arc<dyn Clock>>,
    ) -> Builder {
        let builder = fs.cloned().into_iter().fold(builder, Builder::fs);
        clock.cloned().into_iter().fold(builder, Builder::clock)
    }

    /// Opens it for writing.
    pub(crate) fn primary(&self) -> Result<OpenPrimary> {
        match &self.0 {
            Kind::Folder { path, fs, clock } => {
                let builder = Place::configured(Db::builder(path), fs.as_ref(), clock.as_ref());
                Ok(OpenPrimary { db: builder.open()?, shipping: None })
            }
            Kind::Bucket { remote, folder, .. } => {
                let shipping = remote.primary(needed(folder.as_deref())?)?;
                Ok(OpenPrimary { db: shipping.builder().open()?, shipping: Some(shipping) })
            }
        }
    }

    /// Opens it for reading, while another process may write.
    pub(crate) fn reader(&self) -> Result<Secondary> {
        match &self.0 {
            Kind::Folder { path, fs, clock } => {
                let builder = fs
                    .clone()
                    .into_iter()
                    .fold(Db::secondary_builder(path), siltstone::secondary::Builder::fs);
                clock.clone().into_iter().fold(builder, siltstone::secondary::Builder::clock).open()
            }
            Kind::Bucket { remote, .. } => remote.reader()?.secondary().open(),
        }
    }

    /// Takes it over from the primary that `secondary` follows.
    pub(crate) fn promote(&self, secondary: &Secondary) -> Result<OpenPrimary> {
        match &self.0 {
            Kind::Folder { .. } => {
                Ok(OpenPrimary { db: Db::promotion(secondary).open()?, shipping: None })
            }
            Kind::Bucket { remote, folder, .. } => {
                let shipping = remote.take_over(needed(folder.as_deref())?)?;
                Ok(OpenPrimary { db: shipping.builder().open()?, shipping: Some(shipping) })
            }
        }
    }
}

fn needed(folder: Option<&Path>) -> Result<&Path> {
    folder.ok_or_else(|| {
        let message = "a primary of a bucket needs a folder on this machine";
        siltstone::Error::new(siltstone::ErrorKind::InvalidArgument, message)
    })
}

/// A database that is open for writing, and the right to ship it.
pub(crate) struct OpenPrimary {
    pub(crate) db: Db,
    /// Dropped after the database, which it ships.
    pub(crate) shipping: Option<remote::Primary>,
}
