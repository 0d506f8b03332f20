//! Bits that flip in the data blocks of a sealed table: the report of a scrub, and the effect of a
//! compaction on the entries.
//!
//! Twice for each bit: as it happens on the medium, where the checksum of the block detects it; and
//! as it happens before the block is written, by a fault in memory or in the program: then its
//! checksum matches, and only the metadata can detect it.

use std::path::PathBuf;

use lsm_core::codec::checksum64_seeded;
use lsm_core::internals::sstable::SstIdentity;
use lsm_core::raw::RawMode;
use metahive::payload::PAYLOAD_BYTES;
use metahive::{ScrubOptions, ScrubReport, Verdict};
use siltstone::Compression;

use super::*;

/// A stored block, trailer included.
struct Block {
    path: PathBuf,
    unique_id: u128,
    start: u64,
    bytes: Vec<u8>,
}

/// The checksum in the trailer of a block.
const CHECKSUM_BYTES: usize = 8;

/// The data blocks of all tables.
fn blocks(fs: &MemFs, p: &Partition) -> Vec<Block> {
    let walk = p.walk().unwrap();
    let mut blocks = Vec::new();
    for table in walk.tables() {
        let file = table.meta().file;
        let epoch = table.meta().epoch;
        let db_id = walk.db_id();
        let unique_id = SstIdentity { db_id, file, epoch }.unique_id();
        let mut starts = BTreeSet::new();
        let mut entries = table.walk(RawMode::default()).unwrap();
        while let Some(entry) = entries.next().unwrap() {
            starts.insert(entry.at.block_offset);
        }
        let ends = starts.iter().skip(1).copied().chain([table.properties().unwrap().data_bytes]);
        let file = fs.read_raw(&table.path()).unwrap();
        for (start, end) in starts.iter().copied().zip(ends) {
            let path = table.path();
            let bytes = file[start as usize..end as usize].to_vec();
            blocks.push(Block { path, unique_id, start, bytes });
        }
    }
    blocks
}

impl Block {
    /// Replaces the bytes of the block, with the checksum of those that are there already (as
    /// `sstable/stored.rs` computes it) if it is to be `sealed`. Returns the change, which undoes
    /// itself.
    fn put(&self, fs: &MemFs, changed: &[u8], sealed: bool) -> Vec<u8> {
        let mut changed = changed.to_vec();
        if sealed {
            let seed = self.unique_id as u64 ^ self.start.wrapping_mul(0x9e6c_63d0_876a_9a99);
            let body = changed.len() - CHECKSUM_BYTES;
            let checksum = checksum64_seeded(&changed[..body], seed);
            changed[body..].copy_from_slice(&checksum.to_le_bytes());
        }
        let masks: Vec<u8> = changed.iter().zip(&self.bytes).map(|(a, b)| a ^ b).collect();
        self.turn(fs, &masks);
        masks
    }

    fn turn(&self, fs: &MemFs, masks: &[u8]) {
        for (at, mask) in (self.start..).zip(masks).filter(|(_, mask)| **mask != 0) {
            fs.corrupt(&self.path, at, *mask).unwrap();
        }
    }
}

#[test]
fn a_block_is_sealed_as_the_engine_does_it() {
    let it = store(&MemFs::new(), Compression::None, false);
    for block in blocks(&it.fs, &it.p) {
        assert!(block.put(&it.fs, &block.bytes, true).iter().all(|mask| *mask == 0));
    }
}

/// An entry as a walk returns it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shown {
    key: Vec<u8>,
    seq: u64,
    kind: u8,
    value: Vec<u8>,
    hidden: bool,
}

fn shown(p: &Partition) -> BTreeSet<Shown> {
    let mut all = BTreeSet::new();
    let mode = RawMode::Scrub;
    for table in p.walk().unwrap().tables() {
        let mut entries = table.walk(mode).unwrap();
        while let Some(entry) = entries.next().unwrap() {
            let key = entry.key.to_vec();
            let value = entry.value.to_vec();
            let hidden = entry.hidden;
            let seq = entry.stored_seq.get();
            let kind = entry.kind as u8;
            all.insert(Shown { key, seq, kind, value, hidden });
        }
    }
    all
}

/// Two tables with several versions of some keys, deletions, empty values, and keys around the
/// ending of metadata.
fn store(fs: &MemFs, compression: Compression, any_key: bool) -> Checked {
    let provider = Provider::new(MetaHive::new(MetaHiveOptions::new().any_key(any_key)));
    let db = builder(Arc::new(fs.clone()), 40).hooks(Arc::new(provider.clone())).open().unwrap();
    let options = tiny().compression(compression).level0_tables(100).table_bytes(1 << 20);
    let p = db.partition_with("p", options.hooks(provider.hooks())).unwrap();
    let mut snapshots = Vec::new();
    for round in 0..2u8 {
        for n in 0..12u8 {
            let key = [b'k', n % 10, 2 * round];
            match n % 5 {
                3 => p.delete(key).unwrap(),
                4 => p.put(key, "").unwrap(),
                _ => p.put(key, vec![b'a' + n; 10 + usize::from(n)]).unwrap(),
            };
            snapshots.push((db.snapshot(), Content::new()));
        }
        if compression == Compression::None {
            db.flush().unwrap();
        }
    }
    if compression != Compression::None {
        p.compact(..).unwrap();
    }
    Checked { fs: fs.clone(), provider, db, p, model: Content::new(), snapshots }
}

/// The field that a flip changed, if it has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Changed {
    Value,
    Kind,
    Sequence,
    Key,
    Checksum,
    SecondChecksum,
    Other,
}

/// The fields in which the one changed entry, or pair, differs.
fn changed(gone: &[Shown], new: &[Shown]) -> Changed {
    match (&visible(gone)[..], &visible(new)[..]) {
        ([], []) => match (gone, new) {
            ([a], [b])
                if a.value.len() == PAYLOAD_BYTES
                    && b.value.len() == PAYLOAD_BYTES
                    && a.key == b.key =>
            {
                let differs =
                    |range: std::ops::Range<usize>| a.value[range.clone()] != b.value[range];
                match [differs(0..8), differs(8..16), differs(16..PAYLOAD_BYTES)] {
                    [false, true, false] => Changed::Checksum,
                    [false, false, true] => Changed::SecondChecksum,
                    _ => Changed::Other,
                }
            }
            _ => Changed::Other,
        },
        ([a], [b]) if *a == (Shown { value: a.value.clone(), ..b.clone() }) => Changed::Value,
        ([a], [b]) if *a == (Shown { kind: a.kind, ..b.clone() }) => Changed::Kind,
        ([a], [b]) if *a == (Shown { seq: a.seq, ..b.clone() }) => Changed::Sequence,
        ([a], [b]) if *a == (Shown { key: a.key.clone(), ..b.clone() }) => Changed::Key,
        _ => Changed::Other,
    }
}

/// The user keys by which a report may name an entry.
fn names(entry: &Shown, any_key: bool) -> [Vec<u8>; 2] {
    let of = entry_key(&entry.key).unwrap_or(&entry.key);
    [user_key(&entry.key, any_key), user_key(of, any_key)]
}

fn user_key(stored: &[u8], any_key: bool) -> Vec<u8> {
    match stored {
        [head @ .., 0] if any_key => head.to_vec(),
        key => key.to_vec(),
    }
}

fn visible(all: &[Shown]) -> Vec<Shown> {
    all.iter().filter(|entry| !entry.hidden).cloned().collect()
}

/// The entries that a change of `block` added and removed, and the report of a scrub.
struct Outcome {
    report: ScrubReport,
    gone: Vec<Shown>,
    new: Vec<Shown>,
    about: String,
}

/// Scrubs after a change of `block`: the change is found, and no other entry is reported.
fn check(it: &Checked, block: &Block, bytes: &[u8], sealed: bool, any_key: bool) -> Outcome {
    let Checked { fs, p, .. } = it;
    let before = shown(p);
    let masks = block.put(fs, bytes, sealed);
    let report = p.scrub(ScrubOptions::new()).unwrap();
    let after = shown(p);
    block.turn(fs, &masks);
    let gone: Vec<_> = before.difference(&after).cloned().collect();
    let new: Vec<_> = after.difference(&before).cloned().collect();
    let masks: Vec<_> = (0..).zip(&masks).filter(|(_, mask)| **mask != 0).collect();
    let place = format!("{}: {masks:?} in block {}", block.path.display(), block.start);
    let about = format!("{place}\n{report}\n{gone:?}\n{new:?}");
    // The length of the common prefix may be less than it could be: then all entries are unchanged.
    let is_harmless = masks.is_empty() || (sealed && gone.is_empty() && new.is_empty());
    assert!(is_harmless || !report.is_sound(), "{about}");
    assert!(!masks.is_empty() || report.is_sound(), "{about}");
    assert!(report.counts.sealed <= report.counts.entries, "{about}");
    let suspected: BTreeSet<_> =
        gone.iter().chain(&new).flat_map(|entry| names(entry, any_key)).collect();
    for fault in report.faults() {
        assert!(suspected.contains(&fault.key), "{fault}: {about}");
        assert_eq!(fault.at.block_offset, block.start, "{about}");
    }
    for damage in report.damage() {
        let Some((first, last)) = &damage.keys else {
            // Lengths differ, and entries between them are no longer recognised.
            let is_of_block = damage.what.contains("entries of the block are missing");
            assert!(is_of_block || damage.what.contains("the seal of the table counts"), "{about}");
            assert!(!is_of_block || damage.offset == Some(block.start), "{about}");
            continue;
        };
        assert_eq!((&damage.file, damage.offset), (&block.path, Some(block.start)), "{about}");
        let is_within = |key: &Vec<u8>| first <= key && key <= last;
        assert!(gone.iter().filter(|e| !e.hidden).all(|e| is_within(&e.key)), "{about}");
    }
    if !sealed {
        let blocks = report.damage().filter(|damage| damage.offset.is_some()).count();
        assert_eq!(blocks, usize::from(!masks.is_empty()), "{about}");
    }
    Outcome { report, gone, new, about }
}

/// For a single flip with a name the verdict is known, and so is the key.
fn check_verdict(outcome: &Outcome, any_key: bool) -> Changed {
    let Outcome { report, gone, new, about } = outcome;
    let changed = changed(gone, new);
    let verdict = match changed {
        Changed::Value | Changed::Kind | Changed::Sequence | Changed::Key => Verdict::DataCorrupt,
        Changed::Checksum => Verdict::MetadataCorrupt,
        Changed::SecondChecksum => Verdict::SecondCopyDamaged,
        Changed::Other => return changed,
    };
    let faults: Vec<_> = report.faults().collect();
    assert!(faults.iter().all(|fault| fault.verdict == verdict), "{about}");
    let was = gone.iter().find(|entry| !entry.hidden || gone.len() == 1).unwrap();
    let [_, was] = names(was, any_key);
    // A report can name the entry only by its damaged key.
    let is_named = faults.iter().any(|fault| fault.key == was);
    assert!(is_named || (changed == Changed::Key && !faults.is_empty()), "{about}");
    changed
}

#[test]
fn no_flipped_bit_of_a_data_block_is_missed_or_blamed_on_another_key() {
    for any_key in [false, true] {
        let it = store(&MemFs::new(), Compression::None, any_key);
        let mut seen = BTreeMap::new();
        let mut harmless = 0;
        let blocks = blocks(&it.fs, &it.p);
        for block in &blocks {
            for bit in 0..8 * block.bytes.len() {
                let mut bytes = block.bytes.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                let ends = [bytes.len(), bytes.len() - CHECKSUM_BYTES];
                for (sealed, end) in [false, true].into_iter().zip(ends) {
                    if bit < 8 * end {
                        let outcome = check(&it, block, &bytes, sealed, any_key);
                        harmless += usize::from(outcome.report.is_sound());
                        let changed = check_verdict(&outcome, any_key);
                        *seen.entry((sealed, changed)).or_insert(0) += 1;
                    }
                }
            }
        }
        assert!(harmless <= 2 * blocks.len(), "{harmless} of {seen:?}");
        use Changed::{Checksum, Key, Kind, SecondChecksum, Sequence, Value};
        for changed in [Value, Kind, Sequence, Key, Checksum, SecondChecksum] {
            for sealed in [false, true] {
                assert!(seen.get(&(sealed, changed)) > Some(&20), "{changed:?}: {seen:?}");
            }
        }
    }
}

/// A sealed table of these keys, with the last byte of `victim` changed by `mask` and the checksum
/// of its block corrected.
fn one_turned(keys: &[&[u8]], victim: &[u8], mask: u8) -> Checked {
    let provider = Provider::new(MetaHive::default());
    let it = Checked::open(MemFs::new(), provider);
    for key in keys {
        it.p.put(key, if *key == victim { "the victim" } else { "sound" }).unwrap();
    }
    it.db.flush().unwrap();
    let blocks = blocks(&it.fs, &it.p);
    let [block] = &blocks[..] else { panic!("{} blocks", blocks.len()) };
    let mut bytes = block.bytes.clone();
    let value = bytes.windows(10).position(|window| window == b"the victim").unwrap();
    assert_eq!(bytes[value - 1], *victim.last().unwrap(), "the key lies in front of its value");
    bytes[value - 1] ^= mask;
    block.put(&it.fs, &bytes, true);
    it
}

/// The damaged key sorts before metadata that is written before it.
#[test]
fn a_damaged_key_that_sorts_before_metadata_is_repaired() {
    let keys: [&[u8]; 3] = [b"a", b"a\x03", b"b"];
    let it = one_turned(&keys, keys[1], 2);
    it.p.compact(..).unwrap();
    for key in keys {
        let value: &[u8] = if key == keys[1] { b"the victim" } else { b"sound" };
        assert_eq!(it.p.get(key).unwrap().as_deref(), Some(value), "{key:?}");
    }
    assert_eq!(it.p.iter().count(), keys.len());
}

/// The damaged key is outside of the range, its true key inside.
#[test]
fn an_export_finds_a_key_that_left_its_range() {
    let it = one_turned(&[b"a", b"b", b"d"], b"b", b'b' ^ b'c');
    let range = b"a".to_vec()..b"c".to_vec();
    assert_eq!(it.p.export(range, "/export").unwrap().entries, 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn no_change_of_a_data_block_is_missed_or_blamed_on_another_key(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..6),
        which in any::<prop::sample::Index>(),
        is_packed: bool,
        any_key: bool,
        sealed: bool,
    ) {
        let compression = if is_packed { Compression::Lz4 } else { Compression::None };
        let it = store(&MemFs::new(), compression, any_key);
        let blocks = blocks(&it.fs, &it.p);
        let block = which.get(&blocks);
        let mut bytes = block.bytes.clone();
        for (at, mask) in edits {
            let at = at.index(bytes.len() - CHECKSUM_BYTES);
            bytes[at] ^= mask;
        }
        check(&it, block, &bytes, sealed, any_key);
    }
}
