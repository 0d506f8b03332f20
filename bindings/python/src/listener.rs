//! [`EventListener`]: a function of Python that gets the events of background work.
//!
//! A thread of the engine that does background work, or that asks for it, calls the function by the rules of `hooks.rs`.

use std::panic::resume_unwind;
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use siltstone::Event;
use siltstone::hooks::ChunkChange;

use crate::error::Result;
use crate::hooks;

/// A listener of Python.
#[pyclass(frozen, module = "siltstone")]
pub struct EventListener {
    pub(crate) inner: Arc<dyn siltstone::EventListener>,
}

#[pymethods]
impl EventListener {
    #[new]
    fn new(py: Python<'_>, function: Py<PyAny>) -> Result<EventListener> {
        if !function.bind(py).is_callable() {
            let text = "the function of a listener is not callable";
            return Err(PyTypeError::new_err(text).into());
        }
        hooks::note_use();
        Ok(EventListener { inner: Arc::new(PythonListener(function)) })
    }
}

struct PythonListener(Py<PyAny>);

impl siltstone::EventListener for PythonListener {
    fn on_event(&self, event: &Event) {
        let called = hooks::call(|py| {
            self.0.bind(py).call1((described(py, event)?,))?;
            Ok(())
        });
        if let Err(raised) = called {
            // The engine notes it as the panic of a listener, and goes on. Nothing is printed, as a panic would.
            resume_unwind(Box::new(raised.to_string()));
        }
    }
}

/// An event as a dict of Python: its kind, and what it has.
fn described<'py>(py: Python<'py>, event: &Event) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let kind = match event {
        Event::Flushed { partition, bytes, took } => {
            dict.set_item("partition", partition)?;
            dict.set_item("bytes", bytes)?;
            dict.set_item("seconds", took.as_secs_f64())?;
            "flushed"
        }
        Event::Compacted { partition, level_from, level_to, read_bytes, written_bytes, took } => {
            dict.set_item("partition", partition)?;
            dict.set_item("level_from", level_from)?;
            dict.set_item("level_to", level_to)?;
            dict.set_item("read_bytes", read_bytes)?;
            dict.set_item("written_bytes", written_bytes)?;
            dict.set_item("seconds", took.as_secs_f64())?;
            "compacted"
        }
        Event::StallChanged { partition, pressure_permille, reason } => {
            dict.set_item("partition", partition)?;
            dict.set_item("pressure_permille", pressure_permille)?;
            dict.set_item("reason", reason)?;
            "stall_changed"
        }
        Event::Corruption(damage) => {
            dict.set_item("message", damage.to_string())?;
            "corruption"
        }
        Event::Repaired { partition, key, source } => {
            dict.set_item("partition", partition)?;
            dict.set_item("key", PyBytes::new(py, key))?;
            dict.set_item("message", source)?;
            "repaired"
        }
        Event::Quarantined { damage, value } => {
            dict.set_item("message", damage.to_string())?;
            dict.set_item("value", PyBytes::new(py, value))?;
            "quarantined"
        }
        Event::ChunkChanged { partition, path, change, bytes } => {
            dict.set_item("partition", partition)?;
            dict.set_item("file", path.as_os_str())?;
            dict.set_item("bytes", bytes)?;
            match change {
                ChunkChange::Created => "chunk_created",
                ChunkChange::Sealed => "chunk_sealed",
                _ => "chunk_reclaimed",
            }
        }
        Event::BackgroundError(error) => {
            dict.set_item("message", error.to_string())?;
            "background_error"
        }
        Event::Resumed => "resumed",
        Event::ClockJumped(jump) => {
            dict.set_item("message", jump.to_string())?;
            "clock_jumped"
        }
        // Of a later version: its text, until this package knows it.
        other => {
            dict.set_item("message", format!("{other:?}"))?;
            "unknown"
        }
    };
    dict.set_item("kind", kind)?;
    Ok(dict)
}
