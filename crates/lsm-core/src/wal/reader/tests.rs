//! A small log is written through [`SegmentWriter`], damaged in every way, and read again. The
//! oracle knows where each frame begins and what it attests.

use std::sync::Arc;

use super::*;
use crate::types::{DbId, Epoch, PartitionId};
use crate::wal::frame::{encode_batch, encode_control};
use crate::wal::testing::{MemFile, path};
use crate::wal::{FramePlace, Section, SegmentWriter, salt_of};
use proptest::prelude::*;

const DB: DbId = DbId(77);
const EPOCH: Epoch = Epoch(3);

fn seq(n: u64) -> SeqNo {
    SeqNo::new(n).unwrap()
}

/// The content of a frame, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Owned {
    Batch(u64, Vec<(u32, u64, u32, Vec<u8>)>),
    Control(Control),
}

/// The oracle's knowledge of a frame: where it lies, and how far it attests.
#[derive(Clone, Debug)]
struct Written {
    idx: usize,
    start: u64,
    end: u64,
    lsn: u64,
    durable: u64,
    what: Owned,
}

/// Writes a log.
struct Log {
    files: Vec<Arc<MemFile>>,
    headers: Vec<SegmentHeader>,
    writer: SegmentWriter,
    frames: Vec<Written>,
    last: u64,
    durable: Lsn,
    edit: u64,
    preallocate: u64,
}

fn header(number: u64, previous: Option<&SegmentWriter>) -> SegmentHeader {
    SegmentHeader {
        db: DB,
        epoch: EPOCH,
        number: FileNo(number),
        salt: salt_of(DB, EPOCH, FileNo(number)),
        base: previous.map_or(Lsn(4096), SegmentWriter::lsn),
        previous: previous.map(SegmentWriter::end),
        manifest_edit: 0,
        durable: Lsn(0),
        previous_seq: SeqNo::ZERO,
    }
}

impl Log {
    fn new(preallocate: u64) -> Log {
        let file = MemFile::new(&[]);
        let header = SegmentHeader { previous_seq: seq(10), ..header(1, None) };
        let writer = SegmentWriter::create(file.clone(), &path(1), header, preallocate).unwrap();
        Log {
            files: vec![file],
            headers: vec![header],
            writer,
            frames: Vec::new(),
            last: 10,
            durable: Lsn(0),
            edit: 0,
            preallocate,
        }
    }

    /// Begins the next segment, behind what was appended well.
    fn next_segment(&mut self) {
        let number = self.files.len() as u64 + 1;
        let header = SegmentHeader {
            manifest_edit: self.edit,
            durable: self.durable,
            previous_seq: seq(self.last),
            ..header(number, Some(&self.writer))
        };
        let file = MemFile::new(&[]);
        self.writer =
            SegmentWriter::create(file.clone(), &path(number), header, self.preallocate).unwrap();
        self.files.push(file);
        self.headers.push(header);
    }

    fn place(&self) -> FramePlace {
        FramePlace {
            salt: self.writer.header().salt,
            epoch: EPOCH,
            offset: self.writer.offset(),
            lsn: self.writer.lsn(),
            durable: self.durable,
        }
    }

    fn append(&mut self, bytes: &[u8], what: Owned) -> Result<()> {
        let place = self.place();
        self.writer.append(bytes)?;
        self.frames.push(Written {
            idx: self.files.len() - 1,
            start: place.offset,
            end: self.writer.offset(),
            lsn: place.lsn.0,
            durable: place.durable.0,
            what,
        });
        Ok(())
    }

    fn encoded(&self, sections: &[(u32, u32, Vec<u8>)]) -> (Vec<u8>, Owned) {
        let mut first = self.last + 1;
        let owned = sections.iter().map(|(partition, operations, bytes)| {
            let at = first;
            first += u64::from(*operations);
            (*partition, at, *operations, bytes.clone())
        });
        let what = Owned::Batch(self.last + 1, owned.collect());
        let sections: Vec<_> = sections
            .iter()
            .map(|(partition, operations, bytes)| Section {
                partition: PartitionId(*partition),
                operations: *operations,
                checksum: section_checksum(bytes),
                bytes,
            })
            .collect();
        let mut out = Vec::new();
        encode_batch(&mut out, &self.place(), seq(self.last + 1), seq(self.last), &sections);
        (out, what)
    }

    fn try_batch(&mut self, sections: &[(u32, u32, Vec<u8>)]) -> Result<()> {
        let (bytes, what) = self.encoded(sections);
        if !self.writer.fits(bytes.len()) {
            self.next_segment();
            return self.try_batch(sections);
        }
        self.append(&bytes, what)?;
        self.last += sections.iter().map(|(_, operations, _)| u64::from(*operations)).sum::<u64>();
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) {
        self.try_batch(&[(1, 1, bytes.to_vec())]).unwrap();
    }

    fn control(&mut self, control: Control) {
        let mut out = Vec::new();
        encode_control(&mut out, &self.place(), seq(self.last), control);
        if !self.writer.fits(out.len()) {
            self.next_segment();
            return self.control(control);
        }
        self.append(&out, Owned::Control(control)).unwrap();
    }

    /// All that was appended becomes durable; frames from now on say so.
    fn sync(&mut self) {
        self.durable = self.writer.lsn();
    }

    fn bytes(&self) -> Vec<Vec<u8>> {
        self.files.iter().map(|file| file.bytes()).collect()
    }

    fn all(&self) -> Vec<Owned> {
        self.frames.iter().map(|frame| frame.what.clone()).collect()
    }

    fn sources(&self) -> Vec<SegmentSource> {
        sources(&self.files)
    }

    fn read(&self) -> (Vec<Owned>, Result<LogEnd>) {
        read(self.sources(), LogReaderOptions::new(DB))
    }

    /// Checks what is read once `damage` was done at `offset` of segment `idx`, which is part of
    /// a frame, a header, or neither.
    fn check_damaged(&self, bytes: &[Vec<u8>], idx: usize, offset: u64, cut: bool) {
        for (file, bytes) in self.files.iter().zip(bytes) {
            file.set_bytes(bytes);
        }
        let (got, end) = self.read();
        let context = format!("segment {idx} offset {offset} cut {cut}: {end:?}");
        let damage = Damage { idx, offset, cut };
        // A header that is damaged takes its frames along.
        let header_gone = offset < SEGMENT_HEADER_BYTES;
        let first_bad = self
            .frames
            .iter()
            .position(|f| f.idx > idx || damage.hits(f) || (header_gone && f.idx == idx));
        let mut expected = first_bad.unwrap_or(self.frames.len());
        let bad = if header_gone {
            Some(self.headers[idx].base.0)
        } else {
            self.frames.iter().find(|f| damage.hits(f)).map(|f| f.lsn)
        };
        let Some(bad) = bad else {
            // Behind the last frame of the segment: padding of the file, or refused bytes.
            expected = self.frames.len();
            assert_eq!((got, end.is_ok()), (self.all()[..expected].to_vec(), true), "{context}");
            return;
        };
        let attested = self.frames.iter().filter(|f| !damage.hits(f)).any(|f| f.durable > bad)
            || self.headers.iter().enumerate().any(|(i, h)| i != idx && h.durable.0 > bad)
            // A header that is not zeros, and that a later one names: begun and left behind.
            || (header_gone && !(cut && offset == 0) && idx + 1 < self.headers.len());
        assert_eq!(got, self.all()[..expected], "{context}");
        match end {
            Ok(end) => {
                assert!(!attested, "{context}");
                let last = if bad == self.headers[0].base.0 { 0 } else { last_of(&got) };
                assert_eq!(end.last_seq.get(), last, "{context}");
            }
            Err(e) => {
                assert!(e.is_corruption() && attested, "{context}");
                let damage = e.damage().unwrap();
                assert_eq!(damage.file, path(idx as u64 + 1), "{context}");
                assert!(damage.offset.unwrap() <= offset, "{context}");
            }
        }
    }
}

/// A flipped bit at `offset` of segment `idx`, or the segment's end there if it was cut.
struct Damage {
    idx: usize,
    offset: u64,
    cut: bool,
}

impl Damage {
    fn hits(&self, frame: &Written) -> bool {
        frame.idx == self.idx && frame.end > self.offset && (self.cut || frame.start <= self.offset)
    }
}

fn last_of(frames: &[Owned]) -> u64 {
    let last = frames.iter().rev().find_map(|frame| match frame {
        Owned::Batch(_, sections) => sections.last().map(|s| s.1 + u64::from(s.2) - 1),
        Owned::Control(_) => None,
    });
    last.unwrap_or(10)
}

fn sources(files: &[Arc<MemFile>]) -> Vec<SegmentSource> {
    let mut sources = Vec::new();
    for (file, number) in files.iter().zip(1..) {
        sources.push(SegmentSource {
            number: FileNo(number),
            epoch: EPOCH,
            path: path(number),
            file: file.clone(),
        });
    }
    sources
}

fn own(frame: &FrameRef<'_>) -> Owned {
    match frame.record {
        Record::Control(control) => Owned::Control(control),
        Record::Batch(batch) => {
            let sections = batch
                .sections()
                .map(|s| (s.partition.0, s.first_seq.get(), s.operations, s.bytes.to_vec()));
            Owned::Batch(batch.first_seq.get(), sections.collect())
        }
    }
}

fn drain(reader: &mut LogReader) -> Result<Vec<Owned>> {
    let mut frames = Vec::new();
    while let Some(frame) = reader.next_frame()? {
        frames.push(own(&frame));
    }
    Ok(frames)
}

/// Reads to the end: what was yielded before the end or the error.
fn read(sources: Vec<SegmentSource>, options: LogReaderOptions) -> (Vec<Owned>, Result<LogEnd>) {
    let mut frames = Vec::new();
    let mut reader = LogReader::new(sources, options).unwrap();
    loop {
        match reader.next_frame() {
            Ok(Some(frame)) => frames.push(own(&frame)),
            Ok(None) => return (frames, reader.end()),
            Err(e) => return (frames, Err(e)),
        }
    }
}

/// Three segments with every kind of frame. With `synced`, each but the last few is attested.
fn sample(synced: bool, preallocate: u64) -> Log {
    let mut log = Log::new(preallocate);
    log.control(Control::EpochStart);
    for round in 0..3 {
        if round > 0 {
            log.next_segment();
        }
        log.put(b"first value of the round");
        if synced {
            log.sync();
        }
        log.try_batch(&[(2, 2, b"two operations".to_vec()), (9, 1, b"and one".to_vec())]).unwrap();
        log.control(Control::MemtableSwitch {
            partition: PartitionId(2),
            memtable: crate::types::MemtableId(round),
        });
        log.put(b"x");
    }
    if synced {
        log.sync();
        log.control(Control::IdleMarker { manifest_edit: 4 });
    }
    log
}

#[test]
fn a_log_reads_back_with_its_end() {
    let mut log = sample(true, 512);
    log.edit = 8;
    log.sync();
    log.control(Control::CleanClose { manifest_edit: 9 });
    let (frames, end) = log.read();
    assert_eq!(frames, log.all());
    let expected = LogEnd {
        place: log.writer.end(),
        lsn: log.writer.lsn(),
        last_seq: seq(log.last),
        clean_close: true,
        torn_bytes: false,
        manifest_edit: 9,
        durable: log.durable,
    };
    assert_eq!(end.unwrap(), expected);
    // Nothing follows a clean close; what does makes it none.
    log.next_segment();
    assert!(!log.read().1.unwrap().clean_close);
}

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
    // All that would attest is gone: a tail that was never there.
    let (frames, end) = read_zeroed(&log, &whole, starts[20]..whole.len());
    assert_eq!(frames, log.all()[..20]);
    assert!(!end.unwrap().torn_bytes);
    // The header's sector: batches witness it by their sections' checksums.
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
        // Tried at each alignment, as the header's length is not known to the forger.
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

#[test]
fn a_segment_that_could_not_be_begun_is_passed_over() {
    for written in [0, 1, 100, 127] {
        let mut log = Log::new(0);
        log.put(b"one");
        let broken = MemFile::new(&[]);
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

/// A reserve that was overtaken, or that could not be begun, stays listed for a while; by then the
/// segment before it may be gone.
#[test]
fn a_log_begins_behind_segments_that_were_never_begun() {
    for written in [0, 100] {
        let mut log = Log::new(0);
        log.put(b"one");
        let broken = MemFile::new(&[]);
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
    let spare = MemFile::new(&[]);
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
    // Another reader goes on where that one stood.
    let options = LogReaderOptions { start: Some(position), ..LogReaderOptions::new(DB) };
    assert_eq!(read(log.sources(), options).0, log.all()[2..]);
    log.next_segment();
    log.put(b"three");
    follower.add_segment(log.sources().pop().unwrap());
    assert_eq!(drain(&mut follower).unwrap(), log.all()[3..]);
}

#[test]
fn a_frame_that_appears_in_parts_is_yielded_once_it_is_whole() {
    let mut log = Log::new(256);
    log.put(b"one");
    log.put(b"two, which appears byte by byte");
    let whole = log.bytes()[0].clone();
    let from = log.frames[1].start as usize;
    let to = log.frames[1].end as usize;
    let mut follower = LogReader::new(log.sources(), LogReaderOptions::new(DB)).unwrap();
    let last_byte = whole[..to].iter().rposition(|byte| *byte != 0).unwrap();
    log.files[0].set_bytes(&[&whole[..from], &vec![0; 256 - from]].concat());
    assert_eq!(drain(&mut follower).unwrap(), log.all()[..1]);
    for len in from..=last_byte {
        log.files[0].set_bytes(&[&whole[..len], &vec![0; 256 - len]].concat());
        assert_eq!(drain(&mut follower).unwrap(), []);
    }
    log.files[0].set_bytes(&whole);
    assert_eq!(drain(&mut follower).unwrap(), log.all()[1..]);
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
    // A whole segment that never reached the disk, with the one behind it.
    log.files[0].set_bytes(&log.bytes()[0]);
    let log = sample(false, 0);
    log.files[1].set_bytes(&[]);
    let (frames, end) = log.read();
    assert_eq!(frames, log.all()[..5]);
    assert_eq!(end.unwrap().last_seq, seq(15));
}

#[test]
fn a_failed_read_fails_the_replay_and_a_retry_goes_on() {
    let log = sample(true, 512);
    let mut reader = LogReader::new(log.sources(), LogReaderOptions::new(DB)).unwrap();
    log.files[1].fail_reads_at(Some(200));
    let mut frames = Vec::new();
    let error = loop {
        match reader.next_frame() {
            Ok(frame) => frames.push(own(&frame.expect("the log does not end here"))),
            Err(e) => break e,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Io);
    log.files[1].fail_reads_at(None);
    frames.extend(drain(&mut reader).unwrap());
    assert_eq!(frames, log.all());
    // Also the verdict.
    log.files[2].fail_reads_at(Some(500));
    assert_eq!(reader.end().unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn a_length_from_disk_allocates_no_more_than_the_file_holds() {
    let mut log = Log::new(0);
    log.put(&[7; 100_000]);
    let whole = log.bytes()[0].clone();
    log.files[0].set_bytes(&whole[..300]);
    let (frames, end) = log.read();
    assert!(frames.is_empty() && end.unwrap().torn_bytes);
    assert!(log.files[0].largest_read() <= 300);
}

#[test]
fn a_closed_log_must_reach_its_end_and_a_cut_one_is_read_no_further() {
    let mut log = sample(false, 512);
    log.sync();
    log.control(Control::CleanClose { manifest_edit: 3 });
    let reach = log.writer.end();
    let options = LogReaderOptions { must_reach: Some(reach), ..LogReaderOptions::new(DB) };
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
fn a_reader_of_one_partition_does_not_touch_the_others() {
    let mut log = Log::new(0);
    let big = vec![5; 3 << 20];
    log.try_batch(&[(1, 1, big.clone()), (2, 2, b"wanted".to_vec()), (3, 1, big)]).unwrap();
    log.put(b"of partition 1");
    // Rot in the first section, and a sector of the last one that cannot be read.
    let mut bytes = log.bytes()[0].clone();
    bytes[2 << 20] ^= 1;
    log.files[0].set_bytes(&bytes);
    log.files[0].fail_reads_at(Some(5 << 20));
    let only = Some(PartitionId(2));
    let (frames, end) = read(log.sources(), LogReaderOptions { only, ..LogReaderOptions::new(DB) });
    assert_eq!(end.unwrap().last_seq, seq(log.last));
    let wanted = Owned::Batch(11, vec![(2, 12, 2, b"wanted".to_vec())]);
    assert_eq!(frames, [wanted, Owned::Batch(15, vec![])]);
}

#[test]
fn a_reader_of_one_partition_waits_for_the_whole_frame() {
    let mut log = Log::new(0);
    log.try_batch(&[(1, 1, b"wanted".to_vec()), (2, 1, b"of the other".to_vec())]).unwrap();
    let bytes = log.bytes()[0].clone();
    log.files[0].set_bytes(&bytes[..bytes.len() - 8]);
    let only = Some(PartitionId(1));
    let (frames, end) = read(log.sources(), LogReaderOptions { only, ..LogReaderOptions::new(DB) });
    assert!(frames.is_empty() && end.unwrap().torn_bytes);
}

#[test]
fn a_gap_in_the_sequence_is_a_bad_frame() {
    for attested in [false, true] {
        for step in [-1_i64, 1] {
            let mut log = Log::new(0);
            log.put(b"one");
            log.put(b"two");
            // A frame was lost, or came twice, with all checksums right.
            log.last = log.last.checked_add_signed(step).unwrap();
            log.put(b"three");
            if attested {
                log.sync();
            }
            log.control(Control::EpochStart);
            let (frames, end) = log.read();
            assert_eq!(frames, log.all()[..2]);
            assert_eq!(end.is_err_and(|e| e.is_corruption()), attested);
        }
    }
}

#[test]
fn a_control_frame_that_names_another_sequence_is_a_bad_frame() {
    let mut log = Log::new(0);
    log.put(b"one");
    log.last += 1;
    log.control(Control::IdleMarker { manifest_edit: 0 });
    assert_eq!(log.read().0, log.all()[..1]);
}

#[test]
fn unlogged_sequences_are_a_gap_that_the_frame_names() {
    let mut log = Log::new(0);
    log.put(b"one");
    let place = log.place();
    let sections = [Section {
        partition: PartitionId(1),
        operations: 1,
        checksum: section_checksum(b"later"),
        bytes: b"later",
    }];
    let mut out = Vec::new();
    encode_batch(&mut out, &place, seq(500), seq(log.last), &sections);
    let what = Owned::Batch(500, vec![(1, 500, 1, b"later".to_vec())]);
    log.append(&out, what).unwrap();
    log.last = 500;
    log.put(b"after");
    let (frames, end) = log.read();
    assert_eq!((frames, end.unwrap().last_seq), (log.all(), seq(501)));
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
fn a_frame_cannot_call_durable_what_lies_before_the_log() {
    let mut log = Log::new(0);
    let claim = FramePlace { lsn: Lsn(1 << 40), durable: Lsn(0), ..log.place() };
    let mut out = Vec::new();
    encode_control(&mut out, &claim, seq(log.last), Control::EpochStart);
    log.writer.append(&out).unwrap();
    let (frames, end) = log.read();
    assert!(frames.is_empty() && end.unwrap().torn_bytes);
}

#[test]
fn a_position_to_resume_from_must_still_be_there() {
    let mut log = Log::new(0);
    log.put(b"one");
    log.put(b"two");
    let place = LogPlace { segment: FileNo(1), offset: log.frames[0].end };
    let start = Some(Position { place, last_seq: seq(11) });
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
    // It begins at the first frame and reads in steps of 4 MiB: a frame across the step's end, one
    // just behind it.
    for end in [-16_i64, -8, 0, 8, 2048] {
        let end = 128 + (4 << 20) + end;
        let mut log = Log::new(0);
        let filler = vec![1; usize::try_from(end).unwrap() - 128 - 30];
        log.put(&filler);
        assert_eq!(log.writer.offset(), u64::try_from(end).unwrap());
        log.sync();
        log.control(Control::IdleMarker { manifest_edit: 0 });
        let mut bytes = log.bytes()[0].clone();
        bytes[140] ^= 1;
        bytes.extend(vec![0; 2 << 20]);
        log.files[0].set_bytes(&bytes);
        assert!(log.read().1.unwrap_err().is_corruption(), "marker at {end}");
    }
}

/// Words that, one behind the other, look at each 8th byte like a frame that claims to attest
/// everything before it and whose header is 1.4 MB long: of each kind that may be so long.
const CRAFTED_WORDS: [[u8; 8]; 2] =
    [[2, 0xff, 0xff, 0x5a, 1, 0, 0, 0], [7, 0xff, 0xff, 0x5a, 1, 0, 0, 0]];

/// A value of about `len` bytes of these words. An eighth of them stands at multiples of 8 in the
/// file, wherever the value begins.
fn crafted_value(word: [u8; 8], len: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(len + 8);
    for _ in 0..8 {
        value.push(0);
        value.extend(word.repeat(len / 64));
    }
    value
}

/// A log with a value of `len` bytes of crafted words, and of course with frames around it. With
/// `is_attested` the last one says that all before it was durable.
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

/// Opening took 75 s at 4 MiB, in the square of the length; and the budget that bounded a part of
/// the work made a log end before an attested hole.
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
    let file = MemFile::new(&[]);
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

/// In a log of the first version it cannot be told of every place at once whether a frame stands
/// there. What is left undecided is never the end of the log.
#[test]
fn what_cannot_be_told_of_a_log_of_the_first_version_is_corruption() {
    let mut log = with_random_salt();
    log.put(b"before");
    log.put(&crafted_value(CRAFTED_WORDS[0], 4 << 20));
    let whole = of_the_first_version(&log);
    let options = LogReaderOptions { has_derived_salts: false, ..LogReaderOptions::new(DB) };
    let mut bytes = whole.clone();
    bytes[140] ^= 1;
    // Zeros behind, so that the long headers lie in the file.
    bytes.extend(vec![0; 2 << 20]);
    log.files[0].set_bytes(&bytes);
    let error = read(log.sources(), options).1.unwrap_err();
    assert!(error.is_corruption() && error.to_string().contains("too many to tell"), "{error}");
}

#[test]
fn an_empty_list_and_a_fresh_reserve_are_empty_logs() {
    let (frames, end) = read(Vec::new(), LogReaderOptions::new(DB));
    assert!(frames.is_empty() && !end.unwrap().torn_bytes);
    for bytes in [vec![], vec![0; 4096]] {
        let (frames, end) = read(sources(&[MemFile::new(&bytes)]), LogReaderOptions::new(DB));
        assert!(frames.is_empty() && !end.unwrap().torn_bytes);
    }
    // A header that was torn, alone.
    let log = Log::new(0);
    log.files[0].set_bytes(&log.bytes()[0][..77]);
    assert!(log.read().1.unwrap().torn_bytes);
}

#[derive(Clone, Debug)]
enum Deed {
    Batch(Vec<(u32, u32, Vec<u8>)>),
    Control(u8),
    Sync,
    Switch,
    Fail(usize),
}

fn deed() -> impl Strategy<Value = Deed> {
    let section = (0u32..9, 1u32..5, prop::collection::vec(any::<u8>(), 0..300));
    prop_oneof![
        8 => prop::collection::vec(section, 1..4).prop_map(Deed::Batch),
        2 => (0u8..3).prop_map(Deed::Control),
        2 => Just(Deed::Sync),
        1 => Just(Deed::Switch),
        1 => (0usize..64).prop_map(Deed::Fail),
    ]
}

fn run(deeds: &[Deed], preallocate: u64) -> Log {
    let mut log = Log::new(preallocate);
    for deed in deeds {
        match deed {
            Deed::Batch(sections) => log.try_batch(sections).unwrap(),
            Deed::Control(0) => log.control(Control::IdleMarker { manifest_edit: 5 }),
            Deed::Control(1) => log.control(Control::CleanClose { manifest_edit: 6 }),
            Deed::Control(_) => log.control(Control::EpochStart),
            Deed::Sync => log.sync(),
            Deed::Switch => log.next_segment(),
            Deed::Fail(len) => {
                log.files.last().unwrap().fail_next_append_after(*len);
                let (bytes, what) = log.encoded(&[(1, 1, vec![1; 40])]);
                assert!(log.append(&bytes, what).is_err());
                log.next_segment();
            }
        }
    }
    log
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes that were not synced may be lost in any sectors of any segment; the rest is a prefix
    /// that holds all that was synced, and is never called rotten.
    #[test]
    fn a_power_cut_is_never_corruption_and_keeps_what_was_synced(
        deeds in prop::collection::vec(deed(), 1..40),
        preallocate in prop_oneof![Just(0u64), 256u64..4096],
        coins in prop::collection::vec(any::<bool>(), 64),
        cut in any::<prop::sample::Index>(),
    ) {
        let deeds: Vec<_> = deeds.into_iter().filter(|d| !matches!(d, Deed::Fail(_))).collect();
        let log = run(&deeds, preallocate);
        let mut coins = coins.iter().cycle();
        for (file, header) in log.files.iter().zip(&log.headers) {
            let mut bytes = file.bytes();
            let synced = log.durable.0.saturating_sub(header.base.0);
            let synced = usize::try_from(synced).unwrap().min(bytes.len());
            for from in (0..bytes.len()).step_by(512) {
                let to = bytes.len().min(from + 512);
                if to > synced && *coins.next().unwrap() {
                    bytes[from.max(synced)..to].fill(0);
                }
            }
            // A file that was not preallocated may also have lost its length.
            if preallocate == 0 && *coins.next().unwrap() {
                bytes.truncate(synced.max(cut.index(bytes.len() + 1) / 512 * 512));
            }
            file.set_bytes(&bytes);
        }
        let (frames, end) = log.read();
        prop_assert!(end.is_ok(), "{:?}", end);
        prop_assert_eq!(&frames, &log.all()[..frames.len()]);
        let synced = log.frames.iter().filter(|f| f.lsn + (f.end - f.start) <= log.durable.0);
        prop_assert!(frames.len() >= synced.count());
    }

    #[test]
    fn no_damage_yields_anything_but_a_prefix(
        deeds in prop::collection::vec(deed(), 1..30),
        preallocate in prop_oneof![Just(0u64), 256u64..4096],
        rot in prop::collection::vec(
            (any::<[prop::sample::Index; 3]>(), 0u8..4, 1usize..600), 1..6,
        ),
    ) {
        let log = run(&deeds, preallocate);
        let mut bytes = log.bytes();
        for ([file, from, to], kind, len) in rot {
            let file = file.index(bytes.len());
            let bytes = &mut bytes[file];
            let from = from.index(bytes.len());
            let to = to.index(bytes.len());
            let len = len.min(bytes.len() - from.max(to));
            match kind {
                0 => bytes[from..from + len].fill(0),
                1 => bytes[from..from + len].fill(0xff),
                // A misdirected write: the same bytes in another place.
                2 => bytes.copy_within(from..from + len, to),
                _ => bytes.extend(vec![3; len]),
            }
        }
        for (file, bytes) in log.files.iter().zip(&bytes) {
            file.set_bytes(bytes);
        }
        let (frames, end) = log.read();
        prop_assert!(frames.len() <= log.frames.len());
        prop_assert_eq!(&frames, &log.all()[..frames.len()]);
        prop_assert!(end.map_or_else(|e| e.is_corruption(), |end| end.place <= log.writer.end()));
    }

    #[test]
    fn random_logs_read_back_whole_and_damaged(
        deeds in prop::collection::vec(deed(), 1..40),
        preallocate in prop_oneof![Just(0u64), 256u64..4096],
        at in any::<(prop::sample::Index, prop::sample::Index)>(),
        bit in 0u8..8,
    ) {
        let log = run(&deeds, preallocate);
        let (frames, end) = log.read();
        prop_assert_eq!(frames, log.all());
        let end = end.unwrap();
        prop_assert_eq!(end.place, log.writer.end());
        prop_assert_eq!(end.last_seq, seq(log.last));
        let whole = log.bytes();
        let idx = at.0.index(whole.len());
        let offset = at.1.index(whole[idx].len());
        let mut bytes = whole.clone();
        bytes[idx][offset] ^= 1 << bit;
        log.check_damaged(&bytes, idx, offset as u64, false);
        bytes.clone_from(&whole);
        bytes[idx].truncate(offset);
        log.check_damaged(&bytes, idx, offset as u64, true);
    }
}
