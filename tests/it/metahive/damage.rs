//! Damage in memory, between reading and writing, and on the medium, in closed tables.

use std::path::PathBuf;

use lsm_core::hooks::Origin;
use lsm_core::internals::names::FileKind;
use lsm_core::types::EntryKind;
use metahive::RepairOptions;
use siltstone::Compression;

use super::*;

/// The effect of a fault on an entry between its reading and its writing.
pub(super) type Fault = fn(&mut OwnedEntry, u32);

fn flip(bytes: &mut [u8], bit: u32) {
    if !bytes.is_empty() {
        let bit = bit as usize % (8 * bytes.len());
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

fn flip_key(entry: &mut OwnedEntry, bit: u32) {
    flip(&mut entry.key, bit);
}

fn flip_value(entry: &mut OwnedEntry, bit: u32) {
    flip(&mut entry.value, bit);
}

fn flip_seq(entry: &mut OwnedEntry, bit: u32) {
    entry.seq = SeqNo::new(entry.seq.get() ^ 1 << (bit % 56)).unwrap();
}

fn flip_kind(entry: &mut OwnedEntry, bit: u32) {
    let flipped = [4, 2, 1].map(|mask| EntryKind::from_u8(entry.kind as u8 ^ mask));
    let known: Vec<_> = flipped.into_iter().flatten().collect();
    entry.kind = known[bit as usize % known.len()];
}

/// A flip in each field of an entry.
pub(super) const FAULTS: [Fault; 4] = [flip_key, flip_value, flip_seq, flip_kind];

/// Runs a compaction in which entries have a fault in memory after they were verified: `faults`
/// names the keys and the bit.
fn compact_with(fault: Fault, hits: &[(u32, u32)]) {
    let fs = MemFs::new();
    let log = Arc::new(Log::default());
    let provider = Provider::new(MetaHive::default());
    let Checked { db, p, model, .. } = filled(&fs, &provider);
    drop(p);
    db.close().unwrap();
    let hits = hits.to_vec();
    let struck = Arc::new(Mutex::new(0u64));
    let count = struck.clone();
    let inject = move |at: Origin, entry: &mut OwnedEntry| {
        if at.file.is_none() {
            return;
        }
        for (n, bit) in &hits {
            if entry.key.starts_with(&key_of(*n)) {
                fault(entry, *bit);
                *count.lock().unwrap() += 1;
                return;
            }
        }
    };
    let open = builder(Arc::new(fs.clone()), 7).hooks(Arc::new(provider.clone()));
    let db = open.listener(log.clone()).inject(inject).open().unwrap();
    let p = db.partition("p").unwrap();
    // All are rewritten, so that no table is moved unchanged.
    let mut model = model;
    for n in (0..300u32).step_by(7) {
        let key = key_of(n);
        p.put(&key, "new").unwrap();
        model.insert(key, b"new".to_vec());
    }
    p.compact(..).unwrap();
    assert!(*struck.lock().unwrap() > 0);
    assert_eq!(pairs(p.iter()), model);
    census(&fs).assert_all_sealed();
    let counts = provider.0.counts();
    assert!(counts.faults + counts.metadata_rebuilt > 0);
    assert_eq!(log.take().1, Content::new());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn a_bit_that_flips_in_memory_is_found_and_never_written(
        hits in prop::collection::vec((0u32..300, any::<u32>()), 1..4),
        field in 0usize..4,
    ) {
        compact_with(FAULTS[field], &hits);
    }
}

pub(super) fn tables(fs: &MemFs) -> Vec<PathBuf> {
    let mut paths = fs.paths();
    paths.retain(|path| {
        let name = path.file_name().and_then(|name| FileName::parse(name.to_str()?));
        name.is_some_and(|name| name.kind == FileKind::Sst)
    });
    paths
}

/// Flips bits of the last bytes of `needle`, wherever a table has it. Returns how often.
pub(super) fn harm(fs: &MemFs, needle: &[u8], masks: &[u8]) -> usize {
    let mut hits = 0;
    for path in tables(fs) {
        let bytes = fs.read_raw(&path).unwrap();
        for at in 0..bytes.len().saturating_sub(needle.len()) {
            if bytes[at..].starts_with(needle) {
                let end = at + needle.len() - masks.len();
                for (n, mask) in masks.iter().enumerate() {
                    fs.corrupt(&path, (end + n) as u64, *mask).unwrap();
                }
                hits += 1;
            }
        }
    }
    hits
}

/// A closed store with one entry damaged in its tables, opened again.
pub(super) fn harmed(masks: &[u8], options: RepairOptions) -> (Checked, Arc<Log>) {
    let fs = MemFs::new();
    let provider = Provider::new(MetaHive::new(MetaHiveOptions::new().repair_options(options)));
    let Checked { db, p, model, .. } = filled(&fs, &provider);
    drop(p);
    db.close().unwrap();
    assert!(harm(&fs, "value 137 ".repeat(4).as_bytes(), masks) > 0);
    let log = Arc::new(Log::default());
    let open = builder(Arc::new(fs.clone()), 8).hooks(Arc::new(provider.clone()));
    let db = open.listener(log.clone()).open().unwrap();
    let p = db.partition("p").unwrap();
    (Checked { fs, provider, db, p, model, snapshots: Vec::new() }, log)
}

pub(super) fn no_log() -> RepairOptions {
    RepairOptions { log: false, ..RepairOptions::default() }
}

#[test]
fn a_bit_that_flips_on_the_medium_is_turned_back() {
    let (it, log) = harmed(&[0x10], no_log());
    let error = it.p.get(key_of(137)).unwrap_err();
    assert!(error.is_corruption(), "before the compaction");
    it.p.put(key_of(137).repeat(2), "inside").unwrap();
    it.p.compact(..).unwrap();
    it.p.delete(key_of(137).repeat(2)).unwrap();
    assert_eq!(log.take(), (vec!["one-bit search".to_owned()], Content::new()));
    it.check(b"");
    it.p.compact(..).unwrap();
    it.check(b"");
    census(&it.fs).assert_all_sealed();
    // The neighbours of the damaged block were kept by their metadata.
    assert!(it.provider.0.counts().suspects_accepted > 1);
}

/// Two bits of an entry are repaired from the log, if it still has the entry.
#[test]
fn two_bits_that_flip_on_the_medium_are_repaired_from_the_log() {
    let fs = MemFs::new();
    let log = Arc::new(Log::default());
    let provider = Provider::new(MetaHive::default());
    let open = builder(Arc::new(fs.clone()), 9).hooks(Arc::new(provider.clone()));
    let db = open.listener(log.clone()).open().unwrap();
    let p = db.partition_with("p", tiny().hooks(provider.hooks())).unwrap();
    // A partition that is not flushed keeps the log.
    let other = db.partition("other").unwrap();
    other.put("a", "b").unwrap();
    let value = "value 137 ".repeat(4);
    for n in 136..139 {
        p.put(key_of(n), format!("value {n} ").repeat(4)).unwrap();
    }
    p.flush().unwrap();
    assert_eq!(harm(&fs, value.as_bytes(), &[0x01, 0x80]), 1);
    p.compact(..).unwrap();
    assert_eq!(p.get(key_of(137)).unwrap().as_deref(), Some(value.as_bytes()));
    let (repaired, quarantined) = log.take();
    assert_eq!((repaired, quarantined.len()), (vec!["log".to_owned()], 0));
}

#[test]
fn a_block_whose_entries_do_not_all_decode_stops_no_compaction_and_loses_nothing() {
    let fs = MemFs::new();
    let provider = Provider::new(MetaHive::default());
    let Checked { db, p, model, .. } = filled(&fs, &provider);
    drop(p);
    db.close().unwrap();
    // The header of an entry, in two bits: nothing after it decodes.
    let before = "value 136 ".repeat(4);
    let mut hits = 0;
    for path in tables(&fs) {
        let bytes = fs.read_raw(&path).unwrap();
        let found = bytes.windows(before.len()).position(|window| window == before.as_bytes());
        if let Some(at) = found {
            let metadata = at + before.len();
            fs.corrupt(&path, metadata as u64, 0x8c).unwrap();
            hits += 1;
        }
    }
    assert!(hits > 0);
    let open = builder(Arc::new(fs.clone()), 8).hooks(Arc::new(provider));
    let db = open.open().unwrap();
    let p = db.partition("p").unwrap();
    p.put(key_of(136).repeat(2), "inside").unwrap();
    p.compact(..).unwrap();
    for (key, value) in &model {
        match p.get(key) {
            Ok(found) => assert_eq!(found.as_deref(), Some(&value[..])),
            Err(error) => assert!(error.is_corruption()),
        }
    }
}

fn check_quarantine(it: &Checked, key: &[u8]) {
    let error = it.p.get(key).unwrap_err();
    assert!(error.is_corruption());
    assert_eq!(error.damage().unwrap().key.as_deref(), Some(key));
    for (other, value) in it.model.iter().filter(|(other, _)| *other != key) {
        assert_eq!(it.p.get(other).unwrap().as_deref(), Some(&value[..]));
    }
    let scanned = it.p.iter().filter(std::result::Result::is_err).count();
    assert_eq!(scanned, 1, "a scan says so too");
}

#[test]
fn unrepairable_entries_read_as_corruption_and_stop_no_compaction() {
    let (mut it, log) = harmed(&[0xff, 0xff, 0xff], no_log());
    let key = key_of(137);
    it.p.put(key.repeat(2), "inside").unwrap();
    it.model.insert(key.repeat(2), b"inside".to_vec());
    it.p.compact(..).unwrap();
    let (repaired, quarantined) = log.take();
    assert_eq!((&*repaired, quarantined.len()), (&[][..], 1));
    assert!(quarantined[&key[..]].starts_with(b"value 137"), "its bytes are handed over");
    check_quarantine(&it, &key);
    census(&it.fs).assert_all_sealed();
    let mut it = it.reopen();
    check_quarantine(&it, &key);
    for round in 0..3u8 {
        let other = [&key[..], &[round, 9]].concat();
        it.p.put(&other, [round]).unwrap();
        it.model.insert(other, vec![round]);
        it.p.compact(..).unwrap();
        check_quarantine(&it, &key);
    }
    it.p.put(&key, "overwritten").unwrap();
    it.model.insert(key.clone(), b"overwritten".to_vec());
    it.p.compact(..).unwrap();
    assert_eq!(it.p.get(&key).unwrap().as_deref(), Some(&b"overwritten"[..]));
    // A scan cannot know which other keys were there. The owner may.
    assert!(it.p.iter().any(|pair| pair.is_err()));
    let given_up = it.p.accept_loss(..).unwrap();
    assert_eq!((given_up.len(), it.p.gaps().len()), (1, 0));
    // Entries that are loaded later are newer than the loss.
    it.p.bulk_load([(&key, "loaded")]).unwrap();
    it.model.insert(key.clone(), b"loaded".to_vec());
    it.p.compact(..).unwrap();
    let it = it.reopen();
    it.check(&key);
    census(&it.fs).assert_all_sealed();
}

/// Searches stop after a number of them that found nothing, and the gap reports it.
#[test]
fn fruitless_repair_searches_end_and_are_reported() {
    let fs = MemFs::new();
    let log = Arc::new(Log::default());
    let provider = Provider::new(MetaHive::new(MetaHiveOptions::new().repair_options(no_log())));
    let open = builder(Arc::new(fs.clone()), 9).hooks(Arc::new(provider.clone()));
    let db = open.listener(log.clone()).open().unwrap();
    let options = tiny().compression(Compression::None).table_bytes(1 << 20);
    let p = db.partition_with("p", options.hooks(provider.hooks())).unwrap();
    for n in 0..400 {
        p.put(key_of(n), format!("value {n} ").repeat(4)).unwrap();
    }
    db.flush().unwrap();
    let mut harmed = 0;
    for n in (0..400).step_by(3) {
        harmed += harm(&fs, format!("value {n} ").repeat(4).as_bytes(), &[0x01, 0x80]);
    }
    assert!(harmed > 100);
    p.put(key_of(0).repeat(2), "makes the compaction write").unwrap();
    p.compact(..).unwrap();
    let events = std::mem::take(&mut *log.0.lock().unwrap());
    let in_vain = events.iter().filter(|event| format!("{event:?}").contains("in vain"));
    assert!(in_vain.count() > 10);
    for n in 0..400 {
        let found = p.get(key_of(n));
        let is_true = |found: &Option<siltstone::Slice>| {
            found.as_deref() == Some(format!("value {n} ").repeat(4).as_bytes())
        };
        assert!(
            found.as_ref().map_or_else(siltstone::Error::is_corruption, is_true),
            "{n}: {found:?}"
        );
    }
}

#[test]
fn versions_whose_cluster_a_flipped_key_tears_apart_are_put_together_again() {
    // The oldest version sorts elsewhere, so that the metadata of all the others comes too late.
    let fs = MemFs::new();
    let log = Arc::new(Log::default());
    let provider = Provider::new(MetaHive::default());
    let open = builder(Arc::new(fs.clone()), 7).hooks(Arc::new(provider.clone()));
    let db = open
        .listener(log.clone())
        .inject(|at: Origin, entry: &mut OwnedEntry| {
            if at.file.is_some() && entry.value.starts_with(b"version 0") {
                entry.key = b"zzz".to_vec();
            }
        })
        .open()
        .unwrap();
    let p = db.partition_with("p", tiny().hooks(provider.hooks())).unwrap();
    let mut snapshots = Vec::new();
    for n in 0..5 {
        p.put("key", format!("version {n}").repeat(3)).unwrap();
        p.put(format!("before {n}"), "value").unwrap();
        db.flush().unwrap();
        snapshots.push((db.snapshot(), pairs(p.iter())));
    }
    // An export leaves the damage of the tables to the next compaction.
    for round in 0..2 {
        p.export(.., format!("/export {round}")).unwrap();
    }
    p.compact(..).unwrap();
    for (snapshot, then) in &snapshots {
        assert_eq!(&pairs(snapshot.iter(&p)), then);
    }
    let (repaired, quarantined) = log.take();
    assert!(!repaired.is_empty() && quarantined.is_empty(), "{quarantined:?}");
    census(&fs).assert_all_sealed();
}

/// The flush seals the checksum that it has confirmed, and no later one.
#[test]
fn a_bit_that_flips_between_the_check_of_a_flush_and_its_seal_is_turned_back() {
    for len in [1_usize, 240, 241, 1_024, 5_000] {
        let log = Arc::new(Log::default());
        let provider = Provider::new(MetaHive::default());
        let open = builder(Arc::new(MemFs::new()), 7).hooks(Arc::new(provider.clone()));
        let db = open
            .listener(log.clone())
            .inject(|at: Origin, entry: &mut OwnedEntry| {
                if at.file.is_none() && entry.key == b"key" {
                    entry.value[0] ^= 4;
                }
            })
            .open()
            .unwrap();
        let p = db.partition_with("p", tiny().hooks(provider.hooks())).unwrap();
        p.put("key", vec![7; len]).unwrap();
        db.flush().unwrap();
        p.compact(..).unwrap();
        assert_eq!(p.get("key").unwrap().as_deref(), Some(&vec![7; len][..]), "{len}");
        let (repaired, quarantined) = log.take();
        assert_eq!((repaired.len(), quarantined.len()), (1, 0), "{len}");
    }
}

#[test]
fn a_single_bit_that_flips_at_rest_is_turned_back_wherever_it_is() {
    let mut rng = Rng::from_env_or(99);
    let fs = MemFs::new();
    let provider = Provider::new(MetaHive::default());
    let Checked { db, p, model, .. } = filled(&fs, &provider);
    p.compact(..).unwrap();
    // Only the data blocks: the blocks after them have no metadata. They are not the first half of
    // a file, as this test once assumed: most of a table of one block is Bloom filter and index.
    let walk = p.walk().unwrap();
    let tables: Vec<(PathBuf, u64)> =
        walk.tables().map(|table| (table.path(), table.properties().unwrap().data_bytes)).collect();
    drop(walk);
    drop(p);
    db.close().unwrap();
    for round in 0..250 {
        let image = fs.crash_clone(lsm_core::fs::CrashOutcome::Everything, &mut || rng.next_u64());
        let (path, data_bytes) = rng.pick(&tables).clone();
        let bit = rng.below(8 * data_bytes);
        image.corrupt(&path, bit / 8, 1 << (bit % 8)).unwrap();
        let log = Arc::new(Log::default());
        let provider = Provider::new(MetaHive::default());
        let open = builder(Arc::new(image.clone()), 8).hooks(Arc::new(provider.clone()));
        let db = open.listener(log.clone()).open().unwrap();
        let p = db.partition("p").unwrap();
        let what = format!("round {round}, bit {bit} of {}", path.display());
        p.compact(..).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(pairs(p.iter()), model, "{what}");
        census(&image).assert_all_sealed();
        let (repaired, quarantined) = log.take();
        assert_eq!((repaired.is_empty(), quarantined.len()), (false, 0), "{what}");
    }
}
