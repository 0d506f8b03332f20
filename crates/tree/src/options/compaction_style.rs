//! [`CompactionStyle`]: the rule by which the tables of a partition are merged, or removed.
//!
//! The numbers of a FIFO are fields of the stored options (`version/record.rs`).

use std::fmt;

/// The way in which compactions keep a partition small: `compaction_style` in RocksDB. See
/// [`PartitionOptions::compaction_style`](super::PartitionOptions::compaction_style).
///
/// # Examples
/// ```
/// use tree::options::CompactionStyle;
///
/// let style = CompactionStyle::Fifo { bytes_max: 10 << 30, seconds_max: u64::MAX };
/// assert_eq!(style.to_string(), "fifo:10737418240");
/// assert_eq!(CompactionStyle::default(), CompactionStyle::Leveled);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CompactionStyle {
    /// Tables are merged into levels, each ten times as large as the one above it. Nothing is removed that a reader
    /// could see.
    #[default]
    Leveled,
    /// Tables are not merged. The oldest ones are removed with all their entries: a cache, or a log of events. No
    /// compaction reads or writes a byte, so the write amplification is 1 (2 with the log).
    Fifo {
        /// The oldest tables go while all tables together have more bytes. At least 1.
        bytes_max: u64,
        /// A table goes when it was written longer ago, by the clock of the system; `u64::MAX` for no limit.
        seconds_max: u64,
    },
}

impl CompactionStyle {
    /// Returns `true` if tables go by their age.
    pub fn has_age(self) -> bool {
        matches!(self, CompactionStyle::Fifo { seconds_max, .. } if seconds_max != u64::MAX)
    }
}

impl fmt::Display for CompactionStyle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CompactionStyle::Leveled => f.write_str("leveled"),
            CompactionStyle::Fifo { bytes_max, seconds_max: u64::MAX } => {
                write!(f, "fifo:{bytes_max}")
            }
            CompactionStyle::Fifo { bytes_max, seconds_max } => {
                write!(f, "fifo:{bytes_max},{seconds_max}s")
            }
        }
    }
}
