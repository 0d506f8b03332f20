//! [`Acceptor`]: the side of a server. Its certificate, and handshakes within limits.
//!
//! A connection that has not ended its handshake is cheap for its client, and can be held open for nothing. Such
//! connections are bounded by time and number, apart from the clients: one too many ends the oldest one, so that a crowd
//! of them stops no one who is faster.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::SingleCertAndKey;
use siltstone::Result;
use siltstone::clock::Clock;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::counts::{Counts, Reason, reason_of};
use super::files::{Content, Identity, warning, wrong};
use super::renewed::Renewed;
use super::{ServerTls, say};
use crate::exposition::Exposition;
use crate::front::Front;
use crate::request::TLS_HANDSHAKE;
use crate::stream::Stream;

/// For clients of the protocol without TLS.
const PLAIN: &[u8] = b"-ERR this port speaks TLS, and these bytes are none\r\n";
/// For those of the pages.
const PLAIN_PAGE: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\nthis port speaks TLS: use https\n";

/// The certificate in use.
struct Configs {
    requests: Arc<ServerConfig>,
    /// Without certificates of clients: probes and collectors of metrics have none.
    pages: Arc<ServerConfig>,
    /// The end of the certificate, in seconds from 1970 on.
    expiry: u64,
}

/// The side of a server.
pub(crate) struct Acceptor {
    options: ServerTls,
    clock: Arc<dyn Clock>,
    configs: Renewed<Configs>,
    counts: Counts,
    /// Handshakes that run, by their age.
    running: Mutex<BTreeMap<u64, AbortHandle>>,
    ids: AtomicU64,
}

impl Acceptor {
    /// Reads the files.
    pub(crate) fn open(options: ServerTls, clock: Arc<dyn Clock>) -> Result<Acceptor> {
        let mut paths: Vec<PathBuf> = vec![options.certificate.clone(), options.key.clone()];
        paths.extend(options.client_ca.clone());
        let log = options.log.clone();
        let now = clock.now();
        let configs = Renewed::new(paths, log, options.interval, now, |contents| {
            configs(contents, &options, clock.unix_time())
        })?;
        let counts = Counts::default();
        let running = Mutex::default();
        let ids = AtomicU64::new(0);
        Ok(Acceptor { options, clock, configs, counts, running, ids })
    }

    /// Looks at the files in turns, until the task is aborted.
    pub(crate) async fn watch(&self) {
        loop {
            tokio::time::sleep(self.options.interval).await;
            self.configs.look(self.clock.now(), |contents| {
                configs(contents, &self.options, self.clock.unix_time())
            });
        }
    }

    async fn shake(
        &self,
        stream: TcpStream,
        config: Arc<ServerConfig>,
        plain: &[u8],
    ) -> std::result::Result<Stream, (Reason, String, Option<TcpStream>)> {
        let mut first = [0];
        match stream.peek(&mut first).await {
            Ok(0) | Err(_) => return Err((Reason::Closed, "it was closed".to_owned(), None)),
            Ok(_) if first[0] != TLS_HANDSHAKE => {
                // It closes the connection after it has read this.
                let _ = stream.try_write(plain);
                return Err((Reason::Plain, "it speaks no TLS".to_owned(), Some(stream)));
            }
            Ok(_) => {}
        }
        match TlsAcceptor::from(config).accept(stream).await {
            Ok(stream) => Ok(Stream::tls(stream.into())),
            Err(error) => Err((reason_of(&error), error.to_string(), None)),
        }
    }

    /// Completes a handshake; `None` if it fails, which is counted.
    async fn handshake(
        &self,
        front: &Front,
        stream: TcpStream,
        peer: SocketAddr,
        config: Arc<ServerConfig>,
        plain: &[u8],
    ) -> Option<Stream> {
        let limit = self.options.handshake;
        let (reason, why, stream) = match timeout(limit, self.shake(stream, config, plain)).await {
            Ok(Ok(stream)) => {
                self.counts.done();
                return Some(stream);
            }
            Ok(Err(failure)) => failure,
            Err(_) => (Reason::Time, format!("it was not over after {limit:?}"), None),
        };
        self.counts.failed(self.configs.log(), peer, reason, &why);
        if let Some(stream) = stream {
            front.linger(Stream::Plain(stream)).await;
        }
        None
    }

    fn evict(&self, oldest: &AbortHandle, why: &str) {
        oldest.abort();
        self.counts.failed(self.configs.log(), "a client", Reason::Evicted, why);
    }

    /// The figures of this side.
    pub(crate) fn figures(&self, out: &mut Exposition) {
        self.counts.figures(out, "tls_");
        let running = self.running.lock().len();
        out.one("tls_handshakes", "gauge", "TLS handshakes that run.", running);
        let help = "The end of the certificate, in seconds from 1970 on.";
        let expiry = self.configs.current().expiry;
        out.one("tls_certificate_expiry_seconds", "gauge", help, expiry);
        self.configs.figures(out, "tls_");
    }
}

/// Makes the configurations of rustls of the files.
fn configs(contents: &[Content], options: &ServerTls, now: Duration) -> Result<Configs> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let identity = Identity::of(&contents[0], &contents[1], &provider)?;
    let expiry = identity.validity.until.seconds;
    let warning = warning(&identity.validity, &options.certificate, now);
    let identity = Arc::new(SingleCertAndKey::from(identity.certified));
    let pages = Arc::new(config(&provider, None, &identity)?);
    let requests = match contents.get(2) {
        None => pages.clone(),
        Some(ca) => Arc::new(config(&provider, Some(ca), &identity)?),
    };
    // A failure is met again at each look, so that only what is taken up is said.
    if let Some(warning) = warning {
        say(options.log.as_ref(), &format!("TLS: {warning}"));
    }
    Ok(Configs { requests, pages, expiry })
}

fn config(
    provider: &Arc<CryptoProvider>,
    client_ca: Option<&Content>,
    identity: &Arc<SingleCertAndKey>,
) -> Result<ServerConfig> {
    let builder = ServerConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| super::failed(&error))?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let roots = Arc::new(ca.roots()?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
            let verifier = verifier.build();
            builder.with_client_cert_verifier(
                verifier.map_err(|error| wrong(&ca.path, &format!("has no CA: {error}")))?,
            )
        }
    };
    Ok(builder.with_cert_resolver(identity.clone()))
}

/// The place of a handshake among those that run, until it is dropped.
struct Running<'a> {
    acceptor: &'a Acceptor,
    id: u64,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.acceptor.running.lock().remove(&self.id);
    }
}

/// Completes a handshake on a task of its own, and gives the connection to `admit`.
pub(crate) fn begin(
    front: &Arc<Front>,
    stream: TcpStream,
    peer: SocketAddr,
    admit: impl FnOnce(Stream) + Send + 'static,
) {
    let Some(acceptor) = front.tls.as_ref() else { return };
    let id = acceptor.ids.fetch_add(1, Ordering::Relaxed);
    let front = front.clone();
    let work = async move {
        let Some(acceptor) = front.tls.as_ref() else { return };
        let running = Running { acceptor, id };
        let config = acceptor.configs.current().requests.clone();
        let stream = acceptor.handshake(&front, stream, peer, config, PLAIN).await;
        drop(running);
        if let Some(stream) = stream {
            admit(stream);
        }
    };
    // The end of the task waits for this lock, so that nothing is left in the map.
    let mut running = acceptor.running.lock();
    running.insert(id, tokio::spawn(work).abort_handle());
    let are_too_many = running.len() > acceptor.options.handshakes.max(1);
    let oldest = if are_too_many { running.pop_first() } else { None };
    drop(running);
    if let Some((_, oldest)) = oldest {
        let most = acceptor.options.handshakes;
        acceptor.evict(&oldest, &format!("{most} handshakes run, and it is the oldest"));
    }
}

/// Ends the oldest handshake: it has a file handle, and there is none for others.
pub(crate) fn end_oldest(front: &Front) {
    let Some(acceptor) = front.tls.as_ref() else { return };
    let oldest = acceptor.running.lock().pop_first();
    if let Some((_, oldest)) = oldest {
        acceptor.evict(&oldest, "there are too few file handles, and it is the oldest");
    }
}

/// The connection of a client of the pages, after its handshake if there is TLS.
pub(crate) async fn of_pages(front: &Front, stream: TcpStream) -> io::Result<Stream> {
    let Some(acceptor) = front.tls.as_ref() else { return Ok(Stream::Plain(stream)) };
    let peer = stream.peer_addr()?;
    let config = acceptor.configs.current().pages.clone();
    let stream = acceptor.handshake(front, stream, peer, config, PLAIN_PAGE).await;
    stream.ok_or_else(|| io::ErrorKind::ConnectionAborted.into())
}
