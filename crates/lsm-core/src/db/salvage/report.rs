//! [`SalvageReport`]: the damaged places of a database, and the keys that a salvage cannot vouch for.
//!
//! Called by everything that reads in spite of damage. It reads nothing itself.

use std::path::Path;

use crate::error::{Damage, Error};
use crate::types::KeyForm;

/// A range of keys about which a repair is not sure: a key in it may be absent, have an older value, or be one that was
/// deleted. A key that has a value in the new database had this value once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DoubtfulKeys {
    /// The partition; `None` for all of them.
    pub partition: Option<String>,
    /// The first and the last key; `None` for all keys.
    pub keys: Option<(Vec<u8>, Vec<u8>)>,
    /// The reason, in one phrase.
    pub why: String,
}

/// A partition that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SalvagedPartition {
    /// Its name.
    pub name: String,
    /// The number of keys with a value.
    pub entries: u64,
}

/// The result of a salvage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SalvageReport {
    /// The partitions, in the order of their names.
    pub partitions: Vec<SalvagedPartition>,
    /// Every damaged place. With a key if that key is lost and nothing else.
    pub damage: Vec<Damage>,
    /// The keys that may not be what they were. Each of them is the result of a damaged place.
    pub doubtful: Vec<DoubtfulKeys>,
    /// The places that were damaged and have their content again, each with its source.
    pub repaired: Vec<(Damage, String)>,
}

impl SalvageReport {
    /// Returns `true` if every key is what it was.
    pub fn is_complete(&self) -> bool {
        self.doubtful.is_empty()
    }

    /// Returns `true` if the key of the partition may not be what it was.
    pub fn is_doubtful(&self, partition: &str, key: &[u8]) -> bool {
        self.doubtful.iter().any(|doubt| {
            doubt.partition.as_deref().is_none_or(|name| name == partition)
                && doubt
                    .keys
                    .as_ref()
                    .is_none_or(|(first, last)| first.as_slice() <= key && key <= last.as_slice())
        })
    }

    /// Adds damage; without a manifest, or without a part of the log, all keys are in doubt.
    pub(super) fn doubt_all(&mut self, partition: Option<&str>, why: impl Into<String>) {
        let doubt =
            DoubtfulKeys { partition: partition.map(str::to_owned), keys: None, why: why.into() };
        if !self.doubtful.contains(&doubt) {
            self.doubtful.push(doubt);
        }
    }

    /// Adds the damage that `error` describes.
    pub(super) fn add(&mut self, error: &Error, file: &Path) {
        let damage = Damage::of(error, file);
        if !self.damage.contains(&damage) {
            self.damage.push(damage);
        }
    }

    /// The keys from one stored key to another are in doubt.
    pub(super) fn doubt(
        &mut self,
        partition: &str,
        form: KeyForm,
        keys: (&[u8], &[u8]),
        why: &str,
    ) {
        let keys = (form.user(keys.0).to_vec(), form.user(keys.1).to_vec());
        let partition = Some(partition.to_owned());
        self.doubtful.push(DoubtfulKeys { partition, keys: Some(keys), why: why.to_owned() });
    }
}
