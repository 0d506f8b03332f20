//! [`Remote::keys`]: a bucket whose objects are encrypted by the crate `encryption`; a change of its key.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use encryption::{KeyId, KeyProvider, OBJECT_PAGE_BYTES, ObjectCipher, sealed_range, unsealed_len};
use siltstone::{Error, ErrorKind, Result};

use crate::remote::Remote;
use crate::sealed::{KEY_OBJECT, ObjectSeal};

impl Remote {
    /// Encrypts and authenticates all that goes into the bucket, by a data key of the bucket that the current key of `keys`
    /// wraps. Default: nothing is encrypted. Every process that uses the bucket needs the keys: primaries, readers,
    /// restores, backups.
    ///
    /// The local folder of a primary, of a restore, and of [`Remote::cache_dir`] is on the file system of [`Remote::fs`],
    /// and is encrypted if that is an `EncryptedFs`. The page `docs/encryption.md` of the repository says what is hidden and
    /// what is not.
    ///
    /// # Errors
    /// The calls of this return [`ErrorKind::InvalidArgument`](siltstone::ErrorKind::InvalidArgument) that names the
    /// object `encryption/key` and the key, if the key is missing or another one; the same for a bucket that holds something
    /// and is not encrypted. Corruption that names the object and the offset, for bytes that were changed.
    ///
    /// # Cost
    /// A GET for each open. 40 bytes in each 16 KiB, and in each smaller object; a range comes with the pages that it touches.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    ///
    /// use encryption::{EncryptedFs, EncryptionKey, KeyId, KeyRing};
    /// use remote::Remote;
    /// use siltstone::fs::OsFs;
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path();
    /// let keys = Arc::new(KeyRing::new(KeyId::new("2026-11")?, EncryptionKey::random()?));
    /// let remote = Remote::memory()?
    ///     .keys(keys.clone())
    ///     .fs(Arc::new(EncryptedFs::new(Arc::new(OsFs), keys)));
    /// let primary = remote.primary(path)?;
    /// let db = primary.builder().open()?;
    /// db.partition("users")?.put("alice", "admin")?;
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn keys(mut self, keys: Arc<dyn KeyProvider>) -> Remote {
        self.0.seal = Some(Arc::new(BucketCipher { keys, cipher: OnceLock::new() }));
        self
    }

    /// Returns the identifier of the key that opens the bucket; `None` if the bucket is empty or not encrypted. No key is
    /// needed.
    ///
    /// # Errors
    /// Corruption of the object with the key; those of the store.
    pub fn key_id(&self) -> Result<Option<KeyId>> {
        let Some(found) = self.0.bucket().raw(KEY_OBJECT)? else { return Ok(None) };
        let id = ObjectCipher::key_of(&found);
        id.map(Some).ok_or_else(|| {
            Error::corruption(KEY_OBJECT, 0, "the object with the key of the bucket is damaged")
        })
    }

    /// Wraps the data key of the bucket by the current key of `keys`, which opens the bucket from then on. Returns `false`,
    /// and changes nothing, if it does so already. Primaries and readers go on meanwhile; those that open the bucket later
    /// need the new key alone.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](siltstone::ErrorKind::InvalidArgument) if `keys` lacks the key that opens the bucket, or if
    /// the bucket is not encrypted. Those of the store: then either of the keys opens the bucket, and the put may take effect
    /// late, also after a later call. Keep the key of a failed call until a later one has succeeded, and no request of the
    /// failed one can be on its way any more; then look at [`Remote::key_id`].
    ///
    /// # Cost
    /// A GET and a PUT of 256 bytes, however much the bucket holds.
    pub fn rewrap_key(&self, keys: &dyn KeyProvider) -> Result<bool> {
        let bucket = self.0.bucket();
        let Some(found) = bucket.raw(KEY_OBJECT)? else {
            let message = format!("{}: the bucket is not encrypted", self.0.store.name());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        match ObjectCipher::rewrap(&found, keys, KEY_OBJECT)? {
            Some(wrapped) => bucket.put_raw(KEY_OBJECT, &wrapped).map(|()| true),
            None => Ok(false),
        }
    }
}

/// The cipher of a bucket, once its key was read.
struct BucketCipher {
    keys: Arc<dyn KeyProvider>,
    /// The copies of a remote share it.
    cipher: OnceLock<ObjectCipher>,
}

impl BucketCipher {
    fn cipher(&self) -> Result<&ObjectCipher> {
        self.cipher
            .get()
            .ok_or_else(|| Error::new(ErrorKind::Internal, "the key of the bucket was not read"))
    }
}

impl ObjectSeal for BucketCipher {
    fn has_key(&self) -> bool {
        self.cipher.get().is_some()
    }

    fn make_key(&self) -> Result<Vec<u8>> {
        ObjectCipher::make(&*self.keys).map(|(_, key_object)| key_object)
    }

    fn open_key(&self, key_object: &[u8]) -> Result<()> {
        let opened = ObjectCipher::open(key_object, &*self.keys, KEY_OBJECT)?;
        // Another thread may have been faster, with the same data key.
        let _ = self.cipher.set(opened);
        Ok(())
    }

    fn seal_part(&self, name: &str, offset: u64, data: &[u8], is_end: bool) -> Result<Vec<u8>> {
        self.cipher()?.seal_part(name, offset, data, is_end)
    }

    fn unseal(&self, name: &str, sealed: &[u8]) -> Result<Vec<u8>> {
        self.cipher()?.unseal(name, sealed)
    }

    fn unseal_range(&self, name: &str, range: Range<u64>, sealed: &[u8]) -> Result<Vec<u8>> {
        self.cipher()?.unseal_range(name, range, sealed)
    }

    fn sealed_range(&self, range: Range<u64>) -> Range<u64> {
        sealed_range(range)
    }

    fn unsealed_len(&self, sealed: u64) -> Option<u64> {
        unsealed_len(sealed)
    }

    fn page_bytes(&self) -> u64 {
        OBJECT_PAGE_BYTES
    }
}
