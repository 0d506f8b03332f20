//! [`UnconfirmedFiles`]: the files and values of edits that may be in the manifest although their installation failed.

use parking_lot::Mutex;

use crate::hooks::PendingHandle;
use crate::types::FileNo;
use crate::version::SstMeta;

/// Files that an edit in doubt names: it may be on disk, so they stay until the manifest has a new
/// generation without it. The lock is a leaf.
#[derive(Default)]
pub(super) struct UnconfirmedFiles(Mutex<DoubtfulFiles>);

#[derive(Default)]
pub(super) struct DoubtfulFiles {
    pub(super) tables: Vec<SstMeta>,
    pub(super) segments: Vec<FileNo>,
    /// Values that were written again for the tables, or moved by a job.
    pub(super) values: Vec<PendingHandle>,
}

impl UnconfirmedFiles {
    /// Keeps the files of an edit whose installation failed.
    pub(super) fn note(&self, tables: impl Iterator<Item = SstMeta>, segment: FileNo) {
        let mut files = self.0.lock();
        files.tables.extend(tables);
        files.segments.push(segment);
    }

    /// Keeps values that an edit is about to name, unless it becomes durable.
    pub(super) fn until_installed(&self, values: Vec<PendingHandle>) -> UninstalledValues<'_> {
        UninstalledValues { unconfirmed: self, values }
    }

    /// Takes the values out, as [`UnconfirmedFiles::take`] does.
    pub(super) fn take_values(&self) -> Vec<PendingHandle> {
        std::mem::take(&mut self.0.lock().values)
    }

    /// Takes them out. The caller has checked that the manifest takes edits again, and has held its
    /// lock since.
    pub(super) fn take(&self) -> DoubtfulFiles {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Drop for UnconfirmedFiles {
    /// The next open decides whether the edit counts. Dropped values are discarded.
    fn drop(&mut self) {
        self.take().values.into_iter().for_each(PendingHandle::keep);
    }
}

/// Values of a running edit. If it fails, also by a panic, they are in doubt, because the edit may be
/// on disk.
#[must_use]
pub(super) struct UninstalledValues<'a> {
    unconfirmed: &'a UnconfirmedFiles,
    values: Vec<PendingHandle>,
}

impl UninstalledValues<'_> {
    /// The edit is durable.
    pub(super) fn keep(mut self) {
        std::mem::take(&mut self.values).into_iter().for_each(PendingHandle::keep);
    }
}

impl Drop for UninstalledValues<'_> {
    fn drop(&mut self) {
        self.unconfirmed.0.lock().values.append(&mut self.values);
    }
}
