//! `WATCH` and `EXEC`, on the transactions of the engine.
//!
//! Invariants:
//! 1. `EXEC` takes effect at one moment, or not at all. Its reads are validated with its writes, and it runs again
//!    after a conflict with another writer.
//! 2. It has no effect if a watched key was written after its `WATCH`. It may be refused without that, if the key did not
//!    exist and a flush came between; the client repeats it in any case.

use std::time::Duration;

use bytes::Bytes;
use siltstone::{Commit, Durability, ErrorKind, Partition, Transaction};

use crate::commands::{COMMANDS, Kind, find};
use crate::execute::{data, may_write};
use crate::failure::{Failure, Patience};
use crate::level::Asked;
use crate::node::{Primary, Role};
use crate::reads::{Read, read};
use crate::reply::Reply;
use crate::session::{Queued, Session};
use crate::shards::keys::{Keys, keys_of};
use crate::shards::record::Record;
use crate::shared::Shared;
use crate::strings::too_large;
use crate::view::{Source, View};

/// Pauses after the attempt with this number has failed.
pub(crate) fn pause(attempt: u32) {
    if attempt < 4 {
        std::thread::yield_now();
    } else {
        std::thread::park_timeout(Duration::from_micros(50 << attempt.min(8)));
    }
}

/// `WATCH key...`.
pub(crate) fn watch(
    shared: &Shared,
    session: &mut Session,
    keys: &[Bytes],
) -> Result<Reply, Failure> {
    if session.queue.is_some() {
        return Err(Failure::fixed("ERR WATCH inside MULTI is not allowed"));
    }
    let role = shared.node.role();
    let Role::Primary(primary) = &*role else { return Err(shared.node.read_only()) };
    // The number of the watch is older than the look at the slots, so `EXEC` sees each change of them after it.
    let now = primary.latest();
    if let Some(owner) = &primary.owner {
        let spec = &COMMANDS[find(b"WATCH").ok_or(Failure::SYNTAX)?];
        Keys::Of(spec, keys).check(&owner.record())?;
    }
    session.watch(&shared.options.limits, keys, now)
}

/// As [`Primary::begin_strong`], on a thread that may wait. Commits wait for each other, and only reads are refused then.
fn begin(shared: &Shared, primary: &Primary, writes: bool) -> Result<(), Failure> {
    match writes {
        true => primary.begin_strong(Patience::MayWait).map(drop),
        false => shared.begin_strong(primary, true),
    }
}

/// `EXEC`.
pub(crate) fn exec(
    shared: &Shared,
    session: &mut Session,
    patience: Patience,
) -> Result<Reply, Failure> {
    if session.queue.is_none() {
        return Err(Failure::fixed("ERR EXEC without MULTI"));
    }
    if session.is_queue_broken {
        session.end_transaction();
        let text = "EXECABORT Transaction discarded because of previous errors.";
        return Err(Failure::fixed(text));
    }
    if patience == Patience::MustNotWait {
        return Err(Failure::MayWait);
    }
    let queue = session.queue.take().unwrap_or_default();
    let done = match &*shared.node.role() {
        Role::Primary(primary) => commit(shared, session, primary, &queue),
        Role::Reader(_) => read_only(shared, session, &queue),
    };
    session.end_transaction();
    done
}

fn commit(
    shared: &Shared,
    session: &mut Session,
    primary: &Primary,
    queue: &[Queued],
) -> Result<Reply, Failure> {
    let writes = queue.iter().any(|queued| COMMANDS[queued.command].kind == Kind::Change);
    if writes {
        // Its commands may have come while this node was a reader.
        may_write(session)?;
    }
    let partition = match primary.partition(&session.partition, false)? {
        None if writes => Some(primary.created(&session.partition)?),
        known => known,
    };
    // What was watched under another primary may have changed.
    if session.watched.iter().any(|watched| watched.epoch != primary.epoch) {
        return Ok(Reply::NilArray);
    }
    let mut attempt = 0;
    loop {
        let turn = primary.owner.as_ref().map(|owner| owner.turn(Patience::MayWait)).transpose()?;
        if let Some(turn) = &turn {
            let record = turn.record();
            Keys::Queued(queue, &session.watched).check(&record)?;
            if !is_whole_since(&record, session) {
                return Ok(Reply::NilArray);
            }
        }
        begin(shared, primary, writes)?;
        let mut transaction = watching(primary, session)?;
        let done = replies(shared, session, primary, &mut transaction, partition.as_ref(), queue);
        let replies = match done {
            Ok(replies) => replies,
            Err(failure) => {
                // Moves of slots do not wait for a call of the bucket.
                drop(turn);
                if failure.is_refusal() {
                    shared.confirm(primary, true)?;
                }
                return Err(failure);
            }
        };
        let is_empty = transaction.is_empty();
        let committed = transaction.commit(Durability::Os);
        if let Some(turn) = turn {
            let changes = queue.iter().filter(|it| COMMANDS[it.command].kind == Kind::Change);
            let keys = changes.flat_map(|it| keys_of(&COMMANDS[it.command], &it.arguments));
            turn.changed(&session.partition, keys);
        }
        match committed {
            Ok(commit) => {
                // The commit of nothing meets no fence, and what was read must be the newest state.
                if is_empty {
                    shared.confirm(primary, true)?;
                }
                session.wrote(commit);
                return Ok(Reply::Array(replies));
            }
            Err(error) if error.kind() == ErrorKind::Conflict => {}
            Err(error) => return Err(error.into()),
        }
        if !session.watched.is_empty() && has_changed(primary, session)? {
            return Ok(Reply::NilArray);
        }
        attempt += 1;
        pause(attempt);
    }
}

/// A watched slot may have gone and come back, and its key may have changed meanwhile.
fn is_whole_since(record: &Record, session: &Session) -> bool {
    let mut seen = session.watched.iter().map(|it| Commit { seq: it.seen, epoch: it.epoch });
    seen.all(|seen| record.is_whole_at(seen))
}

/// Returns whether a watched key has changed.
fn has_changed(primary: &Primary, session: &Session) -> Result<bool, Failure> {
    match watching(primary, session)?.commit(Durability::Os) {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == ErrorKind::Conflict => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// A transaction that commits only if the watched keys have not changed.
fn watching(primary: &Primary, session: &Session) -> Result<Transaction, Failure> {
    let mut transaction = primary.db.transaction();
    for watched in &session.watched {
        if let Some(partition) = primary.partition(&watched.partition, false)? {
            transaction.require(&partition, &watched.key, watched.seen);
        }
    }
    Ok(transaction)
}

/// Runs the commands. The error of one is its reply, as in Redis, and the others take effect.
fn replies(
    shared: &Shared,
    session: &Session,
    primary: &Primary,
    transaction: &mut Transaction,
    partition: Option<&Partition>,
    queue: &[Queued],
) -> Result<Vec<Reply>, Failure> {
    let expiry = shared.expiry(primary.expires(&session.partition));
    let mut replies = Vec::with_capacity(queue.len());
    let mut room = Room(shared.options.limits.reply_bytes);
    for Queued { command, arguments } in queue {
        let source = match partition {
            Some(partition) => Source::Transaction(transaction, partition),
            None => Source::Nothing,
        };
        let value_bytes_max = shared.options.limits.argument_bytes;
        let mut view = View { source, expiry, owned: None, may_stream: false, value_bytes_max };
        let done = data(shared, &COMMANDS[*command], &mut view, &session.partition, arguments);
        let reply = match done {
            Ok(reply) => reply,
            Err(Failure::Fenced) => return Err(Failure::Fenced),
            Err(failure) => failure.reply(),
        };
        room.take(shared, &reply)?;
        replies.push(reply);
    }
    Ok(replies)
}

/// The bytes that the values of a reply may still have.
struct Room(usize);

impl Room {
    fn take(&mut self, shared: &Shared, reply: &Reply) -> Result<(), Failure> {
        let left = self.0.checked_sub(reply.len());
        self.0 = left.ok_or_else(|| too_large(shared.options.limits.reply_bytes))?;
        Ok(())
    }
}

/// A transaction of reads, which a reader serves at one moment.
fn read_only(shared: &Shared, session: &mut Session, queue: &[Queued]) -> Result<Reply, Failure> {
    if queue.iter().any(|queued| COMMANDS[queued.command].kind == Kind::Change) {
        return Err(shared.node.read_only());
    }
    let keys = Keys::Queued(queue, &[]);
    let wish = Read { asked: Asked::default(), is_many: true, patience: Patience::MayWait, keys };
    let partition = session.partition.clone();
    read(shared, session, &wish, |view| {
        let mut replies = Vec::with_capacity(queue.len());
        let mut room = Room(shared.options.limits.reply_bytes);
        for Queued { command, arguments } in queue {
            let reply = match data(shared, &COMMANDS[*command], view, &partition, arguments) {
                Err(Failure::Refused(text)) => Reply::Error(text),
                done => done?,
            };
            room.take(shared, &reply)?;
            replies.push(reply);
        }
        Ok(Reply::Array(replies))
    })
}
