//! [`Around`]: a MetaHive in whose jobs a test changes what is read or written. It passes no notes on, so it
//! emits all metadata itself.

use lsm_core::hooks::{
    CompactionFilter, Cut, DamagedTable, Decision, Emitter, EndedBlock, Entry, Faults, Input,
    InputTable, Job, Origin, Output, Properties, RepairSources, Rules, Sealer, TableRepair,
    VerifiedEntry, Verifier,
};
use lsm_core::types::KeyForm;
use siltstone::Result;

use super::*;

/// The changes of a test; a call that is not changed goes to the job of the MetaHive.
pub(super) trait Change: Clone + Send + Sync + 'static {
    /// [`CompactionFilter::input`].
    fn input(
        &mut self,
        job: &mut dyn CompactionFilter,
        entry: &Entry<'_>,
        at: &Origin,
        verified: Option<&VerifiedEntry<'_>>,
        faults: &mut Faults,
    ) -> Result<Input> {
        job.input(entry, at, verified, faults)
    }

    /// [`CompactionFilter::boundary`].
    fn boundary(
        &mut self,
        job: &mut dyn CompactionFilter,
        next: Option<&[u8]>,
        out: &mut Emitter<'_>,
        faults: &mut Faults,
    ) -> Result<Cut> {
        job.boundary(next, out, faults)
    }

    /// [`CompactionFilter::finish_table`].
    fn finish_table(
        &mut self,
        job: &mut dyn CompactionFilter,
        blocks: &[EndedBlock],
        properties: &mut Properties,
    ) -> Result<()> {
        job.finish_table(blocks, properties)
    }
}

/// Changes nothing.
impl Change for () {}

/// A MetaHive with the changes of a test to each of its jobs.
pub(super) struct Around<C> {
    hive: MetaHive,
    change: C,
}

impl<C: Change> Around<C> {
    pub(super) fn new(change: C) -> Around<C> {
        Around { hive: MetaHive::default(), change }
    }
}

impl<C: Change> CompactionFilterFactory for Around<C> {
    fn name(&self) -> &str {
        self.hive.name()
    }

    fn params(&self) -> Vec<u8> {
        self.hive.params()
    }

    fn rules(&self, form: Option<KeyForm>) -> Rules {
        self.hive.rules(form)
    }

    fn sealer(&self) -> Option<&dyn Sealer> {
        Some(self)
    }

    fn start(&self, job: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
        Ok(Box::new(AroundJob { job: self.hive.start(job)?, change: self.change.clone() }))
    }
}

impl<C: Change> Sealer for Around<C> {
    fn verifies(&self) -> bool {
        self.hive.verifies()
    }

    fn verifier(&self, inputs: &[InputTable], compares: bool) -> Result<Option<Verifier>> {
        self.hive.verifier(inputs, compares)
    }

    fn repair(
        &self,
        input: &InputTable,
        table: &DamagedTable,
        sources: &Arc<dyn RepairSources>,
    ) -> Result<Option<Box<dyn TableRepair>>> {
        self.hive.repair(input, table, sources)
    }

    fn joined(&self, left_largest: &[u8], right_smallest: &[u8]) -> bool {
        self.hive.joined(left_largest, right_smallest)
    }
}

struct AroundJob<C> {
    job: Box<dyn CompactionFilter>,
    change: C,
}

impl<C: Change> CompactionFilter for AroundJob<C> {
    fn input(
        &mut self,
        entry: &Entry<'_>,
        at: &Origin,
        verified: Option<&VerifiedEntry<'_>>,
        faults: &mut Faults,
    ) -> Result<Input> {
        self.change.input(&mut *self.job, entry, at, verified, faults)
    }

    fn decide(&mut self, entry: Entry<'_>) -> Result<Decision> {
        self.job.decide(entry)
    }

    fn output(&mut self, output: &Output<'_>) -> Result<u64> {
        self.job.output(output)
    }

    fn boundary(
        &mut self,
        next: Option<&[u8]>,
        out: &mut Emitter<'_>,
        faults: &mut Faults,
    ) -> Result<Cut> {
        self.change.boundary(&mut *self.job, next, out, faults)
    }

    fn finish_table(&mut self, blocks: &[EndedBlock], properties: &mut Properties) -> Result<()> {
        self.change.finish_table(&mut *self.job, blocks, properties)
    }
}
