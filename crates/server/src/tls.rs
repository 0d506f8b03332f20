//! TLS of servers, routers and clients of nodes, by rustls with the ciphers of ring.
//!
//! ```text
//! files      certificates and keys from files    validity   the dates of a certificate
//! renewed    files that are read again           counts     handshakes and their failures
//! acceptor   the side of a server                connector  the side of a client
//! ```
//!
//! Invariants:
//! 1. A key is in no text: errors name files.
//! 2. A connection that has not ended its handshake has no place among the clients, and no session.

mod acceptor;
mod connector;
mod counts;
mod files;
mod renewed;
mod validity;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use acceptor::{Acceptor, begin, end_oldest, of_pages};
pub(crate) use connector::Connector;
pub use connector::TlsClient;

use siltstone::{Error, ErrorKind};

/// Takes a line of the log: failed handshakes, certificates that were renewed or cannot be. Of each kind of failed
/// handshakes the first, second, fourth and so on has a line, so that no one fills a log.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// The certificate of a server or a router, whose ports speak TLS with it.
///
/// The files are read again while the server runs. New connections get what is in them; a file that cannot be used changes
/// nothing, and is named in the log and counted.
///
/// # Examples
/// ```no_run
/// use server::{Options, Place, Role, Server, ServerTls};
///
/// let mut tls = ServerTls::new("server.pem", "server.key");
/// tls.client_ca = Some("clients-ca.pem".into()); // clients must show a certificate
/// let options = Options { tls: Some(tls), ..Options::default() };
/// let server = Server::start(Place::folder("db"), Role::Primary, options)?;
/// # server.stop()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ServerTls {
    /// File of the certificate, and of those between it and a CA, as PEM.
    pub certificate: PathBuf,
    /// File of its private key, as PEM: PKCS#8, PKCS#1 or SEC1, without a passphrase.
    pub key: PathBuf,
    /// File of the CAs whose client certificates the port of the protocol asks for; a client without one is refused.
    /// Default: clients need none.
    pub client_ca: Option<PathBuf>,
    /// Time between two looks at the files. Default: 10 s.
    pub interval: Duration,
    /// The longest time of a handshake. Default: 10 s.
    pub handshake: Duration,
    /// Handshakes at one time; one more ends the oldest of them. Default: 1,000.
    pub handshakes: usize,
    /// The log. Default: none.
    pub log: Option<Log>,
}

impl ServerTls {
    /// The defaults, for these files.
    pub fn new(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> ServerTls {
        ServerTls {
            certificate: certificate.into(),
            key: key.into(),
            client_ca: None,
            interval: INTERVAL,
            handshake: Duration::from_secs(10),
            handshakes: 1_000,
            log: None,
        }
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls")
            .field("certificate", &self.certificate)
            .field("key", &self.key)
            .field("client_ca", &self.client_ca)
            .finish_non_exhaustive()
    }
}

/// TLS to nodes: their certificates are verified, with their names.
///
/// The files are read again as those of [`ServerTls`] are.
///
/// # Examples
/// ```no_run
/// use server::{Cluster, ClusterOptions, NodeTls, Nodes};
///
/// let nodes = Nodes::List(vec!["db1.test:6379".to_owned(), "db2.test:6379".to_owned()]);
/// let mut options = ClusterOptions::new(nodes);
/// options.tls = Some(NodeTls::new("ca.pem"));
/// let cluster = Cluster::new(options)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct NodeTls {
    /// File of the CAs that the certificates of nodes must come from, as PEM. Those of the system are not used.
    pub ca: PathBuf,
    /// Files of the certificate and key that are shown to nodes that ask for them. Default: none.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that certificates of nodes must have. Default: the host of the address of the node. Nodes with addresses
    /// that no certificate has, such as pods, need it.
    pub name: Option<String>,
    /// Time between two looks at the files. Default: 10 s.
    pub interval: Duration,
    /// The log. Default: none.
    pub log: Option<Log>,
}

impl NodeTls {
    /// The defaults, for nodes whose certificates come from these CAs.
    pub fn new(ca: impl Into<PathBuf>) -> NodeTls {
        NodeTls { ca: ca.into(), identity: None, name: None, interval: INTERVAL, log: None }
    }
}

impl fmt::Debug for NodeTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeTls")
            .field("ca", &self.ca)
            .field("identity", &self.identity)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Time between two looks at files.
const INTERVAL: Duration = Duration::from_secs(10);

/// A failure that is none of a file.
fn failed(error: &rustls::Error) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("cannot use TLS: {error}"))
}

fn say(log: Option<&Log>, text: &str) {
    if let Some(log) = log {
        log(text);
    }
}
