//! [`read`]: a read of one partition at its level, on a primary or on a reader.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use remote::from_memory;
use siltstone::large_values::ReadBlobs;
use siltstone::secondary::{Level, OnUnmet, ReadOptions, Reading, Target};
use siltstone::{Commit, ErrorKind, Result as EngineResult};

use crate::expiry::is_timed;
use crate::failure::{Failure, Patience};
use crate::level::{Asked, Served, newer, number_of};
use crate::node::{Primary, Reader, Role};
use crate::predict::KeyHash;
use crate::reply::Reply;
use crate::session::Session;
use crate::shards::keys::Keys;
use crate::shards::record::Record;
use crate::shared::Shared;
use crate::view::{Source, View};

/// Reads of a reader while slots come and go.
const ATTEMPTS: usize = 10;

/// The wishes of a read.
pub(crate) struct Read<'a> {
    pub(crate) asked: Asked,
    /// It looks several times, and must see one moment.
    pub(crate) is_many: bool,
    pub(crate) patience: Patience,
    /// Those whose slots must be of this shard.
    pub(crate) keys: Keys<'a>,
}

/// Runs `work` on the partition of the session, and notes how it was served. `work` may run again.
pub(crate) fn read(
    shared: &Shared,
    session: &mut Session,
    wish: &Read<'_>,
    mut work: impl FnMut(&mut View<'_>) -> Result<Reply, Failure>,
) -> Result<Reply, Failure> {
    let given = session.given_level(shared);
    let (mut level, may_weaken) = wish.asked.level(given, session.token)?;
    if session.is_token_lost && wish.asked.token.is_none() {
        if wish.asked.is_third(given) {
            let text =
                "NOTYET the newest commit of this connection is not known; name it by SCID.TOKEN";
            return Err(Failure::fixed(text));
        }
        if matches!(level, Level::Session(_)) {
            level = Level::Eventual;
        }
    }
    let role = shared.node.role();
    let (reply, served) = match &*role {
        Role::Primary(primary) => {
            owned_by_primary(shared, session, primary, wish, (level, may_weaken), &mut work)?
        }
        Role::Reader(reader) => {
            let waits = matches!(level, Level::Strong | Level::Bounded { .. } | Level::Session(_));
            let may_wait = waits && wish.patience == Patience::MayWait;
            // One more would leave the other work no thread. It catches up, and waits for nothing.
            let place = may_wait.then(|| shared.waiting.try_acquire().ok()).flatten();
            let wait = place.as_ref().map_or(Duration::ZERO, |_| shared.options.wait);
            let newest = session.newest.or_else(|| match level {
                Level::Strong => shared.newest.promised(&*shared.options.clock),
                _ => None,
            });
            let newest = newest.and_then(|newest| newer(session.token, newest));
            let terms = Terms { level, may_weaken, wait, newest };
            owned_by_reader(shared, session, reader, wish, terms, &mut work)?
        }
    };
    session.read(served);
    shared.metrics.served(served.level, 1);
    Ok(reply)
}

/// Returns the level that is predicted for a read of `key`; `None` if the server predicts none, or the read has one.
pub(crate) fn predicted(
    shared: &Shared,
    session: &mut Session,
    asked: &Asked,
    key: &[u8],
    patience: Patience,
) -> Option<u8> {
    // A router has predicted it.
    let predictor = shared.predictor.as_ref().filter(|_| asked.predicted.is_none())?;
    let hash = KeyHash::new(&session.partition, key);
    let given = session.given_level(shared);
    let is_open = given.is_none() && asked.named().is_none();
    // The read runs again on another thread, and counts once.
    let runs_again = patience == Patience::MayWait || session.is_again;
    let again = session.prediction.filter(|it| runs_again && it.key == hash);
    match again {
        Some(prediction) => Some(prediction.level).filter(|_| is_open),
        None => predictor.consider(&mut session.prediction, asked, given, hash),
    }
}

type Work<'a> = dyn FnMut(&mut View<'_>) -> Result<Reply, Failure> + 'a;

/// As [`of_primary`], on slots that the shard owned during the read.
fn owned_by_primary(
    shared: &Shared,
    session: &Session,
    primary: &Primary,
    wish: &Read<'_>,
    level: (Level, bool),
    work: &mut Work<'_>,
) -> Result<(Reply, Served), Failure> {
    let Some(owner) = &primary.owner else {
        return of_primary(shared, session, primary, wish, level, None, work);
    };
    loop {
        let record = owner.record();
        wish.keys.check(&record)?;
        let owned = Some(record.clone());
        let done = of_primary(shared, session, primary, wish, level, owned, work)?;
        // A record is never put back. So the slots were of this shard at each moment between the two looks.
        if Arc::ptr_eq(&record, &owner.record()) {
            return Ok(done);
        }
    }
}

/// The level of a read of a reader.
#[derive(Clone, Copy)]
struct Terms {
    level: Level,
    /// A weaker level is better than none.
    may_weaken: bool,
    wait: Duration,
    /// The newest commit of the primary after the begin of the read.
    newest: Option<Commit>,
}

impl Terms {
    /// The level of the engine: with the newest commit, level 1 is level 3.
    fn of_read(self) -> Level {
        match self.level {
            Level::Strong => self.newest.map_or(Level::Strong, Level::Session),
            level => level,
        }
    }
}

/// As [`of_reader`], on slots that the shard owned as of the read.
fn owned_by_reader(
    shared: &Shared,
    session: &Session,
    reader: &Reader,
    wish: &Read<'_>,
    mut terms: Terms,
    work: &mut Work<'_>,
) -> Result<(Reply, Served), Failure> {
    if reader.is_shard.load(Ordering::Relaxed) && wish.patience == Patience::MustNotWait {
        // It looks at two partitions, and may read again.
        return Err(Failure::MayWait);
    }
    let Some(mut used) = reader.record(Level::Eventual, Duration::ZERO)? else {
        return of_reader(shared, session, reader, wish, terms, None, work);
    };
    for _ in 0..ATTEMPTS {
        let is_known = reader.partition(&session.partition)?.is_some();
        let owned = Some(used.clone());
        let done = of_reader(shared, session, reader, wish, terms, owned, work)?;
        let as_of = done.1.as_of;
        // The slots as of the read or later. Levels 1 and 2 are about the present: the partition may have seen no commit
        // since the slots were given away. A partition that is not there yet has no commit of its own.
        let at = match terms.level {
            _ if !is_known => Level::Strong,
            Level::Strong | Level::Bounded { .. } if done.1.level < 3 => Level::Strong,
            _ if as_of.epoch.0 == 0 => Level::Eventual,
            _ => Level::Session(as_of),
        };
        let Some(now) = reader.record(at, terms.wait)? else { return Ok(done) };
        wish.keys.check(&now)?;
        let is_same = Arc::ptr_eq(&used, &now) || used == now;
        if is_same && (now.is_whole_at(as_of) || !is_known) {
            return Ok(done);
        }
        if !now.is_whole_at(as_of) {
            // Slots have come since.
            match terms.level {
                Level::Eventual => terms.level = Level::Session(now.since),
                Level::Session(token) if !newest(token, now.since) => {
                    terms.level = Level::Session(now.since);
                }
                // The partition may have no commit since, so its newest one shows nothing.
                Level::Strong | Level::Bounded { .. } | Level::Prefix => {
                    reader.secondary.sync(Target::Latest)?;
                }
                _ => {}
            }
        }
        used = now;
    }
    Err(Failure::fixed("TRYAGAIN the slots of this shard change while the read runs"))
}

/// Returns whether `one` is not before `other`.
fn newest(one: Commit, other: Commit) -> bool {
    (one.epoch, one.seq) >= (other.epoch, other.seq)
}

fn of_primary(
    shared: &Shared,
    session: &Session,
    primary: &Primary,
    wish: &Read<'_>,
    (mut level, may_weaken): (Level, bool),
    owned: Option<Arc<Record>>,
    work: &mut Work<'_>,
) -> Result<(Reply, Served), Failure> {
    let mut number = number_of(level);
    // Another machine may have taken the bucket over, and this process would not know.
    let mut is_strong = primary.shipping.is_some() && number < 3;
    let strong = number;
    if is_strong {
        let may_wait = wish.patience == Patience::MayWait && !may_weaken;
        match shared.begin_strong(primary, may_wait) {
            Err(failure) if !may_weaken => return Err(failure),
            begun => is_strong = begun.is_ok(),
        }
        if may_weaken {
            number = if session.is_token_lost { 5 } else { 3 };
            level = session.token.map_or(Level::Eventual, Level::Session);
        }
    }
    if let Level::Session(token) = level {
        match primary.has(&shared.node.place, token, wish.patience == Patience::MayWait) {
            Err(failure) if !may_weaken || matches!(failure, Failure::MayWait) => {
                return Err(failure);
            }
            Err(_) => number = 5,
            Ok(()) => {}
        }
    }
    let may_stream = !wish.is_many;
    let partition = primary.partition(&session.partition, false)?;
    let source = match &partition {
        None => Source::Nothing,
        Some(partition) if wish.is_many => Source::Snapshot(primary.db.snapshot().of(partition)),
        Some(partition) => Source::Live(partition),
    };
    let expiry = shared.expiry(primary.expires(&session.partition));
    let value_bytes_max = shared.options.limits.reply_bytes;
    let mut view = View { source, expiry, owned, may_stream, value_bytes_max };
    let done = match work(&mut view) {
        Err(failure) if !failure.is_refusal() => return Err(failure),
        // Also a refusal may depend on what was read.
        done => done,
    };
    // After the read, so that the fence came after it.
    if primary.is_fenced() {
        return Err(Failure::Fenced);
    }
    if is_strong {
        let may_wait = wish.patience == Patience::MayWait && !may_weaken;
        match shared.confirm(primary, may_wait) {
            Ok(()) => number = strong,
            Err(Failure::MayWait) if may_weaken => {}
            Err(failure) => return Err(failure),
        }
    }
    let as_of = primary.latest();
    let has_partition = partition.is_some();
    Ok((done?, Served { level: number, as_of, is_primary: true, has_partition }))
}

fn of_reader(
    shared: &Shared,
    session: &Session,
    reader: &Reader,
    wish: &Read<'_>,
    terms: Terms,
    owned: Option<Arc<Record>>,
    work: &mut Work<'_>,
) -> Result<(Reply, Served), Failure> {
    let may_wait = wish.patience == Patience::MayWait;
    if shared.node.place.is_bucket() && !may_wait {
        return of_memory(shared, session, reader, wish, terms, owned, work);
    }
    let Terms { may_weaken, .. } = terms;
    let level = terms.of_read();
    let has_newest = level != terms.level;
    // The bucket has the newest commit. Without it the read looks for itself.
    let wait = if has_newest { Duration::ZERO } else { terms.wait };
    let may_be_weaker = may_weaken && may_wait && !has_newest;
    let on_unmet = if may_be_weaker { OnUnmet::Weaker } else { OnUnmet::Error };
    let options = ReadOptions::new(level).wait(wait).on_unmet(on_unmet);
    let Some(partition) = reader.partition(&session.partition)? else {
        let may_stream = !wish.is_many;
        let value_bytes_max = shared.options.limits.reply_bytes;
        let source = Source::Nothing;
        let mut view = View { source, expiry: None, owned, may_stream, value_bytes_max };
        let reply = work(&mut view)?;
        let as_of = session.token.unwrap_or_else(|| shared.node.latest());
        let level = number_of(terms.level);
        return Ok((reply, Served { level, as_of, is_primary: false, has_partition: false }));
    };
    let read = partition.read_again(&options, |reading| {
        // With the newest commit level 3 is as strong as the read that has asked for it.
        let is_met = reading.served() == level;
        let number = number_of(if is_met { terms.level } else { reading.served() });
        split(at_reading(shared, wish, number, reading, owned.clone(), work))
    });
    match read {
        Ok(done) => done,
        Err(_) if has_newest => {
            let looking = Terms { newest: None, ..terms };
            of_reader(shared, session, reader, wish, looking, owned, work)
        }
        // The commit of the token is lost. The read has not asked for it: its level was predicted.
        Err(error) if error.kind() == ErrorKind::SessionLost && may_weaken => {
            let eventual = Terms { level: Level::Eventual, ..terms };
            of_reader(shared, session, reader, wish, eventual, owned, work)
        }
        Err(error) if error.kind() == ErrorKind::Behind && !may_wait => Err(Failure::MayWait),
        Err(_) if may_weaken && !may_wait => Err(Failure::MayWait),
        Err(error) => Err(error.into()),
    }
}

/// As [`of_reader`], on a thread that must not wait for a bucket: what is in memory, if that has the level.
fn of_memory(
    shared: &Shared,
    session: &Session,
    reader: &Reader,
    wish: &Read<'_>,
    terms: Terms,
    owned: Option<Arc<Record>>,
    work: &mut Work<'_>,
) -> Result<(Reply, Served), Failure> {
    let partition = reader.known(&session.partition).ok_or(Failure::MayWait)?;
    let level = terms.of_read();
    let is_there = match level {
        Level::Strong => return Err(Failure::NeedsNewest),
        Level::Session(token) => partition.has(token),
        Level::Prefix => reader.secondary.cut().partition(&partition).is_some(),
        Level::Eventual => true,
        _ => false,
    };
    if !is_there {
        return Err(Failure::MayWait);
    }
    // What has the token keeps it. A read at level 3 would catch up if a later epoch has come meanwhile.
    let read_at = if level == Level::Prefix { level } else { Level::Eventual };
    let done = from_memory(|| {
        let reading = partition.read(&ReadOptions::new(read_at).wait(Duration::ZERO))?;
        // Other threads may read the parts of a large value.
        if reading.point()?.value_store().is_some() {
            return Err(Failure::MayWait);
        }
        at_reading(shared, wish, number_of(terms.level), &reading, owned, work)
    });
    done.map_err(|failure| if failure.is_refusal() { failure } else { Failure::MayWait })
}

/// Runs `work` on a state of a reader.
fn at_reading(
    shared: &Shared,
    wish: &Read<'_>,
    level: u8,
    reading: &Reading,
    owned: Option<Arc<Record>>,
    work: &mut Work<'_>,
) -> Result<(Reply, Served), Failure> {
    let as_of = reading.as_of();
    let mut view = View {
        source: Source::Reading(reading),
        // As of what is read: a primary may have given the rule since the last look.
        expiry: shared.expiry(is_timed(&reading.filters())),
        owned,
        may_stream: !wish.is_many,
        value_bytes_max: shared.options.limits.reply_bytes,
    };
    let reply = work(&mut view)?;
    Ok((reply, Served { level, as_of, is_primary: false, has_partition: true }))
}

/// The errors of the engine apart from the others: a read whose file was deleted is repeated.
fn split<T>(done: Result<T, Failure>) -> EngineResult<Result<T, Failure>> {
    match done {
        Err(Failure::Engine(error)) => Err(error),
        done => Ok(done),
    }
}

#[cfg(test)]
mod tests;
