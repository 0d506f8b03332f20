//! Metadata is sealed, made, dropped and rebuilt where nothing is damaged.

use std::sync::Arc;

use lsm_core::Result;
use lsm_core::hooks::{
    CompactionFilterFactory, Decision, Emitter, Faults, HiddenSink, Job, JobKind, Output,
};
use lsm_core::types::SeqNo;
use metahive::payload::{Payload, metadata_key};
use metahive::{MetaHive, MetaHiveOptions, Statistics, Verdict, checksum};

use crate::engine::{Engine, Stored, Table, check_sealed, seq};

fn metadata_of(entry: &Stored) -> Stored {
    let sum = checksum::of_entry(&entry.key, &entry.value, entry.seq, entry.kind);
    let payload = Payload::new(entry.seq, sum).encode();
    let tombstone = Stored::deletion(&metadata_key(&entry.key), entry.seq.get());
    Stored { value: payload, ..tombstone }
}

#[test]
fn entries_of_other_nodes_get_metadata_and_what_they_left_over_goes() {
    let hive = MetaHive::default();
    let with = Stored::value(b"a", 1, b"x");
    let without = Stored::value(b"b", 2, b"y");
    let orphan = metadata_of(&Stored::value(b"c", 3, b"deleted there"));
    let table = Table::new(1, vec![metadata_of(&with), with, without, orphan]);
    let tables = Engine::default().compact(&hive, &[table]);
    check_sealed(&tables);
    let counts = hive.counts();
    assert_eq!((counts.verified, counts.made, counts.orphans_dropped), (1, 1, 1));
}

#[test]
fn deletions_are_sealed_and_never_taken_for_metadata() {
    let hive = MetaHive::default();
    let mut engine = Engine::default();
    let deletions = vec![Stored::deletion(b"a", 5), Stored::deletion(b"a\0", 6)];
    let table = engine.flush(&hive, deletions.clone());
    let tables = engine.compact(&hive, &[table]);
    check_sealed(&tables);
    assert_eq!(tables[0].data(), deletions);
    // A deletion under a reserved key, by a node that reserves nothing, goes on as one.
    let foreign = Table::new(1, vec![Stored::deletion(b"k\x01", 9)]);
    assert_eq!(engine.compact(&hive, &[foreign])[0].data().len(), 1);
}

#[test]
fn dropped_versions_take_their_metadata_along() {
    let hive = MetaHive::default();
    let mut engine = Engine::default();
    let old = Table { file: 1, ..engine.flush(&hive, vec![Stored::value(b"k", 1, b"old")]) };
    let new = Table { file: 2, ..engine.flush(&hive, vec![Stored::value(b"k", 2, b"new")]) };
    let tables = engine.compact(&hive, &[old.clone(), new.clone()]);
    assert_eq!(tables[0].entries.len(), 2);
    check_sealed(&tables);
    // Identical twins of two tables become one, each verified by its own metadata.
    let twin = Table { file: 3, ..new.clone() };
    check_sealed(&engine.compact(&hive, &[new, twin, old]));
    assert_eq!(hive.counts().verified, 5);
}

#[test]
fn rewritten_entries_are_sealed_as_they_are_written() {
    let hive = MetaHive::default();
    let mut engine = Engine::default();
    let table = engine
        .flush(&hive, vec![Stored::value(b"change", 1, b"x"), Stored::value(b"remove", 2, b"y")]);
    engine.decision = |entry| match entry.key {
        b"change" => Decision::Replace(b"changed".to_vec()),
        _ => Decision::Remove,
    };
    let tables = engine.compact(&hive, &[table]);
    check_sealed(&tables);
    assert_eq!(tables[0].data()[0].value, b"changed");
}

#[derive(Default)]
struct Payloads(Vec<Vec<u8>>);

impl HiddenSink for Payloads {
    fn add(&mut self, _key: &[u8], _seq: SeqNo, payload: &[u8]) -> Result<()> {
        self.0.push(payload.to_vec());
        Ok(())
    }
}

/// A value may change between its check by the flush and its seal. The seal is made of what was checked.
#[test]
fn a_flush_seals_the_checksum_that_it_has_confirmed() {
    let confirmed = checksum::of_value(b"value");
    for (value, verdict) in [(b"value", Verdict::Valid), (b"valuf", Verdict::DataCorrupt)] {
        let stored = Stored::value(b"k", 7, value);
        let entry = stored.entry();
        let mut filter = MetaHive::default().start(&Job::new("p", JobKind::Flush)).unwrap();
        let mut emitted = Payloads::default();
        let mut out = Emitter::new(&mut emitted);
        let mut faults = Faults::default();
        filter.boundary(Some(b"k"), &mut out, &mut faults).unwrap();
        let untouched_from = Some(entry.seq);
        let value_sum = Some(confirmed);
        filter
            .output(&Output {
                entry,
                untouched_from,
                value_sum,
                is_held: false,
                note: None,
                is_noted: false,
            })
            .unwrap();
        filter.boundary(None, &mut out, &mut faults).unwrap();
        let [payload] = &emitted.0[..] else { panic!("{:?}", emitted.0) };
        assert_eq!(crate::engine::verdict(&stored, payload), verdict);
    }
}

#[test]
fn ingested_entries_are_verified_as_stored_and_sealed_as_they_count() {
    let hive = MetaHive::default();
    let mut engine = Engine::default();
    let table =
        engine.flush(&hive, vec![Stored::value(b"a", 3, b"x"), Stored::value(b"b", 7, b"")]);
    let ingested = Table { ingested_at: Some(50), file: 1, ..table };
    let local = engine.flush(&hive, vec![Stored::value(b"a", 7, b"local")]);
    let tables = engine.compact(&hive, &[ingested.clone(), Table { file: 2, ..local }]);
    check_sealed(&tables);
    assert!(tables[0].data().iter().all(|entry| entry.seq == seq(50)));
    assert_eq!(hive.counts().verified, 3);

    let mut damaged = ingested;
    damaged.entries[0].seq = seq(4);
    assert!(!engine.faults(&hive, &[damaged]).is_empty());
}

#[test]
fn a_provider_keeps_what_it_made_through_compactions() {
    let hive = MetaHive::new(MetaHiveOptions::new().provider(Arc::new(Statistics::default())));
    let mut engine = Engine::default();
    let values = [(b"a", 10), (b"b", 20), (b"c", 60)];
    let entries = values.iter().enumerate();
    let entries: Vec<Stored> =
        entries.map(|(i, (k, len))| Stored::value(&k[..], i as u64 + 1, &vec![0; *len])).collect();
    let mut table = engine.flush(&hive, entries);
    for _ in 0..3 {
        let figures: Vec<_> = table
            .entries
            .iter()
            .filter(|entry| entry.is_metadata())
            .map(|entry| Statistics::decode(&entry.value[8..]).unwrap())
            .collect();
        assert_eq!(figures, [(10, 0), (20, 10), (60, 45)]);
        table = engine.compact(&hive, &[table]).pop().unwrap();
    }
    table.entries[0].value.pop();
    assert_eq!(engine.faults(&hive, std::slice::from_ref(&table)).len(), 1);
    // Tables of one provider are not opened by another.
    let inputs = [lsm_core::hooks::InputTable {
        path: "t.sst".into(),
        file: lsm_core::types::FileNo(1),
        properties: table.properties.clone(),
    }];
    let job = lsm_core::hooks::Job {
        level_from: 0,
        level_to: 1,
        bottom: true,
        inputs: &inputs,
        ..lsm_core::hooks::Job::new("p", lsm_core::hooks::JobKind::Compaction)
    };
    let started = lsm_core::hooks::CompactionFilterFactory::start(&MetaHive::default(), &job);
    assert!(started.is_err());
}
