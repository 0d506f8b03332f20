//! [`PinnedFiles`]: the files that hold one state of a followed database, for a copy of them.
//!
//! Called by `backup/`. No partition is read, so no hook is called but the value stores, for the ends of their files.

use std::sync::Arc;

use super::log::LogTail;
use super::position::FollowPosition;
use super::{Follower, Inner, SyncExtent, SyncReach};
use crate::db::retries::Retries;
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::NamedChunk;
use crate::types::SeqNo;
use crate::version::{DbVersion, PartitionVersion};
use crate::wal::LogPlace;

use super::attach::ATTEMPTS;

/// Looks at a version whose newest table is not published yet.
const LOOKS: usize = 1000;

/// The files of a database as of one commit: the tables of the version, and its log up to a place.
pub(crate) struct PinnedFiles {
    pub(crate) version: Arc<DbVersion>,
    /// The last commit.
    pub(crate) seq: SeqNo,
    /// The end of the log; `None` if there is none.
    pub(crate) log_end: Option<LogPlace>,
}

impl Follower {
    /// Returns the files of everything that the primary has committed by now. The lease of this follower holds them as
    /// long as it lives and nothing is synced.
    ///
    /// # Errors
    /// As [`Follower::sync`].
    pub(crate) fn pin_files(&self) -> Result<PinnedFiles> {
        let inner = &*self.inner;
        inner.tables.check_process()?;
        let mut position = inner.position.lock();
        let mut retries = Retries::new(ATTEMPTS);
        loop {
            // The place where the log ends must be that of a frame, also in a segment with an index.
            position.distrusts_indexes = true;
            position.log = None;
            match inner.find_files(&mut position) {
                Ok(files) => return Ok(files),
                Err(error) => retries.again(error)?,
            }
            position.reattach(inner)?;
        }
    }

    /// Keeps the lease, which must be there.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`]; those of the file system.
    pub(crate) fn keep_lease(&self) -> Result<()> {
        let mut position = self.inner.position.lock();
        let Some(lease) = &mut position.lease else { return Ok(()) };
        // The edit of the first look: everything that was dropped since is held.
        lease.beat(self.inner.clock.now())?;
        lease.check()
    }

    /// Returns the chunk files that the tables of `partition` name, each with the end of the values that they name;
    /// `None` if its value store does not tell, or if its code is missing.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn named_chunks(
        &self,
        partition: &PartitionVersion,
    ) -> Result<Option<Vec<NamedChunk>>> {
        let followed = self.inner.partitions.read().by_id.get(&partition.id).cloned();
        let hooks = followed.map(|followed| followed.hooks());
        let Some(store) = hooks.as_ref().and_then(|hooks| hooks.store.as_ref()) else {
            return Ok(None);
        };
        store.call("named_chunks", |store| store.named_chunks(&partition.store_sections))
    }
}

impl Inner {
    fn find_files(&self, position: &mut FollowPosition) -> Result<PinnedFiles> {
        for _ in 0..LOOKS {
            position.begin_round();
            let bound = position.look(self, SyncExtent::All, SyncReach::Committed)?;
            let version = position.version().clone();
            self.take_partitions(&version)?;
            let in_tables = version.partitions.values().map(|it| it.tables_through()).max();
            let in_tables = in_tables.unwrap_or_default();
            let mut seq = position.scan(self, &bound)?;
            if bound.visible().is_none() {
                // Ingested tables were not in the log; with their edit they are durable.
                seq = seq.max(in_tables);
            }
            // An ingested table is in the version a moment before its commit is published, and a commit with a
            // smaller number may not be in the log yet.
            if in_tables <= seq {
                let log_end = position.log.as_ref().and_then(LogTail::end);
                return Ok(PinnedFiles { version, seq, log_end });
            }
            std::thread::yield_now();
        }
        let message = "the last table of the database was not published all the time; try again";
        Err(Error::new(ErrorKind::NeedsManifest, message))
    }
}
