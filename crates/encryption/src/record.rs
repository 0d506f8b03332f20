//! The records of an encrypted file: each append becomes one or several, encrypted and authenticated by themselves.
//!
//! ```text
//! offset size name
//!      0    2 length         of the data; 0 is no record: the rest of the page is not used
//!      2    6 place          of the data in the plain file
//!      8    8 salt           random, of one open for appending
//!     16    - data           encrypted with the cipher that the header names
//!      -   16 tag            of the data, with the 16 bytes before it as associated data
//! ```
//!
//! The file is divided into pages of 4 KiB, the header of `header.rs` at the front of the first one. No record crosses
//! the end of a page. The nonce is made of the salt and the offset of the record in the file, see `cipher.rs`.
//!
//! Invariants:
//! 1. No bytes are written over others. A record that an append made stays as it is.
//! 2. Salt and offset are used once: within an open for appending offsets only grow, and another open has another salt.
//!    So the end of a file may be written again after a crash that lost it.
//! 3. A record says its place by itself. So one that follows damaged bytes is found and put where it belongs.

use chacha20poly1305::Tag;

use crate::cipher::{DataCipher, RecordPlace};
use crate::header::{HEADER_BYTES, TAG_BYTES};

/// The length of a page in bytes.
pub(crate) const PAGE_BYTES: u64 = 4096;
const HEAD_BYTES: usize = 16;
/// The bytes of a record without its data.
pub(crate) const OVERHEAD: u64 = (HEAD_BYTES + TAG_BYTES) as u64;
/// The most data that a page holds.
pub(crate) const PAGE_DATA_BYTES: u64 = PAGE_BYTES - OVERHEAD;
/// The longest file in bytes.
const PLACE_MAX: u64 = (1 << 48) - 1;

/// The end of the page in which the byte at `offset` lies.
fn page_end(offset: u64) -> u64 {
    (offset / PAGE_BYTES + 1) * PAGE_BYTES
}

/// The offset at which the first record of a page may begin.
pub(crate) fn page_start(page: u64) -> u64 {
    if page == 0 { HEADER_BYTES as u64 } else { page * PAGE_BYTES }
}

/// The data that fits between two offsets of the file if it is appended at once.
pub(crate) fn data_between(from: u64, to: u64) -> u64 {
    let from = from.max(HEADER_BYTES as u64);
    if to <= from {
        return 0;
    }
    let first_end = page_end(from).min(to);
    let rest = to - first_end;
    (first_end - from).saturating_sub(OVERHEAD)
        + rest / PAGE_BYTES * PAGE_DATA_BYTES
        + (rest % PAGE_BYTES).saturating_sub(OVERHEAD)
}

/// The offset in the file after an append of `data` bytes at `from`: the smallest one, for one append.
pub(crate) fn offset_after(from: u64, data: u64) -> u64 {
    let from = from.max(HEADER_BYTES as u64);
    if data == 0 {
        return from;
    }
    let end = page_end(from);
    let first = (end - from).saturating_sub(OVERHEAD);
    if data <= first {
        return from + OVERHEAD + data;
    }
    let rest = data - first;
    let whole = (rest - 1) / PAGE_DATA_BYTES;
    end + whole * PAGE_BYTES + OVERHEAD + (rest - whole * PAGE_DATA_BYTES)
}

/// The place of the next append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataEnd {
    /// In the file.
    pub(crate) offset: u64,
    /// In the plain file.
    pub(crate) place: u64,
}

/// A record that verified.
pub(crate) struct OpenedRecord<'a> {
    pub(crate) place: u64,
    pub(crate) data: &'a [u8],
    /// The offset in the page after the record.
    pub(crate) end: usize,
}

/// The head of a possible record.
#[derive(Clone, Copy)]
struct SealedHead {
    len: usize,
    place: u64,
}

impl SealedHead {
    /// The head at the front of `bytes`, which end with the page; `None` if no record can begin there.
    fn read(bytes: &[u8]) -> Option<SealedHead> {
        let head = bytes.get(..HEAD_BYTES)?;
        let word = u64::from_le_bytes(head[..8].try_into().expect("it is 8 bytes long"));
        let head = SealedHead { len: (word & 0xffff) as usize, place: word >> 16 };
        let fits = head.len > 0 && HEAD_BYTES + head.len + TAG_BYTES <= bytes.len();
        fits.then_some(head)
    }

    fn end(self) -> u64 {
        self.place + self.len as u64
    }
}

impl DataCipher {
    /// Appends the records of `data` to `out`, whose end lies at `end` of the file. Returns the end after them.
    pub(crate) fn seal(
        &self,
        salt: [u8; 8],
        mut end: DataEnd,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> DataEnd {
        assert!(end.place + data.len() as u64 <= PLACE_MAX, "a file has less than 256 TiB");
        let mut rest = data;
        while !rest.is_empty() {
            let room = (page_end(end.offset) - end.offset) as usize;
            let Some(most) = room.checked_sub(HEAD_BYTES + TAG_BYTES).filter(|most| *most > 0)
            else {
                out.resize(out.len() + room, 0);
                end.offset += room as u64;
                continue;
            };
            let (now, later) = rest.split_at(most.min(rest.len()));
            let word = now.len() as u64 | end.place << 16;
            let start = out.len();
            out.extend_from_slice(&word.to_le_bytes());
            out.extend_from_slice(&salt);
            out.extend_from_slice(now);
            let (head, sealed) = out[start..].split_at_mut(HEAD_BYTES);
            let tag = self.encrypt(RecordPlace { salt, offset: end.offset, head }, sealed);
            out.extend_from_slice(&tag);
            end.offset += now.len() as u64 + OVERHEAD;
            end.place += now.len() as u64;
            rest = later;
        }
        end
    }

    /// Opens the record that begins at `at` of `page`, whose first byte lies at `base` of the file. Its data is
    /// decrypted where it lies.
    fn open<'a>(&self, page: &'a mut [u8], base: u64, at: usize) -> Option<OpenedRecord<'a>> {
        let head = SealedHead::read(page.get(at..)?)?;
        let (front, rest) = page[at..].split_at_mut(HEAD_BYTES);
        let (data, rest) = rest.split_at_mut(head.len);
        let tag = Tag::try_from(&rest[..TAG_BYTES]).expect("a tag has 16 bytes");
        let salt = front[8..].try_into().expect("it is 8 bytes long");
        let place = RecordPlace { salt, offset: base + at as u64, head: front };
        if !self.decrypt(place, data, &tag) {
            return None;
        }
        let end = at + HEAD_BYTES + head.len + TAG_BYTES;
        Some(OpenedRecord { place: head.place, data, end })
    }
}

/// The contents of one page, record by record.
pub(crate) struct PageReader<'a> {
    cipher: &'a DataCipher,
    page: &'a mut [u8],
    /// The offset of the page in the file.
    base: u64,
    at: usize,
    /// The first offset in the page that is no part of a record and not zero.
    junk: Option<usize>,
}

impl<'a> PageReader<'a> {
    /// A reader of `page`, which begins at `base` of the file and has all bytes up to the end of the page or file.
    pub(crate) fn new(cipher: &'a DataCipher, page: &'a mut [u8], base: u64) -> PageReader<'a> {
        let at = if base == 0 { HEADER_BYTES } else { 0 };
        PageReader { cipher, page, base, at, junk: None }
    }

    /// The next record that verifies and has data in `wanted`. Others are passed over: those that their heads place
    /// outside of it are not opened.
    pub(crate) fn next(&mut self, wanted: &std::ops::Range<u64>) -> Option<OpenedRecord<'_>> {
        while self.at < self.page.len() {
            let Some(head) = SealedHead::read(&self.page[self.at..]) else {
                let rest = &self.page[self.at..];
                let zeros = rest.iter().position(|byte| *byte != 0)?;
                // The low byte of a length may be zero.
                self.pass_junk(zeros.saturating_sub(1).max(1));
                continue;
            };
            let is_wanted = head.place < wanted.end && head.end() > wanted.start;
            let next = self.at + HEAD_BYTES + head.len + TAG_BYTES;
            // The head of one that is passed over need not be true: then no record follows it.
            if !is_wanted && self.junk.is_none() && self.continues(next, head) {
                self.at = next;
                continue;
            }
            let at = self.at;
            match self.cipher.open(self.page, self.base, at) {
                // Looked up again, because the borrow of the first call ends here.
                Some(opened) if is_wanted => {
                    self.at = opened.end;
                    let place = opened.place;
                    let end = opened.end;
                    let data = &self.page[at + HEAD_BYTES..end - TAG_BYTES];
                    return Some(OpenedRecord { place, data, end });
                }
                Some(opened) => self.at = opened.end,
                None => self.pass_junk(1),
            }
        }
        None
    }

    /// Returns `true` if the page ends at `next`, or a head there continues the data of `head`.
    fn continues(&self, next: usize, head: SealedHead) -> bool {
        let rest = &self.page[next..];
        SealedHead::read(rest).map_or_else(
            || rest.len() < HEAD_BYTES + TAG_BYTES + 1 && rest.iter().all(|byte| *byte == 0),
            |following| following.place == head.end(),
        )
    }

    fn pass_junk(&mut self, count: usize) {
        self.junk.get_or_insert(self.at);
        self.at += count;
    }

    /// The offset in the file of the first byte so far that belongs to no record, and is not zero.
    pub(crate) fn junk(&self) -> Option<u64> {
        self.junk.map(|at| self.base + at as u64)
    }
}

#[cfg(test)]
mod tests;
