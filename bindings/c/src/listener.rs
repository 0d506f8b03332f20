//! Listeners: functions of the application that get the events of background work.
//!
//! The rules of `hooks.rs` hold for them.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use engine::hooks::ChunkChange;

use crate::error::Failure;
use crate::hooks::{Context, DestroyFn};
use crate::options::OpenOptions;
use crate::raw::{free, give, guard, in_hook, object, object_mut};

/// The kind of an event.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A kind of a later version; its text says what it is.
    SiltstoneEventUnknown = 0,
    /// A flush wrote memtables to a table.
    SiltstoneEventFlushed = 1,
    /// A compaction replaced tables by new ones.
    SiltstoneEventCompacted = 2,
    /// The delay of writers changed.
    SiltstoneEventStallChanged = 3,
    /// Damaged bytes were found.
    SiltstoneEventCorruption = 4,
    /// A damaged entry was repaired.
    SiltstoneEventRepaired = 5,
    /// A damaged entry could not be repaired.
    SiltstoneEventQuarantined = 6,
    /// A chunk file of large values was made.
    SiltstoneEventChunkCreated = 7,
    /// A chunk file takes no more values.
    SiltstoneEventChunkSealed = 8,
    /// A chunk file was removed.
    SiltstoneEventChunkReclaimed = 9,
    /// Background work failed, or a listener did.
    SiltstoneEventBackgroundError = 10,
    /// The store accepts writes again after a failure.
    SiltstoneEventResumed = 11,
    /// The calendar jumped.
    SiltstoneEventClockJumped = 12,
}

/// An event of background work. What a kind does not have is 0 or an empty text. It lives until the listener returns.
#[repr(C)]
#[derive(Debug)]
pub struct Event {
    /// A siltstone_event_kind_t.
    pub kind: u32,
    /// The name of the partition.
    pub partition: *const c_char,
    /// The damage, the error, the source of a repair, the cause of a delay, or the path of a chunk file.
    pub text: *const c_char,
    /// The length of the table of a flush, of the outputs of a compaction, or of a chunk file.
    pub bytes: u64,
    /// The length of the inputs of a compaction.
    pub read_bytes: u64,
    /// How long a flush or a compaction took.
    pub took_us: u64,
    /// The uppermost level of the inputs of a compaction.
    pub level_from: u32,
    /// The level of its outputs.
    pub level_to: u32,
    /// The delay of writers, from 0 to 1000, when they are stopped.
    pub pressure_permille: u32,
}

/// Gets an event. Called by a thread that does background work, or that asks for it, and which waits for the return. It
/// returns nothing: what fails is its own affair.
pub type EventFn = Option<unsafe extern "C" fn(context: *mut c_void, event: *const Event)>;

/// A listener of the application.
pub struct EventListener(pub(crate) Arc<dyn engine::EventListener>);

struct OwnListener {
    on_event: unsafe extern "C" fn(*mut c_void, *const Event),
    context: Context,
}

/// Makes a listener. `destroy` may be NULL; it is not called if this function fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_event_listener_create(
    context: *mut c_void,
    on_event: EventFn,
    destroy: DestroyFn,
    error: *mut *mut Failure,
) -> *mut EventListener {
    // SAFETY: contracts 1 and 5 of `raw`.
    unsafe {
        guard(error, ptr::null_mut(), || {
            let on_event = on_event.ok_or_else(|| crate::raw::null("on_event"))?;
            let context = Context { pointer: context, destroy };
            Ok(give(EventListener(Arc::new(OwnListener { on_event, context }))))
        })
    }
}

/// Frees a listener. Options and databases that use it keep what they need.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_event_listener_free(listener: *mut EventListener) {
    // SAFETY: contracts 1 and 3 of `raw`.
    unsafe { free(listener) };
}

/// Adds a listener, which gets the events of the databases that are opened with these options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siltstone_options_add_event_listener(
    options: *mut OpenOptions,
    listener: *const EventListener,
    error: *mut *mut Failure,
) -> bool {
    // SAFETY: contracts 1 and 2 of `raw`.
    unsafe {
        guard(error, false, || {
            let listener = object(listener, "listener")?.0.clone();
            object_mut(options, "options")?.listeners.push(listener);
            Ok(true)
        })
    }
}

impl engine::EventListener for OwnListener {
    fn on_event(&self, event: &engine::Event) {
        let described = Described::of(event);
        let lent = described.lent();
        // SAFETY: contract 5 of `raw`; the event and its texts are lent for the call.
        in_hook(|| unsafe { (self.on_event)(self.context.pointer, &raw const lent) });
    }
}

/// An event with its texts, which end with a zero.
struct Described {
    event: Event,
    partition: CString,
    text: CString,
}

impl Described {
    fn of(event: &engine::Event) -> Described {
        use EventKind::*;
        let mut it = Described::empty(SiltstoneEventUnknown, "", "");
        match event {
            engine::Event::Flushed { partition, bytes, took } => {
                it = Described::empty(SiltstoneEventFlushed, partition, "");
                it.event.bytes = *bytes;
                it.event.took_us = micros(*took);
            }
            engine::Event::Compacted {
                partition,
                level_from,
                level_to,
                read_bytes,
                written_bytes,
                took,
            } => {
                it = Described::empty(SiltstoneEventCompacted, partition, "");
                it.event.bytes = *written_bytes;
                it.event.read_bytes = *read_bytes;
                it.event.took_us = micros(*took);
                it.event.level_from = u32::try_from(*level_from).unwrap_or(u32::MAX);
                it.event.level_to = u32::try_from(*level_to).unwrap_or(u32::MAX);
            }
            engine::Event::StallChanged { partition, pressure_permille, reason } => {
                it = Described::empty(SiltstoneEventStallChanged, partition, reason);
                it.event.pressure_permille = *pressure_permille;
            }
            engine::Event::Corruption(damage) => {
                it = Described::of_damage(SiltstoneEventCorruption, damage);
            }
            engine::Event::Repaired { partition, source, .. } => {
                it = Described::empty(SiltstoneEventRepaired, partition, source);
            }
            engine::Event::Quarantined { damage, .. } => {
                it = Described::of_damage(SiltstoneEventQuarantined, damage);
            }
            engine::Event::ChunkChanged { partition, path, change, bytes } => {
                let kind = match change {
                    ChunkChange::Created => SiltstoneEventChunkCreated,
                    ChunkChange::Sealed => SiltstoneEventChunkSealed,
                    _ => SiltstoneEventChunkReclaimed,
                };
                it = Described::empty(kind, partition, &path.to_string_lossy());
                it.event.bytes = *bytes;
            }
            engine::Event::BackgroundError(error) => {
                it = Described::empty(SiltstoneEventBackgroundError, "", &error.to_string());
            }
            engine::Event::Resumed => it = Described::empty(SiltstoneEventResumed, "", ""),
            engine::Event::ClockJumped(jump) => {
                it = Described::empty(SiltstoneEventClockJumped, "", &jump.to_string());
            }
            other => it = Described { text: text_of(&format!("{other:?}")), ..it },
        }
        it
    }

    fn of_damage(kind: EventKind, damage: &engine::Damage) -> Described {
        let partition = damage.partition.as_deref().unwrap_or_default();
        Described::empty(kind, partition, &damage.to_string())
    }

    fn empty(kind: EventKind, partition: &str, text: &str) -> Described {
        let event = Event {
            kind: kind as u32,
            partition: ptr::null(),
            text: ptr::null(),
            bytes: 0,
            read_bytes: 0,
            took_us: 0,
            level_from: 0,
            level_to: 0,
            pressure_permille: 0,
        };
        Described { event, partition: text_of(partition), text: text_of(text) }
    }

    /// The event with pointers to its texts, which live as long as this.
    fn lent(&self) -> Event {
        Event { partition: self.partition.as_ptr(), text: self.text.as_ptr(), ..self.event }
    }
}

/// `text` up to a zero in it.
fn text_of(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}
