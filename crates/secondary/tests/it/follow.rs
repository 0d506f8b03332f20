//! The writes that a secondary sees, and those that it does not.

use lsm_core::ErrorKind;
use lsm_core::db::{BackgroundMode, VerifyOptions};
use lsm_core::fs::{AppendMode, FaultAction, FaultAt, FaultFs, FaultRule, OpKind};
use lsm_core::options::{Durability, Options, PartitionOptions};
use secondary::{Level, ReadOptions, Target};

use super::*;

#[test]
fn a_partition_is_caught_up_with_and_the_others_stay() {
    let fs = in_memory();
    let db = primary(&fs);
    let a = db.partition("a").unwrap();
    let b = db.partition("b").unwrap();
    a.put("k", "1").unwrap();
    let follower = secondary(&fs);
    let fa = follower.partition("a").unwrap();
    let fb = follower.partition("b").unwrap();
    assert_eq!(fa.get("k").unwrap(), None, "opening reads no log");
    a.put("k", "2").unwrap();
    b.put("k", "3").unwrap();
    fa.sync(Target::Latest).unwrap();
    assert_eq!(fa.get("k").unwrap().as_deref(), Some(&b"2"[..]));
    assert_eq!(fb.get("k").unwrap(), None, "it was not asked for");
    fb.sync(Target::Latest).unwrap();
    assert_eq!(fb.get("k").unwrap().as_deref(), Some(&b"3"[..]));
    a.delete("k").unwrap();
    assert_eq!(fa.at(Level::Strong).unwrap().get("k").unwrap(), None);
}

#[test]
fn what_was_flushed_leaves_the_memtables_and_is_read_from_tables() {
    let fs = in_memory();
    let db = primary(&fs);
    let p = db.partition("p").unwrap();
    let follower = secondary(&fs);
    let followed = follower.partition("p").unwrap();
    for round in 0..5 {
        for key in 0..100 {
            p.put(format!("{key:03}"), format!("{round} {}", "x".repeat(50))).unwrap();
        }
        follower.sync(Target::Latest).unwrap();
        let before = follower.memtable_bytes();
        assert!(before > 5_000, "{before}");
        p.flush().unwrap();
        db.wait_idle().unwrap();
        follower.sync(Target::Latest).unwrap();
        assert!(follower.memtable_bytes() < 5_000, "{}", follower.memtable_bytes());
        assert_eq!(content(&followed.at(Level::Eventual).unwrap()), content_of(&p));
    }
    p.compact(..).unwrap();
    assert_eq!(content(&followed.at(Level::Strong).unwrap()), content_of(&p));
}

/// The headers of all frames are read once. After that a partition costs only its own bytes,
/// wherever they are in the log.
#[test]
fn a_partition_costs_its_own_bytes_of_the_log() {
    const PARTITIONS: usize = 16;
    const VALUE_BYTES: usize = 1000;
    let fault = FaultFs::over_mem(MemFs::new());
    let fs: Arc<dyn Fs> = Arc::new(fault.clone());
    // Everything stays in the log.
    let options = options().write_buffer_bytes(64 << 20).wal_segment_bytes(2 << 20);
    let options = options.wal_bytes_max(128 << 20);
    let db = Db::builder(DIR).fs(fs.clone()).options(options);
    let db = db.background(BackgroundMode::Stepped).open().unwrap();
    let names: Vec<String> = (0..PARTITIONS).map(|number| format!("p{number:02}")).collect();
    let partitions: Vec<_> = names.iter().map(|name| db.partition(name).unwrap()).collect();
    for key in 0..200_u32 {
        for partition in &partitions {
            partition.put(key.to_be_bytes(), [7; VALUE_BYTES]).unwrap();
        }
    }
    let follower = secondary(&fs);
    follower.partition(&names[0]).unwrap().sync(Target::Latest).unwrap();
    for name in &names[1..] {
        let followed = follower.partition(name).unwrap();
        fault.start_log();
        followed.sync(Target::Latest).unwrap();
        let log = fault.take_log();
        let read: u64 = log.iter().filter(|op| op.kind == OpKind::Read).map(|op| op.len).sum();
        let own = 200 * VALUE_BYTES as u64;
        assert!(own < read && read < own * 5 / 4, "{read} bytes were read for {own}");
        assert_eq!(content(&followed.at(Level::Eventual).unwrap()).len(), 200);
    }
}

/// A whole frame in the log proves nothing. The append of this one fails after all of its bytes
/// have reached the file, and the disk has no room for the segment that would mark it as refused.
#[test]
fn a_write_that_the_primary_refused_is_never_seen() {
    for has_cursor in [true, false] {
        let fault = FaultFs::over_mem(MemFs::new());
        let fs: Arc<dyn Fs> = Arc::new(fault.clone());
        let db = primary(&fs);
        let p = db.partition("p").unwrap();
        db.batch().put(&p, "good", "1").commit(Durability::Sync).unwrap();
        db.wait_idle().unwrap();
        if !has_cursor {
            delete_cursor(&fs);
        }
        let follower = secondary(&fs);
        let followed = follower.partition("p").unwrap();
        let wal = |kind| FaultAt::Nth { kind, suffix: ".wal".into(), nth: 0 };
        let short = FaultAction::ShortWrite(u64::MAX);
        fault.add_rule(FaultRule::once(wal(OpKind::Append), short));
        fault.add_rule(FaultRule::sticky(wal(OpKind::Create), FaultAction::Enospc));
        p.put("refused", "x").unwrap_err();
        let seen = |level: Level| {
            followed.sync(Target::Latest).unwrap();
            let reading = followed.at(level).unwrap();
            assert_eq!(reading.get("refused").unwrap(), None);
            assert_eq!(reading.get("good").unwrap().as_deref(), Some(&b"1"[..]));
        };
        let level = if has_cursor { Level::Strong } else { Level::Eventual };
        seen(level);
        fault.heal();
        p.put("later", "2").unwrap();
        seen(level);
        db.wait_durable(db.visible_seq()).unwrap();
        db.wait_idle().unwrap();
        seen(level);
        assert_eq!(followed.get("later").unwrap().as_deref(), Some(&b"2"[..]));
    }
}

#[test]
fn without_a_cursor_only_what_the_log_attests_is_seen_and_nothing_is_called_strong() {
    let fs = in_memory();
    let db = primary(&fs);
    let p = db.partition("p").unwrap();
    delete_cursor(&fs);
    let follower = secondary(&fs);
    let followed = follower.partition("p").unwrap();
    p.put("k", "1").unwrap();
    followed.sync(Target::Latest).unwrap();
    assert_eq!(followed.get("k").unwrap(), None, "it may still be refused");
    assert!(!follower.has_live_primary());
    let refused = followed.at(Level::Strong).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    // Synced, and proven durable by the mark after it.
    db.wait_idle().unwrap();
    followed.sync(Target::Latest).unwrap();
    assert_eq!(followed.get("k").unwrap().as_deref(), Some(&b"1"[..]));
    p.put("k", "2").unwrap();
    db.close().unwrap();
    // No process writes any more, and the manifest records where the log ends.
    assert_eq!(followed.at(Level::Strong).unwrap().get("k").unwrap().as_deref(), Some(&b"2"[..]));
}

#[test]
fn partitions_come_and_go() {
    let fs = in_memory();
    let db = primary(&fs);
    let follower = secondary(&fs);
    assert_eq!(follower.partition_names(), ["default"]);
    let missing = follower.partition("late").err().unwrap();
    assert_eq!(missing.kind(), ErrorKind::PartitionNotFound);
    let late = db.partition("late").unwrap();
    late.put("k", "1").unwrap();
    let followed = follower.partition("late").unwrap();
    let kept = followed.at(Level::Strong).unwrap();
    db.drop_partition("late").unwrap();
    db.partition("late").unwrap().put("k", "2").unwrap();
    db.wait_idle().unwrap();
    let gone = followed.at(Level::Strong).err().unwrap();
    assert_eq!(gone.kind(), ErrorKind::PartitionNotFound);
    assert_eq!(kept.get("k").unwrap().as_deref(), Some(&b"1"[..]), "a view never changes");
    let again = follower.partition("late").unwrap().at(Level::Strong).unwrap();
    assert_eq!(again.get("k").unwrap().as_deref(), Some(&b"2"[..]));
}

#[test]
fn files_that_a_view_reads_stay_until_it_is_gone() {
    let fs = in_memory();
    let db = primary(&fs);
    let p = db.partition("p").unwrap();
    for key in 0..50 {
        p.put(format!("{key:02}"), "old").unwrap();
    }
    p.flush().unwrap();
    let follower = secondary(&fs);
    let followed = follower.partition("p").unwrap();
    let view = followed.at(Level::Strong).unwrap();
    let before = content_of(&p);
    let tables =
        || fs.list(DIR.as_ref(), "").unwrap().iter().filter(|e| e.name.ends_with(".sst")).count();
    for key in 0..50 {
        p.put(format!("{key:02}"), "new").unwrap();
    }
    p.compact(..).unwrap();
    db.wait_idle().unwrap();
    assert!(db.stats().leased_bytes > 0 && tables() > 1, "the lease holds the old tables");
    assert_eq!(content(&view), before, "no file is opened before it is read");
    // The secondary catches up; only the view holds the past.
    follower.sync(Target::Latest).unwrap();
    db.wait_idle().unwrap();
    assert!(tables() > 1);
    drop(view);
    follower.sync(Target::Latest).unwrap();
    p.put("00", "x").unwrap();
    p.flush().unwrap();
    follower.sync(Target::Latest).unwrap();
    p.compact(..).unwrap();
    follower.sync(Target::Latest).unwrap();
    db.wait_idle().unwrap();
    assert_eq!((tables(), db.stats().leased_bytes), (1, 0));
    // A secondary that dies holds nothing.
    drop((followed, follower));
    p.put("00", "y").unwrap();
    p.compact(..).unwrap();
    db.wait_idle().unwrap();
    assert_eq!(tables(), 1);
    assert!(fs.list(DIR.as_ref(), "reader-").unwrap().is_empty());
}

#[test]
fn without_a_lease_a_vanished_file_is_no_missing_key() {
    let fs = in_memory();
    let db = primary(&fs);
    let p = flushed(&db);
    let follower = leaseless(&fs);
    let followed = follower.partition("p").unwrap();
    followed.sync(Target::Latest).unwrap();
    let view = followed.at(Level::Eventual).unwrap();
    p.put("k", "2").unwrap();
    p.compact(..).unwrap();
    db.wait_idle().unwrap();
    let gone = view.get("k").err().unwrap();
    assert_eq!(gone.kind(), ErrorKind::FileGone, "{gone}");
    assert_eq!(view.iter().next().unwrap().err().unwrap().kind(), ErrorKind::FileGone);
    assert_eq!(followed.get("k").unwrap().as_deref(), Some(&b"2"[..]), "it looked again");
}

#[test]
fn without_a_lease_a_get_of_a_prefix_reads_a_new_cut_where_a_file_vanished() {
    let fs = in_memory();
    let db = primary(&fs);
    let p = flushed(&db);
    let follower = leaseless(&fs);
    let followed = follower.partition("p").unwrap();
    follower.sync(Target::Latest).unwrap();
    let before = follower.cut().as_of();
    p.put("k", "2").unwrap();
    p.compact(..).unwrap();
    db.wait_idle().unwrap();
    let found = followed.get_with("k", &ReadOptions::new(Level::Prefix)).unwrap();
    assert_eq!(found.as_deref(), Some(&b"2"[..]));
    assert!(follower.cut().as_of().unwrap().seq > before.unwrap().seq, "of all partitions");
}

#[test]
fn the_next_primary_is_followed_and_its_predecessors_tables_stay_for_views() {
    let fs = in_memory();
    let db = primary(&fs);
    let p = flushed(&db);
    let follower = secondary(&fs);
    let followed = follower.partition("p").unwrap();
    let view = followed.at(Level::Strong).unwrap();
    drop(p);
    db.close().unwrap();
    for round in 2..5 {
        let db = primary(&fs);
        let p = db.partition("p").unwrap();
        p.put("k", round.to_string()).unwrap();
        p.compact(..).unwrap();
        db.wait_idle().unwrap();
        let seen = followed.at(Level::Strong).unwrap().get("k").unwrap();
        assert_eq!(seen.as_deref(), Some(round.to_string().as_bytes()));
        assert_eq!(view.get("k").unwrap().as_deref(), Some(&b"1"[..]));
        drop(p);
        db.close().unwrap();
    }
    let seen = followed.at(Level::Strong).unwrap();
    assert_eq!(seen.get("k").unwrap().as_deref(), Some(&b"4"[..]), "of a closed database as well");
}

#[test]
fn a_partition_without_a_log_follows_flushes() {
    let fs = in_memory();
    let db = primary(&fs);
    let p = db.partition_with("p", PartitionOptions::new().logged(false), None);
    let p = p.unwrap();
    let follower = secondary(&fs);
    let followed = follower.partition("p").unwrap();
    p.put("k", "1").unwrap();
    let refused = followed.at(Level::Strong).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::NotLogged, "{refused}");
    assert_eq!(followed.get("k").unwrap(), None);
    p.flush().unwrap();
    let seen = followed.at(Level::Strong).unwrap();
    assert_eq!(seen.get("k").unwrap().as_deref(), Some(&b"1"[..]));
}

/// An ingest does not pass the log. A memtable that still held what a flush covered would hide it.
#[test]
fn an_ingest_is_seen_over_what_was_written_before() {
    let fs = in_memory();
    let db = primary(&fs);
    let p = db.partition("p").unwrap();
    let from = db.partition("from").unwrap();
    from.put("k", "ingested").unwrap();
    from.export(.., "/export").unwrap();
    let follower = secondary(&fs);
    let followed = follower.partition("p").unwrap();
    p.put("k", "1").unwrap();
    p.put("other", "2").unwrap();
    followed.sync(Target::Latest).unwrap();
    p.ingest("/export").unwrap();
    p.put("other", "3").unwrap();
    assert_eq!(content(&followed.at(Level::Strong).unwrap()), content_of(&p));
    assert_eq!(followed.get("k").unwrap().as_deref(), Some(&b"ingested"[..]));
}

/// With a limit of 0 bytes, the primary revokes the lease as soon as it can delete a file.
#[test]
fn a_secondary_whose_lease_is_taken_away_reads_on_and_what_it_showed_ends() {
    let fs = in_memory();
    let options = Options::new().leased_bytes_max(0);
    let db = Db::builder(DIR).fs(fs.clone()).options(options).background(BackgroundMode::Stepped);
    let db = db.open().unwrap();
    let p = db.partition("p").unwrap();
    let follower = secondary(&fs);
    let followed = follower.partition("p").unwrap();
    for round in 0..5 {
        p.put("k", round.to_string()).unwrap();
        p.flush().unwrap();
        let reading = followed.at(Level::Strong).unwrap();
        p.compact(..).unwrap();
        p.put("k", "later").unwrap();
        p.compact(..).unwrap();
        db.wait_idle().unwrap();
        let lost = reading.get("k").err().unwrap();
        assert_eq!(lost.kind(), ErrorKind::LeaseLost, "{lost}");
        assert_eq!(reading.iter().next().unwrap().err().unwrap().kind(), ErrorKind::LeaseLost);
        assert_eq!(followed.get("k").unwrap().as_deref(), Some(&b"later"[..]), "it looked again");
        assert_eq!(db.lease_holders().unwrap().len(), 1, "and holds what it reads now");
        assert_eq!(db.stats().leased_bytes, 0);
    }
}

#[test]
fn a_secondary_verifies_what_its_primary_has() {
    let fs = in_memory();
    let db = primary(&fs);
    let p = db.partition("p").unwrap();
    let follower = secondary(&fs);
    for key in 0..100 {
        p.put(format!("{key:03}"), "x".repeat(100)).unwrap();
    }
    p.flush().unwrap();
    p.put("in the log", "alone").unwrap();
    let report = follower.verify(VerifyOptions::default()).unwrap();
    assert!(report.is_sound() && report.entries >= 100, "{report}");
    let names = fs.list(DIR.as_ref(), "").unwrap();
    let table = names.iter().find(|entry| entry.name.ends_with(".sst")).unwrap();
    let path = std::path::Path::new(DIR).join(&table.name);
    let file = fs.open_read(&path).unwrap();
    let mut bytes = vec![0; table.len as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes[200] ^= 1;
    fs.delete(&path).unwrap();
    fs.open_append(&path, AppendMode::IfAbsent).unwrap().append(&bytes).unwrap();
    let report = follower.verify(VerifyOptions::default()).unwrap();
    assert_eq!(report.damage().len(), 1, "{report}");
    assert_eq!(report.damage()[0].partition.as_deref(), Some("p"));
    assert!(db.lease_holders().unwrap().len() == 1, "the verification released its own");
}
