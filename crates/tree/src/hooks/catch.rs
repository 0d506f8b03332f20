//! [`catch`], [`HookId`]: a hook that panics fails its call, and not the thread that it runs on.
//!
//! The error names the partition, the hook and the call, and has the kind [`ErrorKind::HookPanicked`].
//!
//! A call that has no error to return goes on unwinding, with that error as its payload; the engine
//! makes such calls through [`catch`]. The calls of a filter for each entry of a job unwind up to the loop of the
//! job, which runs in [`catch_blamed`].
//!
//! A program that is built to abort on panics aborts here too.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

/// Runs `code` of a hook; a panic becomes an error. `who` names the hook if the payload of the
/// panic does not.
pub fn catch<T>(hook: &str, code: impl FnOnce() -> T) -> Result<T> {
    catch_as(ErrorKind::HookPanicked, hook, code)
}

/// Runs `code` of the engine, which fails its work by a panic and not the thread. `work` names the work.
///
/// # Errors
/// [`ErrorKind::Internal`] for a panic.
pub fn catch_engine<T>(work: &str, code: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_as(ErrorKind::Internal, work, code)?
}

/// Runs a loop of the engine that calls a hook for each entry. A panic of a call that was made through
/// `HookId::blamed` becomes an error; any other goes on.
///
/// In a profile of fills with a filter that seals, catches around each call took a hundredth of the time.
pub fn catch_blamed<T>(code: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(code)).unwrap_or_else(|payload| match BLAMED.take() {
        Some(hook) => Err(panicked(ErrorKind::HookPanicked, &hook, &*payload)),
        None => resume_unwind(payload),
    })
}

thread_local! {
    /// The call of a hook that unwinds, on its way to who catches it.
    static BLAMED: Cell<Option<String>> = const { Cell::new(None) };
}

fn catch_as<T>(kind: ErrorKind, hook: &str, code: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|payload| match payload.downcast::<Error>() {
        Ok(named) => *named,
        Err(payload) => panicked(kind, hook, &*payload),
    })
}

fn panicked(kind: ErrorKind, hook: &str, payload: &(dyn Any + Send)) -> Error {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("the payload is not text");
    Error::new(kind, format!("{hook} panicked: {text}"))
}

/// A hook and where it is attached.
#[derive(Clone)]
pub(super) struct HookId {
    pub(super) partition: Arc<str>,
    pub(super) kind: &'static str,
    pub(super) name: Arc<str>,
}

impl HookId {
    /// A call that may fail.
    pub(super) fn call<T>(&self, what: &str, code: impl FnOnce() -> Result<T>) -> Result<T> {
        catch_unwind(AssertUnwindSafe(code))
            .unwrap_or_else(|payload| Err(self.blame(what, &*payload)))
    }

    /// A call that cannot fail; its panic goes on as one that names the hook.
    pub(super) fn unwind<T>(&self, what: &str, code: impl FnOnce() -> T) -> T {
        catch_unwind(AssertUnwindSafe(code))
            // The engine catches it where it made the call, with a name that the original payload
            // does not have.
            .unwrap_or_else(|payload| resume_unwind(Box::new(self.blame(what, &*payload))))
    }

    /// A call for an entry of a loop that runs in [`catch_blamed`].
    #[inline]
    pub(super) fn blamed<T>(&self, what: &'static str, code: impl FnOnce() -> T) -> T {
        let blame = Blame { hook: self, what };
        let result = code();
        // Reached unless the call unwinds.
        std::mem::forget(blame);
        result
    }

    /// A part of the hook, which names it where it panics.
    pub(super) fn part<T>(&self, part: T) -> HookPart<T> {
        HookPart { hook: self.clone(), part: Some(part) }
    }

    #[cold]
    fn blame(&self, what: &str, payload: &(dyn Any + Send)) -> Error {
        panicked(ErrorKind::HookPanicked, &self.named(what), payload)
    }

    pub(super) fn named(&self, what: &str) -> String {
        let HookId { partition, kind, name } = self;
        format!("partition {partition:?}: {what} of the {kind} {name:?}")
    }
}

/// Names the call that it was made for when that unwinds.
struct Blame<'w> {
    hook: &'w HookId,
    what: &'static str,
}

impl Drop for Blame<'_> {
    #[cold]
    fn drop(&mut self) {
        BLAMED.set(Some(self.hook.named(self.what)));
    }
}

/// A part of a hook, which is dropped as it is called: a panic ends there.
pub(super) struct HookPart<T> {
    pub(super) hook: HookId,
    /// There until it is dropped.
    part: Option<T>,
}

impl<T> HookPart<T> {
    pub(super) fn get(&self) -> &T {
        self.part.as_ref().expect("only the drop takes it")
    }

    pub(super) fn get_mut(&mut self) -> (&HookId, &mut T) {
        (&self.hook, self.part.as_mut().expect("only the drop takes it"))
    }
}

impl<T> Drop for HookPart<T> {
    fn drop(&mut self) {
        let part = self.part.take();
        let dropped = self.hook.call("drop", || {
            drop(part);
            Ok(())
        });
        if let Err(error) = dropped {
            // It has done its work, and no one waits for this.
            tracing::error!(%error, "a hook panicked");
        }
    }
}
