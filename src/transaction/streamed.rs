//! Streamed values in a [`Transaction`].

use super::Transaction;
use crate::large::PendingBlob;

impl Transaction {
    /// Adds the put of a streamed value, which [`BlobWriter::finish`] returned. Later reads of the transaction see the
    /// value. It is discarded if the transaction is not committed, also for a conflict: an attempt that is made again
    /// streams it again.
    ///
    /// An iterator of the transaction that outlives the commit reads the value as long as its key has it.
    ///
    /// [`BlobWriter::finish`]: crate::large_values::BlobWriter::finish
    ///
    /// # Examples
    /// ```
    /// use std::io::Write;
    /// use siltstone::{Durability, LargeValueOptions, PartitionOptions};
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let options = PartitionOptions::new().large_values(LargeValueOptions::default());
    /// let films = db.partition_with("films", options)?;
    /// let mut writer = films.put_stream("1", None)?;
    /// writer.write_all(&[7; 100_000])?;
    /// let film = writer.finish()?;
    /// let mut transaction = db.transaction();
    /// if !transaction.contains(&films, "1")? {
    ///     transaction.put_blob(film);
    /// }
    /// transaction.commit(Durability::Sync)?;
    /// assert!(films.contains("1")?);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn put_blob(&mut self, blob: PendingBlob) {
        // As for a batch: the value knows its partition and key.
        blob.0.add_to_transaction(&mut self.0);
    }
}
