//! Partitions that are a FIFO: the oldest tables go, in order, whole, and never under a reader.

use std::sync::Arc;

use lsm_core::fs::{CrashOutcome, MemFs};
use siltstone::secondary::Level;
use siltstone::{
    Builder, CompactionStyle, Db, LargeValueOptions, MetaHiveOptions, Options, Partition,
    PartitionOptions, VerifyOptions,
};
use testkit::Rng;

use crate::clock::ManualClock;
use crate::store::{Content, content, settle, stepped};

const NO_AGE: u64 = u64::MAX;

fn fifo(bytes_max: u64, seconds_max: u64) -> PartitionOptions {
    PartitionOptions::new().compaction_style(CompactionStyle::Fifo { bytes_max, seconds_max })
}

fn builder(fs: &MemFs) -> Builder {
    stepped(Arc::new(fs.clone()), "/db", 1)
}

fn open_at(fs: &MemFs, clock: &ManualClock) -> Db {
    builder(fs).clock(Arc::new(clock.clone())).open().unwrap()
}

fn open_small(fs: &MemFs) -> Db {
    builder(fs).options(Options::new().write_buffer_bytes(16 << 10)).open().unwrap()
}

fn table_bytes(db: &Db) -> u64 {
    db.stats().partitions.iter().flat_map(|p| &p.levels).map(|level| level.bytes).sum()
}

fn table_count(db: &Db) -> u64 {
    db.stats().partitions.iter().flat_map(|p| &p.levels).map(|level| level.table_count).sum()
}

/// A table with one entry of so many bytes.
fn put_table(db: &Db, events: &Partition, key: &str, bytes: usize) {
    events.put(key, vec![b'v'; bytes]).unwrap();
    db.flush().unwrap();
    settle(db);
}

fn keys(partition: &Partition) -> Vec<String> {
    content(partition).into_keys().map(|key| String::from_utf8(key).unwrap()).collect()
}

#[test]
fn the_oldest_tables_go_while_all_have_more_bytes() {
    let fs = MemFs::new();
    let db = builder(&fs).open().unwrap();
    let events = db.partition_with("events", fifo(10_000, NO_AGE)).unwrap();
    for n in 0..50 {
        put_table(&db, &events, &format!("{n:02}"), 1000);
        assert!(table_bytes(&db) <= 10_000, "{}", db.stats());
        let keys = keys(&events);
        assert_eq!(keys.last().unwrap(), &format!("{n:02}"));
        let first: usize = keys[0].parse().unwrap();
        assert_eq!(keys.len(), n + 1 - first, "the newest ones, without a hole");
    }
    assert!(keys(&events).len() > 5);
    let stats = db.stats();
    assert_eq!(stats.fifo_removed_table_count, 50 - table_count(&db));
    assert!(stats.fifo_removed_bytes > 40 * 1000 - 10_000, "{stats}");
    assert_eq!((stats.compaction_read_bytes, stats.compaction_written_bytes), (0, 0));
    // Many more tables than a leveled partition may have on level 0.
    db.partition_with("events", fifo(u64::MAX, NO_AGE)).unwrap();
    for n in 0..100 {
        put_table(&db, &events, &format!("{n:02}"), 10);
    }
    assert!(table_count(&db) > 100 && db.health().is_healthy(), "{}", db.health());
    events.try_put("a", "writers do not wait").unwrap();
    events.compact(..).unwrap();
    assert!(table_count(&db) > 100);
    db.close().unwrap();
    let db = builder(&fs).open().unwrap();
    let style = CompactionStyle::Fifo { bytes_max: u64::MAX, seconds_max: NO_AGE };
    assert_eq!(db.partition("events").unwrap().options().get_compaction_style(), style);
    assert!(db.verify(VerifyOptions::default()).unwrap().damage().is_empty());
}

#[test]
fn a_table_goes_when_it_is_too_old() {
    let fs = MemFs::new();
    let clock = ManualClock::default();
    let db = open_at(&fs, &clock);
    let events = db.partition_with("events", fifo(u64::MAX, 100)).unwrap();
    put_table(&db, &events, "a", 10);
    clock.pass(60);
    put_table(&db, &events, "b", 10);
    clock.pass(40);
    settle(&db);
    assert_eq!(keys(&events), ["a", "b"], "not before its time");
    clock.pass(1);
    settle(&db);
    assert_eq!(keys(&events), ["b"]);
    // The time is stored, also that of a table which recovery makes.
    events.put("c", "of the log").unwrap();
    drop((events, db));
    clock.pass(50);
    let db = open_at(&fs, &clock);
    settle(&db);
    let events = db.partition("events").unwrap();
    assert_eq!(keys(&events), ["b", "c"]);
    clock.pass(10);
    settle(&db);
    assert_eq!(keys(&events), ["c"]);
    clock.pass(95);
    settle(&db);
    assert_eq!(keys(&events), [""; 0]);
    assert_eq!(table_count(&db), 0);
}

#[test]
fn a_calendar_that_is_wrong_for_a_moment_removes_no_table() {
    let fs = MemFs::new();
    let clock = ManualClock::default();
    clock.jump(1_800_000_000);
    let db = open_at(&fs, &clock);
    let events = db.partition_with("events", fifo(u64::MAX, 100)).unwrap();
    put_table(&db, &events, "a", 10);
    clock.jump(75 * 365 * 86_400);
    put_table(&db, &events, "b", 10);
    assert!(db.health().clock_jump.is_some());
    clock.pass(3);
    clock.jump(-75 * 365 * 86_400);
    settle(&db);
    assert_eq!(keys(&events), ["a", "b"]);
    clock.pass(101);
    settle(&db);
    assert_eq!(keys(&events), [""; 0], "also the table that was written meanwhile");
}

#[test]
fn what_a_table_deletes_or_overwrites_does_not_come_back() {
    let fs = MemFs::new();
    let db = builder(&fs).open().unwrap();
    let leveled = PartitionOptions::new();
    let events = db.partition_with("events", leveled).unwrap();
    put_table(&db, &events, "a", 2000);
    put_table(&db, &events, "b", 10);
    events.compact(..).unwrap();
    settle(&db);
    // Tables of deeper levels are older than those of level 0, and go first.
    db.partition_with("events", fifo(u64::MAX, NO_AGE)).unwrap();
    events.delete("a").unwrap();
    put_table(&db, &events, "b", 20);
    events.delete_range("c".."d").unwrap();
    put_table(&db, &events, "x", 10);
    for bytes_max in (1..table_bytes(&db)).rev().step_by(50) {
        db.partition_with("events", fifo(bytes_max, NO_AGE)).unwrap();
        settle(&db);
        assert!(!events.contains("a").unwrap());
        let b = events.get("b").unwrap();
        assert!(b.is_none_or(|value| value.len() == 20));
    }
    assert_eq!(keys(&events), [""; 0]);
}

#[test]
fn a_snapshot_keeps_its_tables_and_an_iterator_reads_on() {
    let fs = MemFs::new();
    let db = builder(&fs).open().unwrap();
    let events = db.partition_with("events", fifo(5000, NO_AGE)).unwrap();
    for key in ["a", "b", "c"] {
        put_table(&db, &events, key, 1000);
    }
    let snapshot = db.snapshot();
    let mut iterator = events.iter();
    for n in 0..20 {
        put_table(&db, &events, &format!("later {n:02}"), 1000);
    }
    let seen: Vec<_> = snapshot.iter(&events).map(|entry| entry.unwrap().0.to_vec()).collect();
    assert_eq!(seen, [b"a", b"b", b"c"]);
    assert!(table_bytes(&db) > 20_000, "all newer ones wait with them");
    drop(snapshot);
    db.wait_idle().unwrap();
    assert!(table_bytes(&db) <= 5000);
    assert!(!events.contains("a").unwrap());
    assert_eq!(&*iterator.next().unwrap().unwrap().0, b"a");
    assert_eq!(iterator.count(), 2);
}

#[test]
fn large_values_of_a_table_that_goes_are_reclaimed() {
    let fs = MemFs::new();
    let db = builder(&fs).open().unwrap();
    let large = LargeValueOptions::default();
    let options = fifo(600, NO_AGE).large_values(large);
    let media = db.partition_with("media", options).unwrap();
    for n in 0..30 {
        put_table(&db, &media, &format!("{n:02}"), 100 << 10);
    }
    db.wait_idle().unwrap();
    let keys = keys(&media);
    assert!((1..8).contains(&keys.len()) && keys.last().unwrap() == "29", "{keys:?}");
    let stats = db.stats();
    let store = stats.partitions.iter().find_map(|p| p.value_store.as_ref()).unwrap();
    let live = keys.len() as u64 * (100 << 10);
    assert!((live..live + 4096).contains(&store.live_bytes), "{stats}");
    for key in &keys {
        assert_eq!(media.get(key).unwrap().unwrap().len(), 100 << 10);
    }
}

/// Of tables with large values, those that a range covers are read. The others stay where they are, though they overlap.
#[test]
fn a_table_that_a_range_covers_goes_without_the_older_ones() {
    let fs = MemFs::new();
    let db = builder(&fs).open().unwrap();
    let options = fifo(8_000, NO_AGE).large_values(LargeValueOptions::new());
    let events = db.partition_with("events", options).unwrap();
    put_table(&db, &events, "0", 1000);
    events.put("z", "last").unwrap();
    put_table(&db, &events, "a", 1000);
    put_table(&db, &events, "m", 1000);
    events.delete_range("m".."n").unwrap();
    settle(&db);
    db.flush().unwrap();
    settle(&db);
    assert_eq!(keys(&events), ["0", "a", "z"]);
    assert_eq!(table_count(&db), 2, "{}", db.stats());
    let level0 = db.stats().partitions.iter().map(|it| it.levels[0].table_count).sum::<u64>();
    assert_eq!(level0, 2, "nothing is merged: {}", db.stats());
    for n in 1.. {
        put_table(&db, &events, &n.to_string(), 1000);
        if keys(&events)[0] != "0" {
            break;
        }
    }
    assert!(keys(&events).contains(&"a".to_owned()), "{:?}", keys(&events));
    db.close().unwrap();
}

#[test]
fn copies_secondaries_and_metahive_know_a_fifo() {
    let fs = MemFs::new();
    let db = builder(&fs).open().unwrap();
    let options = fifo(8000, NO_AGE).metahive(MetaHiveOptions::default());
    let events = db.partition_with("events", options).unwrap();
    for n in 0..20 {
        put_table(&db, &events, &format!("{n:02}"), 1000);
    }
    let expected = content(&events);
    assert!(expected.len() < 10);
    assert_eq!(events.verified_range(..).map(Result::unwrap).count(), expected.len());
    let secondary =
        Db::secondary_builder("/db").fs(Arc::new(fs.clone())).lease(false).open().unwrap();
    let followed = secondary.partition("events").unwrap();
    assert_eq!(followed.at(Level::Strong).unwrap().iter().count(), expected.len());
    db.checkpoint("/copy").unwrap();
    let copy = stepped(Arc::new(fs.clone()), "/copy", 2).open().unwrap();
    settle(&copy);
    let copied = copy.partition("events").unwrap();
    assert_eq!(content(&copied), expected);
    put_table(&copy, &copied, "99", 5000);
    assert!(content(&copied).len() < expected.len(), "the copy goes on as a FIFO");
    events.export(.., "/export").unwrap();
    let target = copy.partition_with("target", fifo(u64::MAX, NO_AGE)).unwrap();
    target.ingest("/export").unwrap();
    assert_eq!(content(&target), expected);
    assert_eq!(
        copy.stats().partitions.iter().find(|p| p.name == "target").unwrap().levels[0].table_count,
        1
    );
}

/// A history of writes, and the contents after each suffix of it.
#[derive(Default)]
struct History(Vec<(Vec<u8>, Option<Vec<u8>>)>);

impl History {
    /// The content of these writes alone.
    fn content(&self, kept: std::ops::Range<usize>) -> Content {
        let mut content = Content::new();
        for (key, value) in &self.0[kept] {
            match value {
                Some(value) => content.insert(key.clone(), value.clone()),
                None => content.remove(key),
            };
        }
        content
    }

    /// The fewest of the first writes, `gone` or more, without which the content is this. The last ones are forgotten
    /// if a crash `may_lose` them.
    fn find(&mut self, found: &Content, gone: usize, may_lose: bool) -> Option<usize> {
        let len = self.0.len();
        let ends = if may_lose { gone..=len } else { len..=len };
        for end in ends.rev() {
            if let Some(gone) = (gone..=end).find(|gone| self.content(*gone..end) == *found) {
                self.0.truncate(end);
                return Some(gone);
            }
        }
        None
    }
}

/// Random writes, deletions, flushes, limits and crashes: what is left is always a suffix of the history.
#[test]
fn what_is_left_is_a_suffix_of_the_history() {
    let mut rng = Rng::from_env_or(1);
    let mut all_gone = 0;
    for _ in 0..60 {
        let fs = MemFs::new();
        let mut db = open_small(&fs);
        let mut events = db.partition_with("events", fifo(4000, NO_AGE)).unwrap();
        let mut history = History::default();
        let mut gone = 0;
        let mut fs = fs;
        for _ in 0..150 {
            let mut has_crashed = false;
            match rng.below(12) {
                0..=5 => {
                    let key = vec![b'a' + rng.below(20) as u8];
                    let len = rng.below(400) as usize;
                    let value = rng.bytes(len);
                    events.put(&key, &value).unwrap();
                    history.0.push((key, Some(value)));
                }
                6 => {
                    let key = vec![b'a' + rng.below(20) as u8];
                    events.delete(&key).unwrap();
                    history.0.push((key, None));
                }
                7 | 8 => db.flush().unwrap(),
                9 => {
                    db.step().unwrap();
                }
                10 => {
                    let bytes_max = 500 + u64::from(rng.below(6000) as u32);
                    db.partition_with("events", fifo(bytes_max, NO_AGE)).unwrap();
                }
                _ => {
                    let outcome =
                        CrashOutcome::ALL[rng.below(CrashOutcome::ALL.len() as u64) as usize];
                    fs = fs.crash_clone(outcome, &mut || rng.next_u64());
                    has_crashed = true;
                    db = open_small(&fs);
                    events = db.partition("events").unwrap();
                }
            }
            let found = history.find(&content(&events), gone, has_crashed);
            gone = found.unwrap_or_else(|| panic!("no suffix: {:?}", content(&events)));
        }
        all_gone += gone;
    }
    // It was a real history: half of all writes, about.
    assert!(all_gone > 1000, "{all_gone}");
}
