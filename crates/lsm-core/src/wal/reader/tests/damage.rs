//! Damage in every place: cuts, flipped bits, lost sectors, values that look like frames.

use super::*;

#[test]
fn every_truncation_is_a_prefix_or_is_attested() {
    for (synced, preallocate) in [(false, 0), (true, 0), (true, 512)] {
        let log = sample(synced, preallocate);
        let whole = log.bytes();
        for idx in 0..whole.len() {
            for len in 0..whole[idx].len() {
                let mut cut = whole.clone();
                cut[idx].truncate(len);
                log.check_damaged(&cut, idx, len as u64, true);
            }
        }
    }
}

#[test]
fn every_bit_flip_ends_the_log_or_is_corruption_if_attested() {
    for (synced, preallocate) in [(false, 0), (true, 400)] {
        let log = sample(synced, preallocate);
        let whole = log.bytes();
        for idx in 0..whole.len() {
            for bit in 0..whole[idx].len() * 8 {
                let mut flipped = whole.clone();
                flipped[idx][bit / 8] ^= 1 << (bit % 8);
                log.check_damaged(&flipped, idx, bit as u64 / 8, false);
            }
        }
    }
}

/// Reads the log with a range of its first segment zeroed.
fn read_zeroed(
    log: &Log,
    whole: &[u8],
    range: std::ops::Range<usize>,
) -> (Vec<Owned>, Result<LogEnd>) {
    let mut bytes = whole.to_vec();
    bytes[range].fill(0);
    log.files[0].set_bytes(&bytes);
    log.read()
}

#[test]
fn lost_sectors_are_a_hole_and_not_the_end() {
    let mut log = Log::new(0);
    for n in 0..40_u8 {
        log.put(&[n; 40]);
        if n == 30 {
            log.sync();
        }
    }
    let whole = log.bytes().remove(0);
    let starts: Vec<usize> = log.frames.iter().map(|frame| frame.start as usize).collect();
    // Attested by frame 31 and later ones, which are still there.
    let (frames, end) = read_zeroed(&log, &whole, starts[3]..starts[9]);
    assert_eq!(frames, log.all()[..3]);
    assert_eq!(end.unwrap_err().damage().unwrap().offset, Some(log.frames[3].start));
    // Not attested: the hole is the end, though whole frames follow.
    let (frames, end) = read_zeroed(&log, &whole, starts[33]..starts[35]);
    assert_eq!(frames, log.all()[..33]);
    let end = end.unwrap();
    assert!(end.torn_bytes && end.place.offset == log.frames[33].start);
    // All attesting frames are lost: the log ends at a torn tail.
    let (frames, end) = read_zeroed(&log, &whole, starts[20]..whole.len());
    assert_eq!(frames, log.all()[..20]);
    assert!(!end.unwrap().torn_bytes);
    // The header's sector is lost: batches attest it by their sections' checksums.
    let (frames, end) = read_zeroed(&log, &whole, 0..512);
    assert!(frames.is_empty() && end.unwrap_err().is_corruption());
}

#[test]
fn a_lost_header_is_found_by_a_control_frame_alone() {
    let mut log = Log::new(1024);
    log.control(Control::EpochStart);
    let mut bytes = log.bytes()[0].clone();
    bytes[..128].fill(0);
    log.files[0].set_bytes(&bytes);
    // The frame does not attest that the header was durable: both may be torn.
    let (frames, end) = log.read();
    assert!(frames.is_empty() && end.unwrap().torn_bytes);
    log.sync();
    log.control(Control::IdleMarker { manifest_edit: 0 });
    let mut bytes = log.bytes()[0].clone();
    bytes[..128].fill(0);
    log.files[0].set_bytes(&bytes);
    assert!(log.read().1.unwrap_err().is_corruption());
}

#[test]
fn a_value_that_holds_frames_is_never_replayed() {
    let mut log = Log::new(0);
    log.put(b"genuine");
    let genuine = log.bytes()[0][128..].to_vec();
    // A copy of a frame of this segment, and one made for the right place with a guessed salt.
    for salt in [None, Some(1), Some(0)] {
        let mut forged = Vec::new();
        for n in 0..4 {
            let mut frame = genuine.clone();
            if let Some(salt) = salt {
                let offset = log.writer.offset() + 8 * n;
                let place = FramePlace { salt, offset, ..log.place() };
                frame.clear();
                let claim = FramePlace { durable: place.lsn, ..place };
                let idle = Control::IdleMarker { manifest_edit: 99 };
                encode_control(&mut frame, &claim, seq(log.last), idle);
            }
            forged.extend_from_slice(&frame);
        }
        // Tried at each alignment, as the attacker does not know the header's length.
        for shift in 0..8 {
            let mut value = vec![0; shift];
            value.extend_from_slice(&forged);
            log.put(&value);
        }
    }
    let count = log.frames.len();
    assert_eq!(log.read().0, log.all());
    // The frame around it is torn: the copies inside it neither attest nor are replayed.
    let whole = log.bytes()[0].clone();
    for n in 1..count {
        let mut bytes = whole[..log.frames[n].end as usize].to_vec();
        bytes[log.frames[n].start as usize] ^= 1;
        log.files[0].set_bytes(&bytes);
        let (frames, end) = log.read();
        assert_eq!(frames, log.all()[..n]);
        assert!(end.unwrap().torn_bytes);
    }
}

#[test]
fn what_a_failed_append_left_is_never_replayed() {
    let body = b"refused, and must not come back".to_vec();
    let len = Log::new(0).encoded(&[(1, 1, body.clone())]).0.len();
    for written in 0..=len {
        for preallocate in [0, 1024] {
            let mut log = Log::new(preallocate);
            log.put(b"good");
            log.files[0].fail_next_append_after(written);
            assert!(log.try_batch(&[(1, 1, body.clone())]).is_err());
            let end = log.writer.end();
            assert!(log.writer.is_failed() && log.writer.append(&[0; 8]).is_err());
            assert_eq!(log.writer.end(), end);
            log.next_segment();
            log.put(b"accepted later");
            log.sync();
            log.control(Control::IdleMarker { manifest_edit: 1 });
            let (frames, end) = log.read();
            assert_eq!((frames, end.is_ok()), (log.all(), true), "{written} bytes were written");
        }
    }
}
