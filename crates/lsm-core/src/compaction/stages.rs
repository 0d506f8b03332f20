//! [`Stages`]: the hooks that take part in one job.
//!
//! Made by who runs the job, started by `run.rs`, called by the loop of
//! `survivors.rs`. The order of the stages is that of `crate::hooks`.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::Result;
use crate::hooks::{
    CompactionFilter, Decision, Entry, Inject, Job, JobKind, Origin, PartitionHooks, Patch,
    Properties,
};
use crate::types::SeqNo;

/// The patches of faulty entries, by their places: see [`place_of`].
pub type Patches = HashMap<Origin, Patch>;

/// A place without what a patch changes: whether the block verified.
pub fn place_of(at: Origin) -> Origin {
    Origin { block_verified: true, ..at }
}

/// The hooks of one job.
pub struct Stages<'a> {
    pub(super) hooks: &'a PartitionHooks,
    /// The job's, once they are started.
    pub(super) kind: JobKind,
    /// No frame of the log names the job's values: the store may give them other places.
    pub(super) may_carry: bool,
    /// The snapshots that the survival rules respect.
    pub(super) snapshots: &'a [SeqNo],
    /// The snapshots that deciding filters respect: the registered ones alone.
    registered: &'a [SeqNo],
    pub(super) patches: &'a Patches,
    pub(super) inject: Option<&'a Arc<Inject>>,
    pub(super) deciding: Vec<Box<dyn CompactionFilter>>,
    pub(super) sealing: Option<Box<dyn CompactionFilter>>,
}

impl<'a> Stages<'a> {
    /// The stages of a partition's hooks. `snapshots` holds the registered ones and the sequence
    /// visible at the job's start.
    pub fn new(
        hooks: &'a PartitionHooks,
        snapshots: &'a [SeqNo],
        registered: &'a [SeqNo],
        patches: &'a Patches,
        inject: Option<&'a Arc<Inject>>,
    ) -> Stages<'a> {
        Stages {
            hooks,
            kind: JobKind::Flush,
            may_carry: false,
            snapshots,
            registered,
            patches,
            inject,
            deciding: Vec::new(),
            sealing: None,
        }
    }

    /// The partition's hooks.
    pub fn hooks(&self) -> &'a PartitionHooks {
        self.hooks
    }

    /// The places that patches change, ascending.
    pub(super) fn repaired(&self) -> Vec<Origin> {
        let mut places: Vec<_> = self.patches.keys().copied().collect();
        places.sort();
        places
    }

    /// The registered snapshots, ascending.
    pub fn registered(&self) -> &'a [SeqNo] {
        self.registered
    }

    /// Starts the filters.
    pub fn start(&mut self, job: &Job<'_>) -> Result<()> {
        self.kind = job.kind;
        self.may_carry = job.kind == JobKind::Compaction;
        for factory in &self.hooks.filters {
            let filter = factory.start(job)?;
            if factory.seals() {
                self.sealing = Some(filter);
            } else {
                self.deciding.push(filter);
            }
        }
        Ok(())
    }

    pub(super) fn finish_table(&mut self) -> Result<Properties> {
        let mut properties = Properties::default();
        for filter in self.deciding.iter_mut().chain(self.sealing.as_mut()) {
            filter.finish_table(&mut properties)?;
        }
        Ok(properties)
    }

    /// Returns `true` if a registered snapshot sees the version of a key that lies in [seq, newer).
    pub(super) fn is_seen(&self, seq: SeqNo, newer: SeqNo) -> bool {
        let at = self.registered.partition_point(|snapshot| *snapshot < seq);
        self.registered.get(at).is_some_and(|snapshot| *snapshot < newer)
    }

    /// The decision of the filters on an entry; `None` if it stays.
    pub(super) fn decide(&mut self, entry: Entry<'_>) -> Result<Option<Decision>> {
        let mut replaced: Option<Vec<u8>> = None;
        for filter in &mut self.deciding {
            let value = replaced.as_deref().unwrap_or(entry.value);
            match filter.decide(Entry { value, ..entry })? {
                Decision::Keep => {}
                Decision::Remove => return Ok(Some(Decision::Remove)),
                Decision::Replace(value) => replaced = Some(value),
            }
        }
        Ok(replaced.map(Decision::Replace))
    }
}
