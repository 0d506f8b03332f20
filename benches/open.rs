//! Opening: a new store, one whose records are all in tables, and one with a log to replay.
//!
//! Each run opens a copy, because an open changes the store: it flushes what it replayed. Copying,
//! closing and removing are outside of the measured time.
//!
//! `cargo bench --bench open`

#![expect(missing_docs, reason = "the macro of criterion makes a function without a page")]
#![expect(clippy::disallowed_methods, reason = "it copies folders of databases")]

mod store;

use std::fs;
use std::path::Path;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use siltstone::{Db, Options};
use tempfile::TempDir;

use store::{RECORDS, Store};

/// The folder of a closed store.
fn closed(store: Store) -> TempDir {
    let Store { db, partition, folder, .. } = store;
    drop(partition);
    db.close().expect("what was written can be synced");
    folder
}

/// The manifest comes first: the log thread of an open store may list a segment meanwhile, and makes it before that.
fn copy(from: &Path) -> TempDir {
    let to = tempfile::tempdir().expect("the system has a temporary folder");
    for is_first in [true, false] {
        for file in fs::read_dir(from).expect("the folder can be listed") {
            let name = file.expect("the folder can be listed").file_name();
            let is_manifest = Path::new(&name).extension().is_some_and(|it| it == "manifest");
            if is_manifest == is_first {
                fs::copy(from.join(&name), to.path().join(&name))
                    .expect("there is room for a copy");
            }
        }
    }
    to
}

fn opens(c: &mut Criterion, name: &str, original: &Path) {
    c.bench_function(&format!("open/{name}"), |b| {
        b.iter_batched(|| copy(original), open_in, BatchSize::PerIteration);
    });
}

fn open_in(folder: TempDir) -> (Db, TempDir) {
    (Db::open(folder.path()).expect("it is whole"), folder)
}

fn open(c: &mut Criterion) {
    // Short segments, so that few empty bytes are copied.
    let options = Options::new().wal_segment_bytes(1 << 20);
    let nothing = tempfile::tempdir().expect("the system has a temporary folder");
    opens(c, "new", nothing.path());

    let mut tables = Store::empty(options.clone());
    tables.fill(0..RECORDS);
    tables.db.flush().expect("there is room for the tables");
    let tables = closed(tables);
    opens(c, "tables_of_100000_records", tables.path());

    let mut log = Store::empty(options);
    log.fill(0..RECORDS / 10);
    // As a crash leaves it: a close would flush so many records.
    let crashed = copy(log.folder.path());
    drop(closed(log));
    opens(c, "log_of_10000_records", crashed.path());
}

criterion_group! { name = benches; config = store::criterion(); targets = open }
criterion_main!(benches);
