//! Flushes that do not wait for a sync of the log: a crash keeps their tables, and may lose the
//! part of the log that the tables were made from.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use lsm_core::fs::{CrashOutcome, FaultFs, Fs, FsOp, MemFs, OpKind};
use lsm_core::internals::names::FileName;
use lsm_core::internals::version::{FlushBeyondSync, recover};
use siltstone::secondary::{Level, Secondary, Target};
use siltstone::{Builder, Db, Durability, Options, Partition, Readable};
use testkit::Rng;

use crate::crash::seed_or;
use crate::store::stepped;

const DIR: &str = "/db";
const NAMES: [&str; 2] = ["p", "q"];

fn builder(fs: impl Fs) -> Builder {
    let options = Options::new().wal_segment_bytes(4 << 10).write_buffer_bytes(1 << 20);
    stepped(Arc::new(fs), DIR, 1).options(options)
}

fn both(db: &Db) -> [Partition; 2] {
    NAMES.map(|name| db.partition(name).unwrap())
}

/// Flushes a partition. Returns the syncs of the log and of the manifest, in their order.
fn flush(fs: &FaultFs, partition: &Partition) -> Vec<&'static str> {
    fs.start_log();
    partition.flush().unwrap();
    let log = fs.take_log();
    let syncs = log.iter().filter(|op| op.kind == OpKind::Sync);
    syncs.filter_map(|op| sort(&op.path)).collect()
}

fn sort(path: &Path) -> Option<&'static str> {
    match path.extension()?.to_str()? {
        "wal" => Some("log"),
        "manifest" => Some("manifest"),
        _ => None,
    }
}

/// The lead of the last flush over the log, as the manifest records it.
fn ahead(fs: &MemFs) -> Option<FlushBeyondSync> {
    ahead_in(fs, DIR)
}

fn ahead_in(fs: &MemFs, dir: &str) -> Option<FlushBeyondSync> {
    let dir = Path::new(dir);
    let entries = fs.list(dir, "").unwrap();
    let names: Vec<_> = entries.iter().filter_map(|entry| FileName::parse(&entry.name)).collect();
    recover(fs, dir, &names).unwrap()?.version.flush_beyond_sync
}

#[test]
fn a_flush_waits_for_the_log_only_where_other_partitions_have_unsynced_writes() {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let db = builder(fs.clone()).open().unwrap();
    let [p, q] = both(&db);
    db.batch().put(&q, "not flushed", "but durable").commit(Durability::Sync).unwrap();
    p.put("a", "1").unwrap();
    assert_eq!(flush(&fs, &p), ["manifest"]);
    let first = ahead(&mem).unwrap();
    assert_eq!(first.flushed.get(), first.durable.get() + 1);
    p.put("a", "2").unwrap();
    assert_eq!(flush(&fs, &p), ["manifest"], "nor the next one");
    assert_eq!(ahead(&mem).unwrap().durable, first.durable);
    // A copy has no log, so that no flush can be ahead of it.
    db.checkpoint("/copy").unwrap();
    assert_eq!(ahead_in(&mem, "/copy"), None);
    p.put("a", "3").unwrap();
    db.batch().put(&q, "d", "not flushed").commit(Durability::Sync).unwrap();

    q.put("b", "1").unwrap();
    p.put("a", "3").unwrap();
    assert_eq!(flush(&fs, &p), ["log", "manifest"], "a batch of another partition is not durable");
    db.batch().put(&p, "c", "1").put(&q, "c", "1").commit(Durability::Os).unwrap();
    assert_eq!(flush(&fs, &p), ["log", "manifest"], "half of a batch is another partition's");

    // Once everything is in tables, the edit records that the replay begins after the log.
    q.put("b", "2").unwrap();
    assert_eq!(flush(&fs, &q), ["manifest", "log"]);
}

/// The header of the first remaining segment records how far the log was durable.
#[test]
fn a_log_that_loses_its_first_header_after_such_a_flush_is_damaged() {
    let mem = MemFs::new();
    let db = builder(mem.clone()).open().unwrap();
    let [p, _] = both(&db);
    for n in 0..20_u32 {
        p.put(n.to_be_bytes(), vec![7; 900]).unwrap();
    }
    p.flush().unwrap();
    db.batch().put(&p, "durable", "in the log alone").commit(Durability::Sync).unwrap();
    let image = mem.crash_clone(CrashOutcome::Everything, &mut || 0);
    let mut segments: Vec<PathBuf> = image.paths();
    segments.retain(|path| sort(path) == Some("log"));
    let [segment] = &segments[..] else { panic!("one segment is left: {segments:?}") };
    let len = image.read_raw(segment).unwrap().len();
    image.write_raw(segment, &vec![0; len]).unwrap();
    let error = builder(image).open().map(|_| ()).unwrap_err();
    assert!(error.is_corruption(), "{error}");
    assert!(error.to_string().contains("was durable through"), "{error}");
}

/// The commits of a script: commit `n` puts key `n` into some of the partitions.
#[derive(Clone, Default)]
struct Written {
    /// The partitions of each commit.
    commits: Vec<[bool; 2]>,
    /// The number of commits that are certainly durable.
    durable: usize,
}

/// The content of an image when it is opened, as numbers of commits. Calls `more` afterwards.
fn reopened(image: &MemFs, context: &str, more: impl FnOnce(&[Partition; 2])) -> [Vec<u32>; 2] {
    let db = builder(image.clone()).open().unwrap_or_else(|error| panic!("{context}: {error}"));
    let partitions = both(&db);
    let found = [keys(&partitions[0]), keys(&partitions[1])];
    more(&partitions);
    found
}

fn keys(reading: &impl Readable<Range = siltstone::Range>) -> Vec<u32> {
    let keys = reading.iter().map(|entry| entry.unwrap().0);
    keys.map(|key| u32::from_be_bytes(key[..].try_into().unwrap())).collect()
}

/// The length of the prefix of the commits that `found` is; `None` if it is no prefix.
fn prefix(written: &Written, shown: &[Vec<u32>; 2]) -> Option<usize> {
    let end = shown.iter().filter_map(|keys| keys.last()).max().map_or(0, |last| last + 1);
    let expected = [0, 1].map(|at| {
        let commits = (0..end).zip(&written.commits);
        commits.filter(|(_, to)| to[at]).map(|(n, _)| n).collect::<Vec<_>>()
    });
    (expected == *shown).then_some(end as usize)
}

/// The files that a crash leaves, and the commits before the crash.
struct Image {
    mem: MemFs,
    written: Written,
    /// The operation before which the crash happens, and its outcome.
    what: String,
}

/// Writes and flushes at random, and takes images before each operation that changes the storage.
fn run(rng: &mut Rng) -> (Vec<Image>, u32) {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let db = builder(fs.clone()).open().unwrap();
    let partitions = both(&db);
    let written = Arc::new(Mutex::new(Written::default()));
    let images = Arc::new(Mutex::new(Vec::new()));
    let observed = (mem.clone(), written.clone(), images.clone(), Mutex::new(rng.fork()));
    fs.set_observer(Arc::new(move |op: &FsOp| {
        let (mem, written, images, rng) = &observed;
        if op.mutates() {
            let mut rng = rng.lock().unwrap();
            let outcome = *rng.pick(&CrashOutcome::ALL);
            let mem = mem.crash_clone(outcome, &mut || rng.next_u64());
            let written = written.lock().unwrap().clone();
            let what = format!("{outcome:?} before {:?} of {}", op.kind, op.path.display());
            images.lock().unwrap().push(Image { mem, written, what });
        }
    }));
    let mut ahead_count = 0;
    for _ in 0..12 {
        // Sorted runs of one partition, as an import makes them.
        let to = *rng.pick(&[[true, false], [true, false], [false, true], [true, true]]);
        for _ in 0..rng.range(1..9) {
            let n = written.lock().unwrap().commits.len() as u32;
            // Recorded before the call: a crash during the call may keep the commit.
            written.lock().unwrap().commits.push(to);
            let mut batch = db.batch();
            for (partition, _) in partitions.iter().zip(to).filter(|(_, is_it)| *is_it) {
                let value = vec![7; rng.range(1..900) as usize];
                batch = batch.put(partition, n.to_be_bytes(), value);
            }
            let is_synced = rng.chance(1, 12);
            batch.commit(if is_synced { Durability::Sync } else { Durability::Os }).unwrap();
            if is_synced {
                written.lock().unwrap().durable = n as usize + 1;
            }
        }
        let flushed = &partitions[rng.index(2)];
        let syncs = flush(&fs, flushed);
        ahead_count += u32::from(syncs.first() == Some(&"manifest"));
    }
    fs.clear_observer();
    (std::mem::take(&mut *images.lock().unwrap()), ahead_count)
}

#[test]
fn a_crash_around_flushes_that_are_ahead_leaves_a_prefix_of_all_commits() {
    let seed = seed_or(20_261_125);
    let mut count = 0;
    let mut ahead_count = 0;
    for round in 0..24 {
        let mut rng = Rng::new(seed ^ round << 32);
        let (images, ahead) = run(&mut rng);
        ahead_count += ahead;
        for Image { mem: image, written, what } in &images {
            let context = format!("SEED={seed}, round {round}, {what}");
            // Without a commit cursor a secondary shows all tables, and the log as far as it is
            // proven durable.
            let follower = image.crash_clone(CrashOutcome::Everything, &mut || 0);
            let secondary = Secondary::builder(DIR).fs(Arc::new(follower)).open().unwrap();
            let reached = secondary.sync(Target::Latest).unwrap().seq.get();
            let level = Level::Eventual;
            let following = NAMES.map(|name| secondary.partition(name).unwrap());
            let followed = following.map(|partition| keys(&partition.at(level).unwrap()));
            let followed = prefix(written, &followed)
                .unwrap_or_else(|| panic!("{context}: a secondary shows no prefix: {followed:?}"));

            // Each partition of a commit has one operation of it.
            let shown =
                written.commits[..followed].iter().flatten().filter(|is_it| **is_it).count();
            assert!(reached >= shown as u64, "{context}: shows {shown} and says {reached}");

            let found = reopened(image, &context, |partitions| {
                // New sequence numbers are above every number that was used.
                partitions[0].put(u32::MAX.to_be_bytes(), "behind").unwrap();
            });
            let Some(length) = prefix(written, &found) else {
                panic!("{context}: no prefix of {:?}: {found:?}", written.commits);
            };
            assert!(
                length >= written.durable,
                "{context}: {length} of {} durable",
                written.durable
            );
            assert!(length >= followed, "{context}: {length}, and a secondary showed {followed}");
            let [p, q] = reopened(image, &context, |_| {});
            assert_eq!((&p[..p.len() - 1], &q), (&found[0][..], &found[1]), "{context}");
            count += 1;
        }
    }
    println!("{count} images, {ahead_count} flushes ahead of the log, SEED={seed}");
    assert!(count > 1000 && ahead_count > 40, "too few: {count}, {ahead_count}");
}
