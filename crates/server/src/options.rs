//! [`Options`] and [`Limits`] of a server.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use siltstone::clock::{Clock, SystemClock};

use crate::blob::LONG_BYTES;
use crate::level::Wanted;
use crate::request::RequestLimits;
use crate::users::Users;

/// The time at which a write is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acknowledge {
    /// When the kernel has it: it survives a killed process. A power cut loses at most the last second. This is the
    /// promise of Redis with `appendonly yes` and `appendfsync everysec`. The default for a folder.
    #[default]
    Os,
    /// When the device has it, or the bucket. All writes of a pipeline, and of all connections that wait, share a sync.
    Sync,
}

/// The bounds of a server. Each is answered with an error; the connection goes on unless its page says otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at one time; one more gets an error and ends. Default: 10,000.
    pub clients: usize,
    /// Arguments of a request. Default: 100,000.
    pub arguments: usize,
    /// Bytes of a key or value in a request. Default: 64 MiB, which is that of the engine.
    pub argument_bytes: usize,
    /// Bytes of a value that streams: that of a `SET` outside of a transaction, in a partition with
    /// [large values](crate::Options::large_values). No more than a piece of it is in memory. Default: 4 GiB.
    pub streamed_bytes: u64,
    /// Bytes of a request, and of all commands of a transaction. Default: 128 MiB.
    pub request_bytes: usize,
    /// Bytes of all requests that are not complete, and of transactions before their `EXEC`, above 64 KiB for each
    /// connection; one that needs more gets an error and ends. Default: 1 GiB.
    pub incomplete_bytes: usize,
    /// Bytes of the values of a reply. Default: 128 MiB.
    pub reply_bytes: usize,
    /// Requests of a pipeline that are answered before the first answer is sent. Default: 1,000.
    pub pipeline: usize,
    /// Bytes of answers that wait; from then on no request of the connection is read. Default: 1 MiB.
    pub output_bytes: usize,
    /// Commands and watched keys of a transaction. Default: 10,000.
    pub transaction_commands: usize,
    /// Bytes of a write above which it runs on a thread that may wait. Default: 256 KiB.
    pub inline_bytes: usize,
    /// Time without a request after which a connection ends, with an error; `None` for ever. Default: `None`.
    pub idle: Option<Duration>,
    /// Time for which an answer waits for a client that does not read; then the connection ends. Default: 60 s.
    pub write: Duration,
    /// Bytes a second that a client takes at least of answers that wait for it, after the time of [`Limits::write`]; then
    /// the connection ends. 0 for any rate. Default: 32 KiB.
    pub write_rate: u64,
    /// Time for which the end of the server waits for requests that run. Default: 10 s.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            clients: 10_000,
            arguments: 100_000,
            argument_bytes: 64 << 20,
            streamed_bytes: 4 << 30,
            request_bytes: 128 << 20,
            incomplete_bytes: 1 << 30,
            reply_bytes: 128 << 20,
            pipeline: 1_000,
            output_bytes: 1 << 20,
            transaction_commands: 10_000,
            inline_bytes: 256 << 10,
            idle: None,
            write: Duration::from_secs(60),
            write_rate: 32 << 10,
            drain: Duration::from_secs(10),
        }
    }
}

impl Limits {
    pub(crate) fn of_requests(&self) -> RequestLimits {
        RequestLimits {
            arguments: self.arguments,
            argument_bytes: self.argument_bytes,
            bytes: self.request_bytes,
            long_bytes: LONG_BYTES,
        }
    }
}

/// The options of a server.
#[derive(Clone)]
pub struct Options {
    /// The address of the protocol. Default: `127.0.0.1:6379`. Port 0 takes a free one.
    pub listen: String,
    /// The address of metrics and health. Default: none.
    pub http: Option<String>,
    /// The address that a primary notes for the clients of readers. Default: the one it listens on.
    pub announce: Option<String>,
    /// The time at which a write is answered. Default: [`Acknowledge::Os`].
    pub acknowledge: Acknowledge,
    /// The level of reads of a partition that name none. Default: [`Wanted::Auto`].
    pub levels: HashMap<String, Wanted>,
    /// Predicts the level of each `GET` and `SCID.GET` for which neither client nor partition has one. Such a read may be at
    /// level 5, and return old data: its reply can name the level, and a program that needs a level names it. Default:
    /// off, and they are at [`Wanted::Auto`].
    pub predict: bool,
    /// Partitions whose entries may expire (`SET` with `EX` or `PX`). A partition gets the rule when a primary begins. It is
    /// new or empty then, or has the rule already: a start or a promotion with another one is refused as
    /// [`ErrorKind::InvalidArgument`](siltstone::ErrorKind::InvalidArgument). Default: none.
    pub expiring: Vec<String>,
    /// Partitions whose values all begin with the time of their expiry already, as a primary of
    /// [`Options::expiring`] has stored it. They get the rule although they have entries: after an import that has not
    /// brought the rule. A value that begins with anything else may be removed. Default: none.
    pub expiring_stored: Vec<String>,
    /// Partitions whose values of 64 KiB and more are in chunk files
    /// ([`PartitionOptions::large_values`](siltstone::PartitionOptions::large_values)). Values from 1 MiB on stream there: `GET`,
    /// `GETRANGE` and `SET` hold a piece of them, and no more. A partition gets this when a primary begins, and keeps it; those
    /// that a program has made so need not be here. Its entries cannot expire. Default: none.
    pub large_values: Vec<String>,
    /// The bytes a second that flushes and compactions of a primary write together
    /// ([`Db::set_background_bytes_per_second`](siltstone::Db::set_background_bytes_per_second)); a rate below the least of the
    /// engine ends the start. Default: 0, no limit.
    pub background_bytes_per_second: u64,
    /// The name of the shard to which this node belongs. The server refuses keys of slots that the shard does not own, so all
    /// of them before the first map. Default: none, unless the database has the slots of a shard.
    pub shard: Option<String>,
    /// Time between two syncs of all partitions of a reader, which the levels 4 and 5 show; `None` for none. Default: 1 s.
    pub follow: Option<Duration>,
    /// The longest that a read waits for its level. Default: 1 s.
    pub wait: Duration,
    /// The longest that the start of a reader waits for a primary to make the database, if there is none. Other errors end
    /// the start at once. Default: 0.
    pub start_wait: Duration,
    /// TLS on both ports. Default: none.
    #[cfg(feature = "tls")]
    pub tls: Option<crate::tls::ServerTls>,
    /// Name and password with which a reader of a bucket asks the primary for its newest commit; no rights are needed. Default:
    /// none.
    pub login: Option<(String, String)>,
    /// TLS to the primary, for the same. Default: none.
    #[cfg(feature = "tls")]
    pub nodes_tls: Option<crate::tls::NodeTls>,
    /// Users and their rights. Default: no password is needed.
    pub users: Users,
    /// Bounds.
    pub limits: Limits,
    /// Threads that serve connections. Default: 4 for each core, because a read from the disk blocks one.
    pub threads: Option<usize>,
    /// The clock for times of expiry and for latencies.
    pub clock: Arc<dyn Clock>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            listen: "127.0.0.1:6379".to_owned(),
            http: None,
            announce: None,
            acknowledge: Acknowledge::Os,
            levels: HashMap::new(),
            predict: false,
            expiring: Vec::new(),
            expiring_stored: Vec::new(),
            large_values: Vec::new(),
            background_bytes_per_second: 0,
            shard: None,
            follow: Some(Duration::from_secs(1)),
            wait: Duration::from_secs(1),
            start_wait: Duration::ZERO,
            #[cfg(feature = "tls")]
            tls: None,
            login: None,
            #[cfg(feature = "tls")]
            nodes_tls: None,
            users: Users::default(),
            limits: Limits::default(),
            threads: None,
            clock: Arc::new(SystemClock::new()),
        }
    }
}
