//! The keys of the application: [`KeyId`], [`EncryptionKey`], [`KeyProvider`], and [`KeyRing`], a provider that holds them.
//!
//! A key of the application encrypts no data. It wraps the data keys of files, one each, in their headers.
//!
//! Invariants:
//! 1. No key is printed: `Debug` shows its place only, and errors name the identifier.
//! 2. The bytes of a [`EncryptionKey`] are overwritten when it is dropped.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use storage::{Error, ErrorKind, Result};
use zeroize::Zeroizing;

/// The length of a key in bytes.
pub const KEY_BYTES: usize = 32;
/// The longest identifier of a key, in bytes.
pub const KEY_ID_BYTES_MAX: usize = 31;

/// The name of a key. It lies in the header of each file whose data key this key wraps, and is not encrypted there.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(Box<str>);

impl KeyId {
    /// An identifier of 1 to [`KEY_ID_BYTES_MAX`] letters, digits and the characters `.`, `_`, `-`, `:` and `/` of
    /// ASCII.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for any other text.
    pub fn new(text: impl Into<String>) -> Result<KeyId> {
        let text = text.into();
        let is_short = (1..=KEY_ID_BYTES_MAX).contains(&text.len());
        if is_short && text.bytes().all(is_of_id) {
            return Ok(KeyId(text.into()));
        }
        let message = format!(
            "{text:?} is no identifier of a key: it has 1 to {KEY_ID_BYTES_MAX} letters, digits or characters of \
             \"._-:/\""
        );
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// The identifier that the bytes of a header spell; `None` for other bytes.
    pub(crate) fn of_header(bytes: &[u8]) -> Option<KeyId> {
        KeyId::new(std::str::from_utf8(bytes).ok()?).ok()
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_of_id(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-:/".contains(&byte)
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A key of 256 bits.
#[derive(Clone)]
pub struct EncryptionKey(Zeroizing<[u8; KEY_BYTES]>);

impl EncryptionKey {
    /// The key with these bytes. They must be random or derived by a key derivation function: a password is no key.
    pub fn new(bytes: [u8; KEY_BYTES]) -> EncryptionKey {
        EncryptionKey(Zeroizing::new(bytes))
    }

    /// A new key of random bytes of the operating system.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system gives none.
    pub fn random() -> Result<EncryptionKey> {
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        fill_random(&mut *bytes)?;
        Ok(EncryptionKey(bytes))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// The bytes as 64 hex digits, as a file of keys has them.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn of_hex(text: &str) -> Option<EncryptionKey> {
        let digits = text.as_bytes();
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        if digits.len() != 2 * KEY_BYTES {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let high = char::from(pair[0]).to_digit(16)?;
            let low = char::from(pair[1]).to_digit(16)?;
            *byte = (high * 16 + low) as u8;
        }
        Some(EncryptionKey(bytes))
    }
}

impl fmt::Debug for EncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EncryptionKey(..)")
    }
}

/// Fills `bytes` with random ones of the operating system.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes).map_err(|error| {
        Error::new(ErrorKind::Io, format!("the system gives no random bytes: {error}"))
    })
}

/// The keys of the application, by their identifiers.
///
/// A call may ask a key service, and may be made whenever a file is created or opened, by any thread. The file system
/// keeps nothing of a key but the data key of each open file.
pub trait KeyProvider: Send + Sync + 'static {
    /// The identifier of the key that wraps the data keys of new files.
    ///
    /// # Errors
    /// The creation of the file fails with it.
    fn current(&self) -> Result<KeyId>;

    /// The key with this identifier; `None` if there is none.
    ///
    /// # Errors
    /// The open of the file fails with it.
    fn key(&self, id: &KeyId) -> Result<Option<EncryptionKey>>;
}

/// Keys in memory. Clones share them.
///
/// # Examples
/// ```
/// use encryption::{EncryptionKey, KeyId, KeyProvider, KeyRing};
///
/// # fn main() -> siltstone::Result<()> {
/// let old = KeyId::new("2025")?;
/// let keys = KeyRing::new(old.clone(), EncryptionKey::random()?);
/// // Files that are made from here on belong to the new key. Older files need the old one.
/// keys.rotate_to(KeyId::new("2026")?, EncryptionKey::random()?);
/// assert_eq!(keys.current()?.as_str(), "2026");
/// assert!(keys.key(&old)?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct KeyRing(Arc<RwLock<KeyList>>);

#[derive(Debug)]
struct KeyList {
    current: KeyId,
    all: Vec<(KeyId, EncryptionKey)>,
}

impl KeyRing {
    /// A ring with one key, which wraps new files.
    pub fn new(id: KeyId, key: EncryptionKey) -> KeyRing {
        KeyRing(Arc::new(RwLock::new(KeyList { current: id.clone(), all: vec![(id, key)] })))
    }

    /// Adds a key that wraps new files from now on. Earlier keys open older files as before. A key with the same
    /// identifier is replaced.
    pub fn rotate_to(&self, id: KeyId, key: EncryptionKey) {
        let mut keys = self.0.write();
        keys.all.retain(|(known, _)| *known != id);
        keys.all.push((id.clone(), key));
        keys.current = id;
    }

    /// Removes a key, and returns `true` if it was there. The current key stays. Files whose data keys it wraps
    /// cannot be opened any more: `docs/encryption.md` has the steps before that.
    pub fn remove(&self, id: &KeyId) -> bool {
        let mut keys = self.0.write();
        let before = keys.all.len();
        let current = keys.current.clone();
        keys.all.retain(|(known, _)| known != id || *known == current);
        keys.all.len() < before
    }

    /// Reads a file of keys: on each line an identifier, a space and 64 hex digits. The **last** line is the key that
    /// wraps new files. Empty lines and lines that begin with `#` are ignored.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] that names the line, and never its content.
    pub fn parse(text: &str) -> Result<KeyRing> {
        let mut ring: Option<KeyRing> = None;
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (id, key) = key_of_line(line).ok_or_else(|| {
                let message = format!(
                    "line {number} of the keys is no identifier, a space and {} hex digits",
                    2 * KEY_BYTES
                );
                Error::new(ErrorKind::InvalidArgument, message)
            })?;
            match &ring {
                None => ring = Some(KeyRing::new(id, key)),
                Some(ring) if ring.has(&id) => {
                    let message = format!("line {number} of the keys repeats the identifier {id}");
                    return Err(Error::new(ErrorKind::InvalidArgument, message));
                }
                Some(ring) => ring.rotate_to(id, key),
            }
        }
        ring.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "the keys have no line"))
    }

    fn has(&self, id: &KeyId) -> bool {
        self.0.read().all.iter().any(|(known, _)| known == id)
    }
}

fn key_of_line(line: &str) -> Option<(KeyId, EncryptionKey)> {
    let (id, digits) = line.split_once(char::is_whitespace)?;
    Some((KeyId::new(id).ok()?, EncryptionKey::of_hex(digits.trim())?))
}

impl KeyProvider for KeyRing {
    fn current(&self) -> Result<KeyId> {
        Ok(self.0.read().current.clone())
    }

    fn key(&self, id: &KeyId) -> Result<Option<EncryptionKey>> {
        let keys = self.0.read();
        Ok(keys.all.iter().find(|(known, _)| known == id).map(|(_, key)| key.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        KeyRing::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn the_last_line_of_a_file_of_keys_is_the_current_key() {
        let old = "aB".repeat(32);
        let new = "01".repeat(32);
        let ring = KeyRing::parse(&format!("# keys\n\nold {old}\r\nnew\t{new}\n")).unwrap();
        assert_eq!(ring.current().unwrap().as_str(), "new");
        let old = ring.key(&KeyId::new("old").unwrap()).unwrap().unwrap();
        assert_eq!(old.as_bytes(), &[0xab; 32]);
        assert_eq!(old.to_hex(), "ab".repeat(32));
        assert!(ring.key(&KeyId::new("other").unwrap()).unwrap().is_none());
    }

    #[test]
    fn a_bad_line_is_named_and_not_shown() {
        let secret = "5e".repeat(31);
        for line in [
            secret.clone(),
            format!("id {secret}"),
            format!("id {secret}5x"),
            format!("i d {secret}5e"),
        ] {
            let said = message(&format!("# first\n{line}"));
            assert!(said.contains("line 2") && !said.contains("5e5e"), "{said}");
        }
        assert!(message("").contains("no line"));
        let twice = format!("id {secret}5e\nid {secret}5e");
        assert!(message(&twice).contains("line 2 of the keys repeats"));
    }

    #[test]
    fn identifiers_have_a_limit_and_few_characters() {
        for text in ["a", "kms:eu/2026-11_v1.0", &"x".repeat(KEY_ID_BYTES_MAX)] {
            assert_eq!(KeyId::new(text).unwrap().as_str(), text);
        }
        for text in ["", "a b", "a\n", "\u{e4}", &"x".repeat(KEY_ID_BYTES_MAX + 1)] {
            assert_eq!(KeyId::new(text).unwrap_err().kind(), ErrorKind::InvalidArgument, "{text}");
        }
    }

    #[test]
    fn the_current_key_cannot_be_removed_and_no_key_is_printed() {
        let id = KeyId::new("a").unwrap();
        let ring = KeyRing::new(id.clone(), EncryptionKey::new([0x5e; 32]));
        assert!(!ring.remove(&id));
        ring.rotate_to(KeyId::new("b").unwrap(), EncryptionKey::random().unwrap());
        assert!(!format!("{ring:?}").contains("94") && ring.remove(&id));
        assert!(ring.key(&id).unwrap().is_none());
    }
}
