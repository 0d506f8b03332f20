//! Imports: resumed, refused, streamed values, partitions without a log.

use std::sync::Arc;

use lsm_core::fs::MemFs;
use siltstone::stream::StreamImport;
use siltstone::{Db, ErrorKind, Options, PartitionOptions};

use super::{
    PIECE, check_durable, content, entry, exported, filled, hash, header, imported, large, open,
    record, small_stream, stream_of,
};
use crate::store::stepped;

#[test]
fn an_import_goes_on_where_it_stopped_and_writes_nothing_twice() {
    let db = filled();
    let whole = content(&db);
    let stream = exported(&db);
    let options = StreamImport::new().resume(true).source("backup");
    let other = open(&MemFs::new());
    let stopped = other.import_stream(&stream[..stream.len() * 5 / 6], &options).unwrap_err();
    assert_eq!(stopped.damage().unwrap().file.to_str(), Some("backup"));
    assert_eq!(stopped.damage().unwrap().partition.as_deref(), Some("words"), "{stopped}");
    let media = other.partition("media").unwrap();
    let written = media.stats().value_store.unwrap().written_bytes;
    let summary = other.import_stream(&stream[..], &options).unwrap();
    assert_eq!(summary.entries, 20);
    assert!((10..20).contains(&summary.skipped), "{summary:?}");
    assert_eq!(media.stats().value_store.unwrap().written_bytes, written);
    assert_eq!(hash(&content(&other)), hash(&whole));
    assert_eq!(other.import_stream(&stream[..], &options).unwrap().skipped, 20);
}

#[test]
fn batches_of_an_import_are_no_larger_than_the_database_takes() {
    let one = open(&MemFs::new());
    let p = one.partition("p").unwrap();
    for n in 0..100_u32 {
        p.put(n.to_be_bytes(), [7; 60]).unwrap();
    }
    let options = Options::new().batch_bytes_max(200);
    let other = Db::builder("/db").fs(Arc::new(MemFs::new())).options(options).open().unwrap();
    let imported = other.import_stream(&exported(&one)[..], &StreamImport::new()).unwrap();
    assert_eq!((imported.entries, content(&other)), (100, content(&one)));
}

#[test]
fn a_resumed_import_puts_what_is_stored_with_another_value() {
    let lens = [0, 1, PIECE, PIECE + 1, (1 << 20) + 1, 3 << 20];
    for options in [PartitionOptions::new(), large()] {
        let db = open(&MemFs::new());
        let p = db.partition_with("p", options.clone()).unwrap();
        for len in lens {
            p.put(format!("{len} longer"), vec![1; len]).unwrap();
            p.put(format!("{len} shorter"), vec![1; len]).unwrap();
            p.put(format!("{len} other"), vec![1; len + 1]).unwrap();
            p.put(format!("{len} same"), vec![1; len]).unwrap();
        }
        let whole = content(&db);
        let stream = exported(&db);
        let other = open(&MemFs::new());
        let p = other.partition_with("p", options).unwrap();
        for len in lens {
            p.put(format!("{len} longer"), vec![1; len + 1]).unwrap();
            p.put(format!("{len} shorter"), vec![1; len.saturating_sub(1)]).unwrap();
            p.put(format!("{len} other"), [vec![1; len], vec![2]].concat()).unwrap();
            p.put(format!("{len} same"), vec![1; len]).unwrap();
        }
        let resume = StreamImport::new().resume(true);
        // An empty value has no shorter one.
        assert_eq!(other.import_stream(&stream[..], &resume).unwrap().skipped, 7);
        assert_eq!(hash(&content(&other)), hash(&whole));
    }
}

#[test]
fn a_resumed_import_of_a_key_twice_ends_with_the_later_value() {
    let names = header(&[("p", 0)]);
    let parts = [names, entry("k", 1), b"1".to_vec(), entry("k", 1), b"2".to_vec()];
    let end = record(2, 0, 2, 0, "");
    let stream = stream_of(&[&parts[..], &[end]].concat());
    let db = open(&MemFs::new());
    let p = db.partition("p").unwrap();
    p.put("k", "2").unwrap();
    db.import_stream(&stream[..], &StreamImport::new().resume(true)).unwrap();
    assert_eq!(p.get("k").unwrap().unwrap(), &b"2"[..]);
}

#[test]
fn a_streamed_value_overrides_an_earlier_one_of_its_key() {
    let piece = vec![3; PIECE];
    let mut parts = vec![header(&[("p", 1)]), entry("k", 1), b"1".to_vec()];
    parts.push(entry("k", 5 * PIECE as u64));
    parts.extend(vec![piece; 5]);
    parts.push(record(2, 0, 2, 0, ""));
    let (outcome, content) = imported(&stream_of(&parts));
    assert_eq!((outcome, content["p"][&b"k"[..]].len()), (Ok(2), 5 * PIECE));
}

#[test]
fn a_value_that_fits_nowhere_is_named() {
    let db = open(&MemFs::new());
    let most = db.options().value_bytes_max;
    let names = header(&[("p", 0)]);
    let mut parts = vec![names, entry("movie", most + 1)];
    parts.resize(2 + most.div_ceil(PIECE as u64) as usize, vec![0; PIECE]);
    parts.push(vec![0]);
    let (outcome, _) = imported(&stream_of(&parts));
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert!(error.to_string().contains("key \"movie\" in partition \"p\""), "{error}");
    // With large values it is streamed.
    parts[0] = header(&[("p", 1)]);
    parts.push(record(2, 0, 1, 0, ""));
    assert_eq!(imported(&stream_of(&parts)).0, Ok(1));
}

/// A batch with both is refused.
#[test]
fn partitions_with_a_log_and_without_are_imported_together() {
    let (whole, stream) = small_stream();
    let fs = MemFs::new();
    let db = open(&fs);
    db.partition_with("words", PartitionOptions::new().logged(false)).unwrap();
    assert_eq!(db.import_stream(&stream[..], &StreamImport::new()).unwrap().entries, 4);
    check_durable(&fs, &whole);
}

#[test]
fn an_entry_that_is_refused_leaves_those_before_it() {
    let stream = exported(&{
        let db = open(&MemFs::new());
        let p = db.partition("p").unwrap();
        p.put("", "v").unwrap();
        p.put("k", [9; 3000]).unwrap();
        db
    });
    let options = Options::new().value_bytes_max(1000);
    let db = stepped(Arc::new(MemFs::new()), "/db", 1).options(options).open().unwrap();
    let error = db.import_stream(&stream[..], &StreamImport::new()).unwrap_err();
    assert_eq!(error.kind(), siltstone::ErrorKind::LimitExceeded, "{error}");
    assert_eq!(content(&db)["p"][&b""[..]], b"v");
}

/// Values in chunk files may be longer than a value that is held in memory.
#[test]
fn a_stored_value_is_streamed_from_the_limit_of_values_on() {
    let stream = exported(&{
        let db = open(&MemFs::new());
        db.partition_with("media", large()).unwrap().put("clip", [9; 3000]).unwrap();
        db
    });
    let options = Options::new().value_bytes_max(1000);
    let db = stepped(Arc::new(MemFs::new()), "/db", 1).options(options).open().unwrap();
    let media = db.partition_with("media", large()).unwrap();
    assert_eq!(db.import_stream(&stream[..], &StreamImport::new()).unwrap().entries, 1);
    assert_eq!(media.get("clip").unwrap().unwrap(), [9; 3000]);
}
