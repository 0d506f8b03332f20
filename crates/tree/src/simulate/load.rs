//! [`SimulatedLoad`]: the writes of a simulation, and [`Popularity`]: how many different keys a number of writes reaches.
//!
//! Pure functions of numbers. `contents.rs` asks them for every table.
//!
//! The model: a table has the newest versions of `draws` overwrites over its range of keys, which fall on the keys
//! independently of each other, and of a share of the first writes, in which no key comes twice. So a merge adds the
//! draws and the shares of its inputs, and the expected number of different keys follows from the two sums alone.

/// Skew of the zipfian choice, as in YCSB.
const ZIPFIAN_THETA: f64 = 0.99;

/// The order in which the records of a fill are put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FillOrder {
    /// In the order of their keys.
    Ascending,
    /// In random order, each once.
    Random,
}

/// The choice of the records that are overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OverwriteChoice {
    /// Each record as often as any other.
    Uniform,
    /// By a zipfian distribution with the constant 0.99, as YCSB does. Popular records lie anywhere in the order of the
    /// keys.
    Zipfian,
}

/// The writes of a simulation, and the bytes that they take.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct SimulatedLoad {
    /// Number of records, each with its own key. Default 1,000,000, from 1 to 10^15.
    pub records: u64,
    /// Length of a key in bytes. Default 16, at least 1.
    pub key_bytes: u64,
    /// Length of a value in bytes. Default 100.
    pub value_bytes: u64,
    /// The order of the fill. Default random.
    pub order: FillOrder,
    /// The records that are overwritten. Default uniform.
    pub choice: OverwriteChoice,
    /// The length of a compressed block, as a share of what it was. Default 1: it does not compress. Above 0, at most 1.
    /// Tables of the levels 0 and 1 are never compressed.
    pub compressed_share: f64,
    /// Bytes that compactions write while one byte of keys and values is put, if writers outrun them. Default `None`:
    /// after each flush everything that is due is compacted, as in a database that is not at its limit. More than 0.
    pub compaction_speed: Option<f64>,
}

impl Default for SimulatedLoad {
    fn default() -> SimulatedLoad {
        SimulatedLoad {
            records: 1_000_000,
            key_bytes: 16,
            value_bytes: 100,
            order: FillOrder::Random,
            choice: OverwriteChoice::Uniform,
            compressed_share: 1.0,
            compaction_speed: None,
        }
    }
}

impl SimulatedLoad {
    /// Bytes of a key and a value.
    pub fn record_bytes(&self) -> u64 {
        self.key_bytes.saturating_add(self.value_bytes)
    }

    /// Returns what is wrong with it.
    pub(super) fn fault(&self) -> Option<&'static str> {
        const RECORDS_MAX: u64 = 1_000_000_000_000_000;
        const RECORD_BYTES_MAX: u64 = 1 << 30;
        if !(1..=RECORDS_MAX).contains(&self.records) {
            Some("the records of a simulation are from 1 to 10^15")
        } else if self.key_bytes == 0 || self.record_bytes() > RECORD_BYTES_MAX {
            Some("a simulated record has a key of at least 1 byte, and at most 1 GiB")
        } else if !is_positive(self.compressed_share) || self.compressed_share > 1.0 {
            Some("the share of a compressed block is above 0 and at most 1")
        } else if !self.compaction_speed.is_none_or(is_positive) {
            Some("the speed of simulated compactions is above 0")
        } else {
            None
        }
    }
}

/// Records that are about equally popular.
#[derive(Clone, Copy, Debug)]
struct PopularityClass {
    /// Their share of all records.
    records: f64,
    /// Overwrites of a record of them, over those of the average record.
    weight: f64,
}

/// The distribution of overwrites over the records.
#[derive(Debug)]
pub(super) struct Popularity(Vec<PopularityClass>);

impl Popularity {
    pub(super) fn new(choice: OverwriteChoice, records: u64) -> Popularity {
        match choice {
            OverwriteChoice::Uniform => {
                Popularity(vec![PopularityClass { records: 1.0, weight: 1.0 }])
            }
            OverwriteChoice::Zipfian => Popularity::zipfian(records as f64),
        }
    }

    /// Ranks in classes, each twice as large as the one before: within one, popularity differs by a factor of two.
    fn zipfian(records: f64) -> Popularity {
        let total = zipfian_mass(0.0, records);
        let mut classes = Vec::new();
        let mut from = 0.0;
        while from < records {
            let to = (2.0 * from + 1.0_f64).min(records);
            let share = (to - from) / records;
            classes.push(PopularityClass {
                records: share,
                weight: zipfian_mass(from, to) / total / share,
            });
            from = to;
        }
        Popularity(classes)
    }

    /// The expected share of the records of a range that is in a table: one with the share `filled` of the first
    /// writes, and with `draws` overwrites for each record.
    pub(super) fn occupied(&self, filled: f64, draws: f64) -> f64 {
        let filled = filled.clamp(0.0, 1.0);
        if draws <= 0.0 || filled >= 1.0 {
            return filled;
        }
        let absent = self.0.iter().map(|class| class.records * (-draws * class.weight).exp());
        1.0 - (1.0 - filled) * absent.sum::<f64>().min(1.0)
    }
}

fn is_positive(number: f64) -> bool {
    number.is_finite() && number > 0.0
}

/// The sum of 1 / rank^theta over the ranks after `from` through `to`, by its integral.
fn zipfian_mass(from: f64, to: f64) -> f64 {
    let power = 1.0 - ZIPFIAN_THETA;
    ((to + 0.5).powf(power) - (from + 0.5).powf(power)) / power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_draws_reach_as_many_keys_as_the_draws_of_both() {
        for choice in [OverwriteChoice::Uniform, OverwriteChoice::Zipfian] {
            let popularity = Popularity::new(choice, 1_000_000);
            let weights: f64 = popularity.0.iter().map(|it| it.records * it.weight).sum();
            assert!((weights - 1.0).abs() < 1e-9, "{choice:?}: {weights}");
            let few = popularity.occupied(0.0, 0.001);
            let more = popularity.occupied(0.0, 1.0);
            assert!(0.0 < few && few <= 0.001 && few < more && more < 1.0, "{choice:?}");
            let of_fill = popularity.occupied(0.4, 0.0);
            let of_both = popularity.occupied(1.0, 3.0);
            assert!((of_fill - 0.4).abs() < 1e-9 && (of_both - 1.0).abs() < 1e-9, "{choice:?}");
        }
        // One draw for each record leaves 1 / e of them out.
        let uniform = Popularity::new(OverwriteChoice::Uniform, 10);
        assert!((uniform.occupied(0.0, 1.0) - 0.632).abs() < 0.001);
    }

    #[test]
    fn zipfian_draws_reach_as_many_keys_as_drawn_ones() {
        // Every record drawn by its own probability, instead of by classes.
        let records = 100_000_u32;
        let total: f64 = (1..=records).map(|rank| f64::from(rank).powf(-ZIPFIAN_THETA)).sum();
        let popularity = Popularity::new(OverwriteChoice::Zipfian, records.into());
        for draws in [0.01, 0.1, 1.0, 10.0] {
            let each = draws * f64::from(records) / total;
            let absent =
                (1..=records).map(|rank| (-each * f64::from(rank).powf(-ZIPFIAN_THETA)).exp());
            let expected = 1.0 - absent.sum::<f64>() / f64::from(records);
            let got = popularity.occupied(0.0, draws);
            assert!((got / expected - 1.0).abs() < 0.03, "{draws}: {got}, not {expected}");
        }
    }
}
