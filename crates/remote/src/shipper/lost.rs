//! Objects that the bucket has lost: the journal of a living primary is looked through, and what it has stored is noted
//! in its folder.

use siltstone::Result;

use super::{BASE_BYTES, Shipper};
use crate::format::{FOLDER_OBJECTS, journal_folder, journal_name, number_of_journal};
use crate::record::{StoredRecord, lost_end};

impl Shipper {
    /// Notes in the folder that the object `number` is stored.
    pub(super) fn record_stored(&self, number: u64) {
        let (fs, dir) = &self.local;
        // Without it an open that finds a shorter journal may continue from that. A full disk must not stop the
        // deletions that make room.
        let _ = StoredRecord::new(dir, self.claimant).note(&**fs, number);
    }

    /// Notes the last object that is stored, at the end of the primary.
    pub(crate) fn record_end(&self) {
        let number = self.number();
        if number > self.claimed {
            self.record_stored(number);
        }
    }

    /// Notes that an open has found a shorter journal than its folder has stored, and that it ships the rest again.
    pub(crate) fn note_lost(&self, number: u64) {
        self.state.lock().lost.get_or_insert(number);
    }

    /// Looks for each object of this writer that the next open needs: those since the last base. If one is missing, the
    /// next open would take it for the end. A base is put, and then it needs none of them.
    ///
    /// # Errors
    /// Corruption that names the object; those of the store.
    pub(crate) fn check_journal(&self) -> Result<()> {
        let state = self.state.lock();
        let last = state.folder.number;
        let first = self.claimed.max(state.base_number + 1);
        drop(state);
        let mut expected = first;
        let folders = first / FOLDER_OBJECTS..=last / FOLDER_OBJECTS;
        for folder in folders.map(|thousands| journal_folder(thousands * FOLDER_OBJECTS)) {
            let listed = self.bucket.list(&folder)?.objects;
            for number in listed.iter().filter_map(|entry| number_of_journal(&entry.name)) {
                if number == expected {
                    expected += 1;
                }
            }
        }
        if expected > last {
            return Ok(());
        }
        let mut state = self.state.lock();
        state.lost.get_or_insert(expected);
        state.bytes_since_base = state.bytes_since_base.max(BASE_BYTES);
        drop(state);
        self.put_due_base()?;
        Err(lost_end(expected, last))
    }

    /// The name of the first object that was found to be lost.
    pub(super) fn lost_object(&self) -> Option<String> {
        self.state.lock().lost.map(journal_name)
    }
}
