//! The files of an open database that no version names: the state of their values, their bytes, and the
//! secondaries that hold them. `obsolete.rs` has the files, and `removal.rs` removes them.

use std::collections::HashSet;

use super::DbInner;
use super::leases::LeaseHolder;
use crate::error::{Error, Result};
use crate::fs::names::{FileKind, FileName};
use crate::hooks::Event;
use crate::shared::held_leases;
use crate::types::{FileNo, PartitionId};

impl DbInner {
    /// [`store_state`](super::obsolete::ObsoleteFiles::store_state) of the partition's value store, if it has one.
    pub(super) fn store_state(&self, id: PartitionId) -> Option<Vec<u8>> {
        let store = self.catalog.with_id(id)?.store().cloned()?;
        match self.catalog.obsolete().store_state(id, &store)? {
            Ok(state) => Some(state.section),
            Err(error) => {
                // The sections that the state would have replaced are kept instead.
                self.events.tell(&Event::BackgroundError(error));
                None
            }
        }
    }

    /// Bytes of files that only secondaries hold, or that are about to be deleted.
    pub(super) fn leased_file_bytes(&self) -> u64 {
        // Next to a writer, files that it keeps for others only show as files that no version names.
        match self.ownership.has_live_writer() {
            true => self.unnamed_file_bytes(),
            false => self.catalog.obsolete().leased_file_bytes(),
        }
    }

    /// The secondaries that hold files.
    ///
    /// # Errors
    /// Those of the file system; a closed database.
    pub(super) fn lease_holders(&self) -> Result<Vec<LeaseHolder>> {
        self.check_not_closed()?;
        let present = self.catalog.durable_edit();
        let leases = held_leases(&*self.context.fs, &self.context.dir)?;
        let holders = leases.iter().map(|lease| LeaseHolder {
            process: lease.process,
            is_local: lease.is_local,
            edits_behind: present.saturating_sub(lease.edit),
        });
        Ok(holders.collect())
    }

    /// Bytes of tables and segments in the folder that are in no version: next to a writer, files
    /// that secondaries hold and that jobs are writing. 0 if the folder cannot be listed.
    pub(super) fn unnamed_file_bytes(&self) -> u64 {
        let entries = self.context.fs.list(&self.context.dir, "").unwrap_or_default();
        let version = self.catalog.current();
        let tables = version.partitions.values().flat_map(|partition| partition.tables());
        let live: HashSet<FileNo> = tables.map(|(_, table)| table.meta.file).collect();
        let unnamed = entries.iter().filter(|entry| {
            let name = FileName::parse(&entry.name);
            name.is_some_and(|name| match name.kind {
                FileKind::Sst => !live.contains(&name.number),
                FileKind::Wal => {
                    !version.log_segments.contains_key(&name.number)
                        && !version.retained.segments.contains_key(&name.number)
                }
                FileKind::Manifest | FileKind::Chunk => false,
            })
        });
        unnamed.map(|entry| entry.len).sum()
    }

    /// The error of a file that should always exist, if it is missing. Next to a writer, files may
    /// disappear.
    pub(super) fn deleted_files(&self) -> Option<Error> {
        if self.ownership.has_live_writer() || self.ownership.is_fenced() || !self.is_own() {
            return None;
        }
        self.catalog.missing_manifest(&*self.context.fs, &self.context.dir)
    }
}
