//! Clients and servers with TLS.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use server::{Limits, Log, NodeTls, Options, Place, Role, Server, ServerTls};

use crate::client::options;

/// A file of the certificates for tests.
pub(crate) fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tls").join(name)
}

/// The certificate and key of this name, as a server's.
pub(crate) fn of_server(name: &str) -> ServerTls {
    ServerTls::new(file(&format!("{name}.pem")), file(&format!("{name}.key")))
}

pub(crate) fn of_nodes(identity: Option<&str>) -> NodeTls {
    let mut tls = NodeTls::new(file("ca.pem"));
    tls.identity =
        identity.map(|name| (file(&format!("{name}.pem")), file(&format!("{name}.key"))));
    tls
}

/// A log, and its lines.
pub(crate) fn log() -> (Log, Arc<Mutex<Vec<String>>>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let kept = lines.clone();
    (Arc::new(move |line: &str| kept.lock().unwrap().push(line.to_owned())), lines)
}

pub(crate) fn secure(tls: ServerTls, limits: Limits) -> Options {
    let http = Some("127.0.0.1:0".to_owned());
    Options { tls: Some(tls), limits, http, ..options() }
}

/// A primary in a new folder.
pub(crate) fn serve(tls: ServerTls, limits: Limits) -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let options = secure(tls, limits);
    let server = Server::start(Place::folder(folder.path()), Role::Primary, options).unwrap();
    (folder, server)
}

/// A client that verifies servers by the CA of the tests.
pub(crate) struct Secure(StreamOwned<ClientConnection, TcpStream>);

impl Secure {
    /// Completes a handshake. `identity` is the certificate that it shows.
    pub(crate) fn connect(address: SocketAddr, identity: Option<&str>) -> io::Result<Secure> {
        Secure::trusting("ca.pem", "localhost", address, identity)
    }

    pub(crate) fn trusting(
        ca: &str,
        name: &str,
        address: SocketAddr,
        identity: Option<&str>,
    ) -> io::Result<Secure> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(file(ca)).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(roots);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let certificate = CertificateDer::from_pem_file(file(&format!("{identity}.pem")));
                let key = PrivateKeyDer::from_pem_file(file(&format!("{identity}.key")));
                builder.with_client_auth_cert(vec![certificate.unwrap()], key.unwrap()).unwrap()
            }
        };
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream)?;
        }
        Ok(Secure(StreamOwned::new(connection, stream)))
    }

    /// The certificate of the server.
    pub(crate) fn certificate(&self) -> Vec<u8> {
        self.0.conn.peer_certificates().unwrap()[0].to_vec()
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    pub(crate) fn receive(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Sends a line, and returns whether this is the reply.
    pub(crate) fn call(&mut self, line: &str, expected: &str) -> io::Result<()> {
        self.0.write_all(format!("{line}\r\n").as_bytes())?;
        let reply = self.receive(expected.len())?;
        assert_eq!(String::from_utf8_lossy(&reply), expected, "{line}");
        Ok(())
    }

    /// All bytes to the end, which the server must announce by TLS.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).expect("the end is that of TLS");
        rest
    }
}

/// The answer of the pages.
pub(crate) fn get(address: SocketAddr, path: &str) -> String {
    let mut client = Secure::connect(address, None).unwrap();
    client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes());
    client.rest()
}

/// The value of a metric, with the labels.
pub(crate) fn metric(address: SocketAddr, name: &str) -> u64 {
    let text = get(address, "/metrics");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
}

/// Handshakes of a server that failed for a reason.
pub(crate) fn failures(server: &Server, reason: &str) -> u64 {
    let name = format!("siltstone_server_tls_handshake_failures_total{{reason=\"{reason}\"}}");
    metric(server.http_address().unwrap(), &name)
}
