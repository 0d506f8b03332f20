//! The state after a power cut: the fate of every pending change under a [`CrashOutcome`].
//!
//! Called by `MemFs::crash_clone`. It may lose or keep unsynced changes in any combination; it must
//! never touch synced ones.
//!
//! Invariants:
//! 1. The outcome is a function of the file system's state and of the numbers drawn.
//! 2. Untouched files are shared with the original, not copied.

use std::sync::Arc;

use super::content::Content;
use super::inode::{ContentChange, Inode, PendingChange};

/// The unsynced changes that survive a power cut. Synced changes always do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CrashOutcome {
    /// Only what was synced.
    Nothing,
    /// All that was done.
    Everything,
    /// Everything up to a random moment, the last write possibly torn: cut short, or, if it went
    /// through a mapping, with any of its bytes missing. A killed process leaves this.
    Prefix,
    /// Any: each name at random, each write by sectors (of 512 or of 4,096 bytes) at random. Lost
    /// sectors keep their old bytes, or are zeros if the length grew over them, or end the file.
    Subset,
    /// As [`CrashOutcome::Subset`], but where the file grew, lost sectors hold arbitrary bytes.
    Garbage,
    /// All bytes, but no unsynced creation, link or removal of a name.
    DataWithoutNames,
    /// All names, but no unsynced bytes; files may have grown with zeros.
    NamesWithoutData,
}

impl CrashOutcome {
    /// Every outcome, for tests that try them all.
    pub const ALL: [CrashOutcome; 7] = [
        CrashOutcome::Nothing,
        CrashOutcome::Everything,
        CrashOutcome::Prefix,
        CrashOutcome::Subset,
        CrashOutcome::Garbage,
        CrashOutcome::DataWithoutNames,
        CrashOutcome::NamesWithoutData,
    ];
}

/// Decides change by change.
pub(super) struct Fate<'a> {
    outcome: CrashOutcome,
    random: &'a mut dyn FnMut() -> u64,
    /// For [`CrashOutcome::Prefix`]: changes before it survive, the one with it is torn.
    cut: u64,
    sector_bytes: u64,
    /// The number of sectors or names, of 16, that survive.
    odds: u64,
}

impl<'a> Fate<'a> {
    /// `pending` are the sequence numbers of all pending changes, in order.
    pub(super) fn new(
        outcome: CrashOutcome,
        pending: &[u64],
        random: &'a mut dyn FnMut() -> u64,
    ) -> Fate<'a> {
        let mut fate = Fate { outcome, random, cut: 0, sector_bytes: 512, odds: 8 };
        match outcome {
            CrashOutcome::Prefix => {
                let at = fate.below(pending.len() as u64 + 1);
                let at = usize::try_from(at).expect("it is at most the length of a slice");
                // One place in `len + 1` is after all changes: then everything survives.
                fate.cut = pending.get(at).copied().unwrap_or(u64::MAX);
            }
            CrashOutcome::Subset | CrashOutcome::Garbage => {
                fate.sector_bytes = if fate.below(2) == 0 { 512 } else { 4096 };
                // From 1 to 15 of 16, because 0 and 16 are the outcomes `Nothing` and `Everything`.
                fate.odds = fate.below(15) + 1;
            }
            _ => {}
        }
        fate
    }

    /// Returns `true` if the change of a name with this sequence number survives.
    pub(super) fn keeps_name(&mut self, seq: u64) -> bool {
        match self.outcome {
            CrashOutcome::Nothing | CrashOutcome::DataWithoutNames => false,
            CrashOutcome::Everything | CrashOutcome::NamesWithoutData => true,
            CrashOutcome::Prefix => seq < self.cut,
            CrashOutcome::Subset | CrashOutcome::Garbage => self.is_kept(),
        }
    }

    /// Returns what is left of a file.
    pub(super) fn inode(&mut self, inode: &Arc<Inode>) -> Arc<Inode> {
        if inode.is_clean() {
            return Arc::clone(inode);
        }
        let mut left = inode.durable.clone();
        let pending = &inode.pending;
        match self.outcome {
            CrashOutcome::Nothing => {}
            CrashOutcome::Everything | CrashOutcome::DataWithoutNames => {
                pending.iter().for_each(|p| p.change.apply(&mut left));
            }
            CrashOutcome::Prefix => self.prefix(pending, &mut left),
            CrashOutcome::Subset => {
                self.sectors(pending, &mut left);
                self.grow(pending, &mut left);
            }
            CrashOutcome::Garbage => {
                // First the noise, then the sectors that survive: they lie over it.
                self.garbage(pending, &mut left);
                self.sectors(pending, &mut left);
            }
            CrashOutcome::NamesWithoutData => self.grow(pending, &mut left),
        }
        Arc::new(Inode::durable(left))
    }

    fn prefix(&mut self, pending: &[PendingChange], left: &mut Content) {
        for PendingChange { seq, change } in pending {
            if *seq < self.cut {
                change.apply(left);
            } else if *seq == self.cut
                && let ContentChange::Write { offset, bytes, is_stored } = change
            {
                if *is_stored {
                    self.stores(*offset, bytes, left);
                    continue;
                }
                let kept = usize::try_from(self.below(bytes.len() as u64 + 1))
                    .expect("it is at most the length of a slice");
                left.write(*offset, &bytes[..kept]);
            }
        }
    }

    /// Lets any pieces of a copy into a mapping survive: it may store them in any order.
    fn stores(&mut self, offset: u64, bytes: &[u8], left: &mut Content) {
        const PIECE_BYTES_MAX: u64 = 64;
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let piece = 1 + self.below(PIECE_BYTES_MAX);
            let (now, later) = rest.split_at(piece.min(rest.len() as u64) as usize);
            if self.below(2) == 0 {
                left.write(at, now);
            }
            at += now.len() as u64;
            rest = later;
        }
    }

    fn sectors(&mut self, pending: &[PendingChange], left: &mut Content) {
        for PendingChange { change, .. } in pending {
            let ContentChange::Write { offset, bytes, .. } = change else {
                if self.is_kept() {
                    change.apply(left);
                }
                continue;
            };
            let mut at = *offset;
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                // By place in the file and not in the write: a device tears at its own boundaries.
                let room = self.sector_bytes - at % self.sector_bytes;
                let (now, later) = rest.split_at(room.min(rest.len() as u64) as usize);
                if self.is_kept() {
                    left.write(at, now);
                }
                at += now.len() as u64;
                rest = later;
            }
        }
    }

    /// Lets the length survive, or not, or in part.
    fn grow(&mut self, pending: &[PendingChange], left: &mut Content) {
        let end = pending.iter().map(|p| p.change.end()).max().unwrap_or(0);
        let more = end.saturating_sub(left.len());
        let more = match self.below(3) {
            0 => 0,
            1 => more,
            _ => self.below(more + 1),
        };
        left.grow(left.len() + more);
    }

    /// Fills what the pending writes grew the file by with arbitrary bytes.
    fn garbage(&mut self, pending: &[PendingChange], left: &mut Content) {
        let old_len = left.len();
        for PendingChange { change, .. } in pending {
            let ContentChange::Write { offset, bytes, .. } = change else {
                continue;
            };
            // A lost overwrite keeps the old bytes; only after them can a file get arbitrary ones.
            let start = old_len.max(*offset);
            let len = usize::try_from(change.end().saturating_sub(start)).unwrap_or(0);
            let mut noise = Vec::with_capacity(len.min(bytes.len()) + 8);
            while noise.len() < len {
                noise.extend_from_slice(&(self.random)().to_le_bytes());
            }
            left.write(start, &noise[..len]);
        }
    }

    fn is_kept(&mut self) -> bool {
        self.below(16) < self.odds
    }

    /// A number below `bound`. Nearly uniform: the high half of a product, so that generators with
    /// weak low bits serve as well.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from((self.random)()) * u128::from(bound)) >> 64) as u64
    }
}
