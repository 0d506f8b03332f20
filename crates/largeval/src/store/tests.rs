//! Handles and values that a correct writer of this version does not make, and failed syncs.

use std::path::Path;
use std::sync::atomic::AtomicU64;

use lsm_core::clock::SystemClock;
use lsm_core::db::{BackgroundMode, Db, Partition, VerifyOptions};
use lsm_core::fs::{
    CrashOutcome, FaultAction, FaultAt, FaultFs, FaultRule, FsOp, MemFs, OpKind, is_out_of_handles,
};
use lsm_core::hooks::{CompactionFilterFactory, HookProvider, Hooks};
use lsm_core::options::{Compression, Durability};

use super::*;
use crate::access::{self, existing_store_of};
use crate::format::Form;
use crate::packing::SubBlockCodec;
use crate::tests::context_over;
use crate::writing::BlockWriter;

/// Makes the store of partitions from their stored parameters.
struct Provider;

impl HookProvider for Provider {
    fn compaction_filter(&self, _: &str, _: &[u8]) -> Option<Arc<dyn CompactionFilterFactory>> {
        None
    }

    fn value_store(&self, _: &str, params: &[u8]) -> Option<Arc<dyn ValueStoreFactory>> {
        Some(Arc::new(LargeValues::from_params(params)?))
    }
}

fn open_db(fs: &MemFs) -> Db {
    let builder = Db::builder("/db").fs(Arc::new(fs.clone())).hooks(Arc::new(Provider));
    builder.background(BackgroundMode::Stepped).open().unwrap()
}

/// A writer with a mistake wrote it: its checksum is right, and it is no LZ4 block.
#[test]
fn a_sub_block_that_cannot_be_decompressed_ends_no_log_and_is_damage_of_its_key() {
    let fs = MemFs::new();
    let db = open_db(&fs);
    let options = LargeValueOptions::new().compression(Compression::Lz4);
    let store: Arc<dyn ValueStoreFactory> = Arc::new(LargeValues::new(options).unwrap());
    let hooks = Hooks::new().value_store(store);
    let p = db.partition_with("p", Default::default(), Some(hooks)).unwrap();
    let shared = &existing_store_of(&p).unwrap().0;
    let writer = shared.new_writer().unwrap();
    let form = Form::Compressed { codec: SubBlockCodec::Lz4, stored_len: 0 };
    let mut block = BlockWriter::new(shared, writer, b"key", 8, 0, form);
    block.push_stored(&[b'v'; 256], 256).unwrap();
    block.push_stored(&[0xff; 50], 256).unwrap();
    let pending = block.finish().unwrap().pending;
    let handle = Handle::decode(pending.bytes()).unwrap();
    let bytes = pending.bytes().to_vec();
    let mut batch = db.batch();
    batch.add_pending(&p, b"key", pending);
    batch.commit(Durability::Os).unwrap();
    p.put("after it", "1").unwrap();
    let store = p.value_store().unwrap();
    let refused = store.call("verify", |store| {
        let value = store.value(&bytes)?;
        assert!(value.is_durable().unwrap());
        value.verify(b"key", &mut |_| Ok(()))
    });
    let refused = refused.unwrap_err();
    assert!(refused.is_corruption(), "{refused}");

    let after = fs.crash_clone(CrashOutcome::Everything, &mut || 0);
    let db = open_db(&after);
    let p = db.open_partition("p").unwrap();
    assert_eq!(p.get("after it").unwrap().unwrap(), *b"1");
    let error = p.get("key").unwrap_err();
    let damage = error.damage().unwrap();
    assert_eq!(damage.key.as_deref(), Some(&b"key"[..]));
    assert_eq!(damage.file, handle.chunk.path(Path::new("/db")));
    assert_eq!(damage.offset, Some(handle.value_offset() + 256));
}

/// A database with the bytes of `change` in its log in the place of the handle of `key`, between two other puts.
fn with_changed_handle(fs: &MemFs, change: impl FnOnce(&mut [u8])) -> (Db, Partition) {
    let db = open_db(fs);
    let options = LargeValueOptions::new().threshold_bytes(256);
    let store: Arc<dyn ValueStoreFactory> = Arc::new(LargeValues::new(options).unwrap());
    let hooks = Hooks::new().value_store(store);
    let p = db.partition_with("p", Default::default(), Some(hooks)).unwrap();
    p.put("before", "1").unwrap();
    let pending = existing_store_of(&p).unwrap().put(b"key", &[5; 1000]).unwrap();
    let mut handle = pending.bytes().to_vec();
    change(&mut handle);
    let mut batch = db.batch();
    batch.add_pending(&p, b"key", PendingHandle::new(handle, || {}));
    batch.commit(Durability::Os).unwrap();
    pending.keep();
    p.put("later", "1").unwrap();
    (db, p)
}

/// Another program wrote it, and it is not damage. Each way to a value returns the same error.
#[test]
fn every_read_of_a_handle_of_a_later_version_is_unsupported() {
    let (db, p) = with_changed_handle(&MemFs::new(), |handle| handle[0] = 4);
    check_unsupported(&p, "in memory");
    // No job needs the value.
    p.flush().unwrap();
    p.compact(..).unwrap();
    check_unsupported(&p, "in a table");
    let report = db.verify(VerifyOptions::default()).unwrap();
    assert!(report.damage().is_empty(), "{report}");
    let [file] = &report.unsupported[..] else { panic!("{report}") };
    assert!(file.contains("later version"), "{file}");
}

fn check_unsupported(p: &Partition, place: &str) {
    let mut buf = [0; 1000];
    let reads = [
        ("get", p.get("key").err()),
        ("iter", p.range("key"..="key").next().unwrap().err()),
        ("open_blob", access::open_blob(found(p), b"key").err()),
        ("get_into", access::get_into(found(p), b"key", &mut buf, Parallelism::Auto).err()),
        ("get_ref", access::get_ref(found(p), b"key").err()),
        ("get_range", access::get_range(found(p), b"key", 0..10).err()),
        ("stat_blob", access::stat_blob(found(p), b"key").err()),
    ];
    for (read, error) in reads {
        let error = error.expect(read);
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{read} {place}: {error}");
        let text = error.to_string();
        assert!(text.contains("\"p\"") && text.contains("later version"), "{read}: {text}");
    }
}

fn found(p: &Partition) -> access::Found {
    p.locate(None, "key").unwrap()
}

/// An end of the log there would lose the values of a later version for good.
#[test]
fn recovery_refuses_a_handle_of_a_later_version_and_ends_the_log_at_no_handle() {
    let fs = MemFs::new();
    let _live = with_changed_handle(&fs, |handle| handle[0] = 4);
    let after = fs.crash_clone(CrashOutcome::Everything, &mut || 0);
    let files = after.paths();
    let builder = Db::builder("/db").fs(Arc::new(after.clone())).hooks(Arc::new(Provider));
    let refused = builder.background(BackgroundMode::Stepped).open().err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert_eq!(after.paths(), files, "the version that wrote it finds all files");

    let fs = MemFs::new();
    let _live = with_changed_handle(&fs, |handle| handle[1] = 1);
    let db = open_db(&fs.crash_clone(CrashOutcome::Everything, &mut || 0));
    let p = db.open_partition("p").unwrap();
    let keys: Vec<_> = p.range(..).keys().map(Result::unwrap).collect();
    assert_eq!(keys, [&b"before"[..]]);
}

/// The engine compares the count after a sync with that before a job. It would overlook a failure that is
/// counted later.
#[test]
fn a_failed_sync_is_counted_before_it_returns() {
    let fs = FaultFs::over_mem(MemFs::new());
    let context = context_over(Arc::new(fs.clone()), Arc::new(SystemClock::new()));
    let store = LargeValues::new(LargeValueOptions::new()).unwrap().open(context, &[]).unwrap();
    let at = FaultAt::Nth { kind: OpKind::Sync, suffix: ".chunk".to_owned(), nth: 0 };
    let first = store.put(b"first", &[5; 1000]).unwrap();
    assert!(count(&*store) == 0 && !is_in_doubt(&*store, &first));
    fs.add_rule(FaultRule::once(at.clone(), FaultAction::Eio));
    store.sync().unwrap_err();
    assert!(count(&*store) == 1 && is_in_doubt(&*store, &first));
    // Not in the failed sync.
    let second = store.put(b"second", &[6; 1000]).unwrap();
    store.sync().unwrap();
    assert!(count(&*store) == 1 && !is_in_doubt(&*store, &second));
    // More than may wait for a sync: the store makes one by itself, in the put.
    fs.add_rule(FaultRule::once(at, FaultAction::Eio));
    let third = store.put(b"third", &[7; 1000]).unwrap();
    store.put(b"long", &vec![8; 65 << 20]).unwrap_err();
    assert!(count(&*store) == 2 && is_in_doubt(&*store, &third));
    // It is reported here, and counted once.
    store.sync().unwrap_err();
    assert_eq!(count(&*store), 2);
    store.sync().unwrap();
}

fn count(store: &dyn ValueStore) -> u64 {
    store.stats(StoreFigures::Counts).sync_failure_count
}

fn is_in_doubt(store: &dyn ValueStore, put: &PendingHandle) -> bool {
    store.value(put.bytes()).unwrap().is_in_doubt()
}

/// They used to count as synced. Then twice as many bytes waited for a sync, and recovery verified them.
#[test]
fn bytes_whose_sync_found_no_handle_still_wait_for_one() {
    let fs = FaultFs::over_mem(MemFs::new());
    let context = context_over(Arc::new(fs.clone()), Arc::new(SystemClock::new()));
    let store = LargeValues::new(LargeValueOptions::new()).unwrap().open(context, &[]).unwrap();
    let put = store.put(b"first", &vec![5; 40 << 20]).unwrap();
    let at = FaultAt::Nth { kind: OpKind::SyncDir, suffix: String::new(), nth: 0 };
    fs.add_rule(FaultRule::once(at, FaultAction::Emfile));
    assert!(is_out_of_handles(&store.sync().unwrap_err()));
    assert!(count(&*store) == 0 && !is_in_doubt(&*store, &put), "nothing was attempted");
    let syncs = Arc::new(AtomicU64::new(0));
    let seen = syncs.clone();
    fs.set_observer(Arc::new(move |op: &FsOp| {
        seen.fetch_add(u64::from(op.kind == OpKind::Sync), Ordering::Relaxed);
    }));
    store.put(b"second", &vec![6; 30 << 20]).unwrap();
    assert_eq!(syncs.load(Ordering::Relaxed), 1, "in the put");
}
