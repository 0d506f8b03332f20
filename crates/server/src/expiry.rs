//! The partitions whose values begin with the time of their expiry, 8 bytes before the value (`view.rs`).
//!
//! The rule that the engine stores with a partition says so: a primary gives it to the partitions of its options before
//! their first entry, and a reader looks at it in the state that it reads. The notes name these partitions, too, for
//! `export` and for a crash between note and rule.
//!
//! Invariants:
//! 1. A partition that has entries never gets the rule: the first bytes of its values would be taken for times, and
//!    compactions would remove the values. Nor does a primary serve a noted partition that has entries and not the rule.
//! 2. All partitions are decided before the first one changes.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use siltstone::hooks::CompactionFilterFactory;
use siltstone::secondary::{Level, OnUnmet, ReadOptions, Secondary};
use siltstone::{Db, Durability, Error, ErrorKind, Partition, PartitionOptions, Result};
use siltstone::{TimeUnit, TtlFilter, TtlRule};

use crate::node::NOTES;

/// The begin of the keys of the notes; the name of the partition follows.
const NOTE: &str = "expires/";

/// All of it is set, because the stored rule is compared with it: no default may change it.
static RULE: LazyLock<TtlFilter> = LazyLock::new(|| {
    let day = Duration::from_secs(24 * 60 * 60);
    TtlFilter::stored(&TtlRule::in_value(0).unit(TimeUnit::Millis).stays_at_most(day))
});
static RULE_PARAMS: LazyLock<Vec<u8>> = LazyLock::new(|| RULE.params());

/// Returns whether the values of a partition with these filters begin with the time of their expiry.
pub(crate) fn is_timed(filters: &[(String, Vec<u8>)]) -> bool {
    filters.iter().any(|(name, params)| name == TtlFilter::NAME && *params == *RULE_PARAMS)
}

fn refused(name: &str, is_noted: bool) -> Error {
    let advice = if is_noted {
        format!(
            "a primary had given it the rule of --expire, so another program has made it again or changed its rule: drop \
             it, or delete the key \"{NOTE}{name}\" of partition {NOTES:?} if its values have no times"
        )
    } else {
        "--expire takes a partition that is new, empty or was always served so, because the first 8 bytes of each value \
         would be taken for the time of its expiry"
            .to_owned()
    };
    let text = format!("partition {name:?} has entries without times of expiry; {advice}");
    Error::new(ErrorKind::InvalidArgument, text)
}

/// The partitions that the notes name.
fn noted(notes: &Partition) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in notes.prefix(NOTE) {
        let (key, _) = entry?;
        if let Ok(name) = std::str::from_utf8(&key[NOTE.len()..]) {
            names.insert(name.to_owned());
        }
    }
    Ok(names)
}

/// The options by which the partition gets the rule; `None` if it has it.
fn due(db: &Db, name: &str, is_noted: bool) -> Result<Option<PartitionOptions>> {
    let partition = match db.open_partition(name) {
        Err(error) if error.kind() == ErrorKind::PartitionNotFound => {
            return Ok(Some(PartitionOptions::new()));
        }
        opened => opened?,
    };
    let filters = partition.filters();
    if is_timed(&filters) {
        return Ok(None);
    }
    if partition.with_expired().keys().next().transpose()?.is_some() {
        return Err(refused(name, is_noted));
    }
    if let Some((filter, _)) = filters.first() {
        let text = format!(
            "partition {name:?} has the filter {filter:?} of another program, which --expire would end"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    Ok(Some(partition.options()))
}

/// Gives the rule to the partitions of `wanted` and of the notes that do not have it, and returns all of them.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for one that has entries without times.
pub(crate) fn attach(db: &Db, notes: &Partition, wanted: &[String]) -> Result<BTreeSet<String>> {
    let noted = noted(notes)?;
    let all: BTreeSet<String> = wanted.iter().chain(&noted).cloned().collect();
    let mut changes = Vec::new();
    for name in &all {
        let options = due(db, name, noted.contains(name))?;
        changes.extend(options.map(|options| (name, options)));
    }
    for name in all.difference(&noted) {
        // Before the first value with a time.
        notes.put_with(format!("{NOTE}{name}"), "", Durability::Sync)?;
    }
    for (name, options) in changes {
        db.partition_with(name, options.filter(Arc::new(RULE.clone())))?;
    }
    Ok(all)
}

/// Refuses what [`attach`] would refuse, as far as a reader knows, so that it takes nothing over in vain.
pub(crate) fn check_reader(secondary: &Secondary, wanted: &[String]) -> Result<()> {
    // The newest that is there.
    let newest = ReadOptions::new(Level::Strong).wait(Duration::ZERO).on_unmet(OnUnmet::Weaker);
    for name in wanted {
        let partition = match secondary.partition(name) {
            Err(error) if error.kind() == ErrorKind::PartitionNotFound => continue,
            opened => opened?,
        };
        let is_foreign = partition.read_again(&newest, |reading| {
            let first = reading.clone().with_expired().keys().next().transpose()?;
            Ok(first.is_some() && !is_timed(&reading.filters()))
        });
        if is_foreign? {
            return Err(refused(name, false));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Partitions of earlier versions have this one.
    #[test]
    fn the_stored_rule_is_this_one() {
        assert_eq!(*RULE_PARAMS, [1, 1, 8, 1, 0, 0x80, 0xb8, 0x99, 0x29]);
    }
}
