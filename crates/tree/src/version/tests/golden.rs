//! The bytes of an edit and of a manifest.

use super::*;
use crate::options::{CompactionStyle, PrefixExtractor};

#[test]
fn bytes_of_an_edit_are_these() {
    let changes = vec![
        Change::FlushedThrough {
            partition: PartitionId(1),
            seq: seq(300),
            memtables_through: MemtableId(2),
        },
        added(2, SstMeta { hash: 1, expiries: Some(expiries()), ..meta(5, "a", "b") }),
        Change::PartitionOptionsChanged {
            id: PartitionId(3),
            options: PartitionOptions::default(),
            hooks: vec![seal()],
        },
        Change::GapAdded { partition: PartitionId(3), gap: gap(7, 0x1_0a0b) },
        Change::GapRemoved { partition: PartitionId(3), gap: gap(7, 0x2_0a0b) },
        Change::ClearSeqAdded { partition: PartitionId(3), seq: seq(300) },
        Change::ClearSeqRemoved { partition: PartitionId(3), seq: seq(299) },
        Change::SpanAdded { partition: PartitionId(3), span: span(b"from", Some(b"to"), 301) },
        Change::SpanRemoved { partition: PartitionId(3), span: span(b"", None, 298) },
        Change::SegmentRetained {
            file: FileNo(8),
            segment: RetainedSegment { epoch: Epoch(4), bytes: 4096, since: 7 },
        },
        Change::SegmentForgotten { file: FileNo(8) },
        Change::RetainedEnd {
            epoch: Epoch(4),
            end: LogCut { segment: FileNo(8), offset: 4096, last_seq: seq(298) },
        },
        Change::PartitionOptionsChanged {
            id: PartitionId(3),
            options: PartitionOptions::default(),
            hooks: vec![add_operator()],
        },
        Change::PartitionOptionsChanged {
            id: PartitionId(3),
            options: PartitionOptions::new().prefix_extractor(Some(PrefixExtractor::Through(b'/'))),
            hooks: Vec::new(),
        },
        Change::PartitionOptionsChanged {
            id: PartitionId(3),
            options: PartitionOptions::new()
                .compaction_style(CompactionStyle::Fifo { bytes_max: 300, seconds_max: 7 }),
            hooks: Vec::new(),
        },
        added(2, SstMeta { hash: 1, written_at: Some(300), ..meta(5, "a", "b") }),
    ];
    let mut bytes = Vec::new();
    VersionEdit { number: 1, changes }.encode(&mut bytes);
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let expected = [
        "0c04 01 ac02 02",
        "0838 00 02 05 01 ed07 01000000000000000000000000000000 01613b01 01623201 00 32 3b 0a 01 02",
        // When its entries expire: the rule, the earliest, two groups.
        "1112 0807060504030201 01 ac02 ac0205 f0a20402",
        "042f 03 01 01 047365616c 020102 0101 02 01 020101 040101 06028020 08010a 0a0480808020 0c0104 0e058080808001 10010a",
        "2012 03 0430613062 07 0530613062 7a 01 8b9404 00",
        "2212 03 0430613062 07 0530613062 7a 00 8b9408 08",
        "2403 03 ac02",
        "2603 03 ab02",
        "2c0b 03 0466726f6d 02746f ad02",
        "2e05 03 00 00 aa02",
        "3105 08 04 8020 07",
        "3301 08",
        "3506 04 08 8020 aa02",
        "382b 03 01 03 03616464 00 00 00 00 020101 040101 06028020 08010a 0a0480808020 0c0104 0e058080808001 10010a",
        // Field 9 with the skip bit: the bytes through the first 0x2f.
        "0426 03 00 020101 040101 06028020 08010a 0a0480808020 0c0104 0e058080808001 10010a 1302825e",
        // Fields 10 and 11 with the skip bit: 300 bytes, 7 seconds.
        "0429 03 00 020101 040101 06028020 08010a 0a0480808020 0c0104 0e058080808001 10010a 1502ac02 170107",
        // A table with the time at which it was written.
        "0828 00 02 05 01 ed07 01000000000000000000000000000000 01613b01 01623201 00 32 3b 0a 01 02 1302ac02",
    ];
    assert_eq!(hex, expected.concat().replace(' ', ""));
}

/// A whole generation: header, the frame of the snapshot, the frame of one edit.
#[test]
fn bytes_of_a_manifest_are_these() {
    let fs = TestFs::default();
    let version = with(&DbVersion::empty(DB), vec![created(0, "default", 1)]);
    let mut manifest = Manifest::create(&fs, dir(), generation(9), &version).unwrap();
    manifest.append(&next(&version, vec![flushed_through(5)])).unwrap();
    let bytes = fs.files.lock()[&generation(9).path(dir())].clone();
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let expected = [
        // Magic, format version, kind of checksum, three words of features.
        "53494c544d414e49 02000000 01000000 0000000000000000 0000000000000000 0000000000000000",
        // Database, generation, epoch, zero, checksum of the header.
        "f0debc9a785634120000000000000000 0900000000000000 01000000 00000000 394b335570d12b2a",
        // A frame: checksums of head and payload, length, edit number; the snapshot.
        "cc1dbada325060b1 e24c3762f2e63afe 3e000000 0100000000000000",
        "1201001801011a0100022b000764",
        "656661756c7401000201010401010602802008010a0a04808080200c01040e05808080800110010a0c030000001c0101",
        // A frame and its edit.
        "8a395de0396756ec 6a91f337fdd45a1f 05000000 0200000000000000 0c03000501",
    ];
    assert_eq!(hex, expected.concat().replace(' ', ""));
}

#[test]
fn an_unknown_change_is_refused_unless_it_says_that_it_may_be_skipped() {
    let number = [0xc7, 0x01, 2, 7, 7]; // tag 99 with the skip bit
    assert_eq!(VersionEdit::decode(1, &number).unwrap().changes, []);
    let refused = VersionEdit::decode(1, &[0xc6, 0x01, 0]).unwrap_err();
    assert_eq!(refused.to_string(), "change 99 is not known to this version");
}
