//! Shards: databases that share the keys of a service by hash slots.
//!
//! ```text
//! slots    the slot of a key, sets of slots     map      the shards with their slots, as an object
//! record   the slots of a shard, as an entry    maps     the maps in a folder or bucket
//! owner    turns of writes and of changes       commands what a mover asks of a primary
//! keys     the keys of a request                mover    changes of maps, and moves of slots
//! copy     the entries of moving slots          peer     the primary of a shard, for a mover
//! leftover the entries of slots that are gone
//! ```

pub(crate) mod commands;
mod copy;
pub(crate) mod keys;
pub(crate) mod leftover;
pub(crate) mod map;
pub(crate) mod maps;
mod mover;
pub(crate) mod owner;
mod peer;
pub(crate) mod record;
pub(crate) mod slots;

pub use map::{Shard, ShardMap};
pub use maps::Maps;
pub use mover::{Moved, Mover, MoverOptions, OnStep};
pub use slots::{SlotSet, slot_of};
