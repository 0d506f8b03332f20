//! [`Rows`]: a scan in parts, each read by one call on a thread that may block.

use std::collections::VecDeque;

use lsm_core::error::{Error, Result};
use lsm_core::types::{Process, Slice};
use tokio::task::{JoinHandle, spawn_blocking};

#[cfg(doc)]
use super::Async;
use super::outcome;

/// Rows that one call on another thread reads at most, so that the change of threads costs little.
const ROWS_AT_ONCE: usize = 256;

/// Bytes of keys and values after which such a call ends.
const BYTES_AT_ONCE: usize = 256 << 10;

/// Rows that were read at once, and the reason why reading ended after them, if it did.
struct Part<R> {
    range: R,
    rows: VecDeque<(Slice, Slice)>,
    end: Option<Result<()>>,
}

/// Reads the next rows of a range.
fn read_part<R: Iterator<Item = Result<(Slice, Slice)>>>(mut range: R) -> Part<R> {
    let mut rows = VecDeque::new();
    let mut bytes = 0;
    // By bytes as well: large values would otherwise fill the memory before the first row is taken.
    while rows.len() < ROWS_AT_ONCE && bytes < BYTES_AT_ONCE {
        match range.next() {
            Some(Ok((key, value))) => {
                bytes += key.len() + value.len();
                rows.push_back((key, value));
            }
            // Kept until the rows before it are handed out, as a plain iterator would.
            Some(Err(error)) => return Part { range, rows, end: Some(Err(error)) },
            None => return Part { range, rows, end: Some(Ok(())) },
        }
    }
    Part { range, rows, end: None }
}

/// The rows of a range for async code: [`Async::rows`]. Reads some hundred rows at a time on a thread
/// that may block.
///
/// A future of [`Rows::next`] that is dropped loses no row.
pub struct Rows<R> {
    /// Rows that were read, and not returned yet.
    ready: VecDeque<(Slice, Slice)>,
    rest: UnreadRows<R>,
    process: Process,
}

/// The rows after those that were read.
enum UnreadRows<R> {
    Unread(R),
    /// A thread is reading. Kept here, so that the rows are not lost if the future is dropped.
    Reading(JoinHandle<Result<Part<R>>>),
    /// There are none, or reading failed.
    Over(Option<Error>),
}

impl<R> Rows<R>
where
    R: Iterator<Item = Result<(Slice, Slice)>> + Send + 'static,
{
    pub(super) fn new(range: R) -> Rows<R> {
        Rows {
            ready: VecDeque::new(),
            rest: UnreadRows::Unread(range),
            process: Process::current(),
        }
    }

    /// Returns the next key and its value; `None` after the last.
    ///
    /// # Errors
    /// Those of reading. The rows are over then.
    pub async fn next(&mut self) -> Result<Option<(Slice, Slice)>> {
        loop {
            if let Some(row) = self.ready.pop_front() {
                return Ok(Some(row));
            }
            // In a child the thread that reads does not exist.
            self.process.check()?;
            if let UnreadRows::Reading(reading) = &mut self.rest {
                // The thread has the range. The handle stays in `self` while it is awaited.
                let read = reading.await;
                self.rest = UnreadRows::Over(None);
                let part = outcome(read)?;
                self.ready = part.rows;
                self.rest = match part.end {
                    None => UnreadRows::Unread(part.range),
                    Some(end) => UnreadRows::Over(end.err()),
                };
                continue;
            }
            match std::mem::replace(&mut self.rest, UnreadRows::Over(None)) {
                UnreadRows::Unread(range) => {
                    self.rest = UnreadRows::Reading(spawn_blocking(move || Ok(read_part(range))));
                }
                // Once. `replace` has left the rows over, so that the next call returns `None`, as
                // a fused iterator does.
                UnreadRows::Over(Some(failure)) => return Err(failure),
                UnreadRows::Over(None) | UnreadRows::Reading(_) => return Ok(None),
            }
        }
    }
}
