//! A database with a flush that did not wait for a sync of the log: `tests/fixtures/ahead/`, of the
//! first version that wrote that. The power was cut, and the part of the log that the flush was
//! made from is lost.
//!
//! `BLESS_FIXTURE=ahead cargo test fixture_with_a_flush` writes it again. Do this only before its
//! format is released.

use super::*;

/// The writes of the fixture: partition, key and value. Those of `left` are flushed.
fn writes() -> Vec<Write> {
    let after = (0..5_u8).map(|n| ("behind", n, n.to_string()));
    after.chain((0..30_u8).map(|n| ("left", n, "silt ".repeat(10)))).collect()
}

fn write_ahead() -> MemFs {
    let fs = MemFs::new();
    let db = builder(&fs).open().unwrap();
    write_all(&db, &writes()[..5]);
    db.wait_durable(db.visible_seq()).unwrap();
    write_all(&db, &writes()[5..]);
    db.partition("left").unwrap().flush().unwrap();
    fs.crash_clone(CrashOutcome::Nothing, &mut || 0)
}

#[test]
fn a_fixture_with_a_flush_that_is_ahead_of_the_log_is_followed_and_opened() {
    fixtures::bless("ahead", write_ahead);
    let fs = fixtures::in_memory("ahead");
    let manifest = files(&fs, FileKind::Manifest).remove(0);
    let bytes = fs.read_raw(&manifest).unwrap();
    // Tag, length, and two sequence numbers: that of the last batch, and that of the last durable
    // batch.
    let change = [21 << 1, 2, 35, 5];
    assert!(bytes.windows(change.len()).any(|window| window == change), "{bytes:x?}");
    for segment in files(&fs, FileKind::Wal) {
        let bytes = fs.read_raw(&segment).unwrap();
        assert!(!bytes.windows(5).any(|window| window == b"silt "), "it is lost");
    }
    check_followed_and_opened(&fs, &writes());
}
