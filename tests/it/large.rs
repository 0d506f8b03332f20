//! Large values in a whole store: limits, streams, space, snapshots, moves, copies.

mod attach;
mod compat;
mod compressed;
mod crash;
mod damage;
mod full;
mod gaps;
mod kill;
#[cfg(unix)]
mod lent;
mod limits;
mod names;
mod reclaim;
mod syncs;
mod unkeyed;
mod unreadable;
mod vanishing;

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lsm_core::fs::{Fs, MemFs, OsFs};
use siltstone::large_values::Parallelism;
use siltstone::{
    BackgroundMode, ChunkChange, Compression, Db, Durability, ErrorKind, Event, EventListener,
    LargeValueOptions, MetaHiveOptions, Options, Partition, PartitionOptions, Result, Slice,
    ValueStoreStats,
};
use testkit::Rng;

use crate::clock::ManualClock;
use crate::store::{content, stepped};

const THRESHOLD: usize = 256;

/// Small enough that a few values make several chunks and many sub-blocks.
fn tiny() -> LargeValueOptions {
    LargeValueOptions::new()
        .threshold_bytes(THRESHOLD as u64)
        .sub_block_bytes(256)
        .chunk_bytes(4 << 10)
}

fn options() -> PartitionOptions {
    PartitionOptions::new().table_bytes(1 << 10).block_bytes(128).large_values(tiny())
}

/// As [`options`], with compression of the values in chunk files.
fn compressed() -> PartitionOptions {
    options().large_values(tiny().compression(Compression::Lz4))
}

fn open_with(fs: Arc<dyn Fs>, dir: &str, clock: &ManualClock) -> Result<Db> {
    stepped(fs, dir, 7).clock(Arc::new(clock.clone())).options(small_buffers()).open()
}

fn small_buffers() -> Options {
    Options::new().write_buffer_bytes(64 << 10).wal_segment_bytes(8 << 10)
}

fn open(fs: &MemFs) -> Db {
    open_with(Arc::new(fs.clone()), "/db", &ManualClock::default()).unwrap()
}

/// The length of all chunk files in a folder.
fn chunk_bytes(fs: &MemFs, dir: &str) -> u64 {
    let all = fs.list(dir.as_ref(), "").unwrap();
    all.iter().filter(|entry| entry.name.ends_with(".chunk")).map(|entry| entry.len).sum()
}

fn value_store(db: &Db) -> ValueStoreStats {
    let partition = db.stats().partitions.into_iter().find(|partition| partition.name == "p");
    partition.and_then(|partition| partition.value_store).expect("it keeps values apart")
}

fn value(rng: &mut Rng, len: usize) -> Vec<u8> {
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

/// Moves the clock until there is nothing left to do.
fn rest(db: &Db, clock: &ManualClock) {
    for _ in 0..30 {
        clock.pass(1);
        db.wait_idle().unwrap();
        assert!(!db.step().unwrap(), "idle means that no step is left");
    }
}

#[test]
fn values_around_every_edge_read_back_in_every_way() {
    check_every_edge(options(), value);
}

/// Values of many lengths, made by `value`, are read back in every way.
fn check_every_edge(options: PartitionOptions, value: fn(&mut Rng, usize) -> Vec<u8>) {
    let fs = MemFs::new();
    let mut db = open(&fs);
    db.partition_with("p", options).unwrap();
    let mut rng = Rng::from_env_or(5);
    let lens = [0, 1, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 4095, 4096, 10_000];
    let mut expected = BTreeMap::new();
    for (at, len) in lens.iter().enumerate() {
        let p = db.partition("p").unwrap();
        let put = format!("put {at:02}");
        let streamed = format!("streamed {at:02}");
        expected.insert(put.clone().into_bytes(), value(&mut rng, *len));
        expected.insert(streamed.clone().into_bytes(), value(&mut rng, *len));
        p.put(&put, &expected[put.as_bytes()]).unwrap();
        let known = (at % 2 == 0).then_some(*len as u64);
        let mut writer = p.put_stream(&streamed, known).unwrap();
        for piece in expected[streamed.as_bytes()].chunks(1 + at * 37) {
            writer.write_all(piece).unwrap();
        }
        writer.commit(Durability::Os).unwrap();
    }
    for round in 0..3 {
        let p = db.partition("p").unwrap();
        assert_eq!(content(&p), expected);
        for (key, value) in &expected {
            check_reads(&p, key, value, &mut rng);
        }
        match round {
            0 => p.flush().unwrap(),
            1 => p.compact(..).unwrap(),
            _ => {}
        }
        db.close().unwrap();
        db = open(&fs);
    }
    assert!(db.verify(Default::default()).unwrap().is_sound());
}

fn check_reads(p: &Partition, key: &[u8], value: &[u8], rng: &mut Rng) {
    assert_eq!(p.get(key).unwrap().unwrap(), value);
    let stat = p.stat_blob(key).unwrap().unwrap();
    assert_eq!(stat.len, value.len() as u64);
    assert_eq!(stat.stored.is_some(), value.len() >= THRESHOLD);
    let mut buf = vec![0; value.len() + 3];
    for threads in [Parallelism::Auto, Parallelism::Threads(3)] {
        assert_eq!(p.get_into(key, &mut buf, threads).unwrap(), Some(value.len() as u64));
        assert_eq!(buf[..value.len()], *value);
    }
    if !value.is_empty() {
        let refused = p.get_into(key, &mut buf[..value.len() - 1], Parallelism::Auto);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::LimitExceeded);
    }
    let mut reader = p.open_blob(key).unwrap().unwrap();
    let mut all = Vec::new();
    reader.clone().read_to_end(&mut all).unwrap();
    assert_eq!(all, value);
    for _ in 0..8 {
        let from = rng.below(value.len() as u64 + 1) as usize;
        let to = from + rng.below((value.len() - from) as u64 + 1) as usize;
        let range = p.get_range(key, from as u64..to as u64).unwrap().unwrap();
        assert_eq!(range, value[from..to]);
        reader.seek(SeekFrom::Start(from as u64)).unwrap();
        let mut piece = vec![0; to - from];
        reader.read_exact(&mut piece).unwrap();
        assert_eq!(piece, value[from..to]);
    }
    assert_eq!(reader.seek(SeekFrom::End(0)).unwrap(), value.len() as u64);
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    assert_eq!(p.get_range(key, 0..u64::MAX).unwrap().unwrap(), value);
}

/// A key that ends in a byte of 0 or 1 is stored with a zero byte after it.
#[test]
fn large_values_are_found_under_keys_that_are_stored_in_another_form() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition_with("p", options().metahive(MetaHiveOptions::default())).unwrap();
    let mut rng = Rng::from_env_or(6);
    let keys = [&b"k"[..], b"k\0", b"k\x01", b"k\x01\0"];
    let values = keys.map(|key| value(&mut rng, 2000 + key.len()));
    for (key, value) in keys.iter().zip(&values) {
        p.put(key, value).unwrap();
    }
    for round in 0..2 {
        for (key, value) in keys.iter().zip(&values) {
            check_reads(&p, key, value, &mut rng);
        }
        if round == 0 {
            p.flush().unwrap();
        }
    }
}

#[test]
fn a_stream_that_is_not_committed_leaves_nothing() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition_with("p", options()).unwrap();
    for finished in [false, true] {
        let mut writer = p.put_stream("key", None).unwrap();
        writer.write_all(&[3; 9000]).unwrap();
        // An open stream delays no one.
        p.put("other", [4; 1000]).unwrap();
        match finished {
            true => drop(writer.finish().unwrap()),
            false => drop(writer),
        }
        assert_eq!(p.get("key").unwrap(), None);
    }
    let mut writer = p.put_stream("key", Some(500)).unwrap();
    writer.write_all(&[3; 499]).unwrap();
    assert_eq!(writer.finish().unwrap_err().kind(), ErrorKind::InvalidArgument);
    p.delete("other").unwrap();
    p.reclaim().unwrap();
    assert_eq!(chunk_bytes(&fs, "/db"), 0);
    assert_eq!(p.space().unwrap().total_bytes, 0);
}

#[test]
fn streamed_values_commit_with_other_keys() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition_with("p", options()).unwrap();
    let blob = |key: &str, byte: u8, len: usize| {
        let mut writer = p.put_stream(key, Some(len as u64)).unwrap();
        writer.write_all(&vec![byte; len]).unwrap();
        writer.finish().unwrap()
    };
    let batch = db.batch().put(&p, "small", "s").put_blob(blob("a", 1, 3000));
    batch.put_blob(blob("b", 2, 10)).delete(&p, "c").commit(Durability::Sync).unwrap();
    assert_eq!(p.get("a").unwrap().unwrap(), vec![1; 3000]);
    assert_eq!(p.get("b").unwrap().unwrap(), vec![2; 10]);
    assert_eq!(p.get("small").unwrap().unwrap(), b"s");
    let plain = db.partition("plain").unwrap();
    assert_eq!(plain.put_stream("k", None).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn the_space_of_deleted_values_comes_back_without_a_call() {
    let fs = MemFs::new();
    let clock = ManualClock::default();
    let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
    let p = db.partition_with("p", options()).unwrap();
    for n in 0..40_u8 {
        p.put([n], vec![n; 1000]).unwrap();
    }
    rest(&db, &clock);
    let full = chunk_bytes(&fs, "/db");
    assert!(full > 40_000 && p.space().unwrap().live_bytes > 40_000);
    for n in 0..40_u8 {
        p.delete([n]).unwrap();
    }
    rest(&db, &clock);
    assert_eq!(chunk_bytes(&fs, "/db"), 0, "of {full}");
    assert_eq!(value_store(&db).moved_bytes, 0, "whole files went");
}

/// No time passes, so that age causes no flush and no merge.
#[test]
fn the_space_of_values_that_are_overwritten_without_a_pause_is_bounded() {
    let fs = MemFs::new();
    let db = open(&fs);
    let large = LargeValueOptions::new().chunk_bytes(8 << 20);
    let p = db.partition_with("p", PartitionOptions::new().large_values(large)).unwrap();
    let mut peak = 0;
    for n in 0..400_u16 {
        p.put([n as u8 % 8], vec![n as u8; 1 << 20]).unwrap();
        while db.step().unwrap() {}
        peak = peak.max(chunk_bytes(&fs, "/db"));
    }
    // 64 MiB wait for a flush, then up to four tables of level 0 have 8 values each, and a file
    // lives as long as any of its values.
    assert!(peak <= (64 + 8 + 4 * 16) << 20, "{peak} bytes of files for 8 MiB of values");
    for n in 392..400_u16 {
        assert_eq!(p.get([n as u8 % 8]).unwrap().unwrap(), vec![n as u8; 1 << 20]);
    }
}

#[test]
fn values_move_out_of_chunks_with_much_garbage_in_the_order_of_their_keys() {
    let fs = MemFs::new();
    let clock = ManualClock::default();
    let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
    let p = db.partition_with("p", options()).unwrap();
    for n in (0..40_u8).rev() {
        p.put([n], vec![n; 1000]).unwrap();
    }
    let snapshot = db.snapshot();
    rest(&db, &clock);
    assert_eq!(p.space().unwrap().oldest_snapshot, Some(snapshot.seq()));
    let kept = p.open_blob([2]).unwrap().unwrap();
    for n in (0..40_u8).filter(|n| n % 3 != 2) {
        p.delete([n]).unwrap();
    }
    rest(&db, &clock);
    assert_eq!(snapshot.get(&p, [0]).unwrap().unwrap(), vec![0; 1000]);
    drop(snapshot);
    assert_eq!(p.space().unwrap().oldest_snapshot, None);
    rest(&db, &clock);
    let mut all = Vec::new();
    kept.clone().read_to_end(&mut all).unwrap();
    assert_eq!(all, vec![2; 1000], "its chunk is pinned");
    assert!(p.space().unwrap().pinned_bytes > 0);
    drop((all, kept));
    rest(&db, &clock);
    let space = p.space().unwrap();
    assert_eq!((space.pinned_bytes, space.total_bytes), (0, chunk_bytes(&fs, "/db")));
    assert!(space.total_bytes * 10 <= 11 * 13 * 1100, "{space:?}");
    for n in 0..40_u8 {
        let expected = (n % 3 == 2).then(|| Slice::from(vec![n; 1000]));
        assert_eq!(p.get([n]).unwrap(), expected);
    }
    let chunks = p.chunks().unwrap();
    let live = chunks.iter().filter(|chunk| chunk.live_blocks > 0);
    let spans: Vec<_> = live.map(|chunk| (chunk.smallest.clone(), chunk.largest.clone())).collect();
    assert!(spans.windows(2).all(|pair| pair[0].1 < pair[1].0), "{spans:?}");
    assert!(db.verify(Default::default()).unwrap().is_sound());
}

#[test]
fn large_values_are_switched_on_and_off_for_a_partition_with_data() {
    let fs = MemFs::new();
    let db = open(&fs);
    let plain = PartitionOptions::new().table_bytes(1 << 10);
    let p = db.partition_with("p", plain.metahive(MetaHiveOptions::default())).unwrap();
    for n in 0..20_u8 {
        p.put([n | 0x40], vec![n; 600]).unwrap();
    }
    p.flush().unwrap();
    let before = content(&p);
    let p = db.partition_with("p", p.options().large_values(tiny())).unwrap();
    assert_eq!(content(&p), before);
    p.compact(..).unwrap();
    db.wait_idle().unwrap();
    assert_eq!(p.space().unwrap().live_bytes, chunk_bytes(&fs, "/db") - 64 * 4);
    assert_eq!(content(&p), before);
    assert_eq!(p.verified_get([0x43]).unwrap().unwrap().value, vec![3; 600], "MetaHive stays");
    let p = db.partition_with("p", p.options().large_values(LargeValueOptions::off())).unwrap();
    p.compact(..).unwrap();
    db.wait_idle().unwrap();
    assert_eq!((chunk_bytes(&fs, "/db"), content(&p)), (0, before));
    let refused = p.options().large_values(tiny().garbage_permille(0));
    assert_eq!(db.partition_with("p", refused).unwrap_err().kind(), ErrorKind::LimitExceeded);
}

#[test]
fn a_dropped_partition_and_a_checkpoint_have_their_own_chunks() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition_with("p", options()).unwrap();
    let mut writer = p.put_stream("streamed", None).unwrap();
    writer.write_all(&[1; 3000]).unwrap();
    for n in 0..10_u8 {
        p.put([n], vec![n; 700]).unwrap();
    }
    db.checkpoint("/copy").unwrap();
    writer.commit(Durability::Os).unwrap();
    p.put([0], vec![9; 700]).unwrap();
    db.drop_partition("p").unwrap();
    db.wait_idle().unwrap();
    assert_eq!(chunk_bytes(&fs, "/db"), 0);
    let copy = open_with(Arc::new(fs.clone()), "/copy", &ManualClock::default()).unwrap();
    let q = copy.partition("p").unwrap();
    assert_eq!(q.iter().count(), 10);
    assert_eq!(q.get([0]).unwrap().unwrap(), vec![0; 700]);
    q.put([0], vec![5; 700]).unwrap();
    assert!(copy.verify(Default::default()).unwrap().is_sound());
}

#[test]
fn a_full_disk_in_the_middle_of_a_stream_leaves_nothing_and_the_store_goes_on() {
    let fs = MemFs::new();
    let db = open(&fs);
    let p = db.partition_with("p", options()).unwrap();
    p.put("before", vec![1; 1000]).unwrap();
    let used = chunk_bytes(&fs, "/db");
    fs.set_capacity(Some(1 << 20));
    let mut writer = p.put_stream("film", None).unwrap();
    let refused = (0..2000).find_map(|_| writer.write_all(&[2; 1000]).err());
    assert_eq!(refused.unwrap().kind(), std::io::ErrorKind::StorageFull);
    drop(writer);
    assert_eq!(chunk_bytes(&fs, "/db"), used, "the file is gone");
    p.put("after", vec![3; 1000]).unwrap();
    assert_eq!(p.get("film").unwrap(), None);
    assert_eq!(p.get("before").unwrap().unwrap(), vec![1; 1000]);
}

#[derive(Clone, Default)]
struct HeardChunks(Arc<Mutex<Vec<(ChunkChange, String, u64)>>>);

impl EventListener for HeardChunks {
    fn on_event(&self, event: &Event) {
        if let Event::ChunkChanged { partition, path, change, bytes } = event {
            assert_eq!(partition, "p");
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            self.0.lock().unwrap().push((*change, name, *bytes));
        }
    }
}

/// Lengths of the files that listeners were notified of in this event.
fn lengths_of(
    heard: &[(ChunkChange, String, u64)],
    wanted: ChunkChange,
) -> impl Iterator<Item = u64> {
    let heard = heard.iter().filter(move |(change, ..)| *change == wanted);
    heard.map(|(.., bytes)| *bytes)
}

#[test]
fn every_chunk_file_is_in_stats_and_events() {
    let fs = MemFs::new();
    let clock = ManualClock::default();
    let heard = HeardChunks::default();
    let builder = stepped(Arc::new(fs.clone()), "/db", 7).clock(Arc::new(clock.clone()));
    let db = builder.listener(Arc::new(heard.clone())).open().unwrap();
    let p = db.partition_with("p", options()).unwrap();
    for n in 0..40_u8 {
        p.put([n], vec![n; 1000]).unwrap();
    }
    let stats = value_store(&db);
    let on_disk = chunk_bytes(&fs, "/db");
    assert!(on_disk > 40_000 && stats.pending_bytes > 40_000 && stats.live_bytes == 0);
    assert_eq!((stats.bytes, stats.written_bytes), (on_disk, on_disk));
    assert!(db.stats().disk_bytes > on_disk);
    for n in 0..40_u8 {
        p.delete([n]).unwrap();
    }
    rest(&db, &clock);
    let stats = value_store(&db);
    assert_eq!((stats.chunk_count, stats.bytes), (0, 0));
    assert_eq!((stats.created_count, stats.reclaimed_bytes), (stats.reclaimed_count, on_disk));
    let heard = heard.0.lock().unwrap();
    assert_eq!(lengths_of(&heard, ChunkChange::Created).count() as u64, stats.created_count);
    assert_eq!(lengths_of(&heard, ChunkChange::Reclaimed).count() as u64, stats.created_count);
    assert_eq!(lengths_of(&heard, ChunkChange::Reclaimed).sum::<u64>(), on_disk);
    let sealed = lengths_of(&heard, ChunkChange::Sealed).count() as u64;
    assert!(sealed > 5 && stats.sealed_count == sealed, "{sealed}");
    let health = db.health();
    let health = health.partitions.iter().find(|partition| partition.name == "p").unwrap();
    assert_eq!(health.value_store.as_ref(), Some(&stats));
}
