//! The fuzz targets: one function for each decoder, and one for the calls on a database. It takes any bytes, and fails
//! by a panic.
//!
//! Called by the replay in `main.rs`, and by libFuzzer from `fuzz/`. A decoder that looks at bytes only after a
//! checksum is called with a right one.

#[path = "targets/encrypted.rs"]
mod encrypted;
#[path = "targets/operations.rs"]
mod operations;

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use lsm_core::fs::{Fs, MemFs};
use lsm_core::hooks::CompactionFilterFactory;
use lsm_core::internals::{batch, decoders, names};
use lsm_core::sweep::SweepMark;
use lsm_core::{operators, raw};
use siltstone::stream::StreamImport;
use siltstone::{BackgroundMode, Db, TtlFilter};

/// A decoder, with all that it hands out read.
pub type Target = fn(&[u8]);

/// All targets by their names, which are those of their files in `corpus/`.
pub const TARGETS: [(&str, Target); 24] = [
    ("chunks", largeval::decoders::chunks),
    ("edits", decoders::edits),
    ("encrypted", encrypted::encrypted),
    ("export", decoders::export_description),
    ("file", file),
    ("handle", largeval::decoders::handle),
    ("key", typed::decoders::key),
    ("large_options", largeval::decoders::options),
    ("metadata", metahive::decoders::payload),
    ("name", name),
    ("object", remote::decoders::object),
    ("operations", operations::operations),
    ("operator", operator),
    ("reply", server::decoders::reply),
    ("request", server::decoders::request),
    ("section", section),
    ("segment", decoders::segment),
    ("session", server::decoders::session),
    ("shards", server::decoders::shards),
    ("stream", stream),
    ("table", decoders::table),
    ("table_seal", metahive::decoders::table_seal),
    ("text", server::decoders::text),
    ("ttl", ttl),
];

/// The description of a file of any kind.
fn file(bytes: &[u8]) {
    let fs = MemFs::new();
    let path = Path::new("/0000000000000001-00000001.manifest");
    let written = fs.write_raw(path, bytes);
    written.expect("memory takes a file");
    let file = fs.open_read(path).expect("the file is there");
    for inside in [false, true] {
        let Ok(description) = raw::describe(file.clone(), path, inside) else { continue };
        let len = bytes.len() as u64;
        assert!(description.lines.iter().all(|(range, _)| range.end <= len), "a place in the file");
    }
}

/// A name of a file, and the mark of a verification.
fn name(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(name) = names::FileName::parse(text) {
        assert_eq!(name.to_string(), text, "a name reads back");
    }
    if let Ok(mark) = text.parse::<SweepMark>() {
        assert_eq!(mark.to_string().parse(), Ok(mark), "a mark reads back");
    }
}

/// Parameters of a merge operator, and operands, each after its length in a byte.
fn operator(bytes: &[u8]) {
    let Some((which, rest)) = bytes.split_first() else { return };
    let names = ["append", "set bits", "add", "max", "min"];
    let name = names[usize::from(*which) % names.len()];
    let operators =
        [operators::ready_made(name, b""), operators::ready_made(name, &rest[..rest.len().min(3)])];
    for operator in operators.into_iter().flatten() {
        let mut value = Vec::new();
        let mut rest = rest;
        while let Some((len, after)) = rest.split_first() {
            let (operand, after) = after.split_at(after.len().min((*len).into()));
            rest = after;
            if operator.check(b"key", operand).is_ok() {
                let _ = operator.merge(b"key", &mut value, operand);
            }
        }
        assert!(value.len() <= 4 * bytes.len() + 16, "a result of {} bytes", value.len());
    }
}

/// The operations of a batch in a partition.
fn section(bytes: &[u8]) {
    let mut reader = batch::SectionReader::new(bytes);
    while let Ok(Some(operation)) = reader.next_operation() {
        let parts = [bytes.get(operation.key), bytes.get(operation.value)];
        assert!(parts.iter().all(Option::is_some), "an operation lies in its section");
    }
}

/// An import of a stream, or of text of Berkeley DB.
fn stream(bytes: &[u8]) {
    let db = Db::builder("/db").fs(Arc::new(MemFs::new())).background(BackgroundMode::Stepped);
    let db = db.open().expect("memory takes a database");
    let mut source: &[u8] = bytes;
    let imported = db.import_stream(&mut source, &StreamImport::new().partition("default"));
    let Ok(summary) = imported else { return };
    let mut entries = 0;
    for name in db.partition_names() {
        let partition = db.partition(&name).expect("it was imported");
        entries += partition.iter().flatten().count() as u64;
    }
    assert!(entries <= summary.entries, "{entries} of {} entries", summary.entries);
    let mut rest = Vec::new();
    let _ = source.take(1).read_to_end(&mut rest);
}

/// A stored rule of expiry, and an entry: a key of 8 bytes, and its value.
fn ttl(bytes: &[u8]) {
    for len in 0..=bytes.len().min(64) {
        let (params, entry) = bytes.split_at(len);
        let Some(filter) = TtlFilter::from_params(params) else { continue };
        let Some(expiry) = filter.expiry() else { continue };
        let (key, value) = entry.split_at(entry.len().min(8));
        let _ = (expiry.expires_at(key, Some(value)), expiry.expires_at(key, None));
        for seconds in [0, 1 << 30, u64::MAX / 1_000_000_000] {
            let _ = expiry.now(std::time::Duration::from_secs(seconds));
        }
        let _ = expiry.stays_for();
    }
}
