//! [`JobOutcome`]: what a job leaves.

use crate::hooks::{Fault, Findings, JobValues};
use crate::types::Gap;
use crate::version::SstMeta;

/// The outcome of a job.
pub enum JobOutcome {
    /// Finished tables.
    Done {
        /// The tables, durable and not installed.
        tables: Vec<SstMeta>,
        /// The effect on the values of the partition's store.
        values: JobValues,
        /// Damage that was mended on the way, and by what.
        mended: Vec<(Fault, String)>,
        /// The entries that are damaged beyond repair, and in no table.
        lost: Vec<Fault>,
        /// The gaps that they leave.
        gaps: Vec<Gap>,
        /// Inputs whose number of entries is not the one that was noted.
        miscounted: Vec<Fault>,
        /// The number of entries that were removed because they have expired.
        expired: u64,
    },
    /// A damaged entry; nothing was written.
    Faulty(Fault),
}

impl JobOutcome {
    /// Adds the findings of the walks over the inputs.
    pub(super) fn and_found(mut self, mut found: Findings) -> JobOutcome {
        if let JobOutcome::Done { mended, lost, gaps, miscounted, .. } = &mut self {
            gaps.extend(found.take_gaps());
            miscounted.append(&mut found.miscounted);
            mended.extend(found.repaired);
            lost.extend(found.lost);
        }
        self
    }
}
