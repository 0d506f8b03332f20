//! Which faulty entries were dealt with by other means than their metadata.
//!
//! A repair fills it, the filters of later runs of the job ask it: an entry that came out of the
//! log has no metadata to agree with, and a poisoned one disagrees for ever.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use lsm_core::hooks::{InputTable, Origin};
use lsm_core::types::FileNo;

/// Where an entry lies, without what may change between two runs of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) file: Option<FileNo>,
    pub(crate) block_offset: u64,
    pub(crate) entry: u32,
}

impl From<&Origin> for Place {
    fn from(at: &Origin) -> Place {
        Place { file: at.file, block_offset: at.block_offset, entry: at.entry }
    }
}

/// What was put at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// An entry with this checksum.
    Bytes(u64),
    /// A poison record.
    Poison,
}

#[derive(Debug, Default)]
pub(crate) struct SettledPlaces(Mutex<HashMap<Place, Settled>>);

impl SettledPlaces {
    pub(crate) fn insert(&self, place: Place, settled: Settled) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(place, settled);
    }

    pub(crate) fn get(&self, place: Place) -> Option<Settled> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&place).copied()
    }

    /// Those in the inputs of a job.
    pub(crate) fn of(&self, inputs: &[InputTable]) -> HashMap<Place, Settled> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let in_job = |place: &Place| inputs.iter().any(|input| Some(input.file) == place.file);
        all.iter().filter(|(place, _)| in_job(place)).map(|(p, s)| (*p, *s)).collect()
    }
}
