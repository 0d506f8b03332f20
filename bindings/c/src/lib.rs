//! Siltstone for C, and so for every language that can call it: `include/siltstone.h`, made by cbindgen from the functions
//! here.
//!
//! The functions are in the manner of LevelDB's `c.h`, which readers know: opaque objects, explicit lengths. `raw.rs` has
//! the safety argument for all of them, and the end of panics.
//!
//! Invariants:
//! 1. No function unwinds into its caller: each runs its work in `raw::guard` or `raw::quietly`, or only reads fields.
//! 2. A failed call changes no output but the error.
//! 3. The header says of each function that returns bytes how long they live.

#![expect(
    clippy::missing_safety_doc,
    reason = "the header states the rules, for all functions at once"
)]

pub mod batch;
pub mod db;
pub mod error;
pub mod iter;
pub mod options;
pub mod partition;
pub mod raw;
pub mod secondary;
pub mod stream;
pub mod transaction;
pub mod value;
