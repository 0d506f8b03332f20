//! Siltstone for C, and so for every language that can call it: `include/siltstone.h`, made by cbindgen from the functions
//! here.
//!
//! The functions are in the manner of LevelDB's `c.h`, which readers know: opaque objects, explicit lengths. `raw.rs` has
//! the safety argument for all of them, and the end of panics.
//!
//! Invariants:
//! 1. No function unwinds into its caller: each runs its work in `raw::guard` or `raw::quietly`, or only reads fields.
//! 2. A failed call changes no output but the error.
//! 3. No function waits for a hook that is called by the same thread: `raw::guard` refuses it.
//! 4. The header says of each function that returns bytes how long they live.

#![expect(
    clippy::missing_safety_doc,
    reason = "the header states the rules, for all functions at once"
)]

pub mod backup;
pub mod batch;
pub mod changes;
pub mod db;
pub mod error;
pub mod exchange;
pub mod hooks;
pub mod iter;
pub mod listener;
pub mod options;
pub mod partition;
pub mod raw;
pub mod resources;
pub mod scan;
pub mod secondary;
pub mod stream;
pub mod transaction;
pub mod value;
