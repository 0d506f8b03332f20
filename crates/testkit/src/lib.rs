//! The common part of tests, benches and the command: goldens, seeded randomness, a model to
//! compare with, and workloads. It knows no engine type, so that it can test any engine.
//!
//! - [`hexdump`] and [`golden`]: bytes and texts that a person can review.
//! - [`rng`]: the only source of randomness in tests; a seed is a reproduction.
//! - [`model`]: the oracle, an ordered map that keeps every version.
//! - [`mutation`]: changed bytes, for decoders.
//! - [`child`]: tests in a process of their own.
//! - [`linear`]: a checker of linearizability for registers.
//! - [`workload`]: YCSB mixes, key and value generators.
//! - `bench` (a feature): runs the workloads on any engine and measures them.

#[cfg(feature = "bench")]
pub mod bench;
pub mod child;
pub mod golden;
pub mod hexdump;
pub mod linear;
pub mod model;
pub mod mutation;
pub mod rng;
pub mod workload;

pub use golden::assert_golden;
pub use hexdump::annotate;
pub use mutation::mutate;
pub use rng::Rng;
