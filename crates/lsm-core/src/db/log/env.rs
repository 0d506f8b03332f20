//! [`DbLogEnv`]: the parts of an open database that its log calls.

use std::sync::Arc;

use super::LogEnv;
use crate::db::background::Background;
use crate::db::catalog::Catalog;
use crate::db::events::{Events, Notice};
use crate::db::ownership::Ownership;
use crate::error::{Error, Result};
use crate::fs::names::FileName;
use crate::hooks::Event;
use crate::stats::Counters;
use crate::types::FileNo;
use crate::version::Change;
use crate::wal::Lsn;

/// The parts of an open database that its log calls.
pub(in crate::db) struct DbLogEnv {
    catalog: Arc<Catalog>,
    ownership: Arc<Ownership>,
    background: Arc<Background>,
    events: Arc<Events>,
    counters: Arc<Counters>,
}

impl DbLogEnv {
    pub(in crate::db) fn of(
        catalog: &Arc<Catalog>,
        ownership: &Arc<Ownership>,
        background: &Arc<Background>,
        events: &Arc<Events>,
        counters: &Arc<Counters>,
    ) -> DbLogEnv {
        DbLogEnv {
            catalog: catalog.clone(),
            ownership: ownership.clone(),
            background: background.clone(),
            events: events.clone(),
            counters: counters.clone(),
        }
    }
}

impl LogEnv for DbLogEnv {
    fn install_edit(&self, changes: Vec<Change>) -> Result<()> {
        self.catalog.install(changes)
    }

    #[inline]
    fn settle_log(&self, end: Lsn) -> Result<()> {
        self.ownership.cursor().settle_end(end.0)
    }

    fn make_obsolete(&self, files: Vec<(FileName, u64)>) {
        self.catalog.make_obsolete(files);
    }

    fn durable_edit(&self) -> u64 {
        self.catalog.durable_edit()
    }

    fn is_segment_listed(&self, number: FileNo) -> Result<bool> {
        Ok(self.catalog.edit()?.current().log_segments.contains_key(&number))
    }

    fn begin_sync_of_values(&self) {
        for partition in self.catalog.with_stores() {
            if let Some(store) = partition.store() {
                // A hint: if it fails, the sync takes longer.
                let _ = store.call("begin_sync", |store| {
                    store.begin_sync();
                    Ok(())
                });
            }
        }
    }

    fn sync_values(&self) -> Result<()> {
        self.catalog.sync_values()
    }

    fn check_writable(&self) -> Result<()> {
        self.ownership.check_writable()
    }

    fn log_failed(&self, error: &Error) {
        self.ownership.cursor().note_failure(error);
        self.events.tell(&Event::BackgroundError(error.clone()));
        // `flush/resume.rs` is due.
        self.background.wake_all();
    }

    fn answer(&self, notices: Vec<Notice>, outcome: Result<()>) {
        self.events.answer(notices, &outcome);
        // The log thread does that after its work.
        if !Background::is_log_thread() {
            self.background.wake_all();
        }
    }

    fn wake_log_thread(&self) {
        self.background.wake_all();
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
