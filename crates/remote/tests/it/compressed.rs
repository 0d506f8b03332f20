//! Readers of compressed files in a bucket.

use remote::Remote;
use siltstone::{Compression, Durability, LargeValueOptions, PartitionOptions, Slice};

/// About a kilobyte.
fn document(n: u32) -> String {
    format!("{{\"number\":{n},\"name\":\"{}\"}}", n.wrapping_mul(0x9e37_79b9)).repeat(25)
}

/// With zstd and its dictionaries in a build that has it: `scripts/zstd.sh`.
#[test]
fn a_reader_of_a_bucket_reads_compressed_tables_and_large_values() {
    let all = [Compression::Zstd, Compression::Lz4];
    let compression = all.into_iter().find(|it| it.is_built_in()).unwrap();
    let remote = Remote::memory().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let primary = remote.primary(folder.path().join("first")).unwrap();
    let db = primary.builder().open().unwrap();
    let large = LargeValueOptions::new().threshold_bytes(10_000).compression(compression);
    let options = PartitionOptions::new().compression(compression).large_values(large);
    let documents = db.partition_with("documents", options).unwrap();
    // Enough for a dictionary.
    for n in 0..3000_u32 {
        documents.put(n.to_be_bytes(), document(n)).unwrap();
    }
    documents.compact(..).unwrap();
    documents.put_with("large", document(7).repeat(20), Durability::Sync).unwrap();
    let reader = remote.reader().unwrap();
    let seen = reader.builder().open().unwrap();
    let found = seen.partition("documents").unwrap();
    let entries = found.range(..b"l".as_slice()).map(|entry| entry.unwrap().1);
    assert!(entries.eq((0..3000).map(document).map(|text| Slice::copy_from(text.as_bytes()))));
    let large = found.get("large").unwrap().unwrap();
    assert_eq!(large[..], *document(7).repeat(20).as_bytes());
    assert!(remote.verify().unwrap().is_sound());
}
