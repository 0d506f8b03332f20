//! Digests of several blocks together: tables with very many blocks have them, and tables whose
//! blocks were cut early.

use lsm_core::raw::RawMode;
use metahive::table_seal::Span;

use super::faulty::Faulty;
use super::verified::blocks;
use super::*;

/// With one digest for two blocks, as very large tables have them; the first one is wrong by `off`.
fn paired(seal: TableSeal, off: u32) -> TableSeal {
    let pairs = seal.spans.chunks(2).enumerate().map(|(number, pair)| Span {
        blocks: pair.len() as u64,
        digest: pair
            .iter()
            .fold(if number == 0 { off } else { 0 }, |sum, span| sum.wrapping_add(span.digest)),
    });
    TableSeal { spans: pairs.collect(), ..seal }
}

/// The number of blocks requested so far.
fn lookups(db: &Db) -> u64 {
    let stats = db.stats();
    stats.cache_hits + stats.cache_misses
}

/// The first read of a block of a span reads all blocks of the span. The others used to be compared
/// again by the first read in each of them.
#[test]
fn the_blocks_of_a_span_are_compared_once_for_all_of_them() {
    let it = Faulty::sealing(|seal| paired(seal, 0));
    for table in it.p.walk().unwrap().tables() {
        let mut blocks = Vec::new();
        let mut entries = table.walk(RawMode::default()).unwrap();
        while let Some(entry) = entries.next().unwrap() {
            let offset = entry.at.block_offset;
            if entry.hidden || blocks.last() == Some(&offset) {
                continue;
            }
            blocks.push(offset);
            let before = lookups(&it.db);
            it.p.verified_get(entry.key).unwrap();
            // The last span may have only one block.
            let most = if blocks.len() % 2 == 1 { 2 } else { 1 };
            assert!(lookups(&it.db) - before <= most, "block {}", blocks.len());
            assert!(blocks.len() > 1 || lookups(&it.db) - before == 2, "the span has two blocks");
        }
        assert!(blocks.len() > 3, "{blocks:?}");
    }
}

#[test]
fn a_digest_of_several_blocks_is_verified_over_all_of_them() {
    for (it, is_sound) in [
        (Faulty::sealing(|seal| paired(seal, 0)), true),
        (Faulty::sealing(|seal| paired(seal, 1)), false),
    ] {
        for table in it.p.walk().unwrap().tables() {
            let mut blocks = Vec::new();
            let mut entries = table.walk(RawMode::default()).unwrap();
            while let Some(entry) = entries.next().unwrap() {
                let offset = entry.at.block_offset;
                if blocks.last() != Some(&offset) {
                    blocks.push(offset);
                }
                if !entry.hidden {
                    let found = it.p.verified_get(entry.key);
                    assert_eq!(found.is_err(), blocks.len() <= 2 && !is_sound, "{found:?}");
                }
            }
            assert!(blocks.len() > 3, "{blocks:?}");
        }
    }
}

/// Damages the second block of each table, so that its checksum is wrong.
fn damage_second_blocks(it: &Checked) {
    for (path, _, blocks) in blocks(&it.fs) {
        let (offset, len) = blocks[1];
        it.fs.corrupt(&path, offset + len / 2, 0x10).unwrap();
    }
}

/// A repaired block stays in its span: the following spans are compared with their own blocks. The
/// span used to be left open, so that all entries after it were given up.
#[test]
fn a_repaired_block_ends_its_span() {
    let it = Faulty::sealing(|seal| paired(seal, 0));
    damage_second_blocks(&it);
    it.p.compact(..).unwrap();
    assert_eq!(it.p.gaps(), []);
    for n in 0..300 {
        let found = it.p.verified_get(key_of(n)).unwrap().unwrap();
        assert_eq!(found.value, format!("value {n} ").repeat(4).as_bytes());
    }
}

/// The digest over a repaired block and its neighbour shows that they lack an entry.
#[test]
fn a_repaired_block_does_not_hide_what_its_span_lacks() {
    let it = Faulty::sealing(|seal| paired(seal, 1));
    damage_second_blocks(&it);
    it.p.compact(..).unwrap();
    let gaps = it.p.gaps();
    assert!(!gaps.is_empty());
    let mut readable = 0;
    for n in 0..300 {
        let key = key_of(n);
        match it.p.get(&key) {
            Ok(found) => {
                readable += 1;
                assert_eq!(found.unwrap(), format!("value {n} ").repeat(4).as_bytes());
            }
            Err(error) => {
                assert!(error.is_corruption(), "{error}");
                assert!(gaps.iter().any(|gap| *gap.from <= key[..] && key[..] <= *gap.to), "{n}");
            }
        }
    }
    // The first span of each table is lost, and no other.
    assert!(readable > 100, "{readable}");
}

/// The second of the digests that cover two blocks is wrong.
fn off_in_the_middle(seal: TableSeal) -> TableSeal {
    let mut seal = paired(seal, 0);
    if let Some(span) = seal.spans.get_mut(1) {
        span.digest = span.digest.wrapping_add(1);
    }
    seal
}

/// The gap of a lost span begins at the last entry before the span, whose older versions may be
/// lost, and ends at the first one after it.
#[test]
fn a_lost_span_begins_at_the_last_sound_key() {
    let it = Faulty::sealing(off_in_the_middle);
    let mut expected = Vec::new();
    for table in it.p.walk().unwrap().tables() {
        let mut blocks: Vec<(u64, Vec<Vec<u8>>)> = Vec::new();
        let mut entries = table.walk(RawMode::default()).unwrap();
        while let Some(entry) = entries.next().unwrap() {
            let offset = entry.at.block_offset;
            if blocks.last().is_none_or(|(last, _)| *last != offset) {
                blocks.push((offset, Vec::new()));
            }
            if !entry.hidden {
                blocks.last_mut().unwrap().1.push(entry.key.to_vec());
            }
        }
        assert!(blocks.len() > 4, "{blocks:?}");
        let from = blocks[1].1.last().unwrap().clone();
        expected.push((from, blocks[4].1[0].clone()));
    }
    it.p.put(key_of(0), "makes the compaction write").unwrap();
    it.p.compact(..).unwrap();
    let gaps = it.p.gaps();
    let found: Vec<_> = gaps.iter().map(|gap| (gap.from.to_vec(), gap.to.to_vec())).collect();
    expected.sort();
    assert_eq!(found, expected);
    assert!(gaps.iter().all(|gap| gap.from_below == SeqNo::MAX && !gap.to_included));
    for n in 1..300 {
        let key = key_of(n);
        let is_lost = gaps.iter().any(|gap| *gap.from <= key[..] && key[..] < *gap.to);
        assert_eq!(it.p.get(&key).is_err(), is_lost, "{n}");
    }
}

/// One block more than there is.
fn one_span_more(seal: TableSeal) -> TableSeal {
    let mut spans = seal.spans;
    spans.push(Span { blocks: 1, digest: 0 });
    TableSeal { spans, ..seal }
}

/// A table that lost a block together with its index entry has fewer blocks than its seal states.
#[test]
fn a_table_with_fewer_blocks_than_its_seal_says_has_a_gap() {
    let it = Faulty::sealing(one_span_more);
    it.p.compact(..).unwrap();
    assert!(!it.p.gaps().is_empty());
    assert!(it.p.get(key_of(3)).unwrap_err().is_corruption());
}

/// One block less than there is.
fn one_span_fewer(seal: TableSeal) -> TableSeal {
    let mut spans = seal.spans;
    spans.pop();
    TableSeal { spans, ..seal }
}

#[test]
fn a_table_with_entries_after_the_blocks_of_its_seal_has_a_gap() {
    let it = Faulty::sealing(one_span_fewer);
    it.p.compact(..).unwrap();
    assert!(!it.p.gaps().is_empty());
    assert!(it.p.get(key_of(3)).unwrap_err().is_corruption());
}

/// A large value has a block of its own. The digests of the blocks around it are those of their
/// entries.
#[test]
fn the_blocks_around_a_large_value_have_their_own_digests() {
    let fs = MemFs::new();
    let provider = Provider::new(MetaHive::default());
    let options = Options::new().write_buffer_bytes(64 << 20).cache_bytes(1 << 20);
    let db = builder(Arc::new(fs.clone()), 5).options(options).open().unwrap();
    let roomy = PartitionOptions::new().block_bytes(256).hooks(provider.hooks());
    let p = db.partition_with("p", roomy).unwrap();
    let mut snapshots = Vec::new();
    let mut model = Content::new();
    for round in 0..2 {
        for n in 0..40 {
            // Two in a row, and one at the end.
            let value = match n {
                10 | 11 | 39 => vec![n as u8 + round; 5 << 20],
                _ => vec![round; 30],
            };
            p.put(key_of(n), &value).unwrap();
            model.insert(key_of(n), value);
        }
        snapshots.push((db.snapshot(), model.clone()));
    }
    for _ in 0..2 {
        p.flush().unwrap();
        let report = p.scrub(ScrubOptions::new()).unwrap();
        assert!(report.is_sound() && report.is_sealed(), "{report}");
        assert!(db.verify(Default::default()).unwrap().is_sound());
        for (snapshot, model) in &snapshots {
            for (key, value) in model {
                let found = snapshot.verified_get(&p, key).unwrap();
                assert!(found.unwrap().value == *value, "{}", key.escape_ascii());
            }
        }
        for table in p.walk().unwrap().tables() {
            let seal = TableSeal::of(&table.properties().unwrap().user, "integrity").unwrap();
            assert!(seal.unwrap().spans.iter().filter(|span| span.blocks == 1).count() > 3);
        }
        p.compact(..).unwrap();
    }
}
