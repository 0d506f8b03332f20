//! [`Sketch`]: how often each key was read of late, and the cuts of that into five classes.
//!
//! A count-min sketch whose cells count two windows of reads: the one that runs, and the one before it. A cell notes its
//! window, and is turned when it is next used, so that the end of a window clears nothing. The count of a key is that of
//! the running window and the part of the other that the running one does not cover yet: about the reads of the key in
//! the last [`WINDOW_READS`] reads.
//!
//! Invariants:
//! 1. The memory does not depend on keys and reads.
//! 2. No call waits. Two reads of one moment may count as one: cells and bins are plain words, because a
//!    read-modify-write costs more than such a read is worth.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Reads of a window. A cell counts to it.
pub(super) const WINDOW_READS: u64 = 1 << 16;
/// The first cuts are made after so many reads, and again each time that they have doubled, up to a window.
pub(super) const FIRST_CUT_READS: u64 = 1 << 10;
const ROWS: usize = 4;
/// The rows take 15 bits of a key's hash each.
const ROW_BITS: u32 = 15;
const ROW_CELLS: usize = 1 << ROW_BITS;
/// Counts that differ by less than a quarter are in one bin: those below two windows need 64.
const BINS: usize = 64;
/// Four cuts make five classes. Each is a bin, and takes 8 bits of a word.
const CUTS: u64 = 4;

/// A cell: the number of its window in the upper half, then its count, then the count of the window before.
#[derive(Clone, Copy)]
struct Cell {
    window: u32,
    count: u16,
    before: u16,
}

impl Cell {
    fn of(word: u64) -> Cell {
        Cell { window: (word >> 32) as u32, count: (word >> 16) as u16, before: word as u16 }
    }

    fn word(self) -> u64 {
        u64::from(self.window) << 32 | u64::from(self.count) << 16 | u64::from(self.before)
    }

    /// The same cell in a later window. A read that began in the window before, and comes after one of this window, counts in
    /// this one: to turn the cell back would clear it.
    fn turned(self, window: u32) -> Cell {
        match window.wrapping_sub(self.window) {
            0 | u32::MAX => self,
            1 => Cell { window, count: 0, before: self.count },
            _ => Cell { window, count: 0, before: 0 },
        }
    }
}

/// The bin of a count. Bins are exact to 7, and four for each power of two above.
fn bin_of(count: u64) -> usize {
    if count < 4 {
        return count as usize;
    }
    let power = count.ilog2();
    let quarter = (count >> (power - 2)) & 3;
    (4 * (u64::from(power) - 1) + quarter).min(BINS as u64 - 1) as usize
}

/// Counts of reads by key, in a fixed memory of 1 MiB.
pub(super) struct Sketch {
    /// Relaxed, as all words here: no memory depends on them.
    reads: AtomicU64,
    cells: Box<[AtomicU64]>,
    /// Reads since the last cuts, by the bin of their key's count.
    bins: [AtomicU32; BINS],
    /// The bins with which the classes 4, 3, 2 and 1 begin; 0 before the first cuts.
    cuts: AtomicU32,
}

impl Sketch {
    pub(super) fn new() -> Sketch {
        Sketch {
            reads: AtomicU64::new(0),
            cells: (0..ROWS * ROW_CELLS).map(|_| AtomicU64::new(0)).collect(),
            bins: std::array::from_fn(|_| AtomicU32::new(0)),
            cuts: AtomicU32::new(0),
        }
    }

    /// Counts a read of the key with this hash, and returns its class: 1 for the keys that are read most often, and 5
    /// for those that are read least. `None` before the first cuts.
    pub(super) fn read(&self, hash: u64) -> Option<u8> {
        let reads = self.reads.fetch_add(1, Ordering::Relaxed);
        if is_cut(reads) {
            self.cut();
        }
        let bin = bin_of(self.count(hash, reads));
        add(&self.bins[bin], 1);
        self.class(bin)
    }

    /// Returns the class that a read of the key would have now, and counts nothing.
    pub(super) fn look(&self, hash: u64) -> Option<u8> {
        let reads = self.reads.load(Ordering::Relaxed);
        let cells = turned(self.rows(hash), reads);
        self.class(bin_of(with_next(&cells, reads)))
    }

    fn class(&self, bin: usize) -> Option<u8> {
        let cuts = self.cuts.load(Ordering::Relaxed);
        if cuts == 0 {
            return None;
        }
        let reached = cuts.to_le_bytes().iter().filter(|cut| bin >= usize::from(**cut)).count();
        Some(5 - reached as u8)
    }

    /// The cells of a key.
    fn rows(&self, hash: u64) -> [&AtomicU64; ROWS] {
        std::array::from_fn(|row| {
            let at = (hash >> (row as u32 * ROW_BITS)) as usize % ROW_CELLS;
            &self.cells[row * ROW_CELLS + at]
        })
    }

    /// Counts a read, and returns the count of its key.
    fn count(&self, hash: u64, reads: u64) -> u64 {
        let rows = self.rows(hash);
        let cells = turned(rows, reads);
        let count = least(&cells).saturating_add(1);
        for (cell, at) in cells.into_iter().zip(rows) {
            // A larger one has counted this read with another key.
            let next = Cell { count: cell.count.max(count), ..cell };
            at.store(next.word(), Ordering::Relaxed);
        }
        with_next(&cells, reads)
    }

    /// Cuts the counts so that each class gets a fifth of the reads, as far as equal counts allow it.
    fn cut(&self) {
        let bins: [u64; BINS] =
            std::array::from_fn(|bin| u64::from(self.bins[bin].swap(0, Ordering::Relaxed)));
        let all: u64 = bins.iter().sum();
        let mut cuts = [0; CUTS as usize];
        let mut sum = 0;
        for (bin, reads) in bins.iter().enumerate() {
            sum += reads;
            for (at, cut) in cuts.iter_mut().enumerate() {
                let share = (at as u64 + 1) * all / (CUTS + 1);
                if *cut == 0 && sum > share {
                    *cut = bin as u8;
                }
            }
        }
        // Two threads may be here at one time, and the second one finds nothing.
        if all > 0 {
            self.cuts.store(u32::from_le_bytes(cuts), Ordering::Relaxed);
        }
    }
}

/// The cells in the window of the read with this number.
fn turned(rows: [&AtomicU64; ROWS], reads: u64) -> [Cell; ROWS] {
    let window = (reads / WINDOW_READS) as u32;
    rows.map(|cell| Cell::of(cell.load(Ordering::Relaxed)).turned(window))
}

/// The count of the key with these cells in their window. They count the reads of other keys, too: the smallest one is
/// nearest.
fn least(cells: &[Cell; ROWS]) -> u16 {
    cells.iter().fold(u16::MAX, |least, cell| least.min(cell.count))
}

/// The count of the key with these cells, with the read with this number.
fn with_next(cells: &[Cell; ROWS], reads: u64) -> u64 {
    let before = cells.iter().fold(u16::MAX, |least, cell| least.min(cell.before));
    let left = WINDOW_READS - reads % WINDOW_READS;
    u64::from(least(cells).saturating_add(1)) + u64::from(before) * left / WINDOW_READS
}

/// Returns whether new cuts are due before the read with this number.
fn is_cut(reads: u64) -> bool {
    reads.is_multiple_of(WINDOW_READS) && reads > 0
        || (FIRST_CUT_READS..WINDOW_READS).contains(&reads) && reads.is_power_of_two()
}

/// Adds without a read-modify-write: see the second invariant.
fn add(word: &AtomicU32, more: u32) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_grow_with_counts_and_end_at_two_windows() {
        let mut last = 0;
        for count in 0..2 * WINDOW_READS {
            let bin = bin_of(count);
            assert!(bin == last || bin == last + 1, "{count}: {last} to {bin}");
            last = bin;
        }
        assert_eq!(last, BINS - 1);
        assert_eq!(bin_of(u64::MAX), BINS - 1);
    }

    #[test]
    fn a_cell_is_what_was_put_into_it_and_turns_by_its_window() {
        let cell = Cell { window: 7, count: 300, before: 65_535 };
        let read = Cell::of(cell.word());
        assert_eq!((read.window, read.count, read.before), (7, 300, 65_535));
        for (window, count, before) in [(7, 300, 65_535), (8, 0, 300), (9, 0, 0), (5, 0, 0)] {
            let turned = cell.turned(window);
            assert_eq!((turned.window, turned.count, turned.before), (window, count, before));
        }
        // A late read.
        let turned = cell.turned(6);
        assert_eq!((turned.window, turned.count, turned.before), (7, 300, 65_535));
    }

    #[test]
    fn a_count_is_that_of_the_last_window_of_reads() {
        let sketch = Sketch::new();
        // A quarter of all reads, then none, then none for a window more.
        let mut counts = Vec::new();
        for reads in 0..WINDOW_READS {
            let count = sketch.count(if reads % 4 == 0 { 1 } else { 2 }, reads);
            if reads % 4 == 0 {
                counts.push(count);
            }
        }
        assert_eq!(*counts.last().unwrap(), WINDOW_READS / 4);
        let half = WINDOW_READS + WINDOW_READS / 2;
        assert_eq!(sketch.count(1, half), 1 + WINDOW_READS / 8);
        assert_eq!(sketch.count(1, 3 * WINDOW_READS), 1);
        // The largest count of a cell is kept.
        for reads in 4 * WINDOW_READS..5 * WINDOW_READS {
            sketch.count(3, reads);
        }
        assert_eq!(sketch.count(3, 5 * WINDOW_READS - 1), u64::from(u16::MAX));
    }
}
