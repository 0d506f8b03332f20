//! Descriptions of exports: round trips, and the reported damage.

use proptest::prelude::*;

use super::*;
use crate::types::{EntryKind, Epoch, FileNo, InternalKey, Trailer};
use crate::version::Bounds;

fn example() -> ExportDescription {
    let key = |user: &str, n| InternalKey {
        user: user.as_bytes().into(),
        trailer: Trailer::new(SeqNo::new(n).unwrap(), EntryKind::Value),
    };
    let table = SstMeta {
        file: FileNo(0x21),
        epoch: Epoch(3),
        bytes: 300,
        hash: 0x0123_4567_89ab_cdef_0011_2233_4455_6677,
        smallest: key("a", 5),
        largest: key("m", 4),
        bounds: Bounds::INCLUSIVE,
        min_seq: SeqNo::new(4).unwrap(),
        max_seq: SeqNo::new(9).unwrap(),
        entries: 7,
        tombstones: 0,
        hidden: 0,
        global_seq: None,
        foreign: None,
        compression: None,
        kept: [].into(),
        expiries: None,
        written_at: None,
    };
    ExportDescription {
        db_id: DbId(0xd0),
        partition: "users".to_owned(),
        seq: SeqNo::new(300).unwrap(),
        options: PartitionOptions::default(),
        hooks: Vec::new(),
        tables: vec![table],
    }
}

fn decode(bytes: &[u8]) -> Result<ExportDescription> {
    ExportDescription::decode(bytes, Path::new("EXPORT"))
}

#[test]
fn the_bytes_are_those_of_the_table_above() {
    let bytes = example().encode();
    let text: Vec<String> = bytes
        .chunks(16)
        .map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect())
        .collect();
    assert_eq!(text, GOLDEN.split_whitespace().collect::<Vec<_>>(), "\n{}", text.join("\n"));
    assert_eq!(decode(&bytes).unwrap(), example());
}

/// Magic, version and checksum id; features; database id from 40 on, length at 56, header
/// checksum at 64; then name, sequence, options, hooks, tables and the body checksum.
const GOLDEN: &str = "
    53494c54455850540100000001000000
    00000000000000000000000000000000
    0000000000000000d000000000000000
    00000000000000005f00000000000000
    aaa122cde488aba5057573657273ac02
    200201010401010602802008010a0a04
    808080200c01040e0580808080011001
    0a010001d17b5340cfe660017949755d
    b808d677222103ac0277665544332211
    00efcdab896745230101610501016d04
    01000409070000275b7a2536fe2883";

#[test]
fn every_cut_and_every_flipped_bit_is_refused() {
    let bytes = example().encode();
    for len in 0..bytes.len() {
        assert!(decode(&bytes[..len]).unwrap_err().is_corruption());
    }
    for at in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[at / 8] ^= 1 << (at % 8);
        assert!(decode(&bytes).unwrap_err().is_corruption());
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(decode(&longer).unwrap_err().is_corruption());
}

proptest! {
    #[test]
    fn lies_under_right_checksums_end_in_an_error_or_a_description(
        at in any::<prop::sample::Index>(),
        byte: u8,
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = example().encode();
        bytes.truncate(bytes.len() - 8);
        let body = HEADER_BYTES..bytes.len();
        let at = body.start + at.index(body.len());
        bytes[at] = byte;
        bytes.truncate(body.start + cut.index(2 * body.len()).min(body.len()));
        let len = (bytes.len() - HEADER_BYTES) as u64;
        bytes[56..64].copy_from_slice(&len.to_le_bytes());
        let header = checksum64(&bytes[..64]);
        bytes[64..72].copy_from_slice(&header.to_le_bytes());
        let checksum = checksum64_seeded(&bytes[HEADER_BYTES..], header);
        put_u64(&mut bytes, checksum);
        if let Ok(description) = decode(&bytes) {
            prop_assert_eq!(decode(&description.encode()).unwrap(), description);
        }
    }
}
