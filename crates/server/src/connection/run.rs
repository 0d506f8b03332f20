//! [`Run`]: requests of a pipeline that follow one another and are all a plain `GET`, or all a plain `SET`.
//!
//! A run is one read, or one commit: the role, the partition, the slots, the clock and the counts are looked at once for all, and
//! the gets wait for memory together. Each request has the reply that it would have alone.
//!
//! Invariants:
//! 1. A run that was not answered has changed nothing. Its requests are answered one by one.
//! 2. While a run of reads is answered, one value is held, besides the replies of the round.

use bytes::{Bytes, BytesMut};
use siltstone::ErrorKind;

use super::Connection;
use crate::commands::{COMMANDS, Spec, Verb, find};
use crate::execute::{admit, change};
use crate::failure::{Failure, Patience};
use crate::level::Asked;
use crate::reads::{Read, read};
use crate::reply::Reply;
use crate::request::Next;
use crate::session::Session;
use crate::shards::keys::Keys;
use crate::shared::Shared;

/// The longest run: the gets of the engine wait for memory in groups of so many.
const REQUESTS_MAX: usize = 64;
/// The most bytes of the arguments of a run, unless it is a single request: the commit of a large one takes long, and others wait.
const BYTES_MAX: usize = 64 << 10;

/// Requests with the same name and the same number of arguments.
struct Run {
    /// The place of the command in the table.
    command: usize,
    /// The command that does the same for many keys.
    of_many: &'static Spec,
    name: Bytes,
    /// The arguments of each request.
    step: usize,
    /// Those of all requests, without the name.
    arguments: Vec<Bytes>,
    bytes: usize,
}

impl Run {
    /// A run that begins with `request`, or the request if none does.
    fn begin(shared: &Shared, session: &Session, request: Vec<Bytes>) -> Result<Run, Vec<Bytes>> {
        // A transaction keeps its commands. The next command drops a value that is read in parts.
        if session.queue.is_some() || session.held.is_some() {
            return Err(request);
        }
        let found = find(&request[0]).zip(match (request.len(), request[0].len()) {
            (2, 3) => find(b"MGET"),
            (3, 3) => find(b"MSET"),
            _ => None,
        });
        let Some((command, of_many)) = found else { return Err(request) };
        let spec = &COMMANDS[command];
        let is_plain = matches!((spec.verb, request.len()), (Verb::Get, 2) | (Verb::Set, 3));
        // A prediction is for a single key.
        let is_predicted = spec.is_read() && shared.predictor.is_some();
        if !is_plain || is_predicted || admit(shared, session, spec, &request).is_err() {
            return Err(request);
        }
        let step = request.len() - 1;
        let mut request = request.into_iter();
        let name = request.next().unwrap_or_default();
        let of_many = &COMMANDS[of_many];
        let arguments = Vec::with_capacity(16 * step);
        let mut run = Run { command, of_many, name, step, arguments, bytes: 0 };
        run.push(request);
        Ok(run)
    }

    fn push(&mut self, arguments: impl Iterator<Item = Bytes>) {
        let before = self.arguments.len();
        self.arguments.extend(arguments);
        self.bytes += self.arguments[before..].iter().map(Bytes::len).sum::<usize>();
    }

    /// The number of its requests.
    fn len(&self) -> usize {
        self.arguments.len() / self.step
    }

    /// Takes a request, or gives it back if it is no part of the run, or has too many bytes for it.
    fn take(&mut self, request: Vec<Bytes>) -> Option<Vec<Bytes>> {
        if request.len() != self.step + 1 || request[0] != self.name {
            return Some(request);
        }
        let bytes: usize = request[1..].iter().map(Bytes::len).sum();
        if self.bytes + bytes > BYTES_MAX {
            return Some(request);
        }
        self.push(request.into_iter().skip(1));
        None
    }

    /// Writes the replies of its first requests to `out`, until that has `output_bytes`. Returns their number, and whether they are
    /// errors. After a failure the requests have to run one by one.
    fn answer(
        &self,
        shared: &Shared,
        session: &mut Session,
        out: &mut BytesMut,
        output_bytes: usize,
    ) -> Result<(usize, bool), Failure> {
        match self.of_many.verb {
            Verb::MSet => self.set(shared, session, out),
            _ => self.get(shared, session, out, output_bytes).map(|done| (done, false)),
        }
    }

    fn get(
        &self,
        shared: &Shared,
        session: &mut Session,
        out: &mut BytesMut,
        output_bytes: usize,
    ) -> Result<usize, Failure> {
        // One moment is not promised, so a snapshot is not needed.
        let keys = Keys::Of(self.of_many, &self.arguments);
        let patience = Patience::MustNotWait;
        let wish = Read { asked: Asked::default(), is_many: false, patience, keys };
        let is_resp3 = session.is_resp3;
        let begin = out.len();
        let mut done = 0;
        let read = read(shared, session, &wish, |view| {
            out.truncate(begin);
            done = 0;
            view.each(&self.arguments, |value| {
                Reply::value(value).write(out, is_resp3);
                done += 1;
                out.len() < output_bytes
            })?;
            Ok(Reply::OK)
        });
        if let Err(failure) = read {
            out.truncate(begin);
            return Err(failure);
        }
        if let Some(last) = session.last {
            // The read has counted itself.
            shared.metrics.served(last.level, done as u64 - 1);
        }
        Ok(done)
    }

    fn set(
        &self,
        shared: &Shared,
        session: &mut Session,
        out: &mut BytesMut,
    ) -> Result<(usize, bool), Failure> {
        let patience = Patience::MustNotWait;
        let done = change(shared, session, self.of_many, &self.arguments, patience);
        let are_errors = done.is_err();
        let reply = match done {
            Ok(_) => Reply::OK,
            Err(failure) if is_before_the_commit(&failure) => return Err(failure),
            // Whether it was written is not known. To write it again could undo a write of another client.
            Err(failure) => failure.reply(),
        };
        (0..self.len()).for_each(|_| reply.write(out, session.is_resp3));
        Ok((self.len(), are_errors))
    }

    /// The requests after the first `done`, the last one first.
    fn into_rest(self, done: usize) -> impl Iterator<Item = Vec<Bytes>> {
        let Run { arguments, name, step, .. } = self;
        let rest = arguments.len() / step - done;
        let mut arguments = arguments.into_iter();
        (0..rest).map(move |_| {
            let mut request: Vec<Bytes> = arguments.by_ref().rev().take(step).collect();
            request.push(name.clone());
            request.reverse();
            request
        })
    }
}

impl Connection {
    /// Answers `request` and those after it that are a run with it, at most `most`. Returns their number, or the request if it
    /// is to be answered alone.
    pub(super) fn run(
        &mut self,
        request: Vec<Bytes>,
        out: &mut BytesMut,
        most: usize,
    ) -> Result<usize, Vec<Bytes>> {
        let is_last = self.ahead.is_empty() && self.incoming.is_empty();
        if is_last || self.alone > 0 || self.arrived.is_some() {
            self.alone = self.alone.saturating_sub(1);
            return Err(request);
        }
        let Some(session) = &mut self.session else { return Err(request) };
        let mut run = Run::begin(&self.shared, session, request)?;
        while run.len() < most.min(REQUESTS_MAX) {
            let next = self.ahead.pop_front();
            match next.unwrap_or_else(|| self.incoming.next(&self.limits)) {
                Next::More => break,
                Next::Request(request) => {
                    let Some(request) = run.take(request) else { continue };
                    self.ahead.push_front(Next::Request(request));
                    break;
                }
                next => {
                    self.ahead.push_front(next);
                    break;
                }
            }
        }
        let mut done = 0;
        let mut alone = run.len() - 1;
        if run.len() > 1 {
            let begun = self.now.take().unwrap_or_else(|| self.shared.options.clock.now());
            let output_bytes = self.shared.options.limits.output_bytes;
            let answered = run.answer(&self.shared, session, out, output_bytes);
            // The question to the primary that the first one asks is for all of them.
            if matches!(answered, Err(Failure::NeedsNewest)) && !session.has_asked {
                alone = 0;
            }
            if let Ok((count, are_errors)) = answered {
                done = count;
                let now = self.shared.options.clock.now();
                self.now = Some(now);
                let took = now.saturating_sub(begun);
                self.shared.metrics.command(run.command, done as u64, took, are_errors);
                if COMMANDS[run.command].is_read() {
                    session.took(&self.shared, done as u64, took);
                }
            }
        }
        for request in run.into_rest(done) {
            self.ahead.push_front(Next::Request(request));
        }
        if done > 0 {
            return Ok(done);
        }
        self.alone = alone;
        match self.ahead.pop_front() {
            Some(Next::Request(request)) => Err(request),
            _ => Ok(0),
        }
    }
}

/// Returns whether nothing was written if a run fails like this. A commit that meets the fence of a takeover is none: the next
/// primary is without it.
fn is_before_the_commit(failure: &Failure) -> bool {
    match failure {
        Failure::Refused(_) | Failure::MayWait | Failure::NeedsNewest | Failure::Fenced => true,
        Failure::Engine(error) => matches!(
            error.kind(),
            ErrorKind::LimitExceeded | ErrorKind::ReservedKey | ErrorKind::InvalidArgument
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(value_bytes: usize) -> Vec<Bytes> {
        vec!["SET".into(), "k".into(), vec![b'v'; value_bytes].into()]
    }

    #[test]
    fn a_run_takes_no_request_that_would_make_it_too_large() {
        let command = find(b"SET").unwrap();
        let of_many = &COMMANDS[find(b"MSET").unwrap()];
        let name = "SET".into();
        let arguments = Vec::new();
        let mut run = Run { command, of_many, name, step: 2, arguments, bytes: 0 };
        run.push(set(BYTES_MAX - 101).into_iter().skip(1));
        assert!(run.take(set(100)).is_some());
        assert!(run.take(set(99)).is_none());
        assert_eq!((run.len(), run.bytes), (2, BYTES_MAX));
        assert!(run.take(set(0)).is_some());
    }
}
