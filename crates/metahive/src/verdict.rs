//! The verdicts on an entry and its metadata: Figure 5 of the paper.
//!
//! Compactions, repairs and verified reads ask for them.

use crate::payload::Payload;

/// The result of the comparison of an entry with its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Both are what was written.
    Valid,
    /// The entry agrees with the checksum; the checksum's own checksum is damaged. Rewrite it.
    SecondCopyDamaged,
    /// The entry agrees with the checksum's checksum alone: the checksum is damaged and the entry
    /// is not. Rebuild the metadata; the entry need not be read again.
    MetadataCorrupt,
    /// The entry is not what was written, or cannot be shown to be.
    DataCorrupt,
}

impl Verdict {
    /// Returns `true` if the entry's bytes are what was written.
    pub fn entry_is_good(self) -> bool {
        self != Verdict::DataCorrupt
    }
}

/// Judges an entry with checksum `sum` by its metadata.
#[inline]
pub fn judge(sum: u64, metadata: &Payload) -> Verdict {
    let second_copy_agrees = metadata.is_sound();
    if sum == metadata.sum {
        if second_copy_agrees { Verdict::Valid } else { Verdict::SecondCopyDamaged }
    // The stored checksum is sound, so the entry is what changed.
    } else if second_copy_agrees {
        Verdict::DataCorrupt
    // The checksum is damaged and its own checksum is not: the entry agrees with the latter.
    } else if metadata.sum_of_sum.is_of(sum) {
        Verdict::MetadataCorrupt
    } else {
        Verdict::DataCorrupt
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum;
    use crate::payload::SumOfSum;
    use lsm_core::types::SeqNo;

    fn check(sum: u64, stored_sum: u64, stored_hash: u64, expected: Verdict) {
        let short = SumOfSum::Short(stored_hash as u32 & 0xff_ffff);
        for sum_of_sum in [short, SumOfSum::Whole(stored_hash)] {
            let metadata = Payload { seq: SeqNo::ZERO, sum: stored_sum, sum_of_sum };
            assert_eq!(judge(sum, &metadata), expected);
        }
    }

    #[test]
    fn every_row_of_the_table() {
        let good = 0x1234;
        let bad = 0x1235;
        let hash = checksum::hash(good);
        check(good, good, hash, Verdict::Valid);
        check(good, good, hash ^ 1, Verdict::SecondCopyDamaged);
        check(bad, good, hash, Verdict::DataCorrupt);
        check(good, bad, hash, Verdict::MetadataCorrupt);
        check(bad, good, hash ^ 1, Verdict::DataCorrupt);
        check(good, bad, hash ^ 1, Verdict::DataCorrupt);
    }
}
