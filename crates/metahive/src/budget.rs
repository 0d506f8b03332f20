//! The time for which the repairs of one table may search.
//!
//! The search for flipped bits takes time that grows with the square of a length, and any number of
//! entries may be damaged. Without a limit, damage could keep a compaction busy for hours. The
//! limit counts work, not the time of a clock, so that the same damage always has the same result.

/// Work that every table gets, in nanoseconds of the machine that it was measured on.
const FLOOR_NS: u64 = 100_000_000;
/// Work for each byte of its blocks that came by.
const NS_A_BYTE: u64 = 2;

/// See the module.
#[derive(Debug)]
pub(crate) struct Budget {
    left: u64,
    /// Searches that there was no time for.
    pub(crate) refused: u64,
}

impl Budget {
    /// One of a table of so many bytes.
    pub(crate) fn of_bytes(bytes: u64) -> Budget {
        Budget { left: FLOOR_NS.saturating_add(bytes.saturating_mul(NS_A_BYTE)), refused: 0 }
    }

    /// Returns `true` if a search of so many nanoseconds may begin.
    pub(crate) fn take(&mut self, nanoseconds: u64) -> bool {
        // Refused as a whole. A search that is cut off in its midst has an answer that depends on
        // the place of the damage.
        if nanoseconds > self.left {
            self.refused += 1;
            return false;
        }
        self.left -= nanoseconds;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spent_is_gone() {
        let mut budget = Budget::of_bytes(1);
        assert!(budget.take(FLOOR_NS));
        assert!(!budget.take(NS_A_BYTE + 1));
        assert!(budget.take(NS_A_BYTE));
        assert_eq!(budget.refused, 1);
    }
}
