//! [`Router`]: a server that passes requests on to the nodes of a cluster.
//!
//! It keeps no data and no state but that of its connections, so any number of routers may run.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use siltstone::Result;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::client::Client;
use super::cluster::Cluster;
use super::figures::RouterPages;
use super::sink::{Connection, Sink};
use crate::budget::Incomplete;
use crate::exposition::count;
use crate::front::{self, Event, Front};
use crate::http;
use crate::options::Limits;
use crate::reply::Reply;
use crate::request::{Incoming, Next};
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
        let runtime = front::runtime("siltstone-route", None)?;
        let listener = front::bound(&runtime, &options.listen)?;
        let pages = options.http.as_deref().map(|at| front::bound(&runtime, at)).transpose()?;
        let address = front::local(&listener)?;
        let http = pages.as_ref().map(front::local).transpose()?;
        let tls = acceptor(&options, &cluster)?;
        let front = Arc::new(Front::new(options.limits, tls));
        let cluster = Arc::new(cluster);
        let accepting = front::accept(front.clone(), listener, {
            let front = front.clone();
            let cluster = cluster.clone();
            move |stream| serve(front.clone(), cluster.clone(), stream)
        });
        let figures = Arc::new(RouterPages { front: front.clone(), cluster: cluster.clone() });
        let watching = front::watch(front.clone());
        let mut tasks =
            vec![runtime.spawn(accepting), runtime.spawn(cluster.watch()), runtime.spawn(watching)];
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
fn acceptor(options: &RouterOptions, cluster: &Cluster) -> Result<Option<Acceptor>> {
    let clock = cluster.options.clock.clone();
    options.tls.clone().map(|tls| Acceptor::open(tls, clock)).transpose()
}

#[cfg(not(feature = "tls"))]
#[expect(clippy::unnecessary_wraps, reason = "it is as that of the feature")]
fn acceptor(_: &RouterOptions, _: &Cluster) -> Result<Option<Acceptor>> {
    Ok(None)
}

/// Serves a connection to its end, and returns it.
async fn serve(front: Arc<Front>, cluster: Arc<Cluster>, mut stream: Stream) -> Stream {
    let mut client = Client::new(cluster, front.next_id());
    let mut incoming = Incoming::default();
    let mut incomplete = Incomplete::new(front.incomplete.clone());
    let mut is_last = false;
    loop {
        let event = if is_last { Event::Readable } else { front.wait(&mut stream).await };
        match event {
            Event::Readable => {}
            Event::Draining => is_last = true,
            Event::Idle => return front.end_idle(stream),
        }
        match stream.try_read(incoming.room()) {
            Ok(0) => return stream,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && !is_last => continue,
            Err(_) => return stream,
        }
        if !answer(&front, &mut client, &mut incoming, &mut stream).await {
            return stream;
        }
        incoming.rest();
        if !incomplete.set(incoming.len()) {
            return front.end_incomplete(stream);
        }
    }
}

/// Answers all requests that are complete; `false` at the end of the connection.
async fn answer(
    front: &Front,
    client: &mut Client,
    incoming: &mut Incoming,
    stream: &mut Stream,
) -> bool {
    let limits = front.limits.of_requests();
    loop {
        let connection =
            Connection { stream, most: front.limits.output_bytes, limit: front.limits.write };
        let mut sink = Sink::new(Some(connection));
        let mut requests: Vec<Vec<Bytes>> = Vec::new();
        let mut next = Next::More;
        while requests.len() < front.limits.pipeline {
            next = incoming.next(&limits);
            match next {
                Next::Request(request) => requests.push(request),
                _ => break,
            }
            next = Next::Request(Vec::new());
        }
        client.answer(requests, &mut sink).await;
        match &next {
            Next::TooLarge(what) => {
                count(&front.counts.too_large);
                client.refuse_transaction().await;
                Reply::Error(format!("LIMIT {what}").into()).write(&mut sink.out, false);
            }
            Next::Broken(what) => {
                Reply::Error(format!("ERR Protocol error: {what}").into())
                    .write(&mut sink.out, false);
            }
            Next::More | Next::Request(_) => {}
        }
        sink.flush().await;
        if sink.is_broken {
            count(&front.counts.slow);
        }
        if sink.is_broken || client.session.ends || matches!(next, Next::Broken(_)) {
            return false;
        }
        if matches!(next, Next::More) {
            return true;
        }
    }
}
