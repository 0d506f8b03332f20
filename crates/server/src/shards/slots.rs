//! [`slot_of`] and [`SlotSet`]: hash slots, as in Redis Cluster.
//!
//! The slot of a key is the CRC16 of the key, or of its hash tag, modulo 16,384. So clients and tools that compute slots
//! find the same ones.

use std::fmt;

use siltstone::{Error, ErrorKind, Result};

/// All slots.
pub(crate) const SLOTS: u16 = 16_384;
/// The longest text of a set: each second slot.
const RANGES_MAX: usize = SLOTS as usize / 2;

/// The slot of a key: of what is between its first `{` and the next `}`, if that is not empty, or else of the whole key.
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(tag_of(key)) % SLOTS
}

fn tag_of(key: &[u8]) -> &[u8] {
    let Some(begin) = key.iter().position(|byte| *byte == b'{') else { return key };
    let rest = &key[begin + 1..];
    match rest.iter().position(|byte| *byte == b'}') {
        None | Some(0) => key,
        Some(end) => &rest[..end],
    }
}

/// CRC16 of XMODEM: polynomial 0x1021, begin 0, no reflection.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let mut crc = crc ^ u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
        }
        crc
    })
}

/// A set of slots.
#[derive(Clone, PartialEq, Eq)]
pub struct SlotSet(Box<[u64; SLOTS as usize / 64]>);

impl Default for SlotSet {
    fn default() -> SlotSet {
        SlotSet(Box::new([0; SLOTS as usize / 64]))
    }
}

impl SlotSet {
    /// Reads ranges such as `0-99,7000`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for anything else, and for slots above 16,383.
    ///
    /// # Examples
    /// ```
    /// let slots = server::SlotSet::parse("7000,0-99")?;
    /// assert_eq!(slots.to_string(), "0-99,7000");
    /// assert!(slots.contains(99) && !slots.contains(100));
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn parse(text: &str) -> Result<SlotSet> {
        let mut slots = SlotSet::default();
        let ranges = text.split(',').filter(|range| !range.is_empty());
        for range in ranges {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let ends = first.parse().ok().zip(last.parse().ok());
            let ends = ends.filter(|(first, last)| first <= last && *last < SLOTS);
            let Some((first, last)) = ends else {
                let message =
                    format!("{range:?} is no range of slots: FIRST-LAST, from 0 to 16383");
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            };
            slots.add(first, last);
        }
        Ok(slots)
    }

    /// Adds the slots from `first` to `last`.
    ///
    /// # Panics
    /// If `last` is no slot.
    pub(crate) fn add(&mut self, first: u16, last: u16) {
        assert!(last < SLOTS, "a slot is less than {SLOTS}");
        for slot in first..=last {
            self.0[usize::from(slot / 64)] |= 1 << (slot % 64);
        }
    }

    /// Returns whether it has `slot`.
    pub fn contains(&self, slot: u16) -> bool {
        self.0.get(usize::from(slot / 64)).is_some_and(|word| word & 1 << (slot % 64) != 0)
    }

    /// Returns whether it has the slot of `key`.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.contains(slot_of(key))
    }

    /// The number of its slots.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns whether it has no slot.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    fn with(&self, other: &SlotSet, combine: fn(u64, u64) -> u64) -> SlotSet {
        let mut words = self.0.clone();
        words
            .iter_mut()
            .zip(other.0.iter())
            .for_each(|(word, other)| *word = combine(*word, *other));
        SlotSet(words)
    }

    /// The slots of both.
    pub(crate) fn union(&self, other: &SlotSet) -> SlotSet {
        self.with(other, |one, other| one | other)
    }

    /// The slots that both have.
    pub(crate) fn common(&self, other: &SlotSet) -> SlotSet {
        self.with(other, |one, other| one & other)
    }

    /// Its slots without those of `other`.
    pub(crate) fn without(&self, other: &SlotSet) -> SlotSet {
        self.with(other, |one, other| one & !other)
    }

    /// Returns whether it has all slots of `other`.
    pub(crate) fn covers(&self, other: &SlotSet) -> bool {
        other.without(self).is_empty()
    }

    /// Its slots, in their order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u16> + '_ {
        (0..SLOTS).filter(|slot| self.contains(*slot))
    }

    /// The first and the last slot of each range, in their order. At most [`RANGES_MAX`] ranges.
    pub(crate) fn ranges(&self) -> Vec<(u16, u16)> {
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for slot in self.slots() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == slot => *last = slot,
                _ => ranges.push((slot, slot)),
            }
        }
        debug_assert!(ranges.len() <= RANGES_MAX, "ranges do not touch");
        ranges
    }
}

impl fmt::Display for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.ranges().into_iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{self}]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis_cluster() {
        // The check value of CRC16/XMODEM, and slots that `CLUSTER KEYSLOT` returns.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, slot) in
            [("", 0), ("foo", 12_182), ("bar", 5061), ("hello", 866), ("somekey", 11_058)]
        {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
        for (key, same) in [
            ("{user1000}.following", "user1000"),
            ("foo{}{bar}", "foo{}{bar}"),
            ("foo{{bar}}zap", "{bar"),
            ("foo{bar}{zap}", "bar"),
            ("foo{bar", "foo{bar"),
        ] {
            assert_eq!(slot_of(key.as_bytes()), crc16(same.as_bytes()) % SLOTS, "{key}");
        }
    }

    #[test]
    fn sets_are_written_as_read() {
        for text in ["", "0", "0-16383", "5,7-9,16383"] {
            assert_eq!(SlotSet::parse(text).unwrap().to_string(), text);
        }
        for wrong in ["16384", "5-3", "a", "1-", "-1", "1-2-3", "0-70000", "1;2"] {
            assert!(SlotSet::parse(wrong).is_err(), "{wrong}");
        }
        let one = SlotSet::parse("0-9").unwrap();
        let other = SlotSet::parse("5-14").unwrap();
        assert_eq!(one.union(&other).to_string(), "0-14");
        assert_eq!(one.common(&other).to_string(), "5-9");
        assert_eq!(one.without(&other).to_string(), "0-4");
        assert!(
            SlotSet::parse("0-16383").unwrap().covers(&one)
                && !one.covers(&other)
                && one.len() == 10
        );
    }
}
