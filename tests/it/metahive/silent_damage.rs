//! Blocks whose damage only the walk of a compaction, or the repair after it, can detect: each
//! entry matches its metadata, and the checksum of the block is right.

use metahive::RepairOptions;
use siltstone::Compression;

use super::verified::{blocks, flip, metadata_place};
use super::*;

/// A store with one table of these values, in blocks of `block_bytes`.
fn store(repair: RepairOptions, block_bytes: u32, values: &[Vec<u8>]) -> (MemFs, Db, Partition) {
    let fs = MemFs::new();
    let provider = Provider::new(MetaHive::new(MetaHiveOptions::new().repair_options(repair)));
    let options = Options::new().cache_bytes(0);
    let db = builder(Arc::new(fs.clone()), 1).options(options).open().unwrap();
    let options = PartitionOptions::new().compression(Compression::None).block_bytes(block_bytes);
    let p = db.partition_with("p", options.hooks(provider.hooks())).unwrap();
    for (n, value) in (0..).zip(values) {
        p.put(key_of(n), value).unwrap();
    }
    db.flush().unwrap();
    (fs, db, p)
}

/// The offset of `bytes` in the only table.
fn place_of(fs: &MemFs, bytes: &[u8]) -> u64 {
    let (path, ..) = blocks(fs).pop().unwrap();
    let table = fs.read_raw(&path).unwrap();
    table.windows(bytes.len()).position(|window| window == bytes).unwrap() as u64
}

/// Two entries are swapped together with their metadata: their checksums and the digest of the
/// block match.
#[test]
fn entries_out_of_order_are_a_gap() {
    let values: Vec<_> = (0..12).map(|n| format!("value {n:02}").into_bytes()).collect();
    let (fs, _db, p) =
        store(RepairOptions { log: false, ..RepairOptions::default() }, 4096, &values);
    // From the previous value to the end of the entry and its metadata.
    let at = [3, 4, 5].map(|n| place_of(&fs, &values[n]));
    let len = at[1] - at[0];
    assert_eq!(len, at[2] - at[1], "entries of one length");
    let (path, seed, blocks) = blocks(&fs).pop().unwrap();
    let bytes = fs.read_raw(&path).unwrap();
    // An entry begins after the value of the previous one.
    let begin = (at[0] + values[3].len() as u64) as usize;
    let metadata = [4, 5].map(|n| metadata_place(&bytes, &key_of(n as u32), &values[n]));
    let swaps = [(begin, begin + len as usize, len as usize), (metadata[0].0, metadata[1].0, 11)];
    for (one, other, len) in swaps {
        for i in 0..len {
            let mask = bytes[one + i] ^ bytes[other + i];
            for place in [one + i, other + i] {
                if mask != 0 {
                    flip(&fs, &path, seed, blocks[0], place as u64, mask);
                }
            }
        }
    }
    p.put(key_of(100), "makes the compaction write").unwrap();
    p.compact(..).unwrap();
    assert_eq!(p.gaps().len(), 1);
    for n in 0..12 {
        assert!(p.get(key_of(n)).unwrap_err().is_corruption(), "{n}");
    }
}

/// One flipped bit of a prefix damages the entries that share it; the first of them is too long for
/// a search. The search used to stop there, and the long entry was lost.
#[test]
fn a_bit_of_a_prefix_is_found_after_an_entry_that_is_too_long() {
    let mut values: Vec<_> = (0..16).map(|n| format!("value {n:02}").into_bytes()).collect();
    values[0] = vec![7; 40 << 10];
    let repair = RepairOptions { one_bit_bytes_max: 512, log: false, ..RepairOptions::default() };
    let (fs, _db, p) = store(repair, 64 << 10, &values);
    let (path, seed, blocks) = blocks(&fs).pop().unwrap();
    assert_eq!(blocks.len(), 1);
    flip(&fs, &path, seed, blocks[0], place_of(&fs, &key_of(0)) + 1, 4);
    p.put(key_of(100), "makes the compaction write").unwrap();
    p.compact(..).unwrap();
    assert_eq!(p.gaps(), []);
    for (n, value) in (0..).zip(&values) {
        assert_eq!(p.get(key_of(n)).unwrap().unwrap()[..], value[..], "{n}");
    }
}

/// The lengths of an entry say where all entries after it begin. In a block of this size no search tries every bit:
/// it tries those of the first entry that is damaged.
#[test]
fn a_bit_in_the_structure_of_a_large_block_is_found() {
    let values: Vec<_> = (0..120u8).map(|n| vec![n; 200]).collect();
    // Kind, shared bytes, length of the rest of the key, length of the value in 2 bytes, sequence number.
    for byte in 0..6 {
        for bit in 0..8 {
            let repair = RepairOptions { log: false, ..RepairOptions::default() };
            let (fs, _db, p) = store(repair, 64 << 10, &values);
            let (path, seed, blocks) = blocks(&fs).pop().unwrap();
            assert!(blocks.len() == 1 && blocks[0].1 > 8 << 10, "{blocks:?}");
            let entry = place_of(&fs, &values[59]) + 200;
            flip(&fs, &path, seed, blocks[0], entry + byte, 1 << bit);
            p.put(key_of(1000), "makes the compaction write").unwrap();
            p.compact(..).unwrap();
            assert_eq!(p.gaps(), [], "bit {bit} of byte {byte}");
            for (n, value) in (0..).zip(&values) {
                assert_eq!(p.get(key_of(n)).unwrap().unwrap()[..], value[..], "{n}");
            }
        }
    }
}
