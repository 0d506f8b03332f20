//! The public calls as a user meets them, on real folders.

use std::io::Write;
use std::ops::Bound;

use siltstone::{
    Db, Durability, ErrorKind, LargeValueOptions, PartitionOptions, Slice, WriteOptions,
};

fn open(dir: &tempfile::TempDir) -> Db {
    Db::open(dir.path()).unwrap()
}

fn pairs(range: impl Iterator<Item = siltstone::Result<(Slice, Slice)>>) -> Vec<(String, String)> {
    range.map(|pair| pair.unwrap()).map(|(key, value)| (text(&key), text(&value))).collect()
}

fn text(slice: &Slice) -> String {
    String::from_utf8(slice.to_vec()).unwrap()
}

#[test]
fn what_was_written_reads_back_and_survives_reopening() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..4 {
        let db = open(&dir);
        let users = db.partition("users").unwrap();
        let expected = (round > 0).then(|| Slice::from(vec![round - 1; 100]));
        assert_eq!(users.get("key").unwrap(), expected);
        users.put("key", vec![round; 100]).unwrap();
        users.put(format!("k{round}"), "").unwrap();
        assert_eq!(users.get(format!("k{round}")).unwrap().as_deref(), Some(&b""[..]));
        users.delete("key").unwrap();
        assert!(!users.contains("key").unwrap());
        users.put("key", vec![round; 100]).unwrap();
        if round % 2 == 0 {
            db.flush().unwrap();
        }
        db.close().unwrap();
    }
    let db = open(&dir);
    let users = db.partition("users").unwrap();
    assert_eq!(users.prefix("k").count(), 5);
    assert_eq!(db.partition_names(), ["default", "users"]);
}

#[test]
fn ranges_iterate_from_both_ends_and_meet_in_the_middle() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let p = db.partition("p").unwrap();
    for (n, key) in ["a", "b", "c", "d", "e"].iter().enumerate() {
        p.put(key, n.to_string()).unwrap();
        if n == 2 {
            db.flush().unwrap();
        }
    }
    let keys = |range: Vec<(String, String)>| range.into_iter().map(|(k, _)| k).collect::<String>();
    assert_eq!(keys(pairs(p.range("b".."d"))), "bc");
    assert_eq!(keys(pairs(p.range("b"..="d").rev())), "dcb");
    assert_eq!(keys(pairs(p.range(..))), "abcde");
    assert_eq!(keys(pairs(p.range(.."c"))), "ab");
    assert_eq!(keys(pairs(p.range("c"..))), "cde");
    assert_eq!(keys(pairs(p.range("d".."b"))), "");
    assert_eq!(keys(pairs(p.range((Bound::Excluded("b"), Bound::Included("d"))))), "cd");
    let mut both = p.iter();
    let mut met = Vec::new();
    while let (Some(front), back) = (both.next(), both.next_back()) {
        met.push(front.unwrap().0);
        met.extend(back.map(|back| back.unwrap().0));
    }
    assert_eq!(met, ["a", "e", "b", "d", "c"]);
    assert!(both.next().is_none() && both.next_back().is_none());
    let mut cursor = p.cursor();
    cursor.seek("bb").unwrap();
    assert_eq!((cursor.key(), cursor.value().unwrap()), (&b"c"[..], &b"2"[..]));
    cursor.prev().unwrap();
    assert_eq!(cursor.key(), b"b");
    cursor.next().unwrap();
    cursor.next().unwrap();
    assert_eq!(cursor.key(), b"d");
    cursor.seek("z").unwrap();
    assert!(!cursor.valid());
}

#[test]
fn snapshots_are_consistent_over_all_partitions() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let a = db.partition("a").unwrap();
    let b = db.partition("b").unwrap();
    db.batch().put(&a, "k", "1").put(&b, "k", "1").commit(Durability::Os).unwrap();
    let snapshot = db.snapshot();
    db.batch().put(&a, "k", "2").delete(&b, "k").commit(Durability::Sync).unwrap();
    db.flush().unwrap();
    a.compact(..).unwrap();
    b.compact(..).unwrap();
    assert_eq!(snapshot.get(&a, "k").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(pairs(snapshot.iter(&b)), [("k".to_owned(), "1".to_owned())]);
    assert_eq!(a.get("k").unwrap().as_deref(), Some(&b"2"[..]));
    assert!(!b.contains("k").unwrap());
    db.drop_partition("b").unwrap();
    assert_eq!(snapshot.get(&b, "k").unwrap().as_deref(), Some(&b"1"[..]));
    let error = b.get("k").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PartitionNotFound);
    assert_eq!(b.put("k", "v").unwrap_err().kind(), ErrorKind::PartitionNotFound);
    let again = db.partition("b").unwrap();
    assert!(!again.contains("k").unwrap());
    drop((again, b, snapshot, a));
    db.close().unwrap();
    assert_eq!(open(&dir).partition("b").unwrap().iter().count(), 0);
}

#[test]
fn a_limit_takes_its_value_and_refuses_one_past_it() {
    let dir = tempfile::tempdir().unwrap();
    let options = siltstone::Options::new().value_bytes_max(1000).batch_bytes_max(5000);
    let db = Db::builder(dir.path()).options(options).open().unwrap();
    let p = db.partition("p").unwrap();
    let refused = |result: siltstone::Result<siltstone::Commit>, said: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        assert!(error.to_string().contains(said), "{error}");
    };
    let longest = vec![7; siltstone::limits::USER_KEY_BYTES_MAX];
    refused(p.put(&longest, ""), "batch size");
    refused(p.put([&longest[..], &[0]].concat(), ""), "65534");
    p.put("k", vec![1; 1000]).unwrap();
    refused(p.put("k", vec![1; 1001]), "1000");
    let batch = |n| (0..n).fold(db.batch(), |batch, _| batch.put(&p, "k", vec![2; 999]));
    batch(5).commit(Durability::Os).unwrap();
    refused(batch(5).put(&p, "l", "").commit(Durability::Os), "5000");
    assert_eq!(p.iter().count(), 1);
    let other = tempfile::tempdir().unwrap();
    let roomy = open(&other);
    let p = roomy.partition("p").unwrap();
    p.put(&longest, "v").unwrap();
    assert_eq!(p.get(&longest).unwrap().as_deref(), Some(&b"v"[..]));
    roomy.flush().unwrap();
    assert_eq!(p.keys().next().unwrap().unwrap(), longest);
    assert_eq!(roomy.partition("").unwrap_err().kind(), ErrorKind::LimitExceeded);
}

#[test]
fn a_second_open_fails_at_once_and_names_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let error = Db::open(dir.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Locked);
    assert!(error.to_string().contains(dir.path().to_str().unwrap()));
    drop(db);
    open(&dir).close().unwrap();
}

#[test]
fn partitions_without_a_log_are_independent() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let logged = db.partition("logged").unwrap();
    let bare = db.partition_with("bare", PartitionOptions::new().logged(false)).unwrap();
    bare.put("k", "v").unwrap();
    let mixed = db.batch().put(&bare, "a", "").put(&logged, "a", "").commit(Durability::Os);
    assert_eq!(mixed.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let synced = db.batch().put(&bare, "a", "").commit(Durability::Sync);
    assert_eq!(synced.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let fixed = db.partition_with("bare", PartitionOptions::new());
    assert_eq!(fixed.unwrap_err().kind(), ErrorKind::InvalidArgument);
    db.close().unwrap();
    assert_eq!(logged.get("k").unwrap_err().kind(), ErrorKind::Closed);
    drop((logged, bare));
    let db = open(&dir);
    assert!(db.partition("bare").unwrap().contains("k").unwrap());
    assert!(!db.partition("bare").unwrap().options().get_logged());
}

#[test]
fn every_call_that_writes_obeys_its_options() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let bare = db
        .partition_with(
            "bare",
            PartitionOptions::new().logged(false).large_values(LargeValueOptions::new()),
        )
        .unwrap();
    bare.put("k", "old").unwrap();
    // A partition without a log refuses a sync, so a call that ignores its options succeeds.
    let synced = WriteOptions::new().durability(Durability::Sync);
    let mut transaction = db.transaction();
    transaction.put(&bare, "k", "new");
    let mut stream = bare.put_stream("k", None).unwrap();
    stream.write_all(b"new").unwrap();
    let refusals = [
        bare.put_with("k", "new", synced),
        bare.delete_with("k", synced),
        bare.clear_with(synced),
        bare.update_with("k", synced, |_| Some("new")).map(|_| unreachable!()),
        bare.compare_and_set_with("k", Some(b"old"), Some(b"new"), synced).map(|_| unreachable!()),
        db.batch().put(&bare, "k", "new").commit(synced),
        db.batch().put(&bare, "k", "new").try_commit(synced),
        transaction.commit(synced),
        stream.commit(synced),
    ];
    for (call, refused) in refusals.into_iter().enumerate() {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument, "call {call}");
    }
    assert_eq!(bare.get("k").unwrap().as_deref(), Some(&b"old"[..]));
    assert_eq!(WriteOptions::from(Durability::default()), WriteOptions::default());
}

fn pairs_of_bytes(range: siltstone::Range) -> usize {
    range.collect::<Result<Vec<_>, _>>().unwrap().len()
}

#[test]
fn iterators_own_what_they_read() {
    let dir = tempfile::tempdir().unwrap();
    let iter = {
        let db = open(&dir);
        let p = db.partition("p").unwrap();
        for n in 0..1000u32 {
            p.put(n.to_be_bytes(), vec![0; 100]).unwrap();
        }
        let iter = p.iter();
        for n in 0..1000u32 {
            p.delete(n.to_be_bytes()).unwrap();
        }
        p.compact(..).unwrap();
        assert_eq!(p.iter().count(), 0);
        iter
    };
    assert_eq!(std::thread::spawn(|| pairs_of_bytes(iter)).join().unwrap(), 1000);
    open(&dir).close().unwrap();
}

#[test]
fn the_newest_commit_becomes_durable_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let p = db.partition("p").unwrap();
    let commit = p.put("k", "v").unwrap();
    assert_eq!(commit.seq, db.visible_seq());
    db.wait_durable(commit.seq).unwrap();
    assert!(db.durable_seq() >= commit.seq);
    let empty = db.batch().commit(Durability::Sync).unwrap();
    assert_eq!(empty.seq, commit.seq);
}
