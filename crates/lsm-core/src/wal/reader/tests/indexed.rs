//! Segments that are passed by their index of sections. The oracle is the walk over all frames.

use std::collections::BTreeMap;

use super::random::{Step, run, step};
use super::*;
use crate::wal::{IndexedItem, IndexedSections, SectionIndex, SectionIndexBuilder};

/// The sections of each partition in a log: the first sequences of its sections, `None` for a memtable
/// switch.
type Found = BTreeMap<u32, Vec<Option<u64>>>;

impl Log {
    /// The index of a segment, as the writer of the log would have built it.
    fn index_of(&self, idx: usize) -> Option<Vec<u8>> {
        let header = &self.headers[idx];
        let mut builder = SectionIndexBuilder::default();
        let mut last_seq = header.previous_seq;
        let mut end = SEGMENT_HEADER_BYTES;
        for frame in self.frames.iter().filter(|frame| frame.idx == idx) {
            let len = frame.end - frame.start;
            end = frame.end;
            match &frame.what {
                Owned::Control(Control::MemtableSwitch { partition, .. }) => {
                    builder.note_switch(frame.start, len, *partition);
                }
                Owned::Control(_) => builder.note_other(frame.start, len),
                Owned::Batch(first, sections) => {
                    let noted: Vec<_> = sections
                        .iter()
                        .map(|(partition, _, operations, bytes)| Section {
                            partition: PartitionId(*partition),
                            operations: *operations,
                            checksum: 0,
                            bytes,
                        })
                        .collect();
                    builder.note_batch(frame.start, len, seq(*first), last_seq, &noted);
                    let (_, first, operations, _) = sections.last().unwrap();
                    last_seq = seq(first + u64::from(*operations) - 1);
                }
            }
        }
        builder.finish(header, end, last_seq)
    }

    /// Writes the index of each sealed segment after its last frame, if it has one; returns their
    /// number, without those of segments that have no frame.
    pub(super) fn write_indexes(&self) -> usize {
        let mut count = 0;
        for idx in 0..self.files.len() - 1 {
            let Some(index) = self.index_of(idx) else { continue };
            count += usize::from(self.frames.iter().any(|frame| frame.idx == idx));
            let end = self.headers[idx + 1].previous.unwrap().offset as usize;
            let mut bytes = self.bytes()[idx].clone();
            bytes.resize(bytes.len().max(end + index.len()), 0);
            bytes[end..end + index.len()].copy_from_slice(&index);
            self.files[idx].set_bytes(&bytes);
        }
        count
    }
}

/// The sections that the index leads to for one partition.
fn items_of(
    group: &IndexedSections,
    source: &SegmentSource,
    header: &SegmentHeader,
) -> Result<Vec<Option<u64>>> {
    let mut items = Vec::new();
    group.read(source, header, &mut |item| {
        items.push(match item {
            IndexedItem::Section { section, .. } => Some(section.first_seq.get()),
            IndexedItem::Switch => None,
        });
        Ok(())
    })?;
    Ok(items)
}

fn note(found: &mut Found, frame: &FrameRef<'_>) {
    match frame.record {
        Record::Batch(batch) => batch.places().for_each(|place| {
            found.entry(place.partition.0).or_default().push(Some(place.first_seq.get()));
        }),
        Record::Control(Control::MemtableSwitch { partition, .. }) => {
            found.entry(partition.0).or_default().push(None);
        }
        Record::Control(_) => {}
    }
}

/// Reads a log as a follower does; with `by_index` segments are passed by their index. Returns how
/// many were passed.
fn follow(log: &Log, by_index: bool) -> (Found, usize) {
    let options = LogReaderOptions { headers_only: true, ..LogReaderOptions::new(DB) };
    let mut reader = LogReader::new(log.sources(), options).unwrap();
    let mut found = Found::new();
    let mut passed_count = 0;
    loop {
        while by_index && let Some(passed) = reader.pass_indexed().unwrap() {
            passed_count += 1;
            let source = reader.source(passed.header.number).unwrap();
            for group in &passed.groups {
                let items = items_of(group, source, &passed.header).unwrap();
                found.entry(group.partition.0).or_default().extend(items);
            }
        }
        let Some(frame) = reader.next_frame().unwrap() else { break };
        note(&mut found, &frame);
    }
    assert_eq!(reader.lsn(), Some(log.writer.lsn()));
    assert_eq!(reader.position().last_seq.get(), log.last);
    (found, passed_count)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_index_leads_to_what_a_walk_finds(
        steps in prop::collection::vec(step(), 1..200),
        preallocate in prop_oneof![Just(0u64), 256u64..4096],
    ) {
        let steps: Vec<_> = steps.into_iter().filter(|d| !matches!(d, Step::Fail(_))).collect();
        let log = run(&steps, preallocate);
        let indexed = log.write_indexes();
        let (found, passed) = follow(&log, true);
        prop_assert_eq!(found, follow(&log, false).0);
        prop_assert_eq!(passed, indexed);
        // Recovery does not look at indexes, and they are no part of the log.
        let (frames, end) = log.read();
        prop_assert_eq!(frames, log.all());
        prop_assert!(!end.unwrap().torn_bytes);
    }
}

#[test]
fn an_index_with_any_bit_flipped_or_cut_off_is_none() {
    let log = sample(true, 1024);
    log.write_indexes();
    let whole = follow(&log, true);
    assert_eq!(whole.1, 2);
    let bytes = log.bytes();
    let end = log.headers[1].previous.unwrap().offset;
    let len = log.index_of(0).unwrap().len();
    for bit in 0..len * 8 {
        let mut bad = bytes[0].clone();
        bad[end as usize + bit / 8] ^= 1 << (bit % 8);
        log.files[0].set_bytes(&bad);
        assert!(SectionIndex::read(&*log.files[0], &log.headers[0], end).is_none(), "bit {bit}");
        assert_eq!(follow(&log, true), (whole.0.clone(), 1), "bit {bit}");
    }
    for cut in 0..len {
        log.files[0].set_bytes(&bytes[0][..end as usize + cut]);
        assert_eq!(follow(&log, true), (whole.0.clone(), 1), "cut {cut}");
    }
}

#[test]
fn an_index_of_another_segment_or_place_is_none() {
    let log = sample(true, 0);
    let end = log.headers[1].previous.unwrap().offset;
    let index = log.index_of(0).unwrap();
    for (idx, at) in [(0, end), (0, end + 8), (1, end)] {
        let mut bytes = log.bytes()[idx].clone();
        bytes.truncate(at as usize);
        bytes.resize(at as usize, 0);
        bytes.extend_from_slice(&index);
        log.files[idx].set_bytes(&bytes);
        let found = SectionIndex::read(&*log.files[idx], &log.headers[idx], at);
        assert_eq!(found.is_some(), (idx, at) == (0, end), "segment {idx} at {at}");
    }
}

/// The frames of a whole index may be damaged: their own checks decide.
#[test]
fn a_damaged_frame_is_found_by_the_look_up_of_its_partition() {
    let log = sample(true, 0);
    log.write_indexes();
    let end = log.headers[1].previous.unwrap().offset;
    let index = SectionIndex::read(&*log.files[0], &log.headers[0], end).unwrap();
    let mut bytes = log.bytes()[0].clone();
    let frame =
        log.frames.iter().find(|frame| matches!(&frame.what, Owned::Batch(_, s) if s.len() > 1));
    bytes[frame.unwrap().start as usize + 20] ^= 1;
    log.files[0].set_bytes(&bytes);
    for group in &index.groups {
        let items = items_of(group, &log.sources()[0], &log.headers[0]);
        // Partition 1 shares a run with no damaged frame.
        assert_eq!(items.is_ok(), group.partition.0 == 1, "partition {}", group.partition);
    }
}

/// The numbers of an index are compared with its frames.
#[test]
fn a_wrong_group_is_not_believed() {
    let mut log = sample(true, 0);
    log.put(b"of partition 1");
    log.next_segment();
    log.write_indexes();
    for idx in 0..3 {
        let end = log.headers[idx + 1].previous.unwrap().offset;
        let index = SectionIndex::read(&*log.files[idx], &log.headers[idx], end).unwrap();
        for group in index.groups {
            let mut wrong = vec![group.clone(); 5];
            wrong[0].operations += 1;
            wrong[1].bytes -= 1;
            wrong[2].last_seq = wrong[2].last_seq.plus(1);
            wrong[3].switches += 1;
            wrong[4].partition = PartitionId(77);
            for wrong in wrong {
                let error = items_of(&wrong, &log.sources()[idx], &log.headers[idx]).unwrap_err();
                assert!(error.is_corruption(), "{wrong:?}: {error}");
            }
            items_of(&group, &log.sources()[idx], &log.headers[idx]).unwrap();
        }
    }
}
