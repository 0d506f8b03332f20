//! Entries that agree with their metadata and with the digest of their block, in a block that cannot
//! have them: out of order, or beyond what the manifest says of the table.

use std::sync::Arc;

use lsm_core::Result;
use lsm_core::hooks::{JudgeSources, JudgedTable};
use lsm_core::types::{EntryKind, FileNo};

use super::*;
use crate::checksum;
use crate::metahive::Shared;
use crate::provider::Integrity;
use crate::repair::RepairOptions;
use crate::table_seal::{Span, TableSeal};

/// Knows nothing.
struct Nowhere;

impl JudgeSources for Nowhere {
    fn in_log(&self, _: &BTreeSet<SeqNo>) -> HashMap<SeqNo, OwnedEntry> {
        HashMap::new()
    }

    fn keys_between(&self, _: &[u8], _: &[u8], _: usize) -> Vec<Vec<u8>> {
        Vec::new()
    }
}

/// A block whose bytes stand for its entries.
struct Block {
    entries: Vec<DecodedEntry>,
    table: JudgedTable,
    /// Without it the block is the first one.
    before: Option<(&'static [u8], SeqNo)>,
}

impl DamagedBlock for Block {
    fn index(&self) -> u64 {
        0
    }

    fn offset(&self) -> u64 {
        0
    }

    fn read(&mut self) -> Result<Vec<u8>> {
        Ok(vec![0])
    }

    fn is_verified(&self, _: &[u8]) -> bool {
        true
    }

    fn with_one_bit_turned(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn unpack(&self, stored: &[u8]) -> Option<Vec<u8>> {
        Some(stored.to_vec())
    }

    fn accepts(
        &mut self,
        _: &[u8],
        check: &mut dyn FnMut(&Entry<'_>, Option<&[u8]>) -> bool,
    ) -> bool {
        self.entries.iter().all(|of| {
            let OwnedEntry { key, seq, kind, value, .. } = &of.entry;
            let entry =
                Entry { key, seq: *seq, stored_seq: *seq, kind: *kind, value, hidden: false };
            check(&entry, of.hidden.as_deref())
        })
    }

    fn decode(&mut self, _: &[u8]) -> DecodedBlock {
        DecodedBlock { entries: self.entries.clone(), is_whole: true }
    }

    fn before(&self) -> Option<(&[u8], SeqNo)> {
        self.before
    }

    fn table(&self) -> &JudgedTable {
        &self.table
    }
}

fn seq(n: u64) -> SeqNo {
    SeqNo::new(n).unwrap()
}

/// Mends a block of these entries, all of which are sound, behind `c` at 15, in a table of the keys from `b`
/// to `w` and the numbers from 10 to 20. Returns how many entries are left, and whether some are lost.
fn mended(entries: &[(&str, u64)]) -> (usize, bool) {
    mended_behind(Some((b"c", seq(15))), entries)
}

fn mended_behind(before: Option<(&'static [u8], SeqNo)>, entries: &[(&str, u64)]) -> (usize, bool) {
    let mut digest = 0u32;
    let entries = entries.iter().map(|(key, n)| {
        let kind = EntryKind::Value;
        let sum = checksum::of_entry(key.as_bytes(), b"value", seq(*n), kind);
        digest = digest.wrapping_add(sum as u32);
        let key = key.as_bytes().to_vec();
        let value = b"value".to_vec();
        DecodedEntry {
            entry: OwnedEntry { key, seq: seq(*n), kind, value, verified: false },
            hidden: Some(Payload::new(seq(*n), sum).encode()[8..].to_vec()),
            index: 0,
            start: 0,
            shared: 0..0,
            suffix: 0..0,
            value: 0..0,
            hidden_at: 0..0,
        }
    });
    let entries: Vec<_> = entries.collect();
    let seal = TableSeal {
        provider: Integrity::NAME.to_owned(),
        sealed: entries.len() as u64,
        spans: vec![Span { blocks: 1, digest }],
        ..TableSeal::default()
    };
    let table = JudgedTable {
        file: FileNo(1),
        level: 0,
        bytes: 0,
        keys: ((*b"b").into(), (*b"w").into()),
        seqs: (seq(10), seq(20)),
        global_seq: None,
        hidden: 1,
        is_compared_later: false,
    };
    let shared = Shared::new(Arc::new(Integrity), true);
    let options = RepairOptions::default();
    let mut judge = HiveJudge::new(shared, Some(seal), table.clone(), options, Arc::new(Nowhere));
    let mended = mend(&mut judge, &mut Block { entries, table, before });
    let is_lost = mended.pieces.iter().any(|piece| matches!(piece, Piece::Lost));
    let sound = mended.pieces.iter().filter(|piece| matches!(piece, Piece::Sound { .. })).count();
    assert_eq!(is_lost, !mended.lost.is_empty());
    (sound, is_lost)
}

#[test]
fn entries_that_a_block_can_have_are_accepted() {
    for entries in [&[("d", 10), ("w", 20)][..], &[("d", 12), ("d", 11)], &[("c", 14), ("d", 10)]] {
        assert_eq!(mended(entries), (2, false), "{entries:?}");
    }
}

#[test]
fn entries_that_a_block_cannot_have_are_lost() {
    for entries in [
        // Out of order, among themselves and behind the block before.
        &[("e", 10), ("d", 11)][..],
        &[("d", 11), ("d", 12)],
        &[("d", 11), ("d", 11)],
        &[("c", 15), ("d", 11)],
        &[("bb", 10), ("d", 11)],
        // Beyond the last key of the table.
        &[("d", 10), ("wa", 11)],
        // Older and newer than all of the table.
        &[("d", 9), ("e", 10)],
        &[("d", 10), ("e", 21)],
    ] {
        assert_eq!(mended(entries), (0, true), "{entries:?}");
    }
    assert_eq!(mended_behind(None, &[("b", 10)]), (1, false));
    assert_eq!(mended_behind(None, &[("a", 10)]), (0, true), "before the first key of the table");
}
