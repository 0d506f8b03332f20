//! The ladder of repairs, each step with the earlier ones out of the way.

use std::sync::{Arc, Mutex};

use lsm_core::Result;
use lsm_core::hooks::{Fault, OwnedEntry, Patch};
use lsm_core::types::{EntryKind, SeqNo};
use metahive::payload::PAYLOAD_BYTES;
use metahive::{ErrorHandler, MetaHive, MetaHiveOptions, RepairOptions, Replica};

use crate::damage::sealed;
use crate::engine::{Engine, Sources, Stored, Table, check_sealed, seq};

fn options(bits: usize) -> RepairOptions {
    RepairOptions { one_bit_bytes_max: 1000 * bits, ..RepairOptions::default() }
}

fn owned(entry: &Stored) -> OwnedEntry {
    let Stored { key, seq, kind, value, .. } = entry.clone();
    OwnedEntry { key, seq, kind, value, verified: true }
}

fn source(patch: &Patch) -> &str {
    match patch {
        Patch::Replace { source, .. } => source,
        Patch::Poison => "poison",
        Patch::Leave => "leave",
    }
}

/// The table is damaged as read, the medium as `sources` have it: who repairs it, to the original?
fn check(hive: &MetaHive, damaged: &Table, mut sources: Sources, expected: &[&str]) {
    let inputs = std::slice::from_ref(damaged);
    let (tables, given) = Engine::default().compact_repaired(hive, inputs, &mut sources);
    assert_eq!(given.iter().map(source).collect::<Vec<_>>(), expected);
    check_sealed(&tables);
    if !expected.contains(&"poison") {
        assert_eq!(tables[0].data(), sealed().data());
    }
    // What was written stays good.
    check_sealed(&Engine::default().compact(&MetaHive::default(), &tables));
}

fn damaged(bits: &[(usize, u8)]) -> Table {
    let mut table = sealed();
    for (at, bit) in bits {
        table.entries[0].value[*at] ^= bit;
    }
    table
}

#[test]
fn damage_in_memory_is_gone_when_it_is_read_again() {
    check(&MetaHive::default(), &damaged(&[(0, 1)]), Sources::of(&[sealed()]), &["re-read"]);
    // So is metadata that was overlooked.
    let mut without = sealed();
    without.entries[1].key = b"zzz\x01".to_vec();
    without.entries[1].seq = seq(999);
    without.entries[1].value = vec![0; PAYLOAD_BYTES];
    let expected = ["re-read", "none: its metadata alone is left"];
    let (tables, given) = Engine::default().compact_repaired(
        &MetaHive::default(),
        std::slice::from_ref(&without),
        &mut Sources::of(&[sealed()]),
    );
    assert_eq!(given.iter().map(source).collect::<Vec<_>>(), expected);
    check_sealed(&tables);
}

#[test]
fn one_bit_is_found_by_search_and_two_are_not() {
    let one = damaged(&[(1, 8)]);
    check(&MetaHive::default(), &one, Sources::of(std::slice::from_ref(&one)), &["one-bit search"]);
    let two = damaged(&[(1, 8), (2, 64)]);
    check(&MetaHive::default(), &two, Sources::of(std::slice::from_ref(&two)), &["poison"]);
    let mut fields = damaged(&[(0, 32)]);
    fields.entries[0].kind = EntryKind::Tombstone;
    check(&MetaHive::default(), &fields, Sources::of(std::slice::from_ref(&fields)), &["poison"]);
    // The entry and one copy of its checksum.
    let mut both = damaged(&[(0, 32)]);
    both.entries[1].value[9] ^= 2;
    check(
        &MetaHive::default(),
        &both,
        Sources::of(std::slice::from_ref(&both)),
        &["one-bit search"],
    );
}

#[test]
fn a_candidate_that_would_break_the_order_is_refused() {
    // The medium has the entry between neighbours that it cannot stand between.
    let mut table = damaged(&[(1, 8)]);
    table.entries[2].key = b"aaa".to_vec();
    let hive = MetaHive::new(MetaHiveOptions::new().repair_options(options(1)));
    let medium = table.clone();
    let fault = Engine::default().faults(&hive, &[damaged(&[(1, 8)])]).remove(0);
    use lsm_core::hooks::CompactionFilterFactory;
    assert_eq!(hive.repair(&[fault], &mut Sources::of(&[medium])), [Patch::Poison]);
}

#[test]
fn the_log_and_then_the_replica_are_asked() {
    let three = damaged(&[(0, 1), (1, 1), (2, 1)]);
    let good = owned(&sealed().entries[0]);
    let logged =
        |log: OwnedEntry| Sources { log: vec![log], ..Sources::of(std::slice::from_ref(&three)) };
    check(&MetaHive::default(), &three, logged(good.clone()), &["log"]);

    struct Copy(OwnedEntry);
    impl Replica for Copy {
        fn fetch(&self, key: &[u8], seq: SeqNo) -> Result<Option<OwnedEntry>> {
            Ok((key == self.0.key && seq == self.0.seq).then(|| self.0.clone()))
        }
    }
    let options = || MetaHiveOptions::new().replica(Arc::new(Copy(good.clone())));
    let hive = || MetaHive::new(options());
    let wrong = OwnedEntry { value: b"bad".to_vec(), ..good.clone() };
    check(&hive(), &three, logged(wrong), &["replica"]);
    check(&hive(), &three, Sources::of(std::slice::from_ref(&three)), &["replica"]);
    // An entry whose metadata is unreadable twice over takes what vouches for itself.
    let mut unreadable = three.clone();
    unreadable.entries[1].value[8..].fill(7);
    let sources = Sources { medium: vec![unreadable.clone()], ..logged(good.clone()) };
    check(&MetaHive::default(), &unreadable, sources, &["log"]);
    // So does one whose metadata is gone, and metadata whose entry is gone.
    let mut gone = sealed();
    gone.entries.remove(1);
    let sources = Sources { medium: vec![gone.clone()], ..logged(good.clone()) };
    check(&MetaHive::default(), &gone, sources, &["log"]);
    let mut gone = sealed();
    gone.entries.remove(0);
    let sources = Sources { medium: vec![gone.clone()], ..logged(good.clone()) };
    check(&MetaHive::default(), &gone, sources, &["log"]);
}

#[test]
fn what_nobody_has_is_poisoned_and_reported_with_its_bytes() {
    #[derive(Default)]
    struct Heard(Mutex<Vec<(Vec<u8>, Option<OwnedEntry>)>>);
    impl ErrorHandler for Heard {
        fn on_unrepaired(&self, fault: &Fault, found: Option<&OwnedEntry>) {
            self.0.lock().unwrap().push((fault.key.clone(), found.cloned()));
        }
    }
    let heard = Arc::new(Heard::default());
    let hive = MetaHive::new(MetaHiveOptions::new().error_handler(heard.clone()));
    let three = damaged(&[(0, 1), (1, 1), (2, 1)]);
    check(&hive, &three, Sources::of(std::slice::from_ref(&three)), &["poison"]);
    let bytes = Some(OwnedEntry { verified: true, ..owned(&three.entries[0]) });
    assert_eq!(*heard.0.lock().unwrap(), [(b"apple".to_vec(), bytes)]);

    // Metadata without its entry poisons the key that it belonged to.
    let mut gone = sealed();
    gone.entries.remove(0);
    let inputs = std::slice::from_ref(&gone);
    let (tables, _) =
        Engine::default().compact_repaired(&MetaHive::default(), inputs, &mut Sources::of(inputs));
    let first = &tables[0].data()[0];
    assert_eq!((&first.key[..], first.kind), (&b"apple"[..], EntryKind::Poison));
}

#[test]
fn the_retries_are_bounded() {
    let one = damaged(&[(1, 8)]);
    let mut counted = Vec::new();
    for retries_max in [0, 1, 5] {
        let options = RepairOptions { retries_max, ..options(0) };
        let hive = MetaHive::new(MetaHiveOptions::new().repair_options(options));
        let mut sources = Sources::of(std::slice::from_ref(&one));
        let inputs = std::slice::from_ref(&one);
        Engine::default().compact_repaired(&hive, inputs, &mut sources);
        counted.push(sources.rereads);
    }
    assert_eq!(counted[0], 0);
    assert_eq!(counted[2], 5 * counted[1]);
}

/// As in an ingested table, where a sequence number names no entry.
#[test]
fn halves_with_one_sequence_number_are_joined_by_their_keys() {
    let entries = [b"a", b"b"].map(|key| Stored::value(key, 7, key));
    let mut table = Engine::default().flush(&MetaHive::default(), entries.to_vec());
    // The metadata of the first entry is gone, and a bit of the number of the second one is wrong.
    table.entries.remove(1);
    table.entries[1].seq = seq(5);
    let medium = Sources::of(std::slice::from_ref(&table));
    check(&MetaHive::default(), &table, medium, &["poison", "one-bit search", "leave"]);
}
