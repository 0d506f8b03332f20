//! The bytes of records and shared files against the tables in `format.rs`.

use std::path::Path;

use super::format::*;
use crate::error::ErrorKind;
use crate::fs::names::{FileKind, FileName};
use crate::types::{DbId, Epoch, FileNo, SeqNo};
use crate::version::DbVersion;

fn table() -> FileName {
    FileName::new(FileKind::Sst, FileNo(0x2a), Epoch(3))
}

fn record() -> BackupRecord {
    let db = DbId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
    let mut version = DbVersion::empty(db);
    version.edit_number = 9;
    let name = piece_name(database_mark(db), table(), 0xabc, 0, 5);
    let pieces = vec![SharedPiece { name, len: 5 }];
    let files = vec![StoredFile { name: table(), pieces }];
    let seq = SeqNo::new(77).unwrap();
    BackupRecord { id: 7, time: 1_700_000_000, seq, new_bytes: 5, version, files }
}

#[test]
fn a_record_has_the_bytes_of_the_table() {
    let record = record();
    let bytes = record.encode();
    assert_eq!(&bytes[..8], b"SILTBACK");
    assert_eq!(bytes[8..16], [1, 0, 0, 0, 7, 0, 0, 0]);
    assert_eq!(bytes[16..32], record.version.db_id.0.to_le_bytes());
    assert_eq!(bytes[32..40], 1_700_000_000_u64.to_le_bytes());
    assert_eq!((bytes[40], bytes[48], bytes[56]), (77, 9, 5));
    let path = Path::new("backup-0000000007");
    let read = BackupRecord::decode(&bytes, 7, path).unwrap();
    assert_eq!((read.files, read.version), (record.files, record.version));
    assert_eq!((read.seq, read.time, read.new_bytes), (record.seq, record.time, 5));
    assert!(BackupRecord::decode(&bytes, 8, path).unwrap_err().is_corruption(), "another number");
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert!(BackupRecord::decode(&damaged, 7, path).unwrap_err().is_corruption(), "at {at}");
        assert!(
            BackupRecord::decode(&bytes[..at], 7, path).unwrap_err().is_corruption(),
            "through {at}"
        );
    }
}

#[test]
fn a_record_of_newer_code_is_unsupported() {
    let mut bytes = record().encode();
    bytes[8] = 2;
    let covered = bytes.len() - 8;
    let sum = crate::codec::checksum64(&bytes[..covered]).to_le_bytes();
    bytes[covered..].copy_from_slice(&sum);
    let refused = BackupRecord::decode(&bytes, 7, Path::new("r")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
}

#[test]
fn a_shared_file_verifies_under_its_name_alone() {
    let name = piece_name(1, table(), 2, 0, 5);
    assert!(is_piece(&name) && is_piece(&part_name(1, b"hello")));
    let mut bytes = begin_piece();
    bytes.extend_from_slice(b"hello");
    seal_piece(&name, &mut bytes);
    assert_eq!((&bytes[..8], bytes[8], bytes[16]), (&b"SILTPIEC"[..], 1, 5));
    let path = Path::new("piece");
    let piece = SharedPiece { name, len: 5 };
    assert_eq!(open_piece(&piece, &bytes, path).unwrap(), b"hello");
    let other = SharedPiece { name: piece_name(1, table(), 3, 0, 5), len: 5 };
    assert!(open_piece(&other, &bytes, path).unwrap_err().is_corruption());
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(open_piece(&piece, &damaged, path).unwrap_err().is_corruption(), "at {at}");
        assert!(open_piece(&piece, &bytes[..at], path).unwrap_err().is_corruption());
    }
}

#[test]
fn no_name_from_a_record_leaves_the_folder() {
    for name in ["../x.sst", "a/b.sst", "..", "", "/etc/passwd", "0123456789abcdef0.txt", "LOCK"] {
        assert!(!is_piece(name), "{name}");
    }
    assert_eq!(id_of_record("backup-0000000007"), Some(7));
    for name in ["backup-7", "backup-00000000070", "backup-+000000007", "backup-9999999999"] {
        assert_eq!(id_of_record(name), None, "{name}");
    }
}
