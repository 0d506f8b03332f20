//! Repairs: what can be read of a damaged database, in a new one or in a stream.

use std::io::Write;
use std::path::Path;

use ::streams::{StreamExport, StreamSummary};
use lsm_core::db::SalvageReport;
use lsm_core::error::Result;

use crate::builder::Builder;

/// Repairs.
impl Builder {
    /// Makes a new database in the folder `into`, which must be empty or not exist, of everything that can be read of
    /// this one, whatever is damaged or missing: for a database that does not open, or that `Db::verify` finds damaged.
    /// This database is not changed, and may lie on a read-only medium. Partitions keep their names, options and hooks.
    ///
    /// The report names every damaged place, and all keys that may not be what they were
    /// ([`SalvageReport::doubtful`]). Every other key has the value that it had.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`](crate::ErrorKind::Locked) while another process has the database open;
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if there are files in `into`;
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if newer code wrote the database, or the code of a
    /// hook is missing; those of reading and writing. No database is left in `into` then.
    ///
    /// # Durability
    /// The new database is durable once this returns. After a crash `into` is no database.
    ///
    /// # Cost
    /// Reads the database once and writes it. The log must fit into memory, and so must each value.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Db;
    ///
    /// # fn main() -> siltstone::Result<()> {
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// # let db = Db::builder("/db").fs(fs.clone()).open()?;
    /// # db.partition("users")?.put("alice", "admin")?;
    /// # db.close()?;
    /// let report = Db::builder("/db").fs(fs.clone()).repair_into("/new")?;
    /// assert!(report.is_complete());
    /// let repaired = Db::builder("/new").fs(fs).open()?;
    /// assert_eq!(repaired.partition("users")?.get("alice")?.as_deref(), Some(&b"admin"[..]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn repair_into(self, into: impl AsRef<Path>) -> Result<SalvageReport> {
        self.into_engine().repair_into(into)
    }

    /// Writes everything that can be read of this database to `out`, as [`Db::export_stream`](crate::Db::export_stream)
    /// does with a sound one: only streams in the checked format. Nothing is written anywhere else.
    ///
    /// # Errors
    /// Those of [`Builder::repair_into`] but for its folder, and those of `out`.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Db;
    /// use siltstone::stream::StreamExport;
    ///
    /// # fn main() -> siltstone::Result<()> {
    /// # let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
    /// # let db = Db::builder("/db").fs(fs.clone()).open()?;
    /// # db.partition("users")?.put("alice", "admin")?;
    /// # db.close()?;
    /// let mut stream = Vec::new();
    /// let builder = Db::builder("/db").fs(fs);
    /// let (summary, report) = builder.export_salvaged(&mut stream, &StreamExport::new())?;
    /// assert_eq!((summary.entries, report.is_complete()), (1, true));
    /// # Ok(())
    /// # }
    /// ```
    pub fn export_salvaged(
        self,
        mut out: impl Write,
        options: &StreamExport,
    ) -> Result<(StreamSummary, SalvageReport)> {
        let mut salvage = self.into_engine().salvage()?;
        let summary = ::streams::export_salvaged(&mut salvage, &mut out, options)?;
        Ok((summary, salvage.report().clone()))
    }
}
