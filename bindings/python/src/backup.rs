//! [`BackupEngine`]: backups in a folder that share what is the same.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use siltstone::backup::{BackupInfo, PurgeSummary};

use crate::db::Db;
use crate::error::Result;
use crate::hooks::Outside;

/// A folder of backups.
#[pyclass(frozen, module = "siltstone")]
pub struct BackupEngine(siltstone::backup::BackupEngine);

fn info<'py>(py: Python<'py>, backup: &BackupInfo) -> Result<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("backup_id", backup.backup_id)?;
    dict.set_item("timestamp", backup.timestamp)?;
    dict.set_item("seq", backup.seq.get())?;
    dict.set_item("size", backup.size)?;
    dict.set_item("new_bytes", backup.new_bytes)?;
    dict.set_item("number_files", backup.number_files)?;
    dict.set_item("unlogged", &backup.unlogged)?;
    Ok(dict)
}

fn purged(summary: &PurgeSummary) -> Vec<u32> {
    summary.backups.clone()
}

#[pymethods]
impl BackupEngine {
    #[new]
    #[pyo3(signature = (dir, *, bytes_per_second = 0))]
    fn new(dir: PathBuf, bytes_per_second: u64) -> BackupEngine {
        let engine = siltstone::backup::BackupEngine::open(dir);
        BackupEngine(engine.rate_limit(bytes_per_second))
    }

    /// Makes a backup of an open database.
    fn create_backup<'py>(&self, py: Python<'py>, db: &Db) -> Result<Bound<'py, PyDict>> {
        let made = py.outside(|| self.0.create_backup(&db.inner))??;
        info(py, &made)
    }

    /// Makes a backup of a database that another process may write.
    fn create_backup_of<'py>(&self, py: Python<'py>, path: PathBuf) -> Result<Bound<'py, PyDict>> {
        let made = py.outside(|| self.0.create_backup_of(siltstone::Db::builder(path)))??;
        info(py, &made)
    }

    /// Returns the backups, oldest first.
    fn info<'py>(&self, py: Python<'py>) -> Result<Vec<Bound<'py, PyDict>>> {
        let backups = py.outside(|| self.0.info())??;
        backups.iter().map(|backup| info(py, backup)).collect()
    }

    /// Compares the files of one backup, or of all, with their checksums.
    #[pyo3(signature = (backup_id = None))]
    fn verify(&self, py: Python<'_>, backup_id: Option<u32>) -> Result<bool> {
        Ok(py.outside(|| self.0.verify(backup_id))??.is_sound())
    }

    /// Makes a database of a backup.
    fn restore<'py>(
        &self,
        py: Python<'py>,
        backup_id: u32,
        into: PathBuf,
    ) -> Result<Bound<'py, PyDict>> {
        let restored = py.outside(|| self.0.restore(backup_id, into))??;
        info(py, &restored)
    }

    /// Makes a database of the newest backup.
    fn restore_latest<'py>(&self, py: Python<'py>, into: PathBuf) -> Result<Bound<'py, PyDict>> {
        let restored = py.outside(|| self.0.restore_latest(into))??;
        info(py, &restored)
    }

    /// Deletes all backups but the newest.
    fn purge_old(&self, py: Python<'_>, keep: usize) -> Result<Vec<u32>> {
        Ok(purged(&py.outside(|| self.0.purge_old(keep))??))
    }

    /// Deletes a backup.
    fn delete(&self, py: Python<'_>, backup_id: u32) -> Result<Vec<u32>> {
        Ok(purged(&py.outside(|| self.0.delete(backup_id))??))
    }
}
