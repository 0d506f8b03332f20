//! [`ObjectCipher`]: encryption of the objects of a store, which are put whole and read by ranges.
//!
//! All objects of a place in a store have one data key. It lies wrapped in an object of its own, whose bytes are a header of
//! `header.rs`. So a change of the key of the application puts one object, however much the store has.
//!
//! An object is a sequence of pages. Each has all that a reader needs in addition to the data key, so that a range is read without
//! another call of the store.
//!
//! ```text
//! offset size name
//!      0    4 magic          "SILP"
//!      4    4 format version 1
//!      8   16 salt           random, one for each call that encrypts
//!     24    n data           of 16,384 bytes, and 0 to 16,384 in the last page, encrypted by AES-256-GCM
//! 24 + n   16 tag            with the name of the object as associated data
//! ```
//!
//! The key of a page is `HChaCha20` of the data key and the salt. Its nonce is the number of the page in the object (8
//! bytes), 1 for the last page or 0 (1 byte), and 3 zeros. So a page that was moved, put into another object, or cut off does
//! not verify. An object without data has one page.
//!
//! Invariant: no salt is used by two calls, and no call encrypts two pages of one number. So a nonce is used once, also if
//! an object is put again.

use std::ops::Range;

use aes_gcm::Aes256Gcm;
use chacha20::R20;
use chacha20::hchacha;
use chacha20poly1305::aead::AeadInOut;
use chacha20poly1305::{KeyInit, Tag};
use storage::fs::ENCRYPTED_PAGE_MAGIC as MAGIC;
use storage::{Error, ErrorKind, Result};
use zeroize::Zeroize;

use crate::cipher::{DataKey, RecordCipher};
use crate::header::{self, HEADER_BYTES, PLACE_BYTES, ReadHeader, SealedPlace};
use crate::keys::{EncryptionKey, KeyId, KeyProvider, fill_random};

/// The data of a page in bytes; the last one may have less.
pub const OBJECT_PAGE_BYTES: u64 = 16 << 10;
const VERSION: u32 = 1;
const SALT_AT: usize = 8;
const SALT_BYTES: usize = 16;
const HEAD_BYTES: usize = SALT_AT + SALT_BYTES;
const TAG_BYTES: usize = 16;
/// The bytes of a page in addition to its data.
const OVERHEAD_BYTES: u64 = (HEAD_BYTES + TAG_BYTES) as u64;
const FULL_BYTES: u64 = OBJECT_PAGE_BYTES + OVERHEAD_BYTES;

/// Encrypts and authenticates the objects of a store.
///
/// # Examples
/// ```
/// use encryption::{EncryptionKey, KeyId, KeyRing, ObjectCipher};
///
/// # fn main() -> siltstone::Result<()> {
/// let keys = KeyRing::new(KeyId::new("2026-11")?, EncryptionKey::random()?);
/// let (cipher, key_object) = ObjectCipher::make(&keys)?;
/// let sealed = cipher.seal("table/1", b"rows")?;
/// // Another machine reads the object with the key first.
/// let again = ObjectCipher::open(&key_object, &keys, "encryption/key")?;
/// assert_eq!(again.unseal("table/1", &sealed)?, b"rows");
/// assert!(again.unseal("table/2", &sealed).is_err());
/// # Ok(())
/// # }
/// ```
pub struct ObjectCipher {
    key: EncryptionKey,
}

/// The place of a page: the name of its object, its number there, and whether it is the last one.
#[derive(Clone, Copy)]
struct PagePlace<'a> {
    name: &'a str,
    number: u64,
    is_last: bool,
}

impl PagePlace<'_> {
    fn nonce(&self) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&self.number.to_le_bytes());
        nonce[8] = u8::from(self.is_last);
        nonce
    }
}

impl ObjectCipher {
    /// A cipher with a new data key, and the bytes of the object that holds it, wrapped by the current key of `keys`.
    ///
    /// # Errors
    /// Those of the keys; [`ErrorKind::Io`] if the system gives no random bytes.
    pub fn make(keys: &dyn KeyProvider) -> Result<(ObjectCipher, Vec<u8>)> {
        let key = EncryptionKey::random()?;
        let data_key = DataKey { key: key.clone(), cipher: RecordCipher::Aes256Gcm };
        let key_object = header::seal_new(keys, &data_key)?.to_vec();
        Ok((ObjectCipher { key }, key_object))
    }

    /// The cipher whose data key is in `key_object`, the bytes of the object `name`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] that names object and key, if `keys` lacks the key or has another one under its
    /// identifier. Corruption for bytes that are no such object; [`ErrorKind::Unsupported`] if newer code is needed.
    pub fn open(key_object: &[u8], keys: &dyn KeyProvider, name: &str) -> Result<ObjectCipher> {
        let DataKey { key, .. } = data_key_of(key_object, keys, name)?;
        Ok(ObjectCipher { key })
    }

    /// The bytes of the object `name` with the data key wrapped by the current key of `keys`; `None` if it belongs to that
    /// key already.
    ///
    /// # Errors
    /// As [`ObjectCipher::open`].
    pub fn rewrap(
        key_object: &[u8],
        keys: &dyn KeyProvider,
        name: &str,
    ) -> Result<Option<Vec<u8>>> {
        let data_key = data_key_of(key_object, keys, name)?;
        let (id, key) = header::current_key(keys)?;
        let mut places = key_object.chunks(PLACE_BYTES).map(SealedPlace::read);
        let is_current = places
            .all(|place| place.is_some_and(|place| place.id == id && place.open(&key).is_some()));
        if is_current {
            return Ok(None);
        }
        header::seal_new(keys, &data_key).map(|header| Some(header.to_vec()))
    }

    /// The identifier of the key that opens `key_object`; `None` for bytes that are no such object. No key is needed.
    pub fn key_of(key_object: &[u8]) -> Option<KeyId> {
        key_object.chunks(PLACE_BYTES).find_map(SealedPlace::read).map(|place| place.id)
    }

    /// Encrypts the object `name`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system gives no random bytes.
    pub fn seal(&self, name: &str, data: &[u8]) -> Result<Vec<u8>> {
        self.seal_part(name, 0, data, true)
    }

    /// Encrypts a part of the object `name` that begins at `offset`. The object is the parts one after the other; `is_end`
    /// says that this is the last one.
    ///
    /// # Errors
    /// As [`ObjectCipher::seal`].
    ///
    /// # Panics
    /// If a part begins within a page, or ends within one and is not the last.
    pub fn seal_part(&self, name: &str, offset: u64, data: &[u8], is_end: bool) -> Result<Vec<u8>> {
        let is_whole = (data.len() as u64).is_multiple_of(OBJECT_PAGE_BYTES);
        assert!(offset.is_multiple_of(OBJECT_PAGE_BYTES) && (is_end || is_whole));
        let mut salt = [0; SALT_BYTES];
        fill_random(&mut salt)?;
        let cipher = self.page_cipher(salt);
        let count = if is_end { page_count(data.len() as u64) } else { whole_pages(data) };
        let mut sealed = Vec::with_capacity(data.len() + count as usize * OVERHEAD_BYTES as usize);
        for page in 0..count {
            let begin = (page * OBJECT_PAGE_BYTES) as usize;
            let end = data.len().min(begin + OBJECT_PAGE_BYTES as usize);
            let number = offset / OBJECT_PAGE_BYTES + page;
            let place = PagePlace { name, number, is_last: is_end && page + 1 == count };
            sealed.extend_from_slice(&MAGIC);
            sealed.extend_from_slice(&VERSION.to_le_bytes());
            sealed.extend_from_slice(&salt);
            let at = sealed.len();
            sealed.extend_from_slice(&data[begin..end]);
            let tag = cipher
                .encrypt_inout_detached(
                    &place.nonce().into(),
                    name.as_bytes(),
                    (&mut sealed[at..]).into(),
                )
                .expect("a page is below every limit of the cipher");
            sealed.extend_from_slice(&tag);
        }
        Ok(sealed)
    }

    /// Decrypts the object `name`.
    ///
    /// # Errors
    /// Corruption that names the object and the offset of a page that does not verify, or that is missing at the end.
    /// [`ErrorKind::Unsupported`] if newer code is needed.
    pub fn unseal(&self, name: &str, sealed: &[u8]) -> Result<Vec<u8>> {
        let count = (sealed.len() as u64).div_ceil(FULL_BYTES).max(1);
        self.unseal_pages(name, 0, sealed, |number| number + 1 == count)
    }

    /// Decrypts a range of the object `name`: `sealed` has the bytes of [`sealed_range`], or those of them up to the end of
    /// the object. Returns the bytes of `range`, up to the end as well.
    ///
    /// # Errors
    /// As [`ObjectCipher::unseal`].
    pub fn unseal_range(&self, name: &str, range: Range<u64>, sealed: &[u8]) -> Result<Vec<u8>> {
        if sealed.is_empty() {
            return Ok(Vec::new());
        }
        let first = range.start / OBJECT_PAGE_BYTES;
        let count = (sealed.len() as u64).div_ceil(FULL_BYTES);
        let (front, page) = sealed.split_at(((count - 1) * FULL_BYTES) as usize);
        let mut data = Vec::with_capacity(sealed.len());
        if !front.is_empty() {
            data.extend(self.unseal_pages(name, first, front, |_| false)?);
        }
        check_version(name, page)?;
        let number = first + count - 1;
        // A full page may be the last one of the object or not: the range does not show which.
        let is_full = page.len() as u64 == FULL_BYTES;
        let opened = [false, true]
            .into_iter()
            .filter(|is_last| is_full || *is_last)
            .find_map(|is_last| self.unseal_page(PagePlace { name, number, is_last }, page));
        data.extend_from_slice(&opened.ok_or_else(|| changed(name, number))?);
        let len = data.len() as u64;
        let begin = (range.start - first * OBJECT_PAGE_BYTES).min(len);
        let end = (range.end.max(range.start) - first * OBJECT_PAGE_BYTES).min(len);
        Ok(data[begin as usize..end as usize].to_vec())
    }

    fn unseal_pages(
        &self,
        name: &str,
        first: u64,
        sealed: &[u8],
        is_last: impl Fn(u64) -> bool,
    ) -> Result<Vec<u8>> {
        let mut data = Vec::with_capacity(sealed.len());
        let mut rest = sealed;
        let mut number = first;
        loop {
            let (page, after) = rest.split_at(rest.len().min(FULL_BYTES as usize));
            check_version(name, page)?;
            let place = PagePlace { name, number, is_last: is_last(number) };
            let opened = self.unseal_page(place, page).ok_or_else(|| changed(name, number))?;
            data.extend_from_slice(&opened);
            rest = after;
            number += 1;
            if rest.is_empty() {
                return Ok(data);
            }
        }
    }

    /// The data of a page; `None` if it does not verify.
    fn unseal_page(&self, place: PagePlace<'_>, page: &[u8]) -> Option<Vec<u8>> {
        let len = page.len().checked_sub(HEAD_BYTES + TAG_BYTES)?;
        if page[..MAGIC.len()] != MAGIC {
            return None;
        }
        let salt = page[SALT_AT..HEAD_BYTES].try_into().ok()?;
        let tag = Tag::try_from(&page[HEAD_BYTES + len..]).ok()?;
        let mut data = page[HEAD_BYTES..HEAD_BYTES + len].to_vec();
        let name = place.name.as_bytes();
        let nonce = place.nonce().into();
        let opened = self.page_cipher(salt).decrypt_inout_detached(
            &nonce,
            name,
            data.as_mut_slice().into(),
            &tag,
        );
        opened.ok().map(|()| data)
    }

    fn page_cipher(&self, salt: [u8; SALT_BYTES]) -> Aes256Gcm {
        let mut derived = hchacha::<R20>(self.key.as_bytes().into(), &salt.into());
        let cipher = Aes256Gcm::new(&derived);
        derived.as_mut_slice().zeroize();
        cipher
    }
}

fn data_key_of(key_object: &[u8], keys: &dyn KeyProvider, name: &str) -> Result<DataKey> {
    let damaged = "the object with the key of the bucket is damaged";
    let is_long = key_object.len() == HEADER_BYTES;
    match header::open(key_object, keys, name.as_ref())? {
        ReadHeader::DataKey(data_key) if is_long => Ok(data_key),
        _ => Err(Error::corruption(name, 0, damaged)),
    }
}

fn changed(name: &str, page: u64) -> Error {
    let what = "encrypted bytes were changed or lost: they do not verify";
    Error::corruption(name, page * FULL_BYTES, what)
}

/// Checks the version of a page that has a magic number.
fn check_version(name: &str, page: &[u8]) -> Result<()> {
    let Some(version) = page.get(MAGIC.len()..SALT_AT).filter(|_| page.starts_with(&MAGIC)) else {
        return Ok(());
    };
    if version == VERSION.to_le_bytes() {
        return Ok(());
    }
    let version = u32::from_le_bytes(version.try_into().expect("it is 4 bytes long"));
    let message = format!(
        "object {name} is encrypted in version {version}, and this code knows versions up to {VERSION}"
    );
    Err(Error::new(ErrorKind::Unsupported, message))
}

fn whole_pages(data: &[u8]) -> u64 {
    data.len() as u64 / OBJECT_PAGE_BYTES
}

fn page_count(len: u64) -> u64 {
    len.div_ceil(OBJECT_PAGE_BYTES).max(1)
}

/// The bytes that an object of `len` bytes takes when it is encrypted.
pub fn sealed_len(len: u64) -> u64 {
    len + page_count(len) * OVERHEAD_BYTES
}

/// The bytes of data in an encrypted object of `sealed` bytes; `None` if no object has this length.
pub fn unsealed_len(sealed: u64) -> Option<u64> {
    let pages = sealed.div_ceil(FULL_BYTES);
    let len = sealed.checked_sub(pages * OVERHEAD_BYTES)?;
    (sealed_len(len) == sealed).then_some(len)
}

/// The range of an encrypted object whose pages have the bytes of `range`.
pub fn sealed_range(range: Range<u64>) -> Range<u64> {
    let first = range.start / OBJECT_PAGE_BYTES;
    let end = range.end.max(range.start + 1).div_ceil(OBJECT_PAGE_BYTES);
    first * FULL_BYTES..end * FULL_BYTES
}

#[cfg(test)]
mod tests;
