//! [`Events`]: the queue of events, and the calls of listeners.
//!
//! Events happen under locks: a flush ends under the one that keeps flushes apart, a pressure
//! changes under the one that writers park on. So [`Events::tell`] only queues, and
//! [`Events::deliver`] calls the listeners from places that hold no lock: between two pieces of
//! background work, and at the end of calls that do such work themselves. Calling a listener where
//! the event happens would be simpler, and would make every call of a listener to the database a
//! possible deadlock. The same events go to `tracing`.
//!
//! Invariants:
//! 1. No listener is called under a lock, so it may call the database.
//! 2. A listener may run on a thread that does background work. So its calls do not wait for such
//!    work: writes that would have to wait are refused, and so is `wait_idle`.
//! 3. Events are queued in the order in which they happened. Two threads that deliver at once may
//!    deliver two of them at the same time.
//! 4. Without listeners, and without a subscriber of `tracing` for such events, nothing is queued.
//! 5. A panic of a listener ends no work: the other listeners still get the event, and all of them
//!    get an event for the panic, unless the event was itself an error.
//! 6. Notices of durability are called at the same places and under the same rules, each once.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::Level;

use crate::error::{Error, Result};
use crate::hooks::{Event, EventListener, EventQueue, catch, trace};
use crate::types::Process;

thread_local! {
    /// The address of the [`Events`] whose listener this thread is running; 0 for none.
    static IN_LISTENER: Cell<usize> = const { Cell::new(0) };
}

/// Returns `true` if this thread is running a listener.
pub(super) fn in_listener() -> bool {
    IN_LISTENER.get() != 0
}

/// A function that hears of durability, once.
pub(super) type Notice = Box<dyn FnOnce(Result<()>) + Send>;

/// The listeners and the queue of undelivered events.
pub(super) struct Events {
    process: Process,
    listeners: Vec<Arc<dyn EventListener>>,
    /// A leaf: nothing else is locked while it is held.
    waiting: Mutex<VecDeque<Event>>,
    /// Notices that are due, with their outcome; a leaf as well.
    notices: Mutex<VecDeque<(Notice, Result<()>)>>,
    /// The last panic of a listener; a leaf as well.
    panic: Mutex<Option<Error>>,
}

/// A listener runs; the drop ends that, also after its panic.
struct ListenerGuard;

impl ListenerGuard {
    fn begin(events: &Events) -> ListenerGuard {
        IN_LISTENER.set(events.address());
        ListenerGuard
    }
}

impl Drop for ListenerGuard {
    fn drop(&mut self) {
        IN_LISTENER.set(0);
    }
}

impl Default for Events {
    fn default() -> Events {
        Events {
            process: Process::current(),
            listeners: Vec::new(),
            waiting: Mutex::default(),
            notices: Mutex::default(),
            panic: Mutex::default(),
        }
    }
}

impl Events {
    /// Events for these listeners, and for `tracing`.
    pub(super) fn new(listeners: Vec<Arc<dyn EventListener>>) -> Events {
        Events { listeners, ..Events::default() }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Returns `true` if this thread is running a listener, or a notice, of this database.
    pub(super) fn is_in_listener(&self) -> bool {
        IN_LISTENER.get() == self.address()
    }

    /// The last panic of a listener since the open.
    pub(super) fn panic(&self) -> Option<Error> {
        self.panic.lock().clone()
    }

    /// Queues an event for every listener. Allowed under any lock.
    pub(super) fn tell(&self, event: &Event) {
        if !self.listeners.is_empty() || tracing::enabled!(Level::INFO) {
            self.waiting.lock().push_back(event.clone());
        }
    }

    /// The way in for hooks.
    pub(super) fn queue(self: &Arc<Events>) -> EventQueue {
        let events = self.clone();
        EventQueue::new(move |event| events.tell(event))
    }

    /// Queues these notices. Allowed under any lock.
    pub(super) fn answer(&self, notices: Vec<Notice>, outcome: &Result<()>) {
        let answered = notices.into_iter().map(|notice| (notice, outcome.clone()));
        self.notices.lock().extend(answered);
    }

    /// Calls the listeners for the queued events. Only without a lock. Events that happen in a
    /// listener are delivered after it has returned.
    pub(super) fn deliver(&self) {
        // A listener that calls the database must not deliver inside its own call: events would be
        // reported in the wrong order.
        while !in_listener() && self.process.is_current() {
            // Before each event, so that a long queue of events does not delay callers that wait
            // for durability.
            self.call_notices();
            // Not in the condition: its guard would live through the body.
            let next = self.waiting.lock().pop_front();
            let Some(event) = next else { return };
            let _telling = ListenerGuard::begin(self);
            trace(&event);
            for listener in &self.listeners {
                if let Err(error) = catch("an event listener", || listener.on_event(&event)) {
                    // A listener that panics at every event must not cause a new event for each.
                    self.note_panic(error, !matches!(event, Event::BackgroundError(_)));
                }
            }
        }
    }

    fn call_notices(&self) {
        loop {
            let next = self.notices.lock().pop_front();
            let Some((notice, outcome)) = next else { return };
            let _telling = ListenerGuard::begin(self);
            if let Err(error) = catch("a notice of durability", || notice(outcome)) {
                self.note_panic(error, true);
            }
        }
    }

    fn note_panic(&self, error: Error, is_reported: bool) {
        *self.panic.lock() = Some(error.clone());
        if is_reported {
            self.tell(&Event::BackgroundError(error));
        } else {
            trace(&Event::BackgroundError(error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    /// Notes its events; panics at a resume.
    #[derive(Default)]
    struct Notes(Mutex<Vec<String>>);

    impl EventListener for Notes {
        fn on_event(&self, event: &Event) {
            assert!(in_listener());
            self.0.lock().push(match event {
                Event::BackgroundError(error) => error.to_string(),
                other => format!("{other:?}"),
            });
            assert!(!matches!(event, Event::Resumed), "not this one");
        }
    }

    fn failed(message: &str) -> Event {
        Event::BackgroundError(Error::new(ErrorKind::Io, message))
    }

    #[test]
    fn events_wait_until_they_are_delivered_and_keep_their_order() {
        let notes = Arc::new(Notes::default());
        let events = Events::new(vec![notes.clone()]);
        events.tell(&failed("first"));
        events.tell(&failed("second"));
        assert!(notes.0.lock().is_empty());
        events.deliver();
        assert_eq!(*notes.0.lock(), ["first", "second"]);
        assert!(!in_listener());
    }

    #[test]
    fn a_listener_that_panics_ends_nothing_but_its_call() {
        let notes = Arc::new(Notes::default());
        let after = Arc::new(Notes::default());
        let events = Events::new(vec![notes.clone(), after.clone()]);
        events.tell(&Event::Resumed);
        events.tell(&failed("later"));
        events.deliver();
        let received = after.0.lock().clone();
        assert_eq!(received[..2], ["Resumed", "later"]);
        let has_panic = received[2].contains("not this one");
        assert!(has_panic, "all get the event of the panic: {received:?}");
        assert!(events.panic().is_some() && !in_listener());
    }

    #[test]
    fn with_no_one_to_notify_nothing_is_kept() {
        let events = Events::new(Vec::new());
        events.tell(&failed("unheard"));
        assert!(events.waiting.lock().is_empty());
    }
}
