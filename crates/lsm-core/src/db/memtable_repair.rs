//! Repair of sealed memtables in which bits have changed since the writer's call.
//!
//! Called by a flush that found an entry whose checksum, computed over the caller's own bytes, does
//! not match. The flush then writes a repaired copy. A repaired entry comes from the log, or from
//! the search for one bit, and only if its checksum confirms it; otherwise its key is marked as
//! damaged, so that no older value passes for the present one.
//!
//! Invariant: an unknown key is not marked: the flush fails with an error, because an older value
//! of the true key would show.

use std::sync::Arc;

use super::job::JobRunner;
use super::log_search::LogSearch;
use crate::error::{Damage, Error, ErrorKind, Result};
use crate::hooks::Event;
use crate::memtable::{DamagedEntry, Memtable, TrueEntry};
use crate::types::Trailer;
use crate::version::PartitionVersion;

/// The replacement of a damaged entry, and the event about it.
struct EntryRepair {
    entry: TrueEntry,
    event: Event,
}

impl EntryRepair {
    fn repaired(version: &PartitionVersion, entry: TrueEntry, source: &str) -> EntryRepair {
        let event = Event::Repaired {
            partition: version.name.to_string(),
            key: entry.key.clone(),
            source: source.to_owned(),
        };
        EntryRepair { entry, event }
    }
}

impl JobRunner {
    /// Copies of `memtables`, without damaged entries; `None` if there are none.
    ///
    /// # Errors
    /// Corruption that names the damaged key, if the true one is not known. Those of reading the
    /// log, because it may have the entry.
    pub(super) fn mended(
        &self,
        version: &PartitionVersion,
        memtables: &[Arc<Memtable>],
    ) -> Result<Option<Vec<Arc<Memtable>>>> {
        let damaged: Vec<_> = memtables.iter().map(|memtable| memtable.damaged()).collect();
        if damaged.iter().all(Vec::is_empty) {
            return Ok(None);
        }
        // Reported before any repair: a repair may fail, and the damage is a fact.
        for entry in damaged.iter().flatten() {
            self.events.tell(&Event::Corruption(damage_of(version, entry)));
        }
        // All at once, so that the log is read once for all entries.
        let seqs = damaged.iter().flatten().map(|found| found.trailer.seq());
        let log = self.log_search(version.id, seqs);
        let mut copies = Vec::with_capacity(memtables.len());
        let mut events = Vec::new();
        for (memtable, damaged) in memtables.iter().zip(&damaged) {
            let mut repaired = Vec::with_capacity(damaged.len());
            for found in damaged {
                let EntryRepair { entry, event } = mend(version, &log, found)?;
                repaired.push(entry);
                events.push(event);
            }
            // Fails if a repaired number is that of an intact entry: then one of the two was not
            // inserted with it.
            let copy = memtable.mended(&repaired);
            copies.push(copy.ok_or_else(|| lost(version, &damaged[0]))?);
        }
        events.iter().for_each(|event| self.events.tell(event));
        Ok(Some(copies))
    }
}

fn mend(version: &PartitionVersion, log: &LogSearch, found: &DamagedEntry) -> Result<EntryRepair> {
    let in_log = in_log(version, log, found);
    if let Ok(Some(entry)) = in_log {
        return Ok(EntryRepair::repaired(version, entry, "the log"));
    }
    if let Some(entry) = found.with_one_bit_undone() {
        return Ok(EntryRepair::repaired(version, entry, "one bit undone"));
    }
    // An error of the log counts only now: the search for one bit does not need the log.
    in_log?;
    let poison = found.poison(version.flushed_through);
    let entry = poison.ok_or_else(|| lost(version, found))?;
    let damage = damage_of(version, found);
    let value = found.value.clone();
    Ok(EntryRepair { entry, event: Event::Quarantined { damage, value } })
}

/// The entry in the log, if its checksum confirms it.
fn in_log(
    version: &PartitionVersion,
    log: &LogSearch,
    found: &DamagedEntry,
) -> Result<Option<TrueEntry>> {
    if !version.options.logged {
        return Ok(None);
    }
    let seq = found.trailer.seq();
    let logged = match log.find(seq) {
        // A log that is damaged at that place has no answer, now and later.
        Err(error) if error.kind() == ErrorKind::Corruption => None,
        logged => logged?,
    };
    let entry = logged.map(|logged| TrueEntry {
        trailer: Trailer::new(logged.seq, logged.kind),
        key: logged.key,
        value: logged.value,
    });
    Ok(entry.filter(|entry| found.accepts(entry)))
}

fn damage_of(version: &PartitionVersion, found: &DamagedEntry) -> Damage {
    let mut damage =
        Damage::new("memtable", None, "an entry changed in memory after it was written");
    damage.partition = Some(version.name.to_string());
    damage.key = Some(found.key.clone());
    damage
}

fn lost(version: &PartitionVersion, found: &DamagedEntry) -> Error {
    let what = "a key changed in memory, and neither the log nor a single-bit search restores it";
    Error::corruption("memtable", None, what).in_partition(&version.name).at_key(&found.key)
}
