//! The order of the runs, and their summary.
//!
//! Each round runs every setup at every share of strong keys, with the same operations and in another
//! order than the round before, so that other activity of the machine does not affect one setup or
//! share alone. The ways follow one another at a share. So a round has, for each share, a ratio of
//! two runs that are a few seconds apart. Such ratios scatter less than throughputs do. The first
//! round is not counted: its caches are cold.

use super::link::Link;
use super::series::{Load, Series};
use super::{Args, Cluster, Run};
use crate::output::{Failure, note};

/// Runs all rounds of a workload.
pub(super) fn measure<L: Link>(
    args: &Args,
    load: Load,
    cluster: &mut Cluster<L>,
) -> Result<Vec<Series>, Failure> {
    let shares: Vec<u64> = (0..=100).step_by(args.step as usize).collect();
    let setups = load.setups();
    let points: Vec<_> = shares.iter().map(|share| (*share, Vec::new())).collect();
    let mut series: Vec<Series> =
        setups.iter().map(|setup| Series { setup: *setup, points: points.clone() }).collect();
    for round in 0..=args.rounds {
        for (place, setup) in order(round as usize, shares.len(), setups.len()) {
            let strong = shares[place];
            let run = Run { args, load, setup: setups[setup], strong };
            // All runs of a round do the same operations.
            let measured = run.measure(cluster, args.seed + round)?;
            if round > 0 {
                series[setup].points[place].1.push(measured);
            }
        }
        note(format_args!("{}: round {round} of {} is done", load.name(), args.rounds));
    }
    Ok(series)
}

/// The places of shares and ways in a round, in the order of their runs.
fn order(round: usize, shares: usize, setups: usize) -> impl Iterator<Item = (usize, usize)> {
    // A third of the shares further on in each round, and alternately from the end.
    let first = round * shares.div_ceil(3);
    (0..shares).flat_map(move |nth| {
        let nth = if round.is_multiple_of(2) { nth } else { shares - 1 - nth };
        let share = (first + nth) % shares;
        (0..setups).map(move |setup| (share, (setup + round + share) % setups))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::series::{Measured, Setup, Spread};
    use super::*;

    fn series(setup: Setup, rates: &[[f64; 3]]) -> Series {
        let points = rates.iter().enumerate().map(|(at, rates)| {
            let runs = rates.map(|rate| Measured { rate, processor_us: rate });
            (at as u64, runs.to_vec())
        });
        Series { setup, points: points.collect() }
    }

    fn exactly(value: f64) -> Spread {
        Spread { low: value, median: value, high: value }
    }

    #[test]
    fn a_round_runs_each_point_once_and_the_ways_of_a_share_together() {
        let mut firsts = BTreeSet::new();
        let mut setups_first = BTreeSet::new();
        for round in 0..9 {
            let runs: Vec<_> = order(round, 11, 3).collect();
            let all: BTreeSet<_> = runs.iter().copied().collect();
            assert_eq!((runs.len(), all.len()), (33, 33), "round {round}");
            assert!(runs.chunks(3).all(|chunk| chunk.iter().all(|run| run.0 == chunk[0].0)));
            firsts.insert(runs[0].0);
            setups_first.insert(runs.iter().find(|run| run.0 == 5).unwrap().1);
        }
        assert!(firsts.len() > 4, "{firsts:?}");
        assert_eq!(setups_first.len(), 3, "each setup is the first of a share in some rounds");
    }

    #[test]
    fn medians_and_quartiles_lie_between_values() {
        let of = Spread::of([4.0, 1.0, 3.0, 2.0, 5.0]);
        assert_eq!(of, Spread { low: 2.0, median: 3.0, high: 4.0 });
        assert_eq!(Spread::of([1.0, 2.0]), Spread { low: 1.25, median: 1.5, high: 1.75 });
    }

    /// A machine that is half as fast in one round changes no ratio.
    #[test]
    fn ratios_are_those_of_the_same_round() {
        let base = series(Setup::Baseline, &[[100.0, 50.0, 100.0], [100.0, 50.0, 100.0]]);
        let other = series(Setup::Offloaded, &[[200.0, 100.0, 200.0], [100.0, 50.0, 100.0]]);
        assert_eq!(other.ratio(&base, 0), exactly(2.0));
        assert_eq!(other.ratio(&base, 1), exactly(1.0));
        // Two times 1/100 over 1/200 and 1/100.
        assert!((other.ratio_over_all(&base).median - 4.0 / 3.0).abs() < 1e-9);
        let slopes: Vec<_> = other.slopes().iter().map(|of| of.median).collect();
        assert!((slopes[0] - 1.0 / 3.0).abs() < 1e-9 && (slopes[1] + 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(base.slopes(), [exactly(0.0); 2]);
        assert!((other.processor_us(0) - 500.0 / 3.0).abs() < 1e-9);
    }
}
