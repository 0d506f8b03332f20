//! [`Front`]: what a server and a router have in common. Their connections, the limits of these, and the end.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use siltstone::{Error, ErrorKind, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::budget::Budget;
use crate::exposition::count;
use crate::options::Limits;
use crate::stream::Stream;
use crate::tls::{self, Acceptor};

/// Threads for each core: a read from the disk blocks one.
const THREADS_PER_CORE: usize = 4;

/// Threads for work that may wait. They start when they are needed.
const BLOCKING_THREADS: usize = 512;
/// Reads that wait for a primary at one time. The other threads are for work that goes on, such as the answer to `INFO`.
pub(crate) const WAITING_READS: usize = BLOCKING_THREADS / 2;

/// Time after which the system asks whether a silent client is still there, as Redis does.
const ALIVE: Duration = Duration::from_secs(300);

/// A client that goes on to send after the end of its connection is read for so long.
const LINGER: Duration = Duration::from_secs(1);

/// The event that a connection without work waits for.
pub(crate) enum Event {
    Readable,
    Draining,
    Idle,
}

/// The events of connections, from the start on.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) connections: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) too_large: AtomicU64,
    pub(crate) idle: AtomicU64,
    pub(crate) slow: AtomicU64,
    /// Values that could not be read to their end after their length was sent.
    pub(crate) broken: AtomicU64,
}

/// The connections of a server or a router.
pub(crate) struct Front {
    pub(crate) limits: Limits,
    pub(crate) counts: Counts,
    pub(crate) incomplete: Arc<Budget>,
    /// TLS of all ports, if there is any.
    pub(crate) tls: Option<Acceptor>,
    /// One permit for each connection.
    clients: Arc<Semaphore>,
    ids: AtomicU64,
    is_draining: AtomicBool,
    drain: Notify,
}

impl Front {
    pub(crate) fn new(limits: Limits, tls: Option<Acceptor>) -> Front {
        Front {
            limits,
            counts: Counts::default(),
            incomplete: Arc::new(Budget::new(limits.incomplete_bytes)),
            tls,
            clients: Arc::new(Semaphore::new(limits.clients)),
            ids: AtomicU64::new(1),
            is_draining: AtomicBool::new(false),
            drain: Notify::new(),
        }
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Connections that are open.
    pub(crate) fn client_count(&self) -> usize {
        self.limits.clients.saturating_sub(self.clients.available_permits())
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    /// Waits for bytes of the client, for the end of the server, or until the client was idle for too long.
    pub(crate) async fn wait(&self, stream: &mut Stream) -> Event {
        self.wait_within(stream, self.limits.idle).await
    }

    /// As [`Front::wait`]. A client is idle for too long after `limit`.
    pub(crate) async fn wait_within(&self, stream: &mut Stream, limit: Option<Duration>) -> Event {
        let mut draining = pin!(self.drain.notified());
        // Before the look at the mark, so that no notice is lost.
        draining.as_mut().enable();
        if self.is_draining() {
            return Event::Draining;
        }
        let mut idle = limit.map(|time| Box::pin(tokio::time::sleep(time)));
        poll_fn(|context| {
            if stream.poll_readable(context).is_ready() {
                return Poll::Ready(Event::Readable);
            }
            if draining.as_mut().poll(context).is_ready() {
                return Poll::Ready(Event::Draining);
            }
            let is_idle = idle.as_mut().is_some_and(|idle| idle.as_mut().poll(context).is_ready());
            if is_idle { Poll::Ready(Event::Idle) } else { Poll::Pending }
        })
        .await
    }

    /// The end of a connection that was idle for too long.
    pub(crate) fn end_idle(&self, mut stream: Stream) -> Stream {
        count(&self.counts.idle);
        stream.send_last(b"-ERR the connection was idle for too long\r\n");
        stream
    }

    /// The end of a connection whose incomplete request is too much for all.
    pub(crate) fn end_incomplete(&self, mut stream: Stream) -> Stream {
        count(&self.counts.too_large);
        let text =
            b"-LIMIT the requests of all connections that are not complete have too many bytes\r\n";
        stream.send_last(text);
        stream
    }

    /// Closes a connection after its client has, or at the end of the server. A close with unread bytes is a reset, and
    /// a reset destroys a reply that the client has not read yet.
    async fn discard_input(&self, mut stream: Stream) -> std::io::Result<()> {
        stream.end().await?;
        let mut discarded = BytesMut::with_capacity(4 << 10);
        while matches!(self.wait(&mut stream).await, Event::Readable) {
            discarded.clear();
            match stream.try_read(&mut discarded) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Closes a connection, and gives its client some time to do the same.
    pub(crate) async fn linger(&self, stream: Stream) {
        let _ = timeout(LINGER, self.discard_input(stream)).await;
    }

    /// Ends all connections after the requests that have arrived, and then the threads.
    pub(crate) fn end(&self, runtime: Runtime, tasks: &[JoinHandle<()>]) {
        // Before the notice: who waits later looks here first.
        self.is_draining.store(true, Ordering::Release);
        self.drain.notify_waiters();
        let all = u32::try_from(self.limits.clients).unwrap_or(u32::MAX);
        let ended = self.clients.acquire_many(all);
        // In vain if a client does not read; its requests were answered.
        let _ = runtime.block_on(async { timeout(self.limits.drain, ended).await });
        tasks.iter().for_each(JoinHandle::abort);
        runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

/// Starts the threads of a server or a router.
pub(crate) fn runtime(name: &str, threads: Option<usize>) -> Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads.unwrap_or(cores * THREADS_PER_CORE))
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name(name)
        .enable_all()
        .build()
        .map_err(|error| failed("start threads", &error))
}

pub(crate) fn failed(deed: &str, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot {deed}: {error}"))
}

pub(crate) fn bound(runtime: &Runtime, address: &str) -> Result<TcpListener> {
    runtime
        .block_on(TcpListener::bind(address))
        .map_err(|error| failed(&format!("listen at {address}"), &error))
}

pub(crate) fn local(listener: &TcpListener) -> Result<SocketAddr> {
    listener.local_addr().map_err(|error| failed("learn the address", &error))
}

/// Waits until the process gets SIGTERM or SIGINT.
#[cfg(unix)]
pub(crate) fn wait_for_signal(runtime: &Runtime) -> Result<()> {
    crate::signals::wait_in(runtime)
}

/// Waits until the process gets the signal of Ctrl-C.
#[cfg(not(unix))]
pub(crate) fn wait_for_signal(runtime: &Runtime) -> Result<()> {
    runtime.block_on(tokio::signal::ctrl_c()).map_err(|error| failed("wait for signals", &error))
}

/// Returns whether the process or the system has no file handle left.
fn is_out_of_handles(error: &std::io::Error) -> bool {
    // ENFILE and EMFILE have these numbers on all systems of Unix; the last one is WSAEMFILE.
    let numbers: &[i32] = if cfg!(unix) { &[23, 24] } else { &[10024] };
    error.raw_os_error().is_some_and(|number| numbers.contains(&number))
}

/// Returns whether a client waits to be accepted. Without a file handle, `accept` fails before it looks for one.
#[cfg(unix)]
fn has_waiting(listener: &TcpListener) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut looked = [PollFd::new(listener, PollFlags::IN)];
    poll(&mut looked, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

#[cfg(not(unix))]
fn has_waiting(_: &TcpListener) -> bool {
    true
}

/// Accepts the next connection. If there is no file handle for a client that waits, the oldest handshake gives its own: the
/// connections that are open end at some time, and handshakes that are silent end too late.
pub(crate) async fn next_connection(
    front: &Front,
    listener: &TcpListener,
) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                if is_out_of_handles(&error) && has_waiting(listener) {
                    tls::end_oldest(front);
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Accepts connections until the task is aborted. `serve` returns a connection when it has ended.
pub(crate) async fn accept<W: Future<Output = Stream> + Send + 'static>(
    front: Arc<Front>,
    listener: TcpListener,
    serve: impl Fn(Stream) -> W + Send + Sync + 'static,
) {
    let serve = Arc::new(serve);
    loop {
        let (stream, peer) = next_connection(&front, &listener).await;
        if front.is_draining() {
            return;
        }
        prepare(&stream);
        if front.tls.is_none() {
            admit(&front, Stream::Plain(stream), &*serve);
            continue;
        }
        let admitting = front.clone();
        let serve = serve.clone();
        tls::begin(&front, stream, peer, move |stream| admit(&admitting, stream, &*serve));
    }
}

/// Serves a connection on a task of its own, if there is a place.
fn admit<W: Future<Output = Stream> + Send + 'static>(
    front: &Arc<Front>,
    mut stream: Stream,
    serve: &impl Fn(Stream) -> W,
) {
    // Handshakes may end after the begin of the end, and have sent no request.
    if front.is_draining() {
        return;
    }
    let Ok(place) = front.clients.clone().try_acquire_owned() else {
        count(&front.counts.refused);
        // A client that does not read it sees the end of the connection.
        stream.send_last(b"-ERR max number of clients reached\r\n");
        return;
    };
    count(&front.counts.connections);
    let connection = serve(stream);
    let front = front.clone();
    tokio::spawn(async move {
        let stream = connection.await;
        front.linger(stream).await;
        drop(place);
    });
}

/// Takes up new files of certificates, until the task is aborted.
pub(crate) async fn watch(front: Arc<Front>) {
    if let Some(tls) = &front.tls {
        tls.watch().await;
    }
}

fn prepare(stream: &TcpStream) {
    // Without these a connection is slower, or stays after its client has died; it works all the same.
    // A small reply must not wait for the next one.
    let _ = stream.set_nodelay(true);
    let alive = socket2::TcpKeepalive::new().with_time(ALIVE);
    let _ = socket2::SockRef::from(stream).set_tcp_keepalive(&alive);
}
