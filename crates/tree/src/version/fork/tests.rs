//! Bytes of claims and forks.

use super::*;
use crate::fs::{AppendMode, MemFs};
use crate::types::SeqNo;
use crate::version::LogCut;

const DIR: &str = "/db";

fn fork() -> Fork {
    let mut version = DbVersion::empty(DbId(0x0123_4567_89ab_cdef));
    version.epoch = Epoch(2);
    version.edit_number = 7;
    version.next_file = FileNo(9);
    let last_seq = SeqNo::new(40).unwrap();
    version.last_seq = last_seq;
    version.log_cut = Some(LogCut { segment: FileNo(3), offset: 512, last_seq });
    Fork {
        claim: Epoch(3),
        begins: Epoch(3),
        version,
        generation: FileName::new(FileKind::Manifest, FileNo(5), Epoch(2)),
        cut: Some(LogPlace { segment: FileNo(8), offset: 4096 }),
        has_derived_salts: true,
    }
}

const GOLDEN_CLAIM: [&str; 3] =
    ["53494c54434c41490100000003000000", "efcdab89674523010000000000000000", "80a5be57e5e08d31"];
const GOLDEN_FORK: [&str; 7] = [
    "53494c54464f524b0100000003000000",
    "efcdab89674523010000000000000000",
    "03000000030000000800000000000000",
    "00100000000000000500000000000000",
    "02000000100000000700000000000000",
    "915ef95e59ddb2a8b48133576545c814",
    "120502038004281801091a01281c0100",
];

fn hex(bytes: &[u8]) -> Vec<String> {
    bytes.chunks(16).map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect()).collect()
}

#[test]
fn golden_bytes_of_a_claim_and_a_fork() {
    let claim = hex(&claim_bytes(DbId(0x0123_4567_89ab_cdef), Epoch(3)));
    assert_eq!(claim, GOLDEN_CLAIM);
    assert_eq!(hex(&fork().encode().unwrap()), GOLDEN_FORK);
}

#[test]
fn a_fork_reads_back_as_it_was() {
    let written = fork();
    let bytes = written.encode().unwrap();
    let read = Fork::decode(&bytes, Epoch(3), Path::new("f")).unwrap();
    assert_eq!((read.begins, read.cut), (written.begins, written.cut));
    assert_eq!((read.generation, read.has_derived_salts), (written.generation, true));
    let version = read.version;
    assert_eq!((version.epoch, version.edit_number), (Epoch(2), 7));
    assert_eq!((version.log_cut, version.next_file), (written.version.log_cut, FileNo(9)));
    let without = Fork { cut: None, has_derived_salts: false, ..written };
    let read = Fork::decode(&without.encode().unwrap(), Epoch(3), Path::new("f")).unwrap();
    assert_eq!((read.cut, read.has_derived_salts), (None, false));
}

#[test]
fn any_damaged_byte_is_found() {
    let bytes = fork().encode().unwrap();
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 1 << (at % 8);
        let refused = Fork::decode(&bad, Epoch(3), Path::new("f")).unwrap_err();
        assert!(refused.is_corruption(), "byte {at}: {refused}");
        let refused = Fork::decode(&bytes[..at], Epoch(3), Path::new("f")).unwrap_err();
        assert!(refused.is_corruption(), "length {at}: {refused}");
    }
    assert!(Fork::decode(&bytes, Epoch(4), Path::new("f")).unwrap_err().is_corruption());
}

/// A claim with one byte changed, and a checksum that fits.
fn check_refused(at: usize, byte: u8, kind: ErrorKind) {
    let fs = MemFs::new();
    fs.create_dir(DIR.as_ref()).unwrap();
    let mut bytes = claim_bytes(DbId(7), Epoch(3));
    bytes[at] = byte;
    let sum = checksum64(&bytes[..32]);
    bytes.splice(32.., sum.to_le_bytes());
    let path = Path::new(DIR).join(names::claim(Epoch(3)));
    fs.open_append(&path, AppendMode::IfAbsent).unwrap().append(&bytes).unwrap();
    let refused = check_claim(&fs, DIR.as_ref(), DbId(7), Epoch(3)).unwrap_err();
    assert_eq!(refused.kind(), kind, "{refused}");
}

#[test]
fn a_claim_of_another_database_epoch_or_version_is_refused() {
    check_refused(16, 8, ErrorKind::Corruption);
    check_refused(12, 4, ErrorKind::Corruption);
    check_refused(0, b'X', ErrorKind::Corruption);
    check_refused(8, 2, ErrorKind::Unsupported);
}
