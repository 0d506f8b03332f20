//! The atomics of the list, so that a model of it can be checked.

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicPtr, AtomicU16, AtomicU64, Ordering};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicPtr, AtomicU16, AtomicU64, Ordering};
