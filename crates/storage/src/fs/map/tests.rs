//! Stored and written appends leave the same file; nothing is stored if that is dangerous.

#![expect(clippy::disallowed_methods, reason = "handles that the file system does not give out")]

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;

use super::*;
use crate::fs::tests::cached::{drop_until, drops_pages};

const APPEND_BYTES_MAX: usize = 8 << 10;

/// A file of `len` bytes whose space is reserved.
fn preallocated(len: u64) -> File {
    let file = tempfile::tempfile().unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, len).unwrap();
    file
}

/// As [`MappedAppends::of`], whatever the file system is.
fn mapped(end: u64) -> MappedAppends {
    MappedAppends { end, append_bytes_max: APPEND_BYTES_MAX, unsynced: 0, mapping: None }
}

/// Appends as the file system does: bytes that are not stored are written.
struct Appender {
    file: File,
    mapped: MappedAppends,
    content: Vec<u8>,
    stored: usize,
}

impl Appender {
    fn new(len: u64) -> Appender {
        let file = preallocated(len);
        Appender { file, mapped: mapped(len), content: Vec::new(), stored: 0 }
    }

    /// Returns whether the bytes were stored.
    fn append(&mut self, len: usize) -> bool {
        let bytes = vec![1 + (self.content.len() % 251) as u8; len];
        let offset = self.content.len() as u64;
        let is_stored = self.mapped.store(
            self.file.as_fd(),
            offset,
            &[&bytes[..len / 3], b"", &bytes[len / 3..]],
        );
        if !is_stored {
            self.file.write_all_at(&bytes, offset).unwrap();
        }
        self.stored += usize::from(is_stored);
        self.content.extend_from_slice(&bytes);
        is_stored
    }

    /// Checks that the file has the appended bytes, and zeros after them.
    fn check(&self) {
        let len = usize::try_from(self.file.metadata().unwrap().len()).unwrap();
        let mut found = vec![0xee; len];
        self.file.read_exact_at(&mut found, 0).unwrap();
        let (content, rest) = found.split_at(self.content.len());
        assert!(content == self.content, "what was appended is not there");
        assert!(rest.iter().all(|byte| *byte == 0), "what follows is not zeros");
    }

    fn mapped_len(&self) -> usize {
        self.mapped.mapping.as_ref().map_or(0, |mapping| mapping.memory.len())
    }
}

#[test]
fn small_appends_are_stored_once_enough_was_written_since_a_sync() {
    let mut appender = Appender::new(4 << 20);
    let mut written = 0;
    while !appender.append(100) {
        written += 100;
    }
    assert_eq!(written + 100, MAPPING_BYTES_MIN.next_multiple_of(100));
    let mut longest = 0;
    while appender.content.len() < 2 << 20 {
        assert!(appender.append(100));
        assert!(appender.mapped_len() <= appender.content.len(), "as long as what was appended");
        longest = longest.max(appender.mapped_len());
        if appender.content.len() % (64 << 10) < 100 {
            appender.check();
        }
    }
    assert_eq!(longest as u64, LONG_MAPPING_BYTES);
    appender.check();
}

#[test]
fn longer_appends_make_shorter_mappings() {
    for (len, longest) in
        [(SHORT_APPEND_BYTES, LONG_MAPPING_BYTES), (SHORT_APPEND_BYTES + 1, MAPPING_BYTES)]
    {
        let mut appender = Appender::new(8 << 20);
        while appender.content.len() < 2 * usize::try_from(LONG_MAPPING_BYTES).unwrap() {
            appender.append(len);
        }
        appender.append(len);
        assert_eq!(appender.mapped_len() as u64, longest, "appends of {len} bytes");
        appender.check();
    }
}

#[test]
fn a_file_that_is_synced_after_each_append_is_never_mapped() {
    let mut appender = Appender::new(1 << 20);
    for _ in 0..1000 {
        assert!(!appender.append(1000));
        appender.mapped.note_sync();
    }
    appender.check();
}

#[test]
fn a_sync_and_a_punch_end_the_mapping() {
    let mut appender = Appender::new(1 << 20);
    while !appender.append(100) {}
    appender.mapped.note_sync();
    assert!(!appender.append(100), "too little was appended since the sync");
    while !appender.append(100) {}
    let end = appender.content.len() as u64;
    appender.mapped.note_punch();
    assert_eq!(appender.mapped_len(), 0);
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&appender.file, flags, end, (1 << 20) - end).unwrap();
    assert!(appender.append(100), "the space is reserved again");
    appender.check();
}

#[test]
fn large_appends_are_written_in_the_middle_of_a_mapping() {
    let mut appender = Appender::new(1 << 20);
    while !appender.append(APPEND_BYTES_MAX) {}
    while appender.mapped_len() < 4 * APPEND_BYTES_MAX {
        appender.append(APPEND_BYTES_MAX);
    }
    assert!(!appender.append(APPEND_BYTES_MAX + 1));
    assert!(appender.append(7));
    appender.check();
}

#[test]
fn a_long_append_makes_no_mapping_however_short_its_front_is() {
    let mut appender = Appender::new(1 << 20);
    while !appender.append(100) {}
    appender.mapped.note_punch();
    let end = appender.content.len() as u64;
    let long = [7; APPEND_BYTES_MAX];
    assert!(!appender.mapped.store(appender.file.as_fd(), end, &[b"front", &long, b"end"]));
    assert_eq!(appender.mapped_len(), 0);
    assert!(appender.mapped.store(appender.file.as_fd(), end, &[b"front", &long[..9], b"end"]));
    appender.content.extend_from_slice(&[b"front", &long[..9], b"end"].concat());
    appender.check();
}

#[test]
fn nothing_is_stored_after_what_is_preallocated() {
    let len = 100 << 10;
    let mut appender = Appender::new(len);
    while (appender.content.len() as u64) < 2 * len {
        let is_stored = appender.append(1000);
        assert!(!is_stored || appender.content.len() as u64 <= len);
    }
    assert!(appender.stored > 0);
    appender.check();
}

#[test]
fn what_cannot_be_mapped_is_left_to_write() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let file = OpenOptions::new().read(true).open(&path).unwrap();
    let mut mapped = mapped(1 << 20);
    mapped.unsynced = MAPPING_BYTES_MIN;
    assert!(!mapped.store(file.as_fd(), 0, &[b"refused"]), "the handle cannot write");
    assert_eq!(mapped.end, 0, "it is not tried again");
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    assert!(!mapped.store(file.as_fd(), 0, &[b"refused"]));
    assert_eq!(std::fs::read(&path).unwrap(), vec![0; 1 << 20]);
}

#[test]
fn a_window_that_is_refused_in_the_middle_of_a_file_is_left_to_write() {
    let mut appender = Appender::new(4 << 20);
    while appender.content.len() < 1 << 20 {
        appender.append(100);
    }
    let window = appender.mapped.mapping.as_ref().map(|it| it.start + it.memory.len() as u64);
    let window_end = window.expect("the file is mapped by now");
    let able = appender.file.try_clone().unwrap();
    let path = format!("/proc/self/fd/{}", able.as_raw_fd());
    // Reserving fails with this handle, as it does on a full disk whose space was freed.
    appender.file = File::open(path).unwrap();
    let bytes = [9; 100];
    let mut refused = 0;
    while appender.content.len() < 3 << 20 {
        let offset = appender.content.len() as u64;
        if !appender.mapped.store(appender.file.as_fd(), offset, &[&bytes]) {
            able.write_all_at(&bytes, offset).unwrap();
            assert!(offset + 100 > window_end, "the window that was there is used to its end");
            refused += 1;
        }
        appender.content.extend_from_slice(&bytes);
    }
    assert!(refused > 10_000, "{refused}: it is not tried again");
    appender.check();
}

#[test]
fn pages_that_the_kernel_cannot_provide_are_an_error_and_no_signal() {
    let file = preallocated(16 << 10);
    assert!(Mapping::populated(file.as_fd(), 0, 16 << 10).is_ok());
    assert!(Mapping::populated(file.as_fd(), 0, 32 << 10).is_err(), "half of it is after the end");
    assert!(Mapping::populated(file.as_fd(), 1 << 20, 16 << 10).is_err());
}

#[test]
fn an_unknown_file_system_is_not_mapped() {
    let file = File::open("/proc/self/status").unwrap();
    assert!(MappedAppends::of(file.as_fd(), 1 << 20).is_none());
}

#[test]
fn bytes_that_the_device_would_be_read_for_are_not_resident() {
    const LEN: usize = (8 << 20) + 100;
    let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    io::Write::write_all(&mut file, &vec![7; LEN]).unwrap();
    file.sync_all().unwrap();
    let Some(memory) = map_read(file.as_fd(), 0, LEN) else {
        println!("skipped: without the feature `mmap`, or on an unknown file system");
        return;
    };
    if drops_pages(file.as_fd()) {
        drop_until(file.as_fd(), LEN, || {
            !memory.is_resident(0..LEN) && !memory.is_resident(LEN - 50..LEN)
        });
    }
    assert!(memory.populate(0..LEN));
    assert!(memory.is_resident(0..LEN));
    assert!(memory.is_resident(5000..5001) && memory.is_resident(LEN..LEN));
    assert!(memory.is_resident(0..LEN + 1), "it is not mapped, so it is unknown");
}
