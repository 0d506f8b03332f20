//! The counts of chunk files, by the sections of edits.

use std::time::Duration;

use lsm_core::error::{Error, ErrorKind};
use lsm_core::hooks::{AddedValue, KeySpan};

use super::*;
use crate::choosing::{ChoiceTime, Due};
use crate::format::Form;

/// A disk with all the room that is needed.
const PLENTY: ChoiceTime = ChoiceTime { free: u64::MAX, now: Duration::ZERO };

fn due(garbage_permille: u64, all: bool) -> Due {
    Due { garbage_permille, all, asked: false }
}

fn handle(chunk: u64, offset: u64) -> Handle {
    let chunk = ChunkId { number: FileNo(chunk), epoch: Epoch(1) };
    let form = Form::Plain;
    Handle { chunk, offset, key_len: 1, sub_block_log2: 18, len: 1000, stored_us: 0, root: 0, form }
}

fn added(key: &str, handle: &Handle) -> AddedValue {
    AddedValue { key: key.into(), handle: handle.encode() }
}

#[test]
fn a_chunk_goes_when_all_in_it_is_dropped_and_read_by_no_one() {
    let mut chunks = Chunks::default();
    let one = handle(1, 64);
    let two = handle(1, 2000);
    chunks.add_pending(&one);
    chunks.add_pending(&two);
    chunks.apply(5, &Chunks::section(&[added("b", &one), added("a", &two)], &[])).unwrap();
    let chunk = &chunks.by_id[&one.chunk];
    assert_eq!((chunk.live.blocks, chunk.pending.blocks), (2, 0));
    assert_eq!((&chunk.smallest[..], &chunk.largest[..]), (&b"a"[..], &b"b"[..]));
    chunks.apply(6, &Chunks::section(&[], &[one.encode()])).unwrap();
    // It comes again, as after a failure.
    chunks.apply(6, &Chunks::section(&[], &[one.encode()])).unwrap();
    assert_eq!((chunks.by_id[&one.chunk].live.blocks, chunks.held_bytes()), (1, 1057));
    chunks.apply(7, &Chunks::section(&[], &[two.encode()])).unwrap();
    chunks.reclaim(6);
    assert!(chunks.take_dead(|_| true).is_empty(), "somebody may read what edit 7 dropped");
    chunks.reclaim(7);
    let dead: Vec<ChunkId> = chunks.take_dead(|_| true).iter().map(|dead| dead.id).collect();
    assert_eq!((dead, chunks.held_bytes()), (vec![one.chunk], 0));
}

#[test]
fn a_state_is_as_good_as_the_edits_before_it() {
    let mut chunks = Chunks::default();
    let one = handle(1, 64);
    let two = handle(2, 64);
    let first = Chunks::section(&[added("k", &one), added("l", &two)], &[]);
    chunks.apply(3, &first).unwrap();
    chunks.apply(4, &Chunks::section(&[], &[two.encode()])).unwrap();
    let mut other = Chunks::default();
    other.apply(4, &chunks.state()).unwrap();
    other.apply(3, &first).unwrap();
    assert_eq!(other.by_id.len(), 1);
    assert_eq!(other.by_id[&one.chunk].live, chunks.by_id[&one.chunk].live);
    assert_eq!(other.by_id[&one.chunk].largest, b"k");
}

#[test]
fn a_chunk_whose_counts_are_damaged_stays() {
    let mut chunks = Chunks::default();
    let one = handle(1, 64);
    chunks.apply(1, &Chunks::section(&[added("k", &one)], &[])).unwrap();
    chunks.apply(2, &Chunks::section(&[], &[one.encode(), one.encode()])).unwrap();
    chunks.reclaim(2);
    assert!(chunks.take_dead(|_| true).is_empty());
    // An open deletes the files that are not listed.
    assert_eq!(decode(&chunks.state()).unwrap().1.len(), 1);
    let mut again = Chunks::default();
    again.apply(2, &chunks.state()).unwrap();
    again.reclaim_all();
    assert!(again.take_dead(|_| true).is_empty());
}

#[test]
fn a_section_with_a_chunk_twice_is_refused() {
    let one = handle(1, 64);
    let mut section = Chunks::section(&[added("k", &one)], &[]);
    let entry = section[3..].to_vec();
    assert_eq!(section[2], 1, "one chunk");
    section[2] = 2;
    section.extend_from_slice(&entry);
    let refused = Chunks::default().apply(1, &section).unwrap_err();
    assert!(refused.what.contains("out of order"), "{}", refused.what);
}

#[test]
fn chunks_with_enough_garbage_are_moved_and_given_up_if_that_fails() {
    let mut chunks = Chunks::default();
    let values: Vec<Handle> = (0..4).map(|n| handle(1, 64 + n * 1057)).collect();
    let keys = ["a", "b", "c", "d"];
    let all: Vec<_> = keys.iter().zip(&values).map(|(key, value)| added(key, value)).collect();
    chunks.apply(1, &Chunks::section(&all, &[])).unwrap();
    assert_eq!(chunks.choose_moving(due(250, false), PLENTY), None);
    chunks.apply(2, &Chunks::section(&[], &[values[0].encode(), values[1].encode()])).unwrap();
    assert_eq!(
        chunks.choose_moving(due(500, false), PLENTY),
        None,
        "the header of the file is none"
    );
    let span = KeySpan { smallest: b"a".to_vec(), largest: b"d".to_vec() };
    assert_eq!(chunks.choose_moving(due(490, false), PLENTY), Some(span));
    assert_eq!(chunks.choose_moving(due(490, false), PLENTY), None, "it was tried");
}

/// A value of 20 MiB.
fn long(chunk: u64, n: u64) -> Handle {
    let len = 20 << 20;
    Handle { len, ..handle(chunk, 64 + n * (len + 8192)) }
}

/// The numbers of the chunks that are to be moved.
fn moving(chunks: &Chunks) -> Vec<u64> {
    let moving = chunks.by_id.iter().filter(|(_, chunk)| chunk.is_moving);
    moving.map(|(id, _)| id.number.0).collect()
}

/// Otherwise each call moves all that is due, and most of it is overwritten soon.
#[test]
fn chunks_with_the_most_garbage_are_moved_first_and_others_later() {
    let mut chunks = Chunks::default();
    // Each has ten values, and loses as many as its number says.
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    for chunk in 1..=9 {
        let all: Vec<_> = (0..10).map(|n| added(keys[chunk as usize], &long(chunk, n))).collect();
        chunks.apply(chunk, &Chunks::section(&all, &[])).unwrap();
    }
    for chunk in 1..=9 {
        let dropped: Vec<_> = (0..chunk).map(|n| long(chunk, n).encode()).collect();
        chunks.apply(9 + chunk, &Chunks::section(&[], &dropped)).unwrap();
    }
    let span = KeySpan { smallest: b"d".to_vec(), largest: b"j".to_vec() };
    let mut at_rest = Chunks::default();
    at_rest.apply(18, &chunks.state()).unwrap();
    at_rest.by_id.iter_mut().for_each(|(id, chunk)| chunk.end = chunks.by_id[id].end);
    assert_eq!(at_rest.choose_moving(due(250, true), PLENTY), Some(span));
    assert_eq!(moving(&at_rest), [3, 4, 5, 6, 7, 8, 9]);
    // Of 900 MiB, a sixteenth is less than 64 MiB: 20 + 40 + 60.
    let span = KeySpan { smallest: b"h".to_vec(), largest: b"j".to_vec() };
    assert_eq!(chunks.choose_moving(due(250, false), PLENTY), Some(span));
    assert_eq!(moving(&chunks), [7, 8, 9]);
    let mut emptied = 18;
    for expected in [&[6_u64][..], &[5], &[4], &[3], &[]] {
        for id in moving(&chunks) {
            emptied += 1;
            let rest: Vec<_> = (id..10).map(|n| long(id, n).encode()).collect();
            chunks.apply(emptied, &Chunks::section(&[], &rest)).unwrap();
        }
        assert_eq!(chunks.choose_moving(due(250, false), PLENTY).is_some(), !expected.is_empty());
        let live = moving(&chunks).into_iter().filter(|id| {
            chunks.by_id.iter().any(|(of, chunk)| of.number.0 == *id && chunk.live.blocks > 0)
        });
        assert_eq!(live.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn a_sixteenth_of_much_is_moved_at_a_time() {
    let mut chunks = Chunks::default();
    for chunk in 1..=60 {
        let all: Vec<_> = (0..10).map(|n| added("k", &long(chunk, n))).collect();
        let dropped: Vec<_> = (0..5).map(|n| long(chunk, n).encode()).collect();
        chunks.apply(chunk, &Chunks::section(&all, &dropped)).unwrap();
    }
    // They are alike, and each has 100 MiB of values.
    assert!(chunks.choose_moving(due(250, false), PLENTY).is_some());
    assert_eq!(moving(&chunks), [1, 2, 3, 4], "of 6,000 MiB");
}

/// Nine chunks, each with two values of a length of 20 MiB and a third that is garbage.
fn with_garbage() -> Chunks {
    let mut chunks = Chunks::default();
    for chunk in 1..=9 {
        let all: Vec<_> = (0..3).map(|n| added("k", &long(chunk, n))).collect();
        chunks.apply(chunk, &Chunks::section(&all, &[long(chunk, 0).encode()])).unwrap();
    }
    chunks
}

const MIB: u64 = 1 << 20;

fn moment(free: u64, seconds: u64) -> ChoiceTime {
    ChoiceTime { free, now: Duration::from_secs(seconds) }
}

#[test]
fn as_much_is_chosen_as_there_is_room_for() {
    // Half of the room is for more than one of 40 MiB.
    for (free, expected) in [(0, 0), (40, 0), (42, 1), (160, 1), (162, 2), (723, 9)] {
        let mut chunks = with_garbage();
        let chosen = chunks.choose_moving(due(250, true), moment(free * MIB, 0));
        assert_eq!((chosen.is_some(), moving(&chunks).len()), (expected > 0, expected), "{free}");
        assert_eq!(chunks.unmoved().is_some(), expected == 0, "{free}");
    }
    let mut chunks = with_garbage();
    chunks.choose_moving(due(250, true), moment(MIB, 0));
    let text = chunks.unmoved().unwrap().to_string();
    let needs = text.split(' ').find_map(|word| word.parse().ok());
    let needs: u64 = needs.expect("a number");
    assert!(chunks.choose_moving(due(250, true), moment(needs - 1, 0)).is_none(), "{text}");
    assert!(chunks.choose_moving(due(250, true), moment(needs, 0)).is_some(), "{text}");
    // Values are put into order completely or not at all.
    let mut chunks = with_garbage();
    let refused = chunks.choose_within(b"a", None, moment(360 * MIB, 0)).unwrap_err();
    assert_eq!((refused.kind(), moving(&chunks).len()), (ErrorKind::NoSpace, 0));
    assert!(chunks.choose_within(b"a", None, moment(362 * MIB, 0)).unwrap().is_some());
    assert_eq!(moving(&chunks).len(), 9);
}

#[test]
fn less_is_chosen_after_a_job_that_found_no_space_and_at_last_nothing_without_more_room() {
    let full = Error::new(ErrorKind::NoSpace, "full");
    let mut chunks = with_garbage();
    let mut counts = Vec::new();
    // Each rest takes the room for another half of its values.
    while chunks.choose_moving(due(250, true), moment(800 * MIB, 0)).is_some() {
        counts.push(moving(&chunks).len());
        chunks.note_job_failed(&full, moment(800 * MIB, 0));
        assert!(moving(&chunks).is_empty() && counts.len() < 20);
    }
    assert_eq!(counts, [9, 4, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(chunks.unmoved().unwrap().kind(), ErrorKind::NoSpace);
    assert!(chunks.choose_moving(due(250, true), moment(819 * MIB, 0)).is_none());
    assert!(chunks.choose_moving(due(250, true), moment(822 * MIB, 0)).is_some());
    assert!(chunks.unmoved().is_some(), "others rest");
    let again = Due { asked: true, ..due(250, true) };
    chunks.note_job_failed(&full, moment(800 * MIB, 0));
    assert!(chunks.choose_moving(again, moment(800 * MIB, 0)).is_some());
    assert!(chunks.unmoved().is_none());
}

#[test]
fn a_chunk_that_cannot_be_read_is_tried_again_after_longer_and_longer_times() {
    let broken = Error::new(ErrorKind::Io, "broken");
    let mut chunks = with_garbage();
    let mut seconds = 0;
    for delay in [60, 120, 240, 480, 960, 1920, 3840, 3840, 3840] {
        assert!(chunks.choose_moving(due(250, true), moment(u64::MAX, seconds)).is_some());
        let id = *chunks.by_id.keys().next().unwrap();
        chunks.note_unread(id, &broken, moment(u64::MAX, seconds));
        chunks.note_unread(id, &broken, moment(u64::MAX, seconds + 1));
        assert!(moving(&chunks).contains(&1), "its other values are moved");
        // All others are emptied.
        let rest = moving(&chunks).into_iter().filter(|id| *id > 1);
        let rest: Vec<_> = rest.flat_map(|id| [1, 2].map(|n| long(id, n).encode())).collect();
        chunks.apply(100 + seconds, &Chunks::section(&[], &rest)).unwrap();
        assert_eq!(chunks.choose_moving(due(250, true), moment(0, seconds + delay - 1)), None);
        assert_eq!(chunks.unmoved(), Some(&broken));
        seconds += delay;
    }
    // Damage is no failure that passes.
    assert!(chunks.choose_moving(due(250, true), moment(u64::MAX, seconds)).is_some());
    let id = *chunks.by_id.keys().next().unwrap();
    chunks.note_unread(id, &Error::corruption("file", 5, "damaged"), moment(u64::MAX, seconds));
    let asked = Due { asked: true, ..due(250, true) };
    assert_eq!(chunks.choose_moving(asked, moment(u64::MAX, 2 * seconds)), None);
    assert_eq!(chunks.unmoved(), None);
}

#[test]
fn a_chunk_that_was_emptied_and_is_still_read_is_not_chosen_again() {
    let mut chunks = Chunks::default();
    let old = [handle(1, 64), handle(1, 2000)];
    let new = [handle(3, 64), handle(3, 2000)];
    let other = [handle(2, 64), handle(2, 2000)];
    let first = [added("b", &old[0]), added("a", &old[1])];
    chunks.apply(1, &Chunks::section(&first, &[])).unwrap();
    let second = [added("z", &other[0]), added("y", &other[1])];
    chunks.apply(2, &Chunks::section(&second, &[])).unwrap();
    let span = KeySpan { smallest: b"a".to_vec(), largest: b"b".to_vec() };
    assert_eq!(chunks.choose_within(b"a", Some(b"b"), PLENTY), Ok(Some(span)));
    let moved = [added("a", &new[0]), added("b", &new[1])];
    let dropped = old.each_ref().map(Handle::encode);
    chunks.apply(3, &Chunks::section(&moved, &dropped)).unwrap();
    let span = KeySpan { smallest: b"y".to_vec(), largest: b"z".to_vec() };
    assert_eq!(chunks.choose_within(b"y", None, PLENTY), Ok(Some(span)));
}

#[test]
fn every_truncation_of_a_section_is_refused() {
    let one = handle(1, 64);
    let section = Chunks::section(&[added("key", &one)], &[one.encode()]);
    for len in 0..section.len() {
        assert!(Chunks::default().apply(1, &section[..len]).is_err(), "{len} bytes");
    }
    let mut long = section.clone();
    long.push(0);
    assert!(Chunks::default().apply(1, &long).is_err());
}

#[test]
fn a_state_after_the_edits_that_it_stands_for_counts_nothing_twice() {
    let mut primary = Chunks::default();
    let one = handle(1, 64);
    let two = handle(2, 64);
    let added = Chunks::section(&[added("k", &one), added("l", &two)], &[]);
    primary.apply(3, &added).unwrap();
    let dropped = Chunks::section(&[], &[two.encode()]);
    primary.apply(4, &dropped).unwrap();
    let mut follower = Chunks::default();
    follower.apply(3, &added).unwrap();
    follower.apply(4, &dropped).unwrap();
    follower.apply(9, &primary.state()).unwrap();
    assert_eq!(follower.by_id[&one.chunk].live, primary.by_id[&one.chunk].live);
    assert_eq!((follower.by_id.len(), follower.held_bytes()), (1, 0));
}

#[test]
fn what_no_table_names_is_dropped_and_nothing_else() {
    let mut chunks = Chunks::default();
    let handles = [handle(1, 64), handle(1, 2000), handle(2, 64), handle(3, 64)];
    let named: Vec<_> = handles.iter().map(|handle| added("k", handle)).collect();
    chunks.apply(3, &Chunks::section(&named, &[])).unwrap();
    let mut unnamed = Unnamed::of(&chunks.state()).unwrap();
    // After the state, an edit drops one of those that tables name, and adds another.
    let later = Chunks::section(&[added("l", &handle(4, 64))], &[handles[0].encode()]);
    chunks.apply(4, &later).unwrap();
    unnamed.name(&handles[0]);
    unnamed.name(&handles[3]);
    chunks.apply(5, &unnamed.section().unwrap()).unwrap();
    chunks.reclaim(5);
    let dead: Vec<u64> = chunks.take_dead(|_| true).iter().map(|it| it.id.number.0).collect();
    assert_eq!(dead, [1, 2]);
    let mut unnamed = Unnamed::of(&chunks.state()).unwrap();
    unnamed.name(&handles[3]);
    unnamed.name(&handle(4, 64));
    assert!(unnamed.section().is_none());
    assert!(Unnamed::of(&later).is_err(), "no whole state");
}

/// A section that adds and drops so many bytes of each of many chunks.
fn hostile(bytes: u64) -> Vec<u8> {
    let count = Count { blocks: 1, bytes };
    let delta = Delta { added: count, dropped: count, end: bytes, ..Delta::default() };
    let ids = (1..20).map(|number| ChunkId { number: FileNo(number), epoch: Epoch(1) });
    encode(CHANGES, &ids.map(|id| (id, delta.clone())).collect())
}

#[test]
fn counts_that_no_file_can_have_are_refused_and_sums_do_not_overflow() {
    assert!(Chunks::default().apply(1, &hostile(VALUE_BYTES_MAX + 1)).is_err());
    let mut chunks = Chunks::default();
    for number in 1..20 {
        chunks.apply(number, &hostile(VALUE_BYTES_MAX)).unwrap();
    }
    assert_eq!(chunks.held_bytes(), u64::MAX);
    let all = chunks.by_id.values();
    assert!(all.map(Chunk::garbage_bytes).all(|bytes| bytes <= VALUE_BYTES_MAX));
}
