//! Records, printed against the table of their bytes; and hostile bytes with a right checksum.

use testkit::{Rng, annotate, assert_golden};

use super::*;

fn record() -> Record {
    let mut record = Record::new("a");
    record.attempt = 7;
    record.since = Commit { seq: SeqNo::new(1042).unwrap(), epoch: Epoch(3) };
    record.owned = SlotSet::parse("0-99").unwrap();
    record.importing = SlotSet::parse("200").unwrap();
    record.leftover = SlotSet::parse("300-301").unwrap();
    record.give(&SlotSet::parse("300-302").unwrap(), "b");
    record
}

#[test]
fn the_bytes_of_a_record_are_those_of_the_table() {
    let bytes = record().encode();
    let starts = [0, 8, 12, 16, 24, 28, 36, 38, 41, 46, 51, 52, bytes.len() - 8];
    let names = [
        "magic",
        "version",
        "zero",
        "attempt",
        "epoch",
        "sequence number",
        "name",
        "owned",
        "importing",
        "leftover",
        "is sealed",
        "given",
        "checksum",
    ];
    let ends = starts[1..].iter().copied().chain([bytes.len()]);
    let notes: Vec<_> = starts
        .into_iter()
        .zip(ends)
        .zip(names)
        .map(|((from, to), name)| (from..to, name))
        .collect();
    assert_golden("shard-record.txt", &annotate(&bytes, &notes));
    assert_eq!(Record::decode(&bytes).unwrap(), record());
}

/// The record in `testdata/` is of the first version, and every later one reads it.
#[test]
fn a_record_of_version_1_is_read() {
    assert_eq!(
        Record::decode(include_bytes!("../../../testdata/shard-record-1")).unwrap(),
        record()
    );
}

#[test]
fn hostile_records_never_panic_and_take_no_memory() {
    let mut rng = Rng::from_env_or(12);
    let bytes = record().encode();
    for _ in 0..2_000 {
        let mut hostile = bytes.clone();
        for _ in 0..rng.range(1..4) {
            let at = rng.index(hostile.len() - 8);
            hostile[at] = rng.below(256) as u8;
        }
        assert!(Record::decode(&hostile).is_err() || hostile == bytes);
        hostile.truncate(hostile.len() - 8);
        put_sum(&mut hostile);
        if let Ok(record) = Record::decode(&hostile) {
            assert_eq!(Record::decode(&record.encode()).unwrap(), record);
        }
    }
}

#[test]
fn slots_that_are_not_owned_are_refused_by_their_state() {
    let record = record();
    for (slots, expected) in [
        (&[5][..], None),
        (&[5, 99], None),
        (&[], None),
        (&[302], Some("MOVED 302 b")),
        (&[302, 302], Some("MOVED 302 b")),
        (&[200], Some("TRYAGAIN slot 200 is on its way to shard a")),
        (&[400], Some("CLUSTERDOWN Hash slot 400 is not served by shard a")),
        (&[5, 302], Some("CROSSSLOT Keys in request don't hash to slots of shard a: not slot 302")),
        (
            &[302, 400],
            Some("CROSSSLOT Keys in request don't hash to slots of shard a: not slot 302"),
        ),
    ] {
        let refusal = record.refusal(slots.iter().copied());
        let text = refusal.map(|it| match it {
            Failure::Refused(text) => text.into_owned(),
            other => panic!("{other:?}"),
        });
        assert_eq!(text.as_deref(), expected, "{slots:?}");
    }
}
