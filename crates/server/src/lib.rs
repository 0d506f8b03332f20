//! A siltstone database over TCP, by the protocol of Redis (RESP2 and RESP3), with a consistency level for each read.
//!
//! One process is the primary and writes. Others are readers of the same folder or bucket; each serves the levels of
//! [`siltstone::secondary`], and can be promoted while it runs. The page `docs/service.md` of the repository has the
//! commands, the guarantees, the limits and the differences to Redis.
//!
//! ```text
//! server      start and end                connection   one connection
//! front       connections, threads, limits route        a router for the nodes of a cluster
//! stream      what carries their bytes    tls           certificates and handshakes
//! request     bytes to requests            reply        replies to bytes
//! budget      bytes of incomplete requests
//! execute     one request                  commands     their table
//! session     the state of a connection    users        passwords and rights
//! strings keys    commands on data         view         a partition for them
//! cursors     places of walks
//! reads level     a read at its level      scid         the commands of levels
//! predict     a level for reads without one
//! transactions    WATCH and EXEC           info         INFO, CONFIG, COMMAND
//! node place      roles, and their change  metrics pages   figures and health
//! exposition      the text of Prometheus   http            pages over HTTP
//! page            HTML for people          health          why a database is not well
//! latencies       times of reads                   shards          hash slots, and their moves
//! signals         the end of a process
//! ```
//!
//! # Examples
//! ```
//! use std::io::{Read, Write};
//! use std::net::TcpStream;
//!
//! use server::{Options, Place, Role, Server};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path();
//! let options = Options { listen: "127.0.0.1:0".to_owned(), ..Options::default() }; // any free port
//! let server = Server::start(Place::folder(path), Role::Primary, options)?;
//!
//! let mut client = TcpStream::connect(server.address())?;
//! client.write_all(b"SET alice admin\r\n")?;
//! let mut reply = [0; 5];
//! client.read_exact(&mut reply)?;
//! assert_eq!(&reply, b"+OK\r\n");
//! server.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arrival;
mod blob;
mod budget;
mod commands;
mod connection;
mod cursors;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod decoders;
mod execute;
mod expiry;
mod exposition;
mod failure;
mod front;
mod health;
mod http;
mod info;
mod keys;
mod known_primary;
mod latencies;
mod level;
mod metrics;
mod newest;
mod node;
mod options;
mod pace;
mod page;
mod pages;
mod parts;
mod place;
mod predict;
mod reads;
mod reply;
mod request;
mod route;
mod scid;
mod server;
mod session;
mod shards;
mod shared;
#[cfg(unix)]
mod signals;
mod storage_calls;
mod stream;
mod strings;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "no_tls.rs"]
mod tls;
mod transactions;
mod users;
mod view;

pub use level::Wanted;
pub use options::{Acknowledge, Limits, Options};
pub use place::Place;
pub use predict::Predictor;
pub use route::{Client, Cluster, ClusterOptions, Nodes, Policy, Router, RouterOptions};
pub use route::{ShardClient, Shards};
pub use server::{Role, Server};
pub use shards::{Maps, Moved, Mover, MoverOptions, OnStep, Shard, ShardMap, SlotSet, slot_of};
#[cfg(unix)]
pub use signals::Signals;
#[cfg(feature = "tls")]
pub use tls::{Log, NodeTls, ServerTls, TlsClient};
pub use users::Users;
