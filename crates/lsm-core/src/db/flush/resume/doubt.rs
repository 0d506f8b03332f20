//! Values in doubt while jobs take turns to install their edits, some of which fail.
//!
//! Another thread may get the turn as soon as it is free, before the previous holder has finished. Here it always
//! does: the thread that ends a turn first runs the next job to its end. So each list of moves is one order of
//! the steps, and orders that threads cannot produce are excluded.

use std::collections::VecDeque;
use std::sync::Weak;

use proptest::prelude::*;

use parking_lot::Mutex;

use super::*;
use crate::db::install::Installation;
use crate::db::{BackgroundMode, Db};
use crate::fs::{FaultAction, FaultAt, FaultFs, FaultRule, MemFs, OpKind};
use crate::hooks::JobValues;

/// Turns within turns.
const DEPTH_MAX: u32 = 4;

/// Work that takes a turn.
#[derive(Clone, Copy, Debug)]
struct Move {
    /// The edit fails.
    fails: bool,
    /// A new log begins, and no job ends; unless that is running.
    resumes: bool,
    /// The work waits for the turn already when the previous one ends.
    waits: bool,
}

/// A value that a job names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueOutcome {
    /// Its edit is under way.
    Named,
    /// Its edit failed when this was the last durable one. It may be on disk.
    Unconfirmed(u64),
    /// Its edit is durable.
    Installed,
    LetGo,
}

impl ValueOutcome {
    fn is_over(self) -> bool {
        matches!(self, ValueOutcome::Installed | ValueOutcome::LetGo)
    }
}

struct Interleaving {
    db: Db,
    faults: FaultFs,
    partition: Arc<PartitionState>,
    state: Mutex<InterleavingState>,
}

struct InterleavingState {
    moves: VecDeque<Move>,
    fates: Vec<ValueOutcome>,
    /// A thread has the turn to flush.
    resumes: bool,
}

impl Interleaving {
    fn new(moves: Vec<Move>) -> Arc<Interleaving> {
        let faults = FaultFs::over_mem(MemFs::new());
        let builder = Db::builder("/db").fs(Arc::new(faults.clone()));
        let db = builder.background(BackgroundMode::Stepped).open().unwrap();
        let partition = db.inner().catalog.named("default").unwrap();
        let moves = moves.into();
        let state = InterleavingState { moves, fates: Vec::new(), resumes: false };
        Arc::new(Interleaving { db, faults, partition, state: Mutex::new(state) })
    }

    /// A value that checks, when it is dropped, that no edit on disk may name it.
    fn value(self: &Arc<Self>) -> (usize, PendingHandle) {
        let mut state = self.state.lock();
        let number = state.fates.len();
        state.fates.push(ValueOutcome::Named);
        let run: Weak<Interleaving> = Arc::downgrade(self);
        let value = PendingHandle::new(Vec::new(), move || {
            let run = run.upgrade().expect("the test has it");
            let durable = run.db.inner().catalog.durable_edit();
            let mut state = run.state.lock();
            let fate = &mut state.fates[number];
            assert!(
                matches!(*fate, ValueOutcome::Unconfirmed(after) if durable > after),
                "value {number} is dropped, {fate:?}; the last durable edit is {durable}"
            );
            *fate = ValueOutcome::LetGo;
        });
        (number, value)
    }

    /// Runs a job with one value, and within it those that get the turn when it ends one.
    fn job(self: &Arc<Self>, depth: u32, fails: bool) {
        let (number, value) = self.value();
        let inner = self.db.inner();
        let values = JobValues { relocated: vec![value], ..JobValues::default() };
        let changes = vec![Change::LastSeq(inner.commit.visible_seq())];
        let installation = Installation { values, ..Installation::of(changes) };
        if fails {
            // Of an edit, or of the generation that follows on one in doubt.
            let kind = OpKind::Sync;
            let at = FaultAt::Nth { kind, suffix: ".manifest".to_owned(), nth: 0 };
            self.faults.add_rule(FaultRule::once(at, FaultAction::Eio));
        }
        let run = self.clone();
        *inner.catalog.at_release.lock() = Some(Box::new(move || {
            // Known here to the next job: whether the edit is durable.
            let durable = run.db.inner().catalog.durable_edit();
            let fate =
                if fails { ValueOutcome::Unconfirmed(durable) } else { ValueOutcome::Installed };
            run.state.lock().fates[number] = fate;
            run.next_job(depth + 1);
        }));
        let installed = inner.scheduler.installer().install(&self.partition, installation);
        assert_eq!(installed.is_err(), fails, "{installed:?}");
    }

    /// Begins a new log, and within it runs the jobs that get the turn when the first one ends.
    fn resume(self: &Arc<Self>, depth: u32) {
        let inner = self.db.inner();
        let run = self.clone();
        *inner.catalog.at_release.lock() = Some(Box::new(move || run.next_job(depth + 1)));
        inner.scheduler.flusher().resume(&inner.scheduler.jobs().flush_turn()).unwrap();
        self.state.lock().resumes = false;
    }

    /// Runs the next job, if there is one and its thread is ready.
    fn next_job(self: &Arc<Self>, depth: u32) {
        let mut state = self.state.lock();
        let Some(next) = state.moves.front().copied() else { return };
        if depth > 0 && (depth >= DEPTH_MAX || !next.waits) {
            return;
        }
        state.moves.pop_front();
        let resumes = next.resumes && !state.resumes;
        state.resumes |= resumes;
        drop(state);
        if resumes {
            self.resume(depth);
        } else {
            self.job(depth, next.fails);
        }
    }
}

fn any_move() -> impl Strategy<Value = Move> {
    (any::<bool>(), prop::bool::weighted(0.2), prop::bool::weighted(0.7))
        .prop_map(|(fails, resumes, waits)| Move { fails, resumes, waits })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn values_of_a_failed_edit_stay_until_an_edit_after_it_is_durable(
        moves in prop::collection::vec(any_move(), 0..40),
    ) {
        let run = Interleaving::new(moves);
        while !run.state.lock().moves.is_empty() {
            run.next_job(0);
        }
        // With an edit that is durable nothing is in doubt any more.
        run.job(DEPTH_MAX, false);
        let fates = run.state.lock().fates.clone();
        prop_assert!(fates.iter().copied().all(ValueOutcome::is_over), "{fates:?}");
    }
}
