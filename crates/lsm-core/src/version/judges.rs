//! [`Judges`]: makes the judge of each input table of a job. [`Readers`]: those tables, open.

use std::collections::HashMap;
use std::sync::Arc;

use super::{SstMeta, Table, TableContext};
use crate::error::{Error, Result};
use crate::hooks::{
    CompactionFilterFactory, Inject, InputTable, JobFindings, JudgeSources, JudgedTable, TableJudge,
};
use crate::sstable::{JudgedBy, SstReader};
use crate::types::FileNo;

/// The readers of the input tables of a job: their own, and for those that do not open what was made
/// of their files.
#[derive(Default)]
pub struct Readers(HashMap<FileNo, Arc<SstReader>>);

impl Readers {
    /// Takes in what was made of a damaged file, to be walked along.
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
        match self.0.get(&table.meta.file) {
            Some(reader) => Ok(reader),
            None => table.reader(context),
        }
    }
}

/// See the module.
pub struct Judges {
    pub(super) readers: Arc<Readers>,
    factory: Arc<dyn CompactionFilterFactory>,
    sources: Arc<dyn JudgeSources>,
    findings: JobFindings,
    inputs: HashMap<FileNo, InputTable>,
    inject: Option<Arc<Inject>>,
}

impl Judges {
    /// Those of `factory`, whose findings come together in `findings`.
    pub fn new(
        readers: Arc<Readers>,
        factory: Arc<dyn CompactionFilterFactory>,
        sources: Arc<dyn JudgeSources>,
        findings: JobFindings,
        inputs: impl IntoIterator<Item = InputTable>,
    ) -> Judges {
        let inputs = inputs.into_iter().map(|input| (input.file, input)).collect();
        Judges { readers, factory, sources, findings, inputs, inject: None }
    }

    /// With faults of memory that strike hidden entries before they are judged.
    #[must_use]
    pub fn struck_by(self, inject: Option<Arc<Inject>>) -> Judges {
        Judges { inject, ..self }
    }

    fn judge(&self, meta: &SstMeta) -> Result<Option<Box<dyn TableJudge>>> {
        match self.inputs.get(&meta.file) {
            Some(input) => self.factory.judge(input, &judged_table(meta), &self.sources),
            None => Ok(None),
        }
    }

    /// The judge of a table, with what it needs.
    ///
    /// # Errors
    /// Those of the factory.
    pub(super) fn of(&self, meta: &SstMeta) -> Result<JudgedBy> {
        let judge = self.judge(meta)?.ok_or_else(|| {
            let what = format!("table {} has no judge", meta.file);
            Error::new(crate::ErrorKind::InvalidArgument, what)
        })?;
        Ok(JudgedBy {
            judge,
            table: judged_table(meta),
            findings: self.findings.clone(),
            inject: self.inject.clone(),
        })
    }
}

/// The description of a table for its judge.
fn judged_table(meta: &SstMeta) -> JudgedTable {
    JudgedTable {
        file: meta.file,
        level: 0,
        bytes: meta.bytes,
        keys: (meta.smallest.user.clone(), meta.largest.user.clone()),
        seqs: (meta.oldest(), meta.newest()),
        global_seq: meta.global_seq,
        hidden: meta.hidden,
    }
}
