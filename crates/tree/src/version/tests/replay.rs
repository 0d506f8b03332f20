//! The place where a replay begins: its bytes, and the changes that move or end it.

use super::*;

fn place(segment: u64, offset: u64) -> LogCut {
    LogCut { segment: FileNo(segment), offset, last_seq: seq(299) }
}

fn begun() -> DbVersion {
    with(&base(), vec![Change::ReplayFrom(place(9, 4096))])
}

/// A reader that does not know the change passes it over, because of the last bit of its tag.
#[test]
fn bytes_of_the_place_are_these() {
    let edit = VersionEdit { number: 1, changes: vec![Change::ReplayFrom(place(9, 4096))] };
    let mut bytes = Vec::new();
    edit.encode(&mut bytes);
    assert_eq!(bytes, [20 << 1 | 1, 5, 9, 0x80, 0x20, 0xab, 0x02]);
    assert_eq!(VersionEdit::decode(1, &bytes).unwrap(), edit);
}

#[test]
fn the_place_moves_on_and_ends_with_its_segment_or_epoch() {
    let version = begun();
    assert_eq!(version.replay_from, Some(place(9, 4096)));
    assert_eq!(version.last_seq, seq(299), "numbers before it were used");
    let added = Change::SegmentAdded { file: FileNo(12), epoch: Epoch(1) };
    for (segment, offset) in [(9, 4096), (9, 4104), (12, 128)] {
        let later = place(segment, offset);
        let moved = with(&version, vec![added.clone(), Change::ReplayFrom(later)]);
        assert_eq!(moved.replay_from, Some(later));
    }
    let removed = [9, 12].map(|file| Change::SegmentRemoved { file: FileNo(file) });
    let without = with(&version, vec![added.clone(), removed[0].clone()]);
    assert_eq!(without.replay_from, None);
    let other = with(&version, vec![added, removed[1].clone()]);
    assert_eq!(other.replay_from, version.replay_from);
    let epoch = with(&version, vec![Change::EpochBegan { epoch: Epoch(2), cut: None }]);
    assert_eq!(epoch.replay_from, None);
}

#[test]
fn a_place_that_goes_back_or_is_in_no_live_segment_is_refused() {
    for place in [place(9, 4088), place(8, 5000), place(10, 128)] {
        let edit = next(&begun(), vec![Change::ReplayFrom(place)]);
        let refused = apply(&begun(), &edit).unwrap_err();
        assert!(refused.0.starts_with("replay "), "{refused}");
    }
}
