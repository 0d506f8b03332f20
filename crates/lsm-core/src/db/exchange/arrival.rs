//! The first half of an ingest, before it may change anything: it checks the tables of an export,
//! and gives them names in the database's folder.
//!
//! Invariants:
//! 1. Every block of a table was verified, and every entry was checked against the rules of a write
//!    and, if a filter seals, against its hidden entries, before the table is named in an edit; a
//!    copy is verified again.
//! 2. Files that no edit may name are removed when the arrival is dropped.
//! 3. The database is not closed while an arrival lives: it works in the folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::description::ExportDescription;
use super::stored_key::check_stored_key;
use crate::compaction::TableFactory;
use crate::db::DbInner;
use crate::db::hook_binding::{check_table, rules_of, with_rules_of};
use crate::db::jobs::Entered;
use crate::error::{Error, Result};
use crate::fs::names::{FileKind, FileName};
use crate::fs::{AppendMode, Placed, copy, link_or_copy};
use crate::hooks::{
    CompactionFilterFactory, Emitter, Entry, Faults, InputTable, Job, JobFilter, JobKind,
    JobValues, Origin, PartitionHooks, Properties, Rules, catch_blamed,
};
use crate::iter::InternalIter;
use crate::partition::PartitionState;
use crate::sstable::{RawMode, ReadMode, SstReader};
use crate::types::{DbId, EntryKind, FileNo, KeyForm, KeyRef, SeqNo};
use crate::version::{Bounds, HookRecord, PARTITION_PROPERTY, SstMeta, Table, TableContext};

/// Tables of an export that are being added to the database.
pub(super) struct Arrival<'a> {
    db: &'a DbInner,
    partition: &'a PartitionState,
    /// Makes a close wait; present until the arrival is dropped.
    entered: Option<Entered<'a>>,
    /// As the manifest will have them, except for the sequence.
    pub(super) tables: Vec<SstMeta>,
    /// The hooks that the partition will have from then on, if it takes over rules.
    pub(super) hooks: Option<(PartitionHooks, Vec<HookRecord>)>,
    /// The values of the partition's store that tables built for this database name.
    pub(super) values: JobValues,
    /// The form of the keys that arrive.
    key_form: KeyForm,
    /// The rules that the check was made under.
    pub(super) rules_epoch: u32,
    made: Vec<PathBuf>,
}

impl<'a> Arrival<'a> {
    /// # Errors
    /// If the database is closed or takes no writes, or the partition was dropped.
    pub(super) fn begin(
        db: &'a DbInner,
        partition: &'a Arc<PartitionState>,
    ) -> Result<Arrival<'a>> {
        db.ownership.check_process()?;
        let arrival = Arrival {
            db,
            partition,
            entered: Some(db.scheduler.jobs().enter(partition)),
            tables: Vec::new(),
            hooks: None,
            values: JobValues::default(),
            key_form: KeyForm::AsGiven,
            rules_epoch: 0,
            made: Vec::new(),
        };
        // The work is entered before this check: a close that comes later waits for it.
        db.check_open()?;
        partition.check_live()?;
        partition.check_codec()?;
        Ok(arrival)
    }

    /// Checks everything that the description names, in the folder of the export.
    pub(super) fn check(&mut self, dir: &Path, description: &ExportDescription) -> Result<()> {
        self.rules_epoch = self.partition.rules_epoch();
        self.hooks = with_rules_of(
            self.db.setup.hook_provider.as_deref(),
            self.partition,
            &description.hooks,
        )?;
        self.key_form = rules_of(&description.hooks).key_form;
        let context = self.context(dir, description.db_id);
        for pair in description.tables.windows(2) {
            // All entries get one sequence number. Of two with one key, neither would be newer.
            if pair[0].largest.user >= pair[1].smallest.user {
                let path = pair[1].file_name().path(dir);
                return Err(Error::corruption(path, None, "tables of an export overlap"));
            }
        }
        for meta in &description.tables {
            self.check_table(&Table::new(meta.clone()), &context)?;
        }
        Ok(())
    }

    /// Takes tables over that were built for this database, in its folder, and the values that they
    /// name.
    pub(super) fn take_built(&mut self, tables: Vec<SstMeta>, values: JobValues) {
        let paths = tables.iter().map(|meta| meta.file_name().path(&self.db.context.dir));
        self.made.extend(paths);
        self.tables = tables;
        self.values = values;
    }

    /// Checks the tables that were built for this database against the present hooks: an ending of keys may
    /// be reserved since they were written, and a filter may not know how they were sealed.
    pub(super) fn check_built(&mut self) -> Result<()> {
        self.rules_epoch = self.partition.rules_epoch();
        let context = self.context(&self.db.context.dir, self.db.context.db_id);
        let hooks = self.partition.hooks();
        for meta in &self.tables {
            let table = Table::new(meta.clone());
            let reader = table.reader(&context)?;
            check_table(&context, &self.partition.name, &hooks, &table, reader)?;
            let mut entries = reader.iter(ReadMode::Streaming);
            entries.seek(None)?;
            while entries.valid() {
                self.partition.check_key(entries.key().user)?;
                entries.next()?;
            }
        }
        Ok(())
    }

    fn context(&self, dir: &Path, db_id: DbId) -> TableContext {
        TableFactory { dir: dir.to_owned(), db_id, ..self.db.context.factory() }.context()
    }

    /// Reads the whole table and checks it against its description, and its entries against the
    /// limits.
    fn check_table(&self, table: &Table, context: &TableContext) -> Result<()> {
        let meta = &table.meta;
        let reader = table.reader(context)?;
        let bad = |what: &str| Error::corruption(table.path(context), None, what);
        if meta.bounds != Bounds::INCLUSIVE || meta.tombstones != 0 {
            return Err(bad("a table of an export has tombstones or other bounds"));
        }
        let hooks = self.hooks();
        let suffix = &hooks.rules.reserved_suffix;
        if meta.hidden != 0 && reader.properties().hidden_suffix != *suffix {
            return Err(bad("hidden entries of an export have a different suffix"));
        }
        let mut entries = reader.iter(ReadMode::Streaming);
        entries.seek(None)?;
        let is_first = entries.valid() && entries.key() == meta.smallest.as_ref();
        if !is_first {
            return Err(bad("a table does not begin with its smallest key"));
        }
        let mut count = 0;
        let mut last = Vec::new();
        while entries.valid() {
            let key = entries.key();
            if count > 0 && *key.user <= *last {
                return Err(bad("keys of an export do not ascend").at_key(key.user));
            }
            self.check_entry(key, entries.value(), meta, reader, &hooks.rules, &bad)?;
            count += 1;
            last.clear();
            last.extend_from_slice(key.user);
            let trailer = key.trailer;
            entries.next()?;
            if !entries.valid() && KeyRef::new(&last, trailer) != meta.largest.as_ref() {
                return Err(bad("a table does not end with its largest key"));
            }
        }
        if count != meta.entries {
            return Err(bad("a table has a different number of entries than described"));
        }
        match hooks.sealing() {
            Some(filter) => self.check_sealed(&**filter, table, context),
            None => Ok(()),
        }
    }

    /// The hooks that the partition will have.
    fn hooks(&self) -> Arc<PartitionHooks> {
        match &self.hooks {
            Some((hooks, _)) => Arc::new(hooks.clone()),
            None => self.partition.hooks(),
        }
    }

    /// Passes a table that another database sealed to the sealing filter.
    fn check_sealed(
        &self,
        filter: &dyn CompactionFilterFactory,
        table: &Table,
        context: &TableContext,
    ) -> Result<()> {
        let reader = table.reader(context)?;
        let mut properties = reader.properties().user.clone();
        // The engine's own says nothing about metadata.
        properties.0.remove(PARTITION_PROPERTY);
        if table.meta.hidden == 0 && properties == Properties::default() {
            return Ok(());
        }
        // The number 0 belongs to no table of this database, so the filter has no data about it.
        let file = FileNo(0);
        let level = 0;
        let job = Job {
            inputs: &[InputTable { file, path: table.path(context), properties }],
            ..Job::new(&self.partition.name, JobKind::Compaction)
        };
        let mut filter = JobFilter::start(filter, &job)?;
        let mut faults = Faults::default();
        let mut entries = reader.raw_iter(RawMode::Streaming);
        entries.seek(None)?;
        while entries.valid() {
            let key = entries.key();
            let (block_offset, entry, block_verified) = entries.origin();
            let seq = key.trailer.seq();
            let hidden = entries.hidden();
            let value = entries.value();
            let kind = key.trailer.kind().expect("a stored entry has a kind");
            let at = Origin { file: Some(file), level, block_offset, entry, block_verified };
            let entry = Entry { key: key.user, seq, stored_seq: seq, kind, value, hidden };
            catch_blamed(|| {
                filter.call("input", |filter| filter.input(&entry, &at, None, &mut faults))
            })?;
            entries.next()?;
        }
        let mut sink = |_: &[u8], _: SeqNo, _: &[u8]| Ok(());
        let mut out = Emitter::new(&mut sink);
        catch_blamed(|| {
            filter.call("boundary", |filter| filter.boundary(None, &mut out, &mut faults))
        })?;
        match faults.first() {
            None => Ok(()),
            Some(fault) => {
                let path = table.path(context);
                let offset = fault.at.block_offset;
                Err(Error::corruption(path, offset, fault.what.clone()).at_key(&fault.key))
            }
        }
    }

    fn check_entry(
        &self,
        key: KeyRef<'_>,
        value: &[u8],
        meta: &SstMeta,
        reader: &SstReader,
        rules: &Rules,
        bad: &dyn Fn(&str) -> Error,
    ) -> Result<()> {
        check_stored_key(self.partition, rules, self.key_form, key.user)?;
        // The options of this database, which may be stricter than those where the export comes
        // from.
        let most = self.db.setup.options.value_bytes_max;
        if value.len() as u64 > most {
            return Err(Error::limit("value length", value.len() as u64, most));
        }
        if key.trailer.kind() != Some(EntryKind::Value) {
            return Err(bad("an entry of an export is no value").at_key(key.user));
        }
        if !(meta.min_seq..=meta.max_seq).contains(&key.trailer.seq()) {
            return Err(bad("a sequence is outside its table's").at_key(key.user));
        }
        // A table with a wrong filter would hide its keys from every get.
        if reader.is_missing_in_bloom(key.user) {
            return Err(bad("a key is not in its table's filter").at_key(key.user));
        }
        Ok(())
    }

    /// Gives the tables names of ours, durably.
    pub(super) fn place(&mut self, dir: &Path, description: &ExportDescription) -> Result<()> {
        for meta in &description.tables {
            let file = self.db.context.numbers.allocate();
            let epoch = self.db.context.epoch;
            let from = meta.file_name().path(dir);
            let to = FileName::new(FileKind::Sst, file, epoch).path(&self.db.context.dir);
            let foreign = Some(description.identity(meta));
            let meta = SstMeta { file, epoch, foreign, ..meta.clone() };
            // Noted before the copy, because a failed copy leaves a part of the file.
            self.made.push(to.clone());
            self.db.context.under_way.add(&to);
            // A link is the file that was checked. A copy is new bytes, which are checked again.
            if self.place_file(&from, &to)? == Placed::Copied {
                let context = self.context(&self.db.context.dir, description.db_id);
                self.check_table(&Table::new(meta.clone()), &context)?;
            }
            self.tables.push(meta);
        }
        self.db.context.fs.sync_names(&self.db.context.dir, &self.made)
    }

    fn place_file(&self, from: &Path, to: &Path) -> Result<Placed> {
        let fs = &*self.db.context.fs;
        if link_or_copy(fs, from, to, None)? == Placed::Copied {
            return Ok(Placed::Copied);
        }
        // Durability: the folder may have been copied here without a sync.
        let synced = fs.open_append(to, AppendMode::Existing).and_then(|file| file.sync());
        if synced.is_err() {
            // The file cannot be opened, or its sync failed. Its bytes are not trusted, so they are
            // copied.
            fs.delete(to)?;
            copy(fs, from, to, None)?;
            return Ok(Placed::Copied);
        }
        Ok(Placed::Linked)
    }

    /// An edit may name the files from now on: they are kept.
    pub(super) fn keep_files(&mut self) {
        self.made.clear();
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        if !self.db.is_own() {
            // A bulk load that forks in the middle of its entries.
            std::mem::forget(self.entered.take());
            return;
        }
        for path in &self.made {
            // A file that cannot be removed is an orphan until the next open.
            let _ = self.db.context.fs.delete(path);
            self.db.context.under_way.remove(path);
        }
        // After the deletions, so that a close does not release the folder before them.
        drop(self.entered.take());
        // A close of the database may wait for this.
        self.db.scheduler.background().wake_all();
    }
}
