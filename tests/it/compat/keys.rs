//! A store of partitions that accept any key: `tests/fixtures/keys/`, of the first version that
//! stored keys in these forms.
//!
//! `BLESS_FIXTURE=keys cargo test fixture_of_key_forms` writes it again. Do this only before its
//! format is released.

use lsm_core::hooks::{CompactionFilter, CompactionFilterFactory, Hooks, Job, Rules, Sealer};
use lsm_core::raw::RawMode;
use lsm_core::types::KeyForm;
use metahive::{MetaHive, MetaHiveOptions, ScrubOptions};

use super::*;

/// Keys next to those that the forms change.
fn keys() -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = (0..20u64).map(|n| (n * 37).to_be_bytes().to_vec()).collect();
    let others: [&[u8]; 8] = [b"\0", b"\0\0", b"\x01", b"\x01\0", b"k", b"k\0", b"k\x01", b"k\x02"];
    keys.extend(others.map(<[u8]>::to_vec));
    keys.sort();
    keys
}

/// MetaHive as it was when each key had a zero byte after it.
struct Terminated(MetaHive);

impl CompactionFilterFactory for Terminated {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn params(&self) -> Vec<u8> {
        self.0.params()
    }

    fn rules(&self, form: Option<KeyForm>) -> Rules {
        Rules { key_form: KeyForm::Terminated, ..self.0.rules(form) }
    }

    fn sealer(&self) -> Option<&dyn Sealer> {
        Some(self)
    }

    fn start(&self, job: &Job<'_>) -> siltstone::Result<Box<dyn CompactionFilter>> {
        self.0.start(job)
    }
}

impl Sealer for Terminated {}

fn write_keys() -> MemFs {
    let fs = MemFs::new();
    let db = builder(&fs).open().unwrap();
    let options = PartitionOptions::new().compression(Compression::None).block_bytes(256);
    let terminated = Hooks::new().filter(Arc::new(Terminated(MetaHive::default())));
    let escaped = options.clone().metahive(MetaHiveOptions::new());
    for (name, options) in [("escaped", escaped), ("terminated", options.hooks(terminated))] {
        let p = db.partition_with(name, options).unwrap();
        for key in keys() {
            p.put(&key, b"overwritten").unwrap();
        }
        db.flush().unwrap();
        for key in keys() {
            p.put(&key, &key).unwrap();
        }
        db.flush().unwrap();
        // In the log.
        p.put(b"last\x01", b"last\x01").unwrap();
    }
    fs.crash_clone(CrashOutcome::Everything, &mut || 0)
}

#[test]
fn a_fixture_of_key_forms_opens_and_has_its_keys() {
    fixtures::bless("keys", write_keys);
    let dir = fixtures::on_disk("keys");
    let db = Db::open(dir.path()).unwrap();
    let mut expected = keys();
    expected.push(b"last\x01".to_vec());
    expected.sort();
    for name in ["escaped", "terminated"] {
        let p = db.partition(name).unwrap();
        for is_compacted in [false, true] {
            let found: Vec<_> = p.keys().map(|key| key.unwrap().to_vec()).collect();
            assert_eq!(found, expected, "{name}");
            for key in &expected {
                assert_eq!(p.verified_get(key).unwrap().unwrap().value[..], key[..], "{name}");
                assert_eq!(p.get([&key[..], b"!"].concat()).unwrap(), None);
            }
            if !is_compacted {
                p.compact(..).unwrap();
            }
        }
        p.delete(b"k\x01").unwrap();
        assert_eq!((p.get(b"k\x01").unwrap(), p.get(b"k").unwrap().is_some()), (None, true));
        assert!(p.scrub(ScrubOptions::new()).unwrap().is_sound());
    }
}

/// The short keys of the tables of a partition, in their stored form.
fn stored(db: &Db, name: &str) -> Vec<Vec<u8>> {
    let p = db.partition(name).unwrap();
    p.compact(..).unwrap();
    let walk = p.walk().unwrap();
    let mut found = Vec::new();
    for table in walk.tables() {
        let mut entries = table.walk(RawMode::default()).unwrap();
        while let Some(entry) = entries.next().unwrap() {
            if !entry.hidden && entry.key.len() < 4 {
                found.push(entry.key.to_vec());
            }
        }
    }
    found
}

/// The forms of stored keys, written out.
#[test]
fn stored_keys_have_exactly_these_bytes() {
    let fs = fixtures::in_memory("keys");
    let db = builder(&fs).open().unwrap();
    let escaped: [&[u8]; 8] =
        [b"\0\0", b"\0\0\0", b"\x01\0", b"\x01\0\0", b"k", b"k\0\0", b"k\x01\0", b"k\x02"];
    assert_eq!(stored(&db, "escaped"), escaped);
    let terminated: [&[u8]; 8] =
        [b"\0\0", b"\0\0\0", b"\x01\0", b"\x01\0\0", b"k\0", b"k\0\0", b"k\x01\0", b"k\x02\0"];
    assert_eq!(stored(&db, "terminated"), terminated);
}
