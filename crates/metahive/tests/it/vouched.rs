//! Entries of judged blocks, under a provider of the application.

use std::sync::Arc;

use lsm_core::Result;
use lsm_core::hooks::{
    CompactionFilterFactory, Emitter, Entry, Faults, HiddenSink, Job, JobKind, Origin, Patch,
    Vouched,
};
use lsm_core::types::{EntryKind, FileNo, SeqNo};
use metahive::{MetaHive, MetaHiveOptions, Statistics, checksum};

use crate::engine::{Sources, Stored, Table, seq};

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
    let vouched =
        Vouched { note: sum_of(&dropped), hidden: Some(&hidden), is_compared_later: false };
    filter.input_vouched(&dropped, &AT, &vouched, &mut faults).unwrap();
    // Of a table that is not sealed.
    let next = entry(b"b", 3, &[2; 60]);
    filter.input(next, AT, &mut faults).unwrap();
    filter.output(&next, Some(seq(3)), None).unwrap();
    let mut emitted = Emitted::default();
    filter.boundary(None, &mut Emitter::new(&mut emitted), &mut faults).unwrap();
    assert!(faults.is_empty());
    assert_eq!(emitted.0, [(b"b\x01".to_vec(), 60)]);
}

#[test]
fn an_entry_that_changed_in_memory_is_compared_with_the_metadata_of_its_provider() {
    let hive = statistics();
    let mut filter = hive.start(&Job::new("p", JobKind::Compaction)).unwrap();
    let mut faults = Faults::default();
    let was = entry(b"a", 5, &[1; 10]);
    let hidden = figures(10);
    let vouched = Vouched { note: sum_of(&was), hidden: Some(&hidden), is_compared_later: false };
    let is = entry(b"a", 5, &[9; 10]);
    filter.input_vouched(&is, &AT, &vouched, &mut faults).unwrap();
    let (faults, _) = faults.into_parts();
    // Its metadata lies in another block, where a second reading of the entry does not see it.
    let medium = Table::new(1, vec![Stored::value(b"a", 5, &[1; 10])]);
    let patches = hive.repair(&faults, &mut Sources::of(&[medium]));
    let [Patch::Replace { value, .. }] = &patches[..] else { panic!("{patches:?}") };
    assert_eq!(value, &[1; 10]);
}
