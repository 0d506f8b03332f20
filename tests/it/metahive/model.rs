//! A repair never hides damage: this is tested over whole stores whose files are damaged. Every
//! read of every key that was ever written, of the current state and of every snapshot, by get,
//! scan and verified read, returns the true value or an error. There is no exception.
//!
//! Each damage of a block is tested twice: as it happens on the medium, where the checksum of the
//! block detects it, and as it happens before the block is written, by a fault in memory: then the
//! checksum matches.
//!
//! Damaged are every single bit of a table of about 1 KiB, and by seeds: bytes, runs and blocks of
//! data blocks, index, bloom and properties, entries that were moved, swapped, dropped or replaced.
//! Then come flushes, compactions, exports, ingests and reopening (`ways.rs`), with snapshots held.
//!
//! `SEED` repeats a run, `MODEL_ROUNDS` makes it longer; `scripts/metahive-soak.sh` runs for the
//! time that it is given.

mod check;
mod entries;
mod parts;
mod ways;

use std::path::PathBuf;

use lsm_core::fs::CrashOutcome;
use siltstone::Compression;

use super::*;

use check::{Reads, check};
use entries::{items, other_entries};
use parts::{CHECKSUM_BYTES, Part, parts, put};
use ways::Way;

type Model = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// A store with every key that was ever written, its current content, and the content of snapshots.
struct Store {
    fs: MemFs,
    db: Db,
    p: Partition,
    log: Arc<Log>,
    now: Model,
    snapshots: Vec<(Snapshot, Model)>,
}

/// The parts of a store.
#[derive(Clone, Copy, Debug)]
struct Shape {
    any_key: bool,
    compression: Compression,
    block_bytes: u32,
    /// The level of the newest tables: everything compacted, or in level 0.
    is_compacted: bool,
    has_snapshots: bool,
    keys: u64,
    /// Bytes with which all keys begin.
    prefix: usize,
    seed: u64,
}

const SMALL: Shape = Shape {
    any_key: false,
    compression: Compression::None,
    block_bytes: 300,
    is_compacted: false,
    has_snapshots: true,
    keys: 9,
    prefix: 0,
    seed: 1,
};

/// The keys are so long that the index of a flushed table has two levels.
const TWO_LEVELS: Shape = Shape { keys: 300, prefix: 4000, has_snapshots: false, ..SMALL };

impl Shape {
    fn key(self, n: u64) -> Vec<u8> {
        format!("{}pre/{n:02}", "x".repeat(self.prefix)).into_bytes()
    }

    fn options(self, provider: &Provider) -> PartitionOptions {
        let table_bytes = if self.prefix == 0 { 4 << 10 } else { 16 << 20 };
        let options = PartitionOptions::new().block_bytes(self.block_bytes);
        let options = options.table_bytes(table_bytes);
        options.compression(self.compression).level0_tables(100).hooks(provider.hooks())
    }

    fn provider(self) -> Provider {
        let options = MetaHiveOptions::new().any_key(self.any_key);
        Provider::new(MetaHive::new(options.repair_options(super::damage::no_log())))
    }
}

fn open(fs: &MemFs, shape: Shape) -> (Db, Partition, Arc<Log>) {
    let provider = shape.provider();
    let log = Arc::new(Log::default());
    let options = small_buffers().write_buffer_bytes(16 << 20).cache_bytes(0);
    let db = stepped(Arc::new(fs.clone()), DIR, shape.seed)
        .options(options)
        .hooks(Arc::new(provider.clone()))
        .listener(log.clone())
        .open()
        .unwrap();
    let p = db.partition_with("p", shape.options(&provider)).unwrap();
    (db, p, log)
}

impl Store {
    /// Three generations of the same keys: the oldest at the bottom, the others above.
    fn new(shape: Shape) -> Store {
        let fs = MemFs::new();
        let (db, p, log) = open(&fs, shape);
        let mut store = Store { fs, db, p, log, now: Model::new(), snapshots: Vec::new() };
        let mut rng = Rng::new(shape.seed);
        for generation in 0..3u8 {
            for n in 0..shape.keys {
                let key = shape.key(n * 3 + rng.below(2));
                store.write(&key, generation, &mut rng);
                if shape.has_snapshots && generation == 1 && n == shape.keys / 2 {
                    store.snapshot();
                }
            }
            if generation == 0 {
                // Values that an older version must never replace.
                store.p.compact(..).unwrap();
            }
            store.db.flush().unwrap();
            if shape.has_snapshots && generation < 2 {
                store.snapshot();
            }
        }
        if shape.is_compacted {
            store.p.compact(..).unwrap();
        }
        store
    }

    fn write(&mut self, key: &[u8], generation: u8, rng: &mut Rng) {
        if generation > 0 && rng.below(4) == 0 {
            self.p.delete(key).unwrap();
            self.now.insert(key.to_vec(), None);
        } else {
            let value = [&[b'a' + generation][..], key, &rng.next_u64().to_le_bytes()].concat();
            let len = rng.below(value.len() as u64) as usize;
            let value = value[..=len].to_vec();
            self.p.put(key, &value).unwrap();
            self.now.insert(key.to_vec(), Some(value));
        }
    }

    fn snapshot(&mut self) {
        self.snapshots.push((self.db.snapshot(), self.now.clone()));
    }

    /// The same files in another store, opened: without snapshots, which are in memory.
    fn reopened(&self, shape: Shape, damage: impl FnOnce(&MemFs)) -> Store {
        let fs = self.fs.crash_clone(CrashOutcome::Everything, &mut || 0);
        damage(&fs);
        let (db, p, log) = open(&fs, shape);
        Store { fs, db, p, log, now: self.now.clone(), snapshots: Vec::new() }
    }
}

/// The outcomes of the cases of a run.
#[derive(Debug, Default)]
struct Tally {
    cases: usize,
    /// All keys read as before.
    repaired: usize,
    /// Some reads return errors.
    lost: usize,
}

/// Damages the store, then compacts it, and checks every read before and after.
fn case(store: &Store, reads: Reads, tally: &mut Tally, about: &dyn Fn() -> String) {
    check(store, reads, &|| format!("before the compaction: {}", about()));
    if let Err(error) = store.p.compact(..) {
        panic!("the compaction was refused: {error}: {}", about());
    }
    let loud = check_after(store, tally, about);
    assert!(!loud || !store.log.take().1.is_empty(), "it was not reported: {}", about());
}

/// Checks every read after a compaction. Returns `true` if some of them return errors.
fn check_after(store: &Store, tally: &mut Tally, about: &dyn Fn() -> String) -> bool {
    let loud = check(store, Reads::All, &|| format!("after the compaction: {}", about()));
    tally.cases += 1;
    tally.lost += usize::from(loud.keys > 0);
    tally.repaired += usize::from(loud.keys == 0);
    if loud.keys > 0 {
        assert!(!store.p.gaps().is_empty() && !store.db.health().is_healthy(), "{}", about());
    }
    loud.keys > 0
}

/// Flips every bit of the table whose length is nearest to 1 KiB, in stores with snapshots, whose
/// tables are not open. Returns the outcomes of bits in data blocks, and of all others.
fn every_bit(sealed: bool) -> [Tally; 2] {
    let mut of_data = Tally::default();
    let mut of_others = Tally::default();
    let first = Store::new(SMALL);
    let all = parts(&first);
    let chosen = all.iter().min_by_key(|part| {
        let bytes = first.fs.read_raw(&part.path).unwrap();
        bytes.len().abs_diff(1 << 10)
    });
    let path = chosen.unwrap().path.clone();
    let of_table: Vec<&Part> = all.iter().filter(|part| part.path == path).collect();
    for part in &of_table {
        let is_data = part.what == "data block";
        for bit in 0..8 * (part.at.len() - untouched_bytes(part, sealed)) {
            let store = Store::new(SMALL);
            put(&store.fs, part, sealed, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
            let about = || format!("bit {bit} of {part:?}, sealed: {sealed}");
            if bit % 16 == 0 {
                let found = store.p.scrub(ScrubOptions::new()).unwrap();
                assert!(!found.is_undamaged(), "scrub sees nothing: {}", about());
            }
            let reads = if sealed && is_data { Reads::Verified } else { Reads::All };
            case(&store, reads, if is_data { &mut of_data } else { &mut of_others }, &about);
        }
    }
    // The parts are the whole file, from its first byte to its last, and its data blocks come
    // first.
    let file_bytes = first.fs.read_raw(&path).unwrap().len();
    let data: Vec<&&Part> = of_table.iter().filter(|part| part.what == "data block").collect();
    let data_bytes = data.iter().map(|part| part.at.end).max().unwrap();
    let of_data_untouched: usize = data.iter().map(|part| untouched_bytes(part, sealed)).sum();
    let untouched: usize = of_table.iter().map(|part| untouched_bytes(part, sealed)).sum();
    assert_eq!(of_data.cases, 8 * (data_bytes - of_data_untouched));
    assert_eq!(of_data.cases + of_others.cases, 8 * (file_bytes - untouched));
    [of_data, of_others]
}

/// Bytes at the end of a part that are not damaged. Where the part is sealed again, its checksum
/// follows from the other bytes; the footer is not sealed.
fn untouched_bytes(part: &Part, sealed: bool) -> usize {
    match sealed {
        false => 0,
        true if part.what == "footer" => part.at.len(),
        true => CHECKSUM_BYTES,
    }
}

#[test]
fn a_block_is_sealed_as_the_engine_does_it() {
    let store = Store::new(SMALL);
    let all = parts(&store);
    assert!(all.iter().filter(|part| part.what == "data block").count() > 2, "{all:?}");
    for part in all.iter().filter(|part| part.what != "footer") {
        assert!(put(&store.fs, part, true, |_| {}).iter().all(|mask| *mask == 0));
    }
    check(&store, Reads::All, &String::new);
}

#[test]
fn every_bit_of_a_table_on_the_medium_is_turned_back() {
    let [of_data, of_others] = every_bit(false);
    assert!(of_data.lost == 0 && of_others.lost == 0, "{of_data:?}, {of_others:?}");
}

#[test]
fn every_bit_of_a_table_that_was_written_wrong_is_turned_back_or_loud() {
    let [of_data, of_others] = every_bit(true);
    assert!(of_data.lost * 20 < of_data.cases && of_others.lost == 0, "{of_data:?}, {of_others:?}");
}

/// Flips one bit of each of some index blocks, of the two levels of an index, and of the other
/// blocks that are not data.
#[test]
fn damage_of_a_two_level_index_is_repaired() {
    let first = Store::new(TWO_LEVELS);
    let all = parts(&first);
    let path = &all.iter().rfind(|part| part.what == "index").unwrap().path;
    let index: Vec<&Part> =
        all.iter().filter(|part| part.path == *path && part.what == "index").collect();
    assert!(index.len() > 3, "the index has one level: {index:?}");
    let mut rng = Rng::from_env_or(11);
    let mut tally = Tally::default();
    // The top, the last partition, and any other.
    let any: &&Part = rng.pick(&index);
    for part in [index[index.len() - 1], index[index.len() - 2], *any] {
        for sealed in [false, true] {
            let store = Store::new(TWO_LEVELS);
            let bits = 8 * (part.at.len() - CHECKSUM_BYTES) as u64;
            let bit = rng.below(bits) as usize;
            put(&store.fs, part, sealed, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
            case(&store, Reads::All, &mut tally, &|| {
                format!("bit {bit} of {part:?}, sealed: {sealed}")
            });
        }
    }
    assert!(tally.lost == 0, "{tally:?}");
}

/// Neither the index nor the first data block of a table records where another block is.
#[test]
fn a_table_without_index_and_first_block_is_loud() {
    let store = Store::new(TWO_LEVELS);
    let all = parts(&store);
    let path = &all.iter().rfind(|part| part.what == "index").unwrap().path;
    let mut lost: Vec<&Part> = all.iter().filter(|part| part.path == *path).collect();
    lost.retain(|part| part.what == "index" || part.at.start == 0);
    assert!(lost.len() > 3);
    for part in lost {
        put(&store.fs, part, false, |bytes| bytes.iter_mut().for_each(|byte| *byte = !*byte));
    }
    let mut tally = Tally::default();
    case(&store, Reads::All, &mut tally, &|| "index and first block".to_owned());
    assert!(tally.lost > 0, "{tally:?}");
}

impl Shape {
    fn random(rng: &mut Rng) -> Shape {
        Shape {
            any_key: rng.below(2) == 0,
            compression: if rng.below(3) == 0 { Compression::Lz4 } else { Compression::None },
            block_bytes: [200, 500, 4096][rng.below(3) as usize],
            is_compacted: rng.below(3) == 0,
            has_snapshots: true,
            keys: 4 + rng.below(30),
            prefix: 0,
            seed: rng.next_u64(),
        }
    }
}

/// Changes bytes of a block in one of many ways. Returns the way.
fn change(bytes: &mut [u8], rng: &mut Rng) -> &'static str {
    let len = bytes.len() as u64;
    let at = rng.below(len) as usize;
    let run = at..(at + 1 + rng.below(40) as usize).min(bytes.len());
    match rng.below(6) {
        0 => {
            for _ in 0..=rng.below(3) {
                bytes[rng.below(len) as usize] ^= 1 << rng.below(8);
            }
            "bits"
        }
        1 => {
            bytes[at] = rng.next_u64() as u8;
            "a byte"
        }
        2 => {
            bytes[run].fill_with(|| rng.next_u64() as u8);
            "a run of bytes"
        }
        3 => {
            bytes[run].fill(0);
            "a run of zeros"
        }
        4 => {
            bytes.fill_with(|| rng.next_u64() as u8);
            "the block"
        }
        _ => {
            let from = rng.below(len) as usize;
            let len = run.len().min(bytes.len() - from);
            bytes.copy_within(from..from + len, run.start.min(bytes.len() - len));
            "bytes that moved"
        }
    }
}

/// One store, one damage, and one way in which entries move on.
fn random_case(seed: u64, tally: &mut Tally) {
    let mut rng = Rng::new(seed);
    let shape = Shape::random(&mut rng);
    let mut store = Store::new(shape);
    // The twin has the same files, and no table of this one is open yet.
    let twin = if rng.below(2) == 0 { Some(Store::new(shape)) } else { None };
    let known = twin.as_ref().unwrap_or(&store);
    let parts = parts(known);
    let part = if rng.below(4) == 0 {
        rng.pick(&parts)
    } else {
        let data: Vec<&Part> = parts.iter().filter(|part| part.what == "data block").collect();
        *rng.pick(&data)
    };
    let is_data = part.what == "data block";
    let mut sealed = rng.below(2) == 0 && part.what != "footer";
    let mut how = "";
    let bytes = store.fs.read_raw(&part.path).unwrap()[part.at.clone()].to_vec();
    let is_plain = is_data && shape.compression == Compression::None;
    let entries = (is_plain && rng.below(2) == 0)
        .then(|| other_entries(&items(known), part, &bytes, &mut rng))
        .flatten();
    match entries {
        Some((other, what)) => {
            (sealed, how) = (true, what);
            put(&store.fs, part, true, |bytes| bytes.copy_from_slice(&other));
        }
        None => {
            put(&store.fs, part, sealed, |bytes| how = change(bytes, &mut rng));
        }
    }
    drop(twin);
    let reads = if sealed && is_data { Reads::Verified } else { Reads::All };
    let way = Way::random(&mut rng);
    let about = || format!("seed {seed}: {how} of {part:?}, sealed: {sealed}, {way:?}, {shape:?}");
    check(&store, reads, &|| format!("before: {}", about()));
    ways::go(&mut store, shape, way, &mut rng, &about);
    check_after(&store, tally, &about);
}

#[test]
fn no_damage_makes_a_read_wrong_after_a_compaction() {
    let mut tally = Tally::default();
    let rounds = std::env::var("MODEL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let mut seeds = Rng::from_env_or(2026);
    for _ in 0..rounds.unwrap_or(400) {
        random_case(seeds.next_u64(), &mut tally);
    }
    println!("{tally:?}");
    assert!(tally.repaired > 0 && tally.lost > 0, "{tally:?}");
}
