//! [`Primary`]: a claimed database, from the claim to the drop, with the threads that put what no sync waits for, and
//! that delete what nothing needs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lsm_core::fs::Fs;
use siltstone::metahive::Replica;
use siltstone::{Builder, Db, ErrorKind, Result, SeqNo};

use crate::background::BackgroundThread;
use crate::collect::Collector;
use crate::fs::ShippingFs;
use crate::noted_url::note_url;
use crate::opening::{ClaimedFolder, claim};
use crate::replica::BucketReplica;
use crate::restorer::{FileRestorer, clear_partials};
use crate::settings::Settings;
use crate::shipper::Status;
use crate::takeover::{LOOK_INTERVAL, PauseWatch};

/// The right to write a database of a bucket, for one folder. The database is opened by [`Primary::builder`], and
/// closed before this is dropped: the thread that ships ends with this.
pub struct Primary {
    fs: ShippingFs,
    path: PathBuf,
    collector: Arc<Collector>,
    settings: Box<Settings>,
    /// They end before the lock of the folder is free.
    threads: Vec<BackgroundThread>,
}

impl Drop for Primary {
    fn drop(&mut self) {
        // The threads end after this, and the store may be away for good.
        self.fs.shipper.end_patience();
        self.threads.clear();
        self.fs.shipper.close_notices();
        self.fs.shipper.record_end();
    }
}

/// Rounds of deletion in each retention.
const ROUNDS: u32 = 24;
/// The time between two rounds.
const ROUND_MIN: Duration = Duration::from_secs(1);
const ROUND_MAX: Duration = Duration::from_secs(3600);

impl Primary {
    pub(crate) fn open(remote: &Settings, path: &Path, takes_over: bool) -> Result<Primary> {
        let path = std::path::absolute(path)?;
        let ClaimedFolder { shipper, cache, lock } = claim(remote, &path, takes_over)?;
        note_url(&*remote.fs, &path, remote.url.as_deref())?;
        clear_partials(&*remote.fs, &path)?;
        shipper.await_credentials();
        let restorer = Arc::new(FileRestorer::new(remote, &shipper));
        let fs = ShippingFs {
            inner: remote.fs.clone(),
            root: path.clone(),
            shipper,
            cache,
            restorer,
            backlog_bytes: remote.backlog_bytes,
            _lock: lock.into(),
        };
        let collector = Arc::new(Collector::new(remote, fs.shipper.clone()));
        let mut threads = Vec::new();
        if !remote.is_stepped {
            let every = (remote.retention / ROUNDS).clamp(ROUND_MIN, ROUND_MAX);
            let work = collector.clone();
            threads.push(BackgroundThread::start("siltstone-collect", every, false, move || {
                // What was not deleted is so by a later round; a fence is found by the next put, too.
                let _ = work.collect();
            })?);
            let mut watch = PauseWatch::new(fs.shipper.other_bucket(), fs.shipper.clone());
            threads.push(BackgroundThread::start(
                "siltstone-pause",
                LOOK_INTERVAL,
                false,
                move || {
                    // A request that cannot be read gives no pause. The next look reads it again.
                    let _ = watch.look();
                },
            )?);
            if fs.restorer.is_wanted() {
                let work = fs.clone();
                threads.push(BackgroundThread::start_paced("siltstone-restore", move || {
                    work.restore_step()
                })?);
            }
            if let Some(every) = fs.shipper.lease_interval() {
                let shipper = fs.shipper.clone();
                let name = "siltstone-read-lease";
                threads.push(BackgroundThread::start(name, every, false, move || {
                    // The next read that needs the lease looks again.
                    let _ = shipper.renew_if_used();
                })?);
            }
            let shipper = fs.shipper.clone();
            threads.push(BackgroundThread::start(
                "siltstone-ship",
                remote.interval,
                true,
                move || {
                    // An error is that of the next sync, too; what is not stored waits.
                    let _ = shipper.tend();
                },
            )?);
        }
        Ok(Primary { fs, path, collector, settings: Box::new(remote.clone()), threads })
    }

    /// Returns options of the database. It may be opened and closed several times.
    pub fn builder(&self) -> Builder {
        Db::builder(&self.path).fs(self.fs())
    }

    /// Returns the file system that ships the folder.
    pub fn fs(&self) -> Arc<dyn Fs> {
        Arc::new(self.fs.clone())
    }

    /// Returns the bucket as a replica of the partition `partition`, for [`MetaHive`](siltstone::MetaHive): from it a
    /// compaction repairs damaged entries, blocks and tables of the local disk, and [`Partition::repair`](siltstone::Partition::repair)
    /// does. Several partitions want one each.
    ///
    /// It reads states that this primary has stored, and none of another writer. An entry counts only with its own
    /// sequence number, and the content of a gap only as of the last operation of the gap. So damage that the bucket has,
    /// too, or an entry that is not stored yet, leaves the gap, and no older value is returned. The content of a gap is
    /// looked for in the states before the gap, as far back as [`Remote::retention`](crate::Remote::retention) reaches. Large
    /// values of a gap come back as values of the table.
    ///
    /// # Cost
    /// Nothing before there is damage. Then the newest base, the journal after it, and blocks of tables; for a gap that
    /// once for each state that is looked at, up to twice the logarithm of their number, a put for a lease, and memory for
    /// the entries, at most 256 MiB: of a larger gap ranges are repaired. A call of the store is tried again for 5 seconds
    /// at most. After one that fails nothing is asked for a minute.
    ///
    /// # Examples
    /// ```
    /// use remote::Remote;
    /// use siltstone::{MetaHiveOptions, PartitionOptions};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path();
    /// let primary = Remote::memory()?.primary(path)?;
    /// let options = MetaHiveOptions::new().replica(primary.replica("ledger"));
    /// // At each open: a partition does not store its replica.
    /// let db = primary.builder().metahive("ledger", options.clone()).open()?;
    /// let ledger = db.partition_with("ledger", PartitionOptions::new().metahive(options))?;
    /// ledger.put("2026-11-30", "12.50")?;
    /// db.flush()?;
    /// // Repairs what is damaged, from the bucket if nothing else has it.
    /// ledger.compact(..)?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn replica(&self, partition: &str) -> Arc<dyn Replica> {
        Arc::new(BucketReplica::new(&self.settings, self.fs.shipper.clone(), partition))
    }

    /// Puts all changes that wait, and a base if one is due. The thread does that every
    /// [`Remote::interval`](crate::Remote::interval). What an earlier run has left in the log waits for the open of
    /// the database.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](siltstone::ErrorKind::Fenced) if another writer has the database; those of the store.
    pub fn ship(&self) -> Result<()> {
        if self.settings.is_stepped {
            // An error is in the status.
            let _ = self.fs.restore_step();
        }
        self.fs.shipper.tend()
    }

    /// Brings the tables and chunk files to the local disk that only the bucket has, and returns when all are there. A
    /// thread does the same: see [`Remote::restore_rate`](crate::Remote::restore_rate).
    ///
    /// # Errors
    /// Those of the store and the folder. Files before the failed one are here.
    ///
    /// # Cost
    /// Reads each file once, but for what the thread has brought. [`Status::restore`] shows the rest.
    pub fn restore(&self) -> Result<()> {
        self.fs.shipper.remote_only().iter().try_for_each(|name| self.fs.restore(name))
    }

    /// Deletes the objects in the bucket that no state within [`Remote::retention`](crate::Remote::retention) and no
    /// lease needs, once they were seen so for [`Remote::grace`](crate::Remote::grace). Returns their number. A
    /// thread does that 24 times in each retention, at most once a second and at least once an hour.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](siltstone::ErrorKind::Fenced) if another writer has the database; those of the store.
    /// The next round deletes the rest.
    ///
    /// # Cost
    /// Two puts, about eight lists, a GET for each lease, and a deletion for each object; once in each retention a
    /// list of all tables and parts.
    pub fn collect(&self) -> Result<u64> {
        self.collector.collect()
    }

    /// Calls `notice` when the bucket has every commit of `db` up to `seq`: what
    /// [`Db::on_durable`](siltstone::Db::on_durable) is for the local disk. Under [`Ack::Local`](crate::Ack::Local) a
    /// commit is acknowledged before that. Returns without waiting. `db` is the database of this primary.
    ///
    /// `notice` is called exactly once, as one of `on_durable` is: on this thread if the bucket has the commits already,
    /// otherwise on one of the primary or of the database, where it must not block. While the bucket is away it waits,
    /// longer than [`Remote::patience`](crate::Remote::patience). It gets an error if this primary does not store the
    /// commits: [`ErrorKind::Fenced`](siltstone::ErrorKind::Fenced) after a takeover, which may have kept them;
    /// [`ErrorKind::Closed`](siltstone::ErrorKind::Closed) at the drop of the primary, after which the next open of the
    /// folder stores them.
    ///
    /// # Errors
    /// Those of `on_durable`: then `notice` is not called.
    ///
    /// # Cost
    /// A sync of the log, and none in the bucket: the put comes within [`Remote::interval`](crate::Remote::interval).
    ///
    /// # Examples
    /// ```
    /// use remote::{Ack, Remote};
    /// use std::sync::mpsc;
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path();
    /// let primary = Remote::memory()?.ack(Ack::Local).primary(path)?;
    /// let db = primary.builder().open()?;
    /// let commit = db.partition("events")?.put("now", "it happened")?;
    /// let (stored, is_stored) = mpsc::channel();
    /// primary.on_stored(&db, commit.seq, move |outcome| {
    ///     let _ = stored.send(outcome);
    /// })?;
    /// assert!(is_stored.recv().is_ok_and(|outcome| outcome.is_ok()));
    /// assert!(primary.stored_seq(&db) >= commit.seq);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn on_stored(
        &self,
        db: &Db,
        seq: SeqNo,
        notice: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Result<()> {
        let shipper = self.fs.shipper.clone();
        db.on_durable(seq, move |durable| match durable {
            Ok(()) => shipper.on_stored(Box::new(notice)),
            Err(error) => notice(Err(error)),
        })
    }

    /// Waits until the bucket has every commit of `db` up to `seq`, and puts what waits.
    ///
    /// # Errors
    /// Those of [`Db::wait_durable`](siltstone::Db::wait_durable), and of [`Primary::ship`]: after
    /// [`Remote::patience`](crate::Remote::patience) the commits may be stored later.
    pub fn wait_stored(&self, db: &Db, seq: SeqNo) -> Result<()> {
        db.wait_durable(seq)?;
        self.fs.shipper.ship_through(self.fs.shipper.noted())
    }

    /// Returns a sequence number up to which the bucket has every commit of `db`. While nothing waits it is that of the
    /// last durable commit; otherwise one that was durable at an earlier call of this.
    pub fn stored_seq(&self, db: &Db) -> SeqNo {
        self.fs.shipper.stored_seq(db.durable_seq())
    }

    /// Returns whether this primary has a read lease, held or not: see [`Remote::read_lease`](crate::Remote::read_lease).
    pub fn has_read_lease(&self) -> bool {
        self.fs.shipper.lease_interval().is_some()
    }

    /// Returns whether the read lease ([`Remote::read_lease`](crate::Remote::read_lease)) shows that no other writer has
    /// acknowledged a commit until now. So what was read before this call, and is stored
    /// ([`Db::durable_seq`](siltstone::Db::durable_seq)), is the newest state of all machines. Asks nothing of the bucket.
    ///
    /// A put renews the lease. While nothing is put, a thread renews a lease that is asked for, by a GET after a quarter of
    /// it.
    pub fn holds_read_lease(&self) -> bool {
        self.fs.shipper.holds_lease()
    }

    /// Promises that the bucket gets no commit for the time that is returned, from the call on, neither of this writer nor of
    /// another one. So a reader that has all that was stored at the call has the newest state until then, by a clock that goes
    /// on while its machine is suspended. A reader leaves out a sixteenth, for clocks that run apart.
    ///
    /// A put waits for the end of the promise: at most 4 ms, and at most a sixteenth of the time since the put before it. Zero
    /// is no promise: changes wait for the bucket, or the read lease ends before. Asks nothing of the bucket.
    pub fn promise(&self) -> Duration {
        self.fs.shipper.promise()
    }

    /// Returns once it is certain that no other writer had acknowledged a commit when this was called: by the read lease,
    /// or by a look at the bucket. `patience` bounds the look, and [`Remote::patience`](crate::Remote::patience) does.
    ///
    /// A linearizable read calls [`Db::newest_seq`](siltstone::Db::newest_seq), reads, makes sure that the bucket has what
    /// it has read, and calls this.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](siltstone::ErrorKind::Fenced) if another writer has the database;
    /// [`ErrorKind::Unsupported`](siltstone::ErrorKind::Unsupported) under [`Ack::Local`](crate::Ack::Local); those of the
    /// store.
    ///
    /// # Cost
    /// Nothing within the lease; otherwise a GET, which callers at the same time share. Puts wait for it.
    ///
    /// # Examples
    /// ```
    /// use remote::Remote;
    /// use siltstone::{Durability, Readable};
    /// use std::time::Duration;
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path();
    /// let primary = Remote::memory()?.read_lease(Duration::from_secs(2)).primary(path)?;
    /// let db = primary.builder().open()?;
    /// let users = db.partition("users")?;
    /// users.put_with("alice", "admin", Durability::Sync)?;
    /// db.newest_seq();
    /// let role = users.get("alice")?;
    /// db.wait_durable(db.visible_seq())?;
    /// primary.confirm(Duration::from_secs(1))?;
    /// assert_eq!(role.as_deref(), Some(&b"admin"[..]));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn confirm(&self, patience: Duration) -> Result<()> {
        self.fs.shipper.confirm(patience)
    }

    /// Returns whether this primary knows that another writer has the database: then nothing more is stored.
    pub fn is_fenced(&self) -> bool {
        self.fs.shipper.check_writer().is_err_and(|it| it.kind() == ErrorKind::Fenced)
    }

    /// Returns the place in the journal, and what waits.
    pub fn status(&self) -> Status {
        Status { restore: self.fs.restorer.status(&self.fs.shipper), ..self.fs.shipper.status() }
    }
}
