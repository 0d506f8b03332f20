//! [`Session`]: the state of one connection, and the commands on it alone.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use siltstone::{Commit, SeqNo};

use crate::blob::{Held, Stored};
use crate::failure::Failure;
use crate::latencies::Known;
use crate::level::{Served, Token, Wanted, newer};
use crate::options::Limits;
use crate::predict::{Prediction, Predictor};
use crate::reply::Reply;
use crate::shared::Shared;
use crate::users::{DEFAULT, User};

/// A command of a transaction.
#[derive(Debug)]
pub(crate) struct Queued {
    /// Its index in the table of commands.
    pub(crate) command: usize,
    pub(crate) arguments: Vec<Bytes>,
}

/// Bytes that an argument takes besides its own.
const ARGUMENT_BYTES: usize = size_of::<Bytes>() + 32;
/// The longest name of a connection.
const NAME_BYTES_MAX: usize = 255;

/// The bytes that arguments take as long as they are kept.
pub(crate) fn kept_bytes(arguments: &[Bytes]) -> usize {
    arguments.iter().map(|argument| argument.len() + ARGUMENT_BYTES).sum()
}

/// Copies of arguments: a part of a request would keep all of it, and the requests that came with it.
pub(crate) fn kept(arguments: &[Bytes]) -> impl Iterator<Item = Bytes> {
    arguments.iter().map(|argument| Bytes::copy_from_slice(argument))
}

/// A key that must not change before `EXEC`.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) partition: Arc<str>,
    pub(crate) key: Bytes,
    pub(crate) seen: SeqNo,
    /// A commit of another epoch is another history.
    pub(crate) epoch: siltstone::Epoch,
}

/// The state of one connection.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each says a thing of its own")]
pub(crate) struct Session {
    pub(crate) id: u64,
    pub(crate) name: Bytes,
    pub(crate) is_resp3: bool,
    /// `None` before `AUTH`, if it is needed.
    pub(crate) user: Option<Arc<User>>,
    pub(crate) partition: Arc<str>,
    pub(crate) level: Option<Wanted>,
    /// The newest commit that the connection has written or seen.
    pub(crate) token: Option<Commit>,
    /// The token lacks something: no read is at level 3 without a token of its own.
    pub(crate) is_token_lost: bool,
    /// The newest commit that is not yet durable.
    pub(crate) pending: Option<Commit>,
    pub(crate) last: Option<Served>,
    /// The newest commit of the primary at a moment after all requests had come that are not answered.
    pub(crate) newest: Option<Commit>,
    /// The primary was asked for it.
    pub(crate) has_asked: bool,
    /// The request runs for the second time on this thread.
    pub(crate) is_again: bool,
    /// The histograms of the partition.
    latencies: Known,
    /// The last prediction.
    pub(crate) prediction: Option<Prediction>,
    /// The commands after `MULTI`.
    pub(crate) queue: Option<Vec<Queued>>,
    /// The memory of its commands and of the watched keys.
    pub(crate) transaction_bytes: usize,
    /// A command after `MULTI` was refused.
    pub(crate) is_queue_broken: bool,
    pub(crate) watched: Vec<Watched>,
    /// The value of the `SET` that runs, if it came as a stream.
    pub(crate) stream: Option<Stored>,
    /// The length from which on values are read in parts, and the one that is.
    pub(crate) parts_from: Option<u64>,
    pub(crate) held: Option<Held>,
    /// The connection ends after the reply.
    pub(crate) ends: bool,
}

impl Session {
    pub(crate) fn new(id: u64, shared: &Shared) -> Session {
        Session {
            id,
            name: Bytes::new(),
            is_resp3: false,
            user: shared.options.users.without_password(),
            partition: Arc::from(DEFAULT),
            level: None,
            token: None,
            is_token_lost: false,
            pending: None,
            last: None,
            newest: None,
            has_asked: false,
            is_again: false,
            latencies: Known::default(),
            prediction: None,
            queue: None,
            transaction_bytes: 0,
            is_queue_broken: false,
            watched: Vec::new(),
            stream: None,
            parts_from: None,
            held: None,
            ends: false,
        }
    }

    /// Notes that requests have come after the newest commit was asked for.
    pub(crate) fn forget_newest(&mut self) {
        self.newest = None;
        self.has_asked = false;
    }

    /// Notes a commit of this connection.
    pub(crate) fn wrote(&mut self, commit: Commit) {
        self.token = newer(self.token, commit);
        self.pending = newer(self.pending, commit);
    }

    /// Notes a read.
    pub(crate) fn read(&mut self, served: Served) {
        self.token = newer(self.token, served.as_of);
        self.last = Some(served);
    }

    /// Notes the time that the last reads took together; their number is not 0.
    pub(crate) fn took(&mut self, shared: &Shared, number: u64, took: Duration) {
        if let Some(served) = self.last.filter(|_| self.queue.is_none()) {
            let times = &shared.metrics.read_times;
            times.add(&mut self.latencies, &self.partition, served, (number, took));
        }
    }

    /// Forgets the transaction.
    pub(crate) fn end_transaction(&mut self) {
        self.queue = None;
        self.is_queue_broken = false;
        self.unwatch();
        self.transaction_bytes = 0;
    }

    /// Forgets the watched keys.
    pub(crate) fn unwatch(&mut self) {
        let watched = std::mem::take(&mut self.watched);
        let bytes: usize = watched.iter().map(|it| kept_bytes(std::slice::from_ref(&it.key))).sum();
        self.transaction_bytes -= bytes;
    }

    /// Refuses the transaction at its `EXEC`. Its commands are not needed any more.
    pub(crate) fn break_queue(&mut self) {
        let Some(queue) = &mut self.queue else { return };
        let queue = std::mem::take(queue);
        let bytes: usize = queue.iter().map(|queued| kept_bytes(&queued.arguments)).sum();
        self.transaction_bytes -= bytes;
        self.is_queue_broken = true;
    }

    /// Keeps a command for `EXEC`.
    pub(crate) fn enqueue(
        &mut self,
        limits: &Limits,
        command: usize,
        arguments: &[Bytes],
    ) -> Result<Reply, Failure> {
        let Some(queue) = &mut self.queue else { return Err(Failure::SYNTAX) };
        let bytes = self.transaction_bytes + kept_bytes(arguments);
        if queue.len() >= limits.transaction_commands || bytes > limits.request_bytes {
            return Err(Failure::fixed("LIMIT the transaction has too many commands or bytes"));
        }
        self.transaction_bytes = bytes;
        queue.push(Queued { command, arguments: kept(arguments).collect() });
        Ok(Reply::Simple("QUEUED"))
    }

    /// Watches keys from the commit `now` on.
    pub(crate) fn watch(
        &mut self,
        limits: &Limits,
        keys: &[Bytes],
        now: Commit,
    ) -> Result<Reply, Failure> {
        let bytes = self.transaction_bytes + kept_bytes(keys);
        let count = self.watched.len() + keys.len();
        if count > limits.transaction_commands || bytes > limits.request_bytes {
            return Err(Failure::fixed("LIMIT the transaction watches too many keys or bytes"));
        }
        self.transaction_bytes = bytes;
        self.watched.extend(kept(keys).map(|key| Watched {
            partition: self.partition.clone(),
            key,
            seen: now.seq,
            epoch: now.epoch,
        }));
        Ok(Reply::OK)
    }

    fn set_name(&mut self, name: &[u8]) -> Result<(), Failure> {
        check_name(name)?;
        self.name = Bytes::copy_from_slice(name);
        Ok(())
    }

    pub(crate) fn multi(&mut self) -> Result<Reply, Failure> {
        if self.queue.is_some() {
            return Err(Failure::fixed("ERR MULTI calls can not be nested"));
        }
        self.queue = Some(Vec::new());
        Ok(Reply::OK)
    }

    pub(crate) fn discard(&mut self) -> Result<Reply, Failure> {
        if self.queue.is_none() {
            return Err(Failure::fixed("ERR DISCARD without MULTI"));
        }
        self.end_transaction();
        Ok(Reply::OK)
    }

    /// `AUTH [user] password`.
    pub(crate) fn auth(&mut self, shared: &Shared, arguments: &[Bytes]) -> Result<Reply, Failure> {
        let (name, password) = match arguments {
            [password] => (DEFAULT.as_bytes(), password),
            [name, password] => (&name[..], password),
            _ => return Err(Failure::SYNTAX),
        };
        let users = &shared.options.users;
        if !users.need_password() && arguments.len() == 1 {
            let text = "ERR AUTH was called without any user configured";
            return Err(Failure::fixed(text));
        }
        let user = users.authenticate(name, password);
        let wrong = Failure::fixed("WRONGPASS invalid username-password pair");
        self.user = Some(user.ok_or(wrong)?);
        Ok(Reply::OK)
    }

    /// `SELECT partition`: a name, or 0 for the partition `default`.
    pub(crate) fn select(&mut self, name: &[u8]) -> Result<Reply, Failure> {
        self.partition = partition_name(name)?;
        Ok(Reply::OK)
    }

    /// `HELLO`. It is refused as a whole, or not at all.
    pub(crate) fn hello(&mut self, shared: &Shared, arguments: &[Bytes]) -> Result<Reply, Failure> {
        let hello = Hello::parse(arguments)?;
        if let Some(login) = hello.login {
            self.auth(shared, login)?;
        }
        if self.user.is_none() {
            let text = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> \
                        AUTH <user> <pass> option can be used to authenticate the client";
            return Err(Failure::fixed(text));
        }
        if let Some(name) = hello.name {
            self.set_name(name)?;
        }
        self.is_resp3 = hello.is_resp3.unwrap_or(self.is_resp3);
        let role = if shared.node.is_primary() { "master" } else { "replica" };
        let pairs = [
            ("server", Reply::text("siltstone")),
            ("version", Reply::text(env!("CARGO_PKG_VERSION"))),
            ("proto", Reply::Integer(if self.is_resp3 { 3 } else { 2 })),
            ("id", Reply::count(self.id)),
            ("mode", Reply::text("standalone")),
            ("role", Reply::text(role)),
            ("modules", Reply::Array(Vec::new())),
        ];
        Ok(Reply::Map(pairs.map(|(name, value)| (Reply::text(name), value)).to_vec()))
    }

    /// `CLIENT`: what libraries send when they connect.
    pub(crate) fn client(&mut self, arguments: &[Bytes]) -> Result<Reply, Failure> {
        let name = arguments[0].to_ascii_uppercase();
        match (&name[..], &arguments[1..]) {
            (b"ID", []) => Ok(Reply::count(self.id)),
            (b"GETNAME", []) if self.name.is_empty() => Ok(Reply::Nil),
            (b"GETNAME", []) => Ok(Reply::Echo(self.name.clone())),
            (b"SETNAME", [name]) => self.set_name(name).map(|()| Reply::OK),
            (b"SETINFO", [_, _]) => Ok(Reply::OK),
            (b"NO-EVICT" | b"NO-TOUCH", [_]) => Ok(Reply::OK),
            _ => {
                let name = String::from_utf8_lossy(&name).into_owned();
                Err(Failure::error(format!("CLIENT {name} is not supported")))
            }
        }
    }

    /// `SCID.LEVEL [1..5|AUTO]`.
    pub(crate) fn set_level(
        &mut self,
        shared: &Shared,
        arguments: &[Bytes],
    ) -> Result<Reply, Failure> {
        match arguments {
            [] => Ok(Reply::text(match self.given_level(shared) {
                Some(level) => level.to_string(),
                None => of_others(shared.predictor.as_ref()).to_owned(),
            })),
            [level] => {
                self.level = Some(wanted(level)?);
                Ok(Reply::OK)
            }
            _ => Err(Failure::SYNTAX),
        }
    }

    /// The level of the connection, or else of the partition.
    pub(crate) fn given_level(&self, shared: &Shared) -> Option<Wanted> {
        self.level.or_else(|| shared.options.levels.get(&*self.partition).copied())
    }

    /// `SCID.TOKEN [token|LOST]`: the newest commit that the connection has written or seen; or notes one of another, or that
    /// there is one that the client cannot name.
    pub(crate) fn token(&mut self, arguments: &[Bytes]) -> Result<Reply, Failure> {
        match arguments {
            [] => Ok(self.token.map_or(Reply::Nil, |token| Reply::text(Token(token).to_string()))),
            [token] => {
                let named = Token::named(token)?;
                self.is_token_lost = named.is_none();
                self.token = named.map_or(self.token, |named| newer(self.token, named));
                Ok(Reply::OK)
            }
            _ => Err(Failure::SYNTAX),
        }
    }

    /// `SCID.LAST`: the level and the commit of the last read.
    pub(crate) fn last(&self) -> Reply {
        self.last.map_or(Reply::Nil, |last| Reply::Map(last.pairs()))
    }
}

/// The arguments of `HELLO`.
pub(crate) struct Hello<'a> {
    pub(crate) is_resp3: Option<bool>,
    /// A name and a password.
    pub(crate) login: Option<&'a [Bytes]>,
    name: Option<&'a [u8]>,
}

impl Hello<'_> {
    /// Reads `[version [AUTH user password] [SETNAME name]]`. The last one of an option counts.
    pub(crate) fn parse(arguments: &[Bytes]) -> Result<Hello<'_>, Failure> {
        let mut hello = Hello { is_resp3: None, login: None, name: None };
        let Some((version, mut options)) = arguments.split_first() else { return Ok(hello) };
        hello.is_resp3 = match &version[..] {
            b"2" => Some(false),
            b"3" => Some(true),
            _ => return Err(Failure::fixed("NOPROTO unsupported protocol version")),
        };
        while let [option, rest @ ..] = options {
            options = match (&option.to_ascii_uppercase()[..], rest) {
                (b"AUTH", [_, _, others @ ..]) => {
                    hello.login = Some(&rest[..2]);
                    others
                }
                (b"SETNAME", [name, others @ ..]) => {
                    check_name(name)?;
                    hello.name = Some(name);
                    others
                }
                _ => return Err(Failure::SYNTAX),
            };
        }
        Ok(hello)
    }
}

fn check_name(name: &[u8]) -> Result<(), Failure> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Failure::fixed("LIMIT the name of a connection has at most 255 bytes"));
    }
    Ok(())
}

/// The word for the level of reads for which no one has named one.
pub(crate) fn of_others(predictor: Option<&Predictor>) -> &'static str {
    if predictor.is_some() { "PREDICTED" } else { "AUTO" }
}

/// Reads the name of a partition; 0 is the partition `default`.
pub(crate) fn partition_name(name: &[u8]) -> Result<Arc<str>, Failure> {
    let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty());
    let name = name.ok_or(Failure::fixed("ERR the name of a partition is text"))?;
    if name.len() > siltstone::limits::PARTITION_NAME_BYTES_MAX {
        return Err(Failure::fixed("LIMIT the name of a partition has at most 255 bytes"));
    }
    Ok(Arc::from(if name == "0" { DEFAULT } else { name }))
}

/// Reads a level.
pub(crate) fn wanted(text: &[u8]) -> Result<Wanted, Failure> {
    let level = std::str::from_utf8(text).ok().and_then(Wanted::parse);
    level.ok_or(Failure::fixed("ERR a level is 1, 2, 3, 4, 5 or AUTO"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_does_not_keep_the_request() {
        let request = Bytes::from(vec![b'k'; 100]);
        let part = request.slice(..5);
        let copy = kept(std::slice::from_ref(&part)).next().unwrap();
        assert_eq!(copy, part);
        drop(part);
        assert!(request.is_unique());
    }
}
