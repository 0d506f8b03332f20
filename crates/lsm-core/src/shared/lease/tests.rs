//! Records, bytes and ends of leases.

use super::*;
use crate::fs::MemFs;

fn folder() -> Arc<dyn Fs> {
    let fs = MemFs::new();
    fs.create_dir("/db".as_ref()).unwrap();
    Arc::new(fs)
}

fn take(fs: &Arc<dyn Fs>, from: u64) -> Lease {
    let mut id = from;
    let random = Box::new(move || {
        id += 1;
        id
    });
    Lease::take(fs.clone(), "/db".as_ref(), random).unwrap()
}

fn held(fs: &Arc<dyn Fs>) -> Vec<u64> {
    let leases = held_leases(&**fs, "/db".as_ref()).unwrap();
    leases.iter().map(|lease| lease.edit).collect()
}

fn advance(lease: &mut Lease, edit: u64) {
    lease.advance(edit, Duration::ZERO).unwrap();
}

#[test]
fn a_lease_holds_everything_until_it_names_an_edit() {
    let fs = folder();
    let mut lease = take(&fs, 0);
    assert_eq!(held(&fs), [0]);
    advance(&mut lease, 7);
    advance(&mut lease, 5);
    assert_eq!(held(&fs), [7], "edits only grow");
    let other = take(&fs, 100);
    assert_eq!(held(&fs), [7, 0]);
    drop((lease, other));
    assert!(held(&fs).is_empty() && fs.list("/db".as_ref(), "").unwrap().is_empty());
}

#[test]
fn a_long_lease_goes_on_under_another_name() {
    let fs = folder();
    let mut lease = take(&fs, 0);
    for edit in 1..10_000 {
        advance(&mut lease, edit);
    }
    assert_eq!(held(&fs), [9_999]);
    let files = fs.list("/db".as_ref(), "").unwrap();
    assert!(files.len() == 1 && files[0].len <= LEASE_BYTES_MAX + 16, "{files:?}");
}

#[test]
fn a_dead_secondary_holds_nothing_and_its_lease_goes() {
    let fs = folder();
    let mut lease = take(&fs, 0);
    advance(&mut lease, 3);
    // As a process that is killed: the file stays, the lock does not.
    let path = lease.held.path.clone();
    let bytes = read_lease(&*fs.open_read(&path).unwrap()).unwrap();
    drop(lease);
    fs.open_append(&path, AppendMode::IfAbsent).unwrap().append(&bytes).unwrap();
    assert!(held(&fs).is_empty() && fs.list("/db".as_ref(), "").unwrap().is_empty());
}

#[test]
fn whatever_the_bytes_a_lease_never_holds_less_than_its_last_whole_record() {
    let mut bytes = header(1, Some(7));
    for (number, edit) in [4_u64, 9, 30].into_iter().enumerate() {
        bytes.extend(record(edit, (HEADER_BYTES + number * RECORD_BYTES) as u64));
    }
    let mut last = 0;
    for len in 0..=bytes.len() {
        let edit = edit_in(&bytes[..len]);
        assert!(edit >= last && [0, 4, 9, 30].contains(&edit), "{edit} at {len}");
        last = edit;
    }
    assert_eq!(last, 30);
    for at in HEADER_BYTES..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        assert!(edit_in(&flipped) < 30, "byte {at}");
    }
}

#[test]
fn golden_lease() {
    let mut bytes = header(0x1234, Some(0x0102_0304_0506_0708));
    for edit in [17, 0x1_0000] {
        bytes.extend(record(edit, bytes.len() as u64));
    }
    let parts: [&[u8]; 9] = [
        b"SILTREAD",                              // magic
        &[1, 0, 0, 0],                            // version
        &[0x34, 0x12, 0, 0],                      // process
        &[8, 7, 6, 5, 4, 3, 2, 1],                // machine run
        &[82, 101, 138, 73, 146, 12, 127, 82],    // checksum
        &[17, 0, 0, 0, 0, 0, 0, 0],               // edit
        &[195, 246, 206, 136, 49, 193, 186, 236], // checksum, seeded with 32
        &[0, 0, 1, 0, 0, 0, 0, 0],                // edit
        &[181, 147, 120, 32, 38, 102, 233, 90],   // checksum, seeded with 48
    ];
    assert_eq!(bytes, parts.concat());
    assert_eq!(edit_in(&bytes), 0x1_0000);
    let owner = owner_in(&bytes).unwrap();
    assert_eq!((owner.process, owner.machine_run), (0x1234, 0x0102_0304_0506_0708));
}
