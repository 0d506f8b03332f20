//! Requests on their way to the nodes of a cluster: the primary and its readers.
//!
//! ```text
//! choice   the node for a request: a pure function      cluster  the nodes, and what is known about them
//! item     one request: its level, policy, cursor       link     a connection to a node
//! session  the state of a client                        client   attempts, order, outcomes
//! router   a server in front of it                      sink     replies on their way
//! figures  metrics and health of a router              page     its page for people
//! dialer   makes connections to nodes
//! ```

mod choice;
mod client;
mod cluster;
mod dialer;
mod figures;
mod item;
pub(crate) mod link;
mod page;
mod router;
mod session;
mod sink;

pub use choice::Policy;
pub use client::Client;
pub use cluster::{Cluster, ClusterOptions, Nodes};
pub use router::{Router, RouterOptions};
