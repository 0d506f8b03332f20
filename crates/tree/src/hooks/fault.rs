//! [`Fault`]: an entry that a filter found damaged. [`OwnedEntry`]: an entry by itself.
//!
//! Filters, verifiers and repairs report faults; the engine passes them to listeners as events.

use super::Origin;
use crate::types::{EntryKind, SeqNo};

/// An entry that a filter found damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its stored key.
    pub key: Vec<u8>,
    /// Its stored sequence number.
    pub seq: SeqNo,
    /// Its kind according to its bytes.
    pub kind: EntryKind,
    /// Its bytes; empty if the filter did not have them any more. [`Fault::at`] is their place.
    pub value: Vec<u8>,
    /// Its place.
    pub at: Origin,
    /// The defect, in one phrase.
    pub what: String,
}

/// The damage that a filter has found so far.
#[derive(Debug, Default)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// Notes a fault: the job installs nothing.
    pub fn push(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    /// The first fault.
    pub fn first(&self) -> Option<&Fault> {
        self.0.first()
    }

    /// Takes the first out, if there is one.
    pub fn take_first(&mut self) -> Option<Fault> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }
}

/// An entry by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedEntry {
    /// Its key.
    pub key: Vec<u8>,
    /// Its sequence number.
    pub seq: SeqNo,
    /// Its kind.
    pub kind: EntryKind,
    /// Its value.
    pub value: Vec<u8>,
    /// `true` if the block or frame that it came from verified.
    pub verified: bool,
}
