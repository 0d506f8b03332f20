//! [`Value`]: a value that the engine lends, as a buffer of Python without a copy.
//!
//! This is the only file of this crate with `unsafe`: the slot of the buffer protocol is a function of C.
//!
//! Invariants:
//! 1. The bytes of a `Value` never move and never change while the object lives: the class is frozen, and the
//!    engine's value is immutable memory or a mapping of a file that is only appended to or deleted.
//! 2. A buffer holds a reference to its `Value`, so the bytes outlive each buffer.

#![expect(unsafe_code, reason = "the buffer protocol is a function of C: invariants 1 and 2")]

use std::ffi::{c_int, c_void};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use siltstone::large_values::BlobRef;

use crate::error::{Result, invalid_argument};

/// A value that the engine lends. Python sees it as a memoryview.
#[pyclass(frozen, module = "siltstone")]
pub struct Value(BlobRef);

impl Value {
    /// The memoryview of `value`, which keeps it.
    pub fn view<'py>(py: Python<'py>, value: BlobRef) -> Result<Bound<'py, PyMemoryView>> {
        let value = Bound::new(py, Value(value))?;
        Ok(PyMemoryView::from(value.as_any())?)
    }
}

#[pymethods]
impl Value {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// # Safety
    /// `view` is what Python passes to the slot of the buffer protocol.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> Result<()> {
        let bytes: &[u8] = &slf.get().0;
        let start = bytes.as_ptr().cast::<c_void>().cast_mut();
        let len = isize::try_from(bytes.len())
            .map_err(|_| invalid_argument("the value is longer than a buffer can be"))?;
        // SAFETY: by invariant 1 the bytes stay where and what they are as long as the object lives, and the
        // call notes the object in the buffer, which by invariant 2 keeps it alive. The buffer is read-only,
        // so the cast to a mutable pointer gives no one the right to write; a request for a writable buffer
        // is refused by the call. `view` is valid for writes, as Python passes it.
        let status = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 1, flags) };
        if status == 0 {
            return Ok(());
        }
        let error = PyErr::take(slf.py());
        Err(error.unwrap_or_else(|| PyBufferError::new_err("no buffer")).into())
    }
}
