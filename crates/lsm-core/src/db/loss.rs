//! The owner's word on what is lost: [`Partition::gaps`] and [`Partition::accept_loss`].
//!
//! Gaps are found by compactions and kept by the manifest: see `types/gap.rs`.

use std::ops::Bound;

use super::Partition;
use super::job::gaps_added;
use crate::error::Result;
use crate::read::{Bounds, KeyRange, stored_bounds};
use crate::types::{Gap, PartitionId, SeqNo};
use crate::version::Change;

impl Partition {
    /// The stretches of keys that are damaged beyond repair. Reads in them are errors unless a
    /// newer entry answers. Keys are as they are stored: with a zero byte behind them in a
    /// partition that takes any key.
    pub fn gaps(&self) -> Vec<Gap> {
        self.state().view().version.gaps.open().cloned().collect()
    }

    /// Gives up what is lost in `range`: every entry there that is not newer than the loss is
    /// hidden for good, so that no older value rises from a deeper level, and reads and scans are
    /// answered again. Returns the gaps that were given up, cut to the range.
    ///
    /// Snapshots that were taken before go on being refused there.
    ///
    /// # Errors
    /// Those of the manifest; a closed database, a dropped partition.
    ///
    /// # Durability
    /// Durable once this returns.
    pub fn accept_loss(&self, range: impl KeyRange) -> Result<Vec<Gap>> {
        self.db().check_writable()?;
        self.state().check_live()?;
        let bounds = stored_bounds(self.state().key_form, range.bounds());
        // Nobody else closes gaps meanwhile.
        let _between = self.db().between_groups();
        let mut editing = self.db().catalog.edit()?;
        let id = self.state().id;
        let Some(version) = editing.current().partitions.get(id).cloned() else {
            return self.state().check_live().map(|()| Vec::new());
        };
        let now = self.db().commit.visible_seq();
        let mut changes = Vec::new();
        let mut given_up = Vec::new();
        for gap in version.gaps.open() {
            let Some((within, rest)) = gap.split(borrowed(&bounds)) else { continue };
            changes.extend(closing(id, gap, &within, &rest, now));
            given_up.push(within);
        }
        if !changes.is_empty() {
            let version = editing.install(changes)?;
            self.state().install(version.partitions[&id].clone(), None);
        }
        Ok(given_up)
    }
}

/// The changes that close the part `within` of an open gap from `seq` on; `rest` stays open.
pub(super) fn closing(
    partition: PartitionId,
    gap: &Gap,
    within: &Gap,
    rest: &[Gap],
    seq: SeqNo,
) -> Vec<Change> {
    let closed = Gap { closed_at: Some(seq), ..within.clone() };
    let mut changes = vec![Change::GapRemoved { partition, gap: gap.clone() }];
    changes.extend(gaps_added(partition, rest));
    changes.push(Change::GapAdded { partition, gap: closed });
    changes
}

fn borrowed(bounds: &Bounds) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (bounds.0.as_ref().map(Vec::as_slice), bounds.1.as_ref().map(Vec::as_slice))
}
