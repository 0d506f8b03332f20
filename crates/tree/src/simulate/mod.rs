//! [`SimulatedPartition`]: a partition of tables that have sizes and ranges of keys but no data, for questions about sizes that no
//! machine here can hold.
//!
//! The choice of each compaction and the ends of its outputs are the engine's own: `Picker` and `Split`. Modelled are
//! the content of a table (`load.rs`, `contents.rs`) and the bytes of an entry (the constants here). Design note 57 says
//! what the model leaves out.
//!
//! Invariants:
//! 1. A simulation is a function of its arguments: no clock, no random number, no file.
//! 2. Its memory follows the number of live tables: about 400 bytes each.

mod contents;
mod growth;
mod load;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

pub use growth::Growth;
pub use load::{FillOrder, OverwriteChoice, SimulatedLoad};

use crate::compaction::{
    Busy, CompactPointers, Compaction, Method, Picker, Split, level_compression,
};
use crate::error::{Error, ErrorKind, Result};
use crate::options::{CompactionStyle, Compression, Options, PartitionOptions};
use crate::types::{EntryKind, Epoch, FileNo, InternalKey, PartitionId, SeqNo, Trailer};
use crate::version::{Bounds, Level, PartitionVersion, SstMeta, Table};

use contents::{Measures, SimulatedTable, TableContents, merge};
use load::Popularity;

/// Bytes of an entry in a block in addition to key and value: its head of 8, and its share of the rest of a block, less
/// the bytes that neighbours have in common.
const ENTRY_BYTES: f64 = 3.0;
/// Bytes of an entry in the log in addition to key and value, if each is a commit.
const LOG_ENTRY_BYTES: u64 = 36;
/// Bytes of an entry in a memtable in addition to key and value.
const MEMTABLE_ENTRY_BYTES: u64 = 70;
/// Bytes of a block in the index in addition to its key.
const INDEX_BYTES: f64 = 12.0;
/// With a limited speed of compactions, writers wait from so many times `level0_tables` on, as they are slowed down there
/// in a database.
const LEVEL0_TIMES_MAX: usize = 5;

/// A partition that is filled, overwritten and compacted by numbers alone.
///
/// # Examples
/// ```
/// use tree::options::{Options, PartitionOptions};
/// use tree::simulate::{SimulatedLoad, SimulatedPartition};
///
/// # fn main() -> storage::Result<()> {
/// let mut load = SimulatedLoad::default();
/// load.records = 100_000_000;
/// let mut simulation = SimulatedPartition::new(load, &Options::default(), &PartitionOptions::default())?;
/// simulation.fill(100_000_000);
/// let growth = simulation.growth();
/// assert!((4.0..12.0).contains(&growth.write_amplification()));
/// assert!(growth.space_amplification() < 1.3);
/// # Ok(())
/// # }
/// ```
pub struct SimulatedPartition {
    // Fixed after construction.
    load: SimulatedLoad,
    popularity: Popularity,
    write_buffer_bytes: u64,

    version: PartitionVersion,
    busy: Busy,
    pointers: CompactPointers,
    contents: HashMap<FileNo, TableContents>,
    /// The keys of each level's tables together, as parts of all keys.
    coverage: Vec<f64>,
    next_file: u64,
    /// Records of the fill, and overwrites.
    filled: u64,
    overwrites: u64,
    memtable: PendingWrites,
    /// Bytes that compactions may write before the next flush comes.
    credit: f64,
    /// Nothing was due at the last pick.
    is_at_rest: bool,
    growth: Growth,
    /// The sum of tables for a get, and the number of looks.
    looks: (f64, u64),
}

/// Writes that are not flushed.
#[derive(Clone, Copy, Default)]
struct PendingWrites {
    filled: u64,
    overwrites: u64,
}

impl SimulatedPartition {
    /// An empty partition.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the load, the options or a FIFO cannot be simulated.
    pub fn new(
        load: SimulatedLoad,
        options: &Options,
        partition: &PartitionOptions,
    ) -> Result<SimulatedPartition> {
        options.check()?;
        partition.check()?;
        let is_leveled = partition.compaction_style == CompactionStyle::Leveled;
        let fault =
            load.fault().or((!is_leveled).then_some("only leveled partitions are simulated"));
        if let Some(fault) = fault {
            return Err(Error::new(ErrorKind::InvalidArgument, fault));
        }
        let version = PartitionVersion {
            id: PartitionId(0),
            name: "simulated".into(),
            options: Arc::new(partition.clone()),
            levels: Default::default(),
            flushed_through: SeqNo::ZERO,
            created_at_edit: 0,
            hooks: Arc::new([]),
            gaps: Default::default(),
            clear_seqs: Default::default(),
            spans: Default::default(),
            store_sections: Vec::new(),
        };
        Ok(SimulatedPartition {
            popularity: Popularity::new(load.choice, load.records),
            write_buffer_bytes: options.write_buffer_bytes,
            load,
            coverage: vec![0.0; version.levels.len()],
            version,
            busy: Busy::default(),
            pointers: CompactPointers::default(),
            contents: HashMap::new(),
            next_file: 1,
            filled: 0,
            overwrites: 0,
            memtable: PendingWrites::default(),
            credit: 0.0,
            is_at_rest: false,
            growth: Growth::default(),
            looks: (0.0, 0),
        })
    }

    /// Puts so many further records of the fill, each for the first time; no more than there are.
    pub fn fill(&mut self, records: u64) {
        self.part_if_ascending(self.memtable.overwrites);
        let mut left = records.min(self.load.records - self.filled);
        while left > 0 {
            let count = left.min(self.room());
            self.memtable.filled += count;
            self.filled += count;
            left -= count;
            self.flush_if_full();
        }
    }

    /// Puts so many records, chosen by the load. Those that were not filled before are new.
    pub fn overwrite(&mut self, writes: u64) {
        self.part_if_ascending(self.memtable.filled);
        let mut left = writes;
        while left > 0 {
            let count = left.min(self.room());
            self.memtable.overwrites += count;
            self.overwrites += count;
            left -= count;
            self.flush_if_full();
        }
    }

    /// Flushes before a fill in ascending order if the memtable has `others`, and the reverse: the two cover different
    /// ranges, which one table of the model cannot have.
    fn part_if_ascending(&mut self, others: u64) {
        if others > 0 && self.load.order == FillOrder::Ascending {
            self.flush();
        }
    }

    /// Begins the average of the tables for a get again.
    pub fn restart_averages(&mut self) {
        self.looks = (0.0, 0);
    }

    /// The state now. What is in the memtable is put and logged, and in no table.
    pub fn growth(&self) -> Growth {
        let writes = self.filled + self.overwrites;
        let share = self.popularity.occupied(self.share(self.filled), self.share(self.overwrites));
        let records = (share * self.load.records as f64).round() as u64;
        let record_bytes = self.load.record_bytes();
        Growth {
            writes,
            records,
            put_bytes: writes * record_bytes,
            live_bytes: records * record_bytes,
            log_bytes: match self.version.options.logged {
                true => writes * (record_bytes + LOG_ENTRY_BYTES),
                false => 0,
            },
            level_tables: self.version.levels.iter().map(|it| it.tables().len() as u64).collect(),
            level_bytes: self.version.levels.iter().map(Level::bytes).collect(),
            tables_per_get: self.tables_per_get(),
            tables_per_get_average: match self.looks {
                (_, 0) => self.tables_per_get(),
                (sum, count) => sum / count as f64,
            },
            ..self.growth.clone()
        }
    }

    fn share(&self, records: u64) -> f64 {
        records as f64 / self.load.records as f64
    }

    fn tables_per_get(&self) -> f64 {
        self.coverage.iter().sum()
    }

    /// The number of further records that fill the memtable.
    fn room(&self) -> u64 {
        let entry_bytes = self.load.record_bytes() + MEMTABLE_ENTRY_BYTES;
        let used = self.memtable.filled + self.memtable.overwrites;
        self.write_buffer_bytes.div_ceil(entry_bytes).saturating_sub(used).max(1)
    }

    fn flush_if_full(&mut self) {
        let used = self.memtable.filled + self.memtable.overwrites;
        if used * (self.load.record_bytes() + MEMTABLE_ENTRY_BYTES) >= self.write_buffer_bytes {
            self.flush();
        }
    }

    /// Writes the memtable to a table of level 0, if it has entries, and runs the compactions that are due.
    pub fn flush(&mut self) {
        let PendingWrites { filled, overwrites } = std::mem::take(&mut self.memtable);
        let writes = filled + overwrites;
        if writes == 0 {
            return;
        }
        let contents = match self.load.order {
            FillOrder::Ascending if filled > 0 => TableContents {
                first: self.place(self.filled - filled),
                last: self.place(self.filled) - 1,
                filled: 1.0,
                draws: 0.0,
            },
            _ => TableContents {
                first: 0,
                last: u64::MAX,
                filled: self.share(filled),
                draws: self.share(overwrites),
            },
        };
        let entries = self.popularity.occupied(contents.filled, contents.draws)
            * contents.width()
            * self.load.records as f64;
        let last_seq = self.filled + self.overwrites;
        let seqs = (last_seq - writes + 1, last_seq);
        let table = self.table(0, SimulatedTable { contents, entries }, seqs);
        self.growth.flush_count += 1;
        self.growth.flush_bytes += table.meta.bytes;
        self.add(0, vec![table]);
        self.looks.0 += self.tables_per_get();
        self.looks.1 += 1;
        let put = (writes * self.load.record_bytes()) as f64;
        self.credit += self.load.compaction_speed.unwrap_or(f64::INFINITY) * put;
        let level0 = self.version.levels[0].tables().len();
        // If nothing was due before, a new table of level 0 without tombstones makes level 0 alone due. A pick would look at
        // every table.
        if !self.is_at_rest || level0 >= self.version.options.level0_tables as usize {
            self.compact();
        }
        if self.is_at_rest {
            // Time in which nothing is due is lost.
            self.credit = self.credit.min(0.0);
        }
    }

    /// The place of the `n`-th record in the order of the keys.
    fn place(&self, n: u64) -> u64 {
        let place = (u128::from(n) << 64) / u128::from(self.load.records);
        u64::try_from(place).unwrap_or(u64::MAX)
    }

    /// Runs what is due, as far as the speed of compactions allows.
    fn compact(&mut self) {
        let waits_at = LEVEL0_TIMES_MAX * self.version.options.level0_tables as usize;
        loop {
            let is_waited_for = self.version.levels[0].tables().len() >= waits_at;
            if self.credit <= 0.0 && !is_waited_for {
                return;
            }
            let Some(job) = self.pick() else { break };
            self.is_at_rest = false;
            self.pointers.advance(&job);
            let written = self.run(&job);
            // Writers that wait give compactions all the time that they need.
            let credit = if is_waited_for { self.credit.max(0.0) } else { self.credit };
            self.credit = credit - written as f64;
        }
        self.is_at_rest = true;
    }

    fn pick(&self) -> Option<Compaction> {
        let picker = Picker {
            version: &self.version,
            // One runs after the other.
            busy: &self.busy,
            pointers: &self.pointers,
            oldest_snapshot: SeqNo::MAX,
            joined: &|_, _| false,
            rewrite_before: None,
            held: &[],
            outdated: &BTreeSet::new(),
            unix_seconds: 0,
        };
        picker.pick()
    }

    /// Replaces the inputs of the job by its outputs; returns the bytes written.
    fn run(&mut self, job: &Compaction) -> u64 {
        let is_merge = job.method == Method::Merge;
        let outputs = match job.method {
            Method::Merge => self.merge(job),
            Method::Move => job.tables().map(|(_, table)| table.clone()).collect(),
            Method::Drop => Vec::new(),
        };
        for (level, tables) in &job.inputs {
            self.remove(*level, tables, is_merge);
        }
        self.pointers.finished(job, outputs.iter().map(|table| table.meta.file));
        let written = outputs.iter().filter(|_| is_merge).map(|table| table.meta.bytes).sum();
        self.growth.compaction_bytes += written;
        self.growth.compaction_count += 1;
        self.growth.move_count += u64::from(job.method == Method::Move);
        self.add(job.level_to, outputs);
        written
    }

    fn merge(&mut self, job: &Compaction) -> Vec<Arc<Table>> {
        let inputs: Vec<_> = job.tables().map(|(_, it)| self.contents[&it.meta.file]).collect();
        let oldest = job.tables().map(|(_, it)| it.meta.oldest().get()).min();
        let newest = job.tables().map(|(_, it)| it.meta.newest().get()).max();
        let table_bytes = self.version.options.table_bytes;
        let measures = Measures {
            popularity: &self.popularity,
            records: self.load.records as f64,
            entry_bytes: self.entry_bytes(job.level_to),
        };
        let mut split = Split::new(job, table_bytes);
        let outputs = merge(&inputs, &mut split, &job.grandparents, table_bytes, &measures);
        let seqs = (oldest.unwrap_or_default(), newest.unwrap_or_default());
        outputs.into_iter().map(|output| self.table(job.level_to, output, seqs)).collect()
    }

    /// Bytes of a table of the level for each entry.
    fn entry_bytes(&self, level: usize) -> f64 {
        let options = &self.version.options;
        let plain = self.load.record_bytes() as f64 + ENTRY_BYTES;
        let share = match level_compression(options, level) {
            Compression::None => 1.0,
            _ => self.load.compressed_share,
        };
        // A block has at least one entry.
        let blocks = (plain / f64::from(options.block_bytes)).min(1.0);
        let index = (self.load.key_bytes as f64 + INDEX_BYTES) * blocks;
        plain * share + index + f64::from(options.bloom_bits_per_key) / 8.0
    }

    fn table(
        &mut self,
        level: usize,
        output: SimulatedTable,
        (oldest, newest): (u64, u64),
    ) -> Arc<Table> {
        let file = FileNo(self.next_file);
        self.next_file += 1;
        let newest = SeqNo::new(newest).unwrap_or(SeqNo::MAX);
        let oldest = SeqNo::new(oldest).unwrap_or(SeqNo::MAX);
        let trailer = Trailer::new(newest, EntryKind::Value);
        self.contents.insert(file, output.contents);
        Arc::new(Table::new(SstMeta {
            file,
            epoch: Epoch(1),
            bytes: (output.entries * self.entry_bytes(level)) as u64,
            hash: 0,
            smallest: InternalKey { user: output.contents.first.to_be_bytes().into(), trailer },
            largest: InternalKey { user: output.contents.last.to_be_bytes().into(), trailer },
            bounds: Bounds::INCLUSIVE,
            min_seq: oldest,
            max_seq: newest,
            entries: output.entries as u64,
            tombstones: 0,
            hidden: 0,
            global_seq: None,
            foreign: None,
            compression: Some(level_compression(&self.version.options, level)),
            kept: Arc::new([]),
            expiries: None,
            written_at: None,
        }))
    }

    /// The part of all keys that the tables cover.
    fn width(&self, tables: &[Arc<Table>]) -> f64 {
        tables.iter().map(|table| self.contents[&table.meta.file].width()).sum()
    }

    fn add(&mut self, level: usize, tables: Vec<Arc<Table>>) {
        let Some(first) = tables.first() else { return };
        self.coverage[level] += self.width(&tables);
        let changed = &mut self.version.levels[level];
        if level == 0 {
            let all = changed.tables().iter().cloned().chain(tables).collect();
            *changed = Level::newest_first(all);
        } else {
            let at = changed.index_of(&first.meta.smallest.user);
            changed.replace(at..at, tables);
        }
    }

    fn remove(&mut self, level: usize, tables: &[Arc<Table>], is_gone: bool) {
        let Some(first) = tables.first() else { return };
        self.coverage[level] -= self.width(tables);
        let changed = &mut self.version.levels[level];
        if level == 0 {
            let mut kept = changed.tables().to_vec();
            kept.retain(|it| tables.iter().all(|gone| gone.meta.file != it.meta.file));
            *changed = Level::newest_first(kept);
        } else {
            // The inputs of a job are neighbours.
            let at = changed.index_of(&first.meta.smallest.user);
            changed.replace(at..at + tables.len(), Vec::new());
        }
        if is_gone {
            for table in tables {
                self.contents.remove(&table.meta.file);
            }
        }
    }
}
