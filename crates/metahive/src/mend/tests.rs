//! Damaged entries, each step of the repair with the earlier ones out of the way; and sound entries in a
//! block that cannot have them: out of order, or beyond what the manifest says of the table.

use std::sync::{Arc, Mutex};

use lsm_core::Result;
use lsm_core::hooks::{DamagedTable, RepairSources};
use lsm_core::types::{EntryKind, FileNo};

use super::*;
use crate::checksum;
use crate::provider::Integrity;
use crate::repair::{ErrorHandler, RepairOptions, Replica};
use crate::shared::Shared;
use crate::table_seal::{Span, TableSeal};

/// A log with these operations.
#[derive(Default)]
struct Log(Vec<OwnedEntry>);

impl RepairSources for Log {
    fn in_log(&self, seqs: &BTreeSet<SeqNo>) -> HashMap<SeqNo, OwnedEntry> {
        let found = self.0.iter().filter(|entry| seqs.contains(&entry.seq));
        found.map(|entry| (entry.seq, entry.clone())).collect()
    }

    fn keys_between(&self, _: &[u8], _: &[u8], _: usize) -> Vec<Vec<u8>> {
        Vec::new()
    }
}

/// A block whose bytes stand for its entries.
struct Block {
    entries: Vec<DecodedEntry>,
    /// Without it the block is the first one.
    before: Option<(&'static [u8], SeqNo)>,
    /// Each reading differs from the one before.
    is_unsteady: bool,
    readings: u8,
}

impl DamagedBlock for Block {
    fn offset(&self) -> u64 {
        0
    }

    fn read(&mut self, _: bool) -> Result<Vec<u8>> {
        self.readings += 1;
        Ok(vec![if self.is_unsteady { self.readings } else { 0 }; 16])
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
}

fn seq(n: u64) -> SeqNo {
    SeqNo::new(n).unwrap()
}

/// Mends a block of these entries, all of which are sound, after `c` at 15, in a table of the keys from `b`
/// to `w` and the numbers from 10 to 20. Returns how many entries are left, and whether some are lost.
fn mended(entries: &[(&str, u64)]) -> (usize, bool) {
    mended_after(Some((b"c", seq(15))), entries)
}

fn mended_after(before: Option<(&'static [u8], SeqNo)>, entries: &[(&str, u64)]) -> (usize, bool) {
    mended_under(sealed(entries).1, before, entries)
}

/// The same in a table with this seal.
fn mended_under(
    seal: TableSeal,
    before: Option<(&'static [u8], SeqNo)>,
    entries: &[(&str, u64)],
) -> (usize, bool) {
    let entries = sealed(entries).0;
    let mut block = Block { entries, before, is_unsteady: false, readings: 0 };
    let mended = mend(&mut repair(seal, RepairOptions::default(), Log::default()), &mut block);
    let is_lost = mended.pieces.iter().any(|piece| matches!(piece, Piece::Lost));
    let sound = mended.pieces.iter().filter(|piece| matches!(piece, Piece::Sound(_))).count();
    assert_eq!(is_lost, !mended.lost.is_empty());
    (sound, is_lost)
}

/// Entries with their metadata, and the seal of a table of them.
fn sealed(entries: &[(&str, u64)]) -> (Vec<DecodedEntry>, TableSeal) {
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
        }
    });
    let entries: Vec<_> = entries.collect();
    let seal = TableSeal {
        provider: Integrity::NAME.to_owned(),
        sealed: entries.len() as u64,
        spans: vec![Span { blocks: 1, digest }],
        ..TableSeal::default()
    };
    (entries, seal)
}

fn table() -> DamagedTable {
    DamagedTable {
        file: FileNo(1),
        level: 0,
        bytes: 0,
        keys: ((*b"b").into(), (*b"w").into()),
        seqs: (seq(10), seq(20)),
        global_seq: None,
        hidden: 1,
    }
}

fn repair(seal: TableSeal, options: RepairOptions, log: Log) -> HiveRepair {
    let shared = Shared::new(Arc::new(Integrity), true);
    HiveRepair::new(shared, Some(seal), table(), options, Arc::new(log))
}

/// The sources of the repairs of a block of three entries. `damage` has changed the second. Also how
/// often the block was read. What is repaired is what was there; `None` if it is lost.
fn repaired_by(
    damage: impl FnOnce(&mut DecodedEntry),
    options: RepairOptions,
    log: &[OwnedEntry],
) -> (Option<String>, u8) {
    let (mut entries, seal) = sealed(&[("d", 12), ("e", 11), ("f", 13)]);
    let original: Vec<_> = entries.iter().map(|of| of.entry.clone()).collect();
    damage(&mut entries[1]);
    let mut block = Block { entries, before: None, is_unsteady: false, readings: 0 };
    let mended = mend(&mut repair(seal, options, Log(log.to_vec())), &mut block);
    let mut sound = Vec::new();
    for piece in &mended.pieces {
        if let Piece::Sound(RepairedEntry { entry, .. }) = piece {
            sound.push(OwnedEntry { verified: false, ..entry.clone() });
        }
    }
    if mended.lost.is_empty() {
        assert_eq!(sound, original);
    } else {
        assert_eq!(sound, [original[0].clone(), original[2].clone()]);
    }
    let source = mended.repaired.first().map(|(_, source)| source.clone());
    assert_eq!(source.is_some(), mended.lost.is_empty());
    (source, block.readings)
}

fn by(damage: impl FnOnce(&mut DecodedEntry)) -> Option<String> {
    repaired_by(damage, RepairOptions::default(), &[]).0
}

fn flip(bytes: &mut [u8], bit: usize) {
    bytes[bit / 8] ^= 1 << (bit % 8);
}

/// The entry of [`repaired_by`] that is damaged, as it was.
fn original() -> OwnedEntry {
    OwnedEntry { verified: true, ..sealed(&[("e", 11)]).0[0].entry.clone() }
}

fn in_two_bits(of: &mut DecodedEntry) {
    of.entry.value[0] ^= 3;
}

#[test]
fn every_bit_of_an_entry_is_found() {
    let one_bit = Some("one-bit search".to_owned());
    for bit in 0..8 {
        assert_eq!(by(|of| flip(&mut of.entry.key, bit)), one_bit, "{bit} of the key");
    }
    for bit in 0..8 * 5 {
        assert_eq!(by(|of| flip(&mut of.entry.value, bit)), one_bit, "{bit} of the value");
    }
    for bit in 0..56 {
        let found = by(|of| of.entry.seq = seq(of.entry.seq.get() ^ 1 << bit));
        assert_eq!(found, one_bit, "{bit} of the sequence number");
    }
    assert_eq!(by(|of| of.entry.kind = EntryKind::Tombstone), one_bit);
    // One copy of the checksum as well.
    for bit in 0..8 * 11 {
        let found = by(|of| {
            flip(&mut of.entry.value, 3);
            flip(of.hidden.as_mut().unwrap(), bit);
        });
        assert_eq!(found, one_bit, "{bit} of the metadata");
    }
}

#[test]
fn two_bits_are_not_searched_for() {
    assert_eq!(by(in_two_bits), None);
    let options = RepairOptions { one_bit_bytes_max: 5, ..RepairOptions::default() };
    assert_eq!(repaired_by(|of| flip(&mut of.entry.value, 0), options, &[]).0, None);
}

#[test]
fn an_entry_whose_metadata_is_gone_is_known_by_the_digest() {
    let source = by(|of| of.hidden = Some(vec![7; 11]));
    assert_eq!(source.as_deref(), Some("digest of its block"));
    let source = by(|of| of.hidden = None);
    assert_eq!(source.as_deref(), Some("digest of its block"));
}

struct Copy(OwnedEntry);

impl Replica for Copy {
    fn fetch(&self, key: &[u8], seq: SeqNo) -> Result<Option<OwnedEntry>> {
        Ok((key == self.0.key && seq == self.0.seq).then(|| self.0.clone()))
    }
}

#[test]
fn the_log_and_then_the_replica_are_asked() {
    let good = original();
    let wrong = OwnedEntry { value: b"wrong".to_vec(), ..good.clone() };
    let copy = |entry: &OwnedEntry| RepairOptions {
        replica: Some(Arc::new(Copy(entry.clone()))),
        ..RepairOptions::default()
    };
    let source =
        |options, log: &OwnedEntry| repaired_by(in_two_bits, options, std::slice::from_ref(log)).0;
    assert_eq!(source(copy(&good), &good).as_deref(), Some("log"));
    assert_eq!(source(copy(&good), &wrong).as_deref(), Some("replica"));
    assert_eq!(source(copy(&wrong), &wrong), None);
    let no_log = RepairOptions { log: false, ..copy(&good) };
    assert_eq!(source(no_log, &good).as_deref(), Some("replica"));
    // An entry whose metadata is unreadable takes what vouches for itself.
    let unreadable = |of: &mut DecodedEntry| {
        in_two_bits(of);
        of.hidden = Some(vec![7; 11]);
    };
    let log = [good.clone()];
    let source = |log: &[OwnedEntry]| repaired_by(unreadable, RepairOptions::default(), log).0;
    assert_eq!(source(&log).as_deref(), Some("log"));
}

#[test]
fn lost_entries_are_reported_with_their_bytes() {
    #[derive(Default)]
    struct Heard(Mutex<Vec<(Vec<u8>, Option<OwnedEntry>)>>);
    impl ErrorHandler for Heard {
        fn on_unrepaired(&self, fault: &Fault, found: Option<&OwnedEntry>) {
            self.0.lock().unwrap().push((fault.key.clone(), found.cloned()));
        }
    }
    let heard = Arc::new(Heard::default());
    let options = RepairOptions { error_handler: Some(heard.clone()), ..RepairOptions::default() };
    assert_eq!(repaired_by(in_two_bits, options, &[]).0, None);
    let mut damaged = OwnedEntry { verified: false, ..original() };
    damaged.value[0] ^= 3;
    assert_eq!(*heard.0.lock().unwrap(), [(b"e".to_vec(), Some(damaged))]);
}

#[test]
fn the_readings_are_bounded() {
    for (retries_max, is_unsteady, expected) in
        [(0, false, 1), (1, true, 1), (5, true, 5), (5, false, 2)]
    {
        let (mut entries, seal) = sealed(&[("d", 12)]);
        in_two_bits(&mut entries[0]);
        let mut block = Block { entries, before: None, is_unsteady, readings: 0 };
        let options = RepairOptions { retries_max, ..RepairOptions::default() };
        mend(&mut repair(seal, options, Log::default()), &mut block);
        assert_eq!(block.readings, expected, "{retries_max}");
    }
}

/// Damage in many blocks ends the searches, and the fault says so.
#[test]
fn searches_in_vain_are_bounded() {
    let (_, seal) = sealed(&[]);
    let mut repair = repair(seal, RepairOptions::default(), Log::default());
    let mut left_out = 0;
    for _ in 0..2 * SEARCHES_IN_VAIN_MAX {
        let (mut entries, _) = sealed(&[("d", 12)]);
        in_two_bits(&mut entries[0]);
        let mut block = Block { entries, before: None, is_unsteady: false, readings: 0 };
        let mended = mend(&mut repair, &mut block);
        left_out += usize::from(mended.lost[0].what.contains("in vain"));
    }
    assert!(left_out > SEARCHES_IN_VAIN_MAX as usize, "{left_out}");
    assert!(!repair.may_search());
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
        // Out of order, among themselves and after the block before.
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
    assert_eq!(mended_after(None, &[("b", 10)]), (1, false));
    assert_eq!(mended_after(None, &[("a", 10)]), (0, true), "before the first key of the table");
}

/// Each entry agrees with its metadata and with the table. Only the digest shows that they are not those which
/// were written.
#[test]
fn an_older_entry_in_the_place_of_a_newer_one_is_lost() {
    let written = [("d", 12), ("e", 13)];
    for (found, expected) in [(written, (2, false)), ([("d", 12), ("e", 11)], (0, true))] {
        assert_eq!(mended_under(sealed(&written).1, None, &found), expected, "{found:?}");
    }
}
