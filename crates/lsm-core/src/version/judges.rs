//! [`Judges`]: makes the judge of each input table of a job.

use std::collections::HashMap;
use std::sync::Arc;

use super::SstMeta;
use crate::error::{Error, Result};
use crate::hooks::{
    CompactionFilterFactory, Inject, InputTable, JobFindings, JudgeSources, JudgedTable, TableJudge,
};
use crate::sstable::JudgedBy;
use crate::types::FileNo;

/// See the module.
pub struct Judges {
    factory: Arc<dyn CompactionFilterFactory>,
    sources: Arc<dyn JudgeSources>,
    findings: JobFindings,
    inputs: HashMap<FileNo, InputTable>,
    inject: Option<Arc<Inject>>,
}

impl Judges {
    /// Those of `factory`, whose findings come together in `findings`.
    pub fn new(
        factory: Arc<dyn CompactionFilterFactory>,
        sources: Arc<dyn JudgeSources>,
        findings: JobFindings,
        inputs: impl IntoIterator<Item = InputTable>,
    ) -> Judges {
        let inputs = inputs.into_iter().map(|input| (input.file, input)).collect();
        Judges { factory, sources, findings, inputs, inject: None }
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
    }
}
