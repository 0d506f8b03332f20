//! [`SegmentFiles`]: the space of the segments of the log, without calls to the file system.
//!
//! The log reports the segments that it makes, begins, shortens and releases; `Db::stats` reads the
//! sum.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::types::FileNo;

/// The space of the segments of the log.
#[derive(Default)]
pub(super) struct SegmentFiles {
    /// A leaf.
    files: Mutex<Files>,
    /// The end of the appends to the present segment. Relaxed: a statistic without influence.
    appended: AtomicU64,
}

#[derive(Default)]
struct Files {
    /// The bytes of each file on the disk, including those reserved for appends.
    bytes: BTreeMap<FileNo, u64>,
    sum: u64,
    present: Option<FileNo>,
}

impl Files {
    fn set(&mut self, number: FileNo, bytes: u64) {
        let before = self.bytes.insert(number, bytes).unwrap_or_default();
        // Added first, so that the sum never goes below zero on its way.
        self.sum = self.sum + bytes - before;
    }

    fn present_bytes(&self) -> u64 {
        self.present.and_then(|number| self.bytes.get(&number).copied()).unwrap_or_default()
    }
}

impl SegmentFiles {
    /// Notes a file of `bytes` bytes.
    pub(super) fn note_made(&self, number: FileNo, bytes: u64) {
        self.files.lock().set(number, bytes);
    }

    /// Notes that a file other than the present one was appended to, up to `end`.
    pub(super) fn note_grown(&self, number: FileNo, end: u64) {
        let mut files = self.files.lock();
        // Only a file that is still there.
        if let Some(bytes) = files.bytes.get(&number).copied() {
            files.set(number, bytes.max(end));
        }
    }

    /// Notes that appends go to this file from now on, and end at `end`.
    pub(super) fn note_begun(&self, number: FileNo, end: u64) {
        let mut files = self.files.lock();
        // First, because `appended` is about to be that of the new segment.
        self.fix_length(&mut files);
        files.present = Some(number);
        self.appended.store(end, Ordering::Relaxed);
    }

    /// Records the final length of the segment before the present one.
    fn fix_length(&self, files: &mut Files) {
        if let Some(number) = files.present {
            let bytes = files.present_bytes().max(self.appended.load(Ordering::Relaxed));
            files.set(number, bytes);
        }
    }

    /// Notes how far the present segment is appended, in bytes.
    #[inline]
    pub(super) fn note_appended(&self, end: u64) {
        self.appended.store(end, Ordering::Relaxed);
    }

    /// Notes that the present segment has no reserved space after its end.
    pub(super) fn note_given_back(&self) {
        let mut files = self.files.lock();
        if let Some(number) = files.present {
            files.set(number, self.appended.load(Ordering::Relaxed));
        }
    }

    /// Notes that a file is deleted, or not the log's any more; returns its bytes.
    pub(super) fn note_gone(&self, number: FileNo) -> u64 {
        let mut files = self.files.lock();
        if files.present == Some(number) {
            files.present = None;
        }
        // A file that is deleted twice, or was never noted, counts for nothing.
        let bytes = files.bytes.remove(&number).unwrap_or_default();
        files.sum -= bytes;
        bytes
    }

    /// The bytes of one of them.
    pub(super) fn bytes_of(&self, number: FileNo) -> u64 {
        self.files.lock().bytes.get(&number).copied().unwrap_or_default()
    }

    /// The bytes of all of them.
    pub(super) fn bytes(&self) -> u64 {
        let files = self.files.lock();
        let present = files.present_bytes();
        // An append beyond the preallocated length makes the file longer than what was noted.
        let grown = match files.present {
            Some(_) => present.max(self.appended.load(Ordering::Relaxed)),
            None => present,
        };
        files.sum - present + grown
    }
}
