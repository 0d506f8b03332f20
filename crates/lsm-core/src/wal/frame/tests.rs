//! Frames as bytes: goldens, round trips, and every single damage refused.

use super::*;
use proptest::prelude::*;

fn seq(n: u64) -> SeqNo {
    SeqNo::new(n).unwrap()
}

fn place() -> FramePlace {
    FramePlace {
        salt: 0x1122_3344_5566_7788,
        epoch: Epoch(3),
        offset: 0x80,
        lsn: Lsn(0x1_0080),
        durable: Lsn(0x1_0000),
    }
}

fn section(partition: u32, operations: u32, bytes: &[u8]) -> Section<'_> {
    let checksum = section_checksum(bytes);
    Section { partition: PartitionId(partition), operations, checksum, bytes }
}

/// Encodes after other bytes, decodes, and returns the frame's own bytes.
fn check(
    place: &FramePlace,
    encode: impl FnOnce(&mut Vec<u8>) -> usize,
) -> (Vec<u8>, Prefix, Fields, Vec<DirectoryEntry>) {
    let mut out = vec![9, 9, 9];
    let len = encode(&mut out);
    assert_eq!(out.len(), 3 + len);
    let frame = out.split_off(3);
    let prefix = Prefix::decode(&frame[..frame.len().min(PREFIX_BYTES_MAX)]).unwrap();
    assert_eq!(prefix.frame_len(), len as u64);
    let header = &frame[..prefix.header_len];
    assert!(verifies(header, seed_of(place.salt, place.epoch, place.offset)));
    let mut directory = Vec::new();
    let fields = decode_fields(header, &prefix, &mut directory).unwrap();
    (frame, prefix, fields, directory)
}

/// Compares the bytes after the checksum, which `check` has verified, and then the checksum.
fn golden(frame: &[u8], checksum: u64, parts: &[&[u8]]) {
    let shown: Vec<String> = frame[8..].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(&frame[8..], parts.concat(), "{}", shown.join(" "));
    let got = u64::from_le_bytes(*frame.first_chunk().unwrap());
    assert_eq!(got, checksum, "checksum {got:#018x}");
}

#[test]
fn golden_batch_of_one_partition() {
    let bytes = b"put k v";
    let (frame, _, fields, directory) = check(&place(), |out| {
        encode_batch(out, &place(), seq(1000), seq(997), &[section(5, 1, bytes)])
    });
    golden(
        &frame,
        0xb143_f20b_f78c_2c0f,
        &[
            &[1],          // kind
            &[16],         // length of the rest
            &[7],          // body
            &[0x80, 0x01], // durable lag 128
            &[0xe8, 0x07], // first sequence 1000
            &[1],          // operations
            &[2],          // gap: 998 and 999 were not logged
            &[5],          // partition
            &section_checksum(bytes).to_le_bytes(),
            bytes,
            &[0; 7], // padding
        ],
    );
    let expected =
        Fields::Batch { first_seq: seq(1000), last_seq: seq(1000), previous_seq: seq(997) };
    assert_eq!(fields, expected);
    assert_eq!(directory.len(), 1);
}

#[test]
fn golden_batch_of_two_partitions() {
    let sections = [section(5, 2, b"ab"), section(300, 1, b"cde")];
    let (frame, _, _, directory) =
        check(&place(), |out| encode_batch(out, &place(), seq(10), seq(9), &sections));
    golden(
        &frame,
        0x58a1_4408_3343_db8e,
        &[
            &[2],          // kind
            &[30],         // length of the rest
            &[5],          // body
            &[0x80, 0x01], // durable lag
            &[10],         // first sequence
            &[3],          // operations
            &[0],          // gap
            &[2],          // sections
            &[5, 2, 2],    // partition, operations, length
            &section_checksum(b"ab").to_le_bytes(),
            &[0xac, 0x02, 1, 3],
            &section_checksum(b"cde").to_le_bytes(),
            b"abcde",
            &[0; 3], // padding
        ],
    );
    let at: Vec<_> = directory.iter().map(|e| (e.start, e.len, e.first_seq.get())).collect();
    assert_eq!(at, [(0, 2, 10), (2, 3, 12)]);
}

#[test]
fn golden_batch_with_a_long_header() {
    let bodies: Vec<[u8; 2]> = (0..11).map(|n| [b'a' + n; 2]).collect();
    let sections: Vec<_> =
        bodies.iter().zip(0..).map(|(body, partition)| section(partition, 1, body)).collect();
    let (frame, prefix, _, directory) =
        check(&place(), |out| encode_batch(out, &place(), seq(10), seq(9), &sections));
    let entries: Vec<u8> = bodies
        .iter()
        .zip(0..)
        .flat_map(|(body, partition)| {
            [&[partition, 1, 2][..], &section_checksum(body).to_le_bytes()].concat()
        })
        .collect();
    golden(
        &frame,
        0xd5f4_292f_4eec_1227,
        &[
            &[7],                                     // kind
            &[0x88, 0x01],                            // length of the rest
            &[22],                                    // body
            &[0x80, 0x01],                            // durable lag
            &0x7a45_f7ad_abeb_4594_u64.to_le_bytes(), // short check
            &[10],                                    // first sequence
            &[11],                                    // operations
            &[0],                                     // gap
            &[11],                                    // sections
            &entries,
            bodies.as_flattened(),
            &[0; 7], // padding
        ],
    );
    assert_eq!(directory.len(), 11);
    // Any damage in the front is noticed without the rest.
    let seed = seed_of(place().salt, place().epoch, place().offset);
    assert!(!prefix.fails_short_check(&frame, seed));
    assert!(prefix.fails_short_check(&frame, seed ^ 1));
    for at in 11..22 {
        let mut bad = frame.clone();
        bad[at] ^= 1;
        let is_refused = Prefix::decode(&bad).map_or(true, |p| p.fails_short_check(&bad, seed));
        assert!(is_refused, "byte {at}");
    }
}

#[test]
fn golden_control_frames() {
    let salt = &place().salt.to_le_bytes();
    let switch = Control::MemtableSwitch { partition: PartitionId(5), memtable: MemtableId(6) };
    type Case = (Control, u64, &'static [u8], &'static [u8], usize);
    let cases: [Case; 4] = [
        (switch, 0x2406_5783_2b3d_195c, &[3, 15], &[5, 6], 7),
        (Control::IdleMarker { manifest_edit: 17 }, 0x3680_46bd_b5d7_30f1, &[4, 14], &[17], 0),
        (Control::CleanClose { manifest_edit: 17 }, 0xc66c_a009_93c7_2dcd, &[5, 14], &[17], 0),
        (Control::EpochStart, 0xbbf8_96fc_839b_24c3, &[6, 13], &[], 1),
    ];
    for (control, checksum, head, fields, padding) in cases {
        let (frame, _, decoded, _) =
            check(&place(), |out| encode_control(out, &place(), seq(1000), control));
        let rest: &[u8] = &[0, 0x80, 0x01, 0xe8, 0x07]; // no body, durable lag, last sequence
        golden(&frame, checksum, &[head, rest, salt, fields, &[0; 8][..padding]]);
        let expected = Fields::Control { last_seq: seq(1000), salt: place().salt, control };
        assert_eq!(decoded, expected);
    }
}

#[test]
fn a_usual_frame_puts_at_most_40_bytes_around_the_operations() {
    // Sequences to 4 * 10^12, bodies to 16 KiB, a lag to 256 MiB, the first 128 partitions.
    let bytes = [7; 16_383];
    for len in [1, 100, 116, 127, 128, 16_383] {
        let far =
            FramePlace { lsn: Lsn(1 << 40), durable: Lsn((1 << 40) - (1 << 28) + 1), ..place() };
        let mut out = Vec::new();
        let sections = [section(127, 100, &bytes[..len])];
        let last = seq((1 << 42) - 1);
        let whole = encode_batch(&mut out, &far, last, seq(last.get() - 1), &sections);
        assert!(whole - len <= 40, "{whole} for {len}");
        assert!(whole <= batch_frame_len_max(&sections));
    }
}

#[test]
fn a_frame_verifies_only_at_its_own_place() {
    let mut out = Vec::new();
    encode_batch(&mut out, &place(), seq(1), seq(0), &[section(1, 1, b"x")]);
    let header = &out[..Prefix::decode(&out).unwrap().header_len];
    let FramePlace { salt, epoch, offset, .. } = place();
    assert!(verifies(header, seed_of(salt, epoch, offset)));
    assert!(!verifies(header, seed_of(salt ^ 1, epoch, offset)));
    assert!(!verifies(header, seed_of(salt, Epoch(4), offset)));
    assert!(!verifies(header, seed_of(salt, epoch, offset + 8)));
}

/// Returns `true` if the header of `frame` decodes; its checksum is not looked at.
fn header_decodes(frame: &[u8]) -> bool {
    let prefix = Prefix::decode(frame).unwrap();
    decode_fields(&frame[..prefix.header_len], &prefix, &mut Vec::new()).is_ok()
}

#[test]
fn a_directory_whose_sums_differ_is_refused() {
    let mut frame = Vec::new();
    let sections = [section(5, 2, b"ab"), section(6, 1, b"cde")];
    encode_batch(&mut frame, &place(), seq(10), seq(9), &sections);
    assert!(header_decodes(&frame));
    // Body length, operations, gap, sections; then of the second: operations, length.
    for (at, good, bad) in [
        (10, 5, [4, 6, 0]),
        (14, 3, [2, 4, 0]),
        (15, 0, [10, 11, 127]),
        (16, 2, [1, 3, 0]),
        (29, 1, [2, 0, 127]),
        (30, 3, [2, 4, 0]),
    ] {
        assert_eq!(frame[at], good);
        for byte in bad {
            frame[at] = byte;
            assert!(!header_decodes(&frame), "byte {at} = {byte}");
        }
        frame[at] = good;
    }
    // A section without operations, though the sums agree.
    frame[14] = 2;
    frame[29] = 0;
    assert!(!header_decodes(&frame));
}

#[test]
fn sequences_beyond_56_bits_are_refused() {
    let mut frame = Vec::new();
    encode_batch(
        &mut frame,
        &place(),
        SeqNo::MAX,
        seq(SeqNo::MAX.get() - 1),
        &[section(1, 1, b"x")],
    );
    assert!(header_decodes(&frame));
    // The byte after the checksum, kind, two lengths, the lag and the sequence: operations.
    let at = 8 + 1 + 1 + 1 + 2 + 8;
    assert_eq!(frame[at], 1);
    frame[at] = 2;
    assert!(!header_decodes(&frame));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn batches_read_back_and_no_flip_of_a_header_passes(
        first in 1u64..(1 << 50), back in 1u64..1000, lsn in any::<u32>(), lag in any::<u32>(),
        parts in prop::collection::vec(
            (any::<u32>(), 1u32.., prop::collection::vec(any::<u8>(), 0..90)), 1..6,
        ),
        bit in any::<prop::sample::Index>(),
    ) {
        let place = FramePlace {
            lsn: Lsn(u64::from(lsn)),
            durable: Lsn(u64::from(lsn.saturating_sub(lag))),
            ..place()
        };
        let sections: Vec<_> = parts.iter().map(|(p, n, bytes)| section(*p, *n, bytes)).collect();
        let previous = seq(first.saturating_sub(back));
        let (mut frame, prefix, fields, directory) =
            check(&place, |out| encode_batch(out, &place, seq(first), previous, &sections));
        prop_assert!(frame.len() <= batch_frame_len_max(&sections));
        let seed = seed_of(place.salt, place.epoch, place.offset);
        prop_assert!(!prefix.fails_short_check(&frame, seed) && !prefix.lacks_short_check());
        prop_assert_eq!(prefix.lag, place.lsn.0 - place.durable.0);
        let operations: u64 = sections.iter().map(|s| u64::from(s.operations)).sum();
        let last_seq = seq(first + operations - 1);
        let expected =
            Fields::Batch { first_seq: seq(first), last_seq, previous_seq: previous };
        prop_assert_eq!(fields, expected);
        prop_assert_eq!(directory.len(), sections.len());
        for (entry, section) in directory.iter().zip(&sections) {
            let start = prefix.header_len + entry.start as usize;
            prop_assert_eq!(&frame[start..start + entry.len], section.bytes);
            prop_assert_eq!(entry.partition, section.partition);
            prop_assert_eq!(entry.operations, section.operations);
            prop_assert_eq!(entry.checksum, section_checksum(section.bytes));
        }
        let bit = bit.index(prefix.header_len * 8);
        frame[bit / 8] ^= 1 << (bit % 8);
        let passes = Prefix::decode(&frame).is_ok_and(|prefix| {
            frame.get(..prefix.header_len).is_some_and(|header| {
                verifies(header, seed_of(place.salt, place.epoch, place.offset))
            })
        });
        prop_assert!(!passes);
    }

    #[test]
    fn no_header_panics(
        mut bytes in prop::collection::vec(any::<u8>(), 0..120),
        kind in 0u8..9,
        rest in 0u8..60,
    ) {
        if bytes.len() > 10 {
            bytes[8] = kind;
            bytes[9] = rest;
        }
        if let Ok(prefix) = Prefix::decode(&bytes)
            && let Some(header) = bytes.get(..prefix.header_len)
        {
            let _ = decode_fields(header, &prefix, &mut Vec::new());
        }
    }
}
