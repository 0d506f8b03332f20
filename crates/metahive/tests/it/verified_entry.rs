//! Entries of judged blocks, under a provider of the application.

use std::sync::Arc;

use lsm_core::Result;
use lsm_core::hooks::{
    CompactionFilterFactory, Emitter, Entry, Faults, HiddenSink, Job, JobKind, Origin, Output,
    VerifiedEntry,
};
use lsm_core::types::{EntryKind, FileNo, SeqNo};
use metahive::{MetaHive, MetaHiveOptions, Statistics, checksum};

use crate::engine::seq;

/// The first entry of the first block of a table.
const AT: Origin = Origin { file: Some(FileNo(1)), ..Origin::MEMTABLE };

fn statistics() -> MetaHive {
    MetaHive::new(MetaHiveOptions::new().provider(Arc::new(Statistics::default())))
}

/// The metadata of a value of this length.
fn figures(len: u64) -> Vec<u8> {
    [len.to_le_bytes(), 0u64.to_le_bytes()].concat()
}

fn entry<'a>(key: &'a [u8], n: u64, value: &'a [u8]) -> Entry<'a> {
    let kind = EntryKind::Value;
    Entry { key, seq: seq(n), stored_seq: seq(n), kind, value, hidden: false }
}

fn sum_of(entry: &Entry<'_>) -> u64 {
    checksum::of_entry(entry.key, entry.value, entry.stored_seq, entry.kind)
}

/// Keys of metadata, and the lengths in it.
#[derive(Default)]
struct Emitted(Vec<(Vec<u8>, u64)>);

impl HiddenSink for Emitted {
    fn add(&mut self, key: &[u8], _seq: SeqNo, payload: &[u8]) -> Result<()> {
        let (len, _) = Statistics::decode(&payload[8..]).unwrap();
        self.0.push((key.to_vec(), len));
        Ok(())
    }
}

#[test]
fn the_metadata_of_a_dropped_entry_is_not_carried_on_to_the_next() {
    let mut filter = statistics().start(&Job::new("p", JobKind::Compaction)).unwrap();
    let mut faults = Faults::default();
    let dropped = entry(b"a", 5, &[1; 10]);
    let hidden = figures(10);
    let verified = VerifiedEntry { note: sum_of(&dropped), hidden: Some(&hidden) };
    filter.input(&dropped, &AT, Some(&verified), &mut faults).unwrap();
    // Of a table that is not sealed.
    let next = entry(b"b", 3, &[2; 60]);
    filter.input(&next, &AT, None, &mut faults).unwrap();
    let untouched_from = Some(seq(3));
    let output = Output {
        entry: next,
        untouched_from,
        value_sum: None,
        is_held: false,
        note: None,
        is_noted: false,
    };
    filter.output(&output).unwrap();
    let mut emitted = Emitted::default();
    filter.boundary(None, &mut Emitter::new(&mut emitted), &mut faults).unwrap();
    assert!(faults.first().is_none());
    assert_eq!(emitted.0, [(b"b\x01".to_vec(), 60)]);
}

#[test]
fn an_entry_that_changed_in_memory_after_its_judge_is_a_fault() {
    let mut filter = statistics().start(&Job::new("p", JobKind::Compaction)).unwrap();
    let mut faults = Faults::default();
    let was = entry(b"a", 5, &[1; 10]);
    let hidden = figures(10);
    let verified = VerifiedEntry { note: sum_of(&was), hidden: Some(&hidden) };
    let is = entry(b"a", 5, &[9; 10]);
    filter.input(&is, &AT, Some(&verified), &mut faults).unwrap();
    let fault = faults.first().unwrap();
    assert_eq!((&fault.key[..], fault.at), (&b"a"[..], AT));
}
