//! Siltstone for Python: the classes of the module `siltstone._siltstone`.
//!
//! The package `siltstone` (`python/siltstone`) exports them, with what is easier to write in Python:
//! exceptions, options and files. Each class wraps a type of the crate `siltstone`, which users of Python do
//! not see.
//!
//! Invariants:
//! 1. Python is released (`Outside::outside`) during every call of the engine that may wait: for a lock, for a device or for
//!    another thread.
//! 2. A lock of this crate is only waited for while Python is released, and no code of Python runs under it.
//! 3. The classes are frozen, and hold no object of Python but the functions of hooks: two threads may use one. A
//!    function that refers to its own database keeps it, as docs/bindings.md says.
//! 4. No thread waits for a hook that it runs itself: `outside` refuses each call from a hook, and `Held` moves what a
//!    hook frees to another thread.

/// Makes a class one of `with`, whose block ends with a call of `close`.
macro_rules! closed_at_exit {
    ($class:ty) => {
        #[pymethods]
        impl $class {
            fn __enter__(this: Py<Self>) -> Py<Self> {
                this
            }

            fn __exit__(
                &self,
                py: Python<'_>,
                _kind: Option<Py<PyAny>>,
                _value: Option<Py<PyAny>>,
                _traceback: Option<Py<PyAny>>,
            ) -> Result<()> {
                self.close(py)
            }
        }
    };
}

mod backup;
mod batch;
mod bytes;
mod changes;
mod commit;
mod cursor;
mod db;
mod error;
mod exchange;
mod held;
mod hooks;
mod iterator;
mod listener;
mod liveness;
mod options;
mod partition;
mod report;
mod resources;
mod secondary;
mod snapshot;
mod stream;
mod transaction;
mod value;
mod waiting;

use pyo3::prelude::*;

#[pymodule]
fn _siltstone(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(db::open, module)?)?;
    module.add_function(wrap_pyfunction!(db::repair, module)?)?;
    module.add_function(wrap_pyfunction!(secondary::open_secondary, module)?)?;
    module.add_function(wrap_pyfunction!(hooks::refuse_hooks, module)?)?;
    module.add_function(wrap_pyfunction!(hooks::hooks_under_way, module)?)?;
    module.add_function(wrap_pyfunction!(hooks::hook_threads, module)?)?;
    module.add_function(wrap_pyfunction!(hooks::forget_hooks, module)?)?;
    module.add_class::<backup::BackupEngine>()?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<changes::Change>()?;
    module.add_class::<changes::Changes>()?;
    module.add_class::<changes::FeedItem>()?;
    module.add_class::<commit::Commit>()?;
    module.add_class::<hooks::CompactionFilter>()?;
    module.add_class::<cursor::Cursor>()?;
    module.add_class::<db::Db>()?;
    module.add_class::<listener::EventListener>()?;
    module.add_class::<iterator::EntryIterator>()?;
    module.add_class::<hooks::MergeOperator>()?;
    module.add_class::<partition::Partition>()?;
    module.add_class::<partition::Updated>()?;
    module.add_class::<secondary::Reading>()?;
    module.add_class::<resources::Resources>()?;
    module.add_class::<secondary::Secondary>()?;
    module.add_class::<secondary::SecondaryPartition>()?;
    module.add_class::<snapshot::Snapshot>()?;
    module.add_class::<stream::BlobSource>()?;
    module.add_class::<stream::ValueWriter>()?;
    module.add_class::<transaction::Transaction>()?;
    module.add_class::<value::Value>()?;
    Ok(())
}
