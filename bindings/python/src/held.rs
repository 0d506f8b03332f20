//! [`Held`]: what an object of Python has of the engine, until Python frees the object.
//!
//! Python frees an object on any thread that runs its code, and the last object of a database closes it. A close waits
//! for jobs, and a job may wait for Python, to call a hook: so what is held goes while Python is released.
//!
//! Invariants:
//! 1. Without hooks of Python in this process, what is held goes at once, as it would without this.
//! 2. On a thread that runs a hook nothing is closed: the close could wait for the job that has called the hook.
//! 3. After the end of hooks nothing is closed: a hook may never return, and the interpreter ends. The next open recovers,
//!    as after a kill.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::thread;

use pyo3::prelude::*;

use crate::hooks;

/// Something of the engine.
pub struct Held<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Held<T> {
    /// Holds `what`.
    pub fn new(what: T) -> Held<T> {
        Held(Some(what))
    }
}

impl<T: Send + 'static> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("only the drop takes it")
    }
}

impl<T: Send + 'static> Drop for Held<T> {
    fn drop(&mut self) {
        if !hooks::are_used() {
            return;
        }
        // Not freed where no one takes it out: by a thread that does not start, and by an interpreter that ends.
        let Some(held) = self.0.take().map(ManuallyDrop::new) else { return };
        if hooks::is_in_hook() {
            let freeing = thread::Builder::new().name("siltstone-free".to_owned());
            let _ = freeing.spawn(move || drop(ManuallyDrop::into_inner(held)));
        } else if !hooks::are_refused() {
            Python::try_attach(|py| py.detach(move || drop(ManuallyDrop::into_inner(held))));
        }
    }
}
