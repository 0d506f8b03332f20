//! The look-ahead after a bad frame: how far it reaches, and values made to mislead it; among them
//! logs of the first format version.

use super::*;

#[test]
fn the_look_ahead_reaches_over_megabytes() {
    let mut log = Log::new(0);
    for n in 0..110_u8 {
        log.put(&vec![n; 100_001]);
    }
    log.sync();
    log.control(Control::IdleMarker { manifest_edit: 0 });
    let mut bytes = log.bytes()[0].clone();
    bytes[140] ^= 1;
    log.files[0].set_bytes(&bytes);
    assert!(log.read().1.unwrap_err().is_corruption());
    bytes.truncate(bytes.len() - 24);
    log.files[0].set_bytes(&bytes);
    let (frames, end) = log.read();
    assert!(frames.is_empty() && end.unwrap().torn_bytes);
}

#[test]
fn the_look_ahead_misses_nothing_between_its_reads() {
    // It begins at the first frame and reads in steps of 4 MiB: one frame lies across the step's
    // end, one just after it.
    for (end, is_hole) in [4 << 20, 3 * 4096].into_iter().flat_map(|read| {
        // Between them are other bytes, or zeros, which are passed in pieces of 4 KiB.
        [-16_i64, -8, 0, 8, 2048]
            .into_iter()
            .flat_map(move |end| [(128 + read + end, false), (128 + read + end, true)])
    }) {
        let mut log = Log::new(0);
        let filler = vec![1; usize::try_from(end).unwrap() - 128 - 30];
        log.put(&filler);
        assert_eq!(log.writer.offset(), u64::try_from(end).unwrap());
        log.sync();
        log.control(Control::IdleMarker { manifest_edit: 0 });
        let mut bytes = log.bytes()[0].clone();
        bytes[140] ^= 1;
        if is_hole {
            bytes[128..usize::try_from(end).unwrap()].fill(0);
        }
        bytes.extend(vec![0; 2 << 20]);
        log.files[0].set_bytes(&bytes);
        assert!(log.read().1.unwrap_err().is_corruption(), "marker at {end}, {is_hole}");
    }
}

/// Words whose repetition looks, at each 8th byte, like a frame that claims to attest everything
/// before it and whose header is 1.4 MB long: one for each kind that may be so long.
const CRAFTED_WORDS: [[u8; 8]; 2] =
    [[2, 0xff, 0xff, 0x5a, 1, 0, 0, 0], [7, 0xff, 0xff, 0x5a, 1, 0, 0, 0]];

/// A value of about `len` bytes of these words. An eighth of them lies at multiples of 8 in the
/// file, wherever the value begins.
fn crafted_value(word: [u8; 8], len: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(len + 8);
    for _ in 0..8 {
        value.push(0);
        value.extend(word.repeat(len / 64));
    }
    value
}

/// A log with a value of `len` bytes of crafted words between ordinary frames. With `is_attested`
/// the last one attests that all before it was durable.
fn crafted(word: [u8; 8], len: usize, is_attested: bool) -> Log {
    let mut log = Log::new(0);
    log.put(b"before");
    log.put(&crafted_value(word, len));
    if is_attested {
        log.sync();
    }
    log.control(Control::IdleMarker { manifest_edit: 0 });
    log
}

/// Opening took 75 s at 4 MiB, quadratic in the length; and the budget that bounded a part of the
/// work made a log end before an attested hole.
#[test]
fn crafted_values_neither_slow_the_look_ahead_nor_hide_what_attests() {
    for word in CRAFTED_WORDS {
        for is_attested in [false, true] {
            let log = crafted(word, 16 << 20, is_attested);
            let whole = log.bytes().remove(0);
            // The first frame is rotten; or the header of the segment.
            for at in [140, 60] {
                let mut bytes = whole.clone();
                bytes[at] ^= 1;
                log.files[0].set_bytes(&bytes);
                let (frames, end) = log.read();
                assert!(frames.is_empty());
                match end {
                    Ok(end) => assert!(!is_attested && end.torn_bytes),
                    Err(error) => assert!(is_attested && error.is_corruption(), "{error}"),
                }
            }
        }
    }
}

/// The log as code of the first format version wrote it: with a random salt.
fn of_the_first_version(log: &Log) -> Vec<u8> {
    let mut bytes = log.bytes().remove(0);
    bytes[8] = 1;
    let sum = crate::codec::checksum64(&bytes[..120]);
    bytes[120..128].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// A log whose segments have random salts, as in the first format version.
fn with_random_salt() -> Log {
    let mut log = Log::new(0);
    let file = SegmentFile::new(&[]);
    let header = SegmentHeader { salt: 0x1122_3344_5566_7788, ..log.headers[0] };
    log.writer = SegmentWriter::create(file.clone(), &path(1), header, 0).unwrap();
    log.files = vec![file];
    log.headers = vec![header];
    log
}

#[test]
fn a_log_of_the_first_version_is_read_and_its_rot_is_found() {
    let mut log = with_random_salt();
    for n in 0..20_u8 {
        log.put(&[n; 40]);
    }
    log.sync();
    log.put(b"attests");
    let whole = of_the_first_version(&log);
    let options = LogReaderOptions { has_derived_salts: false, ..LogReaderOptions::new(DB) };
    log.files[0].set_bytes(&whole);
    assert_eq!(read(log.sources(), options.clone()).0, log.all());
    for at in [60, 140, 400] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        log.files[0].set_bytes(&bytes);
        assert!(read(log.sources(), options.clone()).1.unwrap_err().is_corruption(), "byte {at}");
    }
}

/// In a log of the first version, some places need too much work to decide whether they are a
/// frame. An undecided place is never the end of the log.
#[test]
fn what_cannot_be_known_of_a_log_of_the_first_version_is_corruption() {
    let mut log = with_random_salt();
    log.put(b"before");
    log.put(&crafted_value(CRAFTED_WORDS[0], 4 << 20));
    let whole = of_the_first_version(&log);
    let options = LogReaderOptions { has_derived_salts: false, ..LogReaderOptions::new(DB) };
    let mut bytes = whole.clone();
    bytes[140] ^= 1;
    // Zeros follow, so that the long headers lie in the file.
    bytes.extend(vec![0; 2 << 20]);
    log.files[0].set_bytes(&bytes);
    let error = read(log.sources(), options).1.unwrap_err();
    assert!(error.is_corruption() && error.to_string().contains("too many to tell"), "{error}");
}
