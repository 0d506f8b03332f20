//! Counts the allocations of single calls, on the thread that makes them.

use std::sync::Arc;

use lsm_core::fs::MemFs;
use metahive::MetaHiveOptions;
use siltstone::large_values::Parallelism;
use siltstone::{BackgroundMode, Db, LargeValueOptions, Partition, PartitionOptions};

use crate::store::stepped;

const KEYS: u64 = 64;
const VALUE: [u8; 10] = [7; 10];

fn open() -> Db {
    stepped(Arc::new(MemFs::new()), "/db", 1).open().unwrap()
}

/// Takes the fewest allocations of many calls: now and then a call begins a new piece of a memtable
/// or of the log.
fn least(mut call: impl FnMut(u64)) -> u64 {
    let counts = (0..KEYS).map(|n| allocation_counter::measure(|| call(n)).count_total);
    counts.min().unwrap()
}

/// The allocations of a put, and of gets of a key in memory, of a key in a table, and of a missing
/// key.
fn of_partition(db: &Db, p: &Partition, ending: &[u8]) -> [u64; 4] {
    let keys = (0..2 * KEYS).map(|n| [&n.to_be_bytes()[..], ending].concat());
    let keys: Vec<Vec<u8>> = keys.collect();
    let (written, missing) = keys.split_at(KEYS as usize);
    for key in written {
        p.put(key, VALUE).unwrap();
    }
    let put = least(|n| assert!(p.put(&written[n as usize], VALUE).is_ok()));
    let in_memory = of_gets(p, written);
    let missing = of_gets(p, missing);
    db.flush().unwrap();
    p.get(&keys[0]).unwrap();
    [put, in_memory, missing, of_gets(p, written)]
}

fn of_gets(p: &Partition, keys: &[Vec<u8>]) -> u64 {
    least(|n| drop(p.get(&keys[n as usize]).unwrap()))
}

#[test]
fn a_partition_that_takes_any_key_allocates_no_more_than_a_plain_one() {
    let db = open();
    let plain = db.partition("plain").unwrap();
    let hive = PartitionOptions::new().metahive(MetaHiveOptions::new());
    let any_key = db.partition_with("any key", hive).unwrap();
    // The keys of the first kind are stored as they are, the others with a zero byte after them.
    for ending in [&b"2"[..], b"\0", b"\x01"] {
        let expected = of_partition(&db, &plain, ending);
        assert_eq!(of_partition(&db, &any_key, ending), expected, "keys that end in {ending:?}");
        assert_eq!(expected[1..3], [0, 0], "a short value in memory, and no value");
    }
}

#[test]
fn a_put_allocates_a_list_of_pieces_at_most() {
    // Files in memory allocate for each append.
    let folder = tempfile::tempdir().unwrap();
    let db = Db::builder(folder.path()).background(BackgroundMode::Stepped).open().unwrap();
    let p = db.partition("p").unwrap();
    // From 2 KiB on the log is given several pieces. Where the system writes pieces, it takes a
    // list of them.
    for (len, most) in [(0, 0), (100, 0), (3000, 1), (5000, 1), (60_000, 1), (200_000, 1)] {
        let value = vec![7; len];
        let put = least(|n| assert!(p.put(n.to_be_bytes(), &value).is_ok()));
        assert!(put <= most, "{put} allocations for values of {len} bytes");
    }
}

#[test]
fn a_get_of_a_large_value_into_a_buffer_allocates_for_handle_and_checksums_alone() {
    let db = open();
    let large = LargeValueOptions::new().threshold_bytes(256);
    let p = db.partition_with("p", PartitionOptions::new().large_values(large)).unwrap();
    for n in 0..KEYS {
        p.put(n.to_be_bytes(), [7; 300]).unwrap();
    }
    let mut buf = [0; 300];
    let get = least(|n| {
        let len = p.get_into(n.to_be_bytes(), &mut buf, Parallelism::Auto).unwrap();
        assert_eq!((len, buf), (Some(300), [7; 300]));
        buf.fill(0);
    });
    assert_eq!(get, 3, "the handle, the checksums, and what their hash is made of");
}

#[test]
fn a_visit_of_many_keys_in_memory_holds_one_value_at_a_time() {
    let db = open();
    let p = db.partition("p").unwrap();
    let keys: Vec<_> = (0..KEYS).map(u64::to_be_bytes).collect();
    for key in &keys {
        p.put(key, [7; 10_000]).unwrap();
    }
    let of_visits = allocation_counter::measure(|| {
        p.multi_get_each(&keys, |_, value| value.is_some_and(|value| value.len() == 10_000))
            .unwrap();
    });
    assert!(of_visits.bytes_max < 30_000, "{of_visits:?}");
}
