//! Secondaries next to primaries: step by step on the file system in memory, and as processes.

#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]

mod checker;
mod damaged_log;
mod deletions;
mod follow;
mod histories;
mod indexed;
mod levels;
mod modes;
mod other_side;
mod processes;
mod promotion;
mod read_only_open;
mod recorded;
mod steps;
mod takeover;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use lsm_core::fs::{Fs, MemFs};
use lsm_core::hooks::{MergeOperator, SuppliedOperator};
use lsm_core::operators::AppendOperator;
use lsm_core::options::Options;
use lsm_core::{BackgroundMode, Db};
use secondary::{Reading, Secondary};

const DIR: &str = "/db";

/// The content of a partition.
type Content = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    // Small, so that segments, flushes and compactions occur often.
    let options = Options::new().write_buffer_bytes(64 << 10).wal_segment_bytes(16 << 10);
    options.wal_bytes_max(64 << 10).cache_bytes(1 << 20)
}

/// The merge operator of partitions that have one.
fn append() -> Arc<dyn MergeOperator> {
    Arc::new(AppendOperator::default())
}

/// A primary that works step by step.
fn primary(fs: &Arc<dyn Fs>) -> Db {
    let mut word = 0;
    let random = move || {
        word += 1;
        word
    };
    let builder = Db::builder(DIR).fs(fs.clone()).options(options()).random(random);
    let builder = builder.hooks(Arc::new(SuppliedOperator(append())));
    builder.background(BackgroundMode::Stepped).open().unwrap()
}

/// Partition `p` with the value 1 of the key `k` in a table.
fn flushed(db: &Db) -> lsm_core::Partition {
    let p = db.partition("p").unwrap();
    p.put("k", "1").unwrap();
    p.flush().unwrap();
    p
}

fn secondary(fs: &Arc<dyn Fs>) -> Secondary {
    let builder = Secondary::builder(DIR).fs(fs.clone()).options(options());
    builder.merge_operator(append()).open().unwrap()
}

/// A secondary whose files may be deleted.
fn leaseless(fs: &Arc<dyn Fs>) -> Secondary {
    Secondary::builder(DIR).fs(fs.clone()).lease(false).open().unwrap()
}

fn in_memory() -> Arc<dyn Fs> {
    Arc::new(MemFs::new())
}

/// Deletes the cursor, so that a secondary has only the log.
fn delete_cursor(fs: &Arc<dyn Fs>) {
    for epoch in 1..40 {
        fs.delete(&Path::new(DIR).join(format!("cursor-{epoch:08x}"))).unwrap();
    }
}

fn content(reading: &Reading) -> Content {
    let forward: Vec<_> = reading.iter().map(Result::unwrap).collect();
    let mut backward: Vec<_> = reading.iter().rev().map(Result::unwrap).collect();
    backward.reverse();
    assert_eq!(forward, backward);
    let content: Content =
        forward.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    for (key, value) in &content {
        assert_eq!(reading.get(key).unwrap().as_deref(), Some(value.as_slice()));
    }
    // Also one that no key has.
    for first in content.keys().filter_map(|key| key.first()).flat_map(|it| [*it, it ^ 0x80]) {
        let found: Vec<_> = reading.prefix([first]).map(|entry| entry.unwrap().0).collect();
        let expected = content.keys().filter(|key| key.starts_with(&[first]));
        assert!(found.iter().map(|key| &key[..]).eq(expected.map(|key| &key[..])), "{first}");
    }
    content
}

fn content_of(partition: &lsm_core::Partition) -> Content {
    let entries = partition.iter().map(Result::unwrap);
    entries.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}
