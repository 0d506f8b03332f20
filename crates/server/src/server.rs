//! [`Server`]: its start, its threads and its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use siltstone::{Error, ErrorKind, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::connection;
use crate::http;
use crate::metrics::count;
use crate::node::Node;
use crate::options::Options;
use crate::place::Place;
use crate::shared::Shared;

/// The role in which a server starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It opens the database for writing.
    Primary,
    /// It follows the primary, and may be promoted.
    Reader,
}

/// A running server. Dropping it ends it as [`Server::stop`] does.
pub struct Server {
    shared: Arc<Shared>,
    http: Option<SocketAddr>,
    tasks: Vec<JoinHandle<()>>,
    runtime: Option<Runtime>,
}

/// Threads for each core: a read from the disk blocks one.
const THREADS_PER_CORE: usize = 4;

/// Time after which the system asks whether a silent client is still there, as Redis does.
const ALIVE: Duration = Duration::from_secs(300);

fn failed(deed: &str, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot {deed}: {error}"))
}

impl Server {
    /// Opens the database, and serves it.
    ///
    /// # Errors
    /// Those of the open; [`ErrorKind::Io`] if an address is taken.
    pub fn start(place: Place, role: Role, options: Options) -> Result<Server> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(options.threads.unwrap_or(cores * THREADS_PER_CORE))
            .thread_name("siltstone-serve")
            .enable_all()
            .build()
            .map_err(|error| failed("start threads", &error))?;
        let listener = bound(&runtime, &options.listen)?;
        let http = options.http.as_deref().map(|at| bound(&runtime, at)).transpose()?;
        let address = local(&listener)?;
        let announced = options.announce.clone().unwrap_or_else(|| address.to_string());
        let is_primary = role == Role::Primary;
        let node = Node::open(place, is_primary, Some(announced), options.expiring.clone())?;
        let shared = Arc::new(Shared::new(options, node, address));
        let http_address = http.as_ref().map(local).transpose()?;
        let mut tasks = vec![runtime.spawn(accept(shared.clone(), listener))];
        tasks.extend(http.map(|listener| runtime.spawn(http::serve(shared.clone(), listener))));
        if let Some(interval) = shared.options.follow {
            tasks.push(runtime.spawn(follow(shared.clone(), interval)));
        }
        Ok(Server { shared, http: http_address, tasks, runtime: Some(runtime) })
    }

    /// The address of the protocol.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// The address of metrics and health.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http
    }

    /// Waits until the process gets SIGTERM or SIGINT, as a service manager and Ctrl-C send them.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the signals cannot be received.
    pub fn wait_for_signal(&self) -> Result<()> {
        let Some(runtime) = &self.runtime else { return Ok(()) };
        runtime.block_on(signal()).map_err(|error| failed("wait for signals", &error))
    }

    /// Ends the server: it accepts no connection, answers the requests that it has received, closes the connections, and
    /// then the database. Requests that run longer than [`Limits::drain`](crate::Limits::drain) are not answered.
    ///
    /// # Errors
    /// Those of [`Db::close`](siltstone::Db::close).
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let Some(runtime) = self.runtime.take() else { return Ok(()) };
        self.shared.begin_drain();
        let limits = &self.shared.options.limits;
        let all = u32::try_from(limits.clients).unwrap_or(u32::MAX);
        let ended = self.shared.clients.acquire_many(all);
        // In vain if a client does not read; its requests were answered.
        let _ = runtime.block_on(async { timeout(limits.drain, ended).await });
        self.tasks.iter().for_each(JoinHandle::abort);
        runtime.shutdown_timeout(Duration::from_secs(1));
        self.shared.node.close()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Reported by `stop`, for those who ask.
        let _ = self.end();
    }
}

fn bound(runtime: &Runtime, address: &str) -> Result<TcpListener> {
    runtime
        .block_on(TcpListener::bind(address))
        .map_err(|error| failed(&format!("listen at {address}"), &error))
}

fn local(listener: &TcpListener) -> Result<SocketAddr> {
    listener.local_addr().map_err(|error| failed("learn the address", &error))
}

/// Accepts connections until the task is aborted.
async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file handles, as a rule. The connections that are open end at some time.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        if shared.is_draining() {
            return;
        }
        prepare(&stream);
        let Ok(place) = shared.clients.clone().try_acquire_owned() else {
            count(&shared.metrics.refused_connections);
            refuse(&stream);
            continue;
        };
        count(&shared.metrics.connections);
        let shared = shared.clone();
        tokio::spawn(async move {
            connection::serve(shared, stream).await;
            drop(place);
        });
    }
}

fn prepare(stream: &TcpStream) {
    // Without these a connection is slower, or stays after its client has died; it works all the same.
    // A small reply must not wait for the next one.
    let _ = stream.set_nodelay(true);
    let alive = socket2::TcpKeepalive::new().with_time(ALIVE);
    let _ = socket2::SockRef::from(stream).set_tcp_keepalive(&alive);
}

fn refuse(stream: &TcpStream) {
    // A client that does not read it sees the end of the connection.
    let _ = stream.try_write(b"-ERR max number of clients reached\r\n");
}

/// Makes a reader follow its primary.
async fn follow(shared: Arc<Shared>, interval: Duration) {
    loop {
        let node = shared.clone();
        let followed = tokio::task::spawn_blocking(move || node.node.follow()).await;
        if !matches!(followed, Ok(Ok(()))) {
            count(&shared.metrics.follow_failures);
        }
        tokio::time::sleep(interval).await;
    }
}

#[cfg(unix)]
async fn signal() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    std::future::poll_fn(|context| {
        let terminated = terminate.poll_recv(context).is_ready();
        let interrupted = interrupt.poll_recv(context).is_ready();
        if terminated || interrupted {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    Ok(())
}

#[cfg(not(unix))]
async fn signal() -> std::io::Result<()> {
    tokio::signal::ctrl_c().await
}
