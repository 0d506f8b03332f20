//! Databases in an object store: the calls, the crash cases, hostile objects, and a simulation with a model of
//! the commits.

#![expect(clippy::unwrap_used, reason = "a test that unwraps in vain has failed")]

mod away;
mod backups;
mod basics;
mod cache;
mod clocks;
mod compressed;
mod credentials;
mod deaths;
mod deletion;
#[cfg(feature = "encryption")]
mod encrypted;
mod files;
mod held;
mod history;
mod hostile;
mod late;
mod lost;
mod parts;
mod read_lease;
mod replica;
mod restoring;
mod same_machine;
mod sim;
mod sim_machine;
mod sim_model;
mod sim_reader;
mod sim_store;
mod store_layer;
mod stored;
mod takeover;
mod urls;
