//! Following the changes: order, filters, what the log lacks, how far it reaches back, crashes, secondaries. The
//! random histories are in `model`.

mod copy;
mod kill;
mod retention;
mod wait;

use std::path::Path;
use std::sync::Arc;

use lsm_core::fs::{CrashOutcome, Fs, MemFs};
use siltstone::changes::{Changes, FeedItem, KeyChange};
use siltstone::secondary::Secondary;
use siltstone::{
    Builder, Commit, Db, Durability, Epoch, ErrorKind, LargeValueOptions, Options,
    PartitionOptions, SeqNo,
};
use testkit::Rng;

use crate::store::{settle, stepped};

fn small(retained: u64) -> Options {
    Options::new()
        .write_buffer_bytes(8 << 10)
        .wal_segment_bytes(4 << 10)
        .wal_bytes_max(16 << 10)
        .log_retained_bytes(retained)
}

fn builder(fs: &MemFs, retained: u64) -> Builder {
    stepped(Arc::new(fs.clone()), "/db", 1).options(small(retained))
}

/// One line for each change: the key with its value, `-` before a deleted one.
/// The changes after a token.
fn lines_after(db: &Db, token: u64) -> Vec<String> {
    lines(&mut db.changes(SeqNo::new(token).unwrap()).unwrap())
}

fn lines(changes: &mut Changes) -> Vec<String> {
    let mut lines = Vec::new();
    while let Some(changed) = changes.try_next().unwrap() {
        lines.push(line(&changed));
    }
    lines
}

fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

fn line(changed: &FeedItem) -> String {
    let batch = match changed {
        FeedItem::Commit(batch) => batch,
        FeedItem::Unlogged { first_seq, seq } => return format!("unlogged {first_seq} {seq}"),
        FeedItem::Dropped(partition) => return format!("dropped {}", partition.name),
        other => panic!("{other:?}"),
    };
    let changes = batch.changes.iter().map(|(partition, change)| {
        let change = match change {
            KeyChange::Put { key, value } => format!("{}={}", text(key), text(value)),
            KeyChange::PutLarge { key, value } => {
                let value = value.read().unwrap();
                format!("{}=large {:?}", text(key), value.map(|value| value.len()))
            }
            KeyChange::Delete { key } => format!("-{}", text(key)),
            KeyChange::DeleteRange { start, end } => {
                format!("-{}..{}", text(start), end.as_deref().map_or(String::new(), text))
            }
            KeyChange::Clear => "clear".to_owned(),
            other => panic!("{other:?}"),
        };
        format!("{}:{change}", partition.name)
    });
    format!("{} {}", batch.seq, changes.collect::<Vec<_>>().join(" "))
}

#[test]
fn commits_come_whole_in_order_and_when_they_are_durable() {
    let fs = MemFs::new();
    let db = builder(&fs, 0).open().unwrap();
    let [p, q] = ["p", "q"].map(|name| db.partition(name).unwrap());
    let mut all = db.changes(SeqNo::ZERO).unwrap();
    let mut of_p = db.changes(SeqNo::ZERO).unwrap().in_partition("p");
    let mut of_b = db.changes(SeqNo::ZERO).unwrap().with_prefix("b");
    p.put("a", "1").unwrap();
    assert!(all.try_next().unwrap().is_none(), "a power cut could take it back");
    let batch = db.batch().put(&p, "b", "2").delete(&q, "ba").delete_range(&q, "a".."c").clear(&p);
    batch.commit(Durability::Os).unwrap();
    let mut transaction = db.transaction();
    transaction.put(&q, "c", "3");
    transaction.delete_range(&p, "c"..);
    transaction.commit(Durability::Sync).unwrap();
    assert_eq!(lines(&mut all), ["1 p:a=1", "5 p:b=2 p:clear q:-ba q:-a..c", "7 p:-c.. q:c=3"]);
    assert_eq!(lines(&mut of_p), ["1 p:a=1", "5 p:b=2 p:clear", "7 p:-c.."]);
    assert_eq!(lines(&mut of_b), ["5 p:b=2 p:clear q:-ba q:-a..c"]);
    for feed in [&all, &of_p, &of_b] {
        assert_eq!(feed.position().seq.get(), 7, "what was passed over is not read again");
    }
    let mut later = db.changes(SeqNo::new(5).unwrap()).unwrap();
    assert_eq!(lines(&mut later), ["7 p:-c.. q:c=3"]);
    let early = db.changes(SeqNo::new(8).unwrap()).unwrap_err();
    assert_eq!(early.kind(), ErrorKind::InvalidArgument);
    drop((all, of_p, of_b, later));
    db.close().unwrap();
}

fn is_in(start: &[u8], end: &[u8], key: &[u8]) -> bool {
    start <= key && key < end
}

/// Bounds are those of the caller, also if the partition stores keys in another form.
#[test]
fn keys_and_bounds_are_those_of_the_caller() {
    let fs = MemFs::new();
    let db = builder(&fs, 0).open().unwrap();
    let sealed = PartitionOptions::new().metahive(siltstone::MetaHiveOptions::new());
    let p = db.partition_with("p", sealed).unwrap();
    for key in [&b"k"[..], b"k\0", b"k\x01", b"k\x02"] {
        p.put(key, "v").unwrap();
        p.delete_range(key..=key).unwrap();
        p.delete_range(..key).unwrap();
    }
    db.wait_durable(db.visible_seq()).unwrap();
    let mut changes = db.changes(SeqNo::ZERO).unwrap();
    for key in [&b"k"[..], b"k\0", b"k\x01", b"k\x02"] {
        let Some(FeedItem::Commit(put)) = changes.try_next().unwrap() else { panic!("no put") };
        assert!(
            matches!(&put.changes[..], [(_, KeyChange::Put { key: found, .. })] if found[..] == *key)
        );
        for is_single in [true, false] {
            let Some(FeedItem::Commit(batch)) = changes.try_next().unwrap() else { panic!("none") };
            let [(_, KeyChange::DeleteRange { start, end })] = &batch.changes[..] else {
                panic!("other")
            };
            let end = end.as_deref().unwrap();
            assert_eq!(is_in(start, end, key), is_single, "{key:?}: {start:?} to {end:?}");
            assert!(!is_in(start, end, &[key, b"\0"].concat()), "{key:?}");
            assert!(is_in(start, end, b"j") != is_single, "{key:?}");
        }
    }
}

/// Writes values that fill some segments, and flushes them.
fn fill(db: &Db, count: u32) {
    let p = db.partition("p").unwrap();
    for n in 0..count {
        p.put(n.to_be_bytes(), vec![n as u8; 700]).unwrap();
    }
    db.flush().unwrap();
    settle(db);
}

fn wal_files(fs: &MemFs) -> usize {
    let names = fs.list(Path::new("/db"), "").unwrap();
    names.iter().filter(|entry| entry.name.ends_with(".wal")).count()
}

/// The commits that a feed from `token` yields, as their numbers.
fn numbers(db: &Db, token: u64) -> Result<Vec<u64>, ErrorKind> {
    let mut changes = db.changes(SeqNo::new(token).unwrap()).unwrap();
    let mut numbers = Vec::new();
    loop {
        match changes.try_next() {
            Ok(Some(FeedItem::Commit(batch))) => numbers.push(batch.seq.get()),
            Ok(Some(other)) => panic!("{other:?}"),
            Ok(None) => return Ok(numbers),
            Err(error) => return Err(error.kind()),
        }
    }
}

#[test]
fn a_token_is_too_old_exactly_when_its_segment_is_gone() {
    for retained in [0, 5 << 10, 12 << 10, 40 << 10] {
        let fs = MemFs::new();
        let db = builder(&fs, retained).open().unwrap();
        for round in 0..4 {
            fill(&db, 20);
            let last = db.visible_seq().get();
            let outcomes: Vec<_> = (0..=last).map(|token| numbers(&db, token)).collect();
            let oldest = outcomes.iter().position(Result::is_ok).unwrap();
            for (token, outcome) in outcomes.iter().enumerate() {
                let rest: Vec<u64> = (token as u64 + 1..=last).collect();
                let expected = if token < oldest { Err(ErrorKind::TooOld) } else { Ok(rest) };
                assert_eq!(*outcome, expected, "token {token} of {last}, {retained} bytes");
            }
            let stats = db.stats();
            assert!(stats.log_retained_bytes <= retained);
            assert_eq!(
                wal_files(&fs) as u64,
                stats.wal_segment_count + stats.log_retained_segment_count
            );
            if retained == 0 {
                assert_eq!(stats.log_retained_segment_count, 0);
            } else {
                assert!(oldest as u64 + retained / 800 >= last / 2 || round > 0, "it keeps little");
                assert!(stats.log_retained_bytes + (5 << 10) > retained || oldest == 0);
            }
        }
    }
}

#[test]
fn the_log_of_earlier_epochs_stays_as_the_options_of_the_open_say() {
    let fs = MemFs::new();
    for round in 1..5_u64 {
        let db = builder(&fs, u64::MAX).open().unwrap();
        fill(&db, 20);
        let p = db.partition("p").unwrap();
        p.put("unflushed", "v").unwrap();
        db.wait_durable(db.visible_seq()).unwrap();
        let last = db.visible_seq().get();
        assert_eq!(last, 21 * round);
        for token in (0..=last).step_by(7) {
            assert_eq!(numbers(&db, token), Ok((token + 1..=last).collect()), "round {round}");
        }
        drop(p);
        if round % 2 == 0 { db.close().unwrap() } else { drop(db) }
    }
    // A token at the end is never too old.
    let db = builder(&fs, 0).open().unwrap();
    assert_eq!(numbers(&db, 84), Ok(vec![]));
    assert_eq!(numbers(&db, 83), Err(ErrorKind::TooOld));
    settle(&db);
    assert!(wal_files(&fs) as u64 <= db.stats().wal_segment_count);
}

#[test]
fn partitions_that_are_dropped_and_made_again_are_others() {
    let fs = MemFs::new();
    let db = builder(&fs, 0).open().unwrap();
    let mut changes = db.changes(SeqNo::ZERO).unwrap().in_partition("p");
    db.partition("p").unwrap().put_with("a", "1", Durability::Sync).unwrap();
    assert_eq!(lines(&mut changes), ["1 p:a=1"]);
    let first = changes.partitions().find(|it| &*it.name == "p").unwrap();
    db.partition("p").unwrap().put_with("b", "2", Durability::Sync).unwrap();
    db.drop_partition("p").unwrap();
    db.partition("p").unwrap().put_with("c", "3", Durability::Sync).unwrap();
    assert_eq!(lines(&mut changes), ["dropped p", "3 p:c=3"]);
    let second = changes.partitions().find(|it| &*it.name == "p").unwrap();
    assert!(first.id < second.id);
    // One that begins now has never known the first.
    let mut late = db.changes(SeqNo::ZERO).unwrap();
    assert_eq!(lines(&mut late), ["3 p:c=3"]);
}

#[test]
fn numbers_that_the_log_lacks_are_no_silent_gap() {
    let fs = MemFs::new();
    let db = builder(&fs, u64::MAX).open().unwrap();
    let p = db.partition("p").unwrap();
    let unlogged = db.partition_with("u", PartitionOptions::new().logged(false)).unwrap();
    let mut changes = db.changes(SeqNo::ZERO).unwrap();
    p.put("a", "1").unwrap();
    unlogged.put("x", "1").unwrap();
    unlogged.put("y", "1").unwrap();
    p.put("b", "2").unwrap();
    p.bulk_load([("c", "3"), ("d", "4")]).unwrap();
    p.put_with("e", "5", Durability::Sync).unwrap();
    let expected = ["1 p:a=1", "unlogged 2 3", "4 p:b=2", "unlogged 5 5", "6 p:e=5"];
    assert_eq!(lines(&mut changes), expected);
    // At the end of an epoch as well.
    unlogged.put("z", "1").unwrap();
    db.flush().unwrap();
    drop((p, unlogged, changes));
    db.close().unwrap();
    let db = builder(&fs, u64::MAX).open().unwrap();
    let mut changes = db.changes(SeqNo::new(6).unwrap()).unwrap();
    assert_eq!(lines(&mut changes), ["unlogged 7 7"]);
}

/// A run of the writer that logs nothing leaves numbers that no segment has.
#[test]
fn a_run_that_logs_nothing_makes_no_token_too_old() {
    let fs = MemFs::new();
    let db = builder(&fs, u64::MAX).open().unwrap();
    db.partition("p").unwrap().put_with("a", "1", Durability::Sync).unwrap();
    db.close().unwrap();
    for round in 0..3 {
        let db = builder(&fs, u64::MAX).open().unwrap();
        if round != 1 {
            db.partition("p").unwrap().bulk_load([("c", "3")]).unwrap();
        }
        if round == 0 { drop(db) } else { db.close().unwrap() }
    }
    let db = builder(&fs, u64::MAX).open().unwrap();
    assert_eq!(lines_after(&db, 0), ["1 p:a=1", "unlogged 2 3"]);
    assert_eq!(lines_after(&db, 2), ["unlogged 3 3"]);
    assert_eq!(lines_after(&db, 3), [""; 0]);
    let p = db.partition("p").unwrap();
    p.bulk_load([("d", "4")]).unwrap();
    p.put_with("b", "2", Durability::Sync).unwrap();
    db.close().unwrap();
    drop(p);
    let db = builder(&fs, u64::MAX).open().unwrap();
    let lines = lines(&mut db.changes(SeqNo::ZERO).unwrap());
    assert_eq!(lines, ["1 p:a=1", "unlogged 2 3", "unlogged 4 4", "5 p:b=2"]);
}

/// A power cut takes the number of a write that is in no log, and another commit gets it.
#[test]
fn the_token_of_a_snapshot_names_nothing_that_a_power_cut_takes() {
    let fs = MemFs::new();
    let db = builder(&fs, 0).open().unwrap();
    let p = db.partition("p").unwrap();
    let unlogged = db.partition_with("u", PartitionOptions::new().logged(false)).unwrap();
    p.put("a", "1").unwrap();
    unlogged.put("x", "1").unwrap();
    let snapshot = db.snapshot();
    db.wait_durable(snapshot.seq()).unwrap();
    let mut changes = db.changes(snapshot.seq()).unwrap();
    assert_eq!(lines(&mut changes), [""; 0]);
    let token = changes.position().seq;
    let fs = fs.crash_clone(CrashOutcome::Nothing, &mut || 0);
    let cut = builder(&fs, 0).open().unwrap();
    cut.partition("p").unwrap().put_with("b", "2", Durability::Sync).unwrap();
    assert_eq!(lines(&mut cut.changes(token).unwrap()), ["2 p:b=2"]);
    // Without a cut it goes on after the snapshot.
    p.put_with("c", "3", Durability::Sync).unwrap();
    assert_eq!(lines(&mut changes), ["3 p:c=3"]);
    assert_eq!(changes.position().seq.get(), 3);
}

#[test]
fn large_values_are_read_on_demand_and_their_loss_is_said() {
    let fs = MemFs::new();
    let db = builder(&fs, u64::MAX).open().unwrap();
    let large = LargeValueOptions::new().threshold_bytes(256).chunk_bytes(4 << 10);
    let p = db.partition_with("p", PartitionOptions::new().large_values(large)).unwrap();
    p.put("a", vec![1; 3000]).unwrap();
    p.put_with("a", vec![2; 3001], Durability::Sync).unwrap();
    let mut changes = db.changes(SeqNo::ZERO).unwrap();
    assert_eq!(lines(&mut changes), ["1 p:a=large Some(3000)", "2 p:a=large Some(3001)"]);
    db.flush().unwrap();
    p.compact(..).unwrap();
    p.reclaim().unwrap();
    db.wait_idle().unwrap();
    let mut again = db.changes(SeqNo::ZERO).unwrap();
    let found = lines(&mut again);
    assert_eq!(found[0], "1 p:a=large None");
    assert!(found[1].starts_with("2 p:a=large "), "{found:?}");
}

/// A feed that looked before the drop decodes what it has seen by that look.
#[test]
fn a_large_value_of_a_dropped_partition_is_gone() {
    let fs = MemFs::new();
    let db = builder(&fs, u64::MAX).open().unwrap();
    let large = LargeValueOptions::new().threshold_bytes(256);
    let p = db.partition_with("p", PartitionOptions::new().large_values(large)).unwrap();
    p.put("a", [1; 300]).unwrap();
    p.put_with("b", [2; 300], Durability::Sync).unwrap();
    let mut changes = db.changes(SeqNo::ZERO).unwrap();
    let first = changes.try_next().unwrap();
    assert!(matches!(first, Some(FeedItem::Commit(_))), "{first:?}");
    drop(p);
    db.drop_partition("p").unwrap();
    assert_eq!(lines(&mut changes)[0], "2 p:b=large None");
}

/// A feed that stores its token with its index, and a database whose machine loses its power again and again.
#[test]
fn a_follower_across_crashes_sees_each_durable_commit_once() {
    let mut rng = Rng::from_env_or(3);
    for outcome in CrashOutcome::ALL {
        let mut fs = MemFs::new();
        let mut token = SeqNo::ZERO;
        let mut index = std::collections::BTreeMap::new();
        for _ in 0..6 {
            let db = builder(&fs, u64::MAX).open().unwrap();
            let p = db.partition("p").unwrap();
            let mut changes = db.changes(token).unwrap();
            for n in 0..rng.next_u64() % 40 {
                let durability = if n % 7 == 0 { Durability::Sync } else { Durability::Os };
                let value = vec![n as u8; 300];
                p.put_with(n.to_be_bytes(), value, durability).unwrap();
                if rng.next_u64().is_multiple_of(4) {
                    db.step().unwrap();
                }
                while rng.next_u64().is_multiple_of(2)
                    && let Some(changed) = changes.try_next().unwrap()
                {
                    take(changed, &mut token, &mut index);
                }
            }
            fs = fs.crash_clone(outcome, &mut || rng.next_u64());
            drop((p, changes, db));
            let db = builder(&fs, u64::MAX).open().unwrap();
            let mut changes = db.changes(token).unwrap();
            while let Some(changed) = changes.try_next().unwrap() {
                take(changed, &mut token, &mut index);
            }
            let p = db.partition("p").unwrap();
            assert_eq!(crate::store::content(&p), index, "{outcome:?}");
            assert_eq!(token, db.visible_seq());
        }
    }
}

fn take(changed: FeedItem, token: &mut SeqNo, index: &mut crate::store::Content) {
    let batch = match changed {
        FeedItem::Commit(batch) => batch,
        // Commits that a power cut took, after a flush had noted their numbers.
        FeedItem::Unlogged { first_seq, seq } => {
            assert_eq!(first_seq, token.plus(1));
            *token = seq;
            return;
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(batch.first_seq, token.plus(1), "once, and without a gap");
    for (_, change) in &batch.changes {
        let KeyChange::Put { key, value } = change else { panic!("{change:?}") };
        index.insert(key.to_vec(), value.to_vec());
    }
    *token = batch.seq;
}

#[test]
fn a_secondary_has_the_same_changes_as_its_primary() {
    let fs = MemFs::new();
    let db = builder(&fs, u64::MAX).open().unwrap();
    let secondary = Db::secondary_builder("/db").fs(Arc::new(fs.clone())).open().unwrap();
    let mut followed = secondary.changes(SeqNo::ZERO).unwrap();
    let mut own = db.changes(SeqNo::ZERO).unwrap();
    let p = db.partition("p").unwrap();
    for round in 0..60_u32 {
        p.put(round.to_be_bytes(), vec![7; 400]).unwrap();
        if round % 10 == 3 {
            db.flush().unwrap();
        }
        if round % 7 == 2 {
            settle(&db);
            let lines_of_both = [&mut followed, &mut own].map(lines);
            assert_eq!(lines_of_both[0], lines_of_both[1], "round {round}");
            assert!(!lines_of_both[0].is_empty());
        }
    }
    drop((own, p));
    db.close().unwrap();
    let rest = lines(&mut followed);
    assert_eq!(followed.position().seq.get(), 60, "{rest:?}");
    // The next epoch, and a promotion in its middle.
    let db = builder(&fs, u64::MAX).open().unwrap();
    db.partition("p").unwrap().put_with("x", "1", Durability::Sync).unwrap();
    let promoted = Db::promotion(&secondary).options(small(u64::MAX)).open().unwrap();
    let fenced = db.changes(SeqNo::new(60).unwrap()).unwrap().try_next().unwrap_err();
    assert_eq!(fenced.kind(), ErrorKind::Fenced);
    promoted.partition("p").unwrap().put_with("y", "2", Durability::Sync).unwrap();
    settle(&promoted);
    assert_eq!(lines(&mut followed), ["61 p:x=1", "62 p:y=2"]);
}

/// An older copy of the database gives the same numbers to other commits, and must not be followed from a position
/// after it in silence.
#[test]
fn a_position_that_a_restore_has_lost_is_refused() {
    let fs = MemFs::new();
    let db = builder(&fs, 1 << 20).open().unwrap();
    let p = db.partition("p").unwrap();
    let before = p.put_with("a", "", Durability::Sync).unwrap();
    db.checkpoint("/old").unwrap();
    let lost = p.put_with("b", "", Durability::Sync).unwrap();
    assert_eq!(db.changes_from(lost).unwrap().position(), lost);
    let old = stepped(Arc::new(fs.clone()), "/old", 1).options(small(1 << 20)).open().unwrap();
    let p = old.partition("p").unwrap();
    let last = ["c", "d"].map(|key| p.put_with(key, "", Durability::Sync).unwrap())[1];
    assert!(last.seq > lost.seq);
    let secondary = Secondary::builder("/old").fs(Arc::new(fs.clone())).open().unwrap();
    let later = Commit { epoch: Epoch(last.epoch.0 + 1), ..last };
    for position in [lost, later] {
        let refused = [old.changes_from(position), secondary.changes_from(position)];
        for refused in refused {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::SessionLost);
        }
    }
    settle(&old);
    for mut changes in
        [old.changes_from(before), secondary.changes_from(before)].map(Result::unwrap)
    {
        assert_eq!(lines(&mut changes), ["2 p:c=", "3 p:d="]);
        assert_eq!(changes.position(), last);
    }
}
