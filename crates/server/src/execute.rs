//! [`execute`]: one request of one connection, from its name to its reply.
//!
//! Invariants:
//! 1. `MayWait` is returned only before anything was changed, and never to a caller that may wait.
//! 2. A command that writes is on the primary of its epoch or refused: the commit path decides that.

use bytes::Bytes;
use siltstone::{Durability, Error, ErrorKind, Partition};

use crate::blob::Stored;
use crate::commands::{COMMANDS, Kind, Spec, Verb, find};
use crate::failure::{Failure, Patience};
use crate::info;
use crate::keys::Scan;
use crate::level::Asked;
use crate::node::{NOTES, Primary, Role};
use crate::parts;
use crate::reads::{Read, predicted, read};
use crate::reply::Reply;
use crate::scid;
use crate::session::Session;
use crate::shards::commands::slots;
use crate::shards::keys::{Keys, keys_of};
use crate::shared::Shared;
use crate::strings;
use crate::transactions;
use crate::users::Right;
use crate::view::{Change, Source, View};

/// Conflicts after which a command goes to a thread that may wait. Each one means that another command was done.
const ATTEMPTS_INLINE: u32 = 100;

/// Runs a request, and returns the index of its command with the outcome.
pub(crate) fn execute(
    shared: &Shared,
    session: &mut Session,
    request: &[Bytes],
    patience: Patience,
) -> (Option<usize>, Result<Reply, Failure>) {
    let Some(command) = find(&request[0]) else {
        session.break_queue();
        return (None, Err(unknown(&request[0])));
    };
    let spec = &COMMANDS[command];
    parts::forget(session, spec.verb);
    let outcome = admit(shared, session, spec, request).and_then(|()| {
        let is_of_transaction = matches!(
            spec.verb,
            Verb::Exec | Verb::Discard | Verb::Multi | Verb::Watch | Verb::Quit
        );
        if session.queue.is_some() && !is_of_transaction {
            return queue(shared, session, command, &request[1..]);
        }
        run(shared, session, spec, &request[1..], patience)
    });
    let outcome = outcome.map(|reply| parts::announced(session, &request[1..], reply));
    let is_refused = matches!(outcome, Err(Failure::Refused(_)));
    if is_refused && spec.verb != Verb::Multi {
        session.break_queue();
    }
    (Some(command), outcome)
}

/// The refusal of a command that is not in the table.
pub(crate) fn unknown(name: &[u8]) -> Failure {
    let name = String::from_utf8_lossy(&name[..name.len().min(64)]);
    Failure::error(format!("unknown command '{name}': this server does not support it"))
}

/// The refusal of a number of arguments.
pub(crate) fn wrong_count(spec: &Spec) -> Failure {
    let name = spec.name.to_ascii_lowercase();
    Failure::error(format!("wrong number of arguments for '{name}' command"))
}

/// The refusal of a command after `MULTI`.
pub(crate) fn not_in_transaction(spec: &Spec) -> Failure {
    Failure::error(format!("{} is not supported in a transaction", spec.name))
}

/// Checks the number of arguments, and the rights of the user.
pub(crate) fn admit(
    shared: &Shared,
    session: &Session,
    spec: &Spec,
    request: &[Bytes],
) -> Result<(), Failure> {
    if !spec.takes(request.len()) {
        return Err(wrong_count(spec));
    }
    if matches!(spec.verb, Verb::Auth | Verb::Hello | Verb::Quit) {
        return Ok(());
    }
    let user = session.user.as_ref().ok_or(Failure::fixed("NOAUTH Authentication required."))?;
    let right = match (spec.kind, spec.verb) {
        (Kind::Read | Kind::ReadMany, _) | (_, Verb::Watch | Verb::ScidPart) => Right::Read,
        (Kind::Change, _) => Right::Write,
        (Kind::Node, Verb::ScidPromote | Verb::ScidSlots) => return user.check_all(),
        (Kind::Node | Kind::Connection, _) => return Ok(()),
    };
    user.check(right, &session.partition)?;
    if right == Right::Write && !shared.node.is_primary() {
        return Err(shared.node.read_only());
    }
    Ok(())
}

/// Keeps a command for `EXEC`.
fn queue(
    shared: &Shared,
    session: &mut Session,
    command: usize,
    arguments: &[Bytes],
) -> Result<Reply, Failure> {
    if !COMMANDS[command].is_queued() {
        return Err(not_in_transaction(&COMMANDS[command]));
    }
    // A node that is not the primary looks at its slots with the data.
    if let Role::Primary(primary) = &*shared.node.role() {
        if COMMANDS[command].kind == Kind::Change {
            may_write(session)?;
        }
        if let Some(owner) = &primary.owner {
            Keys::Of(&COMMANDS[command], arguments).check(&owner.record())?;
        }
    }
    session.enqueue(&shared.options.limits, command, arguments)
}

fn run(
    shared: &Shared,
    session: &mut Session,
    spec: &Spec,
    arguments: &[Bytes],
    patience: Patience,
) -> Result<Reply, Failure> {
    match spec.kind {
        Kind::Change => change(shared, session, spec, arguments, patience),
        Kind::Read | Kind::ReadMany => {
            let is_long = match spec.verb {
                Verb::Scan => Scan::parse(arguments)?.is_long(),
                Verb::ScidScan => return scid::scan(shared, session, arguments, patience),
                Verb::DbSize => true,
                _ => false,
            };
            if is_long && patience == Patience::MustNotWait {
                return Err(Failure::MayWait);
            }
            if spec.verb == Verb::ScidGet {
                return scid::get(shared, session, arguments, patience);
            }
            let is_many = spec.kind == Kind::ReadMany;
            let mut asked = Asked::default();
            if spec.verb == Verb::Get {
                asked.predicted = predicted(shared, session, &asked, &arguments[0], patience);
            }
            let wish = Read { asked, is_many, patience, keys: Keys::Of(spec, arguments) };
            let partition = session.partition.clone();
            read(shared, session, &wish, |view| data(shared, spec, view, &partition, arguments))
        }
        Kind::Node if patience == Patience::MustNotWait => Err(Failure::MayWait),
        Kind::Node => match spec.verb {
            Verb::ScidLag => scid::lag(shared, session, arguments),
            Verb::ScidMap => Ok(scid::map(shared)),
            Verb::ScidPart => parts::part(shared, session, arguments),
            Verb::ScidSlots => slots(shared, arguments, session.stream.take()),
            Verb::ScidSync => scid::sync(shared, session, arguments),
            _ => scid::promote(shared),
        },
        Kind::Connection => connection(shared, session, spec, arguments, patience),
    }
}

fn connection(
    shared: &Shared,
    session: &mut Session,
    spec: &Spec,
    arguments: &[Bytes],
    patience: Patience,
) -> Result<Reply, Failure> {
    match spec.verb {
        Verb::Auth => session.auth(shared, arguments),
        Verb::Client => session.client(arguments),
        Verb::Command => info::command(arguments),
        Verb::Config => info::config(shared, arguments),
        Verb::Discard => session.discard(),
        Verb::Exec => transactions::exec(shared, session, patience),
        Verb::Hello => session.hello(shared, arguments),
        Verb::Info => info::info(shared, session, patience),
        Verb::Multi => session.multi(),
        Verb::Quit => {
            session.ends = true;
            Ok(Reply::OK)
        }
        Verb::ScidLast => Ok(session.last()),
        Verb::ScidLevel => session.set_level(shared, arguments),
        Verb::ScidNewest => scid::newest(shared, &arguments[0]),
        Verb::ScidParts => parts::announce(session, &arguments[0]),
        Verb::ScidPredictions => Ok(scid::predictions(shared.predictor.as_ref())),
        Verb::ScidToken => session.token(arguments),
        Verb::Select => session.select(&arguments[0]),
        Verb::Unwatch => {
            session.unwatch();
            Ok(Reply::OK)
        }
        Verb::Watch => transactions::watch(shared, session, arguments),
        _ => echo(spec.verb, arguments),
    }
}

/// `PING` and `ECHO`.
pub(crate) fn echo(verb: Verb, arguments: &[Bytes]) -> Result<Reply, Failure> {
    match (verb, arguments) {
        (Verb::Ping, []) => Ok(Reply::Simple("PONG")),
        (_, [text]) => Ok(Reply::Echo(text.clone())),
        _ => Err(Failure::fixed("ERR wrong number of arguments for 'ping' command")),
    }
}

/// Runs a command on the data of a view.
pub(crate) fn data(
    shared: &Shared,
    spec: &Spec,
    view: &mut View<'_>,
    partition: &str,
    arguments: &[Bytes],
) -> Result<Reply, Failure> {
    match spec.verb {
        Verb::Get => strings::get(view, arguments),
        Verb::MGet => strings::mget(view, arguments, shared.options.limits.reply_bytes),
        Verb::Set => strings::set(view, arguments),
        Verb::MSet => strings::mset(view, arguments),
        Verb::Del => strings::del(view, arguments),
        Verb::Exists => strings::exists(view, arguments),
        Verb::Append => strings::append(view, arguments),
        Verb::StrLen => strings::strlen(view, arguments),
        Verb::GetRange => strings::getrange(view, arguments),
        Verb::Incr => strings::add(view, &arguments[0], 1, 1),
        Verb::Decr => strings::add(view, &arguments[0], 1, -1),
        Verb::IncrBy => strings::add(view, &arguments[0], strings::integer(&arguments[1])?, 1),
        Verb::DecrBy => strings::add(view, &arguments[0], strings::integer(&arguments[1])?, -1),
        Verb::Scan => {
            let most = shared.options.limits.reply_bytes;
            Scan::parse(arguments)?.run(view, partition, &shared.cursors, most)
        }
        Verb::DbSize => scid::size(shared, view, partition),
        Verb::Ping | Verb::Echo => echo(spec.verb, arguments),
        _ => Err(Failure::error(format!("{} is not a command on data", spec.name))),
    }
}

/// Refuses writes of clients to the partition of the notes: a note that is wrong would give a partition another rule, or
/// change the slots of a shard.
pub(crate) fn may_write(session: &Session) -> Result<(), Failure> {
    if &*session.partition == NOTES {
        return Err(Failure::fixed("NOPERM the partition scid is written by the server alone"));
    }
    Ok(())
}

/// The value of the request that came as a stream, if it did.
fn streamed(primary: &Primary, session: &mut Session) -> Result<Option<Stored>, Failure> {
    let stream = session.stream.take();
    if stream.as_ref().is_some_and(|stream| stream.epoch != primary.epoch) {
        let text =
            "READONLY this server was taken over while the value came, and nothing was written";
        return Err(Failure::fixed(text));
    }
    Ok(stream)
}

/// Returns what a command has found once that is known to be of the newest state: also a refusal may depend on it.
fn confirmed(
    shared: &Shared,
    primary: &Primary,
    may_wait: bool,
    done: Result<Reply, Failure>,
) -> Result<Reply, Failure> {
    if done.as_ref().err().is_none_or(Failure::is_refusal) {
        shared.confirm(primary, may_wait)?;
    }
    done
}

/// The partition that a command changes.
fn changed_partition(
    primary: &Primary,
    session: &Session,
    patience: Patience,
) -> Result<Partition, Failure> {
    match primary.partition(&session.partition, false)? {
        Some(partition) => Ok(partition),
        // It syncs the manifest.
        None if patience == Patience::MustNotWait => Err(Failure::MayWait),
        None => Ok(primary.created(&session.partition)?),
    }
}

/// The failure of a commit that is not tried again.
fn not_written(error: Error) -> Failure {
    match error.kind() {
        ErrorKind::Conflict => {
            Failure::fixed("ERR the key was changed at the same moment, and nothing was written")
        }
        ErrorKind::WouldStall => Failure::MayWait,
        _ => error.into(),
    }
}

/// Runs a command that writes, as one commit, and again after a conflict.
pub(crate) fn change(
    shared: &Shared,
    session: &mut Session,
    spec: &Spec,
    arguments: &[Bytes],
    patience: Patience,
) -> Result<Reply, Failure> {
    let role = shared.node.role();
    let Role::Primary(primary) = &*role else { return Err(shared.node.read_only()) };
    let mut stream = streamed(primary, session)?;
    let bytes: usize = arguments.iter().map(Bytes::len).sum();
    if patience == Patience::MustNotWait && bytes > shared.options.limits.inline_bytes {
        return Err(Failure::MayWait);
    }
    let partition = changed_partition(primary, session, patience)?;
    let expiry = shared.expiry(primary.expires(&session.partition));
    may_write(session)?;
    let mut attempt = 0;
    loop {
        let turn = primary.owner.as_ref().map(|owner| owner.turn(patience)).transpose()?;
        if let Some(turn) = &turn {
            Keys::Of(spec, arguments).check(&turn.record())?;
        }
        let read_at = primary.begin_strong(patience)?;
        let change = Change::new(&partition, primary.db.batch(), read_at, stream.is_some());
        let source = Source::Change(change);
        let value_bytes_max = shared.options.limits.argument_bytes;
        let mut view = View { source, expiry, owned: None, may_stream: false, value_bytes_max };
        let done = data(shared, spec, &mut view, &session.partition, arguments);
        let Source::Change(mut change) = view.source else { return Err(Failure::SYNTAX) };
        if let Some(stream) = stream.take_if(|_| change.puts_stream) {
            change.batch = change.batch.put_blob(stream.value);
        }
        let is_empty = change.batch.is_empty();
        let may_wait = patience == Patience::MayWait;
        // A command that changes nothing has read one key at one moment, unless there are more.
        let reply = match done {
            Ok(reply) if !is_empty || change.read_count > 1 => reply,
            done => {
                drop(turn);
                return confirmed(shared, primary, may_wait, done);
            }
        };
        let committed = match patience {
            Patience::MustNotWait => change.batch.try_commit(Durability::Os),
            Patience::MayWait => change.batch.commit(Durability::Os),
        };
        if let Some(turn) = turn {
            turn.changed(&session.partition, keys_of(spec, arguments));
        }
        match committed {
            Ok(commit) => {
                // The commit of nothing meets no fence.
                if is_empty {
                    shared.confirm(primary, may_wait)?;
                }
                session.wrote(commit);
                return Ok(reply);
            }
            Err(error) if error.kind() == ErrorKind::Conflict && !change.puts_stream => {}
            Err(error) => return Err(not_written(error)),
        }
        attempt += 1;
        if patience == Patience::MustNotWait && attempt >= ATTEMPTS_INLINE {
            return Err(Failure::MayWait);
        }
        transactions::pause(attempt);
    }
}
