//! `ulimit -v`: memory that can be neither allocated nor mapped. A call returns an error, or the process ends as Rust
//! ends one without memory; what was acknowledged is there.

use std::os::unix::process::ExitStatusExt as _;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use siltstone::{LargeValueOptions, PartitionOptions};

use super::*;

/// The room for a child beyond what it has when it begins, in KiB.
const ROOM: &str = "SILTSTONE_PROCESS_ROOM";
const ROOMS: [u64; 7] = [0, 256, 1 << 10, 4 << 10, 40 << 10, 80 << 10, 400 << 10];

/// The bytes of the address space that this process has.
fn address_space() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

/// Limits the address space to what there is, and `bytes` more; `None` lifts the limit.
fn limit(bytes: Option<u64>) {
    let maximum = getrlimit(Resource::As).maximum;
    let current = bytes.map(|bytes| address_space() + bytes).or(maximum);
    setrlimit(Resource::As, Rlimit { current, maximum }).unwrap();
}

/// Opens the database, writes and reads while the program takes memory itself, until a call fails.
fn use_up(folder: &Path) -> siltstone::Result<()> {
    let db = open(folder)?;
    let words = db.partition("words")?;
    let mut held = Vec::new();
    for number in 1..=WRITES {
        write(&words, number)?;
        held.push(vec![number as u8; 400_000]);
        words.get(number.to_be_bytes())?;
        if number % 50 == 0 {
            words.compact(..)?;
        }
    }
    drop((held, words));
    db.close()
}

#[test]
fn child_with_little_memory() {
    let Some(folder) = folder_of_child() else { return };
    let room: u64 = std::env::var(ROOM).unwrap().parse().unwrap();
    limit(Some(room << 10));
    let done = use_up(&folder);
    limit(None);
    match done {
        Ok(()) => println!("all done"),
        Err(error) => println!("refused: {error}"),
    }
}

#[test]
fn a_process_without_memory_gets_an_error_or_ends_and_loses_nothing() {
    let mut endings = Vec::new();
    for room in ROOMS {
        let dir = tempfile::tempdir().unwrap();
        let mut child = child("", "memory::child_with_little_memory", dir.path());
        let done = child.env(ROOM, room.to_string()).output().unwrap();
        let said = [&done.stdout[..], &done.stderr[..]].map(String::from_utf8_lossy).join("\n");
        let ending = if said.contains("all done") {
            "done"
        } else if said.contains("refused: ") {
            "refused"
        } else if said.contains("memory allocation of") {
            "ended"
        } else {
            panic!("with room for {room} KiB: {}\n{said}", done.status);
        };
        println!("{room} KiB: {ending}, {}", done.status);
        assert_eq!(done.status.success(), ending != "ended", "{said}");
        if ending == "ended" {
            assert_eq!(done.status.signal(), Some(6), "{room} KiB: an abort\n{said}");
        }
        endings.push(ending);
        // Nothing is there to be opened if the first call was refused.
        check(dir.path(), last_ack(&done.stdout[..]));
    }
    for ending in ["done", "refused", "ended"] {
        assert!(endings.contains(&ending), "none was {ending}: {endings:?}");
    }
}

const VALUE_BYTES: usize = 2 << 20;

#[test]
fn child_that_cannot_map() {
    let Some(folder) = folder_of_child() else { return };
    let db = Db::open(folder).unwrap();
    let large = PartitionOptions::new().large_values(LargeValueOptions::default());
    let large = db.partition_with("large", large).unwrap();
    for number in 0..20_u8 {
        large.put([number], vec![number; VALUE_BYTES]).unwrap();
    }
    limit(Some(16 << 20));
    let copied = large.get_ref([7]).unwrap().unwrap();
    assert!(copied[..] == vec![7; VALUE_BYTES][..]);
    assert!(!copied.is_mapped());
    limit(None);
    let mapped = large.get_ref([8]).unwrap().unwrap();
    assert!(mapped.is_mapped() && mapped[..] == vec![8; VALUE_BYTES][..]);
    drop((copied, mapped, large));
    db.close().unwrap();
}

#[test]
fn a_value_that_cannot_be_mapped_is_copied() {
    let dir = tempfile::tempdir().unwrap();
    let done = child("", "memory::child_that_cannot_map", dir.path()).output().unwrap();
    assert_passed(&done);
}
