//! [`SecondaryStats`]: the lag of each partition of a secondary, and the memory that it takes.

use lsm_core::types::SeqNo;

use crate::lag::Lag;
use crate::partition::SecondaryPartition;
use crate::secondary::Secondary;

/// The figures of a secondary: [`Secondary::stats`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SecondaryStats {
    /// `true` if a primary on this machine publishes its commits, see [`Secondary::has_live_primary`].
    pub has_live_primary: bool,
    /// Memory of the memtables, in bytes.
    pub memtable_bytes: u64,
    /// The partitions, by name.
    pub partitions: Vec<FollowedStats>,
}

/// The figures of a partition of a secondary.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FollowedStats {
    /// The name.
    pub name: String,
    /// Sequence number of the commit up to which every operation of the partition is visible here.
    pub seq: SeqNo,
    /// The distance from the primary.
    pub lag: Lag,
    /// The reason why the thread that follows the partition failed last; `None` since it succeeded.
    pub follow_failure: Option<String>,
}

impl Secondary {
    /// Returns the figures of the secondary and of all of its partitions. A partition that is dropped meanwhile is left out.
    ///
    /// # Cost
    /// That of [`SecondaryPartition::lag`] for each partition.
    ///
    /// # Examples
    /// ```
    /// use secondary::Target;
    ///
    /// # let fs = std::sync::Arc::new(lsm_core::fs::MemFs::new());
    /// # let primary = lsm_core::Db::builder("/db").fs(fs.clone()).open()?;
    /// let commit = primary.partition("users")?.put("alice", "admin")?;
    /// # let secondary = secondary::Secondary::builder("/db").fs(fs).open()?;
    /// secondary.sync(Target::Latest)?;
    /// let stats = secondary.stats();
    /// let users = &stats.partitions[1];
    /// assert_eq!((users.name.as_str(), users.seq, users.lag.operations), ("users", commit.seq, Some(0)));
    /// # Ok::<(), lsm_core::Error>(())
    /// ```
    pub fn stats(&self) -> SecondaryStats {
        let names = self.partition_names();
        let partitions = names.iter().filter_map(|name| self.partition(name).ok());
        SecondaryStats {
            has_live_primary: self.has_live_primary(),
            memtable_bytes: self.memtable_bytes(),
            partitions: partitions.map(|partition| FollowedStats::of(&partition)).collect(),
        }
    }
}

impl FollowedStats {
    fn of(partition: &SecondaryPartition) -> FollowedStats {
        FollowedStats {
            name: partition.name().to_owned(),
            seq: partition.complete_seq(),
            lag: partition.lag(),
            follow_failure: partition.follow_failure().map(|error| error.to_string()),
        }
    }
}
