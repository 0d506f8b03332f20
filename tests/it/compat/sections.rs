//! A log whose sealed segments have indexes of their sections: `tests/fixtures/sections/`, of the first
//! version that wrote them. Nothing of it is flushed; its writer died.
//!
//! `BLESS_FIXTURE=sections cargo test fixture_with_indexes` writes it anew; do that only before its
//! format was shipped.

use lsm_core::fs::Fs;
use lsm_core::internals::wal::{SectionIndex, SegmentHeader};
use siltstone::secondary::{Level, Secondary, Target};

use super::*;

/// The writes of the fixture: partition, key and value.
fn writes() -> Vec<(&'static str, u8, String)> {
    let names = ["left", "right", "seldom"];
    let writes = (0..150_u8).map(|n| (names[usize::from(n) % 2], n, "sand ".repeat(10)));
    let seldom = (0..5_u8).map(|n| (names[2], n, n.to_string()));
    writes.chain(seldom).collect()
}

fn write_sections() -> MemFs {
    let fs = MemFs::new();
    let db = builder(&fs).open().unwrap();
    for (name, key, value) in writes() {
        db.partition(name).unwrap().put([key], value).unwrap();
    }
    db.wait_idle().unwrap();
    fs.crash_clone(CrashOutcome::Everything, &mut || 0)
}

fn expected_of(name: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let own = writes().into_iter().filter(|(partition, ..)| *partition == name);
    own.map(|(_, key, value)| (vec![key], value.into_bytes())).collect()
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
    let secondary = Secondary::builder(DIR).fs(Arc::new(fs.clone())).open().unwrap();
    secondary.sync(Target::Latest).unwrap();
    for name in ["left", "right", "seldom"] {
        let reading = secondary.partition(name).unwrap().at(Level::Eventual).unwrap();
        let found = reading.iter().map(|pair| pair.unwrap());
        let found: Vec<_> = found.map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        assert_eq!(found, expected_of(name), "{name}");
    }
    let db = builder(&fs).open().unwrap();
    for name in ["left", "right", "seldom"] {
        let found = db.partition(name).unwrap().iter().map(|pair| pair.unwrap());
        let found: Vec<_> = found.map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        assert_eq!(found, expected_of(name), "{name}");
    }
}
