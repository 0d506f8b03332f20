//! Files that a new epoch finds and does not need.
//!
//! Called once, when the manifest of the epoch is durable. It must never remove what the manifest
//! names, or what a secondary may read.

use std::collections::HashSet;
use std::path::Path;

use super::{HooksOf, Opening};
use crate::error::Result;
use crate::fs::Fs;
use crate::fs::names::{self, FileKind, FileName, LEASE_PREFIX};
use crate::hooks::{ChunkId, catch};
use crate::shared::held_leases;
use crate::types::Epoch;
use crate::version::{DbVersion, retire};

impl Opening {
    /// Removes what the new epoch does not need. What cannot be removed now is tried again at the
    /// next open: no later step relies on it. Returns the tables and chunk files that a secondary may
    /// read, with their lengths.
    pub(super) fn remove_leftovers(
        &self,
        fs: &dyn Fs,
        dir: &Path,
        version: &DbVersion,
        hooks: &HooksOf,
    ) -> Result<Vec<(FileName, u64)>> {
        // A lease that cannot be read is a reason to keep files, and none to refuse the open. A folder
        // that cannot be listed is one, with leases or without.
        let has_leases = !fs.list_names(dir, LEASE_PREFIX)?.is_empty();
        let is_leased = has_leases && !held_leases(fs, dir).is_ok_and(|leases| leases.is_empty());
        let mut leased = Vec::new();
        // Without the code of a store its files are unknown, and deleting them would destroy
        // values.
        let knows_chunks = hooks.values().all(|hooks| hooks.missing.is_none());
        let mut live: HashSet<FileName> = version
            .partitions
            .values()
            .flat_map(|partition| partition.tables())
            .map(|(_, table)| FileName::new(FileKind::Sst, table.meta.file, table.meta.epoch))
            .collect();
        // The store knows its files from the edits. The handles would have to be read from all
        // tables.
        for store in hooks.values().filter_map(|hooks| hooks.store.as_ref()) {
            let chunks = catch("a value store", || store.chunks())?;
            live.extend(
                chunks.into_iter().map(|chunk: ChunkId| {
                    FileName::new(FileKind::Chunk, chunk.number, chunk.epoch)
                }),
            );
        }
        for name in &self.names {
            if name.kind == FileKind::Chunk && !knows_chunks {
                continue;
            }
            // Generations of the manifest go last and in their order: see `retire`.
            if name.kind == FileKind::Manifest || live.contains(name) {
                continue;
            }
            if is_leased && matches!(name.kind, FileKind::Sst | FileKind::Chunk) {
                leased.push((*name, self.len_of(name)));
            } else {
                // A failure is no reason to refuse the open. The number of the file is not given
                // out again, so the leftover is harmless.
                let _ = fs.delete(&name.path(dir));
            }
        }
        for name in &self.temporary {
            // Never finished, so never named: what was published has another name.
            let _ = fs.delete(&dir.join(name));
        }
        remove_old_claims(fs, dir, self.claim)?;
        if let Some(recovered) = &self.recovered {
            let mut old = recovered.older.clone();
            old.push(recovered.generation);
            // Last of all. The new generation has an edit behind its snapshot, so it counts whether
            // the old ones go, stay or come back.
            let _ = retire(fs, dir, &recovered.garbage, &old);
        }
        Ok(leased)
    }
}

/// Removes the claims and forks before `own`, whose lock this process holds. Another process may hold the
/// lock of any other claim, or be about to take it.
fn remove_old_claims(fs: &dyn Fs, dir: &Path, own: Option<Epoch>) -> Result<()> {
    let Some(own) = own else { return Ok(()) };
    for name in fs.list_names(dir, "")? {
        let epoch = names::epoch_of_claim(&name).or(names::epoch_of_fork(&name));
        if epoch.is_some_and(|epoch| epoch < own) {
            // As with other leftovers, a failure harms nothing, and the next open tries again.
            let _ = fs.delete(&dir.join(name));
        }
    }
    Ok(())
}
