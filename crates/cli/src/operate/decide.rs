//! [`Decider`]: the number of readers for a load. It has no clock, network or process: the time and the load are arguments.
//!
//! Invariants:
//! 1. A decision stays within the bounds, and a number below the minimum is mended at once.
//! 2. A round in which a reader did not answer stops none, and neither does any round within a window of it.
//! 3. The load that started a reader does not stop it: readers stop below [`SLACK`] of the target, and only if no round
//!    of a whole window needed them.

use std::collections::VecDeque;
use std::time::Duration;

/// Readers are stopped for the number that is enough with this part of the target.
const SLACK: f64 = 0.8;
/// A latency below this part of its target stops a reader.
const SLACK_OF_LATENCY: f64 = 0.5;
/// The most windows without a stop after latency has called a stopped reader back.
const PATIENCE_MAX: u32 = 16;

/// The load of a reader, and the bounds.
#[derive(Clone, Debug)]
pub(super) struct Targets {
    pub(super) min: usize,
    pub(super) max: usize,
    /// Operations a second of one reader.
    pub(super) operations: Option<f64>,
    /// 99 of 100 operations take no longer, in seconds.
    pub(super) p99: Option<f64>,
    /// The shortest time between two starts.
    pub(super) up_cooldown: Duration,
    /// The time for which fewer readers must be enough before one is stopped.
    pub(super) down_window: Duration,
}

/// The load that a round has seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    /// Readers that serve, that start, and that are started again: all but those that are being stopped.
    pub(super) readers: usize,
    /// Operations a second of all readers that have answered.
    pub(super) operations: f64,
    /// The 99th percentile of their latency in seconds; `None` without operations.
    pub(super) p99: Option<f64>,
    /// Each reader serves, and has answered twice.
    pub(super) is_complete: bool,
}

/// The change of the number of readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Keep,
    Start(usize),
    Stop(usize),
}

/// Decides, with the memory of one window.
#[derive(Debug)]
pub(super) struct Decider {
    targets: Targets,
    /// The number of readers that was enough, by the time of the round. The oldest one is at the begin of the window or
    /// before it, once there was a window.
    enough: VecDeque<(Duration, usize)>,
    last_start: Option<Duration>,
    last_stop: Option<Duration>,
    no_stop_before: Duration,
    patience: u32,
}

/// The number of readers with `each` operations a second.
fn readers_for(operations: f64, each: f64) -> usize {
    // A sum of rates that are measured is never exact.
    (operations / each - 1e-6).ceil().max(0.0) as usize
}

impl Decider {
    pub(super) fn new(targets: Targets) -> Decider {
        Decider {
            targets,
            enough: VecDeque::new(),
            last_start: None,
            last_stop: None,
            no_stop_before: Duration::ZERO,
            patience: 1,
        }
    }

    /// Decides in the round at `now`; the times only grow.
    pub(super) fn decide(&mut self, now: Duration, load: Load) -> Decision {
        let Targets { min, max, .. } = self.targets;
        let by_operations = self.needed_by_operations(load, 1.0);
        let by_latency = self.needed_by_latency(load);
        let needed = by_operations.max(by_latency).clamp(min, max);
        let enough = match load.is_complete {
            true => self.enough_for(load).clamp(min, max),
            false => load.readers.clamp(min, max),
        };
        self.note(now, enough);
        if load.readers < min {
            return self.start(now, needed - load.readers);
        }
        if needed > load.readers {
            let is_cool =
                self.last_start.is_none_or(|at| now.saturating_sub(at) >= self.targets.up_cooldown);
            if !is_cool {
                return Decision::Keep;
            }
            if by_operations <= load.readers {
                self.called_back(now);
            }
            return self.start(now, needed - load.readers);
        }
        if load.readers > max {
            return self.stop(now, load.readers - max);
        }
        match self.most_of_window(now) {
            Some(most) if most < load.readers && now >= self.no_stop_before => {
                self.stop(now, load.readers - most)
            }
            _ => Decision::Keep,
        }
    }

    fn start(&mut self, now: Duration, count: usize) -> Decision {
        self.last_start = Some(now);
        Decision::Start(count)
    }

    fn stop(&mut self, now: Duration, count: usize) -> Decision {
        self.last_stop = Some(now);
        Decision::Stop(count)
    }

    fn needed_by_operations(&self, load: Load, part: f64) -> usize {
        let target = self.targets.operations;
        target.map_or(0, |target| readers_for(load.operations, target * part))
    }

    /// One more than there are, after a round in which all have served.
    fn needed_by_latency(&self, load: Load) -> usize {
        match (load.p99, self.targets.p99) {
            (Some(p99), Some(target)) if p99 > target && load.is_complete => load.readers + 1,
            _ => 0,
        }
    }

    fn enough_for(&self, load: Load) -> usize {
        let by_operations = self.needed_by_operations(load, SLACK);
        let by_latency = self.targets.p99.map_or(0, |target| {
            let is_low = load.p99.is_none_or(|p99| p99 <= target * SLACK_OF_LATENCY);
            if is_low { load.readers.saturating_sub(1) } else { load.readers }
        });
        by_operations.max(by_latency)
    }

    fn note(&mut self, now: Duration, enough: usize) {
        self.enough.push_back((now, enough));
        let begin = now.saturating_sub(self.targets.down_window);
        while self.enough.get(1).is_some_and(|(at, _)| *at <= begin) {
            self.enough.pop_front();
        }
    }

    /// The most readers that a round of the last window needed; `None` before the first window is over.
    fn most_of_window(&self, now: Duration) -> Option<usize> {
        let (oldest, _) = self.enough.front()?;
        let is_whole = now.saturating_sub(*oldest) >= self.targets.down_window;
        let most = self.enough.iter().map(|(_, enough)| *enough).max();
        most.filter(|_| is_whole)
    }

    /// Latency needs a reader. If one was stopped not long ago, the next stop is later than that one was: nothing else shows
    /// that the latency of fewer readers is too high.
    fn called_back(&mut self, now: Duration) {
        let window = self.targets.down_window;
        let is_soon =
            self.last_stop.is_some_and(|at| now.saturating_sub(at) <= window * self.patience * 2);
        self.patience = if is_soon { (self.patience * 2).min(PATIENCE_MAX) } else { 1 };
        self.no_stop_before = now + window * self.patience;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn decider(operations: Option<f64>, p99: Option<f64>) -> Decider {
        let targets = Targets {
            min: 1,
            max: 4,
            operations,
            p99,
            up_cooldown: seconds(10),
            down_window: seconds(60),
        };
        Decider::new(targets)
    }

    fn load(readers: usize, operations: f64, p99: Option<f64>) -> Load {
        Load { readers, operations, p99, is_complete: true }
    }

    /// Decides at each second; a decision takes effect at once. Returns the changes.
    fn changes(
        decider: &mut Decider,
        readers: &mut usize,
        times: std::ops::Range<u64>,
        load_at: impl Fn(u64, usize) -> Load,
    ) -> Vec<(u64, Decision)> {
        let mut changes = Vec::new();
        for at in times {
            let decision = decider.decide(seconds(at), load_at(at, *readers));
            match decision {
                Decision::Keep => continue,
                Decision::Start(count) => *readers += count,
                Decision::Stop(count) => *readers -= count,
            }
            changes.push((at, decision));
        }
        changes
    }

    #[test]
    fn operations_start_readers_at_once_and_stop_them_after_a_window() {
        let mut decider = decider(Some(100.0), None);
        let mut readers = 1;
        let found = changes(&mut decider, &mut readers, 0..300, |at, it| {
            load(it, if (5..100).contains(&at) { 390.0 } else { 90.0 }, None)
        });
        assert_eq!(found, [(5, Decision::Start(3)), (160, Decision::Stop(2))]);
        // 90 a second are too much for one with slack, and 80 are not.
        assert_eq!(readers, 2);
        let found = changes(&mut decider, &mut readers, 300..400, |_, it| load(it, 80.0, None));
        assert_eq!(found, [(360, Decision::Stop(1))]);
    }

    #[test]
    fn a_start_waits_for_the_cooldown_and_a_lack_does_not() {
        let mut decider = decider(Some(100.0), None);
        assert_eq!(decider.decide(seconds(0), load(1, 150.0, None)), Decision::Start(1));
        assert_eq!(decider.decide(seconds(9), load(2, 250.0, None)), Decision::Keep);
        assert_eq!(decider.decide(seconds(10), load(2, 250.0, None)), Decision::Start(1));
        assert_eq!(decider.decide(seconds(11), load(0, 0.0, None)), Decision::Start(1));
        assert_eq!(decider.decide(seconds(21), load(3, 9000.0, None)), Decision::Start(1));
        assert_eq!(decider.decide(seconds(31), load(4, 9000.0, None)), Decision::Keep);
        assert_eq!(decider.decide(seconds(32), load(6, 9000.0, None)), Decision::Stop(2));
    }

    #[test]
    fn a_missing_answer_stops_no_reader() {
        let mut decider = decider(Some(100.0), None);
        let mut readers = 3;
        let found = changes(&mut decider, &mut readers, 0..500, |at, it| Load {
            is_complete: !at.is_multiple_of(59),
            ..load(it, 10.0, None)
        });
        assert_eq!(found, []);
        let found = changes(&mut decider, &mut readers, 500..600, |_, it| load(it, 10.0, None));
        assert_eq!(found, [(533, Decision::Stop(2))]);
    }

    #[test]
    fn latency_starts_one_reader_at_a_time() {
        let mut decider = decider(None, Some(0.010));
        let mut readers = 1;
        let found = changes(&mut decider, &mut readers, 0..300, |_, it| {
            load(it, 1.0, Some([0.0, 0.05, 0.02, 0.008, 0.006][it]))
        });
        assert_eq!(found, [(0, Decision::Start(1)), (10, Decision::Start(1))]);
        // Half of the target, and then no operation at all.
        let found =
            changes(&mut decider, &mut readers, 300..362, |_, it| load(it, 1.0, Some(0.005)));
        assert_eq!(found, [(360, Decision::Stop(1))]);
        let found = changes(&mut decider, &mut readers, 362..450, |_, it| load(it, 0.0, None));
        assert_eq!(found, [(421, Decision::Stop(1))]);
    }

    #[test]
    fn latency_that_calls_readers_back_stops_them_less_and_less_often() {
        let mut decider = decider(None, Some(0.010));
        let mut readers = 1;
        // One is too few, and two are far too many.
        let found = changes(&mut decider, &mut readers, 0..3600, |_, it| {
            load(it, 1.0, Some(if it == 1 { 0.05 } else { 0.001 }))
        });
        let stops = found.iter().filter(|(_, it)| matches!(it, Decision::Stop(_))).count();
        assert!((3..=7).contains(&stops), "{found:?}");
    }

    #[test]
    fn a_load_at_a_bound_changes_nothing() {
        for target in [0.1, 3.0, 1000.0] {
            let mut decider = decider(Some(target), None);
            let mut readers = 1;
            let third = target / 3.0;
            let found = changes(&mut decider, &mut readers, 0..500, |_, it| {
                load(it, third + third + third, None)
            });
            assert_eq!(found, []);
        }
    }
}
