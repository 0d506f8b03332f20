//! Deleted ranges in transactions, and the conflicts that they are.

use super::*;

fn begin(
    db: &Db,
    p: &Partition,
    read: impl FnOnce(&siltstone::Transaction),
) -> siltstone::Transaction {
    let mut transaction = db.transaction();
    read(&transaction);
    transaction.put(p, "x", "y");
    transaction
}

#[test]
fn requirements_and_transactions_conflict_with_a_deleted_range() {
    for flushes in [false, true] {
        let fs = MemFs::new();
        let db = open(&fs);
        let p = filled(&db, small());
        let at = db.visible_seq();
        let refused = [
            begin(&db, &p, |it| drop(it.get(&p, key(10)).unwrap())),
            begin(&db, &p, |it| it.range(&p, key(5)..key(11)).for_each(drop)),
            // Phantoms: no key is there.
            begin(&db, &p, |it| drop(it.get(&p, "key 0010x").unwrap())),
            begin(&db, &p, |it| it.range(&p, "key 0019a".."key 0019b").for_each(drop)),
        ];
        let accepted = [
            begin(&db, &p, |it| drop(it.get(&p, key(20)).unwrap())),
            begin(&db, &p, |it| it.range(&p, key(5)..key(10)).for_each(drop)),
            begin(&db, &p, |it| it.range(&p, key(20)..key(400)).for_each(drop)),
        ];
        p.delete_range(key(10)..key(20)).unwrap();
        if flushes {
            db.flush().unwrap();
            p.compact(..).unwrap();
        }
        let late = db.batch().require(&p, key(10), at).put(&p, "x", "y");
        assert_eq!(late.commit(Durability::Os).unwrap_err().kind(), ErrorKind::Conflict);
        for (number, transaction) in refused.into_iter().enumerate() {
            let error = transaction.commit(Durability::Os).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict, "{number}, flushed: {flushes}");
        }
        for transaction in accepted {
            transaction.commit(Durability::Os).unwrap();
        }
        p.update(key(11), |old| {
            assert_eq!(old, None);
            Some("made")
        })
        .unwrap();
        assert_eq!(p.get(key(11)).unwrap().as_deref(), Some(&b"made"[..]));
    }
}

#[test]
fn a_transaction_sees_its_own_deleted_ranges() {
    let db = open(&MemFs::new());
    let p = filled(&db, small());
    let before = content(&p);
    let mut transaction = db.transaction();
    transaction.put(&p, key(30), "lost");
    transaction.delete_range(&p, key(20)..key(330));
    transaction.put(&p, key(40), "kept");
    transaction.delete_prefix(&p, "key 00");
    transaction.put(&p, key(41), "kept");
    assert_eq!(transaction.get(&p, key(30)).unwrap(), None);
    let keys = [key(0), key(41), key(100), key(331)];
    let found = transaction.multi_get(&p, &keys).unwrap();
    assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, false, true]);
    let mut expected = without(&before, 0..330);
    expected.insert(key(41).into(), b"kept".to_vec());
    assert_eq!(transaction.iter(&p).map(pair).collect::<Content>(), expected);
    assert_eq!(transaction.iter(&p).rev().map(pair).collect::<Content>(), expected);
    // What others put there before the commit goes as well: the transaction has read none of it.
    let mut blind = db.transaction();
    blind.delete_range(&p, key(335)..key(340));
    p.put(key(337), "other").unwrap();
    blind.commit(Durability::Os).unwrap();
    assert_eq!(p.get(key(337)).unwrap(), None);
    drop(transaction);
}
