//! [`Pins`]: the versions of the database that a secondary's views still read.
//!
//! Each view holds an [`EditPin`] of the manifest edit of its version. The lease names the oldest
//! one. Where the file system holds names, the pins of an edit hold those that it found with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::fs::HeldNames;
use crate::types::Process;

/// The views of an edit.
struct PinnedEdit {
    views: usize,
    /// Of the round that has pinned the edit first: it has all files of the version.
    names: Option<HeldNames>,
}

#[derive(Default)]
struct PinState {
    /// The edits that views hold.
    by_edit: BTreeMap<u64, PinnedEdit>,
    /// The names of the present round.
    names: Option<HeldNames>,
}

/// The edits that views hold, and the number of views of each.
pub(super) struct Pins {
    /// No other one takes the lock.
    process: Process,
    held: Mutex<PinState>,
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
    /// Ends a round: all that its views name has appeared. Those of the newest edit may have names of an earlier round,
    /// and show memtables of this one.
    pub(super) fn end_round(&self) {
        let held = self.held.lock();
        let newest = held.by_edit.last_key_value().and_then(|(_, pinned)| pinned.names.clone());
        let names = [held.names.clone(), newest];
        drop(held);
        // Not under the lock, as below.
        names.iter().flatten().for_each(|names| names.settle());
    }

    /// Begins a round: what it pins first holds `names`.
    pub(super) fn begin_round(&self, names: Option<HeldNames>) {
        let before = std::mem::replace(&mut self.held.lock().names, names);
        // Not under the lock: the file system takes its own.
        drop(before);
    }

    /// Holds the version of `edit`.
    pub(super) fn pin(self: &Arc<Self>, edit: u64) -> EditPin {
        let mut held = self.held.lock();
        let names = held.names.clone();
        let pinned = held.by_edit.entry(edit).or_insert(PinnedEdit { views: 0, names });
        pinned.views += 1;
        drop(held);
        EditPin { pins: self.clone(), edit }
    }

    /// The oldest edit after `lost` that is held.
    pub(super) fn oldest_after(&self, lost: u64) -> Option<u64> {
        let held = self.held.lock();
        held.by_edit.range(lost.saturating_add(1)..).next().map(|(edit, _)| *edit)
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
        let Some(pinned) = held.by_edit.get_mut(&self.edit) else { return };
        pinned.views -= 1;
        let gone = if pinned.views == 0 { held.by_edit.remove(&self.edit) } else { None };
        drop(held);
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::fs::NameHolder;

    /// Counts its calls.
    #[derive(Default)]
    struct NoNames(AtomicU64);

    impl NameHolder for NoNames {
        fn settle(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

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

    #[test]
    fn an_edit_holds_the_names_of_its_first_round_until_its_last_view_is_gone() {
        let pins = Arc::new(Pins::default());
        let first: HeldNames = Arc::<NoNames>::default();
        let names = Arc::downgrade(&first);
        pins.begin_round(Some(first));
        let old = pins.pin(3);
        pins.begin_round(Some(Arc::<NoNames>::default()));
        let again = pins.pin(3);
        pins.begin_round(None);
        drop(old);
        assert!(names.upgrade().is_some());
        drop(again);
        assert!(names.upgrade().is_none());
    }

    /// Its views show the memtables of later rounds, too.
    #[test]
    fn the_names_of_the_newest_edit_settle_after_each_round() {
        let pins = Arc::new(Pins::default());
        let names = [(); 3].map(|()| Arc::<NoNames>::default());
        let mut views = Vec::new();
        for (names, edit) in names.iter().zip([3, 3, 4]) {
            pins.begin_round(Some(names.clone()));
            views.push(pins.pin(edit));
            pins.end_round();
        }
        // Twice for the first round: by itself, and as the newest edit.
        assert_eq!(names.map(|it| it.0.load(Ordering::Relaxed)), [3, 1, 2]);
    }
}
