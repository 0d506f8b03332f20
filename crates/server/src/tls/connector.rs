//! [`Connector`]: the side of a client. It verifies the certificates of nodes, and shows its own if it has one.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::ResolvesClientCert;
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use siltstone::clock::{Clock, SystemClock};
use siltstone::{Error, ErrorKind, Result};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::counts::{Counts, is_of_tls, reason_of};
use super::files::{Content, Identity, warning};
use super::renewed::Renewed;
use super::{NodeTls, failed, say};
use crate::exposition::Exposition;
use crate::stream::Stream;

/// The side of a client of nodes.
pub(crate) struct Connector {
    options: NodeTls,
    clock: Arc<dyn Clock>,
    config: Renewed<ClientConfig>,
    counts: Counts,
}

impl Connector {
    /// Reads the files.
    pub(crate) fn open(options: NodeTls, clock: Arc<dyn Clock>) -> Result<Connector> {
        if let Some(name) = &options.name {
            server_name(name).map_err(|error| {
                Error::new(ErrorKind::InvalidArgument, format!("the name of nodes: {error}"))
            })?;
        }
        let log = options.log.clone();
        let now = clock.now();
        let config = Renewed::new(paths(&options), log, options.interval, now, |contents| {
            config(contents, &options, clock.unix_time())
        })?;
        Ok(Connector { options, clock, config, counts: Counts::default() })
    }

    /// Looks at the files, if it is time.
    pub(crate) fn look(&self) {
        self.config.look(self.clock.now(), |contents| {
            config(contents, &self.options, self.clock.unix_time())
        });
    }

    /// Completes a handshake with the node at `address` until `deadline`.
    pub(crate) async fn connect(
        &self,
        address: &str,
        stream: TcpStream,
        deadline: Instant,
    ) -> io::Result<Stream> {
        let name = self.options.name_of(address)?;
        let connector = TlsConnector::from(self.config.current());
        let done = timeout_at(deadline, connector.connect(name, stream)).await;
        // Of a limit around this call nothing would be counted.
        match done.unwrap_or_else(|_| {
            Err(io::Error::new(io::ErrorKind::TimedOut, "it was not over in time"))
        }) {
            Ok(stream) => {
                self.counts.done();
                Ok(Stream::tls(stream.into()))
            }
            Err(error) => {
                self.note(address, &error);
                Err(error)
            }
        }
    }

    /// Counts the failure of a connection that was made, if it is one of TLS: in TLS 1.3 a node refuses the certificate of a
    /// client after the client has ended its handshake.
    pub(crate) fn failed(&self, address: &str, error: &io::Error) {
        if is_of_tls(error) {
            self.note(address, error);
        }
    }

    fn note(&self, address: &str, error: &io::Error) {
        let reason = reason_of(error);
        let with = format_args!("node {address}");
        self.counts.failed(self.config.log(), with, reason, &error.to_string());
    }

    /// The figures of this side.
    pub(crate) fn figures(&self, out: &mut Exposition) {
        self.counts.figures(out, "node_tls_");
        self.config.figures(out, "node_tls_");
    }
}

/// TLS with servers on threads that may wait, such as for their pages of metrics. Cheap to clone. Files are renewed as
/// those of a router are: a broken new one keeps the one before.
#[derive(Clone)]
pub struct TlsClient(Arc<Connector>);

impl TlsClient {
    /// Reads the files of `options`.
    ///
    /// # Errors
    /// Those of the files and of the name.
    pub fn new(options: NodeTls) -> Result<TlsClient> {
        Connector::open(options, Arc::new(SystemClock::new())).map(|it| TlsClient(Arc::new(it)))
    }

    /// Prepares TLS with the server at `address`; the handshake comes with the first read or write.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for an address without a name. All others, such as a certificate that is
    /// not accepted, show at the first read or write.
    pub fn connect(
        &self,
        address: &str,
        stream: std::net::TcpStream,
    ) -> io::Result<impl Read + Write + use<>> {
        self.0.look();
        let name = self.0.options.name_of(address)?;
        let connection = ClientConnection::new(self.0.config.current(), name);
        Ok(StreamOwned::new(connection.map_err(io::Error::other)?, stream))
    }
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TlsClient").field(&self.0.options).finish()
    }
}

impl NodeTls {
    /// The name that the certificate of the node must have.
    fn name_of(&self, address: &str) -> io::Result<ServerName<'static>> {
        server_name(self.name.as_deref().unwrap_or_else(|| host_of(address)))
    }
}

/// The host of an address with a port.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

fn server_name(host: &str) -> io::Result<ServerName<'static>> {
    ServerName::try_from(host.to_owned())
        .map_err(|_| io::Error::other(format!("{host:?} is no name of a host, and no address")))
}

fn paths(options: &NodeTls) -> Vec<PathBuf> {
    let identity = options.identity.iter();
    let identity = identity.flat_map(|(certificate, key)| [certificate.clone(), key.clone()]);
    std::iter::once(options.ca.clone()).chain(identity).collect()
}

fn config(contents: &[Content], options: &NodeTls, now: Duration) -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| failed(&error))?;
    let builder = builder.with_root_certificates(contents[0].roots()?);
    let [_, certificate, key] = contents else { return Ok(builder.with_no_client_auth()) };
    let identity = Identity::of(certificate, key, &provider)?;
    if let Some(warning) = warning(&identity.validity, &certificate.path, now) {
        say(options.log.as_ref(), &format!("TLS: {warning}"));
    }
    let resolver: Arc<dyn ResolvesClientCert> =
        Arc::new(SingleCertAndKey::from(identity.certified));
    Ok(builder.with_client_cert_resolver(resolver))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::path::Path;

    use parking_lot::Mutex;

    use super::*;
    use crate::{Cluster, ClusterOptions, Nodes, Options, Place, Role, Server, ServerTls};

    fn file(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tls").join(name)
    }

    /// Asks the node at `address` once, and returns the failures that are counted and the lines of the log.
    fn ask(address: std::net::SocketAddr, tls: NodeTls) -> (Vec<String>, Vec<String>) {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = lines.clone();
        let log: super::super::Log = Arc::new(move |line| kept.lock().push(line.to_owned()));
        let mut options = ClusterOptions::new(Nodes::List(vec![address.to_string()]));
        options.tls = Some(NodeTls { log: Some(log), ..tls });
        let cluster = Cluster::new(options).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(cluster.ask());
        let mut out = Exposition::new("");
        cluster.dialer.figures(&mut out);
        let text = out.into_text();
        let failures = text.lines().filter_map(|line| {
            let line = line.strip_prefix("node_tls_handshake_failures_total{reason=")?;
            (!line.ends_with(" 0")).then(|| line.to_owned())
        });
        let lines = lines.lock().clone();
        (failures.collect(), lines)
    }

    #[test]
    fn a_node_that_is_silent_is_counted() {
        // The system accepts.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (failures, lines) = ask(listener.local_addr().unwrap(), NodeTls::new(file("ca.pem")));
        assert_eq!(failures, ["\"time\"} 1"], "{lines:?}");
        assert!(lines[0].contains("it was not over in time (time)"), "{lines:?}");
    }

    #[test]
    fn a_failure_counts_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut tls = ServerTls::new(file("server.pem"), file("server.key"));
        tls.client_ca = Some(file("ca.pem"));
        let options = Options { listen: "127.0.0.1:0".to_owned(), ..Options::default() };
        let options = Options { tls: Some(tls), http: None, ..options };
        let place = Place::folder(folder.path());
        let server = Server::start(place, Role::Primary, options).unwrap();
        // The node refuses the second one after the handshake of this side.
        for (ca, expected) in [("other-ca.pem", "\"certificate\"} 1"), ("ca.pem", "\"refused\"} 1")]
        {
            let (failures, lines) = ask(server.address(), NodeTls::new(file(ca)));
            assert_eq!(failures, [expected], "{lines:?}");
            assert_eq!(lines.len(), 1, "{lines:?}");
        }
        server.stop().unwrap();
    }

    #[test]
    fn the_name_is_that_of_the_address_or_of_the_options() {
        let mut tls = NodeTls::new("ca.pem");
        for (address, name) in [
            ("localhost:6379", "localhost"),
            ("a.b.test:1", "a.b.test"),
            ("10.0.0.1:6379", "10.0.0.1"),
            ("[::1]:6379", "::1"),
        ] {
            assert_eq!(tls.name_of(address).unwrap(), server_name(name).unwrap(), "{address}");
        }
        for wrong in ["", ":6379", "a b:1", "-:1"] {
            assert!(tls.name_of(wrong).is_err(), "{wrong}");
        }
        tls.name = Some("nodes.test".to_owned());
        assert_eq!(tls.name_of("10.0.0.1:6379").unwrap(), server_name("nodes.test").unwrap());
    }
}
