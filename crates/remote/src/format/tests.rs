//! Journal objects and bases, printed against the table of their bytes; and hostile bytes with a right checksum.

use lsm_core::codec::SUM_BYTES;
use testkit::{Rng, annotate, assert_golden};

use super::*;
use crate::journal::{decode_boundary, encode_boundary};
use crate::lease::BucketLease;
use crate::takeover::TakeoverRequest;

fn name(kind: &str) -> String {
    format!("000000000000002a-00000003.{kind}")
}

fn object() -> JournalObject {
    let name = name("wal");
    let table = self::name("sst");
    let piece =
        ObjectPiece { offset: 0, len: 4096, object: format!("table/{table}/0").into(), at: 0 };
    let changes = vec![
        StoredChange::Create { name: name.clone() },
        StoredChange::Extend { name: name.clone(), len: 65_536 },
        StoredChange::Append { name: name.clone(), offset: 0, bytes: b"frame".to_vec() },
        StoredChange::Create { name: table.clone() },
        StoredChange::Piece { name: table, piece },
        StoredChange::Delete { name },
    ];
    let claimant = 0xc1a1;
    let is_claim = false;
    let lease = Duration::ZERO;
    JournalObject { number: 2, claimant, put_id: 29, is_claim, ack: Ack::Stored, lease, changes }
}

fn claim() -> JournalObject {
    JournalObject { number: 1, is_claim: true, changes: Vec::new(), ..object() }
}

fn claim_with_lease() -> JournalObject {
    JournalObject { lease: Duration::from_secs(2), ..claim() }
}

/// The state after `objects`, but for the last deletion; with a dropped object and a fenced writer.
fn folder() -> Folder {
    let mut second = object();
    second.changes.pop();
    let mut folder = Folder::default();
    folder.take_in(&claim()).unwrap();
    folder.take_in(&second).unwrap();
    let object = format!("table/{}/1", name("sst")).into();
    folder.dropped.push(DroppedObject { number: 2, object });
    folder.fenced.push(FencedWriter { claimant: 0xc1a0, number: 1 });
    folder
}

/// Replaces the checksum by that of the bytes.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.len() - SUM_BYTES);
    put_sum(&mut bytes);
    bytes
}

/// Compares an object with a golden: the fields begin at `starts`, and a checksum follows the last one.
fn check_golden(file: &str, bytes: &[u8], starts: &[usize], names: &[&str]) {
    let end = bytes.len() - SUM_BYTES;
    let ends = starts.iter().skip(1).chain([&end]);
    let mut notes: Vec<_> =
        starts.iter().zip(ends).zip(names).map(|((from, to), name)| (*from..*to, *name)).collect();
    notes.push((end..bytes.len(), "checksum"));
    assert_golden(file, &annotate(bytes, &notes));
}

#[test]
fn objects_are_as_the_table_says() {
    let journal = [
        "magic",
        "format version",
        "kind",
        "number",
        "claimant",
        "put id",
        "acknowledgement",
        "changes",
    ];
    let base = [
        "magic",
        "format version",
        "acknowledgement",
        "number",
        "claimant",
        "files, then dropped and fenced",
    ];
    check_golden("claim.txt", &claim().encode(), &[0, 8, 12, 16, 24, 40, 56, 60], &journal);
    check_golden("journal.txt", &object().encode(), &[0, 8, 12, 16, 24, 40, 56, 60], &journal);
    check_golden("base.txt", &encode_base(&folder()), &[0, 8, 12, 16, 24, 40], &base);
    assert_eq!(JournalObject::decode(2, &object().encode()).unwrap(), object());
    let base = decode_base(2, &encode_base(&folder())).unwrap();
    assert_eq!(encode_base(&base), encode_base(&folder()));
}

#[test]
fn claims_and_bases_with_a_lease_are_as_the_table_says() {
    let journal = [
        "magic",
        "format version",
        "kind",
        "number",
        "claimant",
        "put id",
        "acknowledgement",
        "lease",
        "changes",
    ];
    let base =
        ["magic", "format version", "acknowledgement", "number", "claimant", "lease", "files"];
    let claim = claim_with_lease();
    let starts = [0, 8, 12, 16, 24, 40, 56, 60, 64];
    check_golden("claim-with-lease.txt", &claim.encode(), &starts, &journal);
    assert_eq!(claim.encode().len() as u64, CLAIM_BYTES);
    assert_eq!(JournalObject::decode(1, &claim.encode()).unwrap(), claim);
    let mut folder = Folder::default();
    folder.take_in(&claim).unwrap();
    let bytes = encode_base(&folder);
    check_golden("base-with-lease.txt", &bytes, &[0, 8, 12, 16, 24, 40, 44], &base);
    let decoded = decode_base(1, &bytes).unwrap();
    assert_eq!((decoded.lease, decoded.wait), (claim.lease, claim.lease));
    // A lease for which no one would wait, one of no time, and one in changes.
    for lease in [Duration::from_millis(60_001), Duration::from_micros(1)] {
        let claim = JournalObject { lease, ..claim_with_lease() };
        let error = JournalObject::decode(1, &claim.encode()).unwrap_err().to_string();
        assert!(error.contains("a read lease of no time"), "{error}");
        folder.lease = lease;
        decode_base(1, &encode_base(&folder)).map(|_| ()).unwrap_err();
    }
    let changes = JournalObject { lease: Duration::from_secs(2), ..object() };
    let error = JournalObject::decode(2, &changes.encode()).unwrap_err().to_string();
    assert!(error.contains("no claim"), "{error}");
}

fn claim_of(number: u64, lease: Duration) -> JournalObject {
    JournalObject { number, claimant: number.into(), lease, ..claim() }
}

/// A claimant waits for each writer that may still hold a lease: also for one that a dead claimant has fenced.
#[test]
fn a_claim_waits_for_the_leases_of_all_writers_since_the_last_change() {
    let second = Duration::from_secs(1);
    let mut folder = Folder::default();
    folder.take_in(&claim_of(1, 9 * second)).unwrap();
    folder.take_in(&claim_of(2, Duration::ZERO)).unwrap();
    folder.take_in(&claim_of(3, 2 * second)).unwrap();
    assert_eq!((folder.lease, folder.wait), (2 * second, 9 * second));
    let change = StoredChange::Create { name: name("wal") };
    let changes = JournalObject { number: 4, claimant: 3, changes: vec![change], ..object() };
    folder.take_in(&changes).unwrap();
    assert_eq!((folder.lease, folder.wait), (2 * second, 2 * second));
}

#[test]
fn boundaries_leases_and_requests_are_as_the_tables_say() {
    let boundary = encode_boundary(3, 500, 0xc1a1);
    let names = ["magic", "format version", "zero", "index", "first", "claimant"];
    check_golden("boundary.txt", &boundary, &[0, 8, 12, 16, 24, 32], &names);
    assert_eq!(decode_boundary(3, &boundary).unwrap(), 500);
    decode_boundary(4, &boundary).unwrap_err();
    let mut lease = BucketLease::new(0x1ea5e, 42, std::time::Duration::from_secs(60));
    lease.objects.push(format!("table/{}/0", name("sst")).into());
    let names = ["magic", "format version", "seconds", "number", "id", "objects"];
    check_golden("lease.txt", &lease.encode(), &[0, 8, 12, 16, 24, 40], &names);
    assert_eq!(BucketLease::decode("lease/1", &lease.encode()).unwrap(), lease);
    let request = TakeoverRequest { claimant: 0xc1a1 };
    let names = ["magic", "format version", "zero", "claimant"];
    check_golden("request.txt", &request.encode(), &[0, 8, 12, 16], &names);
    assert_eq!(TakeoverRequest::decode(&request.encode()).unwrap(), request);
    for bytes in [boundary, lease.encode(), request.encode()] {
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 4;
            decode_boundary(3, &changed).unwrap_err();
            BucketLease::decode("lease/1", &changed).unwrap_err();
            TakeoverRequest::decode(&changed).unwrap_err();
        }
    }
}

#[test]
fn a_changed_bit_is_damage_at_an_offset() {
    let bytes = object().encode();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 4;
        let error = JournalObject::decode(2, &changed).unwrap_err();
        assert!(error.damage().unwrap().offset.unwrap() < bytes.len() as u64);
    }
    JournalObject::decode(3, &bytes).unwrap_err();
}

#[test]
fn hostile_bytes_with_a_checksum_are_refused_or_make_a_sound_folder() {
    let mut rng = Rng::from_env_or(31);
    let bytes = [object().encode(), claim_with_lease().encode(), encode_base(&folder())];
    for _ in 0..20_000 {
        let mut changed = rng.pick(&bytes).clone();
        for _ in 0..=rng.below(3) {
            let at = rng.index(changed.len());
            changed[at] = *rng.pick(&[0, 1, 0x7f, 0x80, 0xff, b'.', b'/', 7]);
        }
        if rng.chance(1, 4) {
            changed.truncate(rng.range(40..changed.len() as u64) as usize);
        }
        let changed = sealed(changed);
        if let Ok(object) = JournalObject::decode(2, &changed) {
            let mut folder = Folder::default();
            folder.take_in(&claim()).unwrap();
            let _ = folder.take_in(&object);
            assert!(folder.files.values().all(|file| file.read().is_sound()));
        }
        if let Ok(folder) = decode_base(2, &changed) {
            assert!(folder.files.keys().all(|name| !name.contains('/')));
        }
    }
}

#[test]
fn a_name_that_leaves_the_folder_is_refused() {
    for bad in ["../x.wal", "a/b.wal", ".wal", "LOCK", "x.txt", "", "remote-claim-0", "x.wal\0"] {
        let change = StoredChange::Create { name: bad.to_owned() };
        let object = JournalObject { changes: vec![change], ..object() };
        let error = JournalObject::decode(2, &object.encode()).unwrap_err();
        assert!(error.to_string().contains("no file that is shipped"), "{bad:?}: {error}");
    }
    for bad in ["journal/1", "table/../x", "/table/x", "part//x"] {
        let piece = ObjectPiece { offset: 0, len: 1, object: bad.into(), at: 0 };
        let change = StoredChange::Piece { name: name("sst"), piece };
        let object = JournalObject { changes: vec![change], ..object() };
        JournalObject::decode(2, &object.encode()).unwrap_err();
    }
}

#[test]
fn changes_that_do_not_fit_are_damage() {
    let wal = name("wal");
    for change in [
        StoredChange::Create { name: wal.clone() },
        StoredChange::Append { name: wal.clone(), offset: 6, bytes: vec![1] },
        StoredChange::Append { name: name("manifest"), offset: 0, bytes: vec![1] },
        StoredChange::Extend { name: wal.clone(), len: u64::MAX },
    ] {
        let object = JournalObject { number: 3, changes: vec![change], ..object() };
        let error = folder().take_in(&object).unwrap_err();
        assert!(error.to_string().contains("/00000000000000000003"), "{error}");
        // Also after changes that fit: the folder is as before.
        let mut changes = vec![
            StoredChange::Delete { name: name("sst") },
            StoredChange::Extend { name: wal.clone(), len: 70_000 },
        ];
        changes.extend(object.changes.iter().cloned());
        let object = JournalObject { changes, ..object };
        let mut folder = folder();
        let before = encode_base(&folder);
        folder.take_in(&object).unwrap_err();
        assert_eq!(encode_base(&folder), before);
    }
    let stranger = JournalObject { number: 3, claimant: 7, changes: Vec::new(), ..object() };
    folder().take_in(&stranger).unwrap_err();
    let skipped = JournalObject { number: 4, ..object() };
    folder().take_in(&skipped).unwrap_err();
}
