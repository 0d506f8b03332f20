//! Errors of the engine as exceptions of Python.
//!
//! Every function that Python calls returns a [`Failure`]. The classes are written in Python
//! (`siltstone/_errors.py`), because some of them have a second base such as `OSError`.
//!
//! Invariant: each kind of error has a class of the same name; a kind that is newer than the classes is a
//! plain `Error`.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use siltstone::{Error, ErrorKind};

use crate::hooks::take_raised;

/// The result of a call.
pub type Result<T> = std::result::Result<T, Failure>;

/// Why a call failed: in the engine, or in code of Python that it called.
#[derive(Debug)]
pub enum Failure {
    /// In the engine.
    Engine(Error),
    /// In a conversion, or in a function of the application.
    Python(PyErr),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Engine(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Failure {
        Failure::Python(error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        match failure {
            Failure::Python(error) => error,
            Failure::Engine(error) => Python::attach(|py| {
                // An exception that cannot be made is reported in the place of the error, with its text.
                exception(py, &error).unwrap_or_else(|failed| {
                    PyRuntimeError::new_err(format!("{error} (and its exception failed: {failed})"))
                })
            }),
        }
    }
}

/// An error for a wrong argument.
pub fn invalid_argument(message: impl Into<String>) -> Failure {
    Failure::Engine(Error::new(ErrorKind::InvalidArgument, message))
}

/// The exception of `error`, with the place of the damage as attributes.
fn exception(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let kind = format!("{:?}", error.kind());
    let classes = py.import("siltstone._errors")?;
    let class = match classes.getattr_opt(kind.as_str())? {
        Some(class) => class,
        None => classes.getattr("Error")?,
    };
    let value = class.call1((error.to_string(),))?;
    value.setattr("kind", kind)?;
    value.setattr("is_retryable", error.is_retryable())?;
    if let Some(raised) = take_raised(&error.to_string()) {
        value.setattr("__cause__", raised.into_value(py))?;
    }
    if let Some(path) = error.path() {
        value.setattr("file", path.as_os_str())?;
    }
    if let Some(damage) = error.damage() {
        value.setattr("file", damage.file.as_os_str())?;
        value.setattr("offset", damage.offset)?;
        value.setattr("partition", damage.partition.as_deref())?;
        value.setattr("level", damage.level)?;
        value.setattr("key", damage.key.as_ref().map(|key| PyBytes::new(py, key)))?;
        let keys = damage.keys.as_ref();
        value.setattr(
            "keys",
            keys.map(|(first, last)| (PyBytes::new(py, first), PyBytes::new(py, last))),
        )?;
    }
    if let Some(code) = error.io_source().and_then(number_of) {
        value.setattr("errno", code)?;
    }
    Ok(PyErr::from_value(value))
}

/// The number of the operating system; also of an error that the engine has found itself.
fn number_of(error: &io::Error) -> Option<i32> {
    let found = match error.kind() {
        io::ErrorKind::NotFound => Some(2),
        io::ErrorKind::AlreadyExists => Some(17),
        _ => None,
    };
    error.raw_os_error().or(found)
}

/// Locks `mutex`, also after a panic of another thread: what it guards is taken or left as a whole.
///
/// Invariant: no caller is attached to Python, or waits for it, while it holds a lock that another thread
/// waits for. So no two threads wait for each other.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
