//! The memory of walks over tombstones that a cursor uses, which is that of the memtables of its view; and the entries
//! that have expired for it.

use super::point::ReadPoint;
use crate::iter::{DeadEntries, DeadRange};
use crate::types::{SeqNo, Trailer};

impl DeadEntries for Option<ReadPoint> {
    fn is_kept(&self) -> bool {
        // A check must see every block on the way. In a view with gaps it is uncertain what a walk
        // would have seen.
        self.as_ref()
            .is_some_and(|point| point.check.is_none() && point.view.version.gaps.is_empty())
    }

    #[inline]
    fn may_expire(&self) -> bool {
        self.as_ref().is_some_and(|point| point.alive.is_some())
    }

    #[inline]
    fn is_expired(&self, user: &[u8], trailer: Trailer, value: &[u8]) -> bool {
        self.may_expire()
            && self.as_ref().is_some_and(|point| point.is_expired(user, trailer, value))
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
