//! `Partition::bulk_load`: tables of sorted entries, written without the log and installed as one
//! write.
//!
//! The tables are built in the database's folder while other work continues. They are then installed
//! as those of an ingest are, see `ingest.rs`: one sequence number for all entries, one edit.
//!
//! Invariants:
//! 1. Keys ascend, and each is one that a put would take.
//! 2. Nothing is visible before the edit, and a failed load leaves nothing: no edit names its
//!    tables, so they are removed at once, or by the next open after a crash.

use super::arrival::Arrival;
use super::ingest::IngestSummary;
use crate::compaction::{Fill, JobHooks};
use crate::db::hook_binding::check_complete;
use crate::db::write::check_value;
use crate::db::{DbInner, Partition};
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::PartitionHooks;
use crate::limits::check_key;
use crate::partition::{PartitionState, check_reserved};
use crate::types::SeqNo;

/// Entries are stored with this sequence number, and count under that of the load.
const STORED_SEQ: u64 = 1;
/// The number of entries between two checks whether the database is closed.
const ENTRIES_BETWEEN_LOOKS: u32 = 1 << 12;

/// The entries of a bulk load, put one by one in the order of their keys.
pub struct BulkLoad<'a> {
    db: &'a DbInner,
    partition: &'a PartitionState,
    hooks: &'a PartitionHooks,
    fill: Fill<'a>,
    /// The stored form of the last key; `None` before the first.
    last: Option<Vec<u8>>,
    /// The stored form of the present key.
    stored: Vec<u8>,
    until_look: u32,
    /// The error of the put that failed: the load is not installed.
    failed: Option<Error>,
}

impl BulkLoad<'_> {
    /// Appends an entry. Its key must sort after all previous ones.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it does not; the limits of a put; those of the files. The
    /// load has failed then: every later put returns the same error, and so does the load, even if
    /// its closure returns `Ok`.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.check_sound()?;
        let appended = self.append(key.as_ref(), value.as_ref());
        if let Err(error) = &appended {
            self.failed = Some(error.clone());
        }
        appended
    }

    /// Returns the error of the put that failed, if one did.
    fn check_sound(&self) -> Result<()> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn append(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        check_key(key)?;
        self.check_rules(key)?;
        check_value(&self.db.setup.options, self.partition, value)?;
        let stored = &mut self.stored;
        stored.clear();
        self.partition.key_form.with_stored(key, |key| stored.extend_from_slice(key));
        // By the stored form, in which the table sorts them.
        if self.last.as_ref().is_some_and(|last| self.stored <= *last) {
            return Err(out_of_order(key, self.last.as_ref() == Some(&self.stored)));
        }
        self.until_look -= 1;
        if self.until_look == 0 {
            self.until_look = ENTRIES_BETWEEN_LOOKS;
            self.db.check_open()?;
            self.partition.check_live()?;
        }
        self.fill.add(&self.stored, value)?;
        std::mem::swap(self.last.get_or_insert_default(), &mut self.stored);
        Ok(())
    }

    /// Checks the key against the rules at the start of the load, under which it is written. They are
    /// compared with those at its end.
    fn check_rules(&self, key: &[u8]) -> Result<()> {
        if self.partition.key_form.takes_any_key() {
            return Ok(());
        }
        check_reserved(&self.partition.name, &self.hooks.rules, key)
    }
}

#[cold]
fn out_of_order(key: &[u8], is_twin: bool) -> Error {
    let what = if is_twin { "comes twice" } else { "sorts before the key before it" };
    let message = format!("a bulk load is sorted: key \"{}\" {what}", key.escape_ascii());
    Error::new(ErrorKind::InvalidArgument, message)
}

impl Partition {
    /// Loads entries that come sorted by key, each key once, as [`Partition::bulk_load_by`] does.
    pub fn bulk_load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Result<IngestSummary> {
        self.bulk_load_by(|load| {
            entries.into_iter().try_for_each(|(key, value)| load.put(key, value))
        })
    }

    /// Loads the entries that `fill` puts, sorted by key, each key once: writes them to tables
    /// without the log and sets all of them at once, as one operation. Writes that were
    /// acknowledged before it installs its tables are shadowed, as by an ingest.
    ///
    /// Those of `fill`; that of a put that failed, even if `fill` ignores it; otherwise as
    /// [`Partition::ingest`]. Nothing is changed then, and no file is left.
    pub fn bulk_load_by<E: From<Error>>(
        &self,
        fill: impl FnOnce(&mut BulkLoad<'_>) -> Result<(), E>,
    ) -> Result<IngestSummary, E> {
        let db = self.db();
        let state = self.state();
        let mut arrival = Arrival::begin(db, state)?;
        check_complete(state)?;
        // Before the hooks are read: rules that change in between are noticed at the end.
        arrival.rules_epoch = state.rules_epoch();
        let hooks = state.hooks();
        // Its tables do not matter here, and a long load must not pin them.
        let version = state.view().version.without_tables();
        let factory = db.context.factory();
        let sealing = PartitionHooks {
            filters: hooks.sealing().into_iter().cloned().collect(),
            ..(*hooks).clone()
        };
        let job_hooks =
            JobHooks::new(&sealing, &[SeqNo::MAX], &[], db.setup.inject.entries.as_ref());
        let unix_time = db.runner.calendar.unix_time();
        let job_hooks = job_hooks.ageing(hooks.ageing().cloned(), unix_time, state.key_form)?;
        let seq = SeqNo::new(STORED_SEQ).expect("it is in range");
        let mut load = BulkLoad {
            db,
            partition: state,
            hooks: &sealing,
            fill: Fill::begin(job_hooks, &version, &factory, seq)?,
            last: None,
            stored: Vec::new(),
            until_look: ENTRIES_BETWEEN_LOOKS,
            failed: None,
        };
        fill(&mut load)?;
        // After a failed write a table may end in half of a block, and lacks an entry in any case.
        load.check_sound()?;
        let (tables, values) = load.fill.finish()?;
        arrival.take_built(tables, values);
        // The tables are read again only if the rules changed: the keys were checked at each put.
        let seq = db.install_arrival(state, &mut arrival, Arrival::check_built)?;
        db.events.deliver();
        Ok(IngestSummary::of(&arrival.tables, seq))
    }
}
