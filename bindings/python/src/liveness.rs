//! [`Liveness`]: whether a database is open in this process.
//!
//! The engine checks each of its calls. Iterators and readers of values have data in memory that they could
//! return after a close; they ask this first, so that a closed database is an error everywhere.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use siltstone::{Error, ErrorKind, Result};

/// Whether a database is open. All objects of a database share one.
#[derive(Clone)]
pub struct Liveness(Arc<Facts>);

struct Facts {
    process: u32,
    is_closed: AtomicBool,
}

impl Liveness {
    /// Of a database that was just opened.
    pub fn new() -> Liveness {
        Liveness(Arc::new(Facts { process: process::id(), is_closed: AtomicBool::new(false) }))
    }

    /// Notes the close. Returns `false` if it was noted before.
    pub fn close(&self) -> bool {
        // Relaxed: the engine orders the close with all calls. This only tells later ones to stop.
        !self.0.is_closed.swap(true, Ordering::Relaxed)
    }

    /// Returns an error if the database is closed. Cheap enough for each entry of an iterator.
    pub fn check(&self) -> Result<()> {
        if self.0.is_closed.load(Ordering::Relaxed) { Err(Error::closed()) } else { Ok(()) }
    }

    /// [`check`](Liveness::check), and an error in a child of the process. Before any lock of this crate: one
    /// that another thread held at the fork is never free in the child.
    pub fn check_process(&self) -> Result<()> {
        self.check()?;
        if !self.is_of_parent() {
            return Ok(());
        }
        let message = "this process was forked from the process that opened the database";
        Err(Error::new(ErrorKind::Closed, message))
    }

    /// Returns `true` in a child of the process that opened the database.
    pub fn is_of_parent(&self) -> bool {
        process::id() != self.0.process
    }
}
