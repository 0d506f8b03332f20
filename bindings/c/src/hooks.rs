//! Hooks: merge operators and compaction filters that the application has in C.
//!
//! The engine calls them on its own threads, and on those that read. Contract 5 of `raw` is what the application
//! promises for that.
//!
//! Invariants:
//! 1. A destructor is called once, after the last call of its hook: the object that calls both owns the context.
//! 2. While a hook or destructor runs, its thread calls nothing of the library that could wait: see `raw::in_hook`.
//! 3. A failure is an error with the text of the hook. The engine keeps the inputs of a job, and the operands of a key.

use std::ffi::{CStr, c_char, c_void};
use std::iter;
use std::ptr;
use std::sync::Arc;

use engine::hooks::{
    CompactionFilter as EngineFilter, CompactionFilterFactory, Decision, Entry, EntryKind,
    HookProvider, Job, KeyForm,
};
use engine::{Error, ErrorKind, Result};

use crate::error::Failure;
use crate::raw::{bytes, free, give, guard, in_hook, text};

/// Appends the result of `existing` and of `count` operands, the oldest first, to `output`, and returns true; or false for
/// a failure. `existing` is the value of the key, or an operand that is older than the others: the operator must be
/// associative. Called by any thread, by several at once, and at times while writers wait. The bytes live until it returns.
pub type MergeFn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        key: *const c_void,
        key_len: usize,
        existing: *const c_void,
        existing_len: usize,
        count: usize,
        operands: *const *const c_void,
        operand_lens: *const usize,
        output: *mut HookOutput,
    ) -> bool,
>;

/// Returns a siltstone_decision_t about an entry that a flush or a compaction is about to write; the new value for
/// SILTSTONE_REPLACE is appended to `output`. `value` is NULL for a large value, which is not read. Called by any thread,
/// and by several at once. The bytes live until it returns.
pub type FilterFn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        key: *const c_void,
        key_len: usize,
        value: *const c_void,
        value_len: usize,
        output: *mut HookOutput,
    ) -> u32,
>;

/// Ends a context, after the last call of its hook. Called once, by any thread. The rules for hooks hold for it: it calls
/// no function that can fail, and what it frees is freed by another thread.
pub type DestroyFn = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// The decision of a compaction filter.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterDecision {
    /// The entry stays.
    SiltstoneKeep = 0,
    /// The entry is deleted.
    SiltstoneRemove = 1,
    /// The entry gets the value in the output.
    SiltstoneReplace = 2,
    /// The filter failed. The job fails, keeps its inputs, and is tried again later.
    SiltstoneFail = 3,
}

/// The bytes, or the failure, that a hook returns. It ends with the call of the hook.
#[derive(Default)]
pub struct HookOutput {
    bytes: Vec<u8>,
    failure: Option<String>,
}

/// Appends bytes to the output of a hook.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_hook_output_append(
    output: *mut HookOutput,
    data: *const c_void,
    len: usize,
) {
    // SAFETY: contracts 1 and 2 of `raw`.
    let (Some(output), data) = (unsafe { (output.as_mut(), bytes(data, len, "data")) }) else {
        return;
    };
    match data {
        Ok(data) => output.bytes.extend_from_slice(data),
        Err(refused) => output.failure = Some(refused.to_string()),
    }
}

/// Sets the text of a failure, which the error of the call or job has. The hook still returns that it failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_hook_output_fail(
    output: *mut HookOutput,
    message: *const c_char,
) {
    // SAFETY: contracts 1 and 2 of `raw`; the text ends with a zero.
    unsafe {
        let Some(output) = output.as_mut() else { return };
        if !message.is_null() {
            output.failure = Some(CStr::from_ptr(message).to_string_lossy().into_owned());
        }
    }
}

impl HookOutput {
    /// The bytes of a hook that succeeded by its own account.
    fn outcome(self, succeeded: bool) -> Result<Vec<u8>> {
        match self.failure {
            None if succeeded => Ok(self.bytes),
            None => Err(failed("it failed")),
            Some(text) => Err(failed(&text)),
        }
    }
}

fn failed(text: &str) -> Error {
    Error::new(ErrorKind::HookPanicked, text)
}

/// The context of a hook, and its end.
pub struct Context {
    pub(crate) pointer: *mut c_void,
    pub(crate) destroy: DestroyFn,
}

// SAFETY: contract 5 of `raw`: hooks and their destructors may be called from any thread.
unsafe impl Send for Context {}
// SAFETY: the same; a hook may be called by several threads at once.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy {
            // The engine may drop it in a job, or in the close that waits for it.
            // SAFETY: contract 5 of `raw`; nothing else has the context any more.
            in_hook(|| unsafe { destroy(self.pointer) });
        }
    }
}

/// Refuses a name that no hook can be stored by.
unsafe fn hook_name(name: *const c_char) -> Result<String> {
    // SAFETY: contract 1 of `raw`.
    let name = unsafe { text(name, "name") }?;
    if name.is_empty() {
        return Err(Error::new(ErrorKind::InvalidArgument, "the name of a hook is empty"));
    }
    Ok(name.to_owned())
}

/// A merge operator of the application.
pub struct MergeOperator(pub(crate) Arc<dyn engine::operators::MergeOperator>);

struct OwnOperator {
    name: String,
    params: Vec<u8>,
    merge: unsafe extern "C" fn(
        *mut c_void,
        *const c_void,
        usize,
        *const c_void,
        usize,
        usize,
        *const *const c_void,
        *const usize,
        *mut HookOutput,
    ) -> bool,
    context: Context,
}

/// Makes a merge operator. `name` and `params` are stored with partitions. `destroy` may be NULL; it is not called if this
/// function fails. docs/merge-operators.md has the rules for operators.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_merge_operator_create(
    name: *const c_char,
    params: *const c_void,
    params_len: usize,
    context: *mut c_void,
    merge: MergeFn,
    destroy: DestroyFn,
    error: *mut *mut Failure,
) -> *mut MergeOperator {
    // SAFETY: contracts 1 and 5 of `raw`.
    unsafe {
        guard(error, ptr::null_mut(), || {
            let name = hook_name(name)?;
            let params = bytes(params, params_len, "params")?.to_vec();
            let merge = merge.ok_or_else(|| crate::raw::null("merge"))?;
            let context = Context { pointer: context, destroy };
            Ok(give(MergeOperator(Arc::new(OwnOperator { name, params, merge, context }))))
        })
    }
}

/// Frees a merge operator. Options and databases that use it keep what they need.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_merge_operator_free(operator: *mut MergeOperator) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(operator) };
}

impl engine::operators::MergeOperator for OwnOperator {
    fn name(&self) -> &str {
        &self.name
    }

    fn params(&self) -> Vec<u8> {
        self.params.clone()
    }

    fn merge(&self, key: &[u8], value: &mut Vec<u8>, operand: &[u8]) -> Result<()> {
        self.merge_all(key, value, &mut iter::once(operand))
    }

    fn merge_all(
        &self,
        key: &[u8],
        value: &mut Vec<u8>,
        operands: &mut dyn Iterator<Item = &[u8]>,
    ) -> Result<()> {
        let operands: Vec<&[u8]> = operands.collect();
        let starts: Vec<*const c_void> = operands.iter().map(|it| it.as_ptr().cast()).collect();
        let lens: Vec<usize> = operands.iter().map(|it| it.len()).collect();
        if operands.is_empty() {
            return Ok(());
        }
        let mut output = HookOutput::default();
        // SAFETY: contract 5 of `raw`; the bytes are lent for the call, and the output is this call's own.
        let succeeded = in_hook(|| unsafe {
            (self.merge)(
                self.context.pointer,
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
                operands.len(),
                starts.as_ptr(),
                lens.as_ptr(),
                &raw mut output,
            )
        });
        *value = output.outcome(succeeded)?;
        Ok(())
    }
}

/// A compaction filter of the application.
pub struct CompactionFilter(pub(crate) Arc<dyn CompactionFilterFactory>);

struct OwnFilter(Arc<FilterCode>);

struct FilterCode {
    name: String,
    params: Vec<u8>,
    decide: unsafe extern "C" fn(
        *mut c_void,
        *const c_void,
        usize,
        *const c_void,
        usize,
        *mut HookOutput,
    ) -> u32,
    context: Context,
}

/// Makes a compaction filter. `name` and `params` are stored with partitions. `destroy` may be NULL; it is not called if
/// this function fails. A snapshot that sees an entry keeps it, whatever a filter would decide.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_compaction_filter_create(
    name: *const c_char,
    params: *const c_void,
    params_len: usize,
    context: *mut c_void,
    decide: FilterFn,
    destroy: DestroyFn,
    error: *mut *mut Failure,
) -> *mut CompactionFilter {
    // SAFETY: contracts 1 and 5 of `raw`.
    unsafe {
        guard(error, ptr::null_mut(), || {
            let name = hook_name(name)?;
            let params = bytes(params, params_len, "params")?.to_vec();
            let decide = decide.ok_or_else(|| crate::raw::null("decide"))?;
            let context = Context { pointer: context, destroy };
            let code = Arc::new(FilterCode { name, params, decide, context });
            Ok(give(CompactionFilter(Arc::new(OwnFilter(code)))))
        })
    }
}

/// Frees a compaction filter. Options and databases that use it keep what they need.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_compaction_filter_free(filter: *mut CompactionFilter) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(filter) };
}

impl CompactionFilterFactory for OwnFilter {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn params(&self) -> Vec<u8> {
        self.0.params.clone()
    }

    fn start(&self, job: &Job<'_>) -> Result<Box<dyn EngineFilter>> {
        Ok(Box::new(FilterOfJob { code: self.0.clone(), key_form: job.key_form }))
    }
}

/// A filter in one flush or compaction.
struct FilterOfJob {
    code: Arc<FilterCode>,
    key_form: KeyForm,
}

impl EngineFilter for FilterOfJob {
    fn decide(&mut self, entry: Entry<'_>) -> Result<Decision> {
        let key = self.key_form.user(entry.key);
        let mut output = HookOutput::default();
        let (value, len) = match entry.kind {
            // Its bytes are an address in the value store and no value.
            EntryKind::Handle => (ptr::null(), 0),
            _ => (entry.value.as_ptr().cast(), entry.value.len()),
        };
        // SAFETY: contract 5 of `raw`; the bytes are lent for the call, and the output is this call's own.
        let decision = in_hook(|| unsafe {
            let code = &*self.code;
            (code.decide)(
                code.context.pointer,
                key.as_ptr().cast(),
                key.len(),
                value,
                len,
                &raw mut output,
            )
        });
        match decision {
            0 => output.outcome(true).map(|_| Decision::Keep),
            1 => output.outcome(true).map(|_| Decision::Remove),
            2 => output.outcome(true).map(Decision::Replace),
            3 => output.outcome(false).map(|_| Decision::Keep),
            other => Err(failed(&format!("there is no decision {other}"))),
        }
    }
}

/// The hooks whose code the options of an open supply.
#[derive(Clone, Default)]
pub struct OwnHooks {
    pub(crate) operators: Vec<Arc<dyn engine::operators::MergeOperator>>,
    pub(crate) filters: Vec<Arc<dyn CompactionFilterFactory>>,
}

impl HookProvider for OwnHooks {
    fn compaction_filter(
        &self,
        name: &str,
        params: &[u8],
    ) -> Option<Arc<dyn CompactionFilterFactory>> {
        let mut filters = self.filters.iter();
        filters.find(|it| it.name() == name && it.params() == params).cloned()
    }

    fn merge_operator(
        &self,
        name: &str,
        params: &[u8],
    ) -> Option<Arc<dyn engine::operators::MergeOperator>> {
        let mut operators = self.operators.iter();
        operators.find(|it| it.name() == name && it.params() == params).cloned()
    }
}
