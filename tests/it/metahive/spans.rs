//! Digests of several blocks together: tables with very many blocks have them, and such whose blocks
//! were cut by force.

use lsm_core::raw::RawMode;
use metahive::table_seal::Span;

use super::faulty::Faulty;
use super::*;

/// With one digest for two blocks, as very large tables have them; the first one is off by `off`.
fn paired(seal: TableSeal, off: u32) -> TableSeal {
    let pairs = seal.spans.chunks(2).enumerate().map(|(number, pair)| Span {
        blocks: pair.len() as u64,
        digest: pair
            .iter()
            .fold(if number == 0 { off } else { 0 }, |sum, span| sum.wrapping_add(span.digest)),
    });
    TableSeal { spans: pairs.collect(), ..seal }
}

/// Blocks that were asked for so far.
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
            // The last span may have one block alone.
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

/// One block more than there is.
fn one_span_more(seal: TableSeal) -> TableSeal {
    let mut spans = seal.spans;
    spans.push(Span { blocks: 1, digest: 0 });
    TableSeal { spans, ..seal }
}

/// A table that lost a block together with its place in the index has fewer blocks than its seal says.
#[test]
fn a_table_with_fewer_blocks_than_its_seal_says_has_a_gap() {
    let it = Faulty::sealing(one_span_more);
    it.p.compact(..).unwrap();
    assert!(!it.p.gaps().is_empty());
    assert!(it.p.get(key_of(3)).unwrap_err().is_corruption());
}
