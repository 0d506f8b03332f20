//! The pressure on writes and its cause: pure functions of the content of a partition.

use crate::compaction::compaction_debt;
use crate::options::CompactionStyle;
use crate::partition::PartitionState;

/// Pressure at which writes stop.
pub(super) const STOP: u32 = 1000;
/// Level-0 tables, as a multiple of what triggers a compaction: slowed from, stopped at.
pub(in crate::db) const LEVEL0_SOFT: u64 = 5;
pub(in crate::db) const LEVEL0_HARD: u64 = 12;
/// Compaction debt, as a multiple of the first level's size: slowed from, stopped at.
pub(in crate::db) const DEBT_SOFT: u64 = 16;
pub(in crate::db) const DEBT_HARD: u64 = 128;
/// Sealed memtables, in halves of the write buffer: slowed from, stopped at. One memtable of a whole buffer delays no
/// writer, two slow writers down, and the third stops them. A fourth would absorb longer bursts, and was no faster in a
/// fill of five million records, which lasts longer than any buffer.
pub(in crate::db) const SEALED_SOFT: u64 = 3;
pub(in crate::db) const SEALED_HARD: u64 = 5;

/// The cause of a pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::db) enum StallCause {
    /// The depth of the partition's level 0.
    Level0,
    /// The bytes that the partition's compactions have to move.
    Debt,
    /// The sealed memtables of all partitions.
    Sealed,
}

impl StallCause {
    /// The cause in the words of health, stats and errors.
    pub(in crate::db) fn text(self) -> &'static str {
        match self {
            StallCause::Level0 => "level-0 tables",
            StallCause::Debt => "compaction debt",
            StallCause::Sealed => "memtables that wait for a flush",
        }
    }
}

/// The strength of the delay of writes, in thousandths, and its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::db) struct Pressure {
    pub(in crate::db) permille: u32,
    pub(in crate::db) cause: StallCause,
}

impl Pressure {
    /// None.
    pub(super) const NONE: Pressure = Pressure { permille: 0, cause: StallCause::Sealed };

    pub(super) fn of(cause: StallCause, got: u64, soft: u64, hard: u64) -> Pressure {
        Pressure { permille: share(got, soft, hard), cause }
    }

    pub(super) fn or_worse(self, other: Pressure) -> Pressure {
        if other.permille > self.permille { other } else { self }
    }

    /// The part that listeners get when it changes: whether writes are stopped, and the cause.
    pub(super) fn shown(self) -> Option<(bool, StallCause)> {
        (self.permille > 0).then_some((self.permille >= STOP, self.cause))
    }
}

/// The place of `got` between `soft` and `hard`, in thousandths.
pub(super) fn share(got: u64, soft: u64, hard: u64) -> u32 {
    let range = hard.saturating_sub(soft).max(1);
    // Bytes times a thousand may pass 64 bits.
    let permille = u128::from(got.saturating_sub(soft)) * u128::from(STOP) / u128::from(range);
    permille.min(u128::from(STOP)) as u32
}

/// The pressure on writes to this partition alone.
pub(super) fn own_pressure(partition: &PartitionState) -> Pressure {
    let view = partition.view();
    let options = &view.version.options;
    if options.compaction_style != CompactionStyle::Leveled {
        // No compaction would relieve it.
        return Pressure { permille: 0, cause: StallCause::Level0 };
    }
    let level0 = view.version.levels[0].tables().len() as u64;
    let trigger = u64::from(options.level0_tables);
    let base = options.level_base_bytes;
    // The debt as well as level 0: compactions of deep levels may fall behind while level 0 looks
    // fine.
    let debt = compaction_debt(&view.version);
    let soft = base.saturating_mul(DEBT_SOFT);
    let hard = base.saturating_mul(DEBT_HARD);
    let level0 =
        Pressure::of(StallCause::Level0, level0, trigger * LEVEL0_SOFT, trigger * LEVEL0_HARD);
    level0.or_worse(Pressure::of(StallCause::Debt, debt, soft, hard))
}
