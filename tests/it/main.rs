//! Whole-store tests of the facade, in one binary.

#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]

mod api;
mod crash;
mod fault;
mod sim;
