//! [`ShardMap`]: the shards, their nodes and their slots, as a numbered object.
//!
//! Each change is a new object, by put-if-absent under the next number, so of two changes one wins. The number of a map
//! is also the *attempt* of a mover: servers refuse the commands of an older one.
//!
//! ```text
//! shards/{number, 20 digits}
//! offset size name
//!      0    8 magic "SILTSHRD"
//!      8    4 format version 1
//!     12    4 zero
//!     16    8 number of the map
//!     24   16 put id: two writers of one number differ in it
//!     40    - shards: count (varint); of each its name (bytes), count of nodes (varint), nodes (bytes), epoch and
//!             sequence number of its floor (varints)
//!      -    - ranges, in order and without a hole from slot 0 to 16383: count (varint); of each its last slot and the
//!             place of its shard (varints)
//!      -    1 the move: 0 none, 1 its slots are copied, 2 its slots are given to the new owner
//!      -    - of a move: places of the old and the new owner (varints), count of ranges (varint), of each the first
//!             and the last slot (varints)
//!      -    8 checksum: XXH3-64 of all before
//! ```
//!
//! Bytes are their length (varint) and themselves. Places of shards never change: cursors of walks have them.
//!
//! Invariants:
//! 1. Each slot has one owner. It changes only from a map whose move has the slot in step 1 to the next one, in step 2.
//! 2. A map that is not sound is refused as a whole.
//! 3. A state of a shard as of its floor, or later, has all entries that slots brought from other shards.

use std::path::PathBuf;

use siltstone::{Commit, Epoch, Error, ErrorKind, Result, SeqNo};
use storage::codec::{
    Malformed, Reader, decode_checked, put_bytes, put_sum, put_u32, put_u64, put_u128, put_varint,
};

use super::slots::{SLOTS, SlotSet};

const MAGIC: [u8; 8] = *b"SILTSHRD";
const VERSION: u32 = 1;
/// A cursor of a walk has few bits for the place of a shard.
pub(crate) const SHARDS_MAX: usize = 1_000;
const NODES_MAX: usize = 1_000;
/// The longest name of a shard and of a node.
const NAME_BYTES_MAX: usize = 64;
const NODE_BYTES_MAX: usize = 4_096;

/// That of a shard to which no slots have come.
const NO_FLOOR: Commit = Commit { seq: SeqNo::ZERO, epoch: Epoch(0) };

/// A shard, in a [`ShardMap`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its name: letters, digits, `-` and `_`.
    pub name: String,
    /// The addresses of its nodes, in any order. `@FILE` names a file of them, one a line.
    pub nodes: Vec<String>,
}

impl Shard {
    /// Reads `NAME=NODE,NODE...`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for anything else.
    ///
    /// # Examples
    /// ```
    /// let shard = server::Shard::parse("a=10.0.0.1:6379,10.0.0.2:6379")?;
    /// assert_eq!((&shard.name[..], shard.nodes.len()), ("a", 2));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn parse(text: &str) -> Result<Shard> {
        let (name, nodes) = text.split_once('=').ok_or_else(|| no_shard(text))?;
        let nodes = nodes.split(',').map(str::to_owned);
        let shard = Shard { name: name.to_owned(), nodes: nodes.collect() };
        if shard.is_sound() { Ok(shard) } else { Err(no_shard(text)) }
    }

    fn is_sound(&self) -> bool {
        let nodes = 1..=NODES_MAX;
        is_name(&self.name)
            && nodes.contains(&self.nodes.len())
            && self.nodes.iter().all(|node| (1..=NODE_BYTES_MAX).contains(&node.len()))
    }
}

fn no_shard(text: &str) -> Error {
    let message = format!("{text:?} is no shard: NAME=NODE,NODE...");
    Error::new(ErrorKind::InvalidArgument, message)
}

/// Returns whether `name` may be that of a shard.
pub(crate) fn is_name(name: &str) -> bool {
    let is_short = (1..=NAME_BYTES_MAX).contains(&name.len());
    is_short && name.bytes().all(|it| it.is_ascii_alphanumeric() || b"-_".contains(&it))
}

/// The step of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The slots are copied, and of the old owner.
    Copying = 1,
    /// All is copied, and the slots are of the new owner.
    Given = 2,
}

impl Step {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Step::Copying => "copying",
            Step::Given => "given",
        }
    }
}

/// Slots on their way from one shard to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) step: Step,
    /// The places of the shards.
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) slots: SlotSet,
}

/// The shards, their nodes and their slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardMap {
    /// From 1 on.
    pub(crate) number: u64,
    pub(crate) put_id: u128,
    pub(crate) shards: Vec<Shard>,
    /// The place of the owner of each slot.
    owners: Vec<u16>,
    /// The commit of the last arrival of slots at each shard. A session reads no older state of it.
    floors: Vec<Commit>,
    pub(crate) moving: Option<Move>,
}

impl ShardMap {
    /// The first map: the shards have equal parts of the slots.
    pub(crate) fn first(shards: Vec<Shard>) -> Result<ShardMap> {
        let count = shards.len();
        let places = (0..usize::from(SLOTS)).map(|slot| slot * count / usize::from(SLOTS));
        let owners = places.map(|place| place as u16).collect();
        let floors = vec![NO_FLOOR; count];
        ShardMap { number: 1, put_id: 0, shards, owners, floors, moving: None }.checked()
    }

    fn checked(self) -> Result<ShardMap> {
        match self.wrong() {
            Some(what) => Err(Error::new(ErrorKind::InvalidArgument, what)),
            None => Ok(self),
        }
    }

    /// The reason why it is not sound.
    fn wrong(&self) -> Option<&'static str> {
        if !(1..=SHARDS_MAX).contains(&self.shards.len()) {
            return Some("a map has 1 to 1000 shards");
        }
        if !self.shards.iter().all(Shard::is_sound) {
            return Some(
                "a shard has a name of 1 to 64 letters, digits, - and _, and 1 to 1000 nodes",
            );
        }
        let mut names: Vec<&str> = self.shards.iter().map(|shard| &*shard.name).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Some("two shards have one name");
        }
        let count = self.shards.len();
        if self.owners.iter().any(|owner| usize::from(*owner) >= count) {
            return Some("a slot of a shard that is not there");
        }
        let moving = self.moving.as_ref()?;
        let owner = if moving.step == Step::Copying { moving.from } else { moving.to };
        let is_sound = moving.from != moving.to
            && moving.from.max(moving.to) < count
            && !moving.slots.is_empty()
            && moving.slots.slots().all(|slot| self.owner(slot) == owner);
        (!is_sound).then_some("a move of slots that their owner does not have")
    }

    /// The number: the first map has 1, and each change the next one.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The shards, at their places.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The place of the owner of `slot`.
    pub(crate) fn owner(&self, slot: u16) -> usize {
        usize::from(self.owners[usize::from(slot)])
    }

    /// The slots of the shard at `place` in [`ShardMap::shards`].
    pub fn slots_of(&self, place: usize) -> SlotSet {
        let mut slots = SlotSet::default();
        (0..SLOTS).filter(|slot| self.owner(*slot) == place).for_each(|slot| slots.add(slot, slot));
        slots
    }

    /// The place of the shard `name`.
    pub(crate) fn place(&self, name: &str) -> Result<usize> {
        let found = self.shards.iter().position(|shard| shard.name == name);
        found.ok_or_else(|| {
            let message = format!("there is no shard {name:?}; the shards are {}", self.names());
            Error::new(ErrorKind::InvalidArgument, message)
        })
    }

    /// The commit from which on the shard at `place` has all that slots have brought.
    pub(crate) fn floor(&self, place: usize) -> Commit {
        self.floors.get(place).copied().unwrap_or(NO_FLOOR)
    }

    /// This map, with a floor of the shard at `place`.
    pub(crate) fn with_floor(mut self, place: usize, floor: Commit) -> ShardMap {
        self.floors[place] = floor;
        self
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.shards.iter().map(|shard| &*shard.name).collect();
        names.join(", ")
    }

    /// The next map, with this move. In step 2 its slots are of the new owner.
    pub(crate) fn with_move(&self, moving: Option<Move>) -> Result<ShardMap> {
        let mut next = ShardMap { number: self.number + 1, moving, ..self.clone() };
        if let Some(Move { step: Step::Given, to, slots, .. }) = &next.moving {
            let owner = *to as u16;
            for slot in slots.slots() {
                next.owners[usize::from(slot)] = owner;
            }
        }
        next.checked()
    }

    /// The next map, with a shard more, which has no slot, or with other nodes of a shard.
    pub(crate) fn with_shard(&self, shard: Shard) -> Result<ShardMap> {
        let mut next = ShardMap { number: self.number + 1, ..self.clone() };
        match next.shards.iter_mut().find(|known| known.name == shard.name) {
            Some(known) => known.nodes = shard.nodes,
            None => {
                next.shards.push(shard);
                next.floors.push(NO_FLOOR);
            }
        }
        next.checked()
    }

    /// The move in one line, if there is one.
    pub fn moving_text(&self) -> Option<String> {
        self.moving.as_ref().map(|moving| {
            let from = &self.shards[moving.from].name;
            let to = &self.shards[moving.to].name;
            let step = moving.step.name();
            format!("slots {} are on their way from {from} to {to}: {step}", moving.slots)
        })
    }

    pub(super) fn with_put_id(self, put_id: u128) -> ShardMap {
        ShardMap { put_id, ..self }
    }

    /// The bytes of the object.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        put_u32(&mut out, VERSION);
        put_u32(&mut out, 0);
        put_u64(&mut out, self.number);
        put_u128(&mut out, self.put_id);
        put_varint(&mut out, self.shards.len() as u64);
        for (shard, floor) in self.shards.iter().zip(&self.floors) {
            put_bytes(&mut out, shard.name.as_bytes());
            put_varint(&mut out, shard.nodes.len() as u64);
            shard.nodes.iter().for_each(|node| put_bytes(&mut out, node.as_bytes()));
            put_varint(&mut out, u64::from(floor.epoch.0));
            put_varint(&mut out, floor.seq.get());
        }
        let ranges: Vec<&[u16]> = self.owners.chunk_by(|one, other| one == other).collect();
        put_varint(&mut out, ranges.len() as u64);
        let mut end = 0;
        for range in ranges {
            end += range.len() as u64;
            put_varint(&mut out, end - 1);
            put_varint(&mut out, u64::from(range[0]));
        }
        out.push(self.moving.as_ref().map_or(0, |moving| moving.step as u8));
        if let Some(moving) = &self.moving {
            put_varint(&mut out, moving.from as u64);
            put_varint(&mut out, moving.to as u64);
            put_slots(&mut out, &moving.slots);
        }
        put_sum(&mut out);
        out
    }

    /// Reads the object `name`, which has the map `number`.
    ///
    /// # Errors
    /// Corruption that names the object.
    pub(crate) fn decode(name: &str, number: u64, bytes: &[u8]) -> Result<ShardMap> {
        let decoded = decode_checked(bytes, |reader| {
            header(reader, MAGIC, VERSION)?;
            body(reader)
        });
        let map = decoded.map_err(|wrong| corrupt(name, wrong))?;
        if map.number != number {
            return Err(corrupt(name, Malformed { what: "the number of another map", at: 16 }));
        }
        Ok(map)
    }
}

pub(super) fn corrupt(name: &str, wrong: Malformed) -> Error {
    Error::corruption(PathBuf::from(name), wrong.at as u64, wrong.what)
}

pub(super) fn header(
    reader: &mut Reader<'_>,
    magic: [u8; 8],
    version: u32,
) -> Result<(), Malformed> {
    if reader.take(magic.len())? != magic {
        return Err(Malformed { what: "another magic", at: 0 });
    }
    if reader.u32()? != version {
        return Err(reader.malformed("an unknown format version: a newer siltstone wrote it"));
    }
    if reader.u32()? != 0 {
        return Err(reader.malformed("flags that are not known"));
    }
    Ok(())
}

pub(super) fn put_slots(out: &mut Vec<u8>, slots: &SlotSet) {
    let ranges = slots.ranges();
    put_varint(out, ranges.len() as u64);
    for (first, last) in ranges {
        put_varint(out, u64::from(first));
        put_varint(out, u64::from(last));
    }
}

fn slot(reader: &mut Reader<'_>) -> Result<u16, Malformed> {
    let slot = u16::try_from(reader.varint()?).ok().filter(|slot| *slot < SLOTS);
    slot.ok_or(reader.malformed("a slot above 16383"))
}

pub(super) fn slots(reader: &mut Reader<'_>) -> Result<SlotSet, Malformed> {
    let mut slots = SlotSet::default();
    let mut after = 0;
    for _ in 0..count(reader, usize::from(SLOTS))? {
        let ends = [slot(reader)?, slot(reader)?];
        let [first, last] = ends;
        if first > last || first < after {
            return Err(reader.malformed("ranges of slots that are not in order"));
        }
        slots.add(first, last);
        after = last + 1;
    }
    Ok(slots)
}

/// A number of items that follow: each has a byte at least.
fn count(reader: &mut Reader<'_>, most: usize) -> Result<usize, Malformed> {
    let count = reader.length()?;
    if count > most {
        return Err(reader.malformed("too many items"));
    }
    Ok(count)
}

pub(super) fn text(reader: &mut Reader<'_>) -> Result<String, Malformed> {
    let bytes = reader.bytes()?;
    let text = std::str::from_utf8(bytes).map(str::to_owned);
    text.map_err(|_| reader.malformed("a name that is no text"))
}

fn body(reader: &mut Reader<'_>) -> Result<ShardMap, Malformed> {
    let number = reader.u64()?;
    let put_id = reader.u128()?;
    let mut shards = Vec::new();
    let mut floors = Vec::new();
    for _ in 0..count(reader, SHARDS_MAX)? {
        let name = text(reader)?;
        let mut nodes = Vec::new();
        for _ in 0..count(reader, NODES_MAX)? {
            nodes.push(text(reader)?);
        }
        shards.push(Shard { name, nodes });
        floors.push(floor(reader)?);
    }
    let mut owners = Vec::with_capacity(usize::from(SLOTS));
    for _ in 0..count(reader, usize::from(SLOTS))? {
        let last = usize::from(slot(reader)?);
        let owner = u16::try_from(reader.varint()?).unwrap_or(u16::MAX);
        if last < owners.len() {
            return Err(reader.malformed("ranges of slots that are not in order"));
        }
        owners.resize(last + 1, owner);
    }
    if owners.len() != usize::from(SLOTS) {
        return Err(reader.malformed("slots without an owner"));
    }
    let moving = moving(reader)?;
    let map = ShardMap { number, put_id, shards, owners, floors, moving };
    match map.wrong() {
        Some(what) => Err(reader.malformed(what)),
        None => Ok(map),
    }
}

fn floor(reader: &mut Reader<'_>) -> Result<Commit, Malformed> {
    let epoch = u32::try_from(reader.varint()?).ok().map(Epoch);
    let seq = SeqNo::new(reader.varint()?);
    let floor = epoch.zip(seq).map(|(epoch, seq)| Commit { seq, epoch });
    floor.ok_or(reader.malformed("an impossible commit"))
}

fn moving(reader: &mut Reader<'_>) -> Result<Option<Move>, Malformed> {
    let step = match reader.u8()? {
        0 => return Ok(None),
        1 => Step::Copying,
        2 => Step::Given,
        _ => return Err(reader.malformed("an unknown step of a move")),
    };
    let from = usize::try_from(reader.varint()?).unwrap_or(usize::MAX);
    let to = usize::try_from(reader.varint()?).unwrap_or(usize::MAX);
    Ok(Some(Move { step, from, to, slots: slots(reader)? }))
}

#[cfg(test)]
mod tests;
