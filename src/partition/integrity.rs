//! The integrity of a partition: gaps and their repair, verified reads, scrubs, and all stored
//! versions of a key.

use lsm_core::error::Result;
use lsm_core::raw::{RawVersion, Walk};
use lsm_core::read::KeyRange;
use lsm_core::types::Gap;
use metahive::{Explanation, ScrubOptions, ScrubReport, Verified, VerifiedRange};

use super::Partition;

/// Integrity: gaps, repair, and reads that verify entries against their metadata.
impl Partition {
    /// Returns the gaps: ranges of keys whose entries are damaged beyond repair. A get in a gap
    /// returns an error unless a newer write answers it. A scan across a gap returns an error. Keys
    /// are in their stored form: some end in an additional zero byte if the partition accepts any key.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let ledger = db.partition("ledger")?;
    /// for gap in ledger.gaps() {
    ///     println!("lost between {} and {}", gap.from.escape_ascii(), gap.to.escape_ascii());
    /// }
    /// # assert!(ledger.gaps().is_empty());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn gaps(&self) -> Vec<Gap> {
        self.0.gaps()
    }

    /// Retries the repair of damage in `range`, and returns the remaining gaps. It compacts the range,
    /// so that every block is repaired from the sources that are available now, and asks the replica
    /// for the entries of the gaps. A partition with gaps also asks a replica as soon as it gets one.
    ///
    /// # Errors
    /// The errors of [`Partition::compact`] and of the replica.
    ///
    /// # Durability
    /// Durable once this returns.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().metahive(Default::default());
    /// let ledger = db.partition_with("ledger", options)?;
    /// ledger.put("alice", "12")?;
    ///
    /// // After a damaged device was replaced, or a replica is back.
    /// let lost = ledger.repair(..)?;
    /// assert!(lost.is_empty());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn repair(&self, range: impl KeyRange) -> Result<Vec<Gap>> {
        self.0.repair(range)
    }

    /// Accepts the loss of the entries in the gaps of `range`, and returns these gaps. Reads and scans
    /// of the range succeed again. Every older entry in a gap is hidden permanently, so that no old
    /// value from a deeper level reappears. Reads of a gap through an earlier snapshot still fail.
    ///
    /// # Errors
    /// The errors of the manifest; a closed database; a dropped partition.
    ///
    /// # Durability
    /// Durable once this returns.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().metahive(Default::default());
    /// let ledger = db.partition_with("ledger", options)?;
    /// ledger.put("alice", "12")?;
    ///
    /// // Reads of what is lost succeed again, and find nothing.
    /// for gap in ledger.accept_loss(..)? {
    ///     println!("gave up {}", gap.from.escape_ascii());
    /// }
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn accept_loss(&self, range: impl KeyRange) -> Result<Vec<Gap>> {
        self.0.accept_loss(range)
    }

    /// Returns the value of `key` if it agrees with its metadata. [`Verified::by`] names the check
    /// that the value passed.
    ///
    /// # Errors
    /// The errors of [`Partition::get`], and:
    ///
    /// [`ErrorKind::Corruption`](crate::ErrorKind::Corruption), which names partition, file, block and
    /// key, if the entry or tombstone of the key disagrees with its metadata, or has no metadata in a
    /// sealed table. The device is read again before this error is returned.
    ///
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the partition has no
    /// MetaHive; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if another provider or a
    /// newer version sealed the table.
    ///
    /// # Cost
    /// That of a get, and a checksum of key and value.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().metahive(Default::default());
    /// let ledger = db.partition_with("ledger", options)?;
    /// ledger.put("alice", "12")?;
    ///
    /// ledger.flush()?;
    /// let verified = ledger.verified_get("alice")?.expect("it is there");
    /// assert_eq!(&verified.value[..], b"12");
    /// println!("checked by {:?}", verified.by);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    #[inline]
    pub fn verified_get(&self, key: impl AsRef<[u8]>) -> Result<Option<Verified>> {
        metahive::verified_get(&self.0, key)
    }

    /// Returns the keys and values in `range`, as they are at the call. Each block of a table is
    /// compared with its metadata before an entry of it is returned.
    ///
    /// # Errors
    /// The errors of [`Partition::verified_get`], as items. The iterator ends after an error.
    ///
    /// # Cost
    /// That of a range, and a checksum for each entry of the blocks that are read.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().metahive(Default::default());
    /// let ledger = db.partition_with("ledger", options)?;
    /// ledger.put("alice", "12")?;
    ///
    /// let mut sum = 0;
    /// for entry in ledger.verified_range("a".."n") {
    ///     let (_, verified) = entry?;
    ///     sum += verified.value.len();
    /// }
    /// assert_eq!(sum, 2);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn verified_range(&self, range: impl KeyRange) -> VerifiedRange {
        metahive::verified_range(&self.0, range)
    }

    /// Compares every entry in the tables of the partition with its metadata, and every large value with
    /// its checksums, on the device.
    ///
    /// # Errors
    /// A closed store; a dropped partition; a mark of another partition;
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if a filter other than MetaHive seals
    /// the partition. Damage is in the report; it is not an error of this call.
    ///
    /// # Cost
    /// Reads all tables of the partition and bypasses every cache;
    /// [`ScrubOptions::bytes_per_second`] limits the rate.
    ///
    /// # Examples
    /// ```
    /// use siltstone::metahive::ScrubOptions;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().metahive(Default::default());
    /// let ledger = db.partition_with("ledger", options)?;
    /// ledger.put("alice", "12")?;
    /// ledger.flush()?;
    /// let report = ledger.scrub(ScrubOptions::default().bytes_per_second(50 << 20))?;
    /// assert!(report.is_sound(), "{report}");
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn scrub(&self, options: ScrubOptions<'_>) -> Result<ScrubReport> {
        metahive::scrub(&self.0, options)
    }

    /// Returns every stored version of `key`, with its place and the verdict of its metadata.
    ///
    /// # Errors
    /// The errors of [`Partition::scrub`]. Damage is in the explanation; it is not an error of this
    /// call.
    ///
    /// # Cost
    /// Reads one or a few blocks of each table whose range covers the key.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// # let options = siltstone::PartitionOptions::new().metahive(Default::default());
    /// let ledger = db.partition_with("ledger", options)?;
    /// ledger.put("alice", "12")?;
    ///
    /// ledger.flush()?;
    /// println!("{}", ledger.explain("alice")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn explain(&self, key: impl AsRef<[u8]>) -> Result<Explanation> {
        metahive::explain(&self.0, key.as_ref())
    }

    /// Returns all memtables and tables of the partition at this moment, to read entries in their
    /// stored form; see [`raw`](crate::raw).
    ///
    /// # Errors
    /// A closed store; a dropped partition.
    ///
    /// # Cost
    /// The walk keeps the memtables in memory and the tables on disk until it is dropped.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// users.flush()?;
    /// let walk = users.walk()?;
    /// assert_eq!(walk.tables().count(), 1);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn walk(&self) -> Result<Walk> {
        Walk::open(&self.0)
    }

    /// Returns every version of `key`, newest first. `key` is in its stored form.
    ///
    /// # Errors
    /// A table that cannot be opened; damage that may hide a version; a closed store; a dropped
    /// partition.
    ///
    /// # Cost
    /// Reads one or a few blocks of each table whose range covers the key.
    ///
    /// # Examples
    /// ```
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// users.put("alice", "admin")?;
    /// users.delete("alice")?;
    /// for version in users.versions("alice")? {
    ///     println!("{:?} {:?}", version.seq, version.kind);
    /// }
    /// # assert!(!users.versions("alice")?.is_empty());
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn versions(&self, key: impl AsRef<[u8]>) -> Result<Vec<RawVersion>> {
        lsm_core::raw::versions(&self.0, key.as_ref())
    }
}
