//! Large values switched on for an existing partition by an edit that fails.

use std::collections::BTreeMap;
use std::sync::Arc;

use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, MemFs, OpKind};
use siltstone::{ErrorKind, Partition, PartitionOptions};

use super::{content, open, open_with, options};
use crate::clock::ManualClock;

/// Puts a value of 700 bytes, which is above the threshold of large values, under each key.
fn put_all(p: &Partition, expected: &mut BTreeMap<Vec<u8>, Vec<u8>>, keys: std::ops::Range<u8>) {
    for key in keys {
        let value = vec![key; 700];
        p.put([key], &value).unwrap();
        expected.insert(vec![key], value);
    }
}

/// A failed switch used to leave the value store attached. Later puts stored their values in chunk
/// files that no edit named, and the next open removed these files.
#[test]
fn values_put_after_a_failed_switch_are_there_after_the_next_open() {
    for is_tried_again in [false, true] {
        let mem = MemFs::new();
        let fs = FaultFs::over_mem(mem.clone());
        let db = open_with(Arc::new(fs.clone()), "/db", &ManualClock::default()).unwrap();
        let plain = PartitionOptions::new().table_bytes(1 << 10).block_bytes(128);
        let p = db.partition_with("p", plain).unwrap();
        let mut expected = BTreeMap::new();
        put_all(&p, &mut expected, 0..10);
        p.flush().unwrap();
        let at = FaultAt::Nth { kind: OpKind::Append, suffix: ".manifest".to_owned(), nth: 0 };
        fs.add_rule(FaultRule::once(at, FaultAction::Enospc));
        let failed = db.partition_with("p", options()).unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::NoSpace, "{failed}");
        assert_eq!(fs.fault_count(), 1);
        put_all(&p, &mut expected, 5..20);
        p.compact(..).unwrap();
        if is_tried_again {
            db.partition_with("p", options()).unwrap();
        }
        put_all(&p, &mut expected, 15..30);
        p.flush().unwrap();
        db.wait_idle().unwrap();
        put_all(&p, &mut expected, 25..40);
        assert_eq!(content(&p), expected);
        drop(p);
        db.close().unwrap();
        let db = open(&mem);
        assert_eq!(content(&db.partition("p").unwrap()), expected);
        assert!(db.verify(Default::default()).unwrap().is_sound());
    }
}
