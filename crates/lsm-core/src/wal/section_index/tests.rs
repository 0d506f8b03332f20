//! The bytes of an index, and its length. `wal/reader/tests/indexed.rs` reads segments by it.

use super::*;
use crate::types::{DbId, Epoch, FileNo};
use crate::wal::{Section, salt_of};

fn header() -> SegmentHeader {
    SegmentHeader {
        db: DbId(1),
        epoch: Epoch(2),
        number: FileNo(3),
        salt: salt_of(DbId(1), Epoch(2), FileNo(3)),
        base: Lsn(4096),
        previous: None,
        manifest_edit: 0,
        durable: Lsn(0),
        previous_seq: seq(10),
    }
}

fn seq(n: u64) -> SeqNo {
    SeqNo::new(n).unwrap()
}

fn section(partition: u32, operations: u32, bytes: &[u8]) -> Section<'_> {
    Section { partition: PartitionId(partition), operations, checksum: 0, bytes }
}

#[test]
fn golden_index_of_sections() {
    let mut builder = SectionIndexBuilder::default();
    builder.note_batch(128, 48, seq(11), seq(10), &[section(1, 1, b"one")]);
    builder.note_switch(176, 32, PartitionId(1));
    builder.note_other(208, 40);
    // Two sequences before it passed no log.
    let sections = [section(5, 2, b"two"), section(1, 1, b"again")];
    builder.note_batch(248, 1032, seq(14), seq(11), &sections);
    let parts: [&[u8]; 11] = [
        b"SILTSECTIONS",                         // magic
        &[1, 0, 0, 0],                           // version
        &[0, 5, 0, 0, 0, 0, 0, 0],               // end of the frames
        &[16, 0, 0, 0, 0, 0, 0, 0],              // last sequence
        &[2, 0, 0, 0, 0, 0, 0, 0],               // sequences between the batches
        &[20, 0, 0, 0],                          // length of the groups
        &[2, 0, 0, 0],                           // groups
        &[1, 2, 8, 16, 1, 2, 0, 10, 5, 129, 1],  // partition 1: two runs
        &[5, 2, 3, 15, 0, 1, 15, 129, 1],        // partition 5: one run
        &[0; 4],                                 // zeros up to a multiple of 8
        &[192, 102, 44, 93, 130, 212, 100, 130], // checksum
    ];
    let bytes = builder.finish(&header(), 1280, seq(16)).unwrap();
    assert_eq!(bytes, parts.concat());
}

/// Frames of a partition that lie close together share runs. If the runs of all partitions overlap
/// therefore, an index saves nothing.
#[test]
fn an_index_takes_a_small_part_of_its_segment_whatever_is_in_it() {
    for (partitions, bytes, share_min) in [
        (1_u32, 100, Some(10_000)),
        (16, 1000, Some(200)),
        (16, 250, Some(64)),
        (16, 20, None),
        (999, 1000, Some(100)),
        (999, 8, None),
    ] {
        let mut builder = SectionIndexBuilder::default();
        let body = vec![0; bytes];
        let len = (bytes as u64 + 40).next_multiple_of(8);
        let mut at = SEGMENT_HEADER_BYTES;
        let mut last = 10_u64;
        while at < 4 << 20 {
            // Not in turns: so that runs differ.
            let partition = (last.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u32 % partitions;
            builder.note_batch(at, len, seq(last + 1), seq(last), &[section(partition, 1, &body)]);
            at += len;
            last += 1;
        }
        let index = builder.finish(&header(), at, seq(last));
        let share = index.as_ref().map(|index| at / index.len() as u64);
        let context = format!("{partitions} partitions, {bytes} bytes: 1/{share:?}");
        assert_eq!(share.is_some(), share_min.is_some(), "{context}");
        assert!(share >= share_min, "{context}");
        let Some(index) = index else { continue };
        let read = SectionIndex::decode(&index, &header(), at).unwrap();
        let operations: u64 = read.groups.iter().map(|group| group.operations).sum();
        assert_eq!(operations, last - 10);
        assert_eq!(read.len(), index.len() as u64);
    }
}

#[test]
fn there_is_no_index_of_frames_that_are_not_those_of_the_segment() {
    // Noted, discarded, and noted again at the same place.
    let mut builder = SectionIndexBuilder::default();
    builder.note_batch(128, 48, seq(11), seq(10), &[section(1, 1, b"one")]);
    builder.note_batch(128, 48, seq(11), seq(10), &[section(1, 1, b"one")]);
    assert_eq!(builder.finish(&header(), 176, seq(11)), None);
    // Noted and never appended.
    let mut builder = SectionIndexBuilder::default();
    builder.note_batch(128, 48, seq(11), seq(10), &[section(1, 1, b"one")]);
    builder.note_batch(176, 48, seq(12), seq(11), &[section(1, 1, b"two")]);
    assert_eq!(builder.finish(&header(), 176, seq(11)), None);
}

#[test]
fn an_index_whose_numbers_do_not_add_up_is_none() {
    for (last, is_one) in [(12, true), (11, false), (13, false)] {
        let mut builder = SectionIndexBuilder::default();
        builder.note_batch(128, 48, seq(12), seq(10), &[section(1, 1, b"one")]);
        let index = builder.finish(&header(), 176, seq(last)).unwrap();
        assert_eq!(SectionIndex::decode(&index, &header(), 176).is_ok(), is_one, "{last}");
    }
}
