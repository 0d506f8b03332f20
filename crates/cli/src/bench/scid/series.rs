//! The figures of the runs of `bench scid`: loads, setups, and the series of each setup.

/// A workload of the thesis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Load {
    /// Writes alone
    #[value(name = "W")]
    Writes,
    /// Half writes
    #[value(name = "A")]
    Mixed,
    /// Reads alone
    #[value(name = "C")]
    Reads,
}

impl Load {
    pub(super) const ALL: [Load; 3] = [Load::Writes, Load::Mixed, Load::Reads];

    pub(super) fn name(self) -> &'static str {
        match self {
            Load::Writes => "W",
            Load::Mixed => "A",
            Load::Reads => "C",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Load::Writes => "W: writes alone",
            Load::Mixed => "A: half writes, each followed by a read of its key",
            Load::Reads => "C: reads alone",
        }
    }

    /// The ways that differ in it.
    pub(super) fn setups(self) -> &'static [Setup] {
        match self {
            Load::Writes => &[Setup::Baseline, Setup::Offloaded],
            Load::Mixed | Load::Reads => &[Setup::Baseline, Setup::Offloaded, Setup::Optimal],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setup {
    Baseline,
    Offloaded,
    Optimal,
}

impl Setup {
    pub(super) fn name(self) -> &'static str {
        match self {
            Setup::Baseline => "baseline",
            Setup::Offloaded => "offloaded",
            Setup::Optimal => "optimal",
        }
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    /// Operations a second.
    pub(super) rate: f64,
    /// Processor time of all processes for an operation, background work included, in microseconds.
    pub(super) processor_us: f64,
}

/// The runs of one setup over the shares of strong keys.
pub(super) struct Series {
    pub(super) setup: Setup,
    /// The shares in percent, each with a run of every round.
    pub(super) points: Vec<(u64, Vec<Measured>)>,
}

impl Series {
    /// The number of rounds.
    pub(super) fn rounds(&self) -> usize {
        self.points.first().map_or(0, |(_, runs)| runs.len())
    }

    /// The ratios to the same runs of `base`, at one share.
    pub(super) fn ratio(&self, base: &Series, place: usize) -> Spread {
        let runs = self.points[place].1.iter().zip(&base.points[place].1);
        Spread::of(runs.map(|(run, base)| run.rate / base.rate))
    }

    /// The ratios of whole rounds: of the sum of the times of all shares.
    pub(super) fn ratio_over_all(&self, base: &Series) -> Spread {
        Spread::of((0..self.rounds()).map(|round| base.took(round) / self.took(round)))
    }

    /// The sum of the times of an operation at each share in a round.
    fn took(&self, round: usize) -> f64 {
        self.points.iter().map(|(_, runs)| 1.0 / runs[round].rate).sum()
    }

    /// The mean throughput of a round.
    fn mean(&self, round: usize) -> f64 {
        let rates = self.points.iter().map(|(_, runs)| runs[round].rate);
        rates.sum::<f64>() / self.points.len() as f64
    }

    /// For each share, its throughput over the mean of its round, less 1: a flat setup has 0 everywhere.
    pub(super) fn slopes(&self) -> Vec<Spread> {
        let means: Vec<f64> = (0..self.rounds()).map(|round| self.mean(round)).collect();
        let slopes = self.points.iter().map(|(_, runs)| {
            Spread::of(runs.iter().zip(&means).map(|(run, mean)| run.rate / mean - 1.0))
        });
        slopes.collect()
    }

    /// The mean processor time for an operation at one share, in microseconds. Not the median: a
    /// compaction works for many operations.
    pub(super) fn processor_us(&self, place: usize) -> f64 {
        let runs = &self.points[place].1;
        runs.iter().map(|run| run.processor_us).sum::<f64>() / runs.len() as f64
    }
}

/// A median and the quartiles around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) low: f64,
    pub(super) median: f64,
    pub(super) high: f64,
}

impl Spread {
    /// The spread of `values`, at least one.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Spread {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        Spread {
            low: between(&sorted, 0.25),
            median: between(&sorted, 0.5),
            high: between(&sorted, 0.75),
        }
    }
}

/// The value at a part of the way through `sorted`, interpolated between two.
fn between(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len() - 1) as f64;
    let below = sorted[place as usize];
    let above = sorted[place.ceil() as usize];
    below + (above - below) * place.fract()
}
