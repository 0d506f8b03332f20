//! Streamed values whose key comes last.

use std::io::Write;
use std::sync::Arc;

use lsm_core::fs::{CrashOutcome, MemFs};
use siltstone::large_values::UnkeyedBlobWriter;
use siltstone::metahive::ScrubOptions;
use siltstone::{
    Compression, Db, Durability, ErrorKind, LargeValueOptions, MetaHiveOptions, Options, Partition,
    PartitionOptions, VerifyOptions,
};

use crate::store::stepped;

const DIR: &str = "/db";

fn open(fs: &MemFs) -> Db {
    stepped(Arc::new(fs.clone()), DIR, 1).options(Options::new()).open().unwrap()
}

fn large() -> LargeValueOptions {
    LargeValueOptions::default().threshold_bytes(1 << 10)
}

/// A value of `n`, from below the threshold to several sub-blocks.
fn value(n: u8) -> Vec<u8> {
    (0..usize::from(n) * 700).map(|at| (at / 7) as u8 ^ n).collect()
}

fn key(n: u8) -> Vec<u8> {
    vec![n; usize::from(n)]
}

fn check(db: &Db) {
    for number in 0..3 {
        let p = db.partition(&format!("p{number}")).unwrap();
        assert_eq!(p.iter().count(), 40);
        for n in 0..40 {
            assert_eq!(p.get(key(n)).unwrap().unwrap(), value(n)[..], "{number}, {n}");
        }
    }
    assert!(db.verify(VerifyOptions::default()).unwrap().is_sound());
    assert!(db.partition("p2").unwrap().scrub(ScrubOptions::new()).unwrap().is_sound());
}

#[test]
fn the_key_of_a_stream_may_come_last() {
    let sorts = [
        PartitionOptions::new().large_values(large()),
        PartitionOptions::new().large_values(large().compression(Compression::Lz4)),
        PartitionOptions::new().large_values(large()).metahive(MetaHiveOptions::new()),
    ];
    let fs = MemFs::new();
    let db = open(&fs);
    for (number, options) in sorts.into_iter().enumerate() {
        let p = db.partition_with(&format!("p{number}"), options).unwrap();
        for n in 0..40 {
            let mut writer =
                p.put_stream_unkeyed((n % 2 == 0).then_some(700 * u64::from(n))).unwrap();
            for piece in value(n).chunks(999) {
                writer.write_all(piece).unwrap();
            }
            assert_eq!(writer.written(), 700 * u64::from(n));
            match n % 3 {
                0 => drop(writer.commit(key(n), Durability::Sync).unwrap()),
                1 => {
                    let batch = db.batch().put_blob(writer.finish(key(n)).unwrap());
                    batch.commit(Durability::Sync).unwrap();
                }
                _ => {
                    let mut transaction = db.transaction();
                    transaction.put_blob(writer.finish(key(n)).unwrap());
                    assert_eq!(transaction.get(&p, key(n)).unwrap().unwrap(), value(n)[..]);
                    transaction.commit(Durability::Sync).unwrap();
                }
            }
        }
    }
    check(&db);
    let cut = fs.crash_clone(CrashOutcome::Nothing, &mut || 0);
    check(&open(&cut));
    db.flush().unwrap();
    for number in 0..3 {
        db.partition(&format!("p{number}")).unwrap().compact(..).unwrap();
    }
    check(&db);
}

fn begin(p: &Partition, len: usize) -> UnkeyedBlobWriter {
    let mut writer = p.put_stream_unkeyed(None).unwrap();
    writer.write_all(&vec![1; len]).unwrap();
    writer
}

#[test]
fn a_stream_without_a_valid_key_leaves_nothing() {
    let fs = MemFs::new();
    let db = open(&fs);
    assert_eq!(
        db.partition("plain").unwrap().put_stream_unkeyed(None).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    let p = db.partition_with("p", PartitionOptions::new().large_values(large())).unwrap();
    for len in [100, 100_000] {
        let long = vec![0; siltstone::limits::USER_KEY_BYTES_MAX + 1];
        let refused = begin(&p, len).commit(&long, Durability::Os).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::LimitExceeded);
        assert_eq!(begin(&p, len).finish(&long).unwrap_err().kind(), ErrorKind::LimitExceeded);
        drop(begin(&p, len));
        let mut short = p.put_stream_unkeyed(Some(len as u64)).unwrap();
        short.write_all(&vec![1; len - 1]).unwrap();
        let refused = short.commit("k", Durability::Os).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    }
    db.flush().unwrap();
    assert_eq!(p.iter().count(), 0);
    assert_eq!(p.space().unwrap().pending_bytes, 0);
}
