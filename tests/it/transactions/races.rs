//! A concurrent write at the critical time: while the caller reads a block of a table. With threads
//! this happens once in a long run; here the file system makes the write, on the same thread.

use std::sync::{Arc, Mutex};

use lsm_core::fs::{FaultFs, FsOp, MemFs, OpKind};
use siltstone::{Db, Durability, Options, Partition, Swap};

use super::is_conflict;
use crate::store::stepped;

/// A store in which every read of the table of `key` goes to the file.
struct Store {
    fs: FaultFs,
    db: Db,
    p: Partition,
}

fn store() -> Store {
    let fs = FaultFs::over_mem(MemFs::new());
    let builder = stepped(Arc::new(fs.clone()), "/db", 1);
    let db = builder.options(Options::new().cache_bytes(0)).open().unwrap();
    let p = db.partition("p").unwrap();
    p.put("key", "1").unwrap();
    p.flush().unwrap();
    Store { fs, db, p }
}

impl Store {
    /// Sets `key` when a block of a table is read next.
    fn slip_in(&self, value: &'static str) {
        let writer = Mutex::new(Some(self.p.clone()));
        self.fs.set_observer(Arc::new(move |op: &FsOp| {
            let is_table = op.path.extension().is_some_and(|kind| kind == "sst");
            if !is_table || op.kind != OpKind::Read {
                return;
            }
            let writer = writer.lock().unwrap().take();
            if let Some(writer) = writer {
                writer.put("key", value).unwrap();
            }
        }));
    }

    #[track_caller]
    fn check_value(&self, expected: &str) {
        self.fs.clear_observer();
        let value = self.p.get("key").unwrap().unwrap();
        assert_eq!(&*value, expected.as_bytes());
    }
}

/// The number is taken before the read: taken after it, the write in between would be lost.
#[test]
fn an_update_sees_what_was_written_while_it_read() {
    let store = store();
    store.slip_in("10");
    let mut seen = Vec::new();
    store
        .p
        .update("key", |old| {
            let old = std::str::from_utf8(old.unwrap()).unwrap().to_owned();
            let sum = old.parse::<u32>().unwrap() + 1;
            seen.push(old);
            Some(sum.to_string())
        })
        .unwrap();
    assert_eq!(seen, ["1", "10"]);
    store.check_value("11");
}

#[test]
fn a_swap_sees_what_was_written_while_it_compared() {
    let store = store();
    store.slip_in("10");
    let swap = store.p.compare_and_set("key", Some(b"1"), Some(b"2")).unwrap();
    assert_eq!(swap, Swap::Differs(Some("10".into())));
    store.check_value("10");
}

/// A proof is valid up to the number from before the look-up, and not for writes during it.
#[test]
fn a_read_proof_does_not_cover_writes_during_the_read() {
    let store = store();
    let at = store.db.visible_seq();
    // Tables have a newer entry now, so memory does not prove that there was no write.
    store.p.put("other", "value").unwrap();
    store.p.flush().unwrap();
    let batch = store.db.batch().require(&store.p, "key", at).put(&store.p, "key", "2");
    store.slip_in("10");
    assert!(is_conflict(&batch.commit(Durability::Os)));
    store.check_value("10");
}

/// As above, for a range that a transaction has read.
#[test]
fn a_range_proof_does_not_cover_writes_during_the_read() {
    let store = store();
    let mut transaction = store.db.transaction();
    assert_eq!(transaction.range(&store.p, "a".."z").count(), 1);
    transaction.put(&store.p, "key", "2");
    store.p.put("{", "after the range").unwrap();
    store.p.put("0", "before the range").unwrap();
    store.p.flush().unwrap();
    store.slip_in("10");
    assert!(is_conflict(&transaction.commit(Durability::Os)));
    store.check_value("10");
}
