//! [`Removal`]: the removal of the files that no version names, as background work.
//!
//! Called by the background threads, and by all that makes files obsolete. `obsolete.rs` has the files and
//! their order.

use std::sync::Arc;

use super::background::Background;
use super::catalog::Catalog;
use super::errors::Reason;
use super::job_parts::JobParts;
#[cfg(doc)]
use super::obsolete::ObsoleteFiles;
use super::ownership::Ownership;
use crate::error::Result;
use crate::hooks::{StoreWishes, catch_engine};
use crate::version::SstMeta;

/// The work, in the error after a panic.
const REMOVAL: &str = "the removal of obsolete files";

/// Removes the files and values that no version names, and notes the outcome as that of background work.
pub(super) struct Removal {
    catalog: Arc<Catalog>,
    ownership: Arc<Ownership>,
    background: Arc<Background>,
    /// Value stores ask here for the removal of files that no edit named.
    wishes: StoreWishes,
}

impl Removal {
    pub(super) fn new(parts: &JobParts, wishes: StoreWishes) -> Removal {
        let JobParts { runner, background, ownership, .. } = parts.clone();
        Removal { catalog: runner.catalog.clone(), ownership, background, wishes }
    }

    /// [`ObsoleteFiles::remove`]; the outcome is noted as that of background work.
    pub(super) fn remove(&self) -> Result<()> {
        // The new primary does not need files that this primary dropped, but its secondaries may read
        // them: from now on the new primary handles them.
        if self.ownership.is_fenced() {
            return Ok(());
        }
        let attempt = self.background.begin();
        let removed = catch_engine(REMOVAL, || self.catalog.obsolete().remove().transpose());
        let Some(removed) = removed.transpose() else { return Ok(()) };
        let removed = self.remove_unnamed_values().and(removed);
        self.background.note_outcome(Reason::Obsolete, attempt, removed.as_ref().copied());
        removed
    }

    /// [`ObsoleteFiles::finish_removing`]; the outcome is noted as that of background work.
    pub(super) fn finish(&self) -> Result<()> {
        self.ownership.check_not_fenced()?;
        let attempt = self.background.begin();
        let removed = catch_engine(REMOVAL, || self.catalog.obsolete().finish_removing());
        let removed = self.remove_unnamed_values().and(removed);
        self.background.note_outcome(Reason::Obsolete, attempt, removed.as_ref().copied());
        removed
    }

    /// Makes value stores remove the files that no edit named, such as that of an abandoned stream, if they
    /// failed to.
    fn remove_unnamed_values(&self) -> Result<()> {
        let mut removed = Ok(());
        for id in self.wishes.take_removals() {
            // Those of a dropped partition are removed at the next open.
            if let Some(store) = self.catalog.with_id(id).and_then(|found| found.store().cloned()) {
                removed = removed.and(store.call("reclaim", |store| store.reclaim(0)));
            }
        }
        removed
    }

    /// Returns `true` if something obsolete waits for its removal.
    pub(super) fn is_due(&self) -> bool {
        !self.catalog.obsolete().is_empty() || self.wishes.has_removals()
    }

    /// Removes tables that a job wrote and that no edit named.
    pub(super) fn forget(&self, tables: &[SstMeta]) {
        self.catalog.obsolete().add_unnamed(tables);
        // Files that cannot be removed now wait with everything else that is obsolete.
        let _ = self.remove();
    }
}
