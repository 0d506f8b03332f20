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
