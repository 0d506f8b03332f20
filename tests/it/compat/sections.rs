//! A log whose sealed segments have indexes of sections: `tests/fixtures/sections/`, of the first
//! version that wrote them. Nothing in it is flushed; its writer died.
//!
//! `BLESS_FIXTURE=sections cargo test fixture_with_indexes` writes it again. Do this only before
//! its format is released.

use lsm_core::fs::Fs;
use lsm_core::internals::wal::{SectionIndex, SegmentHeader};

use super::*;

/// The writes of the fixture: partition, key and value.
fn writes() -> Vec<Write> {
    let names = ["left", "right", "seldom"];
    let writes = (0..150_u8).map(|n| (names[usize::from(n) % 2], n, "sand ".repeat(10)));
    let seldom = (0..5_u8).map(|n| (names[2], n, n.to_string()));
    writes.chain(seldom).collect()
}

fn write_sections() -> MemFs {
    let fs = MemFs::new();
    let db = builder(&fs).open().unwrap();
    write_all(&db, &writes());
    db.wait_idle().unwrap();
    fs.crash_clone(CrashOutcome::Everything, &mut || 0)
}

#[test]
fn a_fixture_with_indexes_of_sections_is_followed_and_opened() {
    fixtures::bless("sections", write_sections);
    let fs = fixtures::in_memory("sections");
    let mut groups = Vec::new();
    for path in files(&fs, FileKind::Wal) {
        let file = fs.open_read(&path).unwrap();
        let bytes = fs.read_raw(&path).unwrap();
        let end = bytes.windows(12).position(|window| window == b"SILTSECTIONS");
        let header = SegmentHeader::read(&*file, &path).unwrap();
        if let Some((end, header)) = end.zip(header) {
            let index = SectionIndex::read(&*file, &header, end as u64).expect("it is whole");
            groups.push(index.groups.len());
        }
    }
    assert_eq!(groups, [2, 2, 2]);
    check_followed_and_opened(&fs, &writes());
}
