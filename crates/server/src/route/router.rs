//! [`Router`]: a server that passes requests on to the nodes of a cluster.
//!
//! It keeps no data and no state but that of its connections, so any number of routers may run.

use std::net::SocketAddr;
use std::sync::Arc;

use siltstone::Result;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::backends::Backends;
use super::cluster::Cluster;
use super::connection::{AnyClient, Connection};
use super::figures::RouterPages;
use super::shards::Shards;
use crate::front::{self, Front};
use crate::http;
use crate::options::Limits;
use crate::stream::Stream;
use crate::tls::Acceptor;

/// The options of a [`Router`].
#[derive(Clone, Debug)]
pub struct RouterOptions {
    /// The address of the protocol. Default: `127.0.0.1:6400`. Port 0 takes a free one.
    pub listen: String,
    /// The address of metrics and health. Default: none.
    pub http: Option<String>,
    /// TLS on both ports. Default: none.
    #[cfg(feature = "tls")]
    pub tls: Option<crate::tls::ServerTls>,
    /// Bounds; those of replies and transactions are the nodes'.
    pub limits: Limits,
}

impl Default for RouterOptions {
    fn default() -> RouterOptions {
        RouterOptions {
            listen: "127.0.0.1:6400".to_owned(),
            http: None,
            #[cfg(feature = "tls")]
            tls: None,
            limits: Limits::default(),
        }
    }
}

/// A running router. Dropping it ends it as [`Router::stop`] does.
pub struct Router {
    front: Arc<Front>,
    address: SocketAddr,
    http: Option<SocketAddr>,
    tasks: Vec<JoinHandle<()>>,
    runtime: Option<Runtime>,
}

impl Router {
    /// Serves at the address `listen`, without metrics; [`Router::start_with`] has more options.
    ///
    /// # Errors
    /// Those of [`Router::start_with`].
    pub fn start(listen: &str, cluster: Cluster, limits: Limits) -> Result<Router> {
        let options = RouterOptions { listen: listen.to_owned(), limits, ..Default::default() };
        Router::start_with(cluster, options)
    }

    /// Serves the nodes of `cluster`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](siltstone::ErrorKind::Io) if an address is taken. With TLS those of its files:
    /// [`InvalidArgument`](siltstone::ErrorKind::InvalidArgument) names the file, and what is wrong with it.
    pub fn start_with(cluster: Cluster, options: RouterOptions) -> Result<Router> {
        Router::begin(Backends::Cluster(Arc::new(cluster)), options)
    }

    /// Serves a service of shards.
    ///
    /// # Errors
    /// Those of [`Router::start_with`].
    pub fn start_shards(shards: Shards, options: RouterOptions) -> Result<Router> {
        Router::begin(Backends::Shards(Arc::new(shards)), options)
    }

    fn begin(nodes: Backends, options: RouterOptions) -> Result<Router> {
        let runtime = front::runtime("siltstone-route", None)?;
        let listener = front::bound(&runtime, &options.listen)?;
        let pages = options.http.as_deref().map(|at| front::bound(&runtime, at)).transpose()?;
        let address = front::local(&listener)?;
        let http = pages.as_ref().map(front::local).transpose()?;
        let tls = acceptor(&options, &nodes)?;
        let front = Arc::new(Front::new(options.limits, tls));
        let accepting = front::accept(front.clone(), listener, {
            let front = front.clone();
            let nodes = nodes.clone();
            move |stream| serve(front.clone(), nodes.clone(), stream)
        });
        let figures = Arc::new(RouterPages { front: front.clone(), nodes: nodes.clone() });
        let watching = match nodes {
            Backends::Cluster(cluster) => runtime.spawn(cluster.watch()),
            Backends::Shards(shards) => runtime.spawn(shards.watch()),
        };
        let renewing = runtime.spawn(front::watch(front.clone()));
        let mut tasks = vec![runtime.spawn(accepting), watching, renewing];
        tasks.extend(
            pages.map(|listener| runtime.spawn(http::serve(figures, front.clone(), listener))),
        );
        Ok(Router { front, address, http, tasks, runtime: Some(runtime) })
    }

    /// The address of the protocol.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of metrics and health.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http
    }

    /// Waits until the process gets SIGTERM or SIGINT.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](siltstone::ErrorKind::Io) if the signals cannot be received.
    pub fn wait_for_signal(&self) -> Result<()> {
        self.runtime.as_ref().map_or(Ok(()), front::wait_for_signal)
    }

    /// Ends the router: it answers the requests that have arrived, and closes the connections.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            self.front.end(runtime, &self.tasks);
        }
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(feature = "tls")]
fn acceptor(options: &RouterOptions, nodes: &Backends) -> Result<Option<Acceptor>> {
    let clock = nodes.options().clock.clone();
    options.tls.clone().map(|tls| Acceptor::open(tls, clock)).transpose()
}

#[cfg(not(feature = "tls"))]
#[expect(clippy::unnecessary_wraps, reason = "it is as that of the feature")]
fn acceptor(_: &RouterOptions, _: &Backends) -> Result<Option<Acceptor>> {
    Ok(None)
}

/// Serves a connection to its end, and returns it.
async fn serve(front: Arc<Front>, nodes: Backends, stream: Stream) -> Stream {
    let client = AnyClient::new(&nodes, front.next_id());
    Connection::new(front, client, stream).serve().await
}
