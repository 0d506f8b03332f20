//! The memory of walks over tombstones that a cursor uses: that of the memtables of its view.

use super::point::ReadPoint;
use crate::iter::{DeadEntries, DeadRange};
use crate::types::SeqNo;

impl DeadEntries for Option<ReadPoint> {
    fn is_kept(&self) -> bool {
        // A check must see every block on the way. In a view with gaps it is uncertain what a walk
        // would have seen.
        self.as_ref()
            .is_some_and(|point| point.check.is_none() && point.view.version.gaps.is_empty())
    }

    fn find(&self, user: &[u8], seq: SeqNo) -> Option<DeadRange> {
        self.as_ref()?.view.find_dead(user, seq)
    }

    fn remember(&self, range: &DeadRange, seq: SeqNo) {
        if let Some(point) = self {
            point.view.remember_dead(range, seq);
        }
    }
}
