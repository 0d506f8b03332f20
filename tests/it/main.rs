//! Whole-store tests of the facade, in one binary.

#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]

mod ahead;
mod allocations;
mod api;
mod application;
mod asynchronous;
mod checkpoint;
mod clear;
mod clock;
mod close;
mod compat;
mod concurrent;
mod contract;
mod corrupt;
mod crash;
mod durable;
mod exchange;
mod facade;
mod fault;
mod fixtures;
mod folder;
mod following;
mod forward;
mod fresh;
mod giving_way;
mod handles;
mod health;
mod hooks;
mod hostile;
mod kill;
mod large;
mod mapped;
mod memory;
mod metahive;
mod model;
mod panics;
mod partitions;
mod promotion;
mod queue;
mod read_only;
mod regressions;
mod replay;
mod resume;
mod rot;
mod shelf;
mod sim;
mod space;
mod store;
mod store_edits;
#[cfg(unix)]
mod strays;
mod stream;
mod transactions;
mod ttl;
mod verify;
