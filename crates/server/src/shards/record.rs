//! [`Record`]: the slots of a shard, as its database knows them.
//!
//! It is an entry of the partition `scid`, so it is ordered with the writes, survives takeovers, and reaches readers.
//!
//! ```text
//! entry "shard"
//! offset size name
//!      0    8 magic "SILTSLOT"
//!      8    4 format version 1
//!     12    4 zero
//!     16    8 attempt: number of the map whose mover has changed the record last; 0 before the first one
//!     24    4 epoch, and
//!     28    8 sequence number of the commit from which on all entries of the owned slots are there
//!     36    - name of the shard (bytes)
//!      -    - slots: owned; importing; leftover. Each: count of ranges (varint), their first and last slots (varints)
//!      -    1 1 if all entries of the importing slots are there and durable, or 0
//!      -    - given: count (varint); of each the shard (bytes) and its slots
//!      -    8 checksum: XXH3-64 of all before
//! ```
//!
//! Invariants:
//! 1. A slot is owned, importing or neither. Only an owned slot is read and written.
//! 2. The attempt never goes back: a mover that was replaced changes nothing.

use std::collections::BTreeMap;

use siltstone::{Commit, Epoch, Result, SeqNo};
use storage::codec::{
    Malformed, Reader, decode_checked, put_bytes, put_sum, put_u32, put_u64, put_varint,
};

use super::map::{SHARDS_MAX, corrupt, header, put_slots, slots, text};
use super::slots::SlotSet;
use crate::failure::Failure;

const MAGIC: [u8; 8] = *b"SILTSLOT";
const VERSION: u32 = 1;

/// The slots of a shard, as its database knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) attempt: u64,
    /// A state of this commit, or of a later one, has all entries of the owned slots.
    pub(crate) since: Commit,
    pub(crate) name: String,
    pub(crate) owned: SlotSet,
    /// Their entries come from another shard.
    pub(crate) importing: SlotSet,
    /// All of these are there, and durable.
    pub(crate) is_sealed: bool,
    /// Their entries are to be removed.
    pub(crate) leftover: SlotSet,
    /// The last owner to which this shard has given slots.
    pub(crate) given: BTreeMap<String, SlotSet>,
}

impl Record {
    /// That of a shard without slots.
    pub(crate) fn new(name: &str) -> Record {
        Record {
            attempt: 0,
            since: Commit { seq: SeqNo::ZERO, epoch: Epoch(0) },
            name: name.to_owned(),
            owned: SlotSet::default(),
            importing: SlotSet::default(),
            is_sealed: false,
            leftover: SlotSet::default(),
            given: BTreeMap::new(),
        }
    }

    /// Notes that `slots` were given to the shard `to`.
    pub(crate) fn give(&mut self, slots: &SlotSet, to: &str) {
        self.take_back(slots);
        self.owned = self.owned.without(slots);
        let given = self.given.entry(to.to_owned()).or_default();
        *given = given.union(slots);
    }

    /// Forgets to whom `slots` were given.
    pub(crate) fn take_back(&mut self, slots: &SlotSet) {
        self.given.values_mut().for_each(|given| *given = given.without(slots));
        self.given.retain(|_, given| !given.is_empty());
    }

    /// The refusal of a request with keys of these slots; `None` if all are owned.
    pub(crate) fn refusal(&self, slots: impl Iterator<Item = u16>) -> Option<Failure> {
        let mut refused: Option<u16> = None;
        let mut others = 0;
        for slot in slots {
            match refused {
                _ if self.owned.contains(slot) => others += 1,
                None => refused = Some(slot),
                Some(first) if first == slot => {}
                Some(_) => others += 1,
            }
        }
        let slot = refused?;
        let name = &self.name;
        let text = if others > 0 {
            format!(
                "CROSSSLOT Keys in request don't hash to slots of shard {name}: not slot {slot}"
            )
        } else if self.importing.contains(slot) {
            format!("TRYAGAIN slot {slot} is on its way to shard {name}")
        } else {
            match self.given.iter().find(|(_, given)| given.contains(slot)) {
                Some((to, _)) => format!("MOVED {slot} {to}"),
                None => format!("CLUSTERDOWN Hash slot {slot} is not served by shard {name}"),
            }
        };
        Some(Failure::Refused(text.into()))
    }

    /// The slots by their state.
    pub(crate) fn states(&self) -> [(&'static str, SlotSet); 4] {
        let given = self.given.values().fold(SlotSet::default(), |all, given| all.union(given));
        [
            ("owned", self.owned.clone()),
            ("importing", self.importing.clone()),
            ("given", given),
            ("leftover", self.leftover.clone()),
        ]
    }

    /// Returns whether a state as of `commit` has all entries of the owned slots.
    pub(crate) fn is_whole_at(&self, commit: Commit) -> bool {
        (self.since.epoch, self.since.seq) <= (commit.epoch, commit.seq)
    }

    /// The bytes of the entry.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        put_u32(&mut out, VERSION);
        put_u32(&mut out, 0);
        put_u64(&mut out, self.attempt);
        put_u32(&mut out, self.since.epoch.0);
        put_u64(&mut out, self.since.seq.get());
        put_bytes(&mut out, self.name.as_bytes());
        for slots in [&self.owned, &self.importing, &self.leftover] {
            put_slots(&mut out, slots);
        }
        out.push(u8::from(self.is_sealed));
        put_varint(&mut out, self.given.len() as u64);
        for (name, slots) in &self.given {
            put_bytes(&mut out, name.as_bytes());
            put_slots(&mut out, slots);
        }
        put_sum(&mut out);
        out
    }

    /// Reads the entry.
    ///
    /// # Errors
    /// Corruption.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Record> {
        let decoded = decode_checked(bytes, |reader| {
            header(reader, MAGIC, VERSION)?;
            body(reader)
        });
        decoded.map_err(|wrong| corrupt("the entry \"shard\" of the partition scid", wrong))
    }
}

fn body(reader: &mut Reader<'_>) -> Result<Record, Malformed> {
    let attempt = reader.u64()?;
    let epoch = Epoch(reader.u32()?);
    let seq = SeqNo::new(reader.u64()?).ok_or(reader.malformed("an impossible commit"))?;
    let name = text(reader)?;
    let owned = slots(reader)?;
    let importing = slots(reader)?;
    let leftover = slots(reader)?;
    let is_sealed = match reader.u8()? {
        0 => false,
        1 => true,
        _ => return Err(reader.malformed("neither 0 nor 1")),
    };
    let mut given = BTreeMap::new();
    let count = reader.length()?;
    if count > SHARDS_MAX {
        return Err(reader.malformed("too many shards"));
    }
    for _ in 0..count {
        let name = text(reader)?;
        given.insert(name, slots(reader)?);
    }
    let is_apart = owned.common(&importing).is_empty()
        && leftover.common(&owned.union(&importing)).is_empty()
        && given.values().all(|given| given.common(&owned).is_empty());
    if !is_apart {
        return Err(reader.malformed("a slot that is owned, and something else"));
    }
    let since = Commit { seq, epoch };
    Ok(Record { attempt, since, name, owned, importing, is_sealed, leftover, given })
}

#[cfg(test)]
mod tests;
