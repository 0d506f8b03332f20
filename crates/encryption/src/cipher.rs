//! The ciphers of records, and the data key of a file.
//!
//! | | version 1 of the header | version 2 |
//! | --- | --- | --- |
//! | cipher | XChaCha20-Poly1305 | AES-256-GCM |
//! | key | the data key | `HChaCha20` of the data key, and of the salt and 8 zeros |
//! | nonce | salt, offset of the record in the file, 8 zeros | offset of the record in the file, 4 zeros |
//!
//! In either one a nonce is used once if no offset is used twice with the same salt. The nonce of AES-GCM is too short
//! for a random salt, so the salt makes another key, as it does within `XChaCha20`. New files have version 2: processors
//! have instructions for it. Files of version 1 are read and continued as they are.

use std::sync::OnceLock;

use aes_gcm::Aes256Gcm;
use chacha20::R20;
use chacha20::hchacha;
use chacha20poly1305::aead::AeadInOut;
use chacha20poly1305::{KeyInit, Tag, XChaCha20Poly1305, XNonce};
use zeroize::Zeroize;

use crate::keys::EncryptionKey;

pub(crate) const SALT_BYTES: usize = 8;

/// The cipher of the records of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordCipher {
    XChaCha20Poly1305,
    Aes256Gcm,
}

/// The key of one file alone, and its use.
pub(crate) struct DataKey {
    pub(crate) key: EncryptionKey,
    pub(crate) cipher: RecordCipher,
}

/// The data key of a file, ready for use.
pub(crate) enum DataCipher {
    XChaCha20Poly1305(XChaCha20Poly1305),
    Aes256Gcm(SaltedCiphers),
}

/// A cipher for each salt of a file. Most files have one salt, so the first one is kept.
pub(crate) struct SaltedCiphers {
    key: EncryptionKey,
    first: OnceLock<SaltedCipher>,
}

struct SaltedCipher {
    salt: [u8; SALT_BYTES],
    cipher: Box<Aes256Gcm>,
}

impl SaltedCiphers {
    /// Calls `call` with the cipher of a salt. If it returns something, the salt is one of the file.
    fn with<T>(
        &self,
        salt: [u8; SALT_BYTES],
        call: impl FnOnce(&Aes256Gcm) -> Option<T>,
    ) -> Option<T> {
        if let Some(known) = self.first.get().filter(|known| known.salt == salt) {
            return call(&known.cipher);
        }
        let made = SaltedCipher::new(&self.key, salt);
        let result = call(&made.cipher)?;
        // Not before: the salt of a damaged record would keep its place.
        let _was_empty = self.first.set(made).is_ok();
        Some(result)
    }
}

impl SaltedCipher {
    fn new(key: &EncryptionKey, salt: [u8; SALT_BYTES]) -> SaltedCipher {
        let mut input = [0; 16];
        input[..SALT_BYTES].copy_from_slice(&salt);
        let mut derived = hchacha::<R20>(key.as_bytes().into(), &input.into());
        let cipher = Box::new(Aes256Gcm::new(&derived));
        derived.as_mut_slice().zeroize();
        SaltedCipher { salt, cipher }
    }
}

/// A record without its data: the bytes before it in the file, and where it begins there.
#[derive(Clone, Copy)]
pub(crate) struct RecordPlace<'a> {
    pub(crate) salt: [u8; SALT_BYTES],
    pub(crate) offset: u64,
    /// The bytes that the tag covers in addition to the data.
    pub(crate) head: &'a [u8],
}

impl RecordPlace<'_> {
    fn long_nonce(&self) -> XNonce {
        let mut nonce = XNonce::default();
        nonce[..SALT_BYTES].copy_from_slice(&self.salt);
        nonce[SALT_BYTES..16].copy_from_slice(&self.offset.to_le_bytes());
        nonce
    }

    fn short_nonce(&self) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&self.offset.to_le_bytes());
        nonce
    }
}

impl DataCipher {
    pub(crate) fn new(data_key: &DataKey) -> DataCipher {
        let key = &data_key.key;
        match data_key.cipher {
            RecordCipher::XChaCha20Poly1305 => {
                DataCipher::XChaCha20Poly1305(XChaCha20Poly1305::new(key.as_bytes().into()))
            }
            RecordCipher::Aes256Gcm => {
                DataCipher::Aes256Gcm(SaltedCiphers { key: key.clone(), first: OnceLock::new() })
            }
        }
    }

    /// Encrypts `data` where it lies, and returns its tag.
    pub(crate) fn encrypt(&self, place: RecordPlace<'_>, data: &mut [u8]) -> Tag {
        let tag = match self {
            DataCipher::XChaCha20Poly1305(cipher) => {
                let nonce = place.long_nonce();
                cipher.encrypt_inout_detached(&nonce, place.head, data.into()).ok()
            }
            DataCipher::Aes256Gcm(ciphers) => ciphers.with(place.salt, |cipher| {
                let nonce = place.short_nonce();
                cipher.encrypt_inout_detached(&nonce.into(), place.head, data.into()).ok()
            }),
        };
        tag.expect("a page is below every limit of the cipher")
    }

    /// Decrypts `data` where it lies. Returns `false` if it does not verify.
    pub(crate) fn decrypt(&self, place: RecordPlace<'_>, data: &mut [u8], tag: &Tag) -> bool {
        let opened = match self {
            DataCipher::XChaCha20Poly1305(cipher) => {
                let nonce = place.long_nonce();
                cipher.decrypt_inout_detached(&nonce, place.head, data.into(), tag).ok()
            }
            DataCipher::Aes256Gcm(ciphers) => ciphers.with(place.salt, |cipher| {
                let nonce = place.short_nonce();
                cipher.decrypt_inout_detached(&nonce.into(), place.head, data.into(), tag).ok()
            }),
        };
        opened.is_some()
    }
}
