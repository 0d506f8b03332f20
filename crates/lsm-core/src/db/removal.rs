//! The removal of the files that no version names, as background work.
//! `obsolete.rs` has the files and their order.

use super::DbInner;
use super::errors::Reason;
use crate::error::Result;
use crate::hooks::catch_engine;
use crate::version::SstMeta;

/// The work, in the error after a panic.
const REMOVAL: &str = "the removal of obsolete files";

impl DbInner {
    /// [`ObsoleteFiles::remove`]; the outcome is noted as that of background work.
    pub(super) fn remove_obsolete(&self) -> Result<()> {
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
    pub(super) fn finish_removing(&self) -> Result<()> {
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
        for id in self.context.wishes.take_removals() {
            // Those of a dropped partition are removed at the next open.
            if let Some(store) = self.catalog.with_id(id).and_then(|found| found.store().cloned()) {
                removed = removed.and(store.call("reclaim", |store| store.reclaim(0)));
            }
        }
        removed
    }

    /// Returns `true` if something obsolete waits for its removal.
    pub(super) fn has_obsolete(&self) -> bool {
        !self.catalog.obsolete().is_empty() || self.context.wishes.has_removals()
    }

    /// Removes tables that a job wrote and that no edit named.
    pub(super) fn forget(&self, tables: &[SstMeta]) {
        self.catalog.obsolete().add_unnamed(tables);
        // Files that cannot be removed now wait with everything else that is obsolete.
        let _ = self.remove_obsolete();
    }
}
