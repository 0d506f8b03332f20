//! The input of a repair: one damaged table, which is opened and read in spite of its damage.
//!
//! `run.rs` opens it. What cannot be read goes to the findings of the job.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::hooks::{
    DamagedTable, Fault, InputTable, JobFindings, Origin, PartitionHooks, RepairSources,
    TableRepair,
};
use crate::sstable::{PlainRepair, TolerantIter};
use crate::types::{EntryKind, Gap, SeqNo};
use crate::version::{SstMeta, Table, TableContext};

/// The parts that a repair needs to open its table.
pub struct DamagedInput<'a> {
    /// Opens it.
    pub context: &'a TableContext,
    /// The hooks of its partition.
    pub hooks: &'a PartitionHooks,
    /// The sources of a filter that repairs it.
    pub sources: &'a Arc<dyn RepairSources>,
    /// Receives what is repaired and lost.
    pub findings: &'a JobFindings,
    /// Without a filter that repairs it, the blocks that verify are read all the same. A job does not do that: nothing
    /// would vouch for what it writes.
    pub reads_plainly: bool,
}

impl DamagedInput<'_> {
    /// Opens a table of `level`, and describes it for the filters. A table that does not open is rebuilt. `None`
    /// if it cannot be rebuilt: all of its entries are lost.
    ///
    /// # Errors
    /// `Io`: the table may be there at the next try. Those of the filter.
    pub fn open(&self, level: usize, table: &Table) -> Result<Option<(TolerantIter, InputTable)>> {
        let meta = &table.meta;
        let reader = match table.reader(self.context) {
            Ok(reader) => reader.clone(),
            // Other errors may pass. To give up a table for one of those would lose sound data.
            Err(error) if error.is_corruption() => {
                let suffix = &self.hooks.rules.reserved_suffix;
                let Some(salvaged) = table.salvage(self.context, suffix)? else {
                    self.report_lost(meta, level, &error);
                    return Ok(None);
                };
                self.report_salvaged(meta, level, &salvaged.repaired);
                Arc::new(salvaged.reader)
            }
            Err(error) => return Err(error),
        };
        let path = table.path(self.context);
        let properties = reader.properties().user.clone();
        let input = InputTable { file: meta.file, path, properties };
        let table = DamagedTable {
            file: meta.file,
            level,
            bytes: meta.bytes,
            keys: (meta.smallest.user.clone(), meta.largest.user.clone()),
            seqs: (meta.oldest(), meta.newest()),
            global_seq: meta.global_seq,
            hidden: meta.hidden,
        };
        let repair = match self.hooks.verifying() {
            Some(sealer) => sealer.repair(&input, &table, self.sources)?,
            None => None,
        };
        // A table without a repair is refused and not read plainly: its damaged entries would pass
        // for sound.
        let repair = match repair {
            None if self.reads_plainly => {
                Some(Box::new(PlainRepair::new(table.clone())) as Box<dyn TableRepair>)
            }
            repair => repair,
        };
        let repair = repair.ok_or_else(|| {
            let what = format!("no filter repairs table {}", meta.file);
            Error::new(ErrorKind::InvalidArgument, what)
        })?;
        let iter = TolerantIter::new(reader, repair, table, self.findings.clone());
        Ok(Some((iter, input)))
    }

    #[cold]
    fn report_salvaged(&self, meta: &SstMeta, level: usize, repaired: &[(&str, &str)]) {
        self.findings.add(|found| {
            for (what, source) in repaired {
                let fault = fault_of(meta, level, (*what).to_owned());
                found.repaired.push((fault, (*source).to_owned()));
            }
        });
    }

    #[cold]
    fn report_lost(&self, meta: &SstMeta, level: usize, error: &Error) {
        let gap = Gap {
            from: meta.smallest.user.clone(),
            // All versions of both bounds: of the table nothing is known but its description.
            from_below: SeqNo::MAX,
            to: meta.largest.user.clone(),
            to_included: true,
            through: meta.newest(),
            closed_at: None,
        };
        let fault = fault_of(meta, level, format!("the table is lost: {error}"));
        self.findings.add(|found| {
            found.add_gap(gap);
            found.lost.push(fault);
        });
    }
}

/// The fault of a table as a whole.
fn fault_of(meta: &SstMeta, level: usize, what: String) -> Fault {
    Fault {
        key: meta.smallest.user.to_vec(),
        seq: SeqNo::ZERO,
        kind: EntryKind::Poison,
        value: Vec::new(),
        at: Origin { file: Some(meta.file), level, ..Origin::MEMTABLE },
        what,
    }
}
