//! The output side of the filter: the metadata of what the job writes.
//!
//! Nearly every key has one version that survives, and its metadata follows it. Of such an entry the engine
//! keeps the checksum as a note, and the metadata of a block is made of its notes when it ends. All others go
//! through clusters.
//!
//! Invariant: no cluster is open or ready after an entry that the engine has noted.

use lsm_core::error::Result;
use lsm_core::hooks::{Cut, Emitter, Entry, Output};
use lsm_core::types::SeqNo;

use super::{GROUP_BYTES_MAX, GROUP_OTHER_BYTES_MAX, HiveFilter, LastInput, out_of_step, sum_of};
use crate::checksum;
use crate::cluster::{Cluster, HeldEntry, SURVIVES};
use crate::payload::{HEAD_BYTES, PAYLOAD_BYTES, Payload, SUFFIX};
use crate::shared::NOT_SEALED;

impl HiveFilter {
    /// The checksum of an entry in the form in which it is written, which is in no cluster yet.
    #[inline]
    pub(super) fn sum_of_output(
        &mut self,
        entry: &Entry<'_>,
        untouched_from: Option<SeqNo>,
        value_sum: Option<u64>,
    ) -> Result<u64> {
        if self.is_flush {
            // The checksum that the flush has confirmed: the value may have changed since.
            return Ok(match value_sum {
                Some(sum) => checksum::of_entry_with(sum, entry.key, entry.seq, entry.kind),
                None => sum_of(entry),
            });
        }
        let LastInput::Verified(stored, sum, key) = self.last_input else {
            return Err(out_of_step());
        };
        self.last_input = LastInput::None;
        let is_it = untouched_from.is_none_or(|seq| seq == stored);
        // The engine hands the same bytes on. A comparison of all of them would take as long as all else
        // here.
        if !is_it || entry.key.as_ptr().addr() != key {
            return Err(out_of_step());
        }
        Ok(match untouched_from {
            Some(_) if stored == entry.seq => sum,
            // Invariant: 1. A new sequence number changes its own part of the sum alone.
            Some(_) => checksum::with_seq(sum, stored, entry.seq),
            // The engine has changed the bytes itself, so the sum of the input is of no use.
            None => sum_of(entry),
        })
    }

    /// Notes an entry that the engine held back or made of several; returns its sum.
    #[cold]
    pub(super) fn write_held(&mut self, output: &Output<'_>) -> u64 {
        let Output { entry, value_sum, is_noted, note, .. } = output;
        // An entry of a table that is not sealed was compared with nothing.
        let note = note.filter(|note| *note != NOT_SEALED);
        let sum = match (note, value_sum) {
            // Those that were confirmed: the bytes may have changed since.
            (Some(note), _) => note,
            (None, Some(sum)) => checksum::of_entry_with(*sum, entry.key, entry.seq, entry.kind),
            (None, None) => sum_of(entry),
        };
        if *is_noted {
            return sum;
        }
        let is_integrity = self.shared.is_integrity;
        let made = if is_integrity { Vec::new() } else { self.shared.provider.make(entry) };
        let bytes = (entry.key.len() + entry.value.len()) as u64;
        let written = self.written;
        let cluster = self.open_cluster(entry.key);
        let is_first = cluster.survivors == 0;
        cluster.add_held(HeldEntry { seq: entry.seq, sum, made }, written, bytes);
        self.table_keys += u64::from(is_first);
        self.note_written(bytes, sum);
        sum
    }

    /// Notes the form in which the last input, which has a cluster, is written: returns its sum.
    pub(super) fn changed_in_cluster(
        &mut self,
        entry: &Entry<'_>,
        untouched_from: Option<SeqNo>,
        input_seq: SeqNo,
    ) -> Result<u64> {
        let Some(cluster) = self.open.last_mut().filter(|top| top.key == entry.key) else {
            return Err(out_of_step());
        };
        let slot = *cluster.slots.last().expect("the last input is in it");
        match untouched_from {
            // Invariant: 1. A new sequence number changes its own part of the sum alone.
            Some(stored) if stored == input_seq => {
                if entry.seq == slot.seq() && stored == entry.seq {
                    return Ok(slot.sum);
                }
                let moved = checksum::with_seq(slot.sum, stored, entry.seq);
                cluster.change(entry.seq, moved);
                Ok(moved)
            }
            // The engine writes the last input or a changed form of it. Anything else would get
            // a checksum that was made of another entry.
            Some(_) => Err(out_of_step()),
            // The engine has changed the bytes itself, so the sum of the input is of no use.
            None => {
                let sum = sum_of(entry);
                cluster.change(entry.seq, sum);
                Ok(sum)
            }
        }
    }

    /// Marks the last slot of the top cluster as written with this checksum.
    pub(super) fn survive(&mut self, bytes: u64, sum: u64) {
        let written = self.written;
        let cluster = self.open.last_mut().expect("the entry's own");
        // The first survivor of a key stands for the key.
        self.table_keys += u64::from(cluster.survivors == 0);
        cluster.survive(written, bytes);
        self.note_written(bytes, sum);
    }

    #[inline]
    pub(super) fn note_written(&mut self, bytes: u64, sum: u64) {
        self.spans.add(sum);
        self.emitted = 0;
        self.written += bytes;
        self.table_sealed += 1;
        self.judge.counts.sealed += 1;
    }

    /// Has a provider make the metadata of the last slot of the top cluster.
    pub(super) fn make(&mut self, entry: &Entry<'_>, untouched_from: Option<SeqNo>) {
        let cluster = self.open.last_mut().expect("the entry's own");
        let Some(made) = cluster.made.last_mut() else { return };
        let carried = self.carried.take().filter(|_| untouched_from.is_some());
        let carried = carried.and_then(|old| self.shared.provider.carry(entry, &old));
        made.bytes = carried.unwrap_or_else(|| self.shared.provider.make(entry));
        // Only then may the metadata that is still to come be carried on: it speaks of the
        // bytes as they were.
        made.is_untouched = untouched_from.is_some();
    }

    pub(super) fn emit_ready(&mut self, out: &mut Emitter<'_>) -> Result<()> {
        let is_integrity = self.shared.is_integrity;
        self.emitted = 0;
        for mut cluster in self.ready.drain(..) {
            if !cluster.is_split {
                self.emitted += cluster.survivors;
            }
            // In place, because the cluster is reset before its key is used again.
            cluster.key.push(SUFFIX);
            let key = &cluster.key;
            if !cluster.held.is_empty() {
                for (seq, payload) in payloads_of(&cluster, is_integrity) {
                    out.emit(key, seq, &payload)?;
                    self.written += (key.len() + payload.len()) as u64;
                }
                self.free.push(cluster);
                continue;
            }
            for (at, slot) in cluster.slots.iter().enumerate() {
                if !slot.is(SURVIVES) {
                    continue;
                }
                let (seq, sum) = cluster.written_as(at);
                if is_integrity {
                    out.emit(key, seq, &Payload::bytes_of(seq, sum))?;
                    self.written += (key.len() + PAYLOAD_BYTES) as u64;
                } else {
                    let payload = provided(seq, &cluster.made[at].bytes);
                    out.emit(key, seq, &payload)?;
                    self.written += (key.len() + payload.len()) as u64;
                }
            }
            self.free.push(cluster);
        }
        Ok(())
    }

    /// The engine cut a block although it should not: pairs of the groups that it was in may lie in two of
    /// them.
    pub(super) fn count_forced_cut(&mut self) {
        // Of those that are emitted, where their metadata itself ended the block.
        let mut split = std::mem::take(&mut self.emitted);
        for cluster in self.open.iter_mut().chain(&mut self.ready) {
            // Counted once: a group may be cut again and again.
            if cluster.survivors > 0 && !cluster.is_split {
                cluster.is_split = true;
                split += cluster.survivors;
            }
        }
        self.table_split += split;
        self.judge.counts.split_pairs += split;
    }

    /// Returns the answer for a cut here: not while a pair is open, unless it lies too far apart.
    pub(super) fn cut(&mut self) -> Cut {
        // `input` makes clusters of the entries of tables that are not sealed. The engine does not know of
        // that, and would take a note back too late.
        let is_idle = self.open.is_empty() && self.are_all_sealed && self.shared.is_integrity;
        let mut cut = if is_idle { Cut::Idle } else { Cut::Allowed };
        for cluster in &mut self.open {
            if cluster.survivors == 0 || cluster.is_split {
                continue;
            }
            let other_bytes = self.written - cluster.end;
            let bytes = self.written - cluster.start;
            // Beyond these bounds a block would grow with the number of versions. The pair is found
            // in two blocks then.
            if other_bytes > GROUP_OTHER_BYTES_MAX || bytes > GROUP_BYTES_MAX {
                cluster.is_split = true;
                self.table_split += cluster.survivors;
                self.judge.counts.split_pairs += cluster.survivors;
            } else {
                cut = Cut::Forbidden;
            }
        }
        cut
    }
}

/// The payloads of the survivors of a cluster, the newest first.
pub(super) fn payloads_of(cluster: &Cluster, is_integrity: bool) -> Vec<(SeqNo, Vec<u8>)> {
    let slots = cluster.slots.iter().enumerate().filter(|(_, slot)| slot.is(SURVIVES));
    let slots = slots.map(|(at, _)| {
        let (seq, sum) = cluster.written_as(at);
        let made = cluster.made.get(at).map_or(&[][..], |made| &made.bytes);
        (seq, sum, made)
    });
    let held = cluster.held.iter().map(|held| (held.seq, held.sum, &held.made[..]));
    let mut survivors: Vec<_> = slots.chain(held).collect();
    survivors.sort_by_key(|(seq, ..)| std::cmp::Reverse(*seq));
    let payloads = survivors.into_iter().map(|(seq, sum, made)| {
        let integrity = is_integrity.then(|| Payload::bytes_of(seq, sum).to_vec());
        (seq, integrity.unwrap_or_else(|| provided(seq, made)))
    });
    payloads.collect()
}

/// V+ of a provider.
pub(super) fn provided(seq: SeqNo, bytes: &[u8]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(HEAD_BYTES + bytes.len());
    payload.extend_from_slice(&seq.get().to_le_bytes());
    payload.extend_from_slice(bytes);
    payload
}
