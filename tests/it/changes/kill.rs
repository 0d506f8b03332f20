//! A process that writes and is killed, and a follower in this one.

use std::path::Path;
use std::time::Duration;

use siltstone::changes::{FeedItem, KeyChange};
use siltstone::{Db, Durability, SeqNo};

use super::small;

const FOLDER: &str = "SILTSTONE_CHANGES_FOLDER";
const KILLS: u64 = 8;

fn kept(folder: &Path) -> Db {
    let options = small(u64::MAX).wal_segment_bytes(48 << 10).wal_bytes_max(128 << 10);
    Db::builder(folder).options(options).open().unwrap()
}

/// The writer: does nothing unless a parent starts it. Each commit has the next number in two partitions.
#[test]
fn child_that_commits_until_it_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let db = kept(Path::new(&folder));
    let [p, q] = ["p", "q"].map(|name| db.partition(name).unwrap());
    let last = p.get("last").unwrap();
    let mut number: u64 = last.map_or(0, |last| String::from_utf8_lossy(&last).parse().unwrap());
    loop {
        number += 1;
        let text = number.to_string();
        let batch = db.batch().put(&p, "last", &text).put(&q, "last", &text);
        batch.put(&q, "x", vec![7; 500]).commit(Durability::Os).unwrap();
        // A sync now and then, so that the follower finds something before the interval is over.
        if number.is_multiple_of(16) {
            db.wait_durable(db.visible_seq()).unwrap();
        }
    }
}

/// The follower is this process: its secondary and its feed end with each round, and only the token stays.
#[test]
fn a_writer_that_is_killed_again_and_again_is_followed_without_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    kept(dir.path()).close().unwrap();
    let mut position = None;
    let mut last = 0;
    for round in 0..=KILLS {
        let test = "changes::kill::child_that_commits_until_it_is_killed";
        let mut child = crate::kill::child_test(test, FOLDER, dir.path()).spawn().unwrap();
        let secondary = Db::secondary(dir.path()).unwrap();
        let changes = position.map_or_else(
            || secondary.changes(SeqNo::ZERO),
            |position| secondary.changes_from(position),
        );
        let mut changes = changes.unwrap();
        let wanted = last + 40 + round * 13;
        while last < wanted {
            // Without an end: a writer that makes no progress is a failure of the whole run.
            let item = changes.wait_next(Duration::MAX).unwrap().unwrap();
            last = next_number(&item, last);
            position = Some(changes.position());
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let db = kept(dir.path());
    let mut changes = db.changes_from(position.unwrap()).unwrap();
    while let Some(item) = changes.try_next().unwrap() {
        last = next_number(&item, last);
    }
    let found = db.partition("q").unwrap().get("last").unwrap().unwrap();
    assert_eq!(String::from_utf8_lossy(&found), last.to_string());
}

/// The number of a commit, which follows `last`.
fn next_number(item: &FeedItem, last: u64) -> u64 {
    let FeedItem::Commit(batch) = item else { panic!("{item:?}") };
    let numbers = batch.changes.iter().filter_map(|(_, change)| match change {
        KeyChange::Put { key, value } if key[..] == *b"last" => {
            Some(String::from_utf8_lossy(value).parse::<u64>().unwrap())
        }
        _ => None,
    });
    assert_eq!(numbers.collect::<Vec<_>>(), [last + 1; 2], "whole, once, and in order");
    last + 1
}
