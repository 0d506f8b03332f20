//! The partitions whose values begin with the time of their expiry, 8 bytes before the value (`view.rs`).
//!
//! The rule that the engine stores with a partition says so, to primaries and readers alike: a primary gives it to the
//! partitions of its options before their first entry, and looks for it in all others when it begins; a reader looks at
//! it in the state that it reads. The notes name these partitions, too, for `export`, for a crash between note and rule,
//! and for an import, which brings entries and no rule.
//!
//! Invariants:
//! 1. A partition that has entries gets the rule only if their first bytes are times, by its note and by each entry, or
//!    because the operator says so: compactions remove values by them. Nor does a primary serve a noted partition that
//!    has other entries and not the rule.
//! 2. All partitions are decided before the first one changes, and before the first note.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use siltstone::hooks::CompactionFilterFactory;
use siltstone::large_values::ReadBlobs;
use siltstone::secondary::{Level, OnUnmet, ReadOptions, Reading, Secondary};
use siltstone::{Db, Durability, Error, ErrorKind, Partition, PartitionOptions, Readable, Result};
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

/// The partitions of the options whose entries may expire.
#[derive(Default)]
pub(crate) struct Expiring {
    /// All of them.
    pub(crate) names: BTreeSet<String>,
    /// Those whose entries have times already, as the operator says.
    pub(crate) confirmed: BTreeSet<String>,
}

/// The years 2020 to 9999 in milliseconds. Text is later, and a small number is earlier.
const PLAUSIBLE: Range<u64> = 1_577_836_800_000..253_402_300_800_000;

/// Returns whether a value begins with a time, or with 0 for never, as far as its bytes say.
fn begins_with_time(value: &[u8]) -> bool {
    let time = value.first_chunk().map(|time| u64::from_be_bytes(*time));
    time.is_some_and(|time| time == 0 || PLAUSIBLE.contains(&time))
}

/// The partitions that the notes name.
fn noted(notes: &impl Readable) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in notes.prefix(NOTE) {
        let (key, _) = entry?;
        if let Ok(name) = std::str::from_utf8(&key[NOTE.len()..]) {
            names.insert(name.to_owned());
        }
    }
    Ok(names)
}

/// A partition without the rule, before it gets it.
struct Candidate<'a> {
    name: &'a str,
    filters: &'a [(String, Vec<u8>)],
    has_large_values: bool,
    is_noted: bool,
    is_confirmed: bool,
}

impl Candidate<'_> {
    fn refused(&self, why: &str) -> Error {
        let name = self.name;
        let note = if self.is_noted {
            format!(
                "; a note says that a primary has given it the rule: if its values have no times, delete the key \
                 \"{NOTE}{name}\" of partition {NOTES:?}"
            )
        } else {
            String::new()
        };
        Error::new(ErrorKind::InvalidArgument, format!("partition {name:?} has {why}{note}"))
    }

    /// Refuses it if it cannot have the rule, or if `entries` may have no times. Reads all entries of a noted partition,
    /// and one of another.
    fn check(&self, entries: &impl Readable) -> Result<()> {
        if self.has_large_values {
            return Err(self.refused("large values, and those of --expire cannot be large"));
        }
        if let Some((filter, _)) = self.filters.first() {
            let why = format!("the filter {filter:?} of another program, which --expire would end");
            return Err(self.refused(&why));
        }
        if self.is_confirmed {
            return Ok(());
        }
        for entry in entries.iter() {
            let (key, value) = entry?;
            if self.is_noted && begins_with_time(&value) {
                continue;
            }
            let why = format!(
                "entries without times of expiry, such as the key \"{}\"; --expire takes a partition that is new, empty or \
                 was always served so, because the first 8 bytes of each value would be taken for the time of its expiry; \
                 --expire-stored {} says that they are these times",
                key.escape_ascii(),
                self.name
            );
            return Err(self.refused(&why));
        }
        Ok(())
    }
}

/// The options by which the partition gets the rule; `None` if it has it.
fn due(
    db: &Db,
    name: &str,
    expiring: &Expiring,
    is_noted: bool,
) -> Result<Option<PartitionOptions>> {
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
    let has_large_values = partition.has_large_values();
    let is_confirmed = expiring.confirmed.contains(name);
    let candidate = Candidate { name, filters: &filters, has_large_values, is_noted, is_confirmed };
    candidate.check(&partition.with_expired())?;
    Ok(Some(partition.options()))
}

/// The partitions that have the rule.
fn timed(db: &Db) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for name in db.partition_names() {
        let partition = match db.open_partition(&name) {
            // It needs a hook of another program. Commands on it are refused, and those on others are not.
            Err(error) if error.kind() == ErrorKind::Unsupported => continue,
            opened => opened?,
        };
        if is_timed(&partition.filters()) {
            names.insert(name);
        }
    }
    Ok(names)
}

/// Refuses partitions whose entries expire, and that are to have large values.
fn check_large(expiring: &BTreeSet<String>, large: &[String]) -> Result<()> {
    let Some(name) = large.iter().find(|name| expiring.contains(*name)) else { return Ok(()) };
    let text = format!("the entries of partition {name:?} expire, and cannot be large");
    Err(Error::new(ErrorKind::InvalidArgument, text))
}

/// Gives the rule to the partitions of the options and of the notes that do not have it, and returns all that have it.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for one that has entries without times, large values, or filters of a program; and for
/// one that is among `large`, which get large values next.
pub(crate) fn attach(
    db: &Db,
    notes: &Partition,
    expiring: &Expiring,
    large: &[String],
) -> Result<BTreeSet<String>> {
    let noted = noted(notes)?;
    let mut all = timed(db)?;
    all.extend(expiring.names.iter().chain(&noted).cloned());
    check_large(&all, large)?;
    let mut changes = Vec::new();
    for name in &all {
        let options = due(db, name, expiring, noted.contains(name))?;
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

/// Runs `look` on the newest state of a partition that is there; `None` if there is no partition.
pub(crate) fn newest<T>(
    secondary: &Secondary,
    name: &str,
    look: impl Fn(&Reading) -> Result<T>,
) -> Result<Option<T>> {
    let partition = match secondary.partition(name) {
        Err(error) if error.kind() == ErrorKind::PartitionNotFound => return Ok(None),
        opened => opened?,
    };
    let newest = ReadOptions::new(Level::Strong).wait(Duration::ZERO).on_unmet(OnUnmet::Weaker);
    partition.read_again(&newest, look).map(Some)
}

/// Refuses what [`attach`] would refuse, as far as a reader knows, so that it takes nothing over in vain. The partitions of
/// the notes count before a takeover: until then a reader serves all others.
pub(crate) fn check_reader(
    secondary: &Secondary,
    expiring: &Expiring,
    large: &[String],
    takes_over: bool,
) -> Result<()> {
    // A look may ask a bucket.
    let asks = takes_over || !expiring.names.is_empty();
    let noted =
        if asks { newest(secondary, NOTES, noted)?.unwrap_or_default() } else { BTreeSet::new() };
    let mut names = expiring.names.clone();
    names.extend(noted.iter().filter(|_| takes_over).cloned());
    for name in &names {
        newest(secondary, name, |reading| {
            let filters = reading.filters();
            if is_timed(&filters) {
                return Ok(());
            }
            let candidate = Candidate {
                name,
                filters: &filters,
                has_large_values: reading.point()?.value_store().is_some(),
                is_noted: noted.contains(name),
                is_confirmed: expiring.confirmed.contains(name),
            };
            candidate.check(&reading.clone().with_expired())
        })?;
    }
    for name in large {
        if newest(secondary, name, |reading| Ok(is_timed(&reading.filters())))? == Some(true) {
            names.insert(name.clone());
        }
    }
    check_large(&names, large)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Partitions of earlier versions have this one.
    #[test]
    fn the_stored_rule_is_this_one() {
        assert_eq!(*RULE_PARAMS, [1, 1, 8, 1, 0, 0x80, 0xb8, 0x99, 0x29]);
    }

    #[test]
    fn text_numbers_and_short_values_begin_with_no_time() {
        let begin = PLAUSIBLE.start.to_be_bytes();
        for value in
            [&[0; 8][..], b"\0\0\0\0\0\0\0\0admin", &begin, &(PLAUSIBLE.end - 1).to_be_bytes()]
        {
            assert!(begins_with_time(value), "{value:?}");
        }
        let end = PLAUSIBLE.end.to_be_bytes();
        let before = (PLAUSIBLE.start - 1).to_be_bytes();
        for value in [
            &b""[..],
            &begin[..7],
            b"administrator",
            b"1234567890",
            &before,
            &end,
            &[0, 0, 0, 0, 0, 0, 0, 1],
        ] {
            assert!(!begins_with_time(value), "{value:?}");
        }
    }
}
