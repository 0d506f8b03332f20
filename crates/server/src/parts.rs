//! Long values in parts, for a router that reads one value from several nodes at once.
//!
//! After `SCID.PARTS bytes`, the reply to a `GET`, `SCID.GET` or `GETRANGE` of a value of so many bytes is its *announcement*: its
//! version, and the begin and the end of what was asked for. `SCID.PART key version begin end` returns these bytes of the
//! value, at this server or at another one that has it.
//!
//! Invariants:
//! 1. A part is of the version that its request names, or refused. A version is the root hash of the value, so values of
//!    one version differ only by a collision of XXH3.
//! 2. The connection that has announced a value, or has sent a part of it, keeps it as it was: what is written meanwhile
//!    takes no part away. Any command but `SCID.PART` and `SCID.TOKEN` gives it up.

use std::ops::Range;

use bytes::Bytes;

use crate::blob::{Blob, Held, LONG_BYTES};
use crate::commands::{COMMANDS, Verb, find};
use crate::failure::{Failure, Patience};
use crate::reads::{Read, read};
use crate::reply::Reply;
use crate::scid::{asked, natural};
use crate::session::Session;
use crate::shards::keys::Keys;
use crate::shared::Shared;

/// The longest part, which is in memory as a whole. Parts that begin and end at its multiples share no sub-block, so that none is
/// verified twice.
pub(crate) const PART_BYTES: u64 = 1 << 20;

fn hold(session: &mut Session, key: &[u8], blob: Blob) {
    // A copy: the key would keep its whole request.
    let key = Bytes::copy_from_slice(key);
    session.held = Some(Held { partition: session.partition.clone(), key, blob });
}

fn is_version(blob: &Blob, version: &[u8]) -> bool {
    blob.version().is_some_and(|it| it.to_string().as_bytes() == version)
}

/// `SCID.PARTS bytes`: long values of so many bytes are announced from now on; none with 0.
pub(crate) fn announce(session: &mut Session, bytes: &[u8]) -> Result<Reply, Failure> {
    let from = natural(bytes)?;
    session.parts_from = (from > 0).then_some(from.max(LONG_BYTES));
    Ok(Reply::OK)
}

/// Gives the value up that the connection keeps, before a command that does not go on with it.
pub(crate) fn forget(session: &mut Session, verb: Verb) {
    if !matches!(verb, Verb::ScidPart | Verb::ScidToken) {
        session.held = None;
    }
}

/// Puts an announcement in the place of a long value, if that was asked for. The first argument is the key.
pub(crate) fn announced(session: &mut Session, arguments: &[Bytes], reply: Reply) -> Reply {
    let (Reply::Blob(blob), Some(from)) = (&reply, session.parts_from) else { return reply };
    let (Some(version), Some(key)) = (blob.version(), arguments.first()) else { return reply };
    if blob.len() < from {
        return reply;
    }
    let Range { start, end } = blob.place();
    hold(session, key, Blob::clone(blob));
    Reply::Array(vec![Reply::text(version.to_string()), Reply::count(start), Reply::count(end)])
}

/// `SCID.PART key version begin end [TOKEN token]`: bytes of a value, if it has this version. A value that the connection does
/// not keep yet is read as of the token or later.
pub(crate) fn part(
    shared: &Shared,
    session: &mut Session,
    arguments: &[Bytes],
) -> Result<Reply, Failure> {
    let [key, version, begin, end, options @ ..] = arguments else { return Err(Failure::SYNTAX) };
    let place = natural(begin)?..natural(end)?;
    if place.end.saturating_sub(place.start) > PART_BYTES {
        let text = format!("LIMIT a part has at most {PART_BYTES} bytes");
        return Err(Failure::Refused(text.into()));
    }
    let is_held = session.held.as_ref().is_some_and(|held| {
        held.partition == session.partition && held.key == key && is_version(&held.blob, version)
    });
    if !is_held {
        // Two would keep the space of two.
        session.held = None;
        let blob = open(shared, session, &arguments[..1], version, options)?;
        hold(session, key, blob);
    }
    let held = session.held.as_ref().ok_or(CHANGED)?;
    let bytes = held.blob.at(place)?;
    bytes.map(Reply::Value).ok_or(Failure::fixed("ERR the value has no such part"))
}

/// The value of the key is not the one that was announced, at this server.
const CHANGED: Failure = Failure::fixed("CHANGED the value of this key is another one here");

fn open(
    shared: &Shared,
    session: &mut Session,
    key: &[Bytes],
    version: &[u8],
    options: &[Bytes],
) -> Result<Blob, Failure> {
    let (asked, _) = asked(options)?;
    let keys = Keys::Of(&COMMANDS[find(b"GET").ok_or(Failure::SYNTAX)?], key);
    let wish = Read { asked, is_many: false, patience: Patience::MayWait, keys };
    let mut found = None;
    read(shared, session, &wish, |view| {
        found = view.blob(&key[0])?.filter(|blob| is_version(blob, version));
        Ok(Reply::OK)
    })?;
    found.ok_or(CHANGED)
}
