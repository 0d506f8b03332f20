//! The builder: from options and a folder to a running database.
//!
//! Finding what lies in the folder, and making a new epoch of it, is `recovery.rs`.

mod folder;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::DbInner;
use super::background::{Background, BackgroundMode};
use super::background_io::BackgroundIo;
use super::calendar::Calendar;
use super::catalog::Catalog;
use super::commit::CommitPath;
use super::concurrent_reader;
use super::context::{DbContext, Setup};
use super::events::Events;
use super::handle::Db;
use super::hook_binding::HooksOf;
use super::inject::{InMemory, Injections};
use super::job::JobRunner;
use super::locks::LockTable;
use super::log::{DbLogEnv, Log, LogSettings};
use super::ownership::{Ownership, WriterEpoch, fork_for_reading, fork_with_live_writer};
use super::recovery::{OpenPlan, RecoveredState};
use super::resources::{Resources, WriteMemory, block_cache, open_files, options_within};
use super::scheduler::Scheduler;
use crate::clock::{Clock, SystemClock};
use crate::compaction::TableFactory;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::Result;
use crate::fs::{Fs, OsFs};
use crate::hooks::{EventListener, HookProvider, Origin, OtherWriter, OwnedEntry};
use crate::memtable::{Memtable, SlabPool};
use crate::options::Options;
use crate::partition::PartitionState;
use crate::shared::CommitCursorWriter;
use crate::stats::Counters;
use crate::types::PartitionId;
use crate::version::{DbVersion, Missing, TableContext};

pub(crate) use folder::random_from_hasher_keys;
pub(super) use folder::{DbFolder, OpenCheck, OpenMode};

/// Options for opening a database, its file system, its clock and its threads.
#[must_use = "a builder does nothing until it opens"]
pub struct Builder {
    pub(super) dir: PathBuf,
    pub(super) options: Options,
    pub(super) fs: Arc<dyn Fs>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) mode: BackgroundMode,
    random: Option<Box<dyn FnMut() -> u64 + Send>>,
    pub(super) hooks: Option<Arc<dyn HookProvider>>,
    listeners: Vec<Arc<dyn EventListener>>,
    inject: Injections,
    access: OpenMode,
    takes_over: bool,
    skips_log: bool,
    expected: OpenCheck,
    resources: Option<Resources>,
}

impl Db {
    /// Options for opening the database in the folder `path`.
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        Builder::new(path.as_ref())
    }
}

/// A folder as it was found, and what was made of it.
type StartedParts = (DbContext, HooksOf, RecoveredState);

impl Builder {
    pub(super) fn new(dir: &Path) -> Builder {
        Builder {
            dir: dir.to_owned(),
            options: Options::default(),
            fs: Arc::new(OsFs),
            clock: Arc::new(SystemClock::new()),
            mode: BackgroundMode::Threads,
            random: None,
            hooks: None,
            listeners: Vec::new(),
            inject: Injections::default(),
            access: OpenMode::Writing,
            takes_over: false,
            skips_log: false,
            expected: OpenCheck::default(),
            resources: None,
        }
    }

    /// All options at once.
    pub fn options(mut self, options: Options) -> Builder {
        self.options = options;
        self
    }

    /// [`Options::cache_bytes`].
    pub fn cache_bytes(mut self, bytes: u64) -> Builder {
        self.options.cache_bytes = bytes;
        self
    }

    /// [`Options::write_buffer_bytes`].
    pub fn write_buffer_bytes(mut self, bytes: u64) -> Builder {
        self.options.write_buffer_bytes = bytes;
        self
    }

    /// [`Options::wal_segment_bytes`].
    pub fn wal_segment_bytes(mut self, bytes: u64) -> Builder {
        self.options.wal_segment_bytes = bytes;
        self
    }

    /// [`Options::sync_interval_ms`].
    pub fn sync_interval_ms(mut self, interval_ms: u64) -> Builder {
        self.options.sync_interval_ms = interval_ms;
        self
    }

    /// Sets whether nothing is written: no folder, no file, no recovery. Default: `false`.
    ///
    /// The content of the log is replayed into memory, three times [`Options::write_buffer_bytes`]
    /// at most. Writes, and all that would write to the folder, are [`ErrorKind::ReadOnly`].
    /// Several may read at once, and no writer opens the database meanwhile; where the file `LOCK`
    /// is missing or may not be opened, no one is kept out.
    pub fn read_only(mut self, is_read_only: bool) -> Builder {
        // Not over the other option, in whatever order both come: a caller that passes all options on would open for
        // writing what it has asked to read.
        self.access = match (self.access, is_read_only) {
            (OpenMode::Writing, true) => OpenMode::Reading,
            (OpenMode::Reading, false) => OpenMode::Writing,
            (access, _) => access,
        };
        self
    }

    /// As [`Builder::read_only`], next to a process that may have the database open for writing: what
    /// that has committed by now. Default: `false`.
    ///
    /// The lock is neither asked for nor held. A lease, a file of some bytes, holds the tables until the
    /// database is closed; where nothing can be written there is none.
    pub fn beside_writer(mut self, has_live_writer: bool) -> Builder {
        self.access = match (self.access, has_live_writer) {
            (_, true) => OpenMode::WithLiveWriter,
            (OpenMode::WithLiveWriter, false) => OpenMode::Writing,
            (access, false) => access,
        };
        self
    }

    /// Sets whether the database is taken from a process that has it open for writing, on this
    /// machine: that process is fenced, and every later write of it is [`ErrorKind::Fenced`]. Default:
    /// `false`, which refuses with [`ErrorKind::Locked`].
    ///
    /// Every commit that the other process acknowledges is in this database, and none that it refuses.
    /// Commits to partitions without a log are lost as after a crash. If the other process has ended,
    /// this is an open like any other.
    pub fn take_over(mut self, takes_over: bool) -> Builder {
        self.takes_over = takes_over;
        self
    }

    /// Sets whether a folder without a database gets one. Default: `true`; `false` refuses with
    /// [`ErrorKind::Io`] and [`NotFound`](std::io::ErrorKind::NotFound).
    pub fn create_if_missing(mut self, creates: bool) -> Builder {
        self.expected.creates = creates;
        self
    }

    /// Sets whether a folder with a database is refused, with [`ErrorKind::Io`] and
    /// [`AlreadyExists`](std::io::ErrorKind::AlreadyExists). Default: `false`.
    pub fn error_if_exists(mut self, refuses: bool) -> Builder {
        self.expected.refuses_existing = refuses;
        self
    }

    /// Sets whether an open while another process writes reads nothing of the log: to verify the rest of a
    /// database whose log is damaged. Default: `false`.
    pub(crate) fn skips_log(mut self, skips_log: bool) -> Builder {
        self.skips_log = skips_log;
        self
    }

    /// Shares these with other databases of the process. Default: nothing is shared.
    pub fn resources(mut self, resources: &Resources) -> Builder {
        self.resources = Some(resources.clone());
        self
    }

    /// Another file system, for tests and exotic media. Default: the operating system's.
    pub fn fs(mut self, fs: Arc<dyn Fs>) -> Builder {
        self.fs = fs;
        self
    }

    /// Another clock. Default: the machine's monotonic one.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Builder {
        self.clock = clock;
        self
    }

    /// Sets the threads that do background work. Default: threads.
    pub fn background(mut self, mode: BackgroundMode) -> Builder {
        self.mode = mode;
        self
    }

    /// Another source of random numbers, which name new databases. Default: the
    /// operating system's, through the standard library's hasher keys.
    pub fn random(mut self, random: impl FnMut() -> u64 + Send + 'static) -> Builder {
        self.random = Some(Box::new(random));
        self
    }

    /// Sets the provider of the hooks that partitions name. Default: none.
    pub fn hooks(mut self, provider: Arc<dyn HookProvider>) -> Builder {
        self.hooks = Some(provider);
        self
    }

    /// Adds a listener, which gets the events of background work. May be called for several.
    pub fn listener(mut self, listener: Arc<dyn EventListener>) -> Builder {
        self.listeners.push(listener);
        self
    }

    /// Changes entries between the reading and the writing of flushes and compactions: for tests
    /// of what finds memory faults.
    #[doc(hidden)]
    pub fn inject(
        mut self,
        inject: impl Fn(Origin, &mut OwnedEntry) + Send + Sync + 'static,
    ) -> Builder {
        self.inject.entries = Some(Arc::new(inject));
        self
    }

    /// Changes the bytes of sections in memory: for tests of what finds memory faults.
    #[doc(hidden)]
    pub fn inject_in_memory(
        mut self,
        inject: impl Fn(InMemory, &mut Vec<u8>) + Send + Sync + 'static,
    ) -> Builder {
        self.inject.sections = Some(Box::new(inject));
        self
    }

    /// Opens the database; creates folder and database if there is nothing.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an option out of its range; [`ErrorKind::Unsupported`] if the
    /// process that is to be fenced has no commit cursor on this machine; otherwise as [`Db::open`].
    pub fn open(self) -> Result<Db> {
        self.options.check()?;
        let _span = tracing::info_span!("open", dir = %self.dir.display()).entered();
        let Builder { dir, options, fs, clock, mode, random, listeners, inject, access, .. } = self;
        let resources = self.resources;
        // Before anything is written.
        resources.as_ref().map_or(Ok(()), Resources::check_process)?;
        let options = options_within(resources.as_ref(), options);
        let mut random = random.unwrap_or_else(|| Box::new(random_from_hasher_keys));
        let events = Arc::new(Events::new(listeners));
        let found = DbFolder::find(fs, &dir, access, self.takes_over, self.expected)?;
        let DbFolder { fs, dir, lock, mut missing, writer_epoch } = found;
        let cache = block_cache(resources.as_ref(), &options);
        let args = OpenArgs {
            fs: &fs,
            dir: &dir,
            clock: &clock,
            options: &options,
            resources: resources.as_ref(),
            provider: self.hooks.as_deref(),
            events: &events,
            access,
            skips_log: self.skips_log,
            expected: self.expected,
            missing: &missing,
            writer_epoch: writer_epoch.as_ref(),
        };
        let (context, hooks, recovered) = args.start(&mut *random)?;
        let RecoveredState { versions, last_seq, memtables, segments, orphans, cursor } = recovered;
        let version = versions.current().clone();
        let memory = WriteMemory::of(resources.as_ref(), &options, &context.clock);
        let obsolete = context.obsolete_files(&options);
        let catalog = Arc::new(Catalog::new(versions, cursor.clone(), obsolete));
        if access == OpenMode::Writing {
            missing = Missing::DamageUnlessFenced(cursor.clone());
            // Before the first write is acknowledged: no secondary follows an old cursor past a new commit.
            cursor.begin(version.edit_number, last_seq)?;
            CommitCursorWriter::supersede_others(&*fs, &dir, version.epoch)?;
        }
        add_partitions(&catalog, &version, &hooks, memtables, &memory.slabs);
        catalog.obsolete().add_files(version.edit_number, orphans.files);
        catalog.obsolete().add_generations(orphans.generations);
        let counters: Arc<Counters> = Arc::default();
        let ownership = Arc::new(Ownership::new(&context, cursor.clone(), lock));
        let background = Arc::new(Background::new(mode, clock.clone(), events.clone()));
        let log_env = DbLogEnv::of(&catalog, &ownership, &background, &events, &counters);
        let settings = LogSettings::new(&context, &options);
        let log = Arc::new(Log::new(settings, last_seq, Arc::new(log_env)));
        segments.into_iter().for_each(|(number, bytes)| log.note_segment(number, bytes));
        let tables = context.table_context(cache.blocks(), missing, options.tables_mapped);
        let commit = Arc::new(CommitPath::new(last_seq, cursor, counters.clone()));
        let io = BackgroundIo::new(&options, &clock, resources.as_ref(), mode, counters.clone());
        let runner = job_runner(&context, &tables, &commit, &catalog, &events, io, &inject);
        let scheduler =
            Scheduler::new(&context, &options, &memory, &log, &runner, &background, &ownership);
        start(Arc::new(DbInner {
            scheduler: Arc::new(scheduler),
            snapshots: runner.snapshots.clone(),
            locks: Arc::new(LockTable::new(context.clock.clone(), counters.clone())),
            runner,
            ownership,
            context,
            setup: Setup::new(options, tables, cache, memory, resources, self.hooks, inject),
            counters,
            catalog,
            log,
            commit,
            events,
        }))
    }
}

/// A folder, and what it is opened with.
struct OpenArgs<'a> {
    fs: &'a Arc<dyn Fs>,
    dir: &'a Path,
    clock: &'a Arc<dyn Clock>,
    options: &'a Options,
    resources: Option<&'a Resources>,
    provider: Option<&'a dyn HookProvider>,
    events: &'a Arc<Events>,
    access: OpenMode,
    skips_log: bool,
    expected: OpenCheck,
    missing: &'a Missing,
    /// Of a writer.
    writer_epoch: Option<&'a WriterEpoch>,
}

impl OpenArgs<'_> {
    /// As [`OpenArgs::begin`], again and again while a writer changes what is read.
    fn start(&self, random: &mut dyn FnMut() -> u64) -> Result<StartedParts> {
        match concurrent_reader::other_writer(self.fs, self.dir, self.missing) {
            None => self.begin(random, None),
            Some(other) => {
                concurrent_reader::until_unchanged(|| self.begin(random, Some(other.clone())))
            }
        }
    }

    /// Reads what is there, and makes of it what was asked for.
    fn begin(
        &self,
        random: &mut dyn FnMut() -> u64,
        other: Option<OtherWriter>,
    ) -> Result<StartedParts> {
        let OpenArgs {
            fs,
            dir,
            clock,
            options,
            resources,
            provider,
            events,
            access,
            skips_log,
            expected,
            writer_epoch,
            ..
        } = *self;
        let is_writing = access == OpenMode::Writing;
        let files = open_files(resources, fs.clone(), options);
        let fork = match writer_epoch {
            Some(writer_epoch) => writer_epoch.fork(&files, dir)?,
            None if access == OpenMode::WithLiveWriter => fork_with_live_writer(&files, dir)?,
            None => fork_for_reading(&files, dir)?,
        };
        let is_forked = fork.is_some();
        let mut plan = match fork {
            Some(fork) => OpenPlan::of_fork(&**fs, dir, fork)?,
            // A reader gets no random numbers, so it cannot make a database.
            None => OpenPlan::read(&**fs, dir, is_writing.then_some(random))?,
        };
        if is_writing {
            // Under the lock, and before anything is written: the look before the lock may be outdated.
            expected.check(dir, is_forked || plan.recovered.is_some())?;
        }
        plan.claim = writer_epoch.and_then(WriterEpoch::claim);
        let mut context = plan.context(fs, dir, clock, files, !is_writing, events.queue())?;
        context.other = other;
        let hooks = plan.hooks(&context, provider)?;
        let recovered = match access {
            OpenMode::Writing => plan.begin_epoch(&context, options, &hooks)?,
            OpenMode::WithLiveWriter if skips_log => plan.without_log(&context, options),
            OpenMode::WithLiveWriter if !is_forked => {
                let committed = plan.committed(&**fs, dir)?;
                plan.replay_into_memory(&context, options, &hooks, Some(&committed))?
            }
            // After a fence nothing more is committed.
            OpenMode::Reading | OpenMode::WithLiveWriter => {
                plan.replay_into_memory(&context, options, &hooks, None)?
            }
        };
        Ok((context, hooks, recovered))
    }
}

/// The means by which jobs run.
fn job_runner(
    context: &DbContext,
    tables: &Arc<TableContext>,
    commit: &Arc<CommitPath>,
    catalog: &Arc<Catalog>,
    events: &Arc<Events>,
    io: BackgroundIo,
    inject: &Injections,
) -> Arc<JobRunner> {
    let cache = tables.cache.clone();
    let are_mapped = tables.are_mapped;
    Arc::new(JobRunner {
        factory: TableFactory { cache, are_mapped, ..context.factory() },
        tables: tables.clone(),
        commit: commit.clone(),
        catalog: catalog.clone(),
        snapshots: Arc::default(),
        events: events.clone(),
        counters: io.counters().clone(),
        io: Arc::new(io),
        calendar: Arc::new(Calendar::new(context.clock.clone(), events.clone())),
        inject: inject.entries.clone(),
    })
}

/// Adds the partitions of `version` with their hooks, and with what the log held of them and no
/// table does.
fn add_partitions(
    catalog: &Catalog,
    version: &DbVersion,
    hooks: &HooksOf,
    mut memtables: BTreeMap<PartitionId, Arc<Memtable>>,
    slabs: &Arc<SlabPool>,
) {
    let work = catalog.work();
    for partition in version.partitions.values() {
        let hooks = hooks.get(&partition.id).cloned().unwrap_or_default();
        let version = partition.clone();
        catalog.add(Arc::new(match memtables.remove(&partition.id) {
            Some(active) => PartitionState::with_active(version, hooks, active, work),
            None => PartitionState::new(version, hooks, slabs, work),
        }));
    }
}

/// Lets the parts of an open database begin their work.
fn start(inner: Arc<DbInner>) -> Result<Db> {
    let partitions = inner.catalog.partitions();
    // Before the first write: the tables that were found may already call for a stall.
    inner.scheduler.stall().update(partitions.iter().map(|partition| &**partition));
    // Weak, because the catalog belongs to the database: a strong reference would keep both for
    // ever.
    let weak = Arc::downgrade(&inner);
    inner.catalog.set_store_state(move |id| weak.upgrade()?.store_state(id));
    let db = Db::new(inner);
    let inner = db.inner();
    if !inner.ownership.is_read_only() {
        // Last, because the threads use all other parts.
        let pool = inner.setup.resources.as_ref().map(Resources::threads);
        inner.scheduler.start(inner.setup.options.compaction_threads, pool)?;
        for partition in &partitions {
            inner.scheduler.restorer().retry_gaps(partition);
        }
        // What the epoch found and does not need. A failure is noted there, and no reason to refuse the
        // open: the number of a file is not given out again, so an orphan file is harmless.
        let _ = inner.scheduler.removal().remove();
    }
    Ok(db)
}
