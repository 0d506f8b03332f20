//! What listeners are told, and when.
//!
//! Things happen under locks: a flush ends under the one that keeps flushes apart, a pressure
//! changes under the one that writers park on. So [`DbInner::tell`] only queues, and
//! [`DbInner::deliver`] calls the listeners from places that hold nothing: between two pieces of
//! background work, and at the end of calls that do such work themselves. The same events go to
//! `tracing`, at once.
//!
//! Invariants:
//! 1. No listener is called under a lock, so it may call the database.
//! 2. Events are queued in the order in which they happened. Two threads that deliver at once may
//!    tell two of them at the same time.
//! 3. Without a listener nothing is queued.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::DbInner;
use crate::hooks::Event;

/// Events that nobody was told yet.
#[derive(Default)]
pub(super) struct Events {
    /// A leaf: nothing else is locked while it is held.
    waiting: Mutex<VecDeque<Event>>,
}

impl DbInner {
    /// Has every listener told, soon. Allowed under any lock.
    pub(super) fn tell(&self, event: &Event) {
        trace(event);
        if !self.listeners.is_empty() {
            self.events.waiting.lock().push_back(event.clone());
        }
    }

    /// Tells what is queued. Only where no lock is held.
    pub(super) fn deliver(&self) {
        if self.listeners.is_empty() {
            return;
        }
        loop {
            // Not in the condition: its guard would live through the body.
            let next = self.events.waiting.lock().pop_front();
            let Some(event) = next else { return };
            self.listeners.iter().for_each(|listener| listener.on_event(&event));
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
