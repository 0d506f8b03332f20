//! `route`: passes requests on to the nodes of a cluster.

use std::path::PathBuf;
use std::time::Duration;

use server::{Cluster, ClusterOptions, Maps, Nodes, Policy, Router, RouterOptions, Shards};

use crate::output::{Failure, note};
use crate::serve::LimitArgs;
#[cfg(feature = "tls")]
use crate::tls::{IdentityArgs, NodeArgs, PortArgs};

/// Arguments of `route`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Addresses of the nodes: the primary and its readers, in any order
    #[arg(required_unless_present_any = ["nodes", "shards"], conflicts_with_all = ["nodes", "shards"])]
    node: Vec<String>,
    /// File of their addresses, one a line. It is read again while the router runs; add nodes at its end
    #[arg(long, value_name = "FILE")]
    nodes: Option<PathBuf>,
    /// Folder of the maps of shards, or URL of a bucket; each key goes to the shard that owns its hash slot
    #[arg(long, value_name = "PLACE", conflicts_with = "nodes")]
    shards: Option<String>,
    /// Address of the protocol
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6400")]
    listen: String,
    /// Address of the page for people at `/`, and of `/metrics`, `/healthz` and `/readyz`
    #[arg(long, value_name = "ADDRESS")]
    http: Option<String>,
    /// Nodes of strong reads: optimal (the primary), offloaded (readers) or cost
    #[arg(long, value_name = "POLICY", default_value = "cost", value_parser = policy)]
    policy: Policy,
    /// Predict the level of each GET for which neither client nor partition has one; it may be at level 5
    #[arg(long)]
    predict: bool,
    /// File with NAME PASSWORD, for asking the nodes for their roles; the user needs no rights
    #[arg(long, value_name = "FILE")]
    login: Option<PathBuf>,
    /// Milliseconds for which a request waits for a node that can serve it
    #[arg(long, value_name = "MS", default_value_t = 5000)]
    wait: u64,
    /// Milliseconds after which a node without a reply counts as lost
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    reply: u64,
    /// Most nodes that send one long value at the same time; 1 for no other than the one that is asked for it
    #[arg(long, value_name = "NODES", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    parallel: u64,
    /// Bytes from which on a value is read from several nodes, at least 1 MiB
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 20)]
    parallel_bytes: u64,
    #[cfg(feature = "tls")]
    #[command(flatten)]
    tls: PortArgs,
    #[cfg(feature = "tls")]
    #[command(flatten)]
    nodes_tls: NodeArgs,
    #[cfg(feature = "tls")]
    #[command(flatten)]
    identity: IdentityArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

fn policy(text: &str) -> Result<Policy, String> {
    Policy::parse(text).ok_or_else(|| "a policy is optimal, offloaded or cost".to_owned())
}

pub(crate) fn login(path: &PathBuf) -> Result<(String, String), Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| Failure::io("read", path, &e))?;
    let mut words = text.split_whitespace().map(str::to_owned);
    let (Some(name), Some(password)) = (words.next(), words.next()) else {
        return Err(Failure::Usage(format!("{} has no NAME PASSWORD", path.display())));
    };
    Ok((name, password))
}

/// Routes until a signal.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let nodes = match &args.nodes {
        Some(path) => Nodes::File(path.clone()),
        None => Nodes::List(args.node.clone()),
    };
    let mut options = ClusterOptions::new(nodes);
    options.policy = args.policy;
    options.predict = args.predict;
    options.login = args.login.as_ref().map(login).transpose()?;
    options.wait = Duration::from_millis(args.wait);
    options.reply = Duration::from_millis(args.reply);
    options.parallel = usize::try_from(args.parallel).unwrap_or(1);
    options.parallel_bytes = args.parallel_bytes;
    #[cfg(feature = "tls")]
    {
        options.tls = args.identity.shown(&args.nodes_tls);
    }
    let listening = RouterOptions {
        listen: args.listen.clone(),
        http: args.http.clone(),
        #[cfg(feature = "tls")]
        tls: args.tls.options(),
        limits: args.limits.limits(),
    };
    let router = match &args.shards {
        Some(place) => Router::start_shards(Shards::open(Maps::open(place)?, options)?, listening)?,
        None => Router::start_with(Cluster::new(options)?, listening)?,
    };
    note(format_args!("siltstone: router at {}", router.address()));
    router.wait_for_signal()?;
    note("siltstone: answering what was received");
    router.stop();
    Ok(())
}
