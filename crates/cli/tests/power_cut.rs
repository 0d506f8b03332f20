//! File systems of the kernel that lose their power.
//!
//! Only this stops them. An ext4 in a file on a full tmpfs fails, too, but its syncs may succeed and lose the data.

#![cfg(target_os = "linux")]
#![expect(
    clippy::disallowed_methods,
    reason = "files around the mounts are outside every database"
)]
#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]

mod mount;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

use mount::{Mount, skipped, succeeds};
use siltstone::{Db, Durability, LargeValueOptions, Options, Partition, PartitionOptions, SeqNo};
use testkit::Rng;

const WRITERS: usize = 2;
/// Batches of each writer whose entries the next ones do not overwrite. The second one needs more and more space.
const SLOTS: [u64; WRITERS] = [120, u64::MAX];
/// XFS needs this many bytes. The image is sparse.
const DISK_BYTES: u64 = 320 << 20;
const ROUNDS: usize = 8;

/// The batches of one writer.
#[derive(Clone, Default)]
struct History {
    /// The number of each batch that was committed, in order.
    seqs: Vec<SeqNo>,
    /// The last one that was synced before the disk failed.
    synced: SeqNo,
}

/// The names of partitions that were made and dropped, by number.
#[derive(Clone, Default)]
struct Names {
    made: BTreeSet<u64>,
    next: u64,
    /// All before this one were dropped before the disk failed.
    first: u64,
}

fn open(dir: &Path, wal_mapped: bool) -> Db {
    let segment_bytes = if wal_mapped { 64 << 10 } else { 16 << 10 };
    let options = Options::new().wal_mapped(wal_mapped).wal_segment_bytes(segment_bytes);
    let options = options.write_buffer_bytes(32 << 10).wal_bytes_max(8 * segment_bytes);
    Db::builder(dir).options(options).sync_interval_ms(0).open().unwrap()
}

fn partitions(db: &Db) -> siltstone::Result<[Partition; 2]> {
    let large = LargeValueOptions::new().threshold_bytes(1 << 10).chunk_bytes(64 << 10);
    let large = PartitionOptions::new().large_values(large);
    Ok([db.partition("small")?, db.partition_with("large", large)?])
}

fn value(writer: usize, number: u64) -> Vec<u8> {
    let mut value = format!("{writer}:{number}:").into_bytes();
    value.resize(if number.is_multiple_of(5) { 9000 } else { 60 }, number as u8);
    value
}

/// Writes batches until one fails.
fn write(
    db: &Db,
    writer: usize,
    history: &mut History,
    mut rng: Rng,
    committed: &Sender<()>,
    is_failing: &AtomicBool,
) -> siltstone::Result<()> {
    let partitions = partitions(db)?;
    loop {
        let number = history.seqs.len() as u64 + 1;
        let mut batch = db.batch();
        for partition in &partitions {
            let key = format!("writer{writer}-slot{:04}", number % SLOTS[writer]);
            batch = batch.put(partition, key, value(writer, number));
            batch = batch.put(partition, format!("writer{writer}-count"), number.to_string());
        }
        let is_synced = rng.below(4) == 0;
        let seq = batch.commit(if is_synced { Durability::Sync } else { Durability::Os })?.seq;
        history.seqs.push(seq);
        // A file system that is stopped during a sync may return success without it.
        if is_synced && !is_failing.load(Ordering::SeqCst) {
            history.synced = seq;
        }
        let _ = committed.send(());
    }
}

/// Makes files come and go until a call fails.
fn churn(
    db: &Db,
    names: &mut Names,
    mut rng: Rng,
    is_failing: &AtomicBool,
) -> siltstone::Result<()> {
    let partitions = partitions(db)?;
    loop {
        partitions[rng.below(2) as usize].compact(..)?;
        db.flush()?;
        db.partition(&format!("p{}", names.next))?;
        if is_failing.load(Ordering::SeqCst) {
            return Ok(());
        }
        names.made.insert(names.next);
        names.next += 1;
        if let Some(first) = names.made.first().copied().filter(|_| names.made.len() > 3) {
            // A drop that fails may have taken effect.
            names.made.remove(&first);
            db.drop_partition(&format!("p{first}"))?;
            if !is_failing.load(Ordering::SeqCst) {
                names.first = first + 1;
            }
        }
    }
}

/// Works in all threads, calls `fail` after some batches, and returns when each thread has an error.
fn work(
    db: &Db,
    rng: &mut Rng,
    histories: &mut [History; WRITERS],
    names: &mut Names,
    fail: impl FnOnce(),
) {
    let wanted = 20 + rng.below(400);
    let (committed, heard) = channel();
    let is_failing = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (writer, history) in histories.iter_mut().enumerate() {
            let rng = Rng::new(rng.next_u64());
            let committed = committed.clone();
            scope.spawn(move || {
                write(db, writer, history, rng, &committed, is_failing).unwrap_err()
            });
        }
        let rng = Rng::new(rng.next_u64());
        scope.spawn(move || churn(db, names, rng, is_failing));
        (0..wanted).for_each(|_| heard.recv().unwrap());
        is_failing.store(true, Ordering::SeqCst);
        fail();
    });
}

/// The number of the last batch of a writer. All entries of it and of those before are there.
fn last_batch(db: &Db, writer: usize) -> u64 {
    let partitions = partitions(db).unwrap();
    let counts = partitions.each_ref().map(|partition| {
        let count = partition.get(format!("writer{writer}-count")).unwrap();
        count.map_or(0, |count| std::str::from_utf8(&count).unwrap().parse::<u64>().unwrap())
    });
    assert_eq!(counts[0], counts[1], "a batch was split");
    for partition in &partitions {
        for number in (counts[0].saturating_sub(SLOTS[writer] - 1)).max(1)..=counts[0] {
            let found =
                partition.get(format!("writer{writer}-slot{:04}", number % SLOTS[writer])).unwrap();
            assert!(
                found.as_deref() == Some(&value(writer, number)),
                "batch {number} of {}",
                counts[0]
            );
        }
        let kept = partition.prefix(format!("writer{writer}-slot")).map(Result::unwrap).count();
        assert_eq!(kept as u64, counts[0].min(SLOTS[writer]));
    }
    counts[0]
}

/// The database has a prefix of the commits of all writers, with all that was synced. The histories go on from it.
fn check(db: &Db, histories: &mut [History; WRITERS], names: &mut Names) {
    let synced = histories.iter().map(|history| history.synced).max().unwrap();
    let lasts: Vec<_> = (0..WRITERS).map(|writer| last_batch(db, writer)).collect();
    // A batch whose commit failed has no number here; it is after all others of its writer.
    let newest_of = histories
        .iter()
        .zip(&lasts)
        .filter_map(|(history, last)| history.seqs.iter().take(*last as usize).next_back());
    let newest = newest_of.copied().max().unwrap_or_default().max(synced);
    for (history, last) in histories.iter_mut().zip(lasts) {
        let before = history.seqs.partition_point(|seq| *seq <= newest) as u64;
        let of_unknown_outcome = u64::from(history.seqs.len() as u64 == before);
        assert!(
            (before..=before + of_unknown_outcome).contains(&last),
            "{last} batches, {before} are before commit {newest}"
        );
        history.seqs.resize(last as usize, newest);
        history.synced = newest;
    }
    let found: BTreeSet<u64> = db
        .partition_names()
        .iter()
        .filter_map(|name| name.strip_prefix('p')?.parse().ok())
        .collect();
    assert!(names.made.is_subset(&found), "{:?} of {found:?}", names.made);
    assert!(
        found.first().is_none_or(|first| *first >= names.first),
        "{found:?} from {}",
        names.first
    );
    names.next = names.next.max(found.last().map_or(0, |last| last + 1));
    names.made = found;
    assert!(db.verify(Default::default()).unwrap().is_sound());
}

/// Stops an ext4 or XFS file system as a power cut does: what was not synced is lost, and all later calls fail.
/// `false` if the system cannot.
fn cut_power(mount: &Mount) -> bool {
    // A call of ioctl is unsafe code in Rust. The number is EXT4_IOC_SHUTDOWN, the flag "without a flush of the log".
    let shutdown = "open(F, '<', $ARGV[0]) && ioctl(F, 0x8004587d, my $f = pack('L', 2)) or die";
    succeeds(Command::new("perl").args(["-e", shutdown]).arg(&mount.0))
}

/// Mounts the file system of an image again. Fails if one of its files is open.
fn again(mount: Mount) -> Mount {
    assert!(succeeds(Command::new("umount").arg(&mount.0)), "a file is open");
    let mut command = Command::new("mount");
    assert!(succeeds(
        command.args(["-o", "loop"]).arg(mount.0.with_extension("image")).arg(&mount.0)
    ));
    mount
}

#[test]
fn a_power_cut_of_a_real_file_system_keeps_what_was_synced() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = Rng::from_env_or(28);
    for kind in ["ext4", "xfs"] {
        let at = folder.path().join(kind);
        let Some(mut mount) = Mount::new(&at, kind, DISK_BYTES) else {
            skipped(&format!("no file system {kind} may be mounted"));
            continue;
        };
        if !cut_power(&mount) {
            skipped("perl cannot stop a file system");
            continue;
        }
        mount = again(mount);
        let mut histories = <[History; WRITERS]>::default();
        let mut names = Names::default();
        for round in 0..ROUNDS {
            let db = open(&at.join("db"), round % 2 == 1);
            check(&db, &mut histories, &mut names);
            work(&db, &mut rng, &mut histories, &mut names, || assert!(cut_power(&mount)));
            drop(db);
            mount = again(mount);
        }
        check(&open(&at.join("db"), false), &mut histories, &mut names);
        let batches: usize = histories.iter().map(|history| history.seqs.len()).sum();
        assert!(batches > ROUNDS);
    }
}
