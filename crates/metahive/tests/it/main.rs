//! The filter driven as the engine drives it, without an engine.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod damage;
mod engine;
mod memory;
mod order;
mod seal;
mod verified_entry;
