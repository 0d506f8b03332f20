//! [`PutRefusal`]: a value of the application that could not be written, for reports of the health.
//!
//! An application may put only large values. Then no other report shows that all of them are
//! refused.

use std::sync::Arc;

use lsm_core::error::{Error, ErrorKind, Result};

use crate::shared::Shared;

/// The last value of the application that could not be written, with its error.
#[derive(Clone, Debug)]
pub struct PutRefusal {
    error: Error,
    /// Bytes that the value takes, as far as they were known.
    needs: u64,
    /// Bytes that were free then.
    free: u64,
}

impl Shared {
    /// Notes how a value of about `bytes` bytes was written.
    pub(crate) fn note_put_outcome<T>(&self, bytes: u64, outcome: &Result<T>) {
        let refusal = match outcome {
            Ok(_) => None,
            // Others concern the value, or the whole database.
            Err(error) if !matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Io) => return,
            Err(error) => {
                let free = self.free_bytes();
                Some(PutRefusal { error: error.clone(), needs: bytes, free })
            }
        };
        self.state.lock().refusal = refusal;
    }

    /// The reason why the last value was refused, unless there is room for it by now.
    pub(crate) fn present_refusal(self: &Arc<Self>) -> Option<Error> {
        let PutRefusal { error, needs, free } = self.state.lock().refusal.clone()?;
        if error.kind() != ErrorKind::NoSpace {
            return Some(error);
        }
        // More than there was, too: a quota may refuse what the disk has room for.
        (self.free_bytes() <= needs.max(free)).then_some(error)
    }
}
