//! [`Pins`]: the versions of the database that a secondary's views still read.
//!
//! Each view holds an [`EditPin`] of the manifest edit of its version. The lease names the oldest
//! one.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::types::Process;

/// The edits that views hold, and the number of views of each.
pub(super) struct Pins {
    /// No other one takes the lock.
    process: Process,
    held: Mutex<BTreeMap<u64, usize>>,
}

/// Holds the version of an edit.
pub(super) struct EditPin {
    pins: Arc<Pins>,
    edit: u64,
}

impl Default for Pins {
    fn default() -> Pins {
        Pins { process: Process::current(), held: Mutex::default() }
    }
}

impl Pins {
    /// Holds the version of `edit`.
    pub(super) fn pin(self: &Arc<Self>, edit: u64) -> EditPin {
        *self.held.lock().entry(edit).or_default() += 1;
        EditPin { pins: self.clone(), edit }
    }

    /// The oldest edit after `lost` that is held.
    pub(super) fn oldest_after(&self, lost: u64) -> Option<u64> {
        let held = self.held.lock();
        held.range(lost.saturating_add(1)..).next().map(|(edit, _)| *edit)
    }
}

impl EditPin {
    /// The edit.
    pub(super) fn edit(&self) -> u64 {
        self.edit
    }
}

impl Drop for EditPin {
    fn drop(&mut self) {
        if !self.pins.process.is_current() {
            return;
        }
        let mut held = self.pins.held.lock();
        if let Some(views) = held.get_mut(&self.edit) {
            *views -= 1;
            if *views == 0 {
                held.remove(&self.edit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_pin_counts_until_its_last_holder_is_gone() {
        let pins = Arc::new(Pins::default());
        let old = [pins.pin(3), pins.pin(3)];
        let new = pins.pin(7);
        assert_eq!(pins.oldest_after(0), Some(3));
        let [first, second] = old;
        drop(first);
        assert_eq!(pins.oldest_after(2), Some(3));
        drop(second);
        assert_eq!((pins.oldest_after(0), new.edit()), (Some(7), 7));
        assert_eq!(pins.oldest_after(7), None, "its lease was taken away");
        drop(new);
        assert_eq!(pins.oldest_after(0), None);
    }
}
