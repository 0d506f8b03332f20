//! [`BlockVerifier`]: verifies each data block of the inputs of a job before the job uses an entry of it.
//!
//! A filter that seals makes one for each job. The cursor over a table (`sstable/iter/verified.rs`) calls it
//! for each block that it reads. A block that is not what was written ends the job, as corruption. Then
//! `db/compaction/repair.rs` repairs the table.

use std::sync::Arc;

use super::{Entry, Fault};
use crate::error::{Error, Result};
use crate::types::FileNo;

/// A data block of an input table of a job.
pub trait InputBlock {
    /// The number of the table.
    fn file(&self) -> FileNo;

    /// The number of the block among the data blocks of its table, from 0. `None` if the index does not say.
    ///
    /// # Cost
    /// Reads the partitions of a split index up to the block's own.
    fn number(&self) -> Option<u64>;

    /// The number of its visible entries.
    fn entry_count(&self) -> usize;

    /// The payloads of the hidden entries without their first 8 bytes, one after the other, and the length
    /// of each. `None` unless each visible entry has one that lies so.
    fn column(&self) -> Option<(&[u8], usize)>;

    /// Calls `each` for each visible entry, with the payload of its hidden entry without the first 8 bytes.
    ///
    /// # Errors
    /// Those of `each`; corruption of another block in which a hidden entry lies.
    fn entries(&self, each: &mut EachEntry<'_>) -> Result<()>;

    /// Corruption of this block.
    fn corruption(&self, what: &str) -> Error;
}

/// Takes a visible entry, and the payload of its hidden entry without the first 8 bytes.
pub type EachEntry<'e> = dyn FnMut(&Entry<'_>, Option<&[u8]>) -> Result<()> + 'e;

/// The account that the hidden entries of a block give of its entries, in the order of these.
#[derive(Debug, Default)]
pub struct VerifiedBlock {
    /// The checksum of each entry.
    pub sums: Vec<u64>,
    /// The payload of each hidden entry without the first 8 bytes, if the filter needs them.
    pub payloads: Vec<Option<Vec<u8>>>,
    /// Hidden entries that are damaged while their entries are not. The job makes them again, and reports
    /// these faults; their places are those of the block.
    pub rebuilt: Vec<Fault>,
}

/// Verifies the blocks of the input tables of a job. The blocks of a table come in their order.
pub trait BlockVerifier: Send + Sync {
    /// Verifies a block, and fills `verified`, which is empty.
    ///
    /// # Errors
    /// Corruption, if its entries are not those that were written to it.
    fn verify(&self, block: &dyn InputBlock, verified: &mut VerifiedBlock) -> Result<()>;

    /// Verifies a table after its last block; returns the defect, if entries are missing.
    fn end(&self, table: FileNo) -> Option<String>;
}

/// The verifier of a job.
pub struct Verifier {
    /// Verifies the blocks.
    pub blocks: Arc<dyn BlockVerifier>,
    /// `true` if only the end of a table shows that entries are missing. Then a job that wants a part of its
    /// inputs walks along all of them.
    pub walks_all: bool,
}

/// The result of the verification of a block for one of its entries.
#[derive(Clone, Copy, Debug)]
pub struct VerifiedEntry<'a> {
    /// Its checksum: see [`VerifiedBlock::sums`].
    pub note: u64,
    /// The payload of its hidden entry, if the filter needs it: see [`VerifiedBlock::payloads`].
    pub hidden: Option<&'a [u8]>,
}
