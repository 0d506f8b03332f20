//! The bytes of a chunk file, a handle and a section, printed against the tables that describe them.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lsm_core::clock::Clock;
use lsm_core::fs::MemFs;
use lsm_core::hooks::{AddedValue, StoreEdit, ValueStoreFactory};
use lsm_core::options::Compression;
use testkit::{assert_golden, hexdump};

use crate::options::LargeValueOptions;
use crate::store::LargeValues;
use crate::tests::context;

/// A clock that stands.
struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn unix_time(&self) -> Duration {
        Duration::from_secs(1_700_000_000)
    }
}

/// A chunk file with one value of 300 bytes in sub-blocks of 256, its handle and its section.
struct Written {
    file: Vec<u8>,
    handle: Vec<u8>,
    section: Vec<u8>,
}

fn write(options: LargeValueOptions, value: &[u8]) -> Written {
    let fs = MemFs::new();
    let context = context(&fs, Arc::new(Stopped));
    let store = LargeValues::new(options).unwrap().open(context, &[]);
    let store = store.unwrap();
    let pending = store.put(b"key", value).unwrap();
    let handle = pending.bytes().to_vec();
    pending.keep();
    let added = [AddedValue { key: b"key".to_vec(), handle: handle.clone() }];
    let section = store.edit(StoreEdit::adding(&added)).unwrap();
    let file = fs.read_raw(Path::new("/db/000000000000002d-00000003.chunk")).unwrap();
    Written { file, handle, section }
}

fn tiny() -> LargeValueOptions {
    LargeValueOptions::new().threshold_bytes(256).sub_block_bytes(256)
}

/// The parts of a chunk file before its value.
fn front_notes() -> Vec<(Range<usize>, &'static str)> {
    vec![
        (0..8, "magic"),
        (8..12, "version, zero"),
        (12..16, "partition"),
        (16..32, "number and epoch of the chunk, zero"),
        (32..48, "database"),
        (48..56, "zero"),
        (56..64, "checksum of the header"),
        (64..72, "block: magic, version, log2 of sub-block size"),
        (72..80, "epoch of the chunk, length of the key"),
        (80..96, "number of the chunk, offset of the block"),
        (96..104, "time stored"),
        (104..112, "checksum of block header and key"),
        (112..115, "key"),
    ]
}

fn handle_notes() -> Vec<(Range<usize>, &'static str)> {
    vec![
        (0..4, "version, log2 of sub-block size"),
        (4..16, "epoch and number of the chunk"),
        (16..32, "offset of the block, length of the key"),
        (32..40, "length of the value"),
        (40..48, "time stored"),
        (48..64, "root hash"),
    ]
}

fn joined(parts: &[(&str, String)]) -> String {
    let parts: Vec<String> = parts.iter().map(|(name, dump)| format!("{name}\n{dump}")).collect();
    parts.join("\n")
}

#[test]
fn a_chunk_file_a_handle_and_a_section_are_as_described() {
    let value: Vec<u8> = (0..300_u32).map(|n| n as u8).collect();
    let Written { file, handle, section } = write(tiny(), &value);
    let mut file_notes = front_notes();
    file_notes.extend([
        (115..371, "first sub-block"),
        (371..415, "second sub-block"),
        (415..431, "a checksum for each"),
    ]);
    let section_notes: Vec<(Range<usize>, &str)> = vec![
        (0..2, "version, kind"),
        (2..3, "one chunk"),
        (3..5, "number, epoch"),
        (5..10, "blocks and bytes added, dropped"),
        (10..12, "last offset"),
        (12..20, "smallest and largest key"),
    ];
    let text = [
        ("chunk file", hexdump::annotate(&file, &file_notes)),
        ("handle", hexdump::annotate(&handle, &handle_notes())),
        ("section", hexdump::annotate(&section, &section_notes)),
        ("parameters", hexdump::annotate(&tiny().encode(), &[(0..32, "see options.rs")])),
    ];
    assert_golden("chunk.txt", &joined(&text));
}

/// The first sub-block is compressed, and the second is not: it is random.
#[test]
fn a_compressed_value_and_its_handle_are_as_described() {
    let mut value = vec![b'v'; 300];
    testkit::Rng::new(1).fill(&mut value[256..]);
    let options = tiny().compression(Compression::Lz4);
    let Written { file, handle, .. } = write(options, &value);
    let mut file_notes = front_notes();
    file_notes.extend([
        (115..127, "first sub-block, an LZ4 block"),
        (127..171, "second sub-block, as it is"),
        (171..183, "of the first: checksum, stored length"),
        (183..195, "of the second"),
    ]);
    let mut handle_notes = handle_notes();
    handle_notes.push((64..72, "stored length of the value"));
    let text = [
        ("chunk file", hexdump::annotate(&file, &file_notes)),
        ("handle", hexdump::annotate(&handle, &handle_notes)),
        ("parameters", hexdump::annotate(&options.encode(), &[(0..32, "see options.rs")])),
    ];
    assert_golden("chunk-compressed.txt", &joined(&text));
}
