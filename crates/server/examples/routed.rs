//! A program that is its own router: `server::Client` sends each request to a node that can serve it. Reads by level, tokens
//! that pass from one session to another, and reads that are sent to readers.
//!
//! `cargo run -p siltstone-server --example routed`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::sync::Arc;

use server::{Client, Cluster, ClusterOptions, Nodes, Options, Place, Role, Server};

/// The value of a reply that is one bulk string: `$5\r\nadmin\r\n`.
fn value(reply: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(reply).ok()?;
    text.strip_prefix('$')?.split_once("\r\n")?.1.strip_suffix("\r\n")
}

async fn run(cluster: Arc<Cluster>) -> Result<(), Box<dyn Error>> {
    // A session: its requests take effect in their order, whatever the nodes are. The number chooses among equal nodes.
    let mut writer = Client::new(cluster.clone(), 1);
    // A write goes to the primary.
    assert_eq!(writer.call(&["SET", "alice", "admin"]).await, "+OK\r\n");

    // Level 1 sees all that was acknowledged before the read began. The policy `offloaded` has a reader serve it, which
    // catches up first.
    let strong = ["SCID.GET", "alice", "LEVEL", "1", "ROUTE", "offloaded"];
    assert_eq!(value(&writer.call(&strong).await), Some("admin"));
    let served = writer.call(&["SCID.LAST"]).await;
    println!("served as {}", String::from_utf8_lossy(&served).replace("\r\n", " "));

    // A token is a commit that this session has written or seen. Another session, perhaps in another process, reads at
    // level 3 with it: it sees that commit and all before it.
    assert_eq!(writer.call(&["SET", "alice", "author"]).await, "+OK\r\n");
    let token = writer.call(&["SCID.TOKEN"]).await;
    let token = value(&token).ok_or("the session has written")?;
    println!("the token is {token}");
    let mut other = Client::new(cluster, 2);
    let read = ["SCID.GET", "alice", "LEVEL", "3", "TOKEN", token];
    assert_eq!(value(&other.call(&read).await), Some("author"));

    // From now on all reads of the session are at level 3, and it never goes back to before what it has seen.
    assert_eq!(other.call(&["SCID.LEVEL", "3"]).await, "+OK\r\n");
    assert_eq!(value(&other.call(&["GET", "alice"]).await), Some("author"));

    // Level 5 takes what the less loaded of two readers has, and may be old.
    let newest = other.call(&["SCID.GET", "alice", "LEVEL", "5"]).await;
    println!("a reader has {:?} now", value(&newest));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let options = Options { listen: "127.0.0.1:0".to_owned(), ..Options::default() };
    let place = Place::folder(folder.path());
    let primary = Server::start(place.clone(), Role::Primary, options.clone())?;
    let readers = [
        Server::start(place.clone(), Role::Reader, options.clone())?,
        Server::start(place, Role::Reader, options)?,
    ];
    let nodes = std::iter::once(&primary).chain(&readers).map(|it| it.address().to_string());
    // What is known about the nodes; all sessions of the program share it.
    let cluster = Arc::new(Cluster::new(ClusterOptions::new(Nodes::List(nodes.collect())))?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(cluster))?;

    for reader in readers {
        reader.stop()?;
    }
    primary.stop()?;
    Ok(())
}
