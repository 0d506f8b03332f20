//! [`JobVerifier`]: verifies each block of the inputs of a job by the metadata of the block, before the job uses an
//! entry of it.
//!
//! [`MetaHive`](crate::MetaHive) makes one for each job, and the cursors of the engine call it. It repairs
//! no entry: an entry that is not as it was written ends the job. Metadata that is damaged alone is made again.
//!
//! In a compaction the metadata of a block stands for its entries, if both copies in it agree: the filter
//! compares each entry with it, so that an entry is hashed once.
//!
//! Invariant: each entry of a sealed table agrees with its metadata, here or in the filter, and a block has all
//! entries that were written to it, as far as the seal of the table shows that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use lsm_core::error::{Error, ErrorKind, Result};
use lsm_core::hooks::{
    BlockVerifier, Entry, Fault, InputBlock, InputTable, Origin, TableVerdict, VerifiedBlock,
    Verifier,
};
use lsm_core::types::FileNo;

use crate::block_digests::{BlockDigests, SpanState};
use crate::counts::Counts;
use crate::payload::{METADATA_BYTES, Payload};
use crate::shared::{NOT_SEALED, Shared};
use crate::table_seal::{INCOMPLETE, TableSeal};
use crate::verdict::Verdict;

/// An input table.
struct VerifiedTable {
    /// `None` for a table that is not sealed.
    seal: Option<TableSeal>,
    /// `None` before the first block.
    digests: Option<BlockDigests>,
    counts: Counts,
}

/// Verifies the blocks of the input tables of one job.
struct JobVerifier {
    shared: Arc<Shared>,
    /// Each entry is compared here.
    compares: bool,
    /// Each is locked by the one cursor that walks along it.
    tables: HashMap<FileNo, Mutex<VerifiedTable>>,
}

/// The verifier of a job over these tables.
pub(crate) fn start(
    shared: &Arc<Shared>,
    inputs: &[InputTable],
    compares: bool,
) -> Result<Verifier> {
    let mut tables = HashMap::with_capacity(inputs.len());
    let mut walks_all = false;
    for input in inputs {
        let seal = TableSeal::of(&input.properties, shared.provider.name())?;
        // Without digests the number of entries is the only proof, and a part of a table cannot be
        // counted.
        walks_all |= seal.as_ref().is_some_and(|seal| seal.spans.is_empty() && seal.sealed > 0);
        tables.insert(
            input.file,
            Mutex::new(VerifiedTable { seal, digests: None, counts: Counts::default() }),
        );
    }
    let blocks = Arc::new(JobVerifier { shared: shared.clone(), compares, tables });
    Ok(Verifier { blocks, walks_all })
}

impl JobVerifier {
    /// Verifies the entries of a block.
    fn entries(
        &self,
        seal: &TableSeal,
        block: &dyn InputBlock,
        verified: &mut VerifiedBlock,
    ) -> Result<()> {
        if self.shared.is_integrity
            && !self.compares
            && let Some((column, METADATA_BYTES)) = block.column()
            && take_sums(column, &mut verified.sums)
        {
            return Ok(());
        }
        verified.sums.clear();
        block.entries(&mut |entry, hidden| {
            let (sum, verdict) = self.shared.compare(Some(seal), entry, hidden);
            match verdict {
                Verdict::Valid => {}
                Verdict::DataCorrupt => {
                    let what = "the entry disagrees with its metadata";
                    return Err(block.corruption(what).at_key(entry.key));
                }
                damaged => verified.rebuilt.push(fault_of_metadata(entry, damaged)),
            }
            verified.sums.push(sum);
            if !self.shared.is_integrity {
                verified.payloads.push(hidden.map(<[u8]>::to_vec));
            }
            Ok(())
        })
    }
}

/// The fault of metadata that is damaged while its entry is not.
#[cold]
pub(crate) fn fault_of_metadata(entry: &Entry<'_>, verdict: Verdict) -> Fault {
    let what = match verdict {
        Verdict::SecondCopyDamaged => "the metadata's second checksum is damaged",
        _ => "the metadata is damaged, the entry is not",
    };
    Fault {
        key: entry.key.to_vec(),
        seq: entry.stored_seq,
        kind: entry.kind,
        value: Vec::new(),
        at: Origin::MEMTABLE,
        what: what.to_owned(),
    }
}

/// Takes the checksums of a column of metadata; returns `false` if a copy in it is damaged.
fn take_sums(column: &[u8], sums: &mut Vec<u64>) -> bool {
    let (all, _) = column.as_chunks::<METADATA_BYTES>();
    let mut are_sound = true;
    sums.extend(all.iter().map(|metadata| {
        let (sum, is_sound) = Payload::short_sum(metadata);
        are_sound &= is_sound;
        sum
    }));
    are_sound
}

impl BlockVerifier for JobVerifier {
    fn verify(&self, block: &dyn InputBlock, verified: &mut VerifiedBlock) -> Result<()> {
        let Some(table) = self.tables.get(&block.file()) else {
            let what = format!("table {} is no input of the job", block.file());
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        };
        let table = &mut *table.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = block.entry_count();
        let Some(seal) = &table.seal else {
            verified.sums.resize(entries, NOT_SEALED);
            return Ok(());
        };
        self.entries(seal, block, verified)?;
        let digests = match &mut table.digests {
            Some(digests) => digests,
            None => {
                let number = block.number();
                let number =
                    number.ok_or_else(|| block.corruption("the index has no such block"))?;
                table.digests.insert(BlockDigests::after(Some(seal), number))
            }
        };
        let sum = verified.sums.iter().fold(0u64, |total, sum| total.wrapping_add(*sum));
        if digests.add(Some(seal), sum, entries as u64, true) == SpanState::Unsound {
            return Err(block.corruption(INCOMPLETE));
        }
        table.counts.verified += entries as u64;
        table.counts.metadata_rebuilt += verified.rebuilt.len() as u64;
        Ok(())
    }

    fn end(&self, table: FileNo) -> Option<String> {
        let table = self.tables.get(&table)?.lock().unwrap_or_else(PoisonError::into_inner);
        match table.digests.as_ref()?.end(table.seal.as_ref()) {
            TableVerdict::Whole => None,
            TableVerdict::Lost => Some("entries of the table are missing".to_owned()),
            TableVerdict::Miscounted(what) => Some(what),
        }
    }
}

impl Drop for JobVerifier {
    fn drop(&mut self) {
        for table in self.tables.values_mut() {
            self.shared.add(table.get_mut().unwrap_or_else(PoisonError::into_inner).counts);
        }
    }
}
