//! [`Pages`]: an encrypted file as it is read.
//!
//! A read guesses the page at which its bytes begin, from pages that were read before. The guess is exact for files
//! that are written in large appends. Otherwise [`Pages::locate`] searches for it.
//!
//! Invariants:
//! 1. Only bytes of records that verified are returned, and zeros where the file has no record.
//! 2. A record that does not verify is an error, except in files whose readers expect damage at any place and look
//!    for what follows it: the log, manifests and leases. There its bytes are zeros, as after a power cut, and the
//!    checksums of those files refuse them.
//! 3. Nothing here trusts a length or a place before it is verified; each loop moves forward in the file.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use storage::fs::File;
use storage::{Error, Result};

use crate::cipher::{DataCipher, DataKey};
use crate::header::{self, HEADER_BYTES, ReadHeader};
use crate::keys::KeyProvider;
use crate::record::{DataEnd, PAGE_BYTES, PAGE_DATA_BYTES, PageReader, data_between, page_start};

/// Pages that are read at once at most.
const PAGES_MAX: u64 = 256;
/// So many pages without a record end a search for later ones: in a file whose space is reserved, zeros follow the
/// data. A larger hole, which the loss of so many pages makes, hides what follows it.
const HOLE_PAGES: u64 = 32;
/// Pages between two that are remembered.
const ANCHOR_PAGES: u64 = 64;
/// Pages that are remembered at most.
const ANCHORS_MAX: usize = 4096;

/// The call by which bytes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageAccess {
    /// As usual.
    Usual,
    /// Only what the system has in memory.
    Cached,
    /// From the device.
    Uncached,
}

/// Each byte of a file with a damaged header, for a reader that expects damage: its magic number is wrong, and it does
/// not count as space that is reserved.
const DAMAGED_BYTE: u8 = 0xff;

/// The header of a file.
pub(crate) enum FileHeader<'a> {
    /// The file is not begun.
    Nothing,
    /// The file is read with this data key.
    Open(&'a DataCipher),
    /// Nothing of the file can be read.
    Damaged,
}

/// An encrypted file, to be read.
pub(crate) struct Pages {
    // Fixed after construction.
    pub(crate) inner: Arc<dyn File>,
    pub(crate) path: PathBuf,
    keys: Arc<dyn KeyProvider>,
    is_lenient: bool,
    /// Set when the header was read, or made.
    cipher: OnceLock<DataCipher>,
    /// A leaf.
    anchors: Mutex<Anchors>,
}

/// Pages with the place of a record in each.
#[derive(Default)]
struct Anchors {
    by_place: BTreeMap<u64, u64>,
    /// Place and page of the last read.
    last: (u64, u64),
}

/// The data of one page.
#[derive(Clone, Copy, Debug)]
struct PageSpan {
    page: u64,
    /// The place of its first byte.
    start: u64,
    /// The end of its last record.
    end: DataEnd,
}

/// A read under way.
struct Filling<'a> {
    wanted: Range<u64>,
    /// Everything before this place is filled.
    at: u64,
    buf: &'a mut [u8],
    /// The first offset in the file with bytes that do not verify.
    junk: Option<u64>,
}

/// The way in which a walk over pages ended.
#[derive(Debug, PartialEq, Eq)]
enum Filled {
    /// All is there.
    All,
    /// The pages hold other places.
    Elsewhere,
    /// No record follows.
    Ended,
}

impl Pages {
    pub(crate) fn new(
        inner: Arc<dyn File>,
        path: &Path,
        keys: Arc<dyn KeyProvider>,
        is_lenient: bool,
    ) -> Pages {
        let path = path.to_owned();
        let anchors = Mutex::default();
        Pages { inner, path, keys, is_lenient, cipher: OnceLock::new(), anchors }
    }

    /// Sets the data key of a file that is being made.
    pub(crate) fn begin(&self, data_key: &DataKey) -> &DataCipher {
        self.cipher.get_or_init(|| DataCipher::new(data_key))
    }

    pub(crate) fn keys(&self) -> &Arc<dyn KeyProvider> {
        &self.keys
    }

    /// Reads the header.
    ///
    /// # Errors
    /// Those of [`header::open`]; corruption for a damaged header, but of a file whose reader expects damage.
    pub(crate) fn header(&self) -> Result<FileHeader<'_>> {
        if let Some(cipher) = self.cipher.get() {
            return Ok(FileHeader::Open(cipher));
        }
        let mut front = [0; HEADER_BYTES];
        let got = self.inner.read_at(0, &mut front)?;
        match header::open(&front[..got], &*self.keys, &self.path)? {
            ReadHeader::DataKey(data_key) => Ok(FileHeader::Open(self.begin(&data_key))),
            // Not kept: another handle may begin the file.
            ReadHeader::Nothing => Ok(FileHeader::Nothing),
            ReadHeader::Damaged if self.is_lenient => Ok(FileHeader::Damaged),
            ReadHeader::Damaged => {
                Err(Error::corruption(&*self.path, 0, "the header of an encrypted file is damaged"))
            }
        }
    }

    fn raw(&self, access: PageAccess, offset: u64, buf: &mut [u8]) -> Result<usize> {
        match access {
            PageAccess::Usual => self.inner.read_at(offset, buf),
            PageAccess::Cached => self.inner.read_cached_at(offset, buf),
            PageAccess::Uncached => self.inner.read_at_uncached(offset, buf),
        }
    }

    /// Reads at the place `from` until `buf` is full or the file ends.
    pub(crate) fn read(&self, access: PageAccess, from: u64, buf: &mut [u8]) -> Result<usize> {
        let end = from.saturating_add(buf.len() as u64);
        let mut filling = Filling { wanted: from..end, at: from, buf, junk: None };
        if filling.wanted.is_empty() {
            return Ok(0);
        }
        let cipher = match self.header()? {
            FileHeader::Open(cipher) => cipher,
            FileHeader::Nothing => return self.finish(filling),
            FileHeader::Damaged => {
                let got = self.finish(Filling { buf: &mut *filling.buf, ..filling })?;
                buf[..got].fill(DAMAGED_BYTE);
                return Ok(got);
            }
        };
        let guess = self.guess(from);
        let mut filled = self.fill(cipher, access, guess, true, &mut filling)?;
        if access == PageAccess::Cached && filled != Filled::All {
            return Ok((filling.at - from) as usize);
        }
        if filled == Filled::Elsewhere || filled == Filled::Ended && filling.at == from {
            filling.junk = None;
            filled = match self.locate(cipher, access, from)? {
                Some(span) => self.fill(cipher, access, span.page, false, &mut filling)?,
                None => Filled::Ended,
            };
        }
        match filled {
            Filled::All => Ok((end - from) as usize),
            Filled::Elsewhere | Filled::Ended => self.finish(filling),
        }
    }

    /// Ends a read after the last record of the file: with zeros up to the end of the reserved space.
    fn finish(&self, mut filling: Filling<'_>) -> Result<usize> {
        let len = self.len()?;
        self.pass_gap(&mut filling, len)?;
        Ok((filling.at - filling.wanted.start) as usize)
    }

    /// Fills with zeros up to the place `to`.
    ///
    /// # Errors
    /// Corruption if there are bytes that do not verify.
    fn pass_gap(&self, filling: &mut Filling<'_>, to: u64) -> Result<()> {
        let to = to.min(filling.wanted.end);
        if to <= filling.at {
            return Ok(());
        }
        if let Some(offset) = filling.junk.filter(|_| !self.is_lenient) {
            let what = "encrypted bytes were changed or lost: they do not verify";
            return Err(Error::corruption(&*self.path, offset, what));
        }
        let begin = (filling.at - filling.wanted.start) as usize;
        let end = (to - filling.wanted.start) as usize;
        filling.buf[begin..end].fill(0);
        filling.at = to;
        Ok(())
    }

    /// Copies what the pages from `page` on have of the read. A guess gives up when the pages do not begin with the
    /// read.
    fn fill(
        &self,
        cipher: &DataCipher,
        access: PageAccess,
        mut page: u64,
        is_guess: bool,
        filling: &mut Filling<'_>,
    ) -> Result<Filled> {
        let mut empty = 0;
        loop {
            let left = (filling.wanted.end - filling.at).div_ceil(PAGE_DATA_BYTES) + 1;
            let count = left.min(PAGES_MAX);
            let mut bytes = vec![0; (count * PAGE_BYTES) as usize];
            let got = self.raw(access, page * PAGE_BYTES, &mut bytes)?;
            for (number, part) in (page..).zip(bytes[..got].chunks_mut(PAGE_BYTES as usize)) {
                let before = filling.at;
                match self.fill_from_page(cipher, number, part, is_guess, filling)? {
                    Some(filled) => return Ok(filled),
                    None if filling.at == before => empty += 1,
                    None => empty = 0,
                }
            }
            if got < bytes.len() || empty >= HOLE_PAGES {
                return Ok(Filled::Ended);
            }
            if is_guess && filling.at == filling.wanted.start {
                return Ok(Filled::Elsewhere);
            }
            page += count;
        }
    }

    /// Copies what one page has of the read; `None` if the next page may have more.
    fn fill_from_page(
        &self,
        cipher: &DataCipher,
        page: u64,
        bytes: &mut [u8],
        is_guess: bool,
        filling: &mut Filling<'_>,
    ) -> Result<Option<Filled>> {
        let base = page * PAGE_BYTES;
        let mut reader = PageReader::new(cipher, bytes, base);
        let mut first = None;
        while let Some(opened) = reader.next(&filling.wanted) {
            let place = opened.place;
            first.get_or_insert(place);
            if place > filling.at {
                if is_guess && filling.at == filling.wanted.start {
                    return Ok(Some(Filled::Elsewhere));
                }
                // Not only bytes that are there and do not verify: strict files have no holes.
                filling.junk.get_or_insert(base);
                self.pass_gap(filling, place)?;
            }
            let skipped = filling.at.saturating_sub(place) as usize;
            let Some(data) = opened.data.get(skipped..) else { continue };
            let wanted = (filling.wanted.end - filling.at) as usize;
            let data = &data[..data.len().min(wanted)];
            let begin = (filling.at - filling.wanted.start) as usize;
            filling.buf[begin..begin + data.len()].copy_from_slice(data);
            filling.at += data.len() as u64;
            if filling.at == filling.wanted.end {
                self.note(place, page);
                return Ok(Some(Filled::All));
            }
        }
        if let Some(offset) = reader.junk() {
            filling.junk.get_or_insert(offset);
        }
        Ok(None)
    }

    /// Remembers that `page` has a record at `place`.
    fn note(&self, place: u64, page: u64) {
        let mut anchors = self.anchors.lock();
        anchors.last = (place, page);
        let near = anchors.by_place.range(..=place).next_back().map_or(0, |(_, page)| *page);
        if page >= near + ANCHOR_PAGES && anchors.by_place.len() < ANCHORS_MAX {
            anchors.by_place.insert(place, page);
        }
    }

    /// A page that has the place, or lies before it.
    fn anchor(&self, place: u64) -> (u64, u64) {
        let anchors = self.anchors.lock();
        let (at, page) =
            anchors.by_place.range(..=place).next_back().map_or((0, 0), |(at, page)| (*at, *page));
        if (at..=place).contains(&anchors.last.0) { anchors.last } else { (at, page) }
    }

    /// The first page in which the place can lie.
    fn guess(&self, place: u64) -> u64 {
        let (at, page) = self.anchor(place);
        page + (place - at) / PAGE_DATA_BYTES
    }

    /// Has the system read the pages of a range into its cache.
    pub(crate) fn prefetch(&self, place: u64, len: u64) {
        let pages = len.div_ceil(PAGE_DATA_BYTES) + 1;
        self.inner.prefetch(self.guess(place) * PAGE_BYTES, pages.saturating_mul(PAGE_BYTES));
    }

    /// The first page with records among `count` pages from `page` on, if they begin at the place `before` or
    /// before it.
    fn content(
        &self,
        (cipher, access): (&DataCipher, PageAccess),
        page: u64,
        count: u64,
        before: u64,
    ) -> Result<Option<PageSpan>> {
        let mut bytes = vec![0; (count.min(HOLE_PAGES) * PAGE_BYTES) as usize];
        let Some(offset) = page.checked_mul(PAGE_BYTES) else { return Ok(None) };
        let got = self.raw(access, offset, &mut bytes)?;
        for (number, part) in (page..).zip(bytes[..got].chunks_mut(PAGE_BYTES as usize)) {
            if let Some(span) = span_of(cipher, number, part) {
                return Ok(Some(span).filter(|span| span.start <= before));
            }
        }
        Ok(None)
    }

    /// The last page whose records begin at `place` or before it; the first page with records if all begin after it;
    /// `None` if there is none.
    fn locate(
        &self,
        cipher: &DataCipher,
        access: PageAccess,
        place: u64,
    ) -> Result<Option<PageSpan>> {
        let by = (cipher, access);
        let first = self.content(by, self.anchor(place).1, HOLE_PAGES, u64::MAX)?;
        let Some(mut low) = first else { return Ok(None) };
        while low.start <= place && place >= low.end.place {
            let jump = ((place - low.start) / PAGE_DATA_BYTES).max(1);
            let guess = low.page.saturating_add(jump);
            if let Some(found) = self.content(by, guess, HOLE_PAGES, place)? {
                low = found;
                continue;
            }
            // The guess is beyond the data, or after a hole. Pages between hold the place, or none does.
            if jump > 1
                && let Some(found) = self.content(by, low.page + 1, HOLE_PAGES, place)?
            {
                low = self.bisect(by, found, guess, place)?;
            }
            break;
        }
        self.note(low.start, low.page);
        Ok(Some(low))
    }

    /// The last page between `low` and the page `high` whose records begin at `place` or before it.
    fn bisect(
        &self,
        by: (&DataCipher, PageAccess),
        mut low: PageSpan,
        high: u64,
        place: u64,
    ) -> Result<PageSpan> {
        let mut high = high.min(self.inner.len()?.div_ceil(PAGE_BYTES));
        while high > low.page + 1 {
            let middle = low.page + (high - low.page) / 2;
            match self.content(by, middle, HOLE_PAGES.min(high - middle), place)? {
                Some(found) => low = found,
                None => high = middle,
            }
        }
        Ok(low)
    }

    /// The end of the last record; the front of a file without one.
    pub(crate) fn end(&self) -> Result<DataEnd> {
        let FileHeader::Open(cipher) = self.header()? else {
            return Ok(DataEnd { offset: page_start(0), place: 0 });
        };
        let pages = self.inner.len()?.div_ceil(PAGE_BYTES);
        let last =
            self.content((cipher, PageAccess::Usual), pages.saturating_sub(1), 1, u64::MAX)?;
        let last = match last {
            Some(span) => Some(span),
            None => self.locate(cipher, PageAccess::Usual, u64::MAX)?,
        };
        Ok(last.map_or(DataEnd { offset: page_start(0), place: 0 }, |span| span.end))
    }

    /// The parts of a range that records which verify have. Holes of any length are passed.
    pub(crate) fn readable(&self, wanted: &Range<u64>) -> Result<Vec<Range<u64>>> {
        let FileHeader::Open(cipher) = self.header()? else { return Ok(Vec::new()) };
        let mut parts: Vec<Range<u64>> = Vec::new();
        // Earlier pages cannot hold so much.
        let mut page = wanted.start / PAGE_DATA_BYTES;
        loop {
            let mut bytes = vec![0; (PAGES_MAX * PAGE_BYTES) as usize];
            let got = self.raw(PageAccess::Usual, page * PAGE_BYTES, &mut bytes)?;
            for (number, part) in (page..).zip(bytes[..got].chunks_mut(PAGE_BYTES as usize)) {
                let mut reader = PageReader::new(cipher, part, number * PAGE_BYTES);
                while let Some(opened) = reader.next(wanted) {
                    let begin = opened.place.max(wanted.start);
                    let end = (opened.place + opened.data.len() as u64).min(wanted.end);
                    match parts.last_mut() {
                        Some(last) if begin <= last.end => last.end = last.end.max(end),
                        _ => {
                            parts.push(begin..end);
                            // A read of the part begins here: a search might end in the hole before it.
                            self.anchors.lock().by_place.insert(opened.place, number);
                        }
                    }
                }
            }
            if got < bytes.len() {
                return Ok(parts);
            }
            page += PAGES_MAX;
        }
    }

    /// The length of the plain file, reserved space included.
    pub(crate) fn len(&self) -> Result<u64> {
        let end = self.end()?;
        Ok(end.place + data_between(end.offset, self.inner.len()?))
    }
}

/// The data of a page; `None` if no record of it verifies.
fn span_of(cipher: &DataCipher, page: u64, bytes: &mut [u8]) -> Option<PageSpan> {
    let base = page * PAGE_BYTES;
    let mut reader = PageReader::new(cipher, bytes, base);
    let mut span = None;
    while let Some(opened) = reader.next(&(0..u64::MAX)) {
        let end = DataEnd {
            offset: base + opened.end as u64,
            place: opened.place + opened.data.len() as u64,
        };
        let found = span.get_or_insert(PageSpan { page, start: opened.place, end });
        found.end = end;
    }
    span
}
