//! A store with operands of merges: `tests/fixtures/operands/`, of the first version that could write one. Some are in
//! tables, because a snapshot or a deeper value kept them; others are only in the log.
//!
//! `BLESS_FIXTURE=operands cargo test fixture_of_operands` writes it again. Do this only before its format is released.

use siltstone::MetaHiveOptions;
use siltstone::operators::{AppendOperator, IntegerOperator, SetBitsOperator};

use super::*;

fn write_operands() -> MemFs {
    let fs = MemFs::new();
    let db = builder(&fs).open().unwrap();
    let append = PartitionOptions::new().merge_operator(Arc::new(AppendOperator::new(", ")));
    let lists = db.partition_with("lists", append.metahive(MetaHiveOptions::default())).unwrap();
    let add = PartitionOptions::new().merge_operator(Arc::new(IntegerOperator::Add));
    let sums = db.partition_with("sums", add).unwrap();
    let bits = PartitionOptions::new().merge_operator(Arc::new(SetBitsOperator));
    let bits = db.partition_with("bits", bits).unwrap();
    lists.put("a", "0").unwrap();
    lists.compact(..).unwrap();
    lists.merge("a", "1").unwrap();
    lists.merge("b", "1").unwrap();
    let snapshot = db.snapshot();
    lists.merge("a", "2").unwrap();
    db.flush().unwrap();
    drop(snapshot);
    for partition in [&lists, &bits] {
        partition.merge("a", "3").unwrap();
    }
    for n in 1..=100i64 {
        sums.merge("n", n.to_le_bytes()).unwrap();
    }
    bits.merge("a", [0, 1]).unwrap();
    let kinds: Vec<_> = lists.versions("a").unwrap().iter().map(|it| it.kind as u8).collect();
    assert_eq!(kinds, [3, 3, 3, 1], "one in memory, two of a table above a value");
    fs.crash_clone(CrashOutcome::Everything, &mut || 0)
}

fn get(db: &Db, partition: &str, key: &str) -> Vec<u8> {
    db.partition(partition).unwrap().get(key).unwrap().unwrap().to_vec()
}

#[test]
fn a_fixture_of_operands_opens_and_shows_what_they_make() {
    fixtures::bless("operands", write_operands);
    let fs = fixtures::in_memory("operands");
    for _ in 0..2 {
        let db = builder(&fs).open().unwrap();
        assert_eq!(get(&db, "lists", "a"), b"0, 1, 2, 3");
        assert_eq!(get(&db, "lists", "b"), b"1");
        assert_eq!(get(&db, "sums", "n"), 5050i64.to_le_bytes());
        assert_eq!(get(&db, "bits", "a"), [b'3', 1]);
        assert!(db.verify(Default::default()).unwrap().is_sound());
        db.partition("lists").unwrap().compact(..).unwrap();
        db.close().unwrap();
    }
}
