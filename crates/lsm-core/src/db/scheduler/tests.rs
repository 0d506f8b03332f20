//! The scheduler over its parts, without a database, and in one.

use std::path::Path;

use super::*;
use crate::clock::SystemClock;
use crate::compaction::TableFactory;
use crate::db::Db;
use crate::db::calendar::Calendar;
use crate::db::catalog::Catalog;
use crate::db::commit::CommitPath;
use crate::db::events::Events;
use crate::db::ownership::HeldLock;
use crate::db::testing::{DB, DIR, EPOCH, TestLog, catalog, unlimited_io, version_of};
use crate::fs::{Fs, MemFs, OpenFiles};
use crate::hooks::{EventQueue, PartitionHooks, StoreWishes};
use crate::memtable::SlabPool;
use crate::options::PartitionOptions;
use crate::shared::CommitCursorWriter;
use crate::types::{
    EntryKind, FileNo, FileNumbers, Opened, Operation, OperationChecksum, SectionBytes, SeqNo,
};
use crate::version::{Change, Missing};

fn context(fs: &Arc<dyn Fs>) -> DbContext {
    DbContext {
        fs: fs.clone(),
        dir: DIR.into(),
        files: OpenFiles::new(fs.clone(), usize::MAX),
        clock: Arc::new(SystemClock::new()),
        db_id: DB,
        epoch: EPOCH,
        numbers: Arc::new(FileNumbers::new(FileNo(1))),
        under_way: Arc::default(),
        is_read_only: false,
        other: None,
        events: EventQueue::default(),
        wishes: StoreWishes::default(),
    }
}

/// The parts of a database over which a scheduler is built, and a partition without a log.
struct Parts {
    scheduler: Arc<Scheduler>,
    log: Arc<Log>,
    partition: Arc<PartitionState>,
}

impl Parts {
    fn new() -> Parts {
        let fs: Arc<dyn Fs> = Arc::new(MemFs::new());
        fs.create_dir(Path::new(DIR)).unwrap();
        let context = context(&fs);
        let options = Options::default();
        let events = Arc::new(Events::default());
        let cursor = Arc::new(CommitCursorWriter::none());
        let catalog = Arc::new(catalog());
        let runner = JobRunner {
            factory: TableFactory { under_way: None, ..context.factory() },
            tables: context.table_context(None, Missing::Damage, false),
            commit: Arc::new(CommitPath::new(
                SeqNo::new(1).unwrap(),
                cursor.clone(),
                Arc::default(),
            )),
            catalog: catalog.clone(),
            snapshots: Arc::default(),
            calendar: Arc::new(Calendar::new(context.clock.clone(), events.clone())),
            events: events.clone(),
            counters: Arc::default(),
            io: Arc::new(unlimited_io()),
            inject: None,
        };
        let clock = context.clock.clone();
        let slabs = Arc::new(SlabPool::new(0));
        let memory = WriteMemory { slabs: slabs.clone(), clock, budget: None };
        let partition = Parts::partition(&catalog, &slabs);
        let lock = fs.try_lock(&Path::new(DIR).join("LOCK")).unwrap();
        let lock = HeldLock { _lock: lock.unwrap(), _opened: Opened::note().unwrap() };
        let ownership = Arc::new(Ownership::new(&context, cursor, lock));
        let mode = BackgroundMode::Stepped;
        let background = Arc::new(Background::new(mode, context.clock.clone(), events));
        let log = Arc::new(TestLog::new(1 << 20).log);
        let runner = Arc::new(runner);
        let scheduler =
            Scheduler::new(&context, &options, &memory, &log, &runner, &background, &ownership);
        Parts { scheduler: Arc::new(scheduler), log, partition }
    }

    fn partition(catalog: &Catalog, slabs: &Arc<SlabPool>) -> Arc<PartitionState> {
        let options = PartitionOptions::new().logged(false);
        let mut editing = catalog.edit().unwrap();
        let id = editing.current().next_partition;
        let version = version_of(id.0, "p");
        let created = Change::PartitionCreated {
            id,
            name: version.name.to_string(),
            options,
            hooks: Vec::new(),
            created_at_edit: 1,
        };
        let version = editing.install(vec![created]).unwrap().partitions[&id].clone();
        let hooks = PartitionHooks::default();
        let partition = Arc::new(PartitionState::new(version, hooks, slabs, catalog.work()));
        drop(editing);
        catalog.add(partition.clone());
        partition
    }

    /// Puts an entry into the active memtable, and seals it.
    fn seal_entry(&self) {
        let section = SectionBytes::Shared(b"kv".as_slice().into());
        let operation = Operation { kind: EntryKind::Value, key: 0..1, value: 1..2 };
        let sums = OperationChecksum::new(EntryKind::Value, b"k", b"v");
        let seq = SeqNo::new(1).unwrap();
        let view = self.partition.view();
        view.active.writer().insert(seq, u64::MAX, sums, &section, &operation).unwrap();
        drop(view);
        self.scheduler.sealer().seal(&mut self.log.lock(), &self.partition);
    }
}

#[test]
fn a_scheduler_without_a_database_flushes_what_is_sealed() {
    let parts = Parts::new();
    assert!(!parts.scheduler.has_work());
    parts.seal_entry();
    assert!(parts.scheduler.has_work() && parts.scheduler.step().unwrap());
    let view = parts.partition.pin();
    assert!(view.sealed.is_empty());
    assert_eq!(view.version.levels[0].tables().len(), 1);
    assert_eq!(parts.scheduler.stall().sealed_bytes(), 0);
    drop(view);
    parts.scheduler.wait_idle().unwrap();
    assert!(!parts.scheduler.has_work());
}

/// Threads of a database that works step by step do nothing when they are woken, so each wake-up
/// counts.
#[test]
fn a_writer_whose_memtable_takes_a_slab_wakes_the_thread_that_prepares_the_next_ones() {
    let builder = Db::builder("/db").fs(Arc::new(MemFs::new()));
    let db = builder.background(BackgroundMode::Stepped).open().unwrap();
    let p = db.partition("p").unwrap();
    let inner = db.inner();
    inner.scheduler.tend_log().unwrap();
    assert_eq!(inner.setup.slabs.idle_bytes(), 0, "none was taken");
    // Beyond the first slabs of a memtable, which are short and come from the allocator.
    for n in 0..2000_u32 {
        p.put(n.to_be_bytes(), [7; 900]).unwrap();
    }
    assert_eq!(inner.setup.slabs.idle_bytes(), 0, "a writer prepares none");
    inner.scheduler.tend_log().unwrap();
    let prepared = inner.setup.slabs.idle_bytes();
    assert!(prepared > 0);
    let mut takes = 0;
    for n in 2000..6000_u32 {
        let wakes = inner.scheduler.background().wakes();
        p.put(n.to_be_bytes(), [7; 900]).unwrap();
        if inner.setup.slabs.idle_bytes() < prepared {
            takes += 1;
            assert!(
                inner.scheduler.background().wakes() > wakes,
                "put {n} takes a slab and wakes no thread"
            );
            inner.scheduler.tend_log().unwrap();
            assert_eq!(inner.setup.slabs.idle_bytes(), prepared);
        }
    }
    assert!(takes > 0);
}
