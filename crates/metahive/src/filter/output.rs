//! The output side of the filter: the metadata of what the job writes.
//!
//! Nearly every key has one version that survives, and its metadata follows it. Such an entry stays in
//! [`Only`](crate::cluster::Only) until the next key comes. All others go through clusters.
//!
//! Invariants:
//! 1. While there is an [`Only`](crate::cluster::Only), no cluster is open or ready.
//! 2. Its entry is the one that was written last.

use lsm_core::error::Result;
use lsm_core::hooks::{Cut, Emitter, Entry};
use lsm_core::types::SeqNo;

use super::{GROUP_BYTES_MAX, GROUP_OTHER_BYTES_MAX, HiveFilter, out_of_step, sum_of};
use crate::checksum;
use crate::cluster::SURVIVES;
use crate::payload::{HEAD_BYTES, PAYLOAD_BYTES, Payload, SUFFIX};

impl HiveFilter {
    /// Remembers an entry that is written as the only version of its key, as far as is known.
    #[inline]
    pub(super) fn set_only(&mut self, entry: &Entry<'_>, sum: u64, bytes: u64) {
        let only = &mut self.only;
        only.key.clear();
        only.key.extend_from_slice(entry.key);
        only.seq = entry.seq;
        only.kind = entry.kind;
        only.sum = sum;
        only.start = self.written;
        only.end = self.written + bytes;
        self.has_only = true;
        self.table_keys += 1;
        self.note_written(bytes, sum);
    }

    /// Emits the metadata of the entry that was written last.
    #[inline]
    pub(super) fn emit_only(&mut self, out: &mut Emitter<'_>) -> Result<()> {
        self.has_only = false;
        let only = &mut self.only;
        // In place, because the key is set before it is used again.
        only.key.push(SUFFIX);
        out.emit_beside(&only.key, only.seq, &Payload::bytes_of(only.seq, only.sum))?;
        self.written += (only.key.len() + PAYLOAD_BYTES) as u64;
        Ok(())
    }

    /// Makes the entry that was written last a cluster, if it is none yet.
    pub(super) fn end_only(&mut self) {
        if self.has_only {
            self.has_only = false;
            let mut cluster = self.free.pop().unwrap_or_default();
            cluster.reset_to(&self.only);
            self.open.push(cluster);
        }
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
        for mut cluster in self.ready.drain(..) {
            // In place, because the cluster is reset before its key is used again.
            cluster.key.push(SUFFIX);
            let key = &cluster.key;
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

    /// The engine cut blocks although it should not: pairs of the groups that it was in may lie
    /// in two of them.
    pub(super) fn count_forced_cuts(&mut self) {
        for cluster in self.open.iter_mut().chain(&mut self.ready) {
            // Counted once: a group may be cut again and again.
            if cluster.survivors > 0 && !cluster.is_split {
                cluster.is_split = true;
                self.table_split += cluster.survivors;
                self.judge.counts.split_pairs += cluster.survivors;
            }
        }
    }

    /// Returns the answer for a cut here: not while a pair is open, unless it lies too far apart.
    pub(super) fn cut(&mut self) -> Cut {
        let mut cut = Cut::Allowed;
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

/// V+ of a provider.
pub(super) fn provided(seq: SeqNo, bytes: &[u8]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(HEAD_BYTES + bytes.len());
    payload.extend_from_slice(&seq.get().to_le_bytes());
    payload.extend_from_slice(bytes);
    payload
}
