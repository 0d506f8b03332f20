//! Encryption of the objects of a bucket, between the calls of [`Bucket`] and those of its store.
//!
//! Everything above [`Bucket`] sees plain bytes and their lengths: journal, bases, tables, parts, leases, backups. The
//! store sees encrypted ones. Names of objects are not encrypted. Design note 63 has the reasons.
//!
//! Invariants:
//! 1. A bucket with a key object has no other object that is not encrypted. So a key is made for an empty bucket alone,
//!    before its first object, and a writer without keys refuses a bucket that has one.
//! 2. The object of the key is put once; after that, a change of the key alone replaces it, with the same data key in it.

use std::borrow::Cow;
use std::ops::Range;

use lsm_core::fs::ENCRYPTED_PAGE_MAGIC;
use siltstone::{Error, ErrorKind, Result};

use crate::backup_fs::BACKUPS;
use crate::bucket::Bucket;
use crate::store::{ObjectListing, error_of};

/// The object with the data key, wrapped by a key of the application.
pub(crate) const KEY_OBJECT: &str = "encryption/key";
/// A bucket with one of these has been used.
const FOLDERS: [&str; 3] = ["base", "journal", BACKUPS];

/// The cipher of a bucket: `encrypted.rs`, with the feature `encryption`.
pub(crate) trait ObjectSeal: Send + Sync + 'static {
    /// Returns `true` after [`ObjectSeal::open_key`], before which no other call is made but [`ObjectSeal::make_key`].
    fn has_key(&self) -> bool;

    /// The bytes of a key object with a new data key, which is not used before `open_key`.
    fn make_key(&self) -> Result<Vec<u8>>;

    /// Uses the data key of a key object.
    fn open_key(&self, key_object: &[u8]) -> Result<()>;

    /// Encrypts a part that begins at `offset`, a multiple of [`ObjectSeal::page_bytes`].
    fn seal_part(&self, name: &str, offset: u64, data: &[u8], is_end: bool) -> Result<Vec<u8>>;

    fn unseal(&self, name: &str, sealed: &[u8]) -> Result<Vec<u8>>;

    /// Decrypts a range, of the bytes that `sealed_range` names.
    fn unseal_range(&self, name: &str, range: Range<u64>, sealed: &[u8]) -> Result<Vec<u8>>;

    fn sealed_range(&self, range: Range<u64>) -> Range<u64>;

    /// The length of the data in an object of `sealed` bytes.
    fn unsealed_len(&self, sealed: u64) -> Option<u64>;

    fn page_bytes(&self) -> u64;
}

impl Bucket {
    /// A part of the object `name` as the store gets it.
    ///
    /// # Errors
    /// Those of the keys; [`ErrorKind::InvalidArgument`] for a bucket whose objects are not encrypted.
    pub(crate) fn sealed<'a>(
        &self,
        name: &str,
        offset: u64,
        data: &'a [u8],
        is_end: bool,
    ) -> Result<Cow<'a, [u8]>> {
        let Some(seal) = &self.seal else { return Ok(Cow::Borrowed(data)) };
        if !seal.has_key() && !self.open_key(&**seal)? {
            self.make_key(&**seal, name)?;
        }
        seal.seal_part(name, offset, data, is_end).map(Cow::Owned)
    }

    /// The object `name` that the store has returned.
    ///
    /// # Errors
    /// Corruption for bytes that were changed. [`ErrorKind::InvalidArgument`] if the bucket is encrypted and there are no
    /// keys, or the other way round.
    pub(crate) fn unsealed(&self, name: &str, found: Vec<u8>) -> Result<Vec<u8>> {
        let looks_sealed = found.starts_with(&ENCRYPTED_PAGE_MAGIC);
        let Some(seal) = &self.seal else {
            // The bytes of a backup are those of the application, and may begin with anything.
            return match looks_sealed && self.raw(KEY_OBJECT)?.is_some() {
                true => Err(opened_without_keys(name)),
                false => Ok(found),
            };
        };
        if seal.has_key() || self.open_key(&**seal)? {
            return seal.unseal(name, &found);
        }
        if looks_sealed {
            return Err(Error::corruption(KEY_OBJECT, None, "the key of the bucket is missing"));
        }
        Err(opened_with_keys(name))
    }

    /// A range of the object `name`, as the store has returned it in `found`.
    pub(crate) fn unsealed_range(
        &self,
        name: &str,
        range: Range<u64>,
        found: Vec<u8>,
    ) -> Result<Vec<u8>> {
        match &self.seal {
            None => Ok(found),
            Some(seal) if seal.has_key() || self.open_key(&**seal)? => {
                seal.unseal_range(name, range, &found)
            }
            Some(_) => Err(opened_with_keys(name)),
        }
    }

    /// The range of the stored object that has the bytes of `range`.
    pub(crate) fn sealed_range(&self, range: Range<u64>) -> Range<u64> {
        self.seal.as_ref().map_or(range.clone(), |seal| seal.sealed_range(range))
    }

    /// `listing` with the lengths of what the objects hold.
    pub(crate) fn unsealed_lengths(&self, mut listing: ObjectListing) -> ObjectListing {
        let Some(seal) = &self.seal else { return listing };
        for object in &mut listing.objects {
            object.len = seal.unsealed_len(object.len).unwrap_or(object.len);
        }
        listing
    }

    /// Checks that the bucket has keys if there are some here, and none otherwise; makes the key of an empty one.
    ///
    /// # Errors
    /// As [`Bucket::sealed`]; [`ErrorKind::InvalidArgument`] for an encrypted bucket without keys.
    pub(crate) fn check_keys(&self) -> Result<()> {
        match &self.seal {
            Some(_) => self.sealed("probe", 0, &[], true).map(drop),
            None => match self.raw(KEY_OBJECT)? {
                Some(_) => Err(opened_without_keys(KEY_OBJECT)),
                None => Ok(()),
            },
        }
    }

    /// Reads the key of the bucket. Returns `false` if it has none.
    fn open_key(&self, seal: &dyn ObjectSeal) -> Result<bool> {
        match self.raw(KEY_OBJECT)? {
            Some(bytes) => seal.open_key(&bytes).map(|()| true),
            None => Ok(false),
        }
    }

    /// Makes the key of an empty bucket, before the object `name` is put.
    fn make_key(&self, seal: &dyn ObjectSeal, name: &str) -> Result<()> {
        // A probe of an open that has ended decides nothing.
        let own = name.split_once('/').map(|(folder, _)| folder).filter(|it| *it != "probe");
        for folder in FOLDERS.into_iter().chain(own) {
            let listing = self.list(folder)?;
            if listing.objects.is_empty() && listing.folders.is_empty() {
                continue;
            }
            // Another writer may have made the key meanwhile, and put these.
            if self.open_key(seal)? {
                return Ok(());
            }
            let what = format!(
                "there are objects in {folder}, so the bucket is not encrypted, or this one was deleted"
            );
            return Err(error_of(ErrorKind::InvalidArgument, KEY_OBJECT, what));
        }
        let made = seal.make_key()?;
        self.attempt("put", KEY_OBJECT, || self.store.put_if_absent(KEY_OBJECT, &made))?;
        // Also if it is that of another writer, or of an attempt whose answer was lost.
        match self.open_key(seal)? {
            true => Ok(()),
            false => Err(Error::corruption(KEY_OBJECT, None, "the key was put, and is missing")),
        }
    }
}

fn opened_without_keys(name: &str) -> Error {
    error_of(
        ErrorKind::InvalidArgument,
        name,
        "the bucket is encrypted, and was opened without keys",
    )
}

fn opened_with_keys(name: &str) -> Error {
    error_of(
        ErrorKind::InvalidArgument,
        name,
        "the bucket is not encrypted, and was opened with keys",
    )
}
