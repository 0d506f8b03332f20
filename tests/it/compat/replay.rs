//! A database whose manifest records the position at which a replay begins:
//! `tests/fixtures/replay/`, of the first version that wrote that. Most of its log is flushed; its
//! writer died.
//!
//! `BLESS_FIXTURE=replay cargo test fixture_with_a_place` writes it again. Do this only before its
//! format is released.

use super::*;

/// The writes of the fixture: partition, key and value. Only those of `behind` are not flushed.
fn writes() -> Vec<Write> {
    let writes = (0..60_u8).map(|n| (["left", "right"][usize::from(n) % 2], n, "sand ".repeat(10)));
    let after = (0..5_u8).map(|n| ("behind", n, n.to_string()));
    writes.chain(after).collect()
}

fn write_replay() -> MemFs {
    let fs = MemFs::new();
    let db = builder(&fs).open().unwrap();
    write_all(&db, &writes());
    db.partition("left").unwrap().flush().unwrap();
    db.partition("right").unwrap().flush().unwrap();
    // The log thread writes a mark that proves the rest durable: without a cursor, a secondary
    // reads no further than that.
    db.wait_idle().unwrap();
    fs.crash_clone(CrashOutcome::Everything, &mut || 0)
}

#[test]
fn a_fixture_with_a_place_where_a_replay_begins_is_followed_and_opened() {
    fixtures::bless("replay", write_replay);
    let fs = fixtures::in_memory("replay");
    let manifest = files(&fs, FileKind::Manifest).remove(0);
    // Tag, length, segment; the offset and the last sequence number follow.
    let bytes = fs.read_raw(&manifest).unwrap();
    let place = bytes.windows(2).rposition(|window| window == [20 << 1 | 1, 4]);
    assert_eq!(place.map(|at| bytes[at + 5]), Some(60), "after all that is flushed");
    check_followed_and_opened(&fs, &writes());
}
