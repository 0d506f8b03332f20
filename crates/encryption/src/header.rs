//! The header of an encrypted file: its data key, wrapped by a key of the application.
//!
//! ```text
//! offset size name
//!      0  128 first place    a header
//!    128  128 second place   the same; while a key is changed, either place may have the other key
//!    256    - records        see `record.rs`
//! ```
//!
//! ```text
//! offset size name
//!      0    8 magic          "SILTCRYP"
//!      8    4 format version 1 or 2
//!     12    4 cipher         of the records: 1 = XChaCha20-Poly1305 in version 1, 2 = AES-256-GCM in version 2
//!     16    1 length         of the identifier
//!     17   31 identifier     of the key that wraps; zeros after it
//!     48    8 checksum       XXH3-64 of the 48 bytes before it, seeded with that of the 72 bytes after it
//!     56   24 nonce          random
//!     80   32 data key       encrypted with the identified key by XChaCha20-Poly1305; random, and of this file alone
//!    112   16 tag            of the data key, with the first 48 bytes as associated data
//! ```
//!
//! Both places lie in the first 512 bytes, so that a crash leaves both or none on most devices. They exist twice, so
//! that damage of one is no loss of the file, and so that a change of the key never leaves a file without a header.
//! The checksum needs no key: it distinguishes a damaged or torn header from a wrong key.
//!
//! Invariant: a data key is made for one file, and never used for another one.

use std::path::Path;

use chacha20poly1305::aead::AeadInOut;
use chacha20poly1305::{KeyInit, Tag, XChaCha20Poly1305, XNonce};
use storage::codec::{checksum64, checksum64_seeded};
use storage::fs::ENCRYPTED_MAGIC as MAGIC;
use storage::{Error, ErrorKind, Result};

use crate::cipher::{DataKey, RecordCipher};
use crate::keys::{EncryptionKey, KEY_BYTES, KEY_ID_BYTES_MAX, KeyId, KeyProvider, fill_random};

/// The newest version that is read.
const VERSION_MAX: u32 = 2;
/// The length of a place in bytes.
pub(crate) const PLACE_BYTES: usize = 128;
/// The length of both places, after which the records begin.
pub(crate) const HEADER_BYTES: usize = 2 * PLACE_BYTES;
/// The bytes of a place that the tag covers in addition to the data key.
const COVERED_BYTES: usize = 48;
const NONCE_AT: usize = COVERED_BYTES + 8;
const NONCE_BYTES: usize = 24;
pub(crate) const TAG_BYTES: usize = 16;
const KEY_AT: usize = NONCE_AT + NONCE_BYTES;
const _: () = assert!(KEY_AT + KEY_BYTES + TAG_BYTES == PLACE_BYTES);
/// The front of the magic numbers of siltstone's files, in either case of letters.
const PLAIN_MAGIC: &[u8; 4] = b"SILT";

/// A place that names a key.
pub(crate) struct SealedPlace<'a> {
    pub(crate) id: KeyId,
    version: u32,
    bytes: &'a [u8],
}

/// The bytes of one place: `data_key` wrapped by `key`, whose identifier is `id`.
pub(crate) fn seal(
    id: &KeyId,
    key: &EncryptionKey,
    data_key: &DataKey,
) -> Result<[u8; PLACE_BYTES]> {
    let mut place = [0; PLACE_BYTES];
    place[..8].copy_from_slice(&MAGIC);
    let version = data_key.cipher.version().to_le_bytes();
    place[8..12].copy_from_slice(&version);
    place[12..16].copy_from_slice(&version);
    let name = id.as_str().as_bytes();
    place[16] = name.len() as u8;
    place[17..17 + name.len()].copy_from_slice(name);
    fill_random(&mut place[NONCE_AT..KEY_AT])?;
    place[KEY_AT..KEY_AT + KEY_BYTES].copy_from_slice(data_key.key.as_bytes());
    let (covered, rest) = place.split_at_mut(COVERED_BYTES);
    let (_, rest) = rest.split_at_mut(NONCE_AT - COVERED_BYTES);
    let (nonce, rest) = rest.split_at_mut(NONCE_BYTES);
    let (wrapped, tag) = rest.split_at_mut(KEY_BYTES);
    let made = wrapping(key)
        .encrypt_inout_detached(&nonce_of(nonce), covered, wrapped.into())
        .expect("32 bytes are below every limit of the cipher");
    tag.copy_from_slice(&made);
    let sum = checksum(&place);
    place[COVERED_BYTES..NONCE_AT].copy_from_slice(&sum);
    Ok(place)
}

/// The checksum of a place, of all bytes but its own.
fn checksum(place: &[u8]) -> [u8; 8] {
    let after = checksum64(&place[NONCE_AT..PLACE_BYTES]);
    checksum64_seeded(&place[..COVERED_BYTES], after).to_le_bytes()
}

/// The header of a new file, for a data key that the current key of `keys` wraps.
pub(crate) fn seal_new(keys: &dyn KeyProvider, data_key: &DataKey) -> Result<[u8; HEADER_BYTES]> {
    let (id, key) = current_key(keys)?;
    let place = seal(&id, &key, data_key)?;
    let mut header = [0; HEADER_BYTES];
    header[..PLACE_BYTES].copy_from_slice(&place);
    header[PLACE_BYTES..].copy_from_slice(&place);
    Ok(header)
}

/// The key that wraps new files.
pub(crate) fn current_key(keys: &dyn KeyProvider) -> Result<(KeyId, EncryptionKey)> {
    let id = keys.current()?;
    match keys.key(&id)? {
        Some(key) => Ok((id, key)),
        None => {
            let message = format!("the current key {id} is not among the keys");
            Err(Error::new(ErrorKind::InvalidArgument, message))
        }
    }
}

fn wrapping(key: &EncryptionKey) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(key.as_bytes().into())
}

fn nonce_of(bytes: &[u8]) -> XNonce {
    XNonce::try_from(bytes).expect("a nonce has 24 bytes")
}

impl RecordCipher {
    /// The format version of a header, which is the number of its cipher as well.
    fn version(self) -> u32 {
        match self {
            RecordCipher::XChaCha20Poly1305 => 1,
            RecordCipher::Aes256Gcm => 2,
        }
    }
}

impl<'a> SealedPlace<'a> {
    /// Reads a place; `None` if it is no header, or a damaged one.
    pub(crate) fn read(bytes: &'a [u8]) -> Option<SealedPlace<'a>> {
        let is_whole = bytes.len() >= PLACE_BYTES && bytes[..8] == MAGIC;
        if !is_whole || checksum(bytes) != bytes[COVERED_BYTES..NONCE_AT] {
            return None;
        }
        let version = u32::from_le_bytes(bytes[8..12].try_into().expect("it is 4 bytes long"));
        let len = usize::from(bytes[16]).min(KEY_ID_BYTES_MAX);
        let id = KeyId::of_header(&bytes[17..17 + len])?;
        Some(SealedPlace { id, version, bytes: &bytes[..PLACE_BYTES] })
    }

    /// The data key; `None` if `key` is another one, or if the place was changed.
    pub(crate) fn open(&self, key: &EncryptionKey) -> Option<DataKey> {
        let cipher = match self.version {
            1 => RecordCipher::XChaCha20Poly1305,
            VERSION_MAX => RecordCipher::Aes256Gcm,
            _ => return None,
        };
        let mut data_key = zeroize::Zeroizing::new([0; KEY_BYTES]);
        data_key.copy_from_slice(&self.bytes[KEY_AT..KEY_AT + KEY_BYTES]);
        let nonce = nonce_of(&self.bytes[NONCE_AT..KEY_AT]);
        let tag = Tag::try_from(&self.bytes[KEY_AT + KEY_BYTES..]).expect("a tag has 16 bytes");
        let covered = &self.bytes[..COVERED_BYTES];
        let opened = wrapping(key).decrypt_inout_detached(
            &nonce,
            covered,
            data_key.as_mut_slice().into(),
            &tag,
        );
        opened.ok().map(|()| DataKey { key: EncryptionKey::new(*data_key), cipher })
    }
}

/// The header of a file, as it was read.
pub(crate) enum ReadHeader {
    /// Nothing was written yet: there are only zeros, as in a file whose space is reserved.
    Nothing,
    /// The data key.
    DataKey(DataKey),
    /// Neither place is whole.
    Damaged,
}

/// Opens the header of a file that begins with `front`, its first [`HEADER_BYTES`] or all of a shorter one.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] that names the file, if it is not encrypted, or not with the key that `keys` has
/// under the identifier of the header. [`ErrorKind::Unsupported`] if newer code is needed.
pub(crate) fn open(front: &[u8], keys: &dyn KeyProvider, path: &Path) -> Result<ReadHeader> {
    if front.iter().all(|byte| *byte == 0) {
        return Ok(ReadHeader::Nothing);
    }
    let mut refused = None;
    for place in front.chunks(PLACE_BYTES) {
        let Some(place) = SealedPlace::read(place) else { continue };
        match open_place(&place, keys, path)? {
            Ok(data_key) => return Ok(ReadHeader::DataKey(data_key)),
            Err(error) => refused = Some(error),
        }
    }
    match refused {
        Some(error) => Err(error),
        None if is_plain(front) => {
            let message = format!("{} is not encrypted, and was opened with keys", path.display());
            Err(Error::new(ErrorKind::InvalidArgument, message))
        }
        None => Ok(ReadHeader::Damaged),
    }
}

/// Opens one place. The inner error says why it does not open; the outer one is of the keys.
fn open_place(
    place: &SealedPlace<'_>,
    keys: &dyn KeyProvider,
    path: &Path,
) -> Result<Result<DataKey>> {
    let SealedPlace { id, version, .. } = place;
    let file = path.display();
    if *version > VERSION_MAX {
        let message = format!(
            "{file} is encrypted in version {version}, and this code knows versions up to {VERSION_MAX}"
        );
        return Ok(Err(Error::new(ErrorKind::Unsupported, message)));
    }
    let Some(key) = keys.key(id)? else {
        let message = format!("{file} is encrypted with the key {id}, which is not given");
        return Ok(Err(Error::new(ErrorKind::InvalidArgument, message)));
    };
    Ok(place.open(&key).ok_or_else(|| {
        let message = format!("{file} is encrypted with another key than the one given as {id}");
        Error::new(ErrorKind::InvalidArgument, message)
    }))
}

/// Returns `true` for the front of a file that siltstone wrote without encryption.
fn is_plain(front: &[u8]) -> bool {
    front.get(..4).is_some_and(|magic| magic.eq_ignore_ascii_case(PLAIN_MAGIC))
        && !front.starts_with(&MAGIC[..MAGIC.len().min(front.len())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeyRing;

    const DAMAGED: [u8; 32] = [0xbb; 32];

    fn ring() -> KeyRing {
        KeyRing::new(KeyId::new("k1").unwrap(), EncryptionKey::new([7; 32]))
    }

    fn data_key() -> DataKey {
        DataKey { key: EncryptionKey::new([9; 32]), cipher: RecordCipher::Aes256Gcm }
    }

    fn opened(front: &[u8]) -> Result<Option<[u8; 32]>> {
        match open(front, &ring(), Path::new("/db/file"))? {
            ReadHeader::Nothing => Ok(None),
            ReadHeader::DataKey(key) => Ok(Some(*key.key.as_bytes())),
            ReadHeader::Damaged => Ok(Some(DAMAGED)),
        }
    }

    #[test]
    fn a_header_has_the_bytes_of_its_table() {
        let header = seal_new(&ring(), &data_key()).unwrap();
        assert_eq!(header[..PLACE_BYTES], header[PLACE_BYTES..]);
        assert_eq!(header[..16], *b"SILTCRYP\x02\0\0\0\x02\0\0\0");
        assert_eq!(header[16..20], *b"\x02k1\0");
        assert!(header[19..48].iter().all(|byte| *byte == 0));
        let sum = checksum64_seeded(&header[..48], checksum64(&header[56..128]));
        assert_eq!(header[48..56], sum.to_le_bytes());
        assert!(!header.windows(32).any(|bytes| bytes == [9; 32] || bytes == [7; 32]));
        assert_eq!(opened(&header).unwrap(), Some([9; 32]));
        let other = seal_new(&ring(), &data_key()).unwrap();
        assert_ne!(header[56..], other[56..], "the nonce is random");
    }

    #[test]
    fn one_damaged_place_is_no_loss_and_two_are_an_error() {
        let header = seal_new(&ring(), &data_key()).unwrap();
        for at in 0..PLACE_BYTES {
            let mut damaged = header;
            damaged[at] ^= 1;
            assert_eq!(opened(&damaged).unwrap(), Some([9; 32]), "{at}");
            damaged[PLACE_BYTES + at] ^= 1;
            // A magic that is almost one of ours is that of a plain file.
            match opened(&damaged) {
                Err(error) => assert!((4..8).contains(&at), "{at}: {error}"),
                Ok(found) => assert!(found == Some(DAMAGED) && !(4..8).contains(&at), "{at}"),
            }
        }
    }

    #[test]
    fn what_is_wrong_with_a_header_is_said_with_its_file_and_key() {
        let header = seal_new(&ring(), &data_key()).unwrap();
        let path = Path::new("/db/file");
        let other = KeyRing::new(KeyId::new("k1").unwrap(), EncryptionKey::new([8; 32]));
        let said = open(&header, &other, path).err().unwrap().to_string();
        assert!(
            said.contains("/db/file is encrypted with another key than the one given as k1"),
            "{said}"
        );
        let unknown = KeyRing::new(KeyId::new("k2").unwrap(), EncryptionKey::new([7; 32]));
        let said = open(&header, &unknown, path).err().unwrap();
        assert_eq!(said.kind(), ErrorKind::InvalidArgument);
        assert!(said.to_string().contains("/db/file is encrypted with the key k1"), "{said}");
        let said = opened(b"SILTMANI and more").unwrap_err().to_string();
        assert!(said.contains("/db/file is not encrypted"), "{said}");
        assert_eq!(opened(b"garbage of any kind").unwrap(), Some(DAMAGED));
        let mut newer = header[..PLACE_BYTES].to_vec();
        newer[8] = 3;
        let sum = checksum(&newer);
        newer[COVERED_BYTES..NONCE_AT].copy_from_slice(&sum);
        assert_eq!(opened(&newer).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn zeros_are_a_file_that_is_not_begun() {
        for len in [0, 1, 255, 256] {
            assert_eq!(opened(&vec![0; len]).unwrap(), None);
        }
    }
}
