//! [`Growth`]: the figures of a simulation.

/// The state of a simulation, and what was written up to then. Bytes are bytes of files.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Growth {
    /// Records put, overwrites included.
    pub writes: u64,
    /// Different records.
    pub records: u64,
    /// Bytes of keys and values put.
    pub put_bytes: u64,
    /// Bytes of keys and values of the different records.
    pub live_bytes: u64,
    /// Bytes written to the log.
    pub log_bytes: u64,
    /// Bytes of tables that flushes wrote.
    pub flush_bytes: u64,
    /// Bytes of tables that compactions wrote.
    pub compaction_bytes: u64,
    /// Flushes.
    pub flush_count: u64,
    /// Compactions, trivial moves included.
    pub compaction_count: u64,
    /// Trivial moves.
    pub move_count: u64,
    /// Number of tables by level, level 0 first.
    pub level_tables: Vec<u64>,
    /// Bytes of tables by level, level 0 first.
    pub level_bytes: Vec<u64>,
    /// Tables whose range of keys has a key, on average over the keys: as many a get asks at most.
    pub tables_per_get: f64,
    /// The same on average over the time since the last call of `restart_averages`. Level 0 fills and empties
    /// within it.
    pub tables_per_get_average: f64,
}

impl Growth {
    /// Bytes written to log and tables for each byte put.
    pub fn write_amplification(&self) -> f64 {
        self.written_bytes() as f64 / self.put_bytes.max(1) as f64
    }

    /// The same of what was written since `earlier`.
    pub fn write_amplification_since(&self, earlier: &Growth) -> f64 {
        let written = self.written_bytes() - earlier.written_bytes();
        written as f64 / (self.put_bytes - earlier.put_bytes).max(1) as f64
    }

    /// Bytes of tables for each byte of live keys and values.
    pub fn space_amplification(&self) -> f64 {
        self.table_bytes() as f64 / self.live_bytes.max(1) as f64
    }

    /// Bytes of all tables.
    pub fn table_bytes(&self) -> u64 {
        self.level_bytes.iter().sum()
    }

    /// Number of all tables.
    pub fn table_count(&self) -> u64 {
        self.level_tables.iter().sum()
    }

    /// Bytes written to log and tables.
    pub fn written_bytes(&self) -> u64 {
        self.log_bytes + self.flush_bytes + self.compaction_bytes
    }
}
