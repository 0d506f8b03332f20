//! Round trips: the stream that comes out at the end has the bytes of the one that went in at the begin.

use std::path::PathBuf;

use siltstone::stream::{StreamExport, StreamImport};
use siltstone::{Db, LargeValueOptions, PartitionOptions};
use testkit::Rng;

use super::*;

/// A new folder, which is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("siltstone-convert-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The stream of a siltstone database with keys and values of many lengths.
fn stream_of_siltstone(folder: &Folder) -> Vec<u8> {
    let db = Db::open(folder.path("siltstone")).unwrap();
    let options = PartitionOptions::new().large_values(LargeValueOptions::default());
    let p = db.partition_with("things", options).unwrap();
    let mut rng = Rng::from_env_or(1);
    for n in 0..3000_u64 {
        let len = match n % 500 {
            0 => 3 << 20,
            1 => 64 << 10,
            _ => rng.below(300) as usize,
        };
        let mut value = vec![0; len];
        rng.fill(&mut value);
        let mut key = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec();
        key.resize(8 + rng.below(40) as usize, 0);
        p.put(key, value).unwrap();
    }
    p.put([0xff; 40], "").unwrap();
    let mut stream = Vec::new();
    db.export_stream(&mut stream, &StreamExport::new().partitions(["things"])).unwrap();
    stream
}

fn import_into(
    engine: Engine,
    folder: &Path,
    family: &str,
    mut stream: &[u8],
    resume: bool,
) -> Result<Count, Fault> {
    let database = open(engine, folder, family, Purpose::Import)?;
    let mut reader = EntryReader::new(&mut stream, "test")?;
    import(&*database, &mut reader, 0, resume)
}

fn export_from(engine: Engine, folder: &Path, family: &str, from: &[u8]) -> Vec<u8> {
    let database = open(engine, folder, family, Purpose::Export).unwrap();
    let partition = StreamPartition { name: "things".to_owned(), has_large_values: true };
    let mut stream = Vec::new();
    export(&*database, partition, from, &mut stream).unwrap();
    stream
}

#[test]
fn entries_come_back_from_rocksdb_and_leveldb_as_they_went() {
    let folder = Folder::new("round");
    let stream = stream_of_siltstone(&folder);
    for (engine, family) in
        [(Engine::Rocksdb, "default"), (Engine::Rocksdb, "other"), (Engine::Leveldb, "default")]
    {
        let there = folder.path(&format!("{engine:?}-{family}"));
        // Cut off within its last entries: what came before is there, and the rest comes with the whole.
        let cut = &stream[..stream.len() - 200];
        import_into(engine, &there, family, cut, false).unwrap_err();
        let count = import_into(engine, &there, family, &stream, true).unwrap();
        assert_eq!(count.written + count.skipped, 3001);
        assert!(count.skipped > 2000, "{engine:?}: {count:?}");
        let again = import_into(engine, &there, family, &stream, true).unwrap();
        assert_eq!(again, Count { written: 0, skipped: 3001 });

        let back = export_from(engine, &there, family, b"");
        // Not `assert_eq`, which would print all bytes.
        assert!(back == stream, "{engine:?} {family}");
        let db = Db::open(folder.path(&format!("back-{engine:?}-{family}"))).unwrap();
        // In two parts, as after an interruption.
        db.import_stream(&back[..], &StreamImport::new()).unwrap();
        let rest = export_from(engine, &there, family, &[0x80]);
        assert!(rest.len() < stream.len() * 9 / 10);
        let summary = db.import_stream(&rest[..], &StreamImport::new().resume(true)).unwrap();
        assert!(summary.entries > 1000 && summary.skipped == summary.entries, "{summary:?}");
        let mut last = Vec::new();
        db.export_stream(&mut last, &StreamExport::new().partitions(["things"])).unwrap();
        assert!(last == stream, "{engine:?} {family}");
    }
    assert_eq!(families_of(&folder.path("Rocksdb-other")), ["default", "other"]);
}

fn families_of(folder: &Path) -> Vec<String> {
    let options = ::rocksdb::Options::default();
    ::rocksdb::DB::list_cf(&options, folder).unwrap()
}

#[test]
fn a_changed_stream_and_a_missing_database_are_refused() {
    let folder = Folder::new("refused");
    let mut stream = Vec::new();
    let partition = StreamPartition { name: "p".to_owned(), has_large_values: false };
    let mut writer = EntryWriter::new(&mut stream, &[partition]).unwrap();
    writer.put(0, b"first", b"1").unwrap();
    writer.put(0, b"second", b"2").unwrap();
    assert!(writer.put(1, b"third", b"3").is_err(), "there is one partition");
    assert!(writer.put(0, b"", b"3").is_err(), "no key is empty");
    writer.end().unwrap();
    for engine in [Engine::Rocksdb, Engine::Leveldb] {
        let there = folder.path(&format!("{engine:?}"));
        assert!(open(engine, &there, "default", Purpose::Export).is_err());
        assert!(!there.exists(), "nothing is made by an export");
        for at in (8..stream.len()).step_by(5) {
            let mut changed = stream.clone();
            changed[at] ^= 4;
            let imported = import_into(engine, &there, "default", &changed, false);
            assert!(imported.is_err(), "{engine:?}, byte {at}");
        }
    }
    assert!(open(Engine::Leveldb, &folder.0, "other", Purpose::Import).is_err());
    assert_eq!(bytes_of_hex("00fF7a").unwrap(), [0, 0xff, 0x7a]);
    for digits in ["0", "0g", "+1", "\u{e9}"] {
        assert!(bytes_of_hex(digits).is_err(), "{digits}");
    }
    let several =
        ["a", "b"].map(|name| StreamPartition { name: name.to_owned(), has_large_values: false });
    assert_eq!(wanted_partition(&several, Some("b")).unwrap(), 1);
    assert!(
        wanted_partition(&several, None).is_err() && wanted_partition(&several, Some("c")).is_err()
    );
}
