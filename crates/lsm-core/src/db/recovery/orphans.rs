//! Files that a new epoch finds and does not need.
//!
//! Called once, when the manifest of the epoch is durable. It must never select a file that the
//! manifest names. A secondary may read files of an earlier epoch, so these files are only found here,
//! and deleted like all obsolete files (`db/obsolete.rs`).

use std::collections::HashSet;
use std::path::Path;

use super::OpenPlan;
use crate::db::hook_binding::HooksOf;
use crate::error::Result;
use crate::fs::Fs;
use crate::fs::names::{self, FileKind, FileName};
use crate::hooks::ChunkId;
use crate::types::Epoch;
use crate::version::{DbVersion, PastGeneration};

/// The files that a new epoch found and does not need.
#[derive(Default)]
pub(in crate::db) struct OrphanFiles {
    /// Tables, segments and chunk files, with their lengths in bytes.
    pub(in crate::db) files: Vec<(FileName, u64)>,
    /// Generations of the manifest.
    pub(in crate::db) generations: Vec<PastGeneration>,
}

impl OpenPlan {
    /// Finds the files that the new epoch, whose manifest ends in `version`, does not need. Removes those
    /// that never had a name of their own, and claims that are over; files that cannot be removed now are
    /// tried again at the next open.
    pub(super) fn orphans(
        &self,
        fs: &dyn Fs,
        dir: &Path,
        version: &DbVersion,
        hooks: &HooksOf,
    ) -> Result<OrphanFiles> {
        let mut orphans = OrphanFiles::default();
        // Without the code of a store its files are unknown, and deleting them would destroy
        // values.
        let knows_chunks = hooks.values().all(|hooks| hooks.missing.is_none());
        let mut live: HashSet<FileName> = version
            .partitions
            .values()
            .flat_map(|partition| partition.tables())
            .map(|(_, table)| table.meta.file_name())
            .collect();
        // The store knows its files from the edits. Otherwise the handles would have to be read from all
        // tables.
        for store in hooks.values().filter_map(|hooks| hooks.store.as_ref()) {
            let state = store.call("snapshot", |store| Ok(store.snapshot()))?;
            live.extend(
                state.chunks.into_iter().map(|chunk: ChunkId| {
                    FileName::new(FileKind::Chunk, chunk.number, chunk.epoch)
                }),
            );
        }
        for name in &self.names {
            // Kept for those who follow the changes.
            if name.kind == FileKind::Wal && version.retained.segments.contains_key(&name.number) {
                continue;
            }
            if name.kind == FileKind::Chunk && !knows_chunks {
                continue;
            }
            if name.kind != FileKind::Manifest && !live.contains(name) {
                orphans.files.push((*name, self.len_of(name)));
            }
        }
        for name in &self.temporary {
            // Never finished, so never named: published files have other names.
            let _ = fs.delete(&dir.join(name));
        }
        remove_old_claims(fs, dir, self.claim)?;
        if let Some(recovered) = &self.recovered {
            // The new generation has an edit after its snapshot, so it counts whether the old ones are
            // deleted, stay or reappear.
            let edit = version.edit_number;
            let old = recovered.older.iter().chain([&recovered.generation]);
            let old = old.map(|name| (*name, edit));
            let garbage = recovered.garbage.iter().map(|name| (*name, 0));
            orphans.generations = old
                .chain(garbage)
                .map(|(name, edit)| PastGeneration { name, bytes: self.len_of(&name), edit })
                .collect();
        }
        Ok(orphans)
    }
}

/// Removes the claims and forks before `own`, whose lock this process holds. Another process may hold the
/// lock of any other claim, or be about to take it.
fn remove_old_claims(fs: &dyn Fs, dir: &Path, own: Option<Epoch>) -> Result<()> {
    let Some(own) = own else { return Ok(()) };
    for name in fs.list_names(dir, "")? {
        let epoch = names::epoch_of_claim(&name).or(names::epoch_of_fork(&name));
        if epoch.is_some_and(|epoch| epoch < own) {
            // As with other orphan files, a failure is harmless, and the next open tries again.
            let _ = fs.delete(&dir.join(name));
        }
    }
    Ok(())
}
