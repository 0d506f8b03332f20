//! The claims of repairs: one for one damaged table, and how many repairs in a row led to each table.

use std::sync::Arc;

use super::{Claimed, Jobs};
use crate::compaction::Compaction;
use crate::error::{Error, Result};
use crate::partition::PartitionState;
use crate::version::{SstMeta, Table};

/// The most repairs of a table, and of the tables that replaced it, one after another. After them the damage is
/// final.
const REPAIRS_MAX: u32 = 8;

/// The next step of a repair that an export waits for.
pub(in crate::db) enum RepairStep {
    /// This repair.
    Run(Claimed),
    /// A running job has the table; ask again when it is done.
    Wait,
    /// The table was repaired too often, or its damage is known to be final.
    Final,
}

impl Jobs {
    /// Turns the claim of a compaction into one for the repair of a damaged input. `None` if the table was
    /// repaired too often: the claim is then as it was.
    pub(in crate::db) fn begin_repair(
        &self,
        claimed: &Claimed,
        level: usize,
        table: Arc<Table>,
    ) -> Option<Claimed> {
        let partition = &claimed.partition;
        let mut state = self.state.lock();
        let claim = state.claims.entry(partition.id).or_default();
        if claim.repairs.get(&table.meta.file).is_some_and(|count| *count >= REPAIRS_MAX) {
            return None;
        }
        // Under one lock, so that no other job gets the damaged table in between.
        claim.busy.release(&claimed.compaction);
        let compaction = Compaction::repair(level, table);
        claim.busy.claim(&compaction);
        state.candidates.insert(partition.id);
        let version = partition.view().version.clone();
        Some(Claimed { partition: partition.clone(), compaction, version })
    }

    /// Claims a damaged table for its repair.
    pub(in crate::db) fn pick_repair(
        &self,
        partition: &Arc<PartitionState>,
        level: usize,
        table: Arc<Table>,
    ) -> RepairStep {
        let file = table.meta.file;
        let mut state = self.state.lock();
        let claim = state.claims.entry(partition.id).or_default();
        if claim.repairs.get(&file).is_some_and(|count| *count >= REPAIRS_MAX) {
            return RepairStep::Final;
        }
        if claim.busy.has(file) {
            // The jobs that run may have this one, and end.
            let mut damaged = claim.damaged.iter().flat_map(|(job, _)| job.tables());
            let is_final = damaged.any(|(_, it)| it.meta.file == file);
            return if is_final { RepairStep::Final } else { RepairStep::Wait };
        }
        let version = partition.view().version.clone();
        if !version.tables().any(|(at, it)| at == level && it.meta.file == file) {
            return RepairStep::Wait;
        }
        let compaction = Compaction::repair(level, table);
        state.enter(partition.id);
        state.claims.entry(partition.id).or_default().busy.claim(&compaction);
        RepairStep::Run(Claimed { partition: partition.clone(), compaction, version })
    }

    /// Gives the claim of a repair back, with the tables that it made, which are in the view, or with
    /// the error that it ended in.
    pub(in crate::db) fn finish_repair(
        &self,
        repair: &Claimed,
        outcome: Result<&[SstMeta], &Error>,
    ) {
        let Claimed { partition, compaction, .. } = repair;
        let mut state = self.state.lock();
        let claim = state.leave(partition.id);
        claim.busy.release(compaction);
        for (_, table) in compaction.tables() {
            let file = table.meta.file;
            let count = claim.repairs.get(&file).copied().unwrap_or_default() + 1;
            match outcome {
                Ok(made) => {
                    claim.repairs.extend(made.iter().map(|meta| (meta.file, count)));
                    claim.forget_repairs(partition);
                    claim.failure = None;
                }
                Err(error) if error.is_corruption() => {
                    claim.repairs.insert(file, count);
                }
                Err(error) => claim.failure = Some(error.clone()),
            }
        }
        state.forget_if_dropped(partition);
        drop(state);
        self.note_tables();
    }
}
