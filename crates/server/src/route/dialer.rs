//! [`Dialer`]: makes connections to nodes, with TLS or without.

use std::io;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use crate::exposition::Exposition;
use crate::stream::Stream;
use crate::tls::Connector;

/// Makes connections to nodes.
pub(crate) struct Dialer {
    tls: Option<Connector>,
}

impl Dialer {
    pub(crate) fn new(tls: Option<Connector>) -> Dialer {
        Dialer { tls }
    }

    /// Connects until `deadline`.
    pub(crate) async fn dial(&self, address: &str, deadline: Instant) -> io::Result<Stream> {
        let stream = timeout_at(deadline, TcpStream::connect(address)).await??;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => Ok(Stream::Plain(stream)),
            Some(tls) => tls.connect(address, stream, deadline).await,
        }
    }

    /// Takes up files that have changed, if it is time to look.
    pub(crate) fn look(&self) {
        if let Some(tls) = &self.tls {
            tls.look();
        }
    }

    /// Counts the failure of a connection that was made, if it is one of TLS.
    pub(crate) fn failed(&self, address: &str, error: &io::Error) {
        if let Some(tls) = &self.tls {
            tls.failed(address, error);
        }
    }

    /// The figures of TLS to nodes.
    pub(crate) fn figures(&self, out: &mut Exposition) {
        if let Some(tls) = &self.tls {
            tls.figures(out);
        }
    }
}
