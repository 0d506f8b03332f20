//! Statistics and reports as dictionaries of Python.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use serde::Serialize;
use siltstone::{Damage, SalvageReport, VerifyReport};

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
    dict.set_item("keys", keys(py, damage.keys.as_ref()))?;
    Ok(dict)
}

type Keys<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);

fn keys<'py>(py: Python<'py>, keys: Option<&(Vec<u8>, Vec<u8>)>) -> Option<Keys<'py>> {
    keys.map(|(first, last)| (PyBytes::new(py, first), PyBytes::new(py, last)))
}

/// The outcome of a repair.
pub fn salvage_report<'py>(py: Python<'py>, report: &SalvageReport) -> Result<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("is_complete", report.is_complete())?;
    let partitions = PyDict::new(py);
    for partition in &report.partitions {
        partitions.set_item(&partition.name, partition.entries)?;
    }
    dict.set_item("partitions", partitions)?;
    let damaged = report.damage.iter().map(|it| damage(py, it)).collect::<Result<Vec<_>>>()?;
    dict.set_item("damage", damaged)?;
    let doubtful = PyList::empty(py);
    for doubt in &report.doubtful {
        let it = PyDict::new(py);
        it.set_item("partition", doubt.partition.as_deref())?;
        it.set_item("keys", keys(py, doubt.keys.as_ref()))?;
        it.set_item("why", &doubt.why)?;
        doubtful.append(it)?;
    }
    dict.set_item("doubtful", doubtful)?;
    let repaired = PyList::empty(py);
    for (place, source) in &report.repaired {
        let it = damage(py, place)?;
        it.set_item("source", source)?;
        repaired.append(it)?;
    }
    dict.set_item("repaired", repaired)?;
    Ok(dict)
}
