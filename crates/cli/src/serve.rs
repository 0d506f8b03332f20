//! `serve`: a database over TCP, as its primary or as a reader.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use server::{Acknowledge, Limits, Options, Place, Role, Server, Users, Wanted};
use siltstone::clock::SystemClock;

use crate::bench::folder::parse_rate;
use crate::bucket::url_of;
use crate::files::{bucket, files};
use crate::output::{Failure, note};

/// The time at which a write is answered.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Durability {
    /// The kernel has it. A power cut loses at most the last second
    Os,
    /// The device has it, or the bucket
    Sync,
}

/// Arguments of `serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the database; or URL of a bucket, for a reader that is never promoted
    database: PathBuf,
    /// Follow the primary of this folder, on this machine
    #[arg(long, conflicts_with_all = ["replica_of", "remote"])]
    secondary: bool,
    /// Follow the primary of the bucket; after a promotion the folder is that of the primary
    #[arg(long, value_name = "URL", conflicts_with = "remote")]
    replica_of: Option<String>,
    /// Be the primary of the bucket, and ship the folder to it
    #[arg(long, value_name = "URL")]
    remote: Option<String>,
    /// Milliseconds for which the next primary of the bucket waits, and this one serves level 1 from its memory; 0 for
    /// none: then each read at level 1 asks the bucket
    #[arg(long, value_name = "MS", default_value_t = 2000)]
    read_lease: u64,
    /// Address of the protocol
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6379")]
    listen: String,
    /// Address of the page for people at `/`, and of `/metrics`, `/healthz` and `/readyz`
    #[arg(long, value_name = "ADDRESS")]
    http: Option<String>,
    /// Address that a primary notes for the clients of readers; without it, that of --listen
    #[arg(long, value_name = "ADDRESS")]
    announce: Option<String>,
    /// When a write is answered; without it, `os` for a folder and `sync` for a bucket
    #[arg(long, value_enum)]
    durability: Option<Durability>,
    /// Level of the reads of a partition that name none
    #[arg(long, value_name = "PARTITION=LEVEL", value_parser = level)]
    level: Vec<(String, Wanted)>,
    /// Predict the level of each GET for which neither client nor partition has one; it may be at level 5
    #[arg(long)]
    predict: bool,
    /// Partition whose entries may expire: a new or empty one, or one that was always served so; others are refused
    #[arg(long, value_name = "PARTITION")]
    expire: Vec<String>,
    /// Partition whose values have the times of --expire already, as after an import: it gets their rule with its entries
    #[arg(long, value_name = "PARTITION")]
    expire_stored: Vec<String>,
    /// Partition whose values of 64 KiB and more are in chunk files; those from 1 MiB on stream
    #[arg(long, value_name = "PARTITION")]
    large_values: Vec<String>,
    /// Limit flushes and compactions of a primary together to so many bytes a second, such as 20MiB
    #[arg(long, value_name = "BYTES", value_parser = parse_rate)]
    background_rate: Option<u64>,
    /// Be a node of this shard: refuse keys of hash slots that it does not own, which are all before `shards create`
    #[arg(long, value_name = "NAME")]
    shard: Option<String>,
    /// Milliseconds between two syncs of a reader, which the levels 4 and 5 show; 0 for none
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    follow: u64,
    /// Threads that serve connections [default: 4 for each core, because a read from the disk blocks one]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Seconds for which a reader waits at its start for a primary to make the database
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    start_wait: u64,
    /// File of users, one a line: NAME PASSWORD [read=PARTITION,...] [write=PARTITION,...]
    #[arg(long, value_name = "FILE")]
    users: Option<PathBuf>,
    /// File with NAME PASSWORD, with which a reader of a bucket asks the primary for its newest commit; the user needs no
    /// rights
    #[arg(long, value_name = "FILE")]
    login: Option<PathBuf>,
    #[cfg(feature = "tls")]
    #[command(flatten)]
    tls: crate::tls::PortArgs,
    #[cfg(feature = "tls")]
    #[command(flatten)]
    nodes_tls: crate::tls::NodeArgs,
    #[cfg(feature = "tls")]
    #[command(flatten)]
    identity: crate::tls::IdentityArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Bounds of the server.
#[derive(Debug, clap::Args)]
pub(crate) struct LimitArgs {
    /// Connections at one time
    #[arg(long, default_value_t = 10_000)]
    clients: usize,
    /// Bytes of a key or value in a request
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    value_bytes: usize,
    /// Bytes of a value that streams
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 30)]
    streamed_bytes: u64,
    /// Bytes of a request, of a transaction and of the values of a reply
    #[arg(long, value_name = "BYTES", default_value_t = 128 << 20)]
    request_bytes: usize,
    /// Requests of a pipeline that are answered before the first answer is sent
    #[arg(long, default_value_t = 1000)]
    pipeline: usize,
    /// Seconds without a request after which a connection ends; 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    idle: u64,
    /// Seconds for which an answer waits for a client that does not read
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    write_timeout: u64,
    /// Bytes a second that a client takes at least of answers that wait for it; 0 for any
    #[arg(long, value_name = "BYTES", default_value_t = 32 << 10)]
    write_rate: u64,
    /// Seconds for which the end of the server waits for requests that run
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    drain: u64,
}

fn level(text: &str) -> Result<(String, Wanted), String> {
    let (partition, level) = text.rsplit_once('=').ok_or("PARTITION=LEVEL is needed")?;
    let level = Wanted::parse(level).ok_or("a level is 1, 2, 3, 4, 5 or AUTO")?;
    Ok((partition.to_owned(), level))
}

impl LimitArgs {
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            clients: self.clients,
            argument_bytes: self.value_bytes,
            streamed_bytes: self.streamed_bytes,
            request_bytes: self.request_bytes,
            reply_bytes: self.request_bytes,
            pipeline: self.pipeline.max(1),
            idle: (self.idle > 0).then(|| Duration::from_secs(self.idle)),
            write: Duration::from_secs(self.write_timeout),
            write_rate: self.write_rate,
            drain: Duration::from_secs(self.drain),
            ..Limits::default()
        }
    }
}

/// The database, and the role in which the server begins.
fn place(args: &Args) -> Result<(Place, Role), Failure> {
    let folder = Some(args.database.clone());
    let local = Place::folder_on(&args.database, files(), Arc::new(SystemClock::new()));
    if let Some(url) = url_of(&args.database) {
        if args.secondary || args.replica_of.is_some() || args.remote.is_some() {
            let text = "a URL in the place of the folder is that of a reader: it takes no --secondary, --replica-of \
                        and --remote";
            return Err(Failure::Usage(text.to_owned()));
        }
        return Ok((Place::bucket(bucket(url)?, None), Role::Reader));
    }
    let lease = Duration::from_millis(args.read_lease);
    match (&args.replica_of, &args.remote) {
        (Some(url), _) => Ok((Place::bucket(bucket(url)?.read_lease(lease), folder), Role::Reader)),
        (None, Some(url)) => {
            Ok((Place::bucket(bucket(url)?.read_lease(lease), folder), Role::Primary))
        }
        (None, None) if args.secondary => Ok((local, Role::Reader)),
        (None, None) => Ok((local, Role::Primary)),
    }
}

fn users(args: &Args) -> Result<Users, Failure> {
    let Some(path) = &args.users else { return Ok(Users::default()) };
    let text = std::fs::read_to_string(path).map_err(|e| Failure::io("read", path, &e))?;
    Users::parse(&text).map_err(|wrong| Failure::Usage(format!("{}: {wrong}", path.display())))
}

/// Serves until a signal.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let (place, role) = place(args)?;
    let is_bucket = args.replica_of.is_some() || args.remote.is_some();
    let mut options = Options::default();
    options.listen.clone_from(&args.listen);
    options.http.clone_from(&args.http);
    options.announce.clone_from(&args.announce);
    options.acknowledge = match args.durability {
        Some(Durability::Os) => Acknowledge::Os,
        Some(Durability::Sync) => Acknowledge::Sync,
        None if is_bucket => Acknowledge::Sync,
        None => Acknowledge::Os,
    };
    options.levels = args.level.iter().cloned().collect();
    options.predict = args.predict;
    options.threads = args.threads.map(usize::from);
    options.expiring.clone_from(&args.expire);
    options.expiring_stored.clone_from(&args.expire_stored);
    options.large_values.clone_from(&args.large_values);
    options.background_bytes_per_second = args.background_rate.unwrap_or(0);
    options.shard.clone_from(&args.shard);
    options.follow = (args.follow > 0).then(|| Duration::from_millis(args.follow));
    options.start_wait = Duration::from_secs(args.start_wait);
    options.users = users(args)?;
    options.limits = args.limits.limits();
    options.login = args.login.as_ref().map(crate::route::login).transpose()?;
    #[cfg(feature = "tls")]
    {
        options.tls = args.tls.options();
        options.nodes_tls = args.identity.shown(&args.nodes_tls);
    }
    let server = Server::start(place, role, options)?;
    let name = if role == Role::Primary { "primary" } else { "reader" };
    note(format_args!("siltstone: {name} of {} at {}", args.database.display(), server.address()));
    server.wait_for_signal()?;
    note("siltstone: answering what was received");
    Ok(server.stop()?)
}
