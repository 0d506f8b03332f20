//! The reader of one partition, and the gaps between sequence numbers.

use super::*;

#[test]
fn a_reader_of_one_partition_does_not_touch_the_others() {
    let mut log = Log::new(0);
    let big = vec![5; 3 << 20];
    log.try_batch(&[(1, 1, big.clone()), (2, 2, b"wanted".to_vec()), (3, 1, big)]).unwrap();
    log.put(b"of partition 1");
    // Rot in the first section, and a sector of the last one that cannot be read.
    let mut bytes = log.bytes()[0].clone();
    bytes[2 << 20] ^= 1;
    log.files[0].set_bytes(&bytes);
    log.files[0].fail_reads_at(Some(5 << 20));
    let only = Some(PartitionId(2));
    let (frames, end) = read(log.sources(), LogReaderOptions { only, ..LogReaderOptions::new(DB) });
    assert_eq!(end.unwrap().last_seq, seq(log.last));
    let wanted = Owned::Batch(11, vec![(2, 12, 2, b"wanted".to_vec())]);
    assert_eq!(frames, [wanted, Owned::Batch(15, vec![])]);
}

#[test]
fn a_reader_of_one_partition_waits_for_the_whole_frame() {
    let mut log = Log::new(0);
    log.try_batch(&[(1, 1, b"wanted".to_vec()), (2, 1, b"of the other".to_vec())]).unwrap();
    let bytes = log.bytes()[0].clone();
    log.files[0].set_bytes(&bytes[..bytes.len() - 8]);
    let only = Some(PartitionId(1));
    let (frames, end) = read(log.sources(), LogReaderOptions { only, ..LogReaderOptions::new(DB) });
    assert!(frames.is_empty() && end.unwrap().torn_bytes);
}

#[test]
fn a_gap_in_the_sequence_is_a_bad_frame() {
    for attested in [false, true] {
        for step in [-1_i64, 1] {
            let mut log = Log::new(0);
            log.put(b"one");
            log.put(b"two");
            // A frame was lost, or came twice, with all checksums right.
            log.last = log.last.checked_add_signed(step).unwrap();
            log.put(b"three");
            if attested {
                log.sync();
            }
            log.control(Control::EpochStart);
            let (frames, end) = log.read();
            assert_eq!(frames, log.all()[..2]);
            assert_eq!(end.is_err_and(|e| e.is_corruption()), attested);
        }
    }
}

#[test]
fn a_control_frame_that_names_another_sequence_is_a_bad_frame() {
    let mut log = Log::new(0);
    log.put(b"one");
    log.last += 1;
    log.control(Control::IdleMarker { manifest_edit: 0 });
    assert_eq!(log.read().0, log.all()[..1]);
}

#[test]
fn unlogged_sequences_are_a_gap_that_the_frame_names() {
    let mut log = Log::new(0);
    log.put(b"one");
    let place = log.place();
    let sections = [Section {
        partition: PartitionId(1),
        operations: 1,
        checksum: section_checksum(b"later"),
        bytes: b"later",
    }];
    let mut out = Vec::new();
    encode_batch(&mut out, &place, seq(500), seq(log.last), &sections);
    let what = Owned::Batch(500, vec![(1, 500, 1, b"later".to_vec())]);
    log.append(&out, what).unwrap();
    log.last = 500;
    log.put(b"after");
    let (frames, end) = log.read();
    assert_eq!((frames, end.unwrap().last_seq), (log.all(), seq(501)));
}
