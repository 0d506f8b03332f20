//! [`ReadTimes`]: how long the reads took, by partition and level.
//!
//! Invariant: the number of histograms is bounded, whatever names clients use. A partition that does not exist has none of
//! its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::exposition::{Exposition, Histogram};
use crate::level::Served;

/// Partitions that have histograms of their own: the first ones that are read. Each takes at most 65 lines of `/metrics`.
pub(crate) const PARTITIONS_MAX: usize = 32;

/// The reads of a partition, by level.
#[derive(Debug, Default)]
pub(crate) struct Latencies([Histogram; 5]);

/// The reads of all partitions.
#[derive(Debug, Default)]
pub(crate) struct ReadTimes {
    named: Mutex<BTreeMap<Arc<str>, Arc<Latencies>>>,
    /// Those of all other partitions.
    rest: Arc<Latencies>,
}

/// The partition of a connection, with its histograms: a read does not look them up again.
#[derive(Debug, Default)]
pub(crate) struct Known(Option<(Arc<str>, Arc<Latencies>)>);

/// The reads of a partition at a level. The name of the rest is empty.
pub(crate) struct Row {
    pub(crate) partition: Arc<str>,
    pub(crate) level: u8,
    pub(crate) count: u64,
    pub(crate) mean_micros: f64,
}

impl ReadTimes {
    /// Notes a number of reads of `partition` that took so long together; not 0.
    pub(crate) fn add(
        &self,
        known: &mut Known,
        partition: &Arc<str>,
        served: Served,
        (number, took): (u64, Duration),
    ) {
        let latencies = match &known.0 {
            _ if !served.has_partition => &self.rest,
            Some((last, latencies)) if Arc::ptr_eq(last, partition) => latencies,
            _ => &known.0.insert((partition.clone(), self.of(partition))).1,
        };
        latencies.0[usize::from(served.level) - 1].add_all(number, took);
    }

    fn of(&self, partition: &Arc<str>) -> Arc<Latencies> {
        let mut named = self.named.lock();
        if !named.contains_key(partition) && named.len() >= PARTITIONS_MAX {
            return self.rest.clone();
        }
        named.entry(partition.clone()).or_default().clone()
    }

    fn all(&self) -> Vec<(Arc<str>, Arc<Latencies>)> {
        let named = self.named.lock();
        let named = named.iter().map(|(name, latencies)| (name.clone(), latencies.clone()));
        named.chain([(Arc::from(""), self.rest.clone())]).collect()
    }

    /// Those that were read, by name and level.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (partition, latencies) in self.all() {
            for (histogram, level) in latencies.0.iter().zip(1..) {
                let count = histogram.count();
                if count > 0 {
                    let mean_micros = histogram.mean_micros();
                    rows.push(Row { partition: partition.clone(), level, count, mean_micros });
                }
            }
        }
        rows
    }

    /// Appends the histograms.
    pub(crate) fn write(&self, out: &mut Exposition) {
        let help =
            "Time from a read to its reply, by partition and the level at which it was served.";
        out.head("read_seconds", "histogram", help);
        for (partition, latencies) in self.all() {
            for (histogram, level) in latencies.0.iter().zip(1..) {
                if histogram.count() > 0 {
                    let level = format!("{level}");
                    let labels = [("partition", &*partition), ("level", &*level)];
                    out.histogram("read_seconds", &labels, histogram);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use siltstone::{Commit, Epoch, SeqNo};

    use super::*;

    #[test]
    fn the_number_of_histograms_is_bounded() {
        let times = ReadTimes::default();
        let mut known = Known::default();
        let as_of = Commit { epoch: Epoch(1), seq: SeqNo::ZERO };
        let mut served = Served { level: 5, as_of, is_primary: true, has_partition: true };
        for name in 0..2 * PARTITIONS_MAX {
            let partition: Arc<str> = Arc::from(format!("{name:03}"));
            // Names that no partition has take no place.
            let absent = Arc::from(format!("absent{name}"));
            served.has_partition = false;
            times.add(&mut known, &absent, served, (1, Duration::ZERO));
            served.has_partition = true;
            times.add(&mut known, &partition, served, (1, Duration::from_micros(7)));
            times.add(&mut known, &partition, served, (1, Duration::from_micros(9)));
        }
        let rows = times.rows();
        assert_eq!(rows.len(), PARTITIONS_MAX + 1);
        let (rest, named) = rows.split_last().unwrap();
        assert_eq!((&*rest.partition, rest.count), ("", 4 * PARTITIONS_MAX as u64));
        for (row, name) in named.iter().zip(0..) {
            assert_eq!((&*row.partition, row.level), (&*format!("{name:03}"), 5));
            assert_eq!((row.count, row.mean_micros as u64), (2, 8));
        }
    }
}
