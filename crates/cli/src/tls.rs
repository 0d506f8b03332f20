//! The options of TLS: of the ports of a server or a router, and of their connections to nodes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use server::{Log, NodeTls, ServerTls};

use crate::output::note;

/// TLS of ports.
#[derive(Debug, clap::Args)]
pub(crate) struct PortArgs {
    /// File of the certificate, as PEM; the ports speak TLS alone. It is read again each 10 s
    #[arg(long = "tls-cert", id = "tls_cert", value_name = "FILE", requires = "tls_key")]
    certificate: Option<PathBuf>,
    /// File of its private key, as PEM
    #[arg(long = "tls-key", id = "tls_key", value_name = "FILE", requires = "tls_cert")]
    key: Option<PathBuf>,
    /// File of the CAs, as PEM, whose certificates clients must show; the pages of --http ask for none
    #[arg(long = "tls-ca", value_name = "FILE", requires = "tls_cert")]
    client_ca: Option<PathBuf>,
}

impl PortArgs {
    pub(crate) fn options(&self) -> Option<ServerTls> {
        let (certificate, key) = self.certificate.as_ref().zip(self.key.as_ref())?;
        let mut tls = ServerTls::new(certificate, key);
        tls.client_ca.clone_from(&self.client_ca);
        tls.log = Some(log());
        warn_if_open(key);
        Some(tls)
    }
}

/// TLS to nodes.
#[derive(Debug, clap::Args)]
pub(crate) struct NodeArgs {
    /// File of the CAs, as PEM, that the certificates of the nodes must come from; the nodes must speak TLS
    #[arg(long, value_name = "FILE")]
    nodes_tls_ca: Option<PathBuf>,
    /// Name that these certificates must have; without it, the host of the node's address
    #[arg(long, value_name = "NAME", requires = "nodes_tls_ca")]
    nodes_tls_name: Option<String>,
}

impl NodeArgs {
    pub(crate) fn options(&self) -> Option<NodeTls> {
        let mut tls = NodeTls::new(self.nodes_tls_ca.as_ref()?);
        tls.name.clone_from(&self.nodes_tls_name);
        tls.log = Some(log());
        Some(tls)
    }
}

/// The certificate of a client of nodes: a router, a mover, or a reader.
#[derive(Debug, clap::Args)]
pub(crate) struct IdentityArgs {
    /// File of a certificate, as PEM, for nodes that ask for one
    #[arg(long, value_name = "FILE", requires_all = ["nodes_tls_key", "nodes_tls_ca"])]
    nodes_tls_cert: Option<PathBuf>,
    /// File of its private key, as PEM
    #[arg(long, value_name = "FILE", requires = "nodes_tls_cert")]
    nodes_tls_key: Option<PathBuf>,
}

impl IdentityArgs {
    /// TLS to nodes, to which this certificate is shown.
    pub(crate) fn shown(&self, nodes: &NodeArgs) -> Option<NodeTls> {
        let identity = self.nodes_tls_cert.clone().zip(self.nodes_tls_key.clone());
        nodes.options().map(|tls| NodeTls { identity, ..tls })
    }
}

/// Says if all users can read a private key.
fn warn_if_open(key: &Path) {
    #[cfg(unix)]
    if let Ok(metadata) = std::fs::metadata(key) {
        let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777;
        if mode & 0o004 != 0 {
            let key = key.display();
            let text = format_args!("all users can read the private key in {key} (mode {mode:o})");
            note(format_args!("siltstone: TLS: {text}"));
        }
    }
    #[cfg(not(unix))]
    let _ = key;
}

fn log() -> Log {
    Arc::new(|line: &str| note(format_args!("siltstone: {line}")))
}
