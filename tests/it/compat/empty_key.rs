//! A store with the empty key: `tests/fixtures/empty/`, of the first version that takes it. It lies in tables and in the
//! log, in a partition that stores keys as they are given, in one that does so with MetaHive, and in one that takes any
//! key.
//!
//! `BLESS_FIXTURE=empty cargo test fixture_of_the_empty_key` writes it again. Do this only before its format is
//! released.

use siltstone::MetaHiveOptions;
use siltstone::metahive::ScrubOptions;

use super::*;

const NAMES: [&str; 3] = ["given", "later", "any"];

fn write_empty_keys() -> MemFs {
    let fs = MemFs::new();
    let db = builder(&fs).open().unwrap();
    let plain = PartitionOptions::new().compression(Compression::None);
    let sealed = plain.clone().metahive(MetaHiveOptions::default());
    for (name, options) in NAMES.into_iter().zip([&plain, &plain, &sealed]) {
        let p = db.partition_with(name, options.clone()).unwrap();
        p.put("", "before").unwrap();
        p.put("a", "1").unwrap();
    }
    db.flush().unwrap();
    // A partition that gets MetaHive after its creation keeps the form of its keys.
    db.partition_with("later", sealed).unwrap();
    for name in NAMES {
        db.partition(name).unwrap().put("", "table").unwrap();
    }
    db.flush().unwrap();
    for name in NAMES {
        db.partition(name).unwrap().put("", "log").unwrap();
    }
    fs.crash_clone(CrashOutcome::Everything, &mut || 0)
}

#[test]
fn a_fixture_of_the_empty_key_opens_and_has_it() {
    fixtures::bless("empty", write_empty_keys);
    let dir = fixtures::on_disk("empty");
    let db = Db::open(dir.path()).unwrap();
    for name in NAMES {
        let p = db.partition(name).unwrap();
        for is_compacted in [false, true] {
            let found: Vec<_> = p.keys().map(|key| key.unwrap().to_vec()).collect();
            assert_eq!(found, [&b""[..], b"a"], "{name}");
            assert_eq!(p.get("").unwrap().unwrap(), b"log"[..]);
            if !is_compacted {
                p.compact(..).unwrap();
            }
        }
        if name != "given" {
            assert!(p.scrub(ScrubOptions::new()).unwrap().is_sound());
            assert_eq!(p.verified_get("").unwrap().unwrap().value[..], b"log"[..]);
        }
    }
    assert!(db.verify(VerifyOptions::default()).unwrap().is_sound());
}

/// In a partition that stores keys as they are given. Earlier versions refuse such files by these bits, and would take them
/// for damage otherwise.
#[test]
fn files_with_the_empty_key_say_so() {
    let fs = fixtures::in_memory("empty");
    let tables = files(&fs, FileKind::Sst);
    let features = tables.iter().map(|path| {
        let bytes = fs.read_raw(path).unwrap();
        bytes[bytes.len() - 152 + 16] & 0x20
    });
    // That of "any" has a stored key of one byte.
    assert_eq!(features.filter(|bit| *bit == 0x20).count(), 4, "of {}", tables.len());
    for path in files(&fs, FileKind::Wal) {
        assert_eq!(fs.read_raw(&path).unwrap()[8], 6);
    }
}
