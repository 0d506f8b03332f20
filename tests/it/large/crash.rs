//! The power is cut before every operation on the storage, while values are put, streamed, deleted
//! and moved, and while their partition is dropped. After each cut the store opens with a state
//! that was committed, each value is complete, and every byte of every chunk file is accounted for.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex};

use lsm_core::fs::{CrashOutcome, FaultFs, Fs, FsOp, MemFs};
use siltstone::{Durability, Partition, PartitionOptions};
use testkit::Rng;

use super::{ManualClock, chunk_bytes, compressed, open, open_with, options, rest};

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// The states that were committed, and how many of them are known to be durable.
#[derive(Clone, Default)]
struct Committed {
    states: Vec<Content>,
    durable: usize,
}

/// An image that a cut could leave: the operation before it, and the expected state at that time.
struct Image {
    what: String,
    mem: MemFs,
    committed: Committed,
    /// The partition may exist, and may be dropped.
    existed: (bool, bool),
    /// Bytes of a sub-block in the table of sub-blocks.
    entry_bytes: u64,
}

struct Script {
    p: Partition,
    committed: Arc<Mutex<Committed>>,
    now: Content,
}

impl Script {
    /// Records the state before the commit that leads to it, because a cut may happen during the
    /// commit.
    fn next(&mut self, key: u8, value: Option<Vec<u8>>) {
        match value {
            Some(value) => self.now.insert(vec![key], value),
            None => self.now.remove(&[key][..]),
        };
        self.committed.lock().unwrap().states.push(self.now.clone());
    }

    fn put(&mut self, key: u8, len: usize) {
        let value = vec![key ^ len as u8; len];
        self.next(key, Some(value.clone()));
        self.p.put([key], &value).unwrap();
    }

    fn stream(&mut self, key: u8, len: usize) {
        let value = vec![key.wrapping_add(len as u8); len];
        let mut writer = self.p.put_stream([key], None).unwrap();
        for piece in value.chunks(300) {
            writer.write_all(piece).unwrap();
        }
        self.next(key, Some(value));
        writer.commit(Durability::Sync).unwrap();
        self.all_durable();
    }

    fn delete(&mut self, key: u8) {
        self.next(key, None);
        self.p.delete([key]).unwrap();
    }

    fn all_durable(&self) {
        let mut committed = self.committed.lock().unwrap();
        committed.durable = committed.states.len() - 1;
    }
}

fn run(mut rng: Rng, options: PartitionOptions, entry_bytes: u64) -> Vec<Image> {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let clock = ManualClock::default();
    let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
    let p = db.partition_with("p", options).unwrap();
    let committed = Arc::new(Mutex::new(Committed { states: vec![Content::new()], durable: 0 }));
    let existed = Arc::new(Mutex::new((true, true)));
    let images: Arc<Mutex<Vec<Image>>> = Arc::default();
    let rng = Mutex::new(rng.fork());
    let taken = images.clone();
    let known = committed.clone();
    let there = existed.clone();
    fs.set_observer(Arc::new(move |op: &FsOp| {
        if !op.mutates() {
            return;
        }
        let mut rng = rng.lock().unwrap();
        for outcome in CrashOutcome::ALL {
            let what =
                format!("op {} ({:?} at {}), {outcome:?}", op.index, op.kind, op.path.display());
            let mem = mem.crash_clone(outcome, &mut || rng.next_u64());
            let committed = known.lock().unwrap().clone();
            let existed = *there.lock().unwrap();
            taken.lock().unwrap().push(Image { what, mem, committed, existed, entry_bytes });
        }
    }));
    let mut script = Script { p: p.clone(), committed, now: Content::new() };
    for n in 0..8 {
        script.put(n, 300 + 400 * usize::from(n % 3));
    }
    script.stream(20, 5000);
    p.flush().unwrap();
    script.all_durable();
    for n in 0..6 {
        script.delete(n);
    }
    script.put(7, 50);
    drop(p.put_stream([30], None).unwrap().write_all(&[1; 2000]));
    rest(&db, &clock);
    script.stream(6, 900);
    script.put(21, 700);
    p.compact(..).unwrap();
    script.all_durable();
    // Files in which some values are garbage, then all values in the order of their keys.
    for n in 40..52 {
        script.put(n, 800 + usize::from(n));
    }
    p.flush().unwrap();
    script.all_durable();
    for n in (40..52).filter(|n| n % 3 > 0) {
        script.delete(n);
    }
    p.flush().unwrap();
    script.all_durable();
    p.reclaim().unwrap();
    let reclaimed = super::value_store(&db).moved_bytes;
    p.reallocate(..).unwrap();
    let moved = super::value_store(&db).moved_bytes;
    assert!(reclaimed > 0 && moved > reclaimed, "{reclaimed} and {moved} bytes moved");
    // Sealed files are linked, the file that is still appended to is copied, and the stream is in neither.
    script.put(32, 900);
    p.flush().unwrap();
    script.all_durable();
    let mut open = p.put_stream([31], None).unwrap();
    open.write_all(&[1; 1000]).unwrap();
    db.checkpoint("/copy").unwrap();
    drop(open);
    *existed.lock().unwrap() = (true, false);
    db.drop_partition("p").unwrap();
    *existed.lock().unwrap() = (false, false);
    db.wait_idle().unwrap();
    fs.clear_observer();
    std::mem::take(&mut *images.lock().unwrap())
}

/// Checks the state after the cut. Returns `true` if the checkpoint is there.
fn check(image: &Image) -> bool {
    let what = &image.what;
    let db = open(&image.mem);
    let is_there = db.has_partition("p");
    let (may_be, must_be) = image.existed;
    assert!(is_there || !must_be, "{what}: the partition is gone");
    assert!(!is_there || may_be, "{what}: the partition is back");
    if is_there {
        let p = db.partition("p").unwrap();
        let found = super::content(&p);
        let states = &image.committed.states[image.committed.durable..];
        assert!(states.contains(&found), "{what}: a state that was not committed");
        // Every byte of every chunk is live or known garbage.
        let space = p.space().unwrap();
        let len = chunk_bytes(&image.mem, "/db");
        assert_eq!(space.total_bytes, len, "{what}: {space:?}");
        let large = found.iter().filter(|(_, value)| value.len() >= 256);
        let blocks = large.map(|(key, value)| block_bytes(&p, key, value, image.entry_bytes));
        let blocks: u64 = blocks.sum();
        assert!(space.live_bytes >= blocks, "{what}: {space:?}");
        p.compact(..).unwrap();
        p.reclaim().unwrap();
        let space = p.space().unwrap();
        assert_eq!(space.live_bytes, blocks, "{what}: {space:?}");
        assert_eq!(super::content(&p), found, "{what}");
        p.put("goes on", vec![7; 999]).unwrap();
        db.drop_partition("p").unwrap();
        db.wait_idle().unwrap();
    }
    assert_eq!(chunk_bytes(&image.mem, "/db"), 0, "{what}");
    assert!(db.verify(Default::default()).unwrap().is_sound(), "{what}");
    check_copy(image)
}

/// The checkpoint has all values, or is no database. Returns `true` if it is there.
fn check_copy(image: &Image) -> bool {
    let what = &image.what;
    let listed = image.mem.list("/copy".as_ref(), "").unwrap_or_default();
    if !listed.iter().any(|entry| entry.name.ends_with(".manifest")) {
        return false;
    }
    let copy = open_with(Arc::new(image.mem.clone()), "/copy", &ManualClock::default()).unwrap();
    let p = copy.partition("p").unwrap();
    let states = &image.committed.states;
    assert_eq!(Some(&super::content(&p)), states.last(), "{what}: the checkpoint");
    assert!(copy.verify(Default::default()).unwrap().is_sound(), "{what}");
    drop(p);
    copy.drop_partition("p").unwrap();
    copy.wait_idle().unwrap();
    assert_eq!(chunk_bytes(&image.mem, "/copy"), 0, "{what}");
    true
}

/// Checks all images. Some are without a checkpoint, some have a part of one, and some have all of
/// it.
fn check_all(images: &[Image]) {
    assert!(images.len() > 500, "{} images", images.len());
    let copies = images.iter().filter(|image| check(image)).count();
    let parts = images.iter().filter(|image| image.what.contains("/copy")).count();
    assert!(copies > 0 && parts > 0 && copies + parts < images.len(), "{copies}, {parts}");
}

/// The length of the block of a value.
fn block_bytes(p: &Partition, key: &[u8], value: &[u8], entry_bytes: u64) -> u64 {
    let stored_len = p.stat_blob(key).unwrap().unwrap().stored_len;
    // The form of the value is part of the format, as the table of sub-blocks is.
    assert_eq!(stored_len == value.len() as u64, entry_bytes == 8);
    48 + key.len() as u64 + stored_len + entry_bytes * value.len().div_ceil(256) as u64
}

#[test]
fn a_cut_at_any_operation_leaves_whole_compressed_values_and_no_byte_unaccounted_for() {
    let images = run(Rng::from_env_or(12), compressed(), 12);
    check_all(&images);
}

#[test]
fn a_cut_at_any_operation_leaves_whole_values_and_no_byte_unaccounted_for() {
    let images = run(Rng::from_env_or(11), options(), 8);
    check_all(&images);
    // A file with an unknown name stays where it is.
    let mem = MemFs::new();
    drop(open(&mem));
    mem.open_append("/db/notes.chunk".as_ref(), lsm_core::fs::AppendMode::IfAbsent).unwrap();
    drop(open(&mem));
    assert!(mem.read_raw("/db/notes.chunk".as_ref()).is_ok());
}
