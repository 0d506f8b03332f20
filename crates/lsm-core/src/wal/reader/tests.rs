//! A small log is written through [`SegmentWriter`], damaged in every way, and read again. The
//! oracle knows where each frame begins and what it attests.

mod chain;
mod damage;
mod indexed;
mod lookahead;
mod partitions;
mod random;
mod replay;

use std::sync::Arc;

use super::*;
use crate::types::{DbId, Epoch, PartitionId};
use crate::wal::frame::{encode_batch, encode_control};
use crate::wal::testing::{SegmentFile, path};
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

/// The oracle's knowledge of a frame: its place, and how far it attests.
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
    files: Vec<Arc<SegmentFile>>,
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
        let file = SegmentFile::new(&[]);
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

    /// Begins the next segment, after the frames that were appended successfully.
    fn next_segment(&mut self) {
        let number = self.files.len() as u64 + 1;
        let header = SegmentHeader {
            manifest_edit: self.edit,
            durable: self.durable,
            previous_seq: seq(self.last),
            ..header(number, Some(&self.writer))
        };
        let file = SegmentFile::new(&[]);
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

    /// All appended frames become durable; later frames attest that.
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
        // A damaged header makes its frames unreadable.
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
            // After the last frame of the segment: padding of the file, or refused bytes.
            expected = self.frames.len();
            assert_eq!((got, end.is_ok()), (self.all()[..expected].to_vec(), true), "{context}");
            return;
        };
        let attested = self.frames.iter().filter(|f| !damage.hits(f)).any(|f| f.durable > bad)
            || self.headers.iter().enumerate().any(|(i, h)| i != idx && h.durable.0 > bad)
            // A header that is not zeros, and that a later one names: begun and abandoned.
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

fn sources(files: &[Arc<SegmentFile>]) -> Vec<SegmentSource> {
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

/// Reads to the end: the frames before the end or the error.
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
    // Nothing follows a clean close; a later frame makes it unclean.
    log.next_segment();
    assert!(!log.read().1.unwrap().clean_close);
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
    log.put(&vec![7; 100_000]);
    let whole = log.bytes()[0].clone();
    log.files[0].set_bytes(&whole[..300]);
    let (frames, end) = log.read();
    assert!(frames.is_empty() && end.unwrap().torn_bytes);
    assert!(log.files[0].largest_read() <= 300);
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
