//! Segments that follow each other: stale, foreign, missing, reserved, never begun.

use super::*;
use crate::types::MustReach;

#[test]
fn a_segment_that_could_not_be_begun_is_passed_over() {
    for written in [0, 1, 100, 127] {
        let mut log = Log::new(0);
        log.put(b"one");
        let broken = SegmentFile::new(&[]);
        let reserved = SegmentWriter::create_reserved(broken.clone(), &path(2), 256).unwrap();
        broken.fail_next_append_after(written);
        assert!(reserved.begin(header(2, Some(&log.writer))).is_err());
        // The list still names it; the third continues the first.
        log.files.push(broken);
        log.headers.push(header(2, Some(&log.writer)));
        log.next_segment();
        log.put(b"two");
        log.sync();
        log.put(b"three");
        let (frames, end) = log.read();
        assert_eq!((frames, end.is_ok()), (log.all(), true), "{written} bytes were written");
    }
}

/// A reserve that was overtaken, or that could not be begun, stays listed for some time; by then
/// the segment before it may be deleted.
#[test]
fn a_log_begins_after_segments_that_were_never_begun() {
    for written in [0, 100] {
        let mut log = Log::new(0);
        log.put(b"one");
        let broken = SegmentFile::new(&[]);
        let reserved = SegmentWriter::create_reserved(broken.clone(), &path(2), 256).unwrap();
        broken.fail_next_append_after(written);
        assert!(reserved.begin(header(2, Some(&log.writer))).is_err());
        log.files.push(broken);
        log.headers.push(header(2, Some(&log.writer)));
        log.sync();
        log.next_segment();
        log.put(b"two");
        let (frames, end) = read(log.sources().split_off(1), LogReaderOptions::new(DB));
        let expected: Vec<_> = log.all().split_off(1);
        assert_eq!((frames, end.is_ok()), (expected, true), "{written} bytes were written");
    }
}

#[test]
fn a_reserved_segment_ends_the_log_quietly_and_a_follower_goes_on_in_it() {
    let mut log = Log::new(256);
    log.put(b"one");
    log.sync();
    let spare = SegmentFile::new(&[]);
    let reserved = SegmentWriter::create_reserved(spare.clone(), &path(2), 256).unwrap();
    log.files.push(spare);
    let (frames, end) = log.read();
    assert_eq!(frames, log.all());
    assert!(!end.unwrap().torn_bytes);

    let mut follower = LogReader::new(log.sources(), LogReaderOptions::new(DB)).unwrap();
    assert_eq!(drain(&mut follower).unwrap(), log.all());
    log.control(Control::IdleMarker { manifest_edit: 2 });
    assert_eq!(drain(&mut follower).unwrap(), log.all()[1..]);
    assert_eq!(drain(&mut follower).unwrap(), []);
    let next = SegmentHeader {
        previous_seq: seq(log.last),
        durable: log.durable,
        ..header(2, Some(&log.writer))
    };
    log.writer = reserved.begin(next).unwrap();
    assert_eq!(drain(&mut follower).unwrap(), []);
    let position = follower.position();
    assert_eq!(position.place, LogPlace { segment: FileNo(2), offset: 128 });
    log.put(b"two");
    assert_eq!(drain(&mut follower).unwrap(), log.all()[2..]);
    // Another reader continues where that one stopped.
    let options = LogReaderOptions { start: Some(position), ..LogReaderOptions::new(DB) };
    assert_eq!(read(log.sources(), options).0, log.all()[2..]);
    log.next_segment();
    log.put(b"three");
    follower.add_segment(log.sources().pop().unwrap());
    assert_eq!(drain(&mut follower).unwrap(), log.all()[3..]);
}

/// Returns `true` if `sources` end in corruption; what is read before it is a prefix of `log`.
fn is_corrupt(log: &Log, sources: Vec<SegmentSource>) -> bool {
    let (frames, end) = read(sources, LogReaderOptions::new(DB));
    assert_eq!(frames, log.all()[..frames.len()]);
    end.is_err_and(|e| e.is_corruption())
}

#[test]
fn segments_that_are_stale_foreign_swapped_or_missing_are_found() {
    let early = sample(true, 0);
    let mut late = sample(true, 0);
    late.next_segment();
    late.put(b"more");
    // An older copy of the third, from before the fourth was begun.
    let stale = late.bytes()[2][..early.frames[10].start as usize].to_vec();
    let whole = late.bytes();
    late.files[2].set_bytes(&stale);
    assert!(is_corrupt(&late, late.sources()));
    // Two swapped.
    late.files[2].set_bytes(&whole[1]);
    assert!(is_corrupt(&late, late.sources()));
    late.files[2].set_bytes(&whole[2]);
    assert!(!is_corrupt(&late, late.sources()));
    // One missing.
    for gone in 1..3 {
        let mut sources = late.sources();
        sources.remove(gone);
        assert!(is_corrupt(&late, sources), "without segment {gone}");
    }
    // Another database, another epoch, another name.
    let options = LogReaderOptions::new(DbId(78));
    assert!(read(late.sources(), options).1.unwrap_err().is_corruption());
    let mut sources = late.sources();
    sources[1].epoch = Epoch(4);
    assert!(is_corrupt(&late, sources));
}

#[test]
fn a_rotten_segment_in_the_middle_never_lets_the_later_ones_in() {
    // Nothing is attested: the log ends in the first segment (rocksdb#7701, rocksdb#10560).
    let log = sample(false, 0);
    let mut bytes = log.bytes();
    let len = bytes[0].len();
    bytes[0].truncate(len - 8);
    log.files[0].set_bytes(&bytes[0]);
    let (frames, end) = log.read();
    assert_eq!(frames, log.all()[..4]);
    assert!(end.unwrap().torn_bytes);
    // A whole segment that never reached the disk, with the one after it.
    log.files[0].set_bytes(&log.bytes()[0]);
    let log = sample(false, 0);
    log.files[1].set_bytes(&[]);
    let (frames, end) = log.read();
    assert_eq!(frames, log.all()[..5]);
    assert_eq!(end.unwrap().last_seq, seq(15));
}

#[test]
fn a_closed_log_must_reach_its_end_and_a_cut_one_is_read_no_further() {
    let mut log = sample(false, 512);
    log.sync();
    log.control(Control::CleanClose { manifest_edit: 3 });
    let must_reach = MustReach { closed: Some(log.writer.end()), ..MustReach::default() };
    let options = LogReaderOptions { must_reach, ..LogReaderOptions::new(DB) };
    assert!(read(log.sources(), options.clone()).1.unwrap().clean_close);
    let whole = log.bytes();
    for (idx, whole) in whole.iter().enumerate() {
        let end = log.frames.iter().rfind(|f| f.idx == idx).unwrap().end as usize;
        for len in 0..end {
            log.files[idx].set_bytes(&whole[..len]);
            let (_, verdict) = read(log.sources(), options.clone());
            assert!(verdict.unwrap_err().is_corruption(), "segment {idx} cut to {len}");
        }
        log.files[idx].set_bytes(whole);
    }
    for (n, frame) in log.frames.iter().enumerate() {
        let segment = FileNo(frame.idx as u64 + 1);
        let cut = Some(LogPlace { segment, offset: frame.end });
        let (frames, end) =
            read(log.sources(), LogReaderOptions { cut, ..LogReaderOptions::new(DB) });
        assert_eq!(frames, log.all()[..=n]);
        assert_eq!(Some(end.unwrap().place), cut);
    }
}

#[test]
fn the_header_of_a_segment_attests_as_a_frame_does() {
    let mut log = Log::new(0);
    log.put(b"one");
    log.sync();
    assert_eq!(log.read().1.unwrap().durable, Lsn(0), "no later frame says that it was synced");
    log.next_segment();
    let attested = log.headers[1].durable;
    assert_eq!((log.read().1.unwrap().durable, attested), (log.durable, log.durable));
}

/// Returns `true` if a log is corrupt whose second header was changed by `edit`.
fn break_at(edit: fn(&mut SegmentHeader)) -> bool {
    let mut log = Log::new(0);
    log.put(b"one");
    log.next_segment();
    let mut header = log.headers[1];
    edit(&mut header);
    log.files[1].set_bytes(&header.encode());
    is_corrupt(&log, log.sources())
}

#[test]
fn segments_that_do_not_continue_each_other_are_corruption() {
    assert!(!break_at(|_| ()));
    assert!(break_at(|header| header.previous_seq = seq(10)));
    assert!(break_at(|header| header.base.0 += 8));
    assert!(break_at(|header| header.previous = None));
    assert!(break_at(|header| {
        let previous = header.previous.as_mut().expect("it is the second");
        previous.segment = FileNo(7);
    }));
    // An end inside the header of the one before.
    assert!(break_at(|header| {
        let previous = header.previous.as_mut().expect("it is the second");
        header.base.0 -= previous.offset - 64;
        previous.offset = 64;
    }));
}

#[test]
fn a_position_to_resume_from_must_still_be_there() {
    let mut log = Log::new(0);
    log.put(b"one");
    log.put(b"two");
    let place = LogPlace { segment: FileNo(1), offset: log.frames[0].end };
    let start = Some(LogPosition { place, last_seq: seq(11) });
    let options = LogReaderOptions { start, ..LogReaderOptions::new(DB) };
    assert_eq!(read(log.sources(), options.clone()).0, log.all()[1..]);
    // The segment that it was taken from lost its header, or is not listed.
    let whole = log.bytes()[0].clone();
    log.files[0].set_bytes(&[&[0; 128], &whole[128..]].concat());
    let (frames, end) = read(log.sources(), options.clone());
    assert!(frames.is_empty() && end.unwrap_err().is_corruption());
    let unlisted = LogReader::new(Vec::new(), options).map(|_| ());
    assert_eq!(unlisted.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn an_empty_list_and_a_fresh_reserve_are_empty_logs() {
    let (frames, end) = read(Vec::new(), LogReaderOptions::new(DB));
    assert!(frames.is_empty() && !end.unwrap().torn_bytes);
    for bytes in [vec![], vec![0; 4096]] {
        let (frames, end) = read(sources(&[SegmentFile::new(&bytes)]), LogReaderOptions::new(DB));
        assert!(frames.is_empty() && !end.unwrap().torn_bytes);
    }
    // A header that was torn, alone.
    let log = Log::new(0);
    log.files[0].set_bytes(&log.bytes()[0][..77]);
    assert!(log.read().1.unwrap().torn_bytes);
}
