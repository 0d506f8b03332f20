//! Hooks of Python: [`MergeOperator`] and [`CompactionFilter`], and how a thread of the engine calls them.
//!
//! The engine calls a hook on its own threads, and on those that read. None of them has Python at that moment, and the
//! call takes it. `siltstone/_hooks.py` ends all hooks before the interpreter ends.
//!
//! Invariants:
//! 1. A thread is counted as under way before it looks whether hooks are refused, and until Python is released. So the end
//!    of the interpreter sees every thread that still needs Python.
//! 2. A hook calls nothing of this package: [`Outside::outside`] refuses it, because a close, a flush or a write could wait
//!    for the job that waits for the hook. The same holds from the wait for Python until the exception of the hook is
//!    freed with its frames: Python frees objects and runs finalizers in all that time.
//! 3. An exception is an error of the call or job, with the name of the hook. The engine keeps the inputs of the job,
//!    and the operands of the key.
//! 4. The lock of [`THREADS`] is taken by threads that have Python alone, and for one line: it is free after a fork.

use std::cell::{Cell, RefCell};
use std::iter;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use pyo3::exceptions::{PyKeyboardInterrupt, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList};
use siltstone::hooks::{
    CompactionFilter as EngineFilter, CompactionFilterFactory, Decision, Entry, EntryKind,
    HookProvider, Job, KeyForm,
};
use siltstone::{Error, ErrorKind};

use crate::bytes::Bytes;
use crate::error::{Result, invalid_argument, lock};

/// Whether a hook was ever made.
static IS_USED: AtomicBool = AtomicBool::new(false);
/// Whether the interpreter is about to end.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);
/// The calls that have Python, or wait for it.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
/// The threads that run a hook, by their numbers of Python.
static THREADS: Mutex<Vec<u64>> = Mutex::new(Vec::new());

thread_local! {
    /// Whether this thread runs a hook, or is about to, or frees what it has left.
    static IN_HOOK: Cell<bool> = const { Cell::new(false) };
    /// The number of this thread in Python; 0 as long as it is not known.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    /// The calls of Python on this thread that are in the engine.
    static OUTSIDE: Cell<usize> = const { Cell::new(0) };
    /// The last exception of a hook in such a call, with the text of its error.
    static RAISED: RefCell<Option<(String, PyErr)>> = const { RefCell::new(None) };
}

/// Returns `true` if this process has hooks of Python.
pub fn are_used() -> bool {
    // Relaxed: a thread that has an object of a database with hooks has learned of it with them.
    IS_USED.load(Ordering::Relaxed)
}

/// Returns `true` once no hook is called any more.
pub fn are_refused() -> bool {
    IS_REFUSED.load(Ordering::SeqCst)
}

/// Returns `true` on a thread that runs a hook.
pub fn is_in_hook() -> bool {
    IN_HOOK.get()
}

/// Calls of the engine.
pub trait Outside {
    /// Runs `call` while Python is released.
    ///
    /// # Errors
    /// On a thread that runs a hook, before the call.
    fn outside<T: Send>(self, call: impl FnOnce() -> T + Send) -> Result<T>;
}

impl Outside for Python<'_> {
    fn outside<T: Send>(self, call: impl FnOnce() -> T + Send) -> Result<T> {
        if is_in_hook() {
            return Err(invalid_argument("a hook may call nothing of siltstone"));
        }
        if OUTSIDE.get() == 0 {
            // Of an earlier call, whose engine went on without its hook. Its frames may hold objects of a database.
            drop(RAISED.take());
        }
        OUTSIDE.set(OUTSIDE.get() + 1);
        let result = self.detach(|| {
            let _depth = Depth;
            call()
        });
        Ok(result)
    }
}

/// A call in the engine, which a panic ends as well.
struct Depth;

impl Drop for Depth {
    fn drop(&mut self) {
        OUTSIDE.set(OUTSIDE.get() - 1);
    }
}

/// The exception that a hook has raised in this call, if `text` is of its error.
pub fn take_raised(text: &str) -> Option<PyErr> {
    let raised = RAISED.take()?;
    text.contains(&raised.0).then_some(raised.1)
}

/// A call of a hook, from the wait for Python on.
struct UnderWay;

impl UnderWay {
    fn begin() -> siltstone::Result<UnderWay> {
        // Sequentially consistent, as the flag: of this thread and the one that refuses, one sees the other.
        UNDER_WAY.fetch_add(1, Ordering::SeqCst);
        let under_way = UnderWay;
        if are_refused() { Err(ended()) } else { Ok(under_way) }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        // In a child of a fork the count begins again.
        let _ = UNDER_WAY.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |it| it.checked_sub(1));
    }
}

/// The time of invariant 2, on this thread.
struct InHook;

impl InHook {
    fn begin() -> InHook {
        IN_HOOK.set(true);
        InHook
    }
}

impl Drop for InHook {
    fn drop(&mut self) {
        IN_HOOK.set(false);
    }
}

/// A hook that runs, on this thread.
struct Running(u64);

impl Running {
    fn begin(py: Python<'_>) -> PyResult<Running> {
        if NUMBER.get() == 0 {
            NUMBER.set(py.import("threading")?.call_method0("get_ident")?.extract()?);
        }
        let thread = NUMBER.get();
        lock(&THREADS).push(thread);
        Ok(Running(thread))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        lock(&THREADS).retain(|thread| *thread != self.0);
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::HookPanicked, "the interpreter ends: no hook is called any more")
}

/// Notes that this process has hooks.
pub fn note_use() {
    IS_USED.store(true, Ordering::Relaxed);
}

/// Calls a hook.
pub fn call<T>(hook: impl FnOnce(Python<'_>) -> PyResult<T>) -> siltstone::Result<T> {
    let _under_way = UnderWay::begin()?;
    let _in_hook = InHook::begin();
    let called = Python::try_attach(|py| {
        let outcome = Running::begin(py).and_then(|running| {
            let outcome = hook(py);
            drop(running);
            outcome
        });
        outcome.map_err(|raised| failed(py, raised))
    });
    called.unwrap_or_else(|| Err(ended()))
}

/// The error of an exception: its class, text and place.
#[cold]
fn failed(py: Python<'_>, raised: PyErr) -> Error {
    let mut text = raised.to_string();
    let place = raised.traceback(py).and_then(|traceback| place_of(&traceback).ok());
    if let Some(place) = place {
        text = format!("{text} ({place})");
    }
    if raised.is_instance_of::<PyKeyboardInterrupt>(py) {
        // The application has pressed Ctrl-C, and may handle the error of a hook as any other.
        let interrupted = py.import("_thread").and_then(|it| it.call_method0("interrupt_main"));
        drop(interrupted);
    }
    // For the caller, if there is one: on a thread of the engine its frames would live for ever.
    if OUTSIDE.get() > 0 {
        RAISED.set(Some((text.clone(), raised)));
    }
    Error::new(ErrorKind::HookPanicked, text)
}

/// The file and the line in which an exception was raised.
fn place_of(traceback: &Bound<'_, PyAny>) -> PyResult<String> {
    let frames = traceback.py().import("traceback")?.call_method1("extract_tb", (traceback,))?;
    let last = frames.get_item(-1)?;
    let (file, line): (String, u32) =
        (last.getattr("filename")?.extract()?, last.getattr("lineno")?.extract()?);
    Ok(format!("{file}, line {line}"))
}

/// The name of a hook, and its function.
struct Named {
    name: String,
    params: Vec<u8>,
    function: Py<PyAny>,
}

impl Named {
    fn new(
        py: Python<'_>,
        name: String,
        function: Py<PyAny>,
        params: Option<&Bytes<'_>>,
    ) -> Result<Named> {
        if name.is_empty() {
            return Err(invalid_argument("the name of a hook is empty"));
        }
        if !function.bind(py).is_callable() {
            return Err(PyTypeError::new_err("the function of a hook is not callable").into());
        }
        note_use();
        let params = params.map(|params| params.as_ref().to_vec()).unwrap_or_default();
        Ok(Named { name, params, function })
    }
}

/// A merge operator of Python.
#[pyclass(frozen, module = "siltstone")]
pub struct MergeOperator {
    pub(crate) inner: Arc<dyn siltstone::operators::MergeOperator>,
    name: String,
}

struct PythonOperator(Named);

#[pymethods]
impl MergeOperator {
    #[new]
    #[pyo3(signature = (name, function, *, params = None))]
    fn new(
        py: Python<'_>,
        name: String,
        function: Py<PyAny>,
        params: Option<Bytes<'_>>,
    ) -> Result<MergeOperator> {
        let named = Named::new(py, name.clone(), function, params.as_ref())?;
        Ok(MergeOperator { inner: Arc::new(PythonOperator(named)), name })
    }

    /// The name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    fn __repr__(&self) -> String {
        format!("<siltstone.MergeOperator {:?}>", self.name)
    }
}

impl siltstone::operators::MergeOperator for PythonOperator {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn params(&self) -> Vec<u8> {
        self.0.params.clone()
    }

    fn merge(&self, key: &[u8], value: &mut Vec<u8>, operand: &[u8]) -> siltstone::Result<()> {
        self.merge_all(key, value, &mut iter::once(operand))
    }

    fn merge_all(
        &self,
        key: &[u8],
        value: &mut Vec<u8>,
        operands: &mut dyn Iterator<Item = &[u8]>,
    ) -> siltstone::Result<()> {
        // Taken before the call: Python is wanted by others.
        let operands: Vec<&[u8]> = operands.collect();
        if operands.is_empty() {
            return Ok(());
        }
        *value = call(|py| {
            let list = PyList::new(py, operands.iter().map(|operand| PyBytes::new(py, operand)))?;
            let arguments = (PyBytes::new(py, key), PyBytes::new(py, value), list);
            let merged: Bytes<'_> = self.0.function.bind(py).call1(arguments)?.extract()?;
            Ok(merged.as_ref().to_vec())
        })?;
        Ok(())
    }
}

/// A compaction filter of Python.
#[pyclass(frozen, module = "siltstone")]
pub struct CompactionFilter {
    pub(crate) inner: Arc<dyn CompactionFilterFactory>,
    name: String,
}

struct PythonFilter(Arc<Named>);

#[pymethods]
impl CompactionFilter {
    #[new]
    #[pyo3(signature = (name, function, *, params = None))]
    fn new(
        py: Python<'_>,
        name: String,
        function: Py<PyAny>,
        params: Option<Bytes<'_>>,
    ) -> Result<CompactionFilter> {
        let named = Named::new(py, name.clone(), function, params.as_ref())?;
        Ok(CompactionFilter { inner: Arc::new(PythonFilter(Arc::new(named))), name })
    }

    /// The name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    fn __repr__(&self) -> String {
        format!("<siltstone.CompactionFilter {:?}>", self.name)
    }
}

impl CompactionFilterFactory for PythonFilter {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn params(&self) -> Vec<u8> {
        self.0.params.clone()
    }

    fn start(&self, job: &Job<'_>) -> siltstone::Result<Box<dyn EngineFilter>> {
        Ok(Box::new(FilterOfJob { named: self.0.clone(), key_form: job.key_form }))
    }
}

/// A filter in one flush or compaction.
struct FilterOfJob {
    named: Arc<Named>,
    key_form: KeyForm,
}

impl EngineFilter for FilterOfJob {
    fn decide(&mut self, entry: Entry<'_>) -> siltstone::Result<Decision> {
        let key = self.key_form.user(entry.key);
        // The bytes of a handle are an address in the value store and no value.
        let value = (entry.kind != EntryKind::Handle).then_some(entry.value);
        call(|py| {
            let value = value.map(|value| PyBytes::new(py, value));
            decision(&self.named.function.bind(py).call1((PyBytes::new(py, key), value))?)
        })
    }
}

/// The members of `siltstone.Decision`.
static DECISIONS: PyOnceLock<(Py<PyAny>, Py<PyAny>)> = PyOnceLock::new();

/// What a filter has returned: a member of `siltstone.Decision`, or the new value.
fn decision(returned: &Bound<'_, PyAny>) -> PyResult<Decision> {
    let py = returned.py();
    let (keep, remove) = DECISIONS.get_or_try_init(py, || -> PyResult<_> {
        let decisions = py.import("siltstone._hooks")?.getattr("Decision")?;
        Ok((decisions.getattr("KEEP")?.unbind(), decisions.getattr("REMOVE")?.unbind()))
    })?;
    if returned.is(keep) {
        return Ok(Decision::Keep);
    }
    if returned.is(remove) {
        return Ok(Decision::Remove);
    }
    match returned.extract::<Bytes<'_>>() {
        Ok(value) => Ok(Decision::Replace(value.as_ref().to_vec())),
        Err(_) => {
            let text = "a compaction filter returns Decision.KEEP, Decision.REMOVE or bytes, not ";
            Err(PyTypeError::new_err(format!("{text}{}", returned.get_type().name()?)))
        }
    }
}

/// The compaction filters that an open supplies.
pub struct SuppliedFilters(pub Vec<Arc<dyn CompactionFilterFactory>>);

impl HookProvider for SuppliedFilters {
    fn compaction_filter(
        &self,
        name: &str,
        params: &[u8],
    ) -> Option<Arc<dyn CompactionFilterFactory>> {
        self.0.iter().find(|it| it.name() == name && it.params() == params).cloned()
    }
}

/// Refuses every later call of a hook.
#[pyfunction]
pub fn refuse_hooks() {
    IS_REFUSED.store(true, Ordering::SeqCst);
}

/// Returns how many calls have Python, or wait for it.
#[pyfunction]
pub fn hooks_under_way() -> usize {
    UNDER_WAY.load(Ordering::SeqCst)
}

/// Returns the numbers of the threads that run a hook.
#[pyfunction]
pub fn hook_threads() -> Vec<u64> {
    lock(&THREADS).clone()
}

/// Forgets the threads of the parent, in a child.
#[pyfunction]
pub fn forget_hooks() {
    UNDER_WAY.store(0, Ordering::SeqCst);
    lock(&THREADS).clear();
}
