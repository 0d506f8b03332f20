//! Logs that are read from the place where a replay begins.

use super::*;

/// The place after each frame of a log, with the last sequence before it.
fn places(log: &Log) -> Vec<LogPosition> {
    let mut last_seq = seq(10);
    let places = log.frames.iter().map(|frame| {
        if let Owned::Batch(first, sections) = &frame.what {
            let operations: u64 = sections.iter().map(|(_, _, count, _)| u64::from(*count)).sum();
            last_seq = seq(first + operations - 1);
        }
        let segment = FileNo(frame.idx as u64 + 1);
        LogPosition { place: LogPlace { segment, offset: frame.end }, last_seq }
    });
    places.collect()
}

fn from(place: LogPosition) -> LogReaderOptions {
    LogReaderOptions { replay_from: Some(place), ..LogReaderOptions::new(DB) }
}

#[test]
fn what_lies_before_the_place_is_not_read_and_the_end_is_the_same() {
    let log = sample(true, 512);
    let whole = log.read().1.unwrap();
    for (nth, place) in places(&log).into_iter().enumerate() {
        let (frames, end) = read(log.sources(), from(place));
        assert_eq!(frames, log.all()[nth + 1..], "after frame {nth}");
        let end = end.unwrap();
        assert_eq!((end.place, end.lsn, end.last_seq), (whole.place, whole.lsn, whole.last_seq));
        // The place itself is attested, too: by the manifest.
        let lsn = log.headers[log.frames[nth].idx].lsn_at(place.place.offset);
        assert_eq!(end.durable, whole.durable.max(lsn), "after frame {nth}");
    }
}

/// Each byte of the log is damaged: a replay does not notice damage before the place, and notices
/// all damage after it that a reader of the whole log notices.
#[test]
fn damage_is_found_after_the_place_and_not_before() {
    let log = sample(true, 512);
    let bytes = log.bytes();
    let nth = 6;
    let place = places(&log)[nth];
    let first = log.frames[nth].idx;
    assert_eq!(first, 1, "a segment lies before, and one after");
    for (idx, whole_file) in bytes.iter().enumerate() {
        for offset in 0..whole_file.len() {
            let is_header_of_first = idx == first && offset < SEGMENT_HEADER_BYTES as usize;
            let is_before =
                (FileNo(idx as u64 + 1), offset as u64) < (place.place.segment, place.place.offset);
            let mut damaged = whole_file.clone();
            damaged[offset] ^= 0x40;
            log.files[idx].set_bytes(&damaged);
            let (frames, end) = read(log.sources(), from(place));
            let (all, whole) = log.read();
            log.files[idx].set_bytes(whole_file);
            if is_header_of_first {
                assert!(end.unwrap_err().is_corruption(), "header at {offset}");
            } else if is_before {
                assert_eq!((frames, end.is_ok()), (log.all().split_off(nth + 1), true));
            } else {
                assert_eq!(end.is_ok(), whole.is_ok(), "offset {offset} of segment {idx}");
                assert_eq!(frames, all[nth + 1..], "offset {offset} of segment {idx}");
            }
        }
    }
}

/// A follower compares the segments that the manifest lists with those of its reader, and starts
/// again if an older one is missing.
#[test]
fn segments_before_the_place_stay_listed_until_they_are_gone() {
    let log = sample(true, 512);
    let place = places(&log)[6];
    let mut reader = LogReader::new(log.sources(), from(place)).unwrap();
    assert!(reader.source(FileNo(1)).is_some());
    assert_eq!(drain(&mut reader).unwrap(), log.all()[7..]);
    reader.forget_passed(|number| number.0 > 1);
    assert!(reader.source(FileNo(1)).is_none());
    assert!(reader.end().is_ok());
}

#[test]
fn a_log_that_ends_before_the_place_is_corruption() {
    let log = sample(true, 0);
    let whole = log.bytes();
    for (nth, place) in places(&log).into_iter().enumerate() {
        let frame = &log.frames[nth];
        // The file is cut in the frame before the place.
        log.files[frame.idx].set_bytes(&whole[frame.idx][..frame.end as usize - 8]);
        let (frames, end) = read(log.sources(), from(place));
        log.files[frame.idx].set_bytes(&whole[frame.idx]);
        assert!(frames.is_empty() && end.unwrap_err().is_corruption(), "after frame {nth}");
        // A fork ends the log there.
        let cut = LogPlace { offset: frame.start, ..place.place };
        let options = LogReaderOptions { cut: Some(cut), ..from(place) };
        let error = LogReader::new(log.sources(), options).err().unwrap();
        assert!(error.is_corruption(), "after frame {nth}: {error}");
        let options = LogReaderOptions { cut: Some(place.place), ..from(place) };
        let (frames, end) = read(log.sources(), options);
        assert!(frames.is_empty() && end.unwrap().place == place.place, "after frame {nth}");
    }
}

#[test]
fn a_place_that_is_none_is_corruption() {
    let log = sample(true, 512);
    let good = places(&log)[1];
    let missing = LogPlace { segment: FileNo(9), ..good.place };
    let odd = LogPlace { offset: good.place.offset + 4, ..good.place };
    for place in [missing, odd] {
        let refused = LogReader::new(log.sources(), from(LogPosition { place, ..good })).err();
        assert!(refused.unwrap().is_corruption(), "{place:?}");
    }
    // Between two frames of another sequence, or in the middle of one: attested frames follow.
    let inside = LogPlace { offset: good.place.offset - 8, ..good.place };
    let elsewhere = LogPosition { last_seq: seq(good.last_seq.get() + 1), ..good };
    for place in [LogPosition { place: inside, ..good }, elsewhere] {
        let (frames, end) = read(log.sources(), from(place));
        assert!(frames.is_empty() && end.unwrap_err().is_corruption(), "{place:?}");
    }
}

/// A follower may know of a place in the manifest before it may believe the log so far.
#[test]
fn nothing_is_read_where_the_reach_lies_before_the_place() {
    let log = sample(true, 512);
    let place = places(&log)[2];
    let options = LogReaderOptions { reach: Lsn(log.frames[1].lsn), ..from(place) };
    let mut reader = LogReader::new(log.sources(), options).unwrap();
    assert_eq!(drain(&mut reader).unwrap(), []);
    assert_eq!(reader.position(), place);
    reader.look_again(Lsn(u64::MAX));
    assert_eq!(drain(&mut reader).unwrap(), log.all()[3..]);
}

#[test]
fn a_reader_of_the_attested_place_begins_at_the_place() {
    let mut log = Log::new(512);
    log.put(b"one");
    log.put(b"two");
    let place = places(&log)[1];
    let reader = LogReader::new(log.sources(), from(place)).unwrap();
    log.files[0].fail_reads_at(Some(SEGMENT_HEADER_BYTES));
    // No frame attests anything, but the manifest does.
    assert_eq!(reader.attested(seq(0), None).unwrap().durable, log.writer.lsn());
}

/// The index of the segment also has the sections before the place, which are not needed.
#[test]
fn the_rest_of_the_segment_is_walked_and_the_next_one_passed_by_its_index() {
    let mut log = Log::new(0);
    for _ in 0..2 {
        (0..6).for_each(|_| log.put(b"in a sealed segment"));
        log.sync();
        log.next_segment();
    }
    log.put(b"in the third");
    assert_eq!(log.write_indexes(), 2);
    for nth in 0..6 {
        let options = LogReaderOptions { headers_only: true, ..from(places(&log)[nth]) };
        let mut reader = LogReader::new(log.sources(), options).unwrap();
        for _ in nth..5 {
            assert!(reader.pass_indexed().unwrap().is_none(), "after frame {nth}");
            let frame = reader.next_frame().unwrap().unwrap();
            assert_eq!(frame.place.segment, FileNo(1));
        }
        let passed = reader.pass_indexed().unwrap().unwrap();
        assert_eq!(passed.header.number, FileNo(2));
        assert_eq!(reader.next_frame().unwrap().unwrap().place.segment, FileNo(3));
    }
}
