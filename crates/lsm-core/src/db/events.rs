//! What listeners are told, and when.
//!
//! Things happen under locks: a flush ends under the one that keeps flushes apart, a pressure
//! changes under the one that writers park on. So [`DbInner::tell`] only queues, and
//! [`DbInner::deliver`] calls the listeners from places that hold nothing: between two pieces of
//! background work, and at the end of calls that do such work themselves. The same events go to
//! `tracing`.
//!
//! Invariants:
//! 1. No listener is called under a lock, so it may call the database.
//! 2. A listener may run on a thread that does background work. So whatever it calls does not wait
//!    for such work: writes that had to wait are refused, as is `wait_idle`.
//! 3. Events are queued in the order in which they happened. Two threads that deliver at once may
//!    tell two of them at the same time.
//! 4. With nobody to tell nothing is queued.
//! 5. A listener that panics ends no work: the others are told of the event, and all of them of the
//!    panic, unless it was an error that they were told of.

use std::cell::Cell;
use std::collections::VecDeque;

use parking_lot::Mutex;
use tracing::Level;

use super::DbInner;
use crate::error::Error;
use crate::hooks::{Event, catch};

thread_local! {
    static IN_LISTENER: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is running a listener.
pub(super) fn in_listener() -> bool {
    IN_LISTENER.get()
}

/// Events that nobody was told yet.
#[derive(Default)]
pub(super) struct Events {
    /// A leaf: nothing else is locked while it is held.
    waiting: Mutex<VecDeque<Event>>,
    /// The last panic of a listener; a leaf as well.
    panic: Mutex<Option<Error>>,
}

impl Events {
    /// The last panic of a listener since the open.
    pub(super) fn panic(&self) -> Option<Error> {
        self.panic.lock().clone()
    }
}

/// A listener runs; dropped, also by its panic, it does no longer.
struct Telling;

impl Telling {
    fn begin() -> Telling {
        IN_LISTENER.set(true);
        Telling
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        IN_LISTENER.set(false);
    }
}

impl DbInner {
    /// Has every listener told, soon. Allowed under any lock.
    pub(super) fn tell(&self, event: &Event) {
        if !self.listeners.is_empty() || tracing::enabled!(Level::INFO) {
            self.events.waiting.lock().push_back(event.clone());
        }
    }

    /// Tells what is queued. Only where no lock is held. What happens in a listener is told when
    /// that one has returned.
    pub(super) fn deliver(&self) {
        while !in_listener() {
            // Not in the condition: its guard would live through the body.
            let next = self.events.waiting.lock().pop_front();
            let Some(event) = next else { return };
            let _telling = Telling::begin();
            trace(&event);
            for listener in &self.listeners {
                if let Err(error) = catch("an event listener", || listener.on_event(&event)) {
                    self.note_panic(&event, error);
                }
            }
        }
    }

    fn note_panic(&self, event: &Event, error: Error) {
        *self.events.panic.lock() = Some(error.clone());
        // One that panics at every event must not make a new one of each.
        if matches!(event, Event::BackgroundError(_)) {
            trace(&Event::BackgroundError(error));
        } else {
            self.tell(&Event::BackgroundError(error));
        }
    }
}

/// An event as a line of the application's log.
fn trace(event: &Event) {
    match event {
        Event::Flushed { partition, bytes, took } => {
            tracing::info!(partition, bytes, ?took, "flushed");
        }
        Event::Compacted { partition, level_from, level_to, read_bytes, written_bytes, took } => {
            let (from, to) = (level_from, level_to);
            tracing::info!(partition, from, to, read_bytes, written_bytes, ?took, "compacted");
        }
        Event::StallChanged { partition, pressure_permille, reason } => {
            tracing::info!(partition, pressure_permille, reason, "stall changed");
        }
        Event::Corruption(damage) => tracing::error!(%damage, "corruption"),
        Event::Repaired { partition, source, .. } => {
            tracing::warn!(partition, source, "repaired an entry");
        }
        Event::Quarantined { damage, .. } => tracing::error!(%damage, "an entry is beyond repair"),
        Event::BackgroundError(error) => tracing::error!(%error, "background work failed"),
        Event::Resumed => tracing::info!("writes are taken again"),
    }
}
