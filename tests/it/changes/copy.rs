//! A copy in another system: what was exported, and the changes after it, as docs/beyond.md says.

use siltstone::operators::AppendOperator;
use siltstone::{Partition, Readable, Snapshot};

use super::*;
use crate::filled::pair;
use crate::store::Content;

/// Everything that was committed, once it is durable and in the feed.
fn durable(db: &Db) -> Snapshot {
    let snapshot = db.snapshot();
    db.wait_durable(snapshot.seq()).unwrap();
    snapshot
}

/// Puts and deletes what `changes` have; `with` says what becomes of an operand.
fn catch_up(
    copy: &mut Content,
    changes: &mut Changes,
    with: impl Fn(&Content, &[u8], &[u8]) -> Option<Vec<u8>>,
) {
    while let Some(changed) = changes.try_next().unwrap() {
        let FeedItem::Commit(batch) = changed else { panic!("{changed:?}") };
        for (_, change) in &batch.changes {
            let (key, value) = match change {
                KeyChange::Put { key, value } => (key, Some(value.to_vec())),
                KeyChange::Merge { key, operand } => (key, with(copy, key, operand)),
                KeyChange::Delete { key } => (key, None),
                other => panic!("{other:?}"),
            };
            match value {
                Some(value) => copy.insert(key.to_vec(), value),
                None => copy.remove(&key[..]),
            };
        }
    }
}

fn content(p: &Partition) -> Content {
    p.iter().map(pair).collect()
}

#[test]
fn a_copy_counts_no_operand_twice() {
    let db = builder(&MemFs::new(), 1 << 20).open().unwrap();
    let options = PartitionOptions::new().merge_operator(Arc::new(AppendOperator::new(",")));
    let p = db.partition_with("p", options).unwrap();
    p.put("list", "0").unwrap();
    p.put("gone", "x").unwrap();
    let token = durable(&db).seq();
    // These are in the export, and in the feed.
    p.merge("list", "1").unwrap();
    p.merge("short", "1").unwrap();
    p.delete("gone").unwrap();
    let mut export = content(&p);
    p.merge("list", "2").unwrap();
    p.delete("short").unwrap();
    p.merge("new", "3").unwrap();
    durable(&db);
    let mut changes = db.changes(token).unwrap();
    catch_up(&mut export, &mut changes, |_, key, _| p.get(key).unwrap().map(|it| it.to_vec()));
    assert_eq!(export, content(&p));
    assert_eq!(export[&b"list"[..]], b"0,1,2");

    // A copy of the snapshot that has the token may fold.
    let snapshot = durable(&db);
    let mut copy: Content = snapshot.of(&p).iter().map(pair).collect();
    p.merge("list", "4").unwrap();
    durable(&db);
    let mut changes = db.changes(snapshot.seq()).unwrap();
    catch_up(&mut copy, &mut changes, |copy, key, operand| {
        Some([copy.get(key).map_or(&b""[..], |it| it), b",", operand].concat())
    });
    assert_eq!(copy, content(&p));
    drop((changes, snapshot, p));
    db.close().unwrap();
}
