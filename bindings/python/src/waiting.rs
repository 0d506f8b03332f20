//! Waits that Ctrl-C ends: they are made of short ones, and the signals of Python are handled between them.
//!
//! Python handles a signal on its main thread alone, and not while a call waits outside of it. A wait that is interrupted
//! has changed nothing: what it has waited for may be waited for again.

use std::time::Duration;

use pyo3::prelude::*;
use siltstone::clock::{Clock, SystemClock};

use crate::error::Result;
use crate::hooks::Outside;

/// The longest wait without a look at the signals.
const PIECE: Duration = Duration::from_millis(50);

/// Calls `wait` with short times until it returns something, or until `timeout` has passed.
///
/// # Errors
/// Those of `wait`; the exception of a signal.
pub fn in_pieces<T: Send>(
    py: Python<'_>,
    timeout: Duration,
    mut wait: impl FnMut(Duration) -> siltstone::Result<Option<T>> + Send,
) -> Result<Option<T>> {
    let clock = SystemClock::default();
    let begun = clock.now();
    loop {
        let left = timeout.saturating_sub(clock.now().saturating_sub(begun));
        let found = py.outside(|| wait(left.min(PIECE)))??;
        if found.is_some() || left <= PIECE {
            return Ok(found);
        }
        py.check_signals()?;
    }
}
