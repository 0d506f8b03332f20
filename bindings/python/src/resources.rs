//! [`Resources`]: cache, memory, threads, rate and files that many databases of a process share.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use siltstone::ResourceOptions;

use crate::error::Result;
use crate::hooks::Outside;
use crate::options::unknown;

/// What many databases of a process share.
#[pyclass(frozen, module = "siltstone")]
pub struct Resources {
    pub(crate) inner: siltstone::Resources,
}

#[pymethods]
impl Resources {
    #[new]
    #[pyo3(signature = (**options))]
    fn new(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> Result<Resources> {
        let mut made = ResourceOptions::new();
        for (name, value) in options.into_iter().flatten() {
            let name: String = name.extract()?;
            made = match name.as_str() {
                "cache_bytes" => made.cache_bytes(value.extract()?),
                "write_buffer_bytes" => made.write_buffer_bytes(value.extract()?),
                "flush_threads" => made.flush_threads(value.extract()?),
                "compaction_threads" => made.compaction_threads(value.extract()?),
                "background_bytes_per_second" => made.background_bytes_per_second(value.extract()?),
                "open_files_max" => made.open_files_max(value.extract()?),
                _ => return Err(unknown("Resources", &name)),
            };
        }
        Ok(Resources { inner: py.outside(|| siltstone::Resources::new(made))?? })
    }

    /// Changes the rate of the flushes and compactions of all databases.
    fn set_background_bytes_per_second(&self, py: Python<'_>, bytes: u64) -> Result<()> {
        Ok(py.outside(|| self.inner.set_background_bytes_per_second(bytes))??)
    }

    /// Returns what all databases together use now.
    fn usage<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        let usage = py.outside(|| self.inner.usage())?;
        let dict = PyDict::new(py);
        dict.set_item("databases", usage.databases)?;
        dict.set_item("threads", usage.threads)?;
        dict.set_item("cache_bytes", usage.cache_bytes)?;
        dict.set_item("cache_bytes_max", usage.cache_bytes_max)?;
        dict.set_item("active_memtable_bytes", usage.active_memtable_bytes)?;
        dict.set_item("write_buffer_bytes", usage.write_buffer_bytes)?;
        dict.set_item("sealed_memtable_bytes", usage.sealed_memtable_bytes)?;
        dict.set_item("followed_memtable_bytes", usage.followed_memtable_bytes)?;
        dict.set_item("open_files", usage.open_files)?;
        dict.set_item("open_files_max", usage.open_files_max)?;
        dict.set_item("background_bytes_per_second", usage.background_bytes_per_second)?;
        Ok(dict)
    }
}
