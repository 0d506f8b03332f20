//! The commands of levels that ask the node, and `DBSIZE`.

use std::time::Duration;

use bytes::Bytes;
use siltstone::secondary::Target;

use crate::commands::{COMMANDS, find};
use crate::failure::{Failure, Patience};
use crate::keys::{PageOf, count};
use crate::level::{Asked, Token, Wanted};
use crate::node::Role;
use crate::predict::Predictor;
use crate::reads::{Read, predicted, read};
use crate::reply::Reply;
use crate::session::{Session, wanted};
use crate::shards::commands::{described, set};
use crate::shards::keys::Keys;
use crate::shared::Shared;
use crate::strings::{self, integer};
use crate::users::Right;
use crate::view::View;

/// Entries that `DBSIZE` of a primary counts. More are estimated.
const COUNTED_MAX: u64 = 10_000;

/// `SCID.GET key [LEVEL level] [TOKEN token] [MAXAGE milliseconds] [MAXLAG operations] [PREDICTED level] [ATTRIBUTE]`.
pub(crate) fn get(
    shared: &Shared,
    session: &mut Session,
    arguments: &[Bytes],
    patience: Patience,
) -> Result<Reply, Failure> {
    let (mut asked, has_attribute) = asked(&arguments[1..])?;
    if asked.predicted.is_none() {
        asked.predicted = predicted(shared, session, &asked, &arguments[0], patience);
    }
    let keys = Keys::Of(&COMMANDS[find(b"SCID.GET").ok_or(Failure::SYNTAX)?], arguments);
    let wish = Read { asked, is_many: false, patience, keys };
    let reply = read(shared, session, &wish, |view| strings::get(view, &arguments[..1]))?;
    // On request only: clients that are made with hiredis do not know attributes, and end the connection.
    match session.last.filter(|_| has_attribute) {
        Some(served) => Ok(Reply::Attributed(served.pairs(), Box::new(reply))),
        None => Ok(reply),
    }
}

/// Reads the options of a `SCID.GET`: its level, and whether the reply has an attribute.
pub(crate) fn asked(options: &[Bytes]) -> Result<(Asked, bool), Failure> {
    let mut asked = Asked::default();
    let mut has_attribute = false;
    let mut options = options.iter();
    while let Some(name) = options.next() {
        let name = name.to_ascii_uppercase();
        if name == b"ATTRIBUTE" {
            has_attribute = true;
            continue;
        }
        let value = options.next().ok_or(Failure::SYNTAX)?;
        match &name[..] {
            b"LEVEL" => asked.level = Some(wanted(value)?),
            b"PREDICTED" => asked.predicted = Some(number(value)?),
            b"TOKEN" => asked.token = Some(Token::parse(value)?.0),
            b"MAXAGE" => asked.age = Some(Duration::from_millis(natural(value)?)),
            b"MAXLAG" => asked.operations = Some(natural(value)?),
            _ => return Err(Failure::SYNTAX),
        }
    }
    Ok((asked, has_attribute))
}

/// Reads a level that a router has predicted.
fn number(text: &[u8]) -> Result<u8, Failure> {
    match wanted(text)? {
        Wanted::Number(number) => Ok(number),
        Wanted::Auto => Err(Failure::fixed("ERR a predicted level is 1, 2, 3, 4 or 5")),
    }
}

pub(crate) fn natural(text: &[u8]) -> Result<u64, Failure> {
    u64::try_from(integer(text)?).map_err(|_| Failure::NOT_AN_INTEGER)
}

/// The partitions that `arguments` name, or all that the user may read.
fn partitions(
    shared: &Shared,
    session: &Session,
    arguments: &[Bytes],
) -> Result<Vec<String>, Failure> {
    let user = session.user.as_ref().ok_or(Failure::fixed("NOAUTH Authentication required."))?;
    if arguments.is_empty() {
        let all = match &*shared.node.role() {
            Role::Primary(primary) => primary.db.partition_names(),
            Role::Reader(reader) => reader.secondary.partition_names(),
        };
        return Ok(all.into_iter().filter(|it| user.check(Right::Read, it).is_ok()).collect());
    }
    let mut named = Vec::with_capacity(arguments.len());
    for name in arguments {
        let name = std::str::from_utf8(name).map_err(|_| Failure::SYNTAX)?;
        user.check(Right::Read, name)?;
        named.push(name.to_owned());
    }
    Ok(named)
}

fn no_partition(name: &str) -> Failure {
    Failure::error(format!("there is no partition {name:?}"))
}

/// `SCID.LAG [partition...]`: the distance of each partition from the primary, in operations, bytes and milliseconds.
pub(crate) fn lag(
    shared: &Shared,
    session: &Session,
    arguments: &[Bytes],
) -> Result<Reply, Failure> {
    let mut lags = Vec::new();
    for name in partitions(shared, session, arguments)? {
        let figures = match &*shared.node.role() {
            Role::Primary(primary) => {
                primary.partition(&name, false)?.ok_or_else(|| no_partition(&name))?;
                [Some(0), Some(0), Some(0)]
            }
            Role::Reader(reader) => {
                let partition = reader.partition(&name)?.ok_or_else(|| no_partition(&name))?;
                let lag = partition.lag();
                [lag.operations, lag.bytes, lag.age.map(|age| age.as_millis() as u64)]
            }
        };
        let figures = ["operations", "bytes", "milliseconds"].into_iter().zip(figures);
        let pairs = figures
            .map(|(name, figure)| (Reply::text(name), figure.map_or(Reply::Nil, Reply::count)));
        lags.push((Reply::text(name), Reply::Map(pairs.collect())));
    }
    Ok(Reply::Map(lags))
}

/// `SCID.MAP`: the slots of this shard, or nil.
pub(crate) fn map(shared: &Shared) -> Reply {
    shared.node.record().map_or(Reply::Nil, |record| described(&record))
}

/// `SCID.SCAN slots [AFTER key] [MATCH pattern] [COUNT count]`: a page of the keys of these slots, for a router. Replies
/// with the last key that was looked at, or nil at the end, and the keys.
pub(crate) fn scan(
    shared: &Shared,
    session: &mut Session,
    arguments: &[Bytes],
    patience: Patience,
) -> Result<Reply, Failure> {
    let slots = set(&arguments[0])?;
    let page = PageOf::parse(&arguments[1..])?;
    if page.is_long() && patience == Patience::MustNotWait {
        return Err(Failure::MayWait);
    }
    let keys = Keys::Slots(&slots);
    let wish = Read { asked: Asked::default(), is_many: true, patience, keys };
    let most = shared.options.limits.reply_bytes;
    read(shared, session, &wish, |view| page.run(view, &slots, most))
}

/// `SCID.PREDICTIONS`: the predictions and the corrections of levels, or nil.
pub(crate) fn predictions(predictor: Option<&Predictor>) -> Reply {
    predictor.map_or(Reply::Nil, Predictor::described)
}

/// `SCID.NEWEST run`: the newest commit of the primary of a bucket, for a reader, and the microseconds for which the bucket gets
/// no newer one. Waits for nothing. A strong read here that ended before the call has seen no later one.
pub(crate) fn newest(shared: &Shared, run: &[u8]) -> Result<Reply, Failure> {
    let role = shared.node.role();
    let Role::Primary(primary) = &*role else { return Err(shared.node.read_only()) };
    let Some(shipping) = primary.shipping.as_ref().filter(|it| it.has_read_lease()) else {
        return Err(Failure::fixed("UNSUPPORTED this primary has no read lease"));
    };
    if primary.run.as_bytes() != run {
        return Err(Failure::fixed("UNSUPPORTED the primary that was asked for is another one"));
    }
    // Before the look at the commit, which has all that is stored now.
    let promised = shipping.promise().as_micros();
    let newest = primary.begin_strong(Patience::MustNotWait).and_then(|_| {
        let newest = primary.latest();
        // After the look at the commit.
        primary.confirm(None).map(|()| newest)
    });
    match newest {
        Ok(newest) => Ok(Reply::text(format!("{} {promised}", Token(newest)))),
        Err(Failure::MayWait) => {
            Err(Failure::fixed("NOTYET the lease is over, or the bucket lacks commits"))
        }
        Err(failure) => Err(failure),
    }
}

/// `SCID.SYNC [partition...]`: catches up, and returns the token that was reached.
pub(crate) fn sync(
    shared: &Shared,
    session: &mut Session,
    arguments: &[Bytes],
) -> Result<Reply, Failure> {
    let reached = match &*shared.node.role() {
        Role::Primary(primary) => {
            shared.begin_strong(primary, true)?;
            let latest = primary.latest();
            // After the look, so that a fence, or the end of a lease, came after it.
            shared.confirm(primary, true)?;
            latest
        }
        Role::Reader(reader) if arguments.is_empty() => reader.secondary.sync(Target::Latest)?,
        Role::Reader(reader) => {
            let mut group = Vec::new();
            for name in partitions(shared, session, arguments)? {
                group.push(reader.partition(&name)?.ok_or_else(|| no_partition(&name))?);
            }
            let group: Vec<_> = group.iter().collect();
            let cut = reader.secondary.sync_group(&group, Target::Latest)?;
            cut.as_of().unwrap_or_else(|| shared.node.latest())
        }
    };
    Ok(Reply::text(Token(reached).to_string()))
}

/// `SCID.PROMOTE`: makes this reader the primary, and returns the token of its first moment.
pub(crate) fn promote(shared: &Shared) -> Result<Reply, Failure> {
    Ok(Reply::text(Token(shared.node.promote()?).to_string()))
}

/// `DBSIZE`: exact on a reader, and up to [`COUNTED_MAX`] entries on a primary.
pub(crate) fn size(shared: &Shared, view: &View<'_>, partition: &str) -> Result<Reply, Failure> {
    let role = shared.node.role();
    let Role::Primary(primary) = &*role else {
        let counted = count(view, u64::MAX)?;
        return Ok(Reply::count(counted.unwrap_or(u64::MAX)));
    };
    if let Some(counted) = count(view, COUNTED_MAX)? {
        return Ok(Reply::count(counted));
    }
    let partition = primary.partition(partition, false)?;
    let about = partition.map_or(Ok(0), |partition| partition.len_approx())?;
    Ok(Reply::count(about.max(COUNTED_MAX + 1)))
}
