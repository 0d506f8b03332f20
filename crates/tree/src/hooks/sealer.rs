//! [`Sealer`]: the contract of filters that add hidden entries, about tables, blocks and gaps.
//!
//! A flush or compaction verifies blocks of input tables through `compaction/inputs.rs`; a repair of a table calls it
//! through `compaction/damaged.rs`, and a gap is restored by `db/restore.rs`.

use std::sync::Arc;

use super::{DamagedTable, InputTable, NoteForm, OwnedEntry, RepairSources, TableRepair, Verifier};
use crate::error::Result;
use crate::types::Gap;

/// The part of a [`CompactionFilterFactory`](super::CompactionFilterFactory) for filters that add hidden entries, such as
/// metadata of each entry.
pub trait Sealer: Send + Sync {
    /// Checks whether the filter can process a table. Called for each table when a partition with
    /// other hooks gets this one.
    ///
    /// # Errors
    /// An error makes the change of hooks fail.
    fn check_table(&self, table: &InputTable) -> Result<()> {
        let _ = table;
        Ok(())
    }

    /// Returns `true` if two neighbouring tables of a level belong in one job, by the largest user
    /// key of the left one and the smallest of the right one. Called under locks of the engine: it
    /// looks at the keys and calls nothing of the database.
    fn joined(&self, left_largest: &[u8], right_smallest: &[u8]) -> bool {
        let _ = (left_largest, right_smallest);
        false
    }

    /// Returns `true` if it [verifies](Self::verifier) and [repairs](Self::repair) the blocks of input tables.
    /// Default: no.
    fn verifies(&self) -> bool {
        false
    }

    /// Returns the verifier of the blocks of the inputs of a job. It
    /// compares each entry with its hidden entry if it `compares`; otherwise each entry comes to the filter,
    /// which compares it there. Without a verifier, the filter sees every entry, hidden ones too.
    ///
    /// # Errors
    /// An error fails the job.
    fn verifier(&self, inputs: &[InputTable], compares: bool) -> Result<Option<Verifier>> {
        let _ = (inputs, compares);
        Ok(None)
    }

    /// Returns the repair of a damaged table, for a filter that [verifies](Self::verifies). `input` has the properties of the table.
    ///
    /// # Errors
    /// An error fails the job.
    fn repair(
        &self,
        input: &InputTable,
        table: &DamagedTable,
        sources: &Arc<dyn RepairSources>,
    ) -> Result<Option<Box<dyn TableRepair>>> {
        let _ = (input, table, sources);
        Ok(None)
    }

    /// Returns `true` if the filter knows another copy of the data, which [`restore`](Self::restore) can
    /// read. Default: no.
    fn restores(&self) -> bool {
        false
    }

    /// Returns the entries of a gap from another copy: for every key in the gap (both ends included), the
    /// newest entry that is not newer than the gap. A key without an entry had no value. Returns `None`
    /// if there is no such copy, or if the copy is older than the gap. Default: `None`.
    ///
    /// # Errors
    /// The errors of the copy.
    fn restore(&self, gap: &Gap) -> Result<Option<Vec<OwnedEntry>>> {
        let _ = gap;
        Ok(None)
    }

    /// Returns the form of hidden entries that are made of notes, if the filter has one. The engine asks
    /// once, when the filter is attached. Without a [reserved suffix](super::Rules::reserved_suffix) it has no
    /// effect. Default: `None`.
    ///
    /// After a boundary at which the filter is [idle](super::Cut::Idle), the first version of a user key is
    /// [noted](super::Output::is_noted): the engine makes its hidden entry of the note. As long as the hidden entry
    /// of each such entry sorts before the next key, no [`boundary`](super::CompactionFilter::boundary) is called
    /// either. If another version of the key of such an entry comes, or a key that sorts before its hidden
    /// entry, or an [`input`](super::CompactionFilter::input) without a note, the engine first calls
    /// [`take_back`](super::CompactionFilter::take_back).
    fn note_form(&self) -> Option<Arc<dyn NoteForm>> {
        None
    }
}
