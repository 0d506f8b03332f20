//! [`serve`]: one connection, from its first byte to its end.
//!
//! A request runs on the thread that read it, because most requests are answered from memory and a change of threads
//! costs more than they do. A request that would wait (a stall, a sync, another process) is run again on a thread that
//! may. The device is not waited for by a thread: the task is woken by the log.
//!
//! Invariants:
//! 1. The replies of a round are sent together, after its writes are durable, if that is asked for.
//! 2. No request is read while replies wait to be sent: a client that does not read costs the memory of one round.

#[cfg(feature = "internals")]
mod rehearsal;
mod run;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use siltstone::ErrorKind;
use tokio::task::spawn_blocking;

use crate::arrival::{Admission, Arrival, admission};
use crate::blob::{Blob, Stored};
use crate::budget::Incomplete;
use crate::commands::{COMMANDS, Verb, find};
use crate::execute::execute;
use crate::exposition::count;
use crate::failure::{Failure, Patience};
use crate::front::Event;
use crate::node::Role;
use crate::options::Acknowledge;
use crate::pace::Pace;
use crate::reply::Reply;
use crate::request::{Incoming, Next, RequestLimits};
use crate::session::Session;
use crate::shared::Shared;
use crate::stream::Stream;

#[cfg(feature = "internals")]
pub(crate) use rehearsal::Rehearsal;

/// Bytes of replies for which a round has room at its begin.
const OUTPUT_BYTES: usize = 2 << 10;

/// The state after a round.
enum Round {
    /// More requests are in the buffer.
    More,
    /// The last reply is this value, which follows it.
    Value(Box<Blob>),
    /// All requests that are there were answered.
    Drained,
    /// The connection ends.
    Ends,
}

/// Serves a connection to its end, and returns it.
pub(crate) async fn serve(shared: Arc<Shared>, mut stream: Stream) -> Stream {
    let session = Box::new(Session::new(shared.front.next_id(), &shared));
    let limits = shared.options.limits.of_requests();
    let mut incomplete = Incomplete::new(shared.front.incomplete.clone());
    let mut connection = Connection::new(shared, session, limits);
    // After the begin of the end: what has arrived is read and answered, and nothing is waited for.
    let mut is_last = false;
    loop {
        let front = &connection.shared.front;
        let limit = connection.idle_limit();
        let event = match is_last {
            true => Event::Readable,
            false => front.wait_within(&mut stream, limit).await,
        };
        match event {
            Event::Readable => {}
            Event::Draining => is_last = true,
            Event::Idle => return front.end_idle(stream),
        }
        match stream.try_read(connection.incoming.room()) {
            Ok(0) => return stream,
            Ok(_) => connection.session.iter_mut().for_each(|session| session.forget_newest()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && !is_last => continue,
            Err(_) => return stream,
        }
        if matches!(connection.answer(&mut stream).await, Round::Ends) {
            return stream;
        }
        connection.rest();
        // A transaction without its EXEC is a request that is not complete.
        let waiting = connection.session.as_ref().map_or(0, |it| it.transaction_bytes);
        if !incomplete.set(connection.incoming.len() + waiting) {
            return connection.shared.front.end_incomplete(stream);
        }
    }
}

struct Connection {
    shared: Arc<Shared>,
    /// `None` while another thread has it, and after it panicked.
    session: Option<Box<Session>>,
    incoming: Incoming,
    limits: RequestLimits,
    /// The long value that comes, and the one that has come before the rest of its request.
    arrival: Option<Arrival>,
    arrived: Option<Result<Stored, Failure>>,
    /// The steps that were taken from the buffer ahead of their turn. It is empty when a round waits for bytes.
    ahead: VecDeque<Next>,
    /// The number of the first ones that were tried as a run, in vain.
    alone: usize,
    /// The end of the last request, if the next one begins then: the clock is looked at once for both.
    now: Option<Duration>,
}

impl Connection {
    fn new(shared: Arc<Shared>, session: Box<Session>, limits: RequestLimits) -> Connection {
        let session = Some(session);
        let incoming = Incoming::default();
        Connection {
            shared,
            session,
            incoming,
            limits,
            arrival: None,
            arrived: None,
            ahead: VecDeque::new(),
            alone: 0,
            now: None,
        }
    }

    /// Gives back room that a connection without work does not need.
    fn rest(&mut self) {
        self.incoming.rest();
        if self.ahead.is_empty() {
            self.ahead = VecDeque::new();
        }
    }

    /// The time for which the client may be silent. A long value that does not come on keeps a file and the database open,
    /// and so does one that is read in parts.
    fn idle_limit(&self) -> Option<Duration> {
        let limits = &self.shared.options.limits;
        let is_held = self.session.as_ref().is_some_and(|session| session.held.is_some());
        let has_value = self.arrival.is_some() || self.arrived.is_some() || is_held;
        let of_value = has_value.then_some(limits.write);
        limits.idle.into_iter().chain(of_value).min()
    }

    /// Decides on a long value that begins.
    async fn begin_value(&mut self, head: &[Bytes], len: u64) {
        let Some(session) = &self.session else { return self.incoming.hold() };
        self.arrival = Some(match admission(&self.shared, session, head, len) {
            Admission::Hold => return self.incoming.hold(),
            Admission::Stream(partition, epoch) => {
                let key = head.last().cloned().unwrap_or_default();
                Arrival::begin(partition, epoch, key, len).await
            }
            Admission::Refuse(failure) => Arrival::refused(failure),
        });
        self.incoming.take();
    }

    /// Takes what is there of a long value. Returns whether requests come next.
    async fn receive(&mut self) -> Result<bool, &'static str> {
        let Some(arrival) = &mut self.arrival else { return Ok(true) };
        while let Some(piece) = self.incoming.piece() {
            arrival.write(&self.shared, piece).await;
        }
        if !self.incoming.end_value()? {
            return Ok(false);
        }
        if let Some(arrival) = self.arrival.take() {
            self.arrived = Some(arrival.end().await);
        }
        Ok(true)
    }

    /// Sends the bytes of a long value. Returns whether the client has all of them.
    async fn send_value(
        &mut self,
        stream: &mut Stream,
        mut blob: Box<Blob>,
        mut pace: Pace,
    ) -> bool {
        let mut piece = Vec::new();
        while blob.len() > 0 {
            let read = spawn_blocking(move || blob.read(&mut piece).map(|()| (blob, piece))).await;
            // The length is sent, so its client can learn of a failure by the end of the connection alone.
            let Ok(Ok((rest, bytes))) = read else {
                count(&self.shared.front.counts.broken);
                return false;
            };
            if !matches!(pace.send(stream, &bytes).await, Ok(true)) {
                count(&self.shared.front.counts.slow);
                return false;
            }
            blob = rest;
            piece = bytes;
        }
        matches!(pace.send(stream, b"\r\n").await, Ok(true))
    }

    /// Answers all requests that are complete.
    async fn answer(&mut self, stream: &mut Stream) -> Round {
        loop {
            let mut out = BytesMut::with_capacity(OUTPUT_BYTES);
            let mut reply_count = 0;
            let mut round = self.round(&mut out, &mut reply_count).await;
            if let Err(failure) = self.sync().await {
                if matches!(round, Round::Value(_)) {
                    round = Round::More;
                }
                // No reply of the round may say that a write is there.
                out.clear();
                for _ in 0..reply_count {
                    failure.reply().write(&mut out, false);
                }
            }
            let mut pace = Pace::new(&self.shared.options.limits);
            if !out.is_empty() && !matches!(pace.send(stream, &out).await, Ok(true)) {
                count(&self.shared.front.counts.slow);
                return Round::Ends;
            }
            match round {
                Round::Value(blob) => {
                    if !self.send_value(stream, blob, pace).await {
                        return Round::Ends;
                    }
                }
                Round::More => tokio::task::yield_now().await,
                round => return round,
            }
        }
    }

    /// Answers some requests into `out`.
    async fn round(&mut self, out: &mut BytesMut, reply_count: &mut usize) -> Round {
        let pipeline = self.shared.options.limits.pipeline;
        let output_bytes = self.shared.options.limits.output_bytes;
        self.now = None;
        while *reply_count < pipeline && out.len() < output_bytes {
            let next = match self.ahead.pop_front() {
                Some(next) => next,
                None => match self.receive().await {
                    Ok(true) => self.incoming.next(&self.limits),
                    Ok(false) => return Round::Drained,
                    Err(wrong) => Next::Broken(wrong),
                },
            };
            let reply = match next {
                Next::More => return Round::Drained,
                // The value may take long: what was answered is sent before.
                Next::Long { .. } if *reply_count > 0 => return Round::More,
                Next::Long { head, len } => {
                    self.now = None;
                    self.begin_value(&head, len).await;
                    continue;
                }
                Next::Request(request) => match self.run(request, out, pipeline - *reply_count) {
                    Ok(done) => {
                        *reply_count += done;
                        continue;
                    }
                    Err(request) => self.reply(request).await,
                },
                Next::TooLarge(what) => {
                    self.arrived = None;
                    count(&self.shared.front.counts.too_large);
                    if let Some(session) = &mut self.session {
                        session.break_queue();
                    }
                    Reply::Error(format!("LIMIT {what}").into())
                }
                Next::Broken(what) => {
                    let reply = Reply::Error(format!("ERR Protocol error: {what}").into());
                    reply.write(out, false);
                    *reply_count += 1;
                    return Round::Ends;
                }
            };
            *reply_count += 1;
            let Some(session) = &self.session else {
                reply.write(out, false);
                return Round::Ends;
            };
            reply.write(out, session.is_resp3);
            if session.ends {
                return Round::Ends;
            }
            if let Some(blob) = reply.blob() {
                return Round::Value(blob);
            }
        }
        Round::More
    }

    /// Runs a request, and again on another thread if it may wait.
    async fn reply(&mut self, request: Vec<Bytes>) -> Reply {
        let begun = self.now.take().unwrap_or_else(|| self.shared.options.clock.now());
        let Some(session) = &mut self.session else { return lost() };
        let arrived = self.arrived.take();
        let is_stream = arrived.is_some();
        let (mut command, mut outcome) = match arrived {
            Some(Ok(stored)) => {
                session.stream = Some(stored);
                (find(&request[0]), Err(Failure::MayWait))
            }
            Some(Err(failure)) => {
                session.break_queue();
                (find(&request[0]), Err(failure))
            }
            None => match execute(&self.shared, session, &request, Patience::MustNotWait) {
                (_, Err(Failure::NeedsNewest)) => again(&self.shared, session, &request).await,
                done => done,
            },
        };
        if matches!(outcome, Err(Failure::MayWait | Failure::Fenced)) {
            let Some(session) = self.session.take() else { return lost() };
            let shared = self.shared.clone();
            let done =
                spawn_blocking(move || elsewhere(&shared, session, &request, outcome, is_stream));
            let Ok((session, again, done)) = done.await else { return lost() };
            self.session = Some(session);
            command = again;
            outcome = done;
        }
        if let Some(command) = command {
            let now = self.shared.options.clock.now();
            self.now = Some(now);
            let took = now.saturating_sub(begun);
            self.shared.metrics.command(command, 1, took, outcome.is_err());
            let is_read = COMMANDS[command].is_read() && outcome.is_ok();
            if let Some(session) = self.session.as_mut().filter(|_| is_read) {
                session.took(&self.shared, 1, took);
            }
        }
        outcome.unwrap_or_else(|failure| failure.reply())
    }

    /// Waits until the writes of the connection are durable, if that is asked for.
    async fn sync(&mut self) -> Result<(), Failure> {
        let Some(session) = &mut self.session else { return Ok(()) };
        let Some(pending) = session.pending.take() else { return Ok(()) };
        if self.shared.options.acknowledge == Acknowledge::Os {
            return Ok(());
        }
        let durable = match &*self.shared.node.role() {
            Role::Primary(primary) if primary.epoch == pending.epoch => {
                primary.db.durable(pending.seq)
            }
            // Another connection has noticed a takeover. In a bucket the successor may be without these writes, and
            // in a folder it may not have synced them yet.
            Role::Primary(_) | Role::Reader(_) => return Err(Failure::TAKEN_OVER),
        };
        let Err(error) = durable.await else { return Ok(()) };
        if error.kind() != ErrorKind::Fenced {
            let text = format!(
                "UNKNOWN the sync failed, so it is unknown whether the writes are durable: {error}"
            );
            return Err(Failure::Refused(text.into()));
        }
        let shared = self.shared.clone();
        // A failure shows at the next command, which tries again.
        let _ =
            spawn_blocking(move || shared.node.demote().and_then(|()| shared.node.follow())).await;
        Err(Failure::TAKEN_OVER)
    }
}

/// The reply after a panic, which is a bug. The connection ends.
fn lost() -> Reply {
    Reply::Error("ERR the command panicked; this is a bug of the server".into())
}

/// Runs a strong read of a reader of a bucket again, after a question to the primary.
async fn again(
    shared: &Shared,
    session: &mut Session,
    request: &[Bytes],
) -> (Option<usize>, Result<Reply, Failure>) {
    if let Some(primary) = shared.node.known_primary.load_full().filter(|_| !session.has_asked) {
        session.has_asked = true;
        // Of its own memory: most connections never need it.
        let clock = &*shared.options.clock;
        session.newest = Box::pin(shared.newest.ask(&primary, clock)).await;
    }
    if session.newest.is_none() {
        return (find(&request[0]), Err(Failure::MayWait));
    }
    session.is_again = true;
    let done = execute(shared, session, request, Patience::MustNotWait);
    session.is_again = false;
    done
}

/// The rest of a request, on a thread that may wait.
fn elsewhere(
    shared: &Shared,
    mut session: Box<Session>,
    request: &[Bytes],
    first: Result<Reply, Failure>,
    is_stream: bool,
) -> (Box<Session>, Option<usize>, Result<Reply, Failure>) {
    let mut outcome = first;
    let mut command = None;
    if matches!(outcome, Err(Failure::MayWait)) {
        (command, outcome) = execute(shared, &mut session, request, Patience::MayWait);
        // A command that was refused before it took the value leaves none to the next one.
        session.stream = None;
    }
    let is_exec = command.is_some_and(|command| COMMANDS[command].verb == Verb::Exec);
    if matches!(outcome, Err(Failure::Fenced)) {
        if let Err(error) = shared.node.demote() {
            return (session, command, Err(Failure::Engine(error)));
        }
        // The successor may be anywhere in its begin, and then its address is not there yet.
        let _ = shared.node.follow();
        // Without its value it would be another request.
        if is_exec || is_stream {
            return (session, command, Err(shared.node.read_only()));
        }
        (command, outcome) = execute(shared, &mut session, request, Patience::MayWait);
    }
    (session, command, outcome)
}

#[cfg(test)]
mod tests {
    use remote::Remote;

    use super::*;
    use crate::front::Front;
    use crate::node::{Node, NodeOptions};
    use crate::options::Options;
    use crate::place::Place;

    fn place(url: &str, folder: std::path::PathBuf) -> Place {
        Place::bucket(Remote::url(url).unwrap(), Some(folder))
    }

    /// Another connection may have noticed the takeover first. That says nothing about the writes of this one.
    #[test]
    fn writes_that_a_takeover_may_have_lost_are_not_acknowledged() {
        let store = tempfile::tempdir().unwrap();
        let folders = tempfile::tempdir().unwrap();
        let url = format!("file://{}", store.path().display());
        let options = Options { acknowledge: Acknowledge::Sync, ..Options::default() };
        let limits = options.limits.of_requests();
        let front = Front::new(options.limits, None);
        let node =
            Node::open(place(&url, folders.path().join("first")), true, NodeOptions::default())
                .unwrap();
        let shared = Arc::new(Shared::new(options, front, node, "127.0.0.1:0".parse().unwrap()));
        let session = Box::new(Session::new(1, &shared));
        let mut connection = Connection::new(shared.clone(), session, limits);
        let set = ["SET", "a", "1"].map(Bytes::from);
        let session = connection.session.as_mut().unwrap();
        assert!(execute(&shared, session, &set, Patience::MayWait).1.is_ok());
        // No one has taken it over: a fence that another command has found was that of an earlier role.
        shared.node.demote().unwrap();
        assert!(shared.node.is_primary());
        let successor =
            Node::open(place(&url, folders.path().join("second")), false, NodeOptions::default())
                .unwrap();
        successor.promote().unwrap();
        if let Role::Primary(primary) = &*shared.node.role() {
            let patience = Some(std::time::Duration::from_secs(10));
            assert!(matches!(primary.confirm(patience), Err(Failure::Fenced)));
        }
        shared.node.demote().unwrap();
        assert!(!shared.node.is_primary());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let failure = runtime.block_on(connection.sync()).unwrap_err();
        assert!(format!("{failure:?}").contains("UNKNOWN"), "{failure:?}");
        successor.close().unwrap();
    }

    #[test]
    fn a_connection_gives_back_the_room_of_a_pipeline() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options::default();
        let limits = options.limits.of_requests();
        let front = Front::new(options.limits, None);
        let node = Node::open(Place::folder(folder.path()), true, NodeOptions::default()).unwrap();
        let shared = Arc::new(Shared::new(options, front, node, "127.0.0.1:0".parse().unwrap()));
        let session = Box::new(Session::new(1, &shared));
        let mut connection = Connection::new(shared.clone(), session, limits);
        // The second one is no run, so both are answered one by one.
        let lines = "*2\r\n$3\r\nGET\r\n$1\r\na\r\n*1\r\n$4\r\nPING\r\n".repeat(2);
        connection.incoming.room().extend_from_slice(lines.as_bytes());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut out = BytesMut::new();
        let mut count = 0;
        assert!(matches!(runtime.block_on(connection.round(&mut out, &mut count)), Round::Drained));
        assert_eq!((count, connection.ahead.len()), (4, 0));
        assert!(connection.ahead.capacity() > 0);
        connection.rest();
        assert_eq!(connection.ahead.capacity(), 0);
        shared.node.close().unwrap();
    }
}
