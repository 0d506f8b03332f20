//! Verified reads: the results of plain reads on intact stores, and never a wrong one on others.

use std::path::PathBuf;

use lsm_core::codec::checksum64_seeded;
use lsm_core::hooks::Entry;
use lsm_core::types::EntryKind;
use metahive::{MetadataProvider, RepairOptions, Statistics, Verdict, Verified, VerifiedBy};

use super::*;
use crate::test_value_store::TestValueStore;

type Answer = siltstone::Result<Option<Verified>>;

fn value(answer: Answer) -> Option<Vec<u8>> {
    answer.unwrap().map(|verified| verified.value.to_vec())
}

fn verified(range: metahive::VerifiedRange) -> Content {
    range.map(|item| item.map(|(k, v)| (k.to_vec(), v.value.to_vec())).unwrap()).collect()
}

/// Every verified read of an intact store, compared with the expected content.
pub(super) fn check(it: &Checked, probe: &[u8]) {
    let Checked { p, model, snapshots, .. } = it;
    assert_eq!(&verified(p.verified_range(..)), model);
    let from: Content =
        model.range(probe.to_vec()..).map(|(k, v)| (k.clone(), v.clone())).collect();
    assert_eq!(verified(p.verified_range(probe..)), from);
    for key in model.keys().map(Vec::as_slice).chain([probe]) {
        assert_eq!(value(p.verified_get(key)).as_ref(), model.get(key), "{key:?}");
        let plus = [key, &[SUFFIX]].concat();
        assert_eq!(value(p.verified_get(&plus)).as_ref(), model.get(&plus));
    }
    for (snapshot, then) in snapshots {
        assert_eq!(&verified(snapshot.verified_range(p, ..)), then);
        for key in model.keys().chain(then.keys()) {
            assert_eq!(value(snapshot.verified_get(p, key)).as_ref(), then.get(key), "{key:?}");
        }
    }
}

/// The source that verified the values of a partition: metadata, blocks, memory.
fn vouchers(p: &Partition) -> [usize; 3] {
    let mut counts = [0; 3];
    for item in p.verified_range(..) {
        let (key, found) = item.unwrap();
        let again = p.verified_get(&key).unwrap().unwrap();
        assert_eq!(again, found, "{key:?}");
        counts[found.by as usize] += 1;
    }
    counts
}

#[test]
fn a_verified_value_states_what_verified_it() {
    let fs = MemFs::new();
    let provider = Provider::new(MetaHive::default());
    let db = builder(Arc::new(fs.clone()), 1).open().unwrap();
    let p = db.partition_with("p", tiny()).unwrap();
    for n in 0..100u32 {
        p.put(key_of(n), "old").unwrap();
    }
    db.flush().unwrap();
    for refused in [
        p.verified_get(key_of(1)).map(|_| ()).unwrap_err(),
        p.verified_range(..).next().unwrap().map(|_| ()).unwrap_err(),
    ] {
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        assert!(refused.to_string().contains("no MetaHive"), "{refused}");
    }
    let p = db.partition_with("p", tiny().hooks(provider.hooks())).unwrap();
    assert_eq!(vouchers(&p), [0, 100, 0]);
    for n in 0..10u32 {
        p.put(key_of(n), "new").unwrap();
    }
    assert_eq!(vouchers(&p), [0, 90, 10]);
    db.flush().unwrap();
    assert_eq!(vouchers(&p), [10, 90, 0]);
    p.compact(..).unwrap();
    assert_eq!(vouchers(&p), [100, 0, 0]);
    // Of another node, again.
    let other = db.partition_with("other", tiny()).unwrap();
    other.put(key_of(7), "taken in").unwrap();
    db.flush().unwrap();
    let plain = db.partition_with("p", tiny().hooks(Hooks::new())).unwrap();
    other.export(.., "/export").unwrap();
    let before = db.snapshot();
    plain.ingest("/export").unwrap();
    let p = db.partition_with("p", tiny().hooks(provider.hooks())).unwrap();
    assert_eq!(vouchers(&p), [99, 1, 0]);
    assert_eq!(value(p.verified_get(key_of(7))), Some(b"taken in".to_vec()));
    assert_eq!(value(before.verified_get(&p, key_of(7))), Some(b"new".to_vec()));
    drop(before);
    p.compact(..).unwrap();
    assert_eq!(vouchers(&p), [100, 0, 0]);
    assert_eq!(provider.0.counts().reads_mended, 0);
}

#[test]
fn pairs_that_lie_apart_are_found() {
    let provider = Provider::new(MetaHive::default());
    let db = builder(Arc::new(MemFs::new()), 1).options(Options::new()).open().unwrap();
    let p = db.partition_with("p", tiny().hooks(provider.hooks())).unwrap();
    // Keys between a key and its metadata, beyond the limit of a group: the tables end there, and
    // the metadata is in the properties of one.
    p.put("T", "row").unwrap();
    for n in 0..60u32 {
        p.put([b"T\0", &n.to_be_bytes()[..], b"c"].concat(), [7; 3000]).unwrap();
    }
    p.put("U", "behind").unwrap();
    p.compact(..).unwrap();
    assert!(provider.0.counts().split_pairs > 0);
    assert_eq!(vouchers(&p), [62, 0, 0]);
    // More versions of one key than one block holds; a snapshot sees each.
    let mut snapshots = Vec::new();
    for n in 0..800u32 {
        p.put("hot", [&n.to_be_bytes()[..], &[9; 2000]].concat()).unwrap();
        snapshots.push(db.snapshot());
    }
    p.compact(..).unwrap();
    assert!(provider.0.counts().split_pairs > 100);
    for (n, snapshot) in snapshots.iter().enumerate() {
        let found = snapshot.verified_get(&p, "hot").unwrap().unwrap();
        assert_eq!(
            (&found.value[..4], found.by),
            (&(n as u32).to_be_bytes()[..], VerifiedBy::Metadata)
        );
    }
    assert_eq!(vouchers(&p), [63, 0, 0]);
}

// ---- damage that block checksums do not show --------------------------------------------------

/// A block: offset and length.
pub(super) type Place = (u64, u64);

/// The tables of a store: path, seed of the checksums, data blocks.
pub(super) fn blocks(fs: &MemFs) -> Vec<(PathBuf, u64, Vec<Place>)> {
    let (version, context) = recovered(fs);
    let mut all = Vec::new();
    for (_, table) in version.partition_named("p").unwrap().tables() {
        let reader = table.reader(&context).unwrap();
        let seed = reader.identity().unique_id() as u64;
        let blocks = reader.blocks().map(|block| block.unwrap()).collect();
        all.push((table.path(&context), seed, blocks));
    }
    all
}

/// The offset of the metadata of a value in the bytes of a table, and its length.
pub(super) fn metadata_place(table: &[u8], key: &[u8], value: &[u8]) -> (usize, usize) {
    // Its sequence number is that of the value.
    let found = (0..1000).find_map(|seq| {
        let seq = SeqNo::new(seq).unwrap();
        let sum = checksum::of_entry(key, value, seq, EntryKind::Value);
        let metadata = Payload::new(seq, sum).encode()[8..].to_vec();
        let place = table.windows(metadata.len()).position(|window| window == metadata)?;
        Some((place, metadata.len()))
    });
    found.unwrap()
}

/// Changes bits of the byte at `at`, in the block at `block`, and corrects its checksum. A second
/// call undoes it.
pub(super) fn flip(fs: &MemFs, path: &Path, seed: u64, block: Place, at: u64, mask: u8) {
    fs.corrupt(path, at, mask).unwrap();
    let bytes = fs.read_raw(path).unwrap();
    let start = block.0 as usize;
    let end = (block.0 + block.1 - 8) as usize;
    let seed = seed ^ block.0.wrapping_mul(0x9e6c_63d0_876a_9a99);
    let sum = checksum64_seeded(&bytes[start..end], seed).to_le_bytes();
    for (i, byte) in sum.into_iter().enumerate() {
        let at = end + i;
        if bytes[at] != byte {
            fs.corrupt(path, at as u64, bytes[at] ^ byte).unwrap();
        }
    }
}

/// A small store whose blocks are read from the files each time.
struct Small {
    fs: MemFs,
    p: Partition,
    provider: Provider,
    /// Checks the facts that hold at each of these times.
    moments: Vec<(Snapshot, Content)>,
    keys: Vec<Vec<u8>>,
}

impl Small {
    /// Keys that extend one another, written and deleted three times, in two levels.
    fn new(hive: MetaHive, cache_bytes: u64) -> Small {
        let fs = MemFs::new();
        let provider = Provider::new(hive);
        let options = Options::new().cache_bytes(cache_bytes);
        let open = builder(Arc::new(fs.clone()), 1).options(options);
        let db = open.hooks(Arc::new(provider.clone())).open().unwrap();
        let plain = PartitionOptions::new().compression(siltstone::Compression::None);
        let options = plain.level0_tables(8).block_bytes(512);
        let p = db.partition_with("p", options.hooks(provider.hooks())).unwrap();
        let keys = [&b"K"[..], b"K\0", b"K\0\0", b"Kb", b"L", b"LL", b"M", b"absent"];
        let keys: Vec<Vec<u8>> = keys.map(<[u8]>::to_vec).to_vec();
        let mut model = Content::new();
        let mut moments = Vec::new();
        for round in 0..4u8 {
            for (n, key) in keys[..7].iter().enumerate() {
                if n % 3 == usize::from(round) || (round == 3 && n != 1) {
                    continue;
                }
                if n == 4 && round == 2 {
                    p.delete(key).unwrap();
                    model.remove(key);
                } else {
                    let value = vec![b'a' + round; n + 1];
                    p.put(key, &value).unwrap();
                    model.insert(key.clone(), value);
                }
            }
            moments.push((db.snapshot(), model.clone()));
            match round {
                0 | 1 => p.compact(..).unwrap(),
                _ => db.flush().unwrap(),
            }
        }
        Small { fs, p, provider, moments, keys }
    }

    /// Checks that every result is right or reports damage. Returns the number of reports.
    fn check(&self) -> usize {
        let mut reports = 0;
        let mut is_reported = |error: siltstone::Error| {
            let damage = error.damage().unwrap_or_else(|| panic!("{error}"));
            assert_eq!(damage.partition.as_deref(), Some("p"));
            assert!(damage.offset.is_some() && damage.file.starts_with(DIR), "{error}");
            reports += 1;
        };
        for (snapshot, truth) in &self.moments {
            for key in &self.keys {
                match snapshot.verified_get(&self.p, key) {
                    Ok(found) => {
                        let found = found.map(|found| found.value.to_vec());
                        assert_eq!(found.as_ref(), truth.get(key), "{key:?}");
                    }
                    Err(error) => is_reported(error),
                }
            }
            let mut expected = truth.iter();
            let mut is_whole = true;
            for item in snapshot.verified_range(&self.p, ..) {
                match item {
                    Ok((key, found)) => {
                        let (k, v) = expected.next().unwrap();
                        assert_eq!((&key[..], &found.value[..]), (&k[..], &v[..]));
                    }
                    Err(error) => {
                        is_reported(error);
                        is_whole = false;
                    }
                }
            }
            assert!(!is_whole || expected.next().is_none(), "nothing is left out");
        }
        reports
    }
}

/// Flips every bit of every block, one by one. Returns how many are reported and how many do no
/// harm.
fn turn_every_bit(small: &Small) -> (u64, u64) {
    assert_eq!(small.check(), 0);
    let mut reported = 0;
    let mut harmless = 0;
    for (path, seed, blocks) in blocks(&small.fs) {
        for block in blocks {
            for at in block.0..block.0 + block.1 - 9 {
                for bit in 0..8 {
                    flip(&small.fs, &path, seed, block, at, 1 << bit);
                    match small.check() {
                        0 => harmless += 1,
                        _ => reported += 1,
                    }
                    flip(&small.fs, &path, seed, block, at, 1 << bit);
                }
            }
        }
    }
    assert_eq!(small.check(), 0);
    (reported, harmless)
}

#[test]
fn every_flipped_bit_that_its_block_does_not_see_is_reported_or_does_no_harm() {
    let once = RepairOptions { retries_max: 1, ..RepairOptions::default() };
    let small = Small::new(MetaHive::new(MetaHiveOptions::new().repair_options(once.clone())), 0);
    let (reported, harmless) = turn_every_bit(&small);
    // One of the two copies of a checksum is 11 of the about 45 bytes of an entry.
    assert!(reported > 1000 && harmless > 1000, "{reported} {harmless}");
    assert_eq!(small.provider.0.counts().reads_mended, 0);
    let any_key = MetaHive::new(MetaHiveOptions::new().any_key(true).repair_options(once));
    turn_every_bit(&Small::new(any_key, 0));
}

#[test]
fn an_older_version_is_not_shown_where_the_newest_has_lost_its_key() {
    let fs = MemFs::new();
    let provider = Provider::new(MetaHive::default());
    let options = Options::new().cache_bytes(0);
    let db = builder(Arc::new(fs.clone()), 1).options(options).open().unwrap();
    let plain = PartitionOptions::new().compression(siltstone::Compression::None);
    let p = db.partition_with("p", plain.hooks(provider.hooks())).unwrap();
    // More versions than a block holds, after a key with which they share a byte.
    p.put("ha", "before").unwrap();
    let mut snapshots = Vec::new();
    for n in 0..700u32 {
        p.put("hot", [&n.to_be_bytes()[..], &[9; 2000]].concat()).unwrap();
        snapshots.push(db.snapshot());
    }
    p.compact(..).unwrap();
    assert_eq!(p.verified_get("hot").unwrap().unwrap().value[..4], 699u32.to_be_bytes());
    let newest = [&b"ot"[..], &699u32.to_be_bytes(), &[9; 20]].concat();
    for (path, seed, blocks) in blocks(&fs) {
        let bytes = fs.read_raw(&path).unwrap();
        let Some(at) = bytes.windows(26).position(|window| window == newest) else { continue };
        flip(&fs, &path, seed, blocks[0], at as u64, 1);
        let older = p.get("hot").unwrap().unwrap();
        assert_eq!(older[..4], 698u32.to_be_bytes(), "a plain read shows it");
        let error = p.verified_get("hot").unwrap_err();
        assert_eq!(error.damage().unwrap().key.as_deref(), Some(&b"hnt"[..]));
        assert!(p.verified_range(..).any(|item| item.is_err()));
        return;
    }
    panic!("the newest version is in no table");
}

#[test]
fn damage_in_memory_is_repaired_from_the_device() {
    let Small { fs, p, provider, mut moments, keys } = Small::new(MetaHive::default(), 0);
    let (_, truth) = moments.pop().unwrap();
    drop((p, moments));
    let mut wrong = 0;
    for (path, seed, blocks) in blocks(&fs) {
        for block in blocks {
            for at in block.0..block.0 + block.1 - 9 {
                let mask = 1 << (at % 8);
                let open = builder(Arc::new(fs.clone()), 2).hooks(Arc::new(provider.clone()));
                let db = open.open().unwrap();
                let p = db.partition("p").unwrap();
                // The cache gets the damaged block; then the file is intact.
                flip(&fs, &path, seed, block, at, mask);
                let is_wrong = |key: &Vec<u8>| {
                    let found = p.get(key).ok();
                    found.is_some_and(|found| found.as_deref() != truth.get(key).map(|v| &v[..]))
                };
                wrong += u64::from(keys.iter().filter(|key| is_wrong(key)).count() > 0);
                flip(&fs, &path, seed, block, at, mask);
                for key in &keys {
                    assert_eq!(value(p.verified_get(key)).as_ref(), truth.get(key), "{key:?}");
                }
                assert!(!keys.iter().any(is_wrong), "what was read again is in the cache");
                drop(p);
                db.close().unwrap();
            }
        }
    }
    let mended = provider.0.counts().reads_mended;
    assert!(wrong > 30 && mended >= wrong, "{wrong} {mended}");
}

#[test]
fn a_scan_repairs_damage_in_memory_too() {
    let Small { fs, p, provider, mut moments, .. } = Small::new(MetaHive::default(), 0);
    let (_, truth) = moments.pop().unwrap();
    drop((p, moments));
    let (path, seed, blocks) = blocks(&fs).pop().unwrap();
    let bytes = fs.read_raw(&path).unwrap();
    let at = bytes.windows(2).position(|two| two == b"bb").unwrap() as u64;
    let open = builder(Arc::new(fs.clone()), 2).hooks(Arc::new(provider.clone()));
    let p = open.open().unwrap().partition("p").unwrap();
    flip(&fs, &path, seed, blocks[0], at, 1);
    assert_ne!(pairs(p.iter()), truth);
    flip(&fs, &path, seed, blocks[0], at, 1);
    assert_eq!(verified(p.verified_range(..)), truth);
    assert_eq!(provider.0.counts().reads_mended, 1);
    assert_eq!(pairs(p.iter()), truth);
}

/// Metadata that states the length of a value, of an application that refuses one length.
struct Picky(Statistics);

impl MetadataProvider for Picky {
    fn name(&self) -> &'static str {
        "picky"
    }

    fn make(&self, entry: &Entry<'_>) -> Vec<u8> {
        self.0.make(entry)
    }

    fn check(&self, entry: &Entry<'_>, metadata: &[u8]) -> Verdict {
        match entry.value {
            b"never" => Verdict::DataCorrupt,
            _ => self.0.check(entry, metadata),
        }
    }
}

#[test]
fn the_partitions_own_provider_is_asked() {
    let hive = |provider: Arc<dyn MetadataProvider>| {
        Provider::new(MetaHive::new(MetaHiveOptions::new().provider(provider)))
    };
    let provider = hive(Arc::new(Picky(Statistics::default())));
    let db = builder(Arc::new(MemFs::new()), 1).open().unwrap();
    let p = db.partition_with("p", tiny().hooks(provider.hooks())).unwrap();
    p.put("a", "good").unwrap();
    p.put("b", "never").unwrap();
    assert_eq!(vouchers(&p), [0, 0, 2]);
    db.flush().unwrap();
    assert_eq!(p.verified_get("a").unwrap().unwrap().by, VerifiedBy::Metadata);
    let error = p.verified_get("b").unwrap_err();
    assert_eq!(error.damage().unwrap().key.as_deref(), Some(&b"b"[..]));
    // Another provider cannot verify its tables, and is not asked.
    for other in [hive(Arc::new(Statistics::default())), Provider::new(MetaHive::default())] {
        let error = db.partition_with("p", tiny().hooks(other.hooks())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("picky"), "{error}");
        let again = db.partition_with("p", tiny().hooks(provider.hooks())).unwrap();
        assert_eq!(again.verified_get("a").unwrap().unwrap().by, VerifiedBy::Metadata);
    }
}

#[test]
fn values_in_a_store_are_verified_by_their_handles() {
    let fs = MemFs::new();
    let provider = Provider::new(MetaHive::default());
    let shelf = TestValueStore::default();
    let options = Options::new().cache_bytes(0);
    let db = builder(Arc::new(fs.clone()), 1).options(options).open().unwrap();
    let hooks = provider.hooks().value_store(Arc::new(shelf));
    let plain = PartitionOptions::new().compression(siltstone::Compression::None);
    let p = db.partition_with("p", plain.hooks(hooks)).unwrap();
    for n in 0..3u8 {
        p.put([n, b'k'], vec![n; 200]).unwrap();
    }
    db.flush().unwrap();
    for n in 0..3u8 {
        let found = p.verified_get([n, b'k']).unwrap().unwrap();
        assert_eq!((&found.value[..], found.by), (&vec![n; 200][..], VerifiedBy::Metadata));
    }
    assert_eq!(verified(p.verified_range(..)).len(), 3);
    // Another handle instead of it leads to another value.
    let (path, seed, blocks) = blocks(&fs).pop().unwrap();
    let bytes = fs.read_raw(&path).unwrap();
    let handle = 2u64.to_le_bytes();
    let at = bytes.windows(8).position(|eight| eight == handle).unwrap() as u64;
    flip(&fs, &path, seed, blocks[0], at, 3);
    assert_eq!(
        p.get([1, b'k']).unwrap().as_deref(),
        Some(&vec![0; 200][..]),
        "a plain read does not detect it"
    );
    assert!(p.verified_get([1, b'k']).unwrap_err().is_corruption());
    assert!(p.verified_range(..).any(|item| item.is_err_and(|error| error.is_corruption())));
}

#[test]
fn a_quarantined_record_is_corruption_and_is_not_read_again() {
    let (it, _log) = damage::harmed(&[0xff, 0xff, 0xff], damage::no_log());
    let key = key_of(137);
    it.p.put(key.repeat(2), "inside").unwrap();
    it.p.compact(..).unwrap();
    let error = it.p.verified_get(&key).unwrap_err();
    assert!(error.to_string().contains("damaged beyond repair"), "{error}");
    let errors = it.p.verified_range(..).filter(std::result::Result::is_err).count();
    assert_eq!(errors, 1);
    let after: Vec<_> = it.p.verified_range(key_of(138)..).map(|item| item.unwrap()).collect();
    assert_eq!(after.len(), 162);
    assert_eq!(it.provider.0.counts().reads_mended, 0);
}
