//! Stores with `Compression::Zstd`: in every part of a store, with damage, and in a build without the feature `zstd`.
//!
//! `tests/fixtures/zstd/` was written by the first version with zstd. `BLESS_FIXTURE=zstd cargo test --features zstd
//! fixture_of_zstd` writes it again. Do this only before its format is released.

#[cfg(feature = "zstd")]
mod built_in;

use std::sync::Arc;

use lsm_core::fs::MemFs;
#[cfg(not(feature = "zstd"))]
use siltstone::Durability::Os;
use siltstone::{
    Compression, Db, ErrorKind, LargeValueOptions, Options, PartitionOptions, VerifyOptions,
};

use crate::fixtures;
use crate::store::stepped;

const DIR: &str = "/db";

fn open(fs: &MemFs, dir: &str) -> Db {
    let options = Options::new().write_buffer_bytes(4 << 20).wal_segment_bytes(64 << 10);
    stepped(Arc::new(fs.clone()), dir, 1).options(options).open().unwrap()
}

fn key(number: usize) -> String {
    format!("document/{number:06}")
}

/// A value of several sub-blocks.
fn long_value() -> Vec<u8> {
    b"sand and silt, layer on layer, ".repeat(3000)
}

/// The error of something that needs zstd, which names the feature, the partition and a file of this kind.
#[cfg(not(feature = "zstd"))]
#[track_caller]
fn refused<T>(result: siltstone::Result<T>, partition: &str, kind: &str) {
    let Err(error) = result else { panic!("it needs no zstd") };
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{text}");
    assert!(error.damage().is_none(), "{text}");
    let expected = ["this build lacks the feature `zstd`", kind, &format!("{partition:?}")];
    assert!(expected.iter().all(|part| text.contains(part)), "{text}");
}

#[cfg(not(feature = "zstd"))]
#[test]
fn a_build_without_zstd_names_the_feature_the_file_and_the_partition() {
    let fs = fixtures::in_memory("zstd");
    let db = open(&fs, DIR);
    assert_eq!(
        db.open_partition("plain").unwrap().get("key").unwrap().as_deref(),
        Some(&b"value"[..])
    );
    let documents = db.open_partition("documents").unwrap();
    refused(documents.get(key(7)), "documents", ".sst");
    refused(documents.iter().collect::<siltstone::Result<Vec<_>>>(), "documents", ".sst");
    // The files of other partitions are verified.
    let report = db.verify(VerifyOptions::default()).unwrap();
    assert!(!report.is_sound() && report.damage().is_empty() && report.entries > 0, "{report}");
    let [table, chunk] = &report.unsupported[..] else { panic!("{report}") };
    assert!(table.contains(".sst") && table.contains("\"documents\"") && table.contains("`zstd`"));
    assert!(chunk.contains(".chunk") && chunk.contains("\"large\"") && chunk.contains("`zstd`"));
    refused(documents.export(key(1)..key(5), "/export"), "documents", ".sst");
    // Its compactions would fail, so each write is refused, and the whole batch with it.
    refused(documents.put(key(1), "new"), "documents", "compression");
    refused(documents.delete(key(1)), "documents", "compression");
    let plain = db.open_partition("plain").unwrap();
    let mixed = db.batch().put(&plain, "other", "1").put(&documents, key(1), "new").commit(Os);
    refused(mixed, "documents", "compression");
    assert_eq!(plain.get("other").unwrap(), None);
    plain.put("other", "2").unwrap();
    let mut transaction = db.transaction();
    transaction.put(&documents, key(1), "new");
    refused(transaction.commit(Os), "documents", "compression");
    plain.export(.., "/plain").unwrap();
    refused(documents.ingest("/plain"), "documents", "compression");
    // Set to another one, it takes writes until its tables have to be merged.
    let lz4 = documents.options().compression(Compression::Lz4);
    db.partition_with("documents", lz4).unwrap();
    documents.put(key(1), "new").unwrap();
    db.flush().unwrap();
    refused(documents.compact(..), "documents", ".sst");
    assert_eq!(documents.get(key(1)).unwrap().as_deref(), Some(&b"new"[..]), "it is still open");
    let large = db.open_partition("large").unwrap();
    refused(large.get("long"), "large", ".chunk");
    refused(large.put("other", long_value()), "large", DIR);
    refused(large.put("other", "short"), "large", "compression");
    refused(large.put_stream("film", None), "large", "compression");
    // Nothing of it was taken for damage.
    assert_eq!(db.health().damage, None);
    let zstd = PartitionOptions::new().compression(Compression::Zstd);
    refused(db.partition_with("new", zstd.clone()), "new", "compression");
    refused(db.partition_with("plain", zstd), "plain", "compression");
    let values = LargeValueOptions::default().compression(Compression::Zstd);
    let values = PartitionOptions::new().large_values(values);
    let error = db.partition_with("new", values).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(!db.partition_names().contains(&"new".to_owned()));
    // A copy of the files needs no zstd, and a repair reads all of them.
    db.checkpoint("/checkpoint").unwrap();
    db.close().unwrap();
    let repaired = stepped(Arc::new(fs.clone()), DIR, 1).repair_into("/repaired");
    assert_eq!(repaired.unwrap_err().kind(), ErrorKind::Unsupported);
    let secondary = Db::secondary_builder("/checkpoint").fs(Arc::new(fs)).open().unwrap();
    refused(secondary.partition("documents").unwrap().get(key(7)), "documents", ".sst");
}
