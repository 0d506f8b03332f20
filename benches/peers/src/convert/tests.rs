//! Round trips: the stream at the end has the bytes of the stream at the begin.

use std::path::PathBuf;

use siltstone::stream::{StreamExport, StreamImport};
use siltstone::{Db, LargeValueOptions, PartitionOptions};
use testkit::Rng;
use testkit::bench::{Engine as _, Ack};

use super::*;
use crate::engines::{LevelDb, Peer};
use crate::settings::Settings;

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

fn ends(engine: Engine, folder: &Path, family: &str) -> Ends {
    let stream = PathBuf::from("-");
    Ends { engine, folder: folder.to_owned(), stream, family: family.to_owned(), partition: None }
}

fn import_into(
    engine: Engine,
    folder: &Path,
    family: &str,
    mut stream: &[u8],
    resume: bool,
) -> Result<Count, Fault> {
    let database = open(&ends(engine, folder, family), Purpose::Import)?;
    let mut reader = EntryReader::new(&mut stream, "test")?;
    import(&*database, &mut reader, 0, resume)
}

fn try_export(ends: &Ends, from: &[u8]) -> Result<Vec<u8>, Fault> {
    let database = open(ends, Purpose::Export)?;
    let partition = StreamPartition { name: "things".to_owned(), has_large_values: true };
    let mut stream = Vec::new();
    export(&*database, partition, from, &mut stream)?;
    Ok(stream)
}

fn export_from(engine: Engine, folder: &Path, family: &str, from: &[u8]) -> Vec<u8> {
    try_export(&ends(engine, folder, family), from).unwrap()
}

/// A stream of one partition with these entries.
fn stream_of(entries: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut stream = Vec::new();
    let partition = StreamPartition { name: "p".to_owned(), has_large_values: false };
    let mut writer = EntryWriter::new(&mut stream, &[partition]).unwrap();
    for (key, value) in entries {
        writer.put(0, key, value).unwrap();
    }
    assert!(writer.put(1, b"k", b"").is_err(), "there is one partition");
    assert!(writer.put(0, &[0; 1 << 17], b"").is_err(), "a key has a limit");
    writer.end().unwrap();
    stream
}

/// The engines that are compiled in.
fn engines() -> Vec<Engine> {
    let all = [Engine::Rocksdb, Engine::Leveldb].into_iter();
    all.filter(|engine| cfg!(feature = "rocksdb") || *engine != Engine::Rocksdb).collect()
}

/// The database has the second value already, so that only the first one differs from it.
#[test]
fn the_last_value_of_a_key_counts_with_and_without_resume() {
    let folder = Folder::new("twice");
    let before = stream_of(&[(b"k", b"2"), (b"l", b"1")]);
    let twice = stream_of(&[(b"k", b"1"), (b"l", b"1"), (b"k", b"2")]);
    for engine in engines() {
        for resume in [false, true] {
            let there = folder.path(&format!("{engine:?}-{resume}"));
            import_into(engine, &there, "default", &before, false).unwrap();
            let count = import_into(engine, &there, "default", &twice, resume).unwrap();
            let (written, skipped) = if resume { (2, 1) } else { (3, 0) };
            assert_eq!(count, Count { written, skipped }, "{engine:?}");
            let database = open(&ends(engine, &there, "default"), Purpose::Export).unwrap();
            let found = database.get(b"k").unwrap();
            assert_eq!(found.as_deref(), Some(&b"2"[..]), "{engine:?}, resume: {resume}");
        }
    }
}

#[test]
fn an_export_ends_at_the_first_entry_that_cannot_be_written() {
    let folder = Folder::new("ends");
    let stream = stream_of(&[(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]);
    for engine in engines() {
        let there = folder.path(&format!("{engine:?}"));
        import_into(engine, &there, "default", &stream, false).unwrap();
        let database = open(&ends(engine, &there, "default"), Purpose::Export).unwrap();
        let mut seen = Vec::new();
        let ended = database.each(b"", &mut |key, _| {
            seen.push(key.to_vec());
            if key == b"b" { Err("full".into()) } else { Ok(()) }
        });
        assert_eq!(ended.unwrap_err().to_string(), "full");
        assert_eq!(seen, [b"a", b"b"], "{engine:?}");
    }
}

/// The files of a database, by their names.
fn files_of(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = names.map(|path| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read(&path).unwrap())
    });
    files.collect()
}

/// Changes bytes of the LevelDB file with this ending, one at a time, and exports: no entry may be
/// left out or changed. The lengths of log records are not changed: LevelDB takes a wrong length in
/// the last block for the end that a crash left. Returns the number of exports that were tried, and
/// of those that were refused.
fn check_damage(folder: &Folder, ending: &str, settle: bool) -> (usize, usize) {
    let there = folder.path(&format!("whole-{ending}"));
    let engine = LevelDb::open(&there, &Settings::new(0)).unwrap();
    let entries: Vec<_> = (0..300_u32).map(|n| (n.to_be_bytes().to_vec(), vec![7; 30])).collect();
    engine.put_all(&entries, Ack::Sync).unwrap();
    if settle {
        engine.settle().unwrap();
    }
    drop(engine);
    let files = files_of(&there);
    let whole = export_from(Engine::Leveldb, &there, "default", b"");
    let (damaged_name, bytes) = files.iter().find(|file| file.0.ends_with(ending)).unwrap();
    assert!(bytes.len() > 10_000, "{damaged_name}");
    let damaged = folder.path(&format!("damaged-{ending}"));
    let mut tried = 0;
    let mut refused = 0;
    for at in (0..bytes.len()).step_by(97) {
        let _ = std::fs::remove_dir_all(&damaged);
        std::fs::create_dir(&damaged).unwrap();
        for (name, bytes) in &files {
            let mut bytes = bytes.clone();
            if name == damaged_name {
                bytes[at] ^= 0x10;
            }
            std::fs::write(damaged.join(name), bytes).unwrap();
        }
        tried += 1;
        match try_export(&ends(Engine::Leveldb, &damaged, "default"), b"") {
            Err(_) => refused += 1,
            // A filter, which no export needs, or a byte without a meaning.
            Ok(stream) => assert!(stream == whole, "byte {at} of {damaged_name}"),
        }
    }
    (tried, refused)
}

#[test]
fn a_damaged_table_or_log_of_leveldb_is_refused() {
    let folder = Folder::new("damage");
    let (tried, refused) = check_damage(&folder, ".ldb", true);
    assert!(tried > 100 && refused * 10 > tried * 9, "{refused} of {tried} refused");
    let (tried, refused) = check_damage(&folder, ".log", false);
    assert!(tried > 100 && refused * 10 > tried * 9, "{refused} of {tried} refused");
}

#[test]
fn entries_come_back_from_rocksdb_and_leveldb_as_they_went() {
    let folder = Folder::new("round");
    let stream = stream_of_siltstone(&folder);
    for (engine, family) in
        [(Engine::Rocksdb, "default"), (Engine::Rocksdb, "other"), (Engine::Leveldb, "default")]
    {
        if !engines().contains(&engine) {
            continue;
        }
        let there = folder.path(&format!("{engine:?}-{family}"));
        // Cut off within its last entries: the earlier entries are imported, and the rest comes
        // with the complete stream.
        let cut = &stream[..stream.len() - 200];
        import_into(engine, &there, family, cut, false).unwrap_err();
        let count = import_into(engine, &there, family, &stream, true).unwrap();
        assert_eq!(count.written + count.skipped, 3001);
        assert!(count.skipped > 2000, "{engine:?}: {count:?}");
        let again = import_into(engine, &there, family, &stream, true).unwrap();
        assert_eq!(again, Count { written: 0, skipped: 3001 });

        let back = export_from(engine, &there, family, b"");
        // `assert_eq` would print all bytes.
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
    #[cfg(feature = "rocksdb")]
    assert_eq!(families_of(&folder.path("Rocksdb-other")), ["default", "other"]);
}

#[cfg(feature = "rocksdb")]
fn families_of(folder: &Path) -> Vec<String> {
    let options = ::rocksdb::Options::default();
    ::rocksdb::DB::list_cf(&options, folder).unwrap()
}

#[test]
fn a_changed_stream_and_a_missing_database_are_refused() {
    let folder = Folder::new("refused");
    let stream = stream_of(&[(b"first", b"1"), (b"second", b"2")]);
    for engine in engines() {
        let there = folder.path(&format!("{engine:?}"));
        assert!(open(&ends(engine, &there, "default"), Purpose::Export).is_err());
        assert!(!there.exists(), "nothing is made by an export");
        for at in (8..stream.len()).step_by(5) {
            let mut changed = stream.clone();
            changed[at] ^= 4;
            let imported = import_into(engine, &there, "default", &changed, false);
            assert!(imported.is_err(), "{engine:?}, byte {at}");
        }
    }
    assert!(open(&ends(Engine::Leveldb, &folder.0, "other"), Purpose::Import).is_err());
    let several =
        ["a", "b"].map(|name| StreamPartition { name: name.to_owned(), has_large_values: false });
    assert_eq!(wanted_partition(&several, Some("b")).unwrap(), 1);
    assert!(
        wanted_partition(&several, None).is_err() && wanted_partition(&several, Some("c")).is_err()
    );
}
