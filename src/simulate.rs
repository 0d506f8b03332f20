//! The costs of a database of a size: [`Simulation`].
//!
//! A simulation has tables with sizes and ranges of keys, but no data. The engine itself chooses each compaction, so it
//! says for 10 TB in minutes what options mean there: write and space amplification, the tables that a get asks, the
//! number of tables. `docs/scale.md` compares it with real runs, and design note 57 says what the model leaves out.
//! `siltstone simulate` prints it.

pub use lsm_core::simulate::{FillOrder, Growth, OverwriteChoice, SimulatedLoad};

use lsm_core::error::Result;
use lsm_core::options::Options;

use crate::PartitionOptions;

/// A partition that is filled, overwritten and compacted by numbers alone.
///
/// It is a function of its arguments: no clock, no random number, no file.
///
/// # Cost
/// Memory of about 400 bytes for each live table. Time follows the number of compactions, and the number of tables in
/// each level that one changes.
///
/// # Examples
/// ```
/// use siltstone::simulate::{SimulatedLoad, Simulation};
/// use siltstone::{Options, PartitionOptions};
///
/// # fn main() -> siltstone::Result<()> {
/// // 100 million records of 16 + 100 bytes, then each overwritten once on average.
/// let mut load = SimulatedLoad::default();
/// load.records = 100_000_000;
/// let mut simulation = Simulation::new(load, &Options::new(), &PartitionOptions::new())?;
/// simulation.fill(load.records);
/// let filled = simulation.growth();
/// simulation.overwrite(load.records);
/// let growth = simulation.growth();
/// assert!(growth.write_amplification_since(&filled) > filled.write_amplification());
/// assert!(growth.space_amplification() < 1.4);
/// # Ok(())
/// # }
/// ```
pub struct Simulation(lsm_core::simulate::SimulatedPartition);

impl Simulation {
    /// Returns an empty partition with these options.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the load or the options are out of range, or the partition
    /// is not leveled.
    ///
    /// # Examples
    /// ```
    /// use siltstone::simulate::{SimulatedLoad, Simulation};
    /// use siltstone::{ErrorKind, Options, PartitionOptions};
    ///
    /// let mut load = SimulatedLoad::default();
    /// load.records = 0;
    /// let refused = Simulation::new(load, &Options::new(), &PartitionOptions::new());
    /// assert_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::InvalidArgument));
    /// ```
    pub fn new(
        load: SimulatedLoad,
        options: &Options,
        partition: &PartitionOptions,
    ) -> Result<Simulation> {
        lsm_core::simulate::SimulatedPartition::new(load, options, &partition.stored)
            .map(Simulation)
    }

    /// Puts so many further records for the first time; no more than [`SimulatedLoad::records`] in all.
    pub fn fill(&mut self, records: u64) {
        self.0.fill(records);
    }

    /// Puts so many records that [`SimulatedLoad::choice`] chooses. Those that were not filled before are new.
    pub fn overwrite(&mut self, writes: u64) {
        self.0.overwrite(writes);
    }

    /// Writes the memtable to a table of level 0, if it has entries, and runs the compactions that are due.
    pub fn flush(&mut self) {
        self.0.flush();
    }

    /// Begins [`Growth::tables_per_get_average`] again.
    pub fn restart_averages(&mut self) {
        self.0.restart_averages();
    }

    /// Returns the state now. What is in the memtable is put and logged, and in no table.
    pub fn growth(&self) -> Growth {
        self.0.growth()
    }
}
