//! The bytes of a chunk file, a handle and a section, printed against the tables that describe them.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lsm_core::clock::Clock;
use lsm_core::fs::{Fs, MemFs};
use lsm_core::hooks::{AddedValue, EventQueue, StoreContext, StoreEdit, ValueStoreFactory};
use lsm_core::types::{DbId, Epoch, FileNo, FileNumbers, PartitionId};
use testkit::{assert_golden, hexdump};

use crate::options::LargeValueOptions;
use crate::store::LargeValues;

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

#[test]
fn a_chunk_file_a_handle_and_a_section_are_as_described() {
    let fs = MemFs::new();
    fs.create_dir(Path::new("/db")).unwrap();
    let options = LargeValueOptions::new().threshold_bytes(256).sub_block_bytes(256);
    let store = LargeValues::new(options).unwrap().open(StoreContext {
        partition: PartitionId(7),
        partition_name: "p".into(),
        db_id: DbId(0x0123_4567_89ab_cdef_0011_2233_4455_6677),
        epoch: Epoch(3),
        dir: "/db".into(),
        fs: Arc::new(fs.clone()),
        clock: Arc::new(Stopped),
        numbers: Arc::new(FileNumbers::new(FileNo(0x2d))),
        is_read_only: false,
        events: EventQueue::default(),
        is_following: false,
    });
    let store = store.unwrap();
    let value: Vec<u8> = (0..300_u32).map(|n| n as u8).collect();
    let pending = store.put(b"key", &value).unwrap();
    let handle = pending.bytes().to_vec();
    pending.keep();
    let added = [AddedValue { key: b"key".to_vec(), handle: handle.clone() }];
    let edit = StoreEdit { number: 9, added: &added, ..StoreEdit::default() };
    let section = store.edit(&edit);
    let file = fs.read_raw(Path::new("/db/000000000000002d-00000003.chunk")).unwrap();
    let file_notes: Vec<(Range<usize>, &str)> = vec![
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
        (115..371, "first sub-block"),
        (371..415, "second sub-block"),
        (415..431, "a checksum for each"),
    ];
    let handle_notes: Vec<(Range<usize>, &str)> = vec![
        (0..4, "version, log2 of sub-block size"),
        (4..16, "epoch and number of the chunk"),
        (16..32, "offset of the block, length of the key"),
        (32..40, "length of the value"),
        (40..48, "time stored"),
        (48..64, "root hash"),
    ];
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
        ("handle", hexdump::annotate(&handle, &handle_notes)),
        ("section", hexdump::annotate(&section, &section_notes)),
        ("parameters", hexdump::annotate(&options.encode(), &[(0..32, "see options.rs")])),
    ];
    let text: Vec<String> = text.iter().map(|(name, dump)| format!("{name}\n{dump}")).collect();
    assert_golden("chunk.txt", &text.join("\n"));
}
