//! [`Bytes`], an argument that is bytes.

use std::ops::Bound;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PyString};
use pyo3::{Borrowed, Bound as PyBound};

/// A key or a value of a call: any object with the buffer protocol.
///
/// `bytes` are read where they are. What may change while the engine reads it (`bytearray`, `memoryview`,
/// arrays) is copied, because other threads of Python run during the call.
pub struct Bytes<'py>(PyBound<'py, PyBytes>);

impl AsRef<[u8]> for Bytes<'_> {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl<'py> FromPyObject<'_, 'py> for Bytes<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Bytes(bytes.to_owned()));
        }
        if object.is_instance_of::<PyString>() {
            // The most frequent mistake gets its answer; all others get that of memoryview.
            let message = "a bytes-like object is required, not 'str': call encode() on it";
            return Err(PyTypeError::new_err(message));
        }
        let view = PyMemoryView::from(&object)?;
        // Of any element type, and also where the elements are not next to each other.
        let copy = view.call_method0("tobytes")?;
        view.call_method0("release")?;
        Ok(Bytes(copy.cast_into()?))
    }
}

/// The range from `start` on and before `stop`, as ranges of Python are.
pub fn range<'a>(start: Option<&'a Bytes<'_>>, stop: Option<&'a Bytes<'_>>) -> KeyBounds<'a> {
    let lower = start.map_or(Bound::Unbounded, |start| Bound::Included(start.as_ref()));
    let upper = stop.map_or(Bound::Unbounded, |stop| Bound::Excluded(stop.as_ref()));
    (lower, upper)
}

/// Both ends of a range of keys.
pub type KeyBounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);
