//! The parts of the tables of a store, and their damage.

use std::ops::Range;
use std::path::PathBuf;

use lsm_core::codec::checksum64_seeded;
use lsm_core::internals::sstable::SstIdentity;
use lsm_core::raw::RawMode;

use super::*;

/// A part of a table's file.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) path: PathBuf,
    pub(super) unique_id: u128,
    pub(super) what: &'static str,
    pub(super) at: Range<usize>,
}

pub(super) const CHECKSUM_BYTES: usize = 8;
const TRAILER_BYTES: usize = 9;

/// The parts of all tables.
pub(super) fn parts(store: &Store) -> Vec<Part> {
    let walk = store.p.walk().unwrap();
    let mut parts = Vec::new();
    for table in walk.tables() {
        let identity =
            SstIdentity { db_id: walk.db_id(), file: table.meta().file, epoch: table.meta().epoch };
        let path = table.path();
        let unique_id = identity.unique_id();
        let mut starts = std::collections::BTreeSet::new();
        let mut entries = table.walk(RawMode::default()).unwrap();
        while let Some(entry) = entries.next().unwrap() {
            starts.insert(entry.at.block_offset as usize);
        }
        let data_end = table.properties().unwrap().data_bytes as usize;
        let ends = starts.iter().skip(1).copied().chain([data_end]);
        for (start, end) in starts.iter().copied().zip(ends) {
            let path = path.clone();
            let at = start..end;
            parts.push(Part { path, unique_id, what: "data block", at });
        }
        // Behind the data each block verifies at its own place and by its own length.
        let file = store.fs.read_raw(&table.path()).unwrap();
        let mut start = data_end;
        for what in ["bloom", "index", "properties"] {
            let end = (start + TRAILER_BYTES + 1..=file.len())
                .find(|end| is_sealed(&file[start..*end], unique_id, start))
                .expect("blocks lie one behind the other");
            let path = path.clone();
            let at = start..end;
            parts.push(Part { path, unique_id, what, at });
            start = end;
        }
        let path = path.clone();
        let at = start..file.len();
        parts.push(Part { path, unique_id, what: "footer", at });
    }
    parts
}

fn seal_of(block: &[u8], unique_id: u128, start: usize) -> u64 {
    // As `sstable/stored.rs` has it.
    let seed = unique_id as u64 ^ (start as u64).wrapping_mul(0x9e6c_63d0_876a_9a99);
    checksum64_seeded(&block[..block.len() - CHECKSUM_BYTES], seed)
}

fn is_sealed(block: &[u8], unique_id: u128, start: usize) -> bool {
    block.ends_with(&seal_of(block, unique_id, start).to_le_bytes())
}

/// Changes the bytes of a part in its file, with the block's checksum made right over them if it is
/// to be `sealed`; returns what undoes it.
pub(super) fn put(
    fs: &MemFs,
    part: &Part,
    sealed: bool,
    change: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    let file = fs.read_raw(&part.path).unwrap();
    let was = &file[part.at.clone()];
    let mut is = was.to_vec();
    change(&mut is);
    if sealed && part.what != "footer" {
        let checksum = seal_of(&is, part.unique_id, part.at.start);
        let end = is.len() - CHECKSUM_BYTES;
        is[end..].copy_from_slice(&checksum.to_le_bytes());
    }
    let masks: Vec<u8> = is.iter().zip(was).map(|(a, b)| a ^ b).collect();
    turn(fs, part, &masks);
    masks
}

fn turn(fs: &MemFs, part: &Part, masks: &[u8]) {
    for (at, mask) in (part.at.start as u64..).zip(masks).filter(|(_, mask)| **mask != 0) {
        fs.corrupt(&part.path, at, *mask).unwrap();
    }
}
