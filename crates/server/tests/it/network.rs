//! [`Link`]: a proxy before one server that delays, holds, drops or cuts what passes, in one direction or in both.
//! [`CutStore`]: the same between a node and its bucket. [`Caller`]: a client that outlives all of it.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, park_timeout, spawn};
use std::time::Duration;

use bytes::Bytes;
use remote::{ObjectListing, Store, StoreError, StoreResult};
use resp_rs::resp3::Parser;

use crate::client::{encoded, text};

pub(crate) const PASS: u8 = 0;
pub(crate) const DELAY: u8 = 1;
/// Bytes wait until the direction passes again.
pub(crate) const HOLD: u8 = 2;
/// Bytes are lost. Their connection ends once the direction passes again.
pub(crate) const DROP: u8 = 3;
/// All connections end, and new ones do at once.
pub(crate) const CUT: u8 = 4;

const TICK: Duration = Duration::from_millis(2);

/// The modes of both directions: to the server, and from it.
#[derive(Default)]
pub(crate) struct LinkModes {
    modes: [AtomicU8; 2],
    is_ending: AtomicBool,
}

impl LinkModes {
    pub(crate) fn set(&self, to_server: u8, from_server: u8) {
        self.modes[0].store(to_server, Ordering::SeqCst);
        self.modes[1].store(from_server, Ordering::SeqCst);
    }

    fn mode(&self, direction: usize) -> u8 {
        let is_cut = self.is_ending.load(Ordering::SeqCst);
        if is_cut { CUT } else { self.modes[direction].load(Ordering::SeqCst) }
    }
}

/// A proxy before the server at an address, which may start later.
pub(crate) struct Link {
    pub(crate) address: SocketAddr,
    pub(crate) modes: Arc<LinkModes>,
    server: Arc<OnceLock<SocketAddr>>,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    pub(crate) fn new(server: SocketAddr) -> Link {
        let link = Link::unled();
        link.lead_to(server);
        link
    }

    /// A proxy whose server is not there yet.
    pub(crate) fn unled() -> Link {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let modes = Arc::<LinkModes>::default();
        let server = Arc::<OnceLock<SocketAddr>>::default();
        let accepting = (server.clone(), modes.clone());
        let thread = spawn(move || accept(&listener, &accepting.0, &accepting.1));
        Link { address, modes, server, thread: Some(thread) }
    }

    pub(crate) fn lead_to(&self, server: SocketAddr) {
        self.server.set(server).unwrap();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.modes.is_ending.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, server: &OnceLock<SocketAddr>, state: &Arc<LinkModes>) {
    for client in listener.incoming() {
        if state.is_ending.load(Ordering::SeqCst) {
            return;
        }
        let is_cut = [0, 1].iter().any(|direction| state.mode(*direction) == CUT);
        let Some(client) = client.ok().filter(|_| !is_cut) else { continue };
        let server = server.get().and_then(|server| TcpStream::connect(server).ok());
        let Some(server) = server else { continue };
        let ends = [(client.try_clone(), server.try_clone()), (Ok(server), Ok(client))];
        for (direction, (from, to)) in ends.into_iter().enumerate() {
            let (Ok(from), Ok(to)) = (from, to) else { continue };
            let state = state.clone();
            // It ends with the connection, or with the link.
            spawn(move || forward(from, to, &state, direction));
        }
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, state: &LinkModes, direction: usize) {
    let _ = to.set_nodelay(true);
    let _ = from.set_read_timeout(Some(10 * TICK));
    let mut bytes = [0; 16 << 10];
    let mut has_lost = false;
    'passes: loop {
        let mode = state.mode(direction);
        if mode == CUT || has_lost && mode != DROP {
            break;
        }
        let len = match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                continue;
            }
            Err(_) => break,
        };
        loop {
            match state.mode(direction) {
                PASS => break,
                DELAY => {
                    park_timeout(TICK);
                    break;
                }
                DROP => {
                    has_lost = true;
                    continue 'passes;
                }
                HOLD => park_timeout(TICK),
                _ => break 'passes,
            }
        }
        if has_lost || to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// A bucket as one node reaches it: requests, or their answers, may be lost.
pub(crate) struct CutStore {
    pub(crate) inner: Arc<dyn Store>,
    pub(crate) modes: LinkModes,
}

impl CutStore {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Arc<CutStore> {
        Arc::new(CutStore { inner, modes: LinkModes::default() })
    }

    fn is_lost(&self, direction: usize) -> bool {
        self.modes.mode(direction) >= HOLD
    }

    fn call<T>(&self, call: impl FnOnce(&dyn Store) -> StoreResult<T>) -> StoreResult<T> {
        if self.modes.mode(0) == DELAY {
            park_timeout(TICK);
        }
        if self.is_lost(0) {
            return Err(StoreError::transient("the request is lost"));
        }
        let answer = call(&*self.inner);
        if self.is_lost(1) { Err(StoreError::transient("the answer is lost")) } else { answer }
    }
}

impl Store for CutStore {
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> StoreResult<bool> {
        self.call(|inner| inner.put_if_absent(name, bytes))
    }

    fn put(&self, name: &str, bytes: &[u8]) -> StoreResult<()> {
        self.call(|inner| inner.put(name, bytes))
    }

    fn get(&self, name: &str) -> StoreResult<Option<Vec<u8>>> {
        self.call(|inner| inner.get(name))
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> StoreResult<Option<Vec<u8>>> {
        self.call(|inner| inner.get_range(name, range))
    }

    fn list(&self, dir: &str) -> StoreResult<ObjectListing> {
        self.call(|inner| inner.list(dir))
    }

    fn delete(&self, name: &str) -> StoreResult<()> {
        self.call(|inner| inner.delete(name))
    }
}

/// A client of one address, which connects again after a failure.
pub(crate) struct Caller {
    address: SocketAddr,
    patience: Duration,
    open: Option<(TcpStream, Parser)>,
}

impl Caller {
    pub(crate) fn new(address: SocketAddr, patience: Duration) -> Caller {
        Caller { address, patience, open: None }
    }

    /// The reply; `None` if there is none in time, and the request may have had its effect.
    pub(crate) fn ask(&mut self, line: &str) -> Option<String> {
        let reply = self.try_ask(line);
        if reply.is_none() {
            self.open = None;
        }
        reply
    }

    fn try_ask(&mut self, line: &str) -> Option<String> {
        if self.open.is_none() {
            let stream = TcpStream::connect_timeout(&self.address, self.patience).ok()?;
            stream.set_nodelay(true).ok()?;
            stream.set_read_timeout(Some(self.patience)).ok()?;
            self.open = Some((stream, Parser::new()));
        }
        let (stream, parser) = self.open.as_mut()?;
        let words: Vec<&str> = line.split(' ').collect();
        stream.write_all(&encoded(&words)).ok()?;
        let mut bytes = [0; 4 << 10];
        loop {
            if let Some(frame) = parser.next_frame().unwrap() {
                return Some(text(&frame));
            }
            match stream.read(&mut bytes) {
                Ok(0) | Err(_) => return None,
                Ok(len) => parser.feed(Bytes::copy_from_slice(&bytes[..len])),
            }
        }
    }
}
