//! [`Slice`], the byte string that reads return.
//!
//! Up to [`Slice::INLINE_BYTES`] are inside it. Longer strings share a buffer by reference count. A
//! vector that the caller gives away stays a vector, because the other kind of buffer would need a
//! copy. A clone never copies more than the struct.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// An immutable byte string that is cheap to clone and derefs to `[u8]`.
#[derive(Clone)]
pub struct Slice(Repr);

#[derive(Clone)]
enum Repr {
    Inline { len: u8, bytes: [u8; Slice::INLINE_BYTES] },
    // Ranges of 32 bits keep the slice at 32 bytes; a short value takes 30 of them.
    Shared { buffer: Arc<[u8]>, start: u32, len: u32 },
    Owned(Arc<Vec<u8>>),
}

impl Slice {
    /// Longest string that is kept without a heap buffer.
    pub const INLINE_BYTES: usize = 30;
    /// Up to this length a piece of a larger buffer is copied rather than shared, so that a small
    /// value never keeps a whole block in memory. A small part of a batch is copied too.
    pub const COPY_BYTES_MAX: usize = 512;

    /// A copy of `bytes`.
    pub fn copy_from(bytes: &[u8]) -> Slice {
        if bytes.len() <= Self::INLINE_BYTES {
            let mut inline = [0; Self::INLINE_BYTES];
            inline[..bytes.len()].copy_from_slice(bytes);
            return Slice(Repr::Inline { len: bytes.len() as u8, bytes: inline });
        }
        Slice::from(Arc::<[u8]>::from(bytes))
    }

    /// `len` bytes of `buffer` from `start`: shared if that is worth it, copied otherwise.
    ///
    /// # Panics
    /// If the range does not lie inside the buffer.
    pub fn share(buffer: &Arc<[u8]>, start: usize, len: usize) -> Slice {
        let wasteful = len <= Self::COPY_BYTES_MAX || buffer.len() / 16 > len;
        // The whole buffer is shared whatever its length: no other bytes are kept alive.
        if wasteful && len < buffer.len() {
            return Slice::copy_from(&buffer[start..start + len]);
        }
        assert!(start + len <= buffer.len() && u32::try_from(buffer.len()).is_ok());
        Slice(Repr::Shared { buffer: buffer.clone(), start: start as u32, len: len as u32 })
    }
}

impl Deref for Slice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Shared { buffer, start, len } => {
                &buffer[*start as usize..*start as usize + *len as usize]
            }
            Repr::Owned(bytes) => bytes,
        }
    }
}

impl From<Arc<[u8]>> for Slice {
    fn from(buffer: Arc<[u8]>) -> Slice {
        let len = u32::try_from(buffer.len()).expect("values are at most 1 GiB");
        Slice(Repr::Shared { buffer, start: 0, len })
    }
}

impl From<Vec<u8>> for Slice {
    /// Keeps the vector, unless it fits inside the slice.
    fn from(bytes: Vec<u8>) -> Slice {
        // Copied, so that no heap memory is kept for a few bytes.
        if bytes.len() <= Slice::INLINE_BYTES {
            return Slice::copy_from(&bytes);
        }
        Slice(Repr::Owned(Arc::new(bytes)))
    }
}

impl From<String> for Slice {
    fn from(text: String) -> Slice {
        Slice::from(text.into_bytes())
    }
}

impl From<&str> for Slice {
    fn from(text: &str) -> Slice {
        Slice::copy_from(text.as_bytes())
    }
}

impl<const N: usize> From<[u8; N]> for Slice {
    fn from(bytes: [u8; N]) -> Slice {
        Slice::copy_from(&bytes)
    }
}

impl<const N: usize> From<&[u8; N]> for Slice {
    fn from(bytes: &[u8; N]) -> Slice {
        Slice::copy_from(bytes)
    }
}

#[cfg(feature = "bytes")]
impl From<Slice> for bytes::Bytes {
    /// Shares the buffer of a slice that has one; up to [`Slice::INLINE_BYTES`] are moved.
    fn from(slice: Slice) -> bytes::Bytes {
        bytes::Bytes::from_owner(slice)
    }
}

impl From<&[u8]> for Slice {
    fn from(bytes: &[u8]) -> Slice {
        Slice::copy_from(bytes)
    }
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Borrow<[u8]> for Slice {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl Default for Slice {
    fn default() -> Slice {
        Slice::copy_from(&[])
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Slice {
    fn eq(&self, other: &T) -> bool {
        **self == *other.as_ref()
    }
}

impl Eq for Slice {}

impl PartialOrd for Slice {
    fn partial_cmp(&self, other: &Slice) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Slice {
    fn cmp(&self, other: &Slice) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for Slice {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_that_is_given_away_is_not_copied() {
        let bytes = vec![7; 5000];
        let at = bytes.as_ptr();
        let slice = Slice::from(bytes);
        assert_eq!(slice.as_ptr(), at);
        assert_eq!(slice.clone().as_ptr(), at);
        let text = "a string of more than thirty bytes".to_owned();
        let at = text.as_ptr();
        assert_eq!(Slice::from(text).as_ptr(), at);
    }

    #[test]
    fn slices_are_made_of_what_is_bytes() {
        assert_eq!(Slice::from("text"), b"text");
        assert_eq!(Slice::from("text".to_owned()), b"text");
        assert_eq!(Slice::from(*b"text"), b"text");
        assert_eq!(Slice::from(b"text"), b"text");
        assert_eq!(Slice::from(b"text".to_vec()), b"text");
    }

    #[cfg(feature = "bytes")]
    #[test]
    fn bytes_share_the_buffer_of_a_slice() {
        let buffer: Arc<[u8]> = vec![7; 5000].into();
        let bytes = bytes::Bytes::from(Slice::from(buffer.clone()));
        assert_eq!(bytes.as_ptr(), buffer.as_ptr());
        assert_eq!(bytes::Bytes::from(Slice::from("short")), "short");
    }

    #[test]
    fn short_and_long_strings_read_back_and_long_ones_share() {
        for len in [0, 1, 30, 31, 512, 513, 5000] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let whole: Arc<[u8]> = [&[7u8; 3], &bytes[..], &[9; 3]].concat().into();
            let slice = Slice::share(&whole, 3, len);
            assert_eq!(slice, bytes);
            assert_eq!(slice.clone(), Slice::copy_from(&bytes));
            assert_eq!(Arc::strong_count(&whole), if len > 512 { 2 } else { 1 });
        }
        assert_eq!(size_of::<Slice>(), 32);
    }
}
