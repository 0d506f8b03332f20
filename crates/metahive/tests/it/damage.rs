//! Damage is found: every bit, every row of the table, every way in which a pair can come apart.

use lsm_core::types::EntryKind;
use metahive::payload::{Payload, SumOfSum};
use metahive::{MetaHive, Verdict, checksum};

use crate::engine::{Engine, Stored, Table, check_sealed, seq};

pub fn sealed() -> Table {
    let entries = vec![
        Stored::value(b"apple", 3, b"red"),
        Stored::value(b"pear\0", 4, b"green, or yellow when it is ripe"),
        Stored::deletion(b"plum", 7),
        Stored::value(b"quince", 8, b""),
    ];
    Engine::default().flush(&MetaHive::default(), entries)
}

/// All copies of the table with one bit turned in one entry, each with that entry's position.
pub fn flipped(table: &Table) -> Vec<(usize, Table)> {
    let mut all = Vec::new();
    for at in 0..table.entries.len() {
        let mut with = |change: &dyn Fn(&mut Stored)| {
            let mut damaged = table.clone();
            change(&mut damaged.entries[at]);
            all.push((at, damaged));
        };
        let entry = &table.entries[at];
        // The key of metadata is derived from its entry's on disk; flips of it in memory too.
        for bit in 0..entry.key.len() * 8 {
            with(&|entry| entry.key[bit / 8] ^= 1 << (bit % 8));
        }
        for bit in 0..entry.value.len() * 8 {
            with(&|entry| entry.value[bit / 8] ^= 1 << (bit % 8));
        }
        for bit in 0..56 {
            with(&|entry| entry.seq = seq(entry.seq.get() ^ 1 << bit));
        }
        for bit in 0..8 {
            if let Some(kind) = EntryKind::from_u8(entry.kind as u8 ^ 1 << bit) {
                with(&|entry| entry.kind = kind);
            }
        }
    }
    all
}

#[test]
fn every_flipped_bit_is_found_or_made_good_and_none_is_sealed() {
    let table = sealed();
    let mut cases = 0;
    for (at, damaged) in flipped(&table) {
        let hive = MetaHive::default();
        let mut engine = Engine::default();
        let job = lsm_core::hooks::JobKind::Compaction;
        let (tables, faults) = engine.run(&hive, job, std::slice::from_ref(&damaged));
        cases += 1;
        // Only metadata is made good without a repair, and only beside its sound entry.
        let is_made_good =
            table.entries[at].is_metadata() && table.entries[at].key == damaged.entries[at].key;
        assert_eq!(faults.is_empty(), is_made_good, "{:?}", damaged.entries[at]);
        if is_made_good {
            assert_eq!(tables[0].data(), table.data());
            assert_eq!(hive.counts().metadata_rebuilt, 1);
            check_sealed(&tables);
        }
    }
    let bytes: usize = table.entries.iter().map(|entry| entry.key.len() + entry.value.len()).sum();
    // Of a sequence number 56 bits, and of a kind those that make another one of it: a tombstone has two, a value three.
    let values = table.entries.iter().filter(|entry| entry.kind == EntryKind::Value).count();
    assert_eq!(cases, 8 * bytes + table.entries.len() * (56 + 2) + values);
}

/// Checks the compaction of a damaged pair: faults, rebuilt metadata.
fn check(change: impl Fn(&mut Payload, &mut Stored), verdict: Verdict) {
    let hive = MetaHive::default();
    let mut engine = Engine::default();
    let mut table = engine.flush(&hive, vec![Stored::value(b"k", 5, b"value")]);
    let mut payload = Payload::decode(&table.entries[1].value).unwrap();
    change(&mut payload, &mut table.entries[0]);
    table.entries[1].value = payload.encode();
    let before = table.entries[0].clone();
    let (tables, faults) = engine.run(&hive, lsm_core::hooks::JobKind::Compaction, &[table]);
    assert_eq!(faults.len(), usize::from(verdict == Verdict::DataCorrupt));
    let rebuilt = matches!(verdict, Verdict::SecondCopyDamaged | Verdict::MetadataCorrupt);
    assert_eq!(hive.counts().metadata_rebuilt, u64::from(rebuilt));
    if faults.is_empty() {
        check_sealed(&tables);
        assert_eq!(tables[0].data(), [before]);
    }
}

#[test]
fn compaction_follows_every_row_of_the_verdicts() {
    check(|_, _| {}, Verdict::Valid);
    check(|payload, _| payload.sum_of_sum = SumOfSum::new(4), Verdict::SecondCopyDamaged);
    check(|payload, _| payload.sum ^= 4, Verdict::MetadataCorrupt);
    check(|payload, _| payload.seq = seq(6), Verdict::MetadataCorrupt);
    check(|_, entry| entry.value[0] ^= 4, Verdict::DataCorrupt);
    check(
        |payload, entry| {
            payload.sum ^= 4;
            entry.value[0] ^= 4;
        },
        Verdict::DataCorrupt,
    );
    check(
        |payload, _| {
            payload.sum ^= 4;
            payload.sum_of_sum = SumOfSum::new(4);
        },
        Verdict::DataCorrupt,
    );
}

#[test]
fn mix_ups_that_plain_xor_misses_are_found() {
    // Key and value of equal bytes, replaced as a whole; key and value exchanged.
    for (key, value) in [(&b"other"[..], &b"other"[..]), (b"same", b"key")] {
        let hive = MetaHive::default();
        let mut engine = Engine::default();
        let first: (&[u8], &[u8]) =
            if value == b"other" { (b"same", b"same") } else { (b"key", b"same") };
        let mut table = engine.flush(&hive, vec![Stored::value(first.0, 9, first.1)]);
        table.entries[0].key = key.to_vec();
        table.entries[0].value = value.to_vec();
        table.entries[1].key = [key, b"\x01"].concat();
        assert_eq!(engine.faults(&hive, &[table]).len(), 1);
    }
    // The key is its own sequence number.
    let hive = MetaHive::default();
    let mut engine = Engine::default();
    let mut table = engine.flush(&hive, vec![Stored::value(&5u64.to_le_bytes(), 5, b"v")]);
    let key = 6u64.to_le_bytes();
    table.entries[0].key = key.to_vec();
    table.entries[1].key = [&key[..], b"\x01"].concat();
    for entry in &mut table.entries {
        entry.seq = seq(6);
    }
    table.entries[1].value[..8].copy_from_slice(&key);
    assert_eq!(engine.faults(&hive, &[table]).len(), 1);
    // Two entries have exchanged their values.
    let mut table = sealed();
    let value = std::mem::take(&mut table.entries[0].value);
    let other = table.entries.iter().position(|e| e.key == b"quince").unwrap();
    table.entries[other].value = value;
    assert_eq!(engine.faults(&hive, &[table]).len(), 2);
}

#[test]
fn halves_of_pairs_are_faults_in_sealed_tables_and_nothing_is_made_again() {
    let table = sealed();
    for at in 0..table.entries.len() {
        let mut without = table.clone();
        without.entries.remove(at);
        let hive = MetaHive::default();
        let mut engine = Engine::default();
        let faults = engine.faults(&hive, std::slice::from_ref(&without));
        assert_eq!(faults.len(), 1, "without {at}");
        assert_eq!(hive.counts().made, 0);
        // The same in a table of another node is no fault.
        without.properties = Default::default();
        check_sealed(&engine.compact(&hive, &[without]));
    }
}

#[test]
fn a_pair_that_is_lost_as_a_whole_fails_the_job() {
    use lsm_core::hooks::{CompactionFilterFactory, Emitter, Entry, Faults, InputTable, Job};
    let table = sealed();
    let file = lsm_core::types::FileNo(table.file);
    let inputs = [InputTable { file, path: "t.sst".into(), properties: table.properties.clone() }];
    let job = Job {
        level_from: 0,
        level_to: 1,
        inputs: &inputs,
        ..Job::new("p", lsm_core::hooks::JobKind::Compaction)
    };
    let ends = |entries: &[&Stored]| {
        let mut filter = MetaHive::default().start(&job).unwrap();
        let mut faults = Faults::default();
        for stored in entries {
            let Stored { key, seq, kind, value, hidden, .. } = *stored;
            let seq = *seq;
            let kind = *kind;
            let hidden = *hidden;
            let entry = Entry { key, seq, stored_seq: seq, kind, value, hidden };
            filter.input(&entry, &table.origin(0), None, &mut faults).unwrap();
        }
        let mut sink = |_: &[u8], _: lsm_core::types::SeqNo, _: &[u8]| Ok(());
        let ended = filter.boundary(None, &mut Emitter::new(&mut sink), &mut faults);
        assert!(faults.first().is_none());
        ended.map(drop)
    };
    let all: Vec<&Stored> = table.entries.iter().collect();
    ends(&all).unwrap();
    let lost = &all[2].key;
    let rest: Vec<&Stored> = all.iter().filter(|e| !e.key.starts_with(lost)).copied().collect();
    assert_eq!(rest.len(), all.len() - 2);
    let error = ends(&rest).unwrap_err();
    assert!(error.is_corruption() && error.to_string().contains("the seal counts 4"), "{error}");
}

#[test]
fn entries_of_damaged_blocks_are_taken_only_if_their_metadata_agrees() {
    let hive = MetaHive::default();
    let mut engine = Engine::default();
    let suspect = Table { is_damaged: true, ..sealed() };
    check_sealed(&engine.compact(&hive, std::slice::from_ref(&suspect)));
    assert_eq!(hive.counts().suspects_accepted, 4);
    let bare = Table { properties: Default::default(), ..suspect };
    let bare = Table { entries: bare.data(), ..bare };
    assert_eq!(engine.faults(&hive, &[bare]).len(), 4);
}

#[test]
fn a_survivor_is_sealed_with_the_sum_that_was_compared() {
    // The engine's buffer changes between input and output: the metadata that is written must
    // disagree with it, or the damage would be laundered.
    use lsm_core::hooks::{
        CompactionFilterFactory, Emitter, Entry, Faults, Job, JobKind, Origin, Output,
    };
    let hive = MetaHive::default();
    let job =
        Job { level_from: 0, level_to: 1, bottom: true, ..Job::new("p", JobKind::Compaction) };
    let mut filter = hive.start(&job).unwrap();
    let entry = Entry {
        key: b"k",
        seq: seq(5),
        stored_seq: seq(5),
        kind: EntryKind::Value,
        value: b"good",
        hidden: false,
    };
    let mut faults = Faults::default();
    filter.input(&entry, &Origin::MEMTABLE, None, &mut faults).unwrap();
    let zeroed = Entry { value: b"goof", seq: seq(0), ..entry };
    let output = Output {
        entry: zeroed,
        untouched_from: Some(seq(5)),
        value_sum: None,
        is_held: false,
        note: None,
        is_noted: false,
    };
    filter.output(&output).unwrap();
    assert!(filter.output(&output).is_err(), "out of step");
    let mut emitted = Vec::new();
    let mut sink = |_: &[u8], seq, payload: &[u8]| {
        emitted.push((seq, Payload::decode(payload).unwrap()));
        Ok(())
    };
    filter.boundary(None, &mut Emitter::new(&mut sink), &mut faults).unwrap();
    let sum = checksum::of_entry(b"k", b"good", seq(0), EntryKind::Value);
    assert_eq!(emitted, [(seq(0), Payload::new(seq(0), sum))]);
}
