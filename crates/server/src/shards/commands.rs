//! `SCID.SLOTS`: the commands of a mover, and `SCID.MAP` of a server.
//!
//! | command | at | effect |
//! | --- | --- | --- |
//! | `SET attempt slots` | any shard | the shard owns these slots, and expects none. Refused if it owns others |
//! | `EXPECT attempt slots` | new owner | the slots are importing. Replies with the epoch and the partitions |
//! | `CLEAR attempt partition [after]` | new owner | removes entries of these slots, a page at a time. Replies with the key of the next page |
//! | `NOTE attempt slots` | old owner | keeps the slots, and notes from now on which keys change. Replies with the partitions |
//! | `COPY attempt partition [after]` | old owner | a page of the slots: the key of the next page, whether the entries expire, keys and stored values |
//! | `CHANGED attempt count` | old owner | keys that changed: how many are left, then partition, whether it expires, key, value or nil |
//! | `FETCH attempt partition key` | old owner | the value of a key whose length came in its place, because it is long |
//! | `PUT attempt epoch partition expires key value...` | new owner | writes entries as they are stored; an empty array of arguments is none |
//! | `DROP attempt epoch partition key...` | new owner | deletes entries |
//! | `GIVE attempt shard` | old owner | gives the slots up: from now on their keys are `MOVED` |
//! | `SEAL attempt epoch` | new owner | all entries are there, and durable. Replies with a commit that has them |
//! | `OWN attempt slots` | new owner | owns the importing slots |
//! | `DONE attempt slots` | old owner | removes the entries of the slots in the background |
//!
//! Each takes the attempt of its mover, and is refused after one of a later attempt. Entries are as they are stored, with
//! the time of their expiry.

use bytes::Bytes;
use siltstone::{Durability, LargeValueOptions, Partition, PartitionOptions};

use super::owner::{Owner, PAGE_BYTES, PAGE_ENTRIES, newer_than, remove_page};
use super::record::Record;
use super::slots::SlotSet;
use crate::blob::{Blob, LONG_BYTES, Stored, stores_apart};
use crate::failure::{Failure, Patience};
use crate::level::Token;
use crate::node::{NOTES, Primary, Role};
use crate::reply::Reply;
use crate::shared::Shared;
use crate::strings::integer;

/// `SCID.SLOTS`, with its arguments.
pub(crate) fn slots(
    shared: &Shared,
    arguments: &[Bytes],
    stream: Option<Stored>,
) -> Result<Reply, Failure> {
    let role = shared.node.role();
    let Role::Primary(primary) = &*role else { return Err(shared.node.read_only()) };
    let Some(owner) = &primary.owner else {
        return Err(Failure::error("this server is no shard: start it with --shard NAME"));
    };
    let call = Call { primary, owner };
    let [name, attempt, rest @ ..] = arguments else { return Err(Failure::SYNTAX) };
    let attempt = number(attempt)?;
    let name = name.to_ascii_uppercase();
    let done = match (&name[..], rest) {
        (b"SET", [slots]) => call.set(attempt, &set(slots)?),
        (b"EXPECT", [slots]) => call.expect(attempt, &set(slots)?),
        (b"CLEAR", [partition, after @ ..]) => call.clear(attempt, partition, after.first()),
        (b"NOTE", [slots]) => call.note(attempt, &set(slots)?),
        (b"COPY", [partition, after @ ..]) => call.copy(attempt, partition, after.first()),
        (b"FETCH", [partition, key]) => call.fetch(attempt, partition, key),
        (b"CHANGED", [count]) => call.changed(attempt, number(count)? as usize),
        (b"PUT", [epoch, partition, expires, pairs @ ..]) => {
            call.check_expiry(partition, number(expires)? == 1)?;
            call.put(attempt, number(epoch)?, partition, pairs, stream)
        }
        (b"DROP", [epoch, partition, keys @ ..]) => {
            call.drop(attempt, number(epoch)?, partition, keys)
        }
        (b"GIVE", [shard]) => call.give(attempt, shard),
        (b"SEAL", [epoch]) => call.seal(attempt, number(epoch)?),
        (b"OWN", [slots]) => call.own(attempt, &set(slots)?),
        (b"DONE", [slots]) => call.done(attempt, &set(slots)?),
        _ => Err(Failure::SYNTAX),
    };
    let reply = done?;
    // A mover must not go on with a primary that was taken over.
    if primary.is_fenced() { Err(Failure::Fenced) } else { Ok(reply) }
}

/// The reply to `SCID.MAP`: the slots of this shard.
pub(crate) fn described(record: &Record) -> Reply {
    let given = record.given.iter();
    let given = given.map(|(name, given)| (Reply::text(name), Reply::text(given.to_string())));
    Reply::Map(vec![
        (Reply::text("shard"), Reply::text(&record.name)),
        (Reply::text("slots"), Reply::text(record.owned.to_string())),
        (Reply::text("importing"), Reply::text(record.importing.to_string())),
        (Reply::text("given"), Reply::Map(given.collect())),
        (Reply::text("leftover"), Reply::text(record.leftover.to_string())),
        (Reply::text("attempt"), Reply::count(record.attempt)),
    ])
}

fn number(text: &[u8]) -> Result<u64, Failure> {
    u64::try_from(integer(text)?).map_err(|_| Failure::NOT_AN_INTEGER)
}

/// Reads a set of slots.
pub(crate) fn set(text: &[u8]) -> Result<SlotSet, Failure> {
    let text = std::str::from_utf8(text).map_err(|_| Failure::SYNTAX)?;
    SlotSet::parse(text).map_err(|error| Failure::error(error.to_string()))
}

fn text(text: &[u8]) -> Result<&str, Failure> {
    std::str::from_utf8(text).map_err(|_| Failure::SYNTAX)
}

fn key(key: Option<Vec<u8>>) -> Reply {
    key.map_or(Reply::Nil, |key| Reply::Echo(key.into()))
}

/// The length of a value that does not go into a page, because it is long.
fn long_value(partition: &Partition, key: &[u8]) -> Result<Option<u64>, Failure> {
    if !partition.has_large_values() {
        return Ok(None);
    }
    let stat = partition.stat_blob(key)?;
    Ok(stat.map(|stat| stat.len).filter(|len| *len >= LONG_BYTES))
}

/// The partition for the long value of a `PUT`, by the arguments before the key. It gets large values if it has none: the value
/// is as long in the old owner. `None` if the value is not to stream.
pub(crate) fn importing(
    primary: &Primary,
    arguments: &[Bytes],
) -> Result<Option<Partition>, Failure> {
    let [attempt, epoch, name, expires, _] = arguments else { return Ok(None) };
    let Some(owner) = &primary.owner else { return Ok(None) };
    let call = Call { primary, owner };
    call.check_epoch(number(epoch)?)?;
    call.check_expiry(name, number(expires)? == 1)?;
    call.import(number(attempt)?, |_| Ok(Reply::OK))?;
    if number(expires)? == 1 {
        return Ok(None);
    }
    let known = call.partition(name)?.filter(stores_apart);
    if known.is_some() {
        return Ok(known);
    }
    let options = PartitionOptions::new().large_values(LargeValueOptions::default());
    Ok(Some(primary.db.partition_with(text(name)?, options)?))
}

/// A command of a mover.
struct Call<'a> {
    primary: &'a Primary,
    owner: &'a Owner,
}

impl Call<'_> {
    /// The partitions with the data of users.
    fn partitions(&self) -> Vec<String> {
        let names = self.primary.db.partition_names();
        names.into_iter().filter(|name| name != NOTES).collect()
    }

    fn partition(&self, name: &[u8]) -> Result<Option<Partition>, Failure> {
        if name == NOTES.as_bytes() {
            return Err(Failure::error("the notes of a server are not moved"));
        }
        Ok(self.primary.partition(text(name)?, false)?)
    }

    fn set(&self, attempt: u64, slots: &SlotSet) -> Result<Reply, Failure> {
        if self.owner.record().attempt == 0 {
            // Nothing may be hidden that was served until now.
            self.check_keys(slots)?;
        }
        self.owner.change(attempt, |record| {
            if !slots.covers(&record.owned) {
                // Their entries would be removed.
                return Err(Failure::error(
                    "this shard owns slots that the map gives to another one",
                ));
            }
            record.leftover = record.leftover.union(&record.importing).without(slots);
            record.owned = slots.clone();
            record.importing = SlotSet::default();
            record.is_sealed = false;
            record.take_back(slots);
            Ok(())
        })?;
        self.owner.forget_changes();
        Ok(Reply::OK)
    }

    /// Refuses slots that do not have all keys that are there.
    fn check_keys(&self, slots: &SlotSet) -> Result<(), Failure> {
        for name in self.partitions() {
            let Some(partition) = self.partition(name.as_bytes())? else { continue };
            let mut cursor = partition.cursor();
            cursor.seek_to_first()?;
            while cursor.valid() {
                if !slots.has(cursor.key()) {
                    let key = cursor.key().escape_ascii();
                    let text = format!(
                        "the database has a key of another slot, {key} in partition {name}: make the map with this \
                         shard alone, and move slots"
                    );
                    return Err(Failure::error(text));
                }
                cursor.next()?;
            }
        }
        Ok(())
    }

    fn expect(&self, attempt: u64, slots: &SlotSet) -> Result<Reply, Failure> {
        self.owner.change(attempt, |record| {
            if !record.owned.common(slots).is_empty() {
                return Err(Failure::error("this shard has these slots already"));
            }
            let earlier = record.importing.without(slots);
            record.leftover = record.leftover.union(&earlier).without(slots);
            record.importing = slots.clone();
            record.is_sealed = false;
            Ok(())
        })?;
        let partitions = self.partitions().into_iter().map(Reply::text);
        let reply = [Reply::count(self.primary.epoch.0)].into_iter().chain(partitions);
        Ok(Reply::Array(reply.collect()))
    }

    /// Runs a change of importing slots, in a turn.
    fn import(
        &self,
        attempt: u64,
        change: impl FnOnce(&SlotSet) -> Result<Reply, Failure>,
    ) -> Result<Reply, Failure> {
        let turn = self.owner.turn(Patience::MayWait)?;
        let record = turn.record();
        newer_than(&record, attempt)?;
        if record.attempt != attempt || record.is_sealed || record.importing.is_empty() {
            return Err(Failure::error("no slots of this attempt are importing here"));
        }
        change(&record.importing)
    }

    fn clear(
        &self,
        attempt: u64,
        partition: &[u8],
        after: Option<&Bytes>,
    ) -> Result<Reply, Failure> {
        self.import(attempt, |slots| {
            let Some(partition) = self.partition(partition)? else { return Ok(Reply::Nil) };
            let after = after.map(|after| &after[..]);
            Ok(key(remove_page(&self.primary.db, &partition, slots, after)?))
        })
    }

    /// Refuses entries of a partition that has another rule of expiry here: their bytes would mean something else.
    fn check_expiry(&self, partition: &[u8], expires: bool) -> Result<(), Failure> {
        let name = text(partition)?;
        if self.primary.expires(name) == expires {
            return Ok(());
        }
        let where_it = if expires { "old" } else { "new" };
        let text = format!(
            "entries of partition {name:?} expire in the {where_it} owner alone: start the primaries of both with \
             --expire {name}, before the partition has entries"
        );
        Err(Failure::error(text))
    }

    fn check_epoch(&self, epoch: u64) -> Result<(), Failure> {
        if epoch == u64::from(self.primary.epoch.0) {
            return Ok(());
        }
        // A crash of the primary before may have taken the last entries with it.
        Err(Failure::error("another primary has taken the new owner over: try it again"))
    }

    fn put(
        &self,
        attempt: u64,
        epoch: u64,
        name: &[u8],
        pairs: &[Bytes],
        stream: Option<Stored>,
    ) -> Result<Reply, Failure> {
        self.check_epoch(epoch)?;
        if stream.as_ref().is_some_and(|stream| stream.epoch != self.primary.epoch) {
            // As for an epoch that is over.
            return Err(Failure::error(
                "another primary has taken the new owner over: try it again",
            ));
        }
        if !pairs.len().is_multiple_of(2) {
            return Err(Failure::SYNTAX);
        }
        let partition = match self.partition(name)? {
            Some(partition) => partition,
            None => self.primary.created(text(name)?)?,
        };
        self.import(attempt, |slots| {
            let mut batch = self.primary.db.batch();
            for pair in pairs.chunks(2) {
                if !slots.has(&pair[0]) {
                    return Err(Failure::error("a key of a slot that is not importing"));
                }
                if stream.is_none() {
                    batch.of(&partition).put(&pair[0], &pair[1]);
                }
            }
            if let Some(stream) = stream {
                batch = batch.put_blob(stream.value);
            }
            batch.commit(Durability::Os)?;
            Ok(Reply::OK)
        })
    }

    fn drop(
        &self,
        attempt: u64,
        epoch: u64,
        name: &[u8],
        keys: &[Bytes],
    ) -> Result<Reply, Failure> {
        self.check_epoch(epoch)?;
        self.import(attempt, |slots| {
            let Some(partition) = self.partition(name)? else { return Ok(Reply::OK) };
            let mut batch = self.primary.db.batch();
            for key in keys.iter().filter(|key| slots.has(key)) {
                batch.of(&partition).delete(key);
            }
            batch.commit(Durability::Os)?;
            Ok(Reply::OK)
        })
    }

    fn note(&self, attempt: u64, slots: &SlotSet) -> Result<Reply, Failure> {
        self.owner.note_changes(attempt, slots, |record| {
            let given = record.given.values().fold(record.owned.clone(), |all, it| all.union(it));
            if !given.covers(slots) {
                return Err(Failure::error("this shard has never had all of these slots"));
            }
            // Slots that an earlier attempt gave away: the map says that no one got them.
            record.take_back(slots);
            record.leftover = record.leftover.without(slots);
            record.owned = record.owned.union(slots);
            Ok(())
        })?;
        Ok(Reply::Array(self.partitions().into_iter().map(Reply::text).collect()))
    }

    fn copy(&self, attempt: u64, name: &[u8], after: Option<&Bytes>) -> Result<Reply, Failure> {
        let slots = self.owner.noted(attempt)?;
        let expires = self.primary.expires(text(name)?);
        let mut reply = vec![Reply::Nil, Reply::Integer(i64::from(expires))];
        let Some(partition) = self.partition(name)? else { return Ok(Reply::Array(reply)) };
        let mut cursor = partition.cursor();
        match after {
            Some(after) => cursor.seek_after(after)?,
            None => cursor.seek_to_first()?,
        }
        let mut bytes = 0;
        let mut last = None;
        for _ in 0..PAGE_ENTRIES {
            if !cursor.valid() || bytes > PAGE_BYTES {
                break;
            }
            if slots.has(cursor.key()) {
                let value = match long_value(&partition, cursor.key())? {
                    Some(len) => Reply::count(len),
                    None => Reply::Value(cursor.value_slice()?),
                };
                bytes += cursor.key().len() + value.len();
                reply.push(Reply::Value(cursor.key_slice()));
                reply.push(value);
            }
            last = Some(cursor.key().to_vec());
            cursor.next()?;
        }
        reply[0] = key(if cursor.valid() { last } else { None });
        Ok(Reply::Array(reply))
    }

    fn fetch(&self, attempt: u64, name: &[u8], key: &[u8]) -> Result<Reply, Failure> {
        self.owner.noted(attempt)?;
        let Some(partition) = self.partition(name)? else { return Ok(Reply::Nil) };
        match Blob::open(&partition, key, 0)? {
            Some(blob) => Ok(Reply::Blob(Box::new(blob))),
            None => Ok(Reply::value(partition.get(key)?)),
        }
    }

    fn changed(&self, attempt: u64, most: usize) -> Result<Reply, Failure> {
        let mut reply = vec![Reply::Nil];
        let mut bytes = 0;
        for _ in 0..most {
            let Some((name, key)) = self.owner.take_changed(attempt)? else { break };
            let partition = self.partition(name.as_bytes())?;
            let value = match &partition {
                None => Reply::Nil,
                Some(partition) => match long_value(partition, &key)? {
                    Some(len) => Reply::count(len),
                    None => Reply::value(partition.get(&key)?),
                },
            };
            bytes += key.len() + value.len();
            reply.push(Reply::text(&*name));
            reply.push(Reply::Integer(i64::from(self.primary.expires(&name))));
            reply.push(Reply::Echo(key));
            reply.push(value);
            if bytes > PAGE_BYTES {
                break;
            }
        }
        reply[0] = Reply::count(self.owner.changed_count());
        Ok(Reply::Array(reply))
    }

    fn give(&self, attempt: u64, shard: &[u8]) -> Result<Reply, Failure> {
        let slots = self.owner.noted(attempt)?;
        let shard = text(shard)?;
        self.owner.change(attempt, |record| {
            record.give(&slots, shard);
            Ok(())
        })?;
        Ok(Reply::OK)
    }

    fn seal(&self, attempt: u64, epoch: u64) -> Result<Reply, Failure> {
        self.check_epoch(epoch)?;
        // The record is durable after all entries before it in the log. These are in none.
        for name in self.partitions() {
            let partition = self.partition(name.as_bytes())?;
            if let Some(partition) = partition.filter(|it| !it.options().get_logged()) {
                partition.flush()?;
            }
        }
        let mut sealed = self.primary.latest();
        self.owner.change(attempt, |record| {
            if record.importing.is_empty() {
                return Err(Failure::error("no slots are importing here"));
            }
            // Before the commit of the record, which is synced: a commit after that may be lost, and the map keeps this one.
            sealed = self.primary.latest();
            record.is_sealed = true;
            Ok(())
        })?;
        Ok(Reply::text(Token(sealed).to_string()))
    }

    fn own(&self, attempt: u64, slots: &SlotSet) -> Result<Reply, Failure> {
        let primary = self.primary;
        self.owner.change(attempt, |record| {
            // The mover of before has come so far.
            if record.owned.covers(slots) {
                return Ok(());
            }
            if !record.is_sealed || record.importing != *slots {
                return Err(Failure::error("the entries of the slots are not all there"));
            }
            record.importing = SlotSet::default();
            record.owned = record.owned.union(slots);
            record.take_back(slots);
            record.is_sealed = false;
            record.since = primary.latest();
            Ok(())
        })?;
        Ok(Reply::OK)
    }

    fn done(&self, attempt: u64, slots: &SlotSet) -> Result<Reply, Failure> {
        self.owner.change(attempt, |record| {
            let apart = record.owned.union(&record.importing);
            record.leftover = record.leftover.union(&slots.without(&apart));
            Ok(())
        })?;
        self.owner.forget_changes();
        Ok(Reply::OK)
    }
}
