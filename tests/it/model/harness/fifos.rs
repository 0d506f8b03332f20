//! Partitions that are a FIFO from their creation on. How much of one is gone is taken from the store, and checked.

use siltstone::CompactionStyle;

use super::*;

fn limits(options: &PartitionOptions) -> Option<(u64, u64)> {
    match options.get_compaction_style() {
        CompactionStyle::Fifo { bytes_max, seconds_max } => Some((bytes_max, seconds_max)),
        _ => None,
    }
}

impl Part {
    pub(super) fn is_fifo(&self) -> bool {
        limits(&self.options).is_some()
    }
}

/// The options with the style that the partition keeps: a leveled one has tables that are in no order of age.
pub(super) fn with_kept_style(
    options: PartitionOptions,
    present: &PartitionOptions,
) -> PartitionOptions {
    if limits(present).is_some() && limits(&options).is_some() {
        return options;
    }
    options.compaction_style(present.get_compaction_style())
}

impl Harness {
    /// The entries that a reader of the partition sees in the store.
    pub(super) fn observed(part: &Part) -> Contents {
        let entries = part.handle.iter().map(pair);
        entries.map(|(key, value)| (key, value.into())).collect()
    }

    /// Takes from the store how much of each FIFO is gone.
    pub(super) fn see_fifos(&mut self) {
        let now = self.now();
        let stats = self.db().stats();
        for part in self.parts.iter().filter(|part| part.is_fifo()) {
            let observed = Harness::observed(part);
            let expires = self.expiring.contains(&part.incarnation);
            let gone = self
                .oracle
                .see_fifo(part.name, &observed, &|value| !expires || expiry::is_alive(value, now));
            let (bytes_max, seconds_max) = limits(&part.options).expect("it is a FIFO");
            let of_part = stats.partitions.iter().find(|it| it.name == part.name);
            let levels = of_part.into_iter().flat_map(|it| &it.levels);
            let left: u64 = levels.map(|level| level.bytes).sum();
            assert!(
                gone == 0 || left + gone as u64 > bytes_max || now > seconds_max,
                "{}: {gone} bytes are gone, {left} are left, and neither is beyond the limits",
                part.name
            );
        }
    }

    /// Checks that nothing is left beyond the limits: no work is left, and no one holds a snapshot. Ranges and cursors
    /// hold that from which they were opened.
    pub(super) fn check_fifo_limits(&self) {
        if !(self.snapshots.is_empty() && self.ranges.is_empty() && self.cursors.is_empty()) {
            return;
        }
        let stats = self.db().stats();
        for part in &self.parts {
            let Some((bytes_max, _)) = limits(&part.options) else { continue };
            let of_part = stats.partitions.iter().find(|it| it.name == part.name);
            let levels = of_part.into_iter().flat_map(|it| &it.levels);
            let left: u64 = levels.map(|level| level.bytes).sum();
            assert!(left <= bytes_max, "{}: {left} bytes are beyond {bytes_max}", part.name);
        }
    }
}
