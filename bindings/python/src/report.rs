//! Statistics and reports as dictionaries of Python.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use serde::Serialize;
use siltstone::{Damage, VerifyReport};

use crate::error::Result;

/// What `report` serializes to, by way of JSON: it is made seldom, and needs no code for each field.
pub fn to_python<'py>(py: Python<'py>, report: &impl Serialize) -> Result<Bound<'py, PyAny>> {
    let text = serde_json::to_string(report)
        .map_err(|error| crate::error::invalid_argument(format!("no report: {error}")))?;
    Ok(py.import("json")?.call_method1("loads", (text,))?)
}

/// The outcome of a verification.
pub fn verify_report<'py>(py: Python<'py>, report: &VerifyReport) -> Result<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("is_sound", report.is_sound())?;
    dict.set_item("files", report.files)?;
    dict.set_item("bytes", report.bytes)?;
    dict.set_item("entries", report.entries)?;
    let damage = report.damage().iter().map(|it| damage(py, it)).collect::<Result<Vec<_>>>()?;
    dict.set_item("damage", PyList::new(py, damage)?)?;
    dict.set_item("unsupported", &report.unsupported)?;
    Ok(dict)
}

fn damage<'py>(py: Python<'py>, damage: &Damage) -> Result<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("message", damage.to_string())?;
    dict.set_item("file", damage.file.as_os_str())?;
    dict.set_item("offset", damage.offset)?;
    dict.set_item("partition", damage.partition.as_deref())?;
    dict.set_item("level", damage.level)?;
    dict.set_item("key", damage.key.as_ref().map(|key| PyBytes::new(py, key)))?;
    let keys = damage.keys.as_ref();
    let keys = keys.map(|(first, last)| (PyBytes::new(py, first), PyBytes::new(py, last)));
    dict.set_item("keys", keys)?;
    Ok(dict)
}
