//! A server in this process, and clients that read its replies with `resp-rs`.

#![expect(clippy::unwrap_used, reason = "a test that unwraps in vain has failed")]

mod client;
mod commands;
mod expiry;
mod histories;
mod hostile;
mod levels;
mod limits;
mod linear;
mod model;
mod model_state;
mod network;
mod newest;
mod operations;
mod pages;
mod parallel;
mod partitions;
mod predict;
mod roles;
mod route;
mod route_linear;
mod route_refused;
mod route_session;
mod runs;
mod shards;
mod shards_linear;
mod shards_power;
mod shards_steps;
mod slow;
mod streams;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "tls")]
mod tls_client;
#[cfg(feature = "tls")]
mod tls_files;
#[cfg(feature = "tls")]
mod tls_route;
mod together;
