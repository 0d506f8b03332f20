//! [`Remote`]: the place of a database in an object store, and the calls that open it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lsm_core::fs::{Fs, OsFs, is_shipped_mark};
use object_store::ObjectStore;
use siltstone::Result;
use siltstone::backup::BackupEngine;

use crate::backup_fs::{BACKUPS, BackupFs};
use crate::disk_cache::CacheFolder;
use crate::inventory::{Amount, BucketReport, BucketStatus, copy, status, verify};
use crate::noted_url::noted_url;
use crate::numbered::NumberedObjects;
use crate::primary::Primary;
use crate::reader::RemoteReader;
use crate::restore::{RestoreTarget, RestoredState, restore};
use crate::settings::{Ack, Settings};
use crate::store::{ObjectStoreCalls, Store, SystemTimer, Timer};
use crate::url::store_at;

/// A place in an object store that holds one database, and the options of its users.
#[derive(Clone)]
#[must_use = "a remote does nothing until a primary or a reader is opened"]
pub struct Remote(pub(crate) Settings);

impl Remote {
    /// Uses a store of the crate `object_store`, below `prefix`.
    ///
    /// # Errors
    /// The system has no resources.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str) -> Result<Remote> {
        Ok(Remote::with_store(Arc::new(ObjectStoreCalls::new(store, prefix.into())?)))
    }

    /// Uses the store that `url` names.
    ///
    /// | URL | store | feature of this crate |
    /// | --- | --- | --- |
    /// | `file:///folder` | a folder that all machines share | - |
    /// | `memory:///` | the memory of this process | - |
    /// | `s3://bucket/prefix` | Amazon S3, and servers with its interface | `s3` |
    /// | `gs://bucket/prefix` | Google Cloud Storage | `gcs` |
    /// | `az://container/prefix` | Azure Blob Storage | `azure` |
    /// | `hdfs://namenode:port/prefix` | HDFS | `hdfs` |
    ///
    /// Credentials and endpoints are those of the provider's usual variables in the environment, such as
    /// `AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL` and `AWS_ALLOW_HTTP`, `GOOGLE_SERVICE_ACCOUNT` or
    /// `AZURE_STORAGE_ACCOUNT_NAME`; HDFS reads the files of `HADOOP_CONF_DIR`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](siltstone::ErrorKind::InvalidArgument) for a text that is no URL, a store that
    /// this build does not have (the message names the feature), or a configuration that lacks something. Also for a
    /// password, a query or a fragment in the URL: the message does not show such a URL.
    pub fn url(url: &str) -> Result<Remote> {
        Remote::url_with(url, [] as [(&str, &str); 0])
    }

    /// As [`Remote::url`], with options of the client, which replace those of the environment. Their names are those
    /// of the variables in any case (`aws_endpoint_url`), and for HDFS those of Hadoop's configuration.
    ///
    /// # Errors
    /// As [`Remote::url`]; for an option that the store does not have.
    pub fn url_with(
        url: &str,
        options: impl IntoIterator<Item = (impl Into<String>, impl Into<String>)>,
    ) -> Result<Remote> {
        let options = options.into_iter().map(|(name, value)| (name.into(), value.into()));
        let (store, prefix) = store_at(url, &options.collect::<Vec<_>>())?;
        let mut remote = Remote::with_store(Arc::new(ObjectStoreCalls::new(store, prefix)?));
        remote.0.url = Some(url.to_owned());
        Ok(remote)
    }

    /// Returns the URL by which the last primary of the folder `path` was opened; `None` if it was opened by a store,
    /// or if the folder is not shipped.
    ///
    /// # Errors
    /// Corruption for a file that holds no text; those of the folder. [`ErrorKind::InvalidArgument`](siltstone::ErrorKind::InvalidArgument)
    /// for an encrypted folder: see [`Remote::url_of_folder_on`].
    pub fn url_of_folder(path: impl AsRef<Path>) -> Result<Option<String>> {
        noted_url(&OsFs, path.as_ref())
    }

    /// As [`Remote::url_of_folder`], on the file system `fs`: that of [`Remote::fs`].
    ///
    /// # Errors
    /// As [`Remote::url_of_folder`].
    pub fn url_of_folder_on(fs: &dyn Fs, path: impl AsRef<Path>) -> Result<Option<String>> {
        noted_url(fs, path.as_ref())
    }

    /// Returns `true` if the folder `path` is that of a primary, or a takeover has begun to make it. [`Db::open`](siltstone::Db::open)
    /// refuses such a folder, and a read-only open does not.
    ///
    /// # Errors
    /// Those of the folder.
    pub fn is_shipped(path: impl AsRef<Path>) -> Result<bool> {
        Ok(OsFs.list_names(path.as_ref(), "")?.iter().any(|name| is_shipped_mark(name)))
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
            seal: None,
            url: None,
            timer: Arc::new(SystemTimer::new()),
            fs: Arc::new(OsFs),
            ack: Ack::Stored,
            interval: Duration::from_millis(100),
            patience: Duration::from_secs(60),
            backlog_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            disk: None,
            is_stepped: false,
            restore_rate: u64::MAX,
            retention: Duration::from_secs(24 * 3600),
            grace: Duration::from_secs(3600),
            lease: Some(Duration::from_secs(60)),
            read_lease: Duration::ZERO,
        })
    }

    /// Returns the store, for an application that wraps its calls and hands the wrapper to [`Remote::with_store`].
    pub fn store(&self) -> Arc<dyn Store> {
        self.0.store.clone()
    }

    /// Replaces the store by one that wraps it. The URL stays, see [`Remote::url_of_folder`].
    pub fn wrap_store(mut self, wrap: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>) -> Remote {
        self.0.store = wrap(self.0.store);
        self
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
    /// failed sync the database takes no writes until the bucket answers again. With `Duration::MAX` a write at
    /// [`Durability::Sync`](siltstone::Durability::Sync) waits for the bucket as long as that takes; so does a close of
    /// the database. The drop of a [`Primary`] ends all waits after the patience, at most a minute.
    pub fn patience(mut self, patience: Duration) -> Remote {
        self.0.patience = patience;
        self
    }

    /// Sets the bytes of changes that a primary holds in memory while the bucket does not have them. Default: 64 MiB.
    /// An append beyond that waits until all of them are stored, for [`Remote::patience`], and fails then. Changes of
    /// large values count with their bytes, tables do not count. With 0 each append waits for its put.
    pub fn backlog_bytes(mut self, bytes: u64) -> Remote {
        self.0.backlog_bytes = bytes;
        self
    }

    /// Sets the time for which a primary keeps the history in the bucket: what a restore reaches, and what readers
    /// without a lease may be late. Default: 24 hours. It is the time by the clock of the store; what the newest
    /// state needs is kept whatever that clock says. `Duration::MAX` deletes nothing.
    pub fn retention(mut self, retention: Duration) -> Remote {
        self.0.retention = retention;
        self
    }

    /// Sets the time between the note in the bucket that objects are about to be deleted, and the deletion. Default:
    /// one hour. A reader without a lease that has begun to read has so much time to end.
    pub fn grace(mut self, grace: Duration) -> Remote {
        self.0.grace = grace;
        self
    }

    /// Sets the time after which a reader, or a restore, renews its lease. The primary deletes nothing that a lease
    /// needs; a lease expires after five times this without a renewal, by the clock of the store and by that of the
    /// primary, which counts from the round of deletion that has seen the last one. Default: one minute, 0.2 $ a month.
    /// With `None` no lease is put, and a reader needs no right to write: then only [`Remote::retention`] protects what
    /// it reads.
    pub fn lease(mut self, interval: Option<Duration>) -> Remote {
        self.0.lease = interval;
        self
    }

    /// Sets the read lease of a primary: the time for which claimants wait, after their claim, before they acknowledge
    /// anything. So a primary that has put or seen the end of the journal within this time knows that its state is the
    /// newest one, and [`Primary::holds_read_lease`] says so without a call of the store. Default: none, at most one minute.
    ///
    /// The claim names the lease, so a takeover, and an open of the own folder, waits for that of the primary before it.
    /// Programs without read leases refuse such a bucket by its format version. Under [`Ack::Local`] there is none.
    ///
    /// It is sound if the clocks of two machines run equally fast within 6 %, and go on while a machine is suspended. A
    /// virtual machine that is paused, and whose clocks stand still meanwhile, breaks the second: leave the lease out there.
    pub fn read_lease(mut self, time: Duration) -> Remote {
        self.0.read_lease = time;
        self
    }

    /// Sets the bytes a second of the restore in the background: the tables and chunk files that only the bucket has
    /// after a takeover come to the local disk, and are read from the bucket until then. Default: `u64::MAX`, no
    /// limit. With 0 nothing is restored before [`Primary::restore`]. [`Status::restore`](crate::Status::restore)
    /// shows the progress. It holds up no read, leaves 256 MiB of the disk free, and goes on after an interruption.
    pub fn restore_rate(mut self, bytes: u64) -> Remote {
        self.0.restore_rate = bytes;
        self
    }

    /// Sets the memory for blocks of objects, in bytes. Default: 64 MiB for each primary and reader.
    pub fn cache_bytes(mut self, bytes: u64) -> Remote {
        self.0.cache_bytes = bytes;
        self
    }

    /// Gives readers a cache in the folder `dir`, which is made, of at most `bytes` bytes of files. Default: none.
    ///
    /// It keeps blocks of 64 KiB of tables, chunk files and logs, and outlives the process. Each has a checksum: what does
    /// not fit is got from the bucket again, and counted in [`CacheFigures`](crate::CacheFigures). The readers of a remote
    /// and of its clones share it. A reader of another process that names the same folder while it is in use has no
    /// cache on disk. A process that is killed loses the blocks of its last 4 MiB; it leaves no wrong block.
    pub fn cache_dir(mut self, dir: impl Into<PathBuf>, bytes: u64) -> Remote {
        self.0.disk = Some(Arc::new(CacheFolder::new(dir.into(), bytes)));
        self
    }

    /// Lets a full cache on disk take each block, for the measurement of the rule that it takes one at its second request.
    /// Called after [`Remote::cache_dir`].
    #[cfg(feature = "internals")]
    #[doc(hidden)]
    pub fn cache_admits_all(mut self) -> Remote {
        self.0.disk = self.0.disk.map(|folder| Arc::new(folder.admitting_all()));
        self
    }

    /// Sets the local file system of primaries, and of the cache on disk. Default: the operating system's.
    pub fn fs(mut self, fs: Arc<dyn Fs>) -> Remote {
        self.0.fs = fs;
        self
    }

    /// Sets the timer of attempts, for tests.
    pub fn timer(mut self, timer: Arc<dyn Timer>) -> Remote {
        self.0.timer = timer;
        self
    }

    /// Starts no thread: [`Primary::ship`] does its work, with one piece of a restore. For simulations.
    pub fn stepped(mut self) -> Remote {
        self.0.is_stepped = true;
        self
    }

    /// Claims the database for the folder `path`, which may have a database already if the bucket has none. The
    /// writer before is fenced. Tables and chunk files are in the bucket when this returns; what only the log has comes
    /// with the open of the database, which decides what of it counts.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](siltstone::ErrorKind::Fenced) if another folder was the last one: see [`Remote::take_over`].
    /// [`ErrorKind::Locked`](siltstone::ErrorKind::Locked) if another process uses the folder. [`ErrorKind::Unsupported`](siltstone::ErrorKind::Unsupported) if the store does not
    /// enforce put-if-absent. [`ErrorKind::InvalidArgument`](siltstone::ErrorKind::InvalidArgument) after a power cut under [`Ack::Local`] if both the
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
    /// Every commit that was stored is kept. Tables are read from the bucket until they are on the local disk, where a
    /// thread brings them: see [`Remote::restore_rate`].
    ///
    /// # Errors
    /// As [`Remote::primary`], where `Fenced` is that of another claim of an empty bucket at the same time;
    /// [`ErrorKind::InvalidArgument`](siltstone::ErrorKind::InvalidArgument) also if a folder has claimed the bucket, and its database was never
    /// opened since: that folder may have the only copy.
    ///
    /// # Cost
    /// As [`Remote::primary`].
    pub fn take_over(&self, path: impl AsRef<Path>) -> Result<Primary> {
        Primary::open(&self.0, path.as_ref(), true)
    }

    /// Opens the folder of the database for reading. Nothing but a lease is written: see [`Remote::lease`].
    ///
    /// # Errors
    /// Corruption of an object; those of the store, also if it takes no lease. The folder of [`Remote::cache_dir`]
    /// cannot be made, listed or locked.
    ///
    /// # Cost
    /// The newest base, and the journal after it; a put for the lease.
    pub fn reader(&self) -> Result<RemoteReader> {
        RemoteReader::open(&self.0)
    }

    /// Restores the database as of a moment into the folder `path`, which is empty or does not exist. The folder is
    /// an ordinary database that is not shipped. The bucket stays as it is.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](siltstone::ErrorKind::InvalidArgument) for a folder that is not empty, for a bucket without a database, and for a moment that
    /// the bucket does not have: the message names the oldest and the newest one. Corruption if an object is damaged, or if the restored
    /// folder does not verify. Those of the store and the folder.
    ///
    /// # Cost
    /// Reads the state once from the bucket, and once from the disk. [`RestoreTarget::Seq`] opens a state for each halving of
    /// the history.
    pub fn restore(&self, path: impl AsRef<Path>, at: RestoreTarget) -> Result<RestoredState> {
        restore(&self.0, path.as_ref(), at)
    }

    /// Returns what is in the bucket, by the reason why it is there.
    ///
    /// # Errors
    /// Corruption of an object; those of the store.
    ///
    /// # Cost
    /// The newest base, the journal after it, and a list of all objects: one call for 1,000 of them, and at least one
    /// for each file of the database.
    pub fn status(&self) -> Result<BucketStatus> {
        status(&self.0)
    }

    /// Reads the whole bucket, and reports all that is wrong: bases and journal objects that are damaged or missing,
    /// tables and parts that any state within the history needs and that are missing or too short, and damage of the
    /// newest state's files.
    ///
    /// # Errors
    /// Those of the store. Damage is a finding, and no error.
    ///
    /// # Cost
    /// Reads the journal, the bases and the newest state, and lists the tables and parts.
    pub fn verify(&self) -> Result<BucketReport> {
        verify(&self.0)
    }

    /// Returns the backups in the bucket, of a database that is not shipped to it: they are objects below `backups/`.
    /// Nothing is connected to before the first call. Restored databases are on the file system of [`Remote::fs`].
    ///
    /// The calls are those of a folder of backups, and so are the guarantees. There are no locks: no call returns
    /// `Locked`. A backup during which a purge deletes what it shares copies that again.
    ///
    /// # Errors
    /// Its calls return those of the store, too. [`ErrorKind::Unsupported`](siltstone::ErrorKind::Unsupported) for the first backup or
    /// purge if the store does not enforce put-if-absent. If a put of a record fails, it is unknown whether the backup was added.
    ///
    /// # Cost
    /// A backup: a GET for each record, three lists, and a PUT for each 8 MiB that the bucket does not have. A restore: a GET for each
    /// shared file. At most 4 calls at a time, see [`BackupEngine::threads`].
    ///
    /// # Examples
    /// ```
    /// use remote::Remote;
    /// use siltstone::Db;
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path();
    /// let db = Db::open(path.join("data"))?;
    /// db.partition("users")?.put("alice", "admin")?;
    /// let backups = Remote::memory()?.backups(); // or Remote::url("s3://bucket/backups-of-users")?
    /// let backup = backups.create_backup(&db)?;
    /// backups.restore(backup.backup_id, path.join("restored"))?;
    /// backups.purge_old(7)?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn backups(&self) -> BackupEngine {
        let fs = BackupFs::new(self.0.bucket(), self.0.is_stepped);
        let threads = if self.0.is_stepped { 1 } else { 4 };
        let engine = BackupEngine::open(BACKUPS).fs(Arc::new(fs)).threads(threads);
        engine.database_fs(self.0.fs.clone())
    }

    /// Returns the numbered objects of the folder `folder`, for records that are put once. No database uses the folders
    /// whose names begin with `shard`.
    pub fn numbered(&self, folder: &str) -> NumberedObjects {
        NumberedObjects::new(self.0.bucket(), folder)
    }

    /// Copies the newest state into the bucket of `other`, which is empty. Readers open it there, and a folder by
    /// [`Remote::take_over`]: that of the writer here is refused. The history is not copied. Returns what was put.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](siltstone::ErrorKind::InvalidArgument) if the other bucket has a database, or this one has none. Those of both stores.
    /// The objects that were copied until then stay, and another attempt puts them once more.
    ///
    /// # Cost
    /// A GET and a put for each object of the newest state, one after the other; above 16 MiB, for each 8 MiB of it.
    pub fn copy_to(&self, other: &Remote) -> Result<Amount> {
        copy(&self.0, &other.0)
    }
}
