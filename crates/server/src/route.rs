//! Requests on their way to the nodes of a cluster: the primary and its readers.
//!
//! ```text
//! choice   the node for a request: a pure function      cluster  the nodes, and what is known about them
//! item     one request: its level, policy, cursor       link     a connection to a node
//! session  the state of a client                        client   attempts, order, outcomes
//! router   a server in front of it                      sink     replies on their way
//! figures  metrics and health of a router              page     its page for people
//! outcome  the meaning of replies                      counts   of nodes, and over all of them
//! backends the nodes of a router                       primary  a connection to a primary
//! dialer   makes connections to nodes               nodes    where the addresses of nodes are
//! shards   the map, and the nodes of each shard        sharded  the client of several shards
//! merge    requests over several shards                walks    places of walks over them
//! transaction  transactions at one shard               elements the parts of replies
//! at_once  pipelines over several shards               connection  of a client to a router
//! ```

mod at_once;
mod backends;
mod choice;
mod client;
pub(crate) mod cluster;
mod connection;
mod counts;
pub(crate) mod dialer;
mod elements;
mod figures;
mod item;
pub(crate) mod link;
mod merge;
mod nodes;
mod outcome;
mod page;
pub(crate) mod primary;
mod router;
mod session;
mod sharded;
mod shards;
mod sink;
mod transaction;
mod walks;

pub use choice::Policy;
pub use client::Client;
pub use cluster::{Cluster, ClusterOptions};
pub use nodes::Nodes;
pub use router::{Router, RouterOptions};
pub use sharded::ShardClient;
pub use shards::Shards;
