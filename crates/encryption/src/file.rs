//! [`EncryptedFile`]: an open file of [`EncryptedFs`](crate::EncryptedFs).
//!
//! Invariants:
//! 1. The header goes into the file with the first append, in one call, or before space is reserved. So a file that
//!    nothing was done to has no header, and another open may begin it.
//! 2. After a failed append nothing is appended: the end of the file is unknown, and a nonce must not be used twice.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use storage::fs::File;
use storage::{Error, ErrorKind, Result};

use crate::cipher::{DataCipher, DataKey, RecordCipher};
use crate::header::{self, HEADER_BYTES, PLACE_BYTES};
use crate::keys::{EncryptionKey, KeyProvider, fill_random};
use crate::pages::{FileHeader, PageAccess, Pages};
use crate::record::{DataEnd, data_between, offset_after};

/// An open file.
pub(crate) struct EncryptedFile {
    pages: Pages,
    /// `None` if the file is only read. Held over an append, so that records follow one another.
    appending: Option<Mutex<Appending>>,
}

/// The state of the appends of one open file.
struct Appending {
    salt: [u8; 8],
    /// The place of the next append; `None` if it was not looked for yet.
    end: Option<DataEnd>,
    /// The header of a file that is not begun.
    header: Option<Box<[u8; HEADER_BYTES]>>,
    /// The length of the file when it was opened, where its appends continue.
    opened_at: u64,
    is_failed: bool,
}

/// The front of a file: its data key and its header.
pub(crate) struct FileFront {
    data_key: DataKey,
    header: Box<[u8; HEADER_BYTES]>,
}

impl FileFront {
    /// A front with a new data key.
    pub(crate) fn make(keys: &dyn KeyProvider) -> Result<FileFront> {
        let data_key = DataKey { key: EncryptionKey::random()?, cipher: RecordCipher::Aes256Gcm };
        let header = Box::new(header::seal_new(keys, &data_key)?);
        Ok(FileFront { data_key, header })
    }
}

fn new_salt() -> Result<[u8; 8]> {
    let mut salt = [0; 8];
    fill_random(&mut salt)?;
    Ok(salt)
}

/// The bytes of a whole file with this content.
pub(crate) fn seal_whole(keys: &dyn KeyProvider, content: &[u8]) -> Result<Vec<u8>> {
    let front = FileFront::make(keys)?;
    let mut out = front.header.to_vec();
    let cipher = DataCipher::new(&front.data_key);
    let end = DataEnd { offset: HEADER_BYTES as u64, place: 0 };
    cipher.seal(new_salt()?, end, content, &mut out);
    Ok(out)
}

impl EncryptedFile {
    /// A file that is read.
    pub(crate) fn reading(pages: Pages) -> EncryptedFile {
        EncryptedFile { pages, appending: None }
    }

    /// A file that was just created.
    pub(crate) fn created(pages: Pages, front: FileFront) -> Result<EncryptedFile> {
        pages.begin(&front.data_key);
        let end = Some(DataEnd { offset: HEADER_BYTES as u64, place: 0 });
        let header = Some(front.header);
        let appending =
            Appending { salt: new_salt()?, end, header, opened_at: 0, is_failed: false };
        Ok(EncryptedFile { pages, appending: Some(Mutex::new(appending)) })
    }

    /// A file that exists. Its header is read at the first call that needs it: a sync needs none.
    pub(crate) fn continued(pages: Pages) -> Result<EncryptedFile> {
        let opened_at = pages.inner.len()?;
        let appending =
            Appending { salt: new_salt()?, end: None, header: None, opened_at, is_failed: false };
        Ok(EncryptedFile { pages, appending: Some(Mutex::new(appending)) })
    }

    fn path(&self) -> &Path {
        &self.pages.path
    }

    fn appending(&self, operation: &str) -> Result<&Mutex<Appending>> {
        self.appending.as_ref().ok_or_else(|| {
            let error = std::io::ErrorKind::Unsupported.into();
            Error::io(operation, self.path(), error)
        })
    }

    /// Finds the place of the next append.
    fn settle(&self, appending: &mut Appending, keys: &Arc<dyn KeyProvider>) -> Result<DataEnd> {
        if let Some(end) = appending.end {
            return Ok(end);
        }
        let end = if appending.opened_at == 0 {
            // Made by a lock, for example: whoever appends first begins it.
            let front = FileFront::make(&**keys)?;
            self.pages.begin(&front.data_key);
            appending.header = Some(front.header);
            DataEnd { offset: HEADER_BYTES as u64, place: 0 }
        } else {
            self.cipher()?;
            self.complete_header(appending)?;
            let end = self.pages.end()?;
            let reserved = data_between(end.offset, appending.opened_at);
            DataEnd { offset: appending.opened_at, place: end.place + reserved }
        };
        appending.end = Some(end);
        Ok(end)
    }

    /// Appends what a crash has cut off the header, whose first place is whole. Records begin after the header: those
    /// before its end would never be read.
    fn complete_header(&self, appending: &mut Appending) -> Result<()> {
        let len = usize::try_from(appending.opened_at).ok();
        let Some(cut) = len.filter(|len| *len < HEADER_BYTES) else { return Ok(()) };
        let mut place = [0; PLACE_BYTES];
        self.pages.inner.read_at(0, &mut place)?;
        self.append_raw(appending, &[place, place].concat()[cut..])?;
        appending.opened_at = HEADER_BYTES as u64;
        Ok(())
    }

    /// The data key of a file that is appended to.
    fn cipher(&self) -> Result<&DataCipher> {
        match self.pages.header()? {
            FileHeader::Open(cipher) => Ok(cipher),
            FileHeader::Nothing | FileHeader::Damaged => {
                let what = "an encrypted file without a whole header cannot be continued";
                Err(Error::corruption(self.path(), 0, what))
            }
        }
    }

    fn append_all(&self, pieces: &[&[u8]]) -> Result<()> {
        let mut appending = self.appending("append to")?.lock();
        if pieces.iter().all(|piece| piece.is_empty()) {
            return Ok(());
        }
        let mut end = self.settle(&mut appending, self.pages.keys())?;
        let cipher = self.cipher()?;
        let data: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        let mut out = Vec::with_capacity(
            (offset_after(end.offset, data) - end.offset) as usize + HEADER_BYTES,
        );
        if let Some(header) = &appending.header {
            out.extend_from_slice(&header[..]);
        }
        match pieces {
            [one] => end = cipher.seal(appending.salt, end, one, &mut out),
            // Together, because each piece alone would be a record.
            pieces => end = cipher.seal(appending.salt, end, &pieces.concat(), &mut out),
        }
        self.append_raw(&mut appending, &out)?;
        appending.header = None;
        appending.end = Some(end);
        Ok(())
    }

    /// Appends bytes of the encrypted file. After an error no further append is accepted.
    fn append_raw(&self, appending: &mut Appending, bytes: &[u8]) -> Result<()> {
        if appending.is_failed {
            let message = format!("an earlier append to {} failed", self.path().display());
            return Err(Error::new(ErrorKind::Io, message));
        }
        appending.is_failed = true;
        self.pages.inner.append(bytes)?;
        appending.is_failed = false;
        Ok(())
    }
}

impl File for EncryptedFile {
    fn append(&self, bytes: &[u8]) -> Result<()> {
        self.append_all(&[bytes])
    }

    fn append_pieces(&self, pieces: &[&[u8]]) -> Result<()> {
        self.append_all(pieces)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.pages.read(PageAccess::Usual, offset, buf)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.pages.prefetch(offset, len);
    }

    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.pages.read(PageAccess::Cached, offset, buf)
    }

    fn read_at_uncached(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.pages.read(PageAccess::Uncached, offset, buf)
    }

    fn sync(&self) -> Result<()> {
        self.pages.inner.sync()
    }

    fn sync_locally(&self) -> Result<()> {
        self.pages.inner.sync_locally()
    }

    fn gather_time(&self) -> Duration {
        self.pages.inner.gather_time()
    }

    fn begin_sync(&self) {
        self.pages.inner.begin_sync();
    }

    fn begin_next_sync(&self) -> Result<()> {
        self.pages.inner.begin_next_sync()
    }

    fn len(&self) -> Result<u64> {
        if let Some(appending) = &self.appending
            && let Some(end) = appending.lock().end
        {
            return Ok(end.place + data_between(end.offset, self.pages.inner.len()?));
        }
        self.pages.len()
    }

    fn readable(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        self.pages.readable(&range)
    }

    fn preallocate(&self, len: u64) -> Result<()> {
        let mut appending = self.appending("preallocate")?.lock();
        let end = self.settle(&mut appending, self.pages.keys())?;
        // The log syncs a file whose space is reserved before it begins there. So the header is durable before any
        // record, and torn bytes in its place are damage.
        if let Some(header) = appending.header.take() {
            self.append_raw(&mut appending, &header[..])?;
        }
        let more = len.saturating_sub(end.place);
        // What one append of the rest takes: several take more, so that no reserved space is left after the last one.
        if more > 0 { self.pages.inner.preallocate(offset_after(end.offset, more)) } else { Ok(()) }
    }

    fn map_appends(&self) -> bool {
        self.pages.inner.map_appends()
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        let mut appending = self.appending("punch a hole in")?.lock();
        let end = self.settle(&mut appending, self.pages.keys())?;
        if offset < end.place {
            let error = std::io::Error::new(
                std::io::ErrorKind::Unsupported,
                "a record of an encrypted file is whole",
            );
            return Err(Error::io("punch a hole in", self.path(), error));
        }
        let begin = offset_after(end.offset, offset - end.place);
        let past = offset_after(end.offset, (offset - end.place).saturating_add(len));
        let past = past.min(self.pages.inner.len()?);
        if past > begin { self.pages.inner.punch(begin, past - begin) } else { Ok(()) }
    }
}
