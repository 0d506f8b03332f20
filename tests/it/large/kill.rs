//! A process is killed with SIGKILL while it streams values, deletes some and reclaims space.

use std::path::Path;

use super::*;
use crate::kill::{child_test, kill_after, spawned};

const FOLDER: &str = "SILTSTONE_LARGE_KILL_FOLDER";
const WRITERS: usize = 2;
/// Values of a writer that exist at the same time.
const SLOTS: u64 = 25;
const ROUNDS: u64 = 16;

/// A partition for each writer, the second with metadata for every entry.
fn open_there(folder: &Path) -> (Db, [Partition; WRITERS]) {
    // Small, so that flushes and compactions occur between two kills.
    let buffers = Options::new().write_buffer_bytes(24 << 10).wal_segment_bytes(16 << 10);
    let db = Db::builder(folder).options(buffers.cache_bytes(1 << 20)).open().unwrap();
    let plain = db.partition_with("plain", options()).unwrap();
    let sealed = options().metahive(MetaHiveOptions::new());
    let sealed = db.partition_with("sealed", sealed).unwrap();
    (db, [plain, sealed])
}

fn slot_key(writer: usize, number: u64) -> String {
    format!("writer{writer}-slot{:04}", number % SLOTS)
}

fn count_key(writer: usize) -> String {
    format!("writer{writer}-count")
}

/// Every seventh write of a slot is a deletion.
fn value_of(writer: usize, number: u64) -> Option<Vec<u8>> {
    let len = 100 + number * 997 % 6000;
    let first = number.wrapping_mul(31) as u8 ^ writer as u8;
    (!number.is_multiple_of(7)).then(|| (0..len).map(|at| (at * 7) as u8 ^ first).collect())
}

/// The writer: does nothing unless a parent starts it.
#[test]
fn child_that_streams_until_it_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let (db, partitions) = open_there(Path::new(&folder));
    std::thread::scope(|scope| {
        for (writer, p) in partitions.iter().enumerate() {
            let db = &db;
            scope.spawn(move || stream_for_ever(db, p, writer));
        }
        loop {
            partitions.iter().for_each(|p| p.reclaim().unwrap());
        }
    });
}

#[expect(clippy::print_stdout, reason = "acknowledgements for the parent")]
fn stream_for_ever(db: &Db, p: &Partition, writer: usize) {
    let mut number = check_writer(p, writer);
    loop {
        number += 1;
        let key = slot_key(writer, number);
        let batch = db.batch().put(p, count_key(writer), number.to_string());
        let batch = match value_of(writer, number) {
            None => batch.delete(p, &key),
            Some(value) => {
                let mut stream = p.put_stream(&key, None).unwrap();
                for piece in value.chunks(700) {
                    stream.write_all(piece).unwrap();
                }
                batch.put_blob(stream.finish().unwrap())
            }
        };
        batch.commit(Durability::Os).unwrap();
        println!("ack {writer} {number}");
    }
}

/// The number of the last batch of `writer` in the store, after a check that its values are
/// complete and that no later one is there.
fn check_writer(p: &Partition, writer: usize) -> u64 {
    let count = p.get(count_key(writer)).unwrap();
    let last =
        count.map_or(0, |count| std::str::from_utf8(&count).unwrap().parse::<u64>().unwrap());
    for number in last.saturating_sub(SLOTS - 1).max(1)..=last {
        let found = p.get(slot_key(writer, number)).unwrap().map(|value| value.to_vec());
        assert!(found == value_of(writer, number), "value {number} of {last}");
    }
    last
}

#[test]
fn killed_streams_lose_nothing_that_was_acknowledged_and_leave_no_garbage() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::from_env_or(12);
    let mut acks = [0; WRITERS];
    for round in 0..ROUNDS {
        let child =
            child_test("large::kill::child_that_streams_until_it_is_killed", FOLDER, dir.path());
        // Sometimes while it opens or recovers.
        let wanted = if round % 8 == 7 { 0 } else { 1 + rng.below(150) };
        kill_after(spawned(child), wanted, |writer, number| acks[writer] = number);
        let (db, partitions) = open_there(dir.path());
        for (writer, acked) in acks.iter_mut().enumerate() {
            let found = check_writer(&partitions[writer], writer);
            assert!((*acked..=*acked + 1).contains(&found), "round {round}: {found}, {acked} said");
            *acked = found;
        }
        partitions.iter().for_each(|p| p.reclaim().unwrap());
        db.wait_idle().unwrap();
        let all = OsFs.list(dir.path(), "").unwrap();
        let chunks = all.iter().filter(|entry| entry.name.ends_with(".chunk"));
        let spaces = partitions.each_ref().map(|p| p.space().unwrap());
        let total: u64 = spaces.iter().map(|space| space.total_bytes).sum();
        assert_eq!(total, chunks.map(|entry| entry.len).sum::<u64>(), "round {round}");
        assert!(spaces.iter().all(|space| space.pending_bytes == 0));
        assert!(db.verify(Default::default()).unwrap().is_sound(), "round {round}");
        if round % 2 == 0 {
            db.close().unwrap();
        }
    }
    assert!(acks.iter().sum::<u64>() > ROUNDS, "{acks:?}");
}
