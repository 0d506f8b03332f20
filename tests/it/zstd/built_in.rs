//! With the feature: every part of a store reads what was written with zstd, and damage is named.

use std::path::PathBuf;

use lsm_core::fs::Fs;
use siltstone::backup::BackupEngine;
use siltstone::metahive::ScrubOptions;
use siltstone::secondary::{Secondary, Target};
use siltstone::{MetaHiveOptions, Partition};

use super::*;
use crate::store::settle;

/// More than 1.6 MiB of documents, so that a table has a dictionary.
const DOCUMENTS: usize = 3000;

fn document(number: usize) -> Vec<u8> {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as usize);
    let fields = (0..20).map(|field| {
        let figure = if field < 8 { mixed >> (7 * field) & 0x7f } else { field };
        format!("\"a name of a field {field}\":\"{figure}\",")
    });
    let fields: String = fields.collect();
    format!("{{\"number\":{number},{fields}\"is_last\":false}}").into_bytes()
}

/// Documents with zstd, large values with zstd, and a partition without compression.
fn create(fs: &MemFs, dir: &str) -> Db {
    let db = open(fs, dir);
    let zstd = PartitionOptions::new().compression(Compression::Zstd).block_bytes(4 << 10);
    let documents = db.partition_with("documents", zstd.clone()).unwrap();
    for number in 0..DOCUMENTS {
        documents.put(key(number), document(number)).unwrap();
    }
    documents.compact(..).unwrap();
    let large = LargeValueOptions::default().threshold_bytes(1000).sub_block_bytes(4 << 10);
    let large = zstd.large_values(large.compression(Compression::Zstd));
    db.partition_with("large", large).unwrap().put("long", long_value()).unwrap();
    let plain = PartitionOptions::new().compression(Compression::None);
    db.partition_with("plain", plain).unwrap().put("key", "value").unwrap();
    db.flush().unwrap();
    settle(&db);
    db
}

fn check_documents(partition: &Partition) {
    let mut count = 0;
    for (number, entry) in partition.iter().enumerate() {
        let (found, value) = entry.unwrap();
        assert!(*found == *key(number).as_bytes() && *value == *document(number), "{number}");
        count += 1;
    }
    assert_eq!(count, DOCUMENTS);
    for number in [0, DOCUMENTS / 2, DOCUMENTS - 1] {
        assert_eq!(partition.get(key(number)).unwrap().as_deref(), Some(&document(number)[..]));
    }
}

fn write_zstd() -> MemFs {
    let fs = MemFs::new();
    create(&fs, DIR).close().unwrap();
    fs
}

#[test]
fn a_fixture_of_zstd_opens_and_is_read() {
    fixtures::bless("zstd", write_zstd);
    let db = open(&fixtures::in_memory("zstd"), DIR);
    check_documents(&db.open_partition("documents").unwrap());
    let large = db.open_partition("large").unwrap();
    assert!(large.get("long").unwrap().as_deref() == Some(&long_value()[..]));
    let report = db.verify(VerifyOptions::default()).unwrap();
    assert!(report.is_sound(), "{report}");
    assert!(db.stats().open_table_bytes > 16 << 10, "the dictionary");
}

/// As [`create`], with documents that have metadata, too.
fn create_all(fs: &MemFs) -> Db {
    let db = create(fs, DIR);
    let sealed = PartitionOptions::new().compression(Compression::Zstd);
    let sealed = db.partition_with("sealed", sealed.metahive(MetaHiveOptions::default())).unwrap();
    for number in 0..DOCUMENTS {
        sealed.put(key(number), document(number)).unwrap();
    }
    sealed.compact(..).unwrap();
    settle(&db);
    db
}

fn check_all(db: &Db) {
    check_documents(&db.open_partition("documents").unwrap());
    check_documents(&db.open_partition("sealed").unwrap());
    let large = db.open_partition("large").unwrap();
    assert!(large.get("long").unwrap().as_deref() == Some(&long_value()[..]));
    let report = db.verify(VerifyOptions::default()).unwrap();
    assert!(report.is_sound(), "{report}");
    let sealed = db.open_partition("sealed").unwrap();
    assert!(sealed.scrub(ScrubOptions::new()).unwrap().is_sound());
}

fn files(fs: &MemFs, extension: &str) -> Vec<PathBuf> {
    let mut files = fs.paths();
    files
        .retain(|path| path.starts_with(DIR) && path.extension().is_some_and(|it| it == extension));
    files
}

fn bytes_of(fs: &MemFs, extension: &str) -> usize {
    let files = files(fs, extension);
    files.iter().map(|path| fs.read_raw(path).unwrap().len()).sum()
}

fn check_secondary(secondary: &Secondary) {
    for name in ["documents", "sealed"] {
        let partition = secondary.partition(name).unwrap();
        partition.sync(Target::Latest).unwrap();
        let found = partition.get(key(DOCUMENTS - 1)).unwrap();
        assert!(found.as_deref() == Some(&document(DOCUMENTS - 1)[..]));
    }
    let large = secondary.partition("large").unwrap();
    assert!(large.get("long").unwrap().as_deref() == Some(&long_value()[..]));
}

#[test]
fn every_part_of_a_store_reads_what_was_written_with_zstd() {
    let fs = MemFs::new();
    let db = create_all(&fs);
    check_all(&db);
    assert!(bytes_of(&fs, "chunk") < long_value().len() / 10, "the large value is compressed");
    let sst_bytes = bytes_of(&fs, "sst");
    assert!(sst_bytes < DOCUMENTS * document(0).len() / 3, "{sst_bytes} bytes");
    db.checkpoint("/checkpoint").unwrap();
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    let backups = BackupEngine::open("/backups").fs(shared.clone());
    backups.create_backup(&db).unwrap();
    for name in ["documents", "sealed", "large"] {
        db.open_partition(name).unwrap().export(.., format!("/export-{name}")).unwrap();
    }
    check_secondary(&Db::secondary_builder(DIR).fs(shared.clone()).open().unwrap());
    db.close().unwrap();

    check_all(&open(&fs, DIR));
    check_all(&open(&fs, "/checkpoint"));
    backups.restore(1, "/restored").unwrap();
    check_all(&open(&fs, "/restored"));
    let report = stepped(shared, DIR, 1).repair_into("/repaired").unwrap();
    assert!(report.is_complete(), "{report:?}");
    check_all(&open(&fs, "/repaired"));
    let db = open(&fs, DIR);
    let copy = db.partition("copy of documents").unwrap();
    copy.ingest("/export-documents").unwrap();
    check_documents(&copy);
}

/// A table moves to a level as it is only if it is compressed as the tables there.
#[test]
fn a_change_of_the_compression_rewrites_what_is_compacted() {
    let fs = MemFs::new();
    let db = create(&fs, DIR);
    let documents = db.open_partition("documents").unwrap();
    let with_zstd = bytes_of(&fs, "sst");
    for compression in [Compression::Lz4, Compression::None, Compression::Zstd] {
        db.partition_with("documents", documents.options().compression(compression)).unwrap();
        documents.put(key(0), document(0)).unwrap();
        documents.compact(..).unwrap();
        check_documents(&documents);
        settle(&db);
        let bytes = bytes_of(&fs, "sst");
        let is_as_before = bytes < with_zstd * 11 / 10;
        assert_eq!(is_as_before, compression == Compression::Zstd, "{compression:?}: {bytes}");
    }
}

#[test]
fn damage_of_a_dictionary_is_named_by_reads_and_verification() {
    let fs = MemFs::new();
    create(&fs, DIR).close().unwrap();
    let table =
        files(&fs, "sst").into_iter().max_by_key(|path| fs.read_raw(path).unwrap().len()).unwrap();
    let sound = fs.read_raw(&table).unwrap();
    // The dictionary begins with its magic, and no block before it has that.
    let magic = 0xec30_a437_u32.to_le_bytes();
    let at = sound.windows(4).rposition(|bytes| bytes == magic).unwrap();
    let mut damaged = sound.clone();
    damaged[at + 30..at + 40].fill(0x55);
    fs.write_raw(&table, &damaged).unwrap();
    let db = open(&fs, DIR);
    let documents = db.open_partition("documents").unwrap();
    let error = documents.get(key(7)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    let text = error.to_string();
    let expected = ["the dictionary of the table: ", ".sst", "partition \"documents\""];
    assert!(expected.iter().all(|part| text.contains(part)), "{text}");
    assert_eq!(error.damage().unwrap().offset, Some(at as u64));
    let report = db.verify(VerifyOptions::default()).unwrap();
    assert!(report.to_string().contains("the dictionary of the table: "), "{report}");
}
