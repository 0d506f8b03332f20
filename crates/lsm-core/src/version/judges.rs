//! [`Judges`]: makes the judge of each input table of a job. [`Readers`]: the open input tables.

use std::collections::HashMap;
use std::sync::Arc;

use super::{SstMeta, Table, TableContext};
use crate::error::{Error, Result};
use crate::hooks::{
    CompactionFilterFactory, Inject, InputTable, JobFindings, JudgeSources, JudgedTable,
};
use crate::sstable::{JudgedBy, SstReader};
use crate::types::FileNo;

/// The readers of the input tables of a job: their own, and for those that do not open what was made
/// of their files.
#[derive(Default)]
pub struct Readers(HashMap<FileNo, Arc<SstReader>>);

impl Readers {
    /// Adds a reader that was made from a damaged file, for the walk of a repair.
    pub fn add(&mut self, file: FileNo, reader: SstReader) {
        self.0.insert(file, Arc::new(reader));
    }

    /// The reader of a table.
    ///
    /// # Errors
    /// Those of [`Table::reader`].
    pub fn of<'a>(
        &'a self,
        table: &'a Table,
        context: &TableContext,
    ) -> Result<&'a Arc<SstReader>> {
        // First what was salvaged: the table's own reader would fail to open again, at the cost of
        // a read.
        match self.0.get(&table.meta.file) {
            Some(reader) => Ok(reader),
            None => table.reader(context),
        }
    }
}

/// Makes the judge of each input table of a job.
pub struct Judges {
    pub(super) readers: Arc<Readers>,
    factory: Arc<dyn CompactionFilterFactory>,
    sources: Arc<dyn JudgeSources>,
    findings: JobFindings,
    /// The input tables with their levels.
    inputs: HashMap<FileNo, (usize, InputTable)>,
    inject: Option<Arc<Inject>>,
    is_compared_later: bool,
    is_repair: bool,
}

impl Judges {
    /// Those of `factory` for tables with their levels, whose findings come together in `findings`.
    pub fn new(
        readers: Arc<Readers>,
        factory: Arc<dyn CompactionFilterFactory>,
        sources: Arc<dyn JudgeSources>,
        findings: JobFindings,
        inputs: impl IntoIterator<Item = (usize, InputTable)>,
    ) -> Judges {
        let inputs = inputs.into_iter().map(|input| (input.1.file, input)).collect();
        Judges {
            readers,
            factory,
            sources,
            findings,
            inputs,
            inject: None,
            is_compared_later: false,
            is_repair: false,
        }
    }

    /// Adds faults of memory that change hidden entries before they are judged.
    #[must_use]
    pub fn struck_by(self, inject: Option<Arc<Inject>>) -> Judges {
        Judges { inject, ..self }
    }

    /// With walks that read on in spite of damage, if they are those of a repair.
    #[must_use]
    pub fn of_repair(self, is_repair: bool) -> Judges {
        Judges { is_repair, ..self }
    }

    /// Tells the judges whether the filter compares every entry: see
    /// [`JudgedTable::is_compared_later`].
    #[must_use]
    pub fn compared_later(self, is_compared_later: bool) -> Judges {
        Judges { is_compared_later, ..self }
    }

    /// The judge of a table, with what it needs.
    ///
    /// # Errors
    /// Those of the factory.
    pub(super) fn of(&self, meta: &SstMeta) -> Result<JudgedBy> {
        let input = self.inputs.get(&meta.file);
        // A table without a judge is refused and not read plainly: its damaged entries would pass
        // for sound.
        let (level, input) = input.ok_or_else(|| without_judge(meta.file))?;
        let table = self.table(meta, *level);
        let judge = self.factory.judge(input, &table, &self.sources)?;
        let judge = judge.ok_or_else(|| without_judge(meta.file))?;
        let path = input.path.clone();
        let findings = self.findings.clone();
        let inject = self.inject.clone();
        Ok(JudgedBy { judge, table, path, findings, inject, is_repair: self.is_repair })
    }

    /// The description of a table for its judge.
    fn table(&self, meta: &SstMeta, level: usize) -> JudgedTable {
        JudgedTable {
            file: meta.file,
            level,
            bytes: meta.bytes,
            keys: (meta.smallest.user.clone(), meta.largest.user.clone()),
            seqs: (meta.oldest(), meta.newest()),
            global_seq: meta.global_seq,
            hidden: meta.hidden,
            is_compared_later: self.is_compared_later,
        }
    }
}

fn without_judge(file: FileNo) -> Error {
    Error::new(crate::ErrorKind::InvalidArgument, format!("table {file} has no judge"))
}
