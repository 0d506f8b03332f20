//! When a store wishes a flush.

use lsm_core::clock::SystemClock;
use lsm_core::fs::MemFs;
use lsm_core::hooks::{AddedValue, Entry, Relocation, RelocationJob, ValueStore};
use lsm_core::types::{EntryKind, SeqNo};

use super::*;
use crate::format::{CHUNK_HEADER_BYTES, Form};
use crate::store::LargeStore;
use crate::tests::context;

#[test]
fn a_flush_is_wished_after_a_share_of_the_live_values_and_never_for_relocated_ones() {
    let context = context(&MemFs::new(), Arc::new(SystemClock::new()));
    let chunk = context.new_chunk();
    let options = LargeValueOptions::new().garbage_permille(100);
    let shared = Arc::new(Shared::new(context, options).unwrap());
    shared.note_put(FLUSH_BYTES_MIN - 1);
    assert_eq!(shared.state.lock().until_flush, 1);
    shared.note_put(5);
    assert_eq!(shared.state.lock().until_flush, FLUSH_BYTES_MIN, "nothing is live yet");
    let handle = Handle {
        chunk,
        offset: CHUNK_HEADER_BYTES,
        key_len: 1,
        sub_block_log2: 18,
        len: 4 << 30,
        stored_us: 0,
        root: 0,
        form: Form::Plain,
    };
    let added = [AddedValue { key: b"k".to_vec(), handle: handle.encode() }];
    let section = Chunks::section(&added, &[]);
    let mut state = shared.state.lock();
    state.chunks.apply(1, &section).unwrap();
    let tenth = state.chunks.live_bytes() / 1000 * 100;
    drop(state);
    shared.note_put(FLUSH_BYTES_MIN);
    assert_eq!(shared.state.lock().until_flush, tenth);
    assert!((400 << 20..420 << 20).contains(&tenth));
    let entry = Entry {
        key: b"moves into the store",
        seq: SeqNo::ZERO,
        stored_seq: SeqNo::ZERO,
        kind: EntryKind::Value,
        value: &[7; 1000],
        hidden: false,
    };
    let store = LargeStore(shared.clone());
    assert!(matches!(
        store.relocate(entry, RelocationJob::Compaction).unwrap(),
        Relocation::Moved(_)
    ));
    assert_eq!(shared.state.lock().until_flush, tenth);
    drop(store.put(b"k", &[7; 1000]).unwrap());
    assert!(shared.state.lock().until_flush < tenth);
}
