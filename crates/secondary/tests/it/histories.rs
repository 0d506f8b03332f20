//! Commits that a crash loses, and partitions that do not go back within an epoch.

use std::sync::atomic::Ordering;
use std::time::Duration;

use lsm_core::ErrorKind;
use lsm_core::fs::{FaultAction, FaultAt, FaultFs, FaultRule, MapMode, SyncLoss};
use lsm_core::options::{Durability, PartitionOptions};
use secondary::{Level, ReadOptions, SecondaryPartition, Target};

use super::*;

/// Numbers of words in the commit cursor.
const STATE: usize = 8;
const UNLOGGED: usize = 12;
const END: usize = 13;
const VISIBLE: usize = 14;

fn value_of(partition: &SecondaryPartition, level: Level) -> Option<String> {
    let value = partition.at(level).unwrap().get("k").unwrap();
    value.map(|value| String::from_utf8(value.to_vec()).unwrap())
}

/// Stops a primary at once, as a crash does: it stores nothing more, and its log loses what was not
/// synced.
fn lose_primary(mem: &MemFs, fault: &FaultFs, db: Db) {
    fault.add_rule(FaultRule::sticky(FaultAt::Op(fault.op_count()), FaultAction::Eio));
    drop(db);
    for name in mem.list_names(DIR.as_ref(), "").unwrap() {
        if name.ends_with(".wal") {
            mem.lose_unsynced(&Path::new(DIR).join(name), SyncLoss::Reverted).unwrap();
        }
    }
    fault.heal();
}

/// A secondary of two partitions, one of which shows a commit that its primary then loses.
struct AfterLoss {
    plain: Arc<dyn Fs>,
    follower: Secondary,
    lost: SecondaryPartition,
    other: SecondaryPartition,
}

impl AfterLoss {
    fn new() -> AfterLoss {
        let mem = MemFs::new();
        let fault = FaultFs::over_mem(mem.clone());
        let watched: Arc<dyn Fs> = Arc::new(fault.clone());
        let plain: Arc<dyn Fs> = Arc::new(mem.clone());
        let db = primary(&watched);
        let [p, q] = ["p", "q"].map(|name| db.partition(name).unwrap());
        db.batch().put(&p, "k", "kept").put(&q, "k", "kept").commit(Durability::Sync).unwrap();
        p.put("k", "lost").unwrap();
        let follower = secondary(&plain);
        let [lost, other] = ["p", "q"].map(|name| follower.partition(name).unwrap());
        assert_eq!(value_of(&lost, Level::Strong).as_deref(), Some("lost"));
        drop((p, q));
        lose_primary(&mem, &fault, db);
        AfterLoss { plain, follower, lost, other }
    }
}

#[test]
fn a_commit_that_was_lost_with_its_epoch_is_not_served_as_the_present() {
    let AfterLoss { plain, follower, lost, other } = AfterLoss::new();
    let before = lost.at(Level::Eventual).unwrap().as_of();
    let db = primary(&plain);
    let present = content_of(&db.partition("p").unwrap());
    assert_eq!(present[&b"k"[..]], b"kept");
    // A sync of the other partition moves the secondary into the new epoch.
    other.sync(Target::Latest).unwrap();
    assert_eq!(lost.at(Level::Eventual).unwrap().as_of(), before, "the view is of its own epoch");
    assert_eq!(value_of(&lost, Level::Strong).as_deref(), Some("kept"));
    let after = lost.at(Level::Strong).unwrap().as_of();
    assert!(after.epoch > before.epoch && after.seq <= before.seq);
    let news = lost.wait_for_news(before, Duration::ZERO).unwrap();
    assert_eq!(news, Some(after), "another epoch is news");
    follower.sync(Target::Latest).unwrap();
    assert_eq!(value_of(&lost, Level::Prefix).as_deref(), Some("kept"));
}

/// Epochs that the secondary did not see reuse the numbers of the lost commits.
#[test]
fn a_lost_commit_is_not_served_as_the_present_after_unseen_epochs() {
    let AfterLoss { plain, lost, other, .. } = AfterLoss::new();
    let db = primary(&plain);
    db.partition("q").unwrap().put("k", "later").unwrap();
    db.close().unwrap();
    let _next = primary(&plain);
    other.sync(Target::Latest).unwrap();
    assert_eq!(value_of(&other, Level::Strong).as_deref(), Some("later"));
    assert_eq!(value_of(&lost, Level::Strong).as_deref(), Some("kept"));
}

/// The edit of an ingest is durable before its sequence number is published.
#[test]
fn a_look_between_the_edit_of_an_ingest_and_its_publication_hides_nothing_later() {
    let fs = in_memory();
    let db = primary(&fs);
    let [p, from] = ["p", "from"].map(|name| db.partition(name).unwrap());
    from.put("k", "ingested").unwrap();
    from.export(.., "/export").unwrap();
    let follower = secondary(&fs);
    let followed = follower.partition("p").unwrap();
    assert_eq!(value_of(&followed, Level::Strong), None);
    let path = Path::new(DIR).join("cursor-00000001");
    let cursor = fs.map_words(&path, MapMode::Write).unwrap().unwrap();
    let words = cursor.words();
    let before = [UNLOGGED, VISIBLE].map(|at| words[at].load(Ordering::Acquire));
    p.ingest("/export").unwrap();
    let after = [UNLOGGED, VISIBLE].map(|at| words[at].load(Ordering::Acquire));
    words[UNLOGGED].store(before[0], Ordering::Release);
    words[VISIBLE].store(before[1], Ordering::Release);
    followed.sync(Target::Latest).unwrap();
    assert_eq!(value_of(&followed, Level::Eventual), None, "it is not published yet");
    words[UNLOGGED].store(after[0], Ordering::Release);
    words[VISIBLE].store(after[1], Ordering::Release);
    assert_eq!(value_of(&followed, Level::Strong).as_deref(), Some("ingested"));
    let as_of = followed.at(Level::Strong).unwrap().as_of();
    assert_eq!(as_of.seq.get(), after[1]);
}

#[test]
fn a_durable_sync_after_a_failed_one_takes_nothing_back() {
    let mem = MemFs::new();
    let plain: Arc<dyn Fs> = Arc::new(mem.clone());
    let fault = FaultFs::over_mem(mem);
    let watched: Arc<dyn Fs> = Arc::new(fault.clone());
    let db = primary(&plain);
    let [p, q] = ["p", "q"].map(|name| db.partition(name).unwrap());
    let follower = secondary(&watched);
    let [fp, fq] = ["p", "q"].map(|name| follower.partition(name).unwrap());
    db.batch().put(&p, "k", "1").put(&q, "k", "1").commit(Durability::Os).unwrap();
    let shown = follower.sync(Target::Latest).unwrap();
    for round in 0..3 {
        p.put("k", "2").unwrap();
        fault.add_rule(FaultRule::sticky(FaultAt::Op(fault.op_count()), FaultAction::Eio));
        fp.sync(Target::Latest).unwrap_err();
        fault.heal();
        let reached = match round {
            0 => fp.sync(Target::Durable).unwrap(),
            1 => follower.sync_group(&[&fp, &fq], Target::Durable).unwrap().as_of().unwrap(),
            _ => follower.sync(Target::Durable).unwrap(),
        };
        assert!(reached.seq >= shown.seq, "{round}: {reached:?} after {shown:?}");
        for followed in [&fp, &fq] {
            let reading = followed.at(Level::Eventual).unwrap();
            assert!(reading.as_of().seq >= shown.seq, "round {round}");
            assert_eq!(reading.get("k").unwrap().as_deref(), Some(&b"1"[..]), "round {round}");
            assert_eq!(value_of(followed, Level::Prefix).as_deref(), Some("1"));
        }
        p.put("k", "1").unwrap();
        assert_eq!(value_of(&fp, Level::Strong).as_deref(), Some("1"));
    }
}

#[test]
fn a_token_that_passed_no_log_is_there_once_the_database_is_closed() {
    let fs = in_memory();
    let db = primary(&fs);
    let logged = db.partition("p").unwrap();
    let options = PartitionOptions::new().logged(false);
    let unlogged = db.partition_with("u", options.clone(), None).unwrap();
    db.partition_with("empty", options, None).unwrap();
    logged.put("k", "1").unwrap();
    let follower = secondary(&fs);
    let token = unlogged.put("k", "2").unwrap();
    drop((logged, unlogged));
    db.close().unwrap();
    follower.wait_for(token, Duration::ZERO).unwrap();
    let cut = follower.cut();
    assert!(cut.as_of().unwrap().seq >= token.seq);
    let followed = follower.partition("u").unwrap();
    let seen = cut.partition(&followed).unwrap().get("k").unwrap();
    assert_eq!(seen.as_deref(), Some(&b"2"[..]));
    for name in ["p", "u", "empty"] {
        follower.partition(name).unwrap().at(Level::Session(token)).unwrap();
    }
}

/// Without a lease the table is deleted, and the get needs a newer state. This state must be
/// durable if the secondary has synced only to durable commits.
#[test]
fn a_deleted_file_shows_nothing_undurable_after_durable_syncs() {
    let fs = in_memory();
    let db = primary(&fs);
    let p = flushed(&db);
    let follower = leaseless(&fs);
    let followed = follower.partition("p").unwrap();
    followed.sync(Target::Durable).unwrap();
    p.put("k", "2").unwrap();
    p.compact(..).unwrap();
    db.wait_idle().unwrap();
    p.put("k", "3").unwrap();
    assert_eq!(followed.get("k").unwrap().as_deref(), Some(&b"2"[..]));
    followed.sync(Target::Latest).unwrap();
    assert_eq!(followed.get("k").unwrap().as_deref(), Some(&b"3"[..]));
}

/// The partition whose file is gone was synced to the latest commit by itself, and the others were not.
/// The new cut used to be of the latest commit for all of them.
#[test]
fn a_vanished_file_of_a_durable_cut_shows_nothing_undurable_of_other_partitions() {
    let fs = in_memory();
    let db = primary(&fs);
    let p = flushed(&db);
    let q = db.partition("q").unwrap();
    q.put("k", "1").unwrap();
    q.flush().unwrap();
    let follower = leaseless(&fs);
    let [fp, fq] = ["p", "q"].map(|name| follower.partition(name).unwrap());
    follower.sync(Target::Durable).unwrap();
    // The tables are not read before they are deleted, so that they are not open.
    p.put("l", "1").unwrap();
    fp.sync(Target::Latest).unwrap();
    assert!(fp.get("l").unwrap().is_some());
    p.put("k", "2").unwrap();
    p.compact(..).unwrap();
    db.wait_idle().unwrap();
    q.put("k", "2").unwrap();
    let of_cut = ReadOptions::new(Level::Prefix);
    assert_eq!(fp.get_with("k", &of_cut).unwrap().as_deref(), Some(&b"2"[..]));
    for options in [&of_cut, &ReadOptions::new(Level::Eventual)] {
        assert_eq!(fq.get_with("k", options).unwrap().as_deref(), Some(&b"1"[..]));
    }
    // The same for a partition that the cut does not have.
    db.partition("r").unwrap();
    let fr = follower.partition("r").unwrap();
    assert_eq!(fr.get_with("k", &of_cut).unwrap(), None);
    assert_eq!(fq.get_with("k", &of_cut).unwrap().as_deref(), Some(&b"1"[..]));
    // A caller that has asked for the latest commit of all partitions gets it again.
    p.put("l", "2").unwrap();
    p.compact(..).unwrap();
    follower.sync(Target::Latest).unwrap();
    p.put("k", "3").unwrap();
    p.compact(..).unwrap();
    db.wait_idle().unwrap();
    q.put("k", "3").unwrap();
    assert_eq!(fp.get_with("k", &of_cut).unwrap().as_deref(), Some(&b"3"[..]));
    assert_eq!(fq.get_with("k", &of_cut).unwrap().as_deref(), Some(&b"3"[..]));
}

/// A commit that a primary has logged, and was about to publish when it was killed. Its own readers may
/// have seen it.
#[test]
fn strong_reads_go_on_after_a_primary_was_killed_before_it_published_a_commit() {
    let mem = MemFs::new();
    let fault = FaultFs::over_mem(mem.clone());
    let watched: Arc<dyn Fs> = Arc::new(fault.clone());
    let plain: Arc<dyn Fs> = Arc::new(mem);
    let db = primary(&watched);
    let [p, q] = ["p", "q"].map(|name| db.partition(name).unwrap());
    let unlogged = PartitionOptions::new().logged(false);
    let u = db.partition_with("u", unlogged, None).unwrap();
    u.put("k", "flushed").unwrap();
    u.flush().unwrap();
    db.batch().put(&p, "k", "1").put(&q, "k", "1").commit(Durability::Os).unwrap();
    let follower = secondary(&plain);
    let [fp, fq, fu] = ["p", "q", "u"].map(|name| follower.partition(name).unwrap());
    let path = Path::new(DIR).join("cursor-00000001");
    let cursor = plain.map_words(&path, MapMode::Write).unwrap().unwrap();
    let words = cursor.words();
    let [end, visible] = [END, VISIBLE].map(|at| words[at].load(Ordering::Acquire));
    p.put("k", "2").unwrap();
    u.put("k", "lost").unwrap();
    words[END].store(end, Ordering::Release);
    words[VISIBLE].store(visible, Ordering::Release);
    let at_once = ReadOptions::new(Level::Strong).wait(Duration::ZERO);
    let behind = fp.read(&at_once).err().unwrap();
    assert_eq!(behind.kind(), ErrorKind::Behind, "the primary lives: {behind}");
    assert_eq!(value_of(&fq, Level::Strong).as_deref(), Some("1"));
    let refused = fu.read(&at_once).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::NotLogged, "{refused}");

    fault.add_rule(FaultRule::sticky(FaultAt::Op(fault.op_count()), FaultAction::Eio));
    drop((p, q, u, db));
    fault.heal();
    words[STATE].store(1, Ordering::Release);
    let found = fp.read(&at_once).unwrap().get("k").unwrap();
    assert_eq!(found.as_deref(), Some(&b"2"[..]));
    let found = fu.read(&at_once).unwrap().get("k").unwrap();
    assert_eq!(found.as_deref(), Some(&b"flushed"[..]));
    follower.sync(Target::Latest).unwrap();
    assert_eq!(value_of(&fp, Level::Prefix).as_deref(), Some("2"));

    let next = primary(&plain);
    assert_eq!(content_of(&next.partition("p").unwrap())[&b"k"[..]], b"2");
    assert_eq!(value_of(&fp, Level::Strong).as_deref(), Some("2"));
    next.partition("p").unwrap().put("k", "3").unwrap();
    assert_eq!(value_of(&fp, Level::Strong).as_deref(), Some("3"));
}
