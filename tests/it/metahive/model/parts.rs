//! The parts of the tables of a store, and their damage.

use std::ops::Range;
use std::path::PathBuf;

use lsm_core::codec::checksum64_seeded;
use lsm_core::internals::sstable::{SstIdentity, SstReader};
use lsm_core::types::DbId;

use super::*;

/// A part of the file of a table.
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
    let metas = walk.tables();
    let parts = metas.flat_map(|table| parts_of(&store.fs, &table.path(), walk.db_id()));
    parts.collect()
}

/// The parts of one table, also of an export.
pub(super) fn parts_of(fs: &MemFs, path: &Path, db_id: DbId) -> Vec<Part> {
    let name = FileName::parse(path.file_name().unwrap().to_str().unwrap()).unwrap();
    let identity = SstIdentity { db_id, file: name.number, epoch: name.epoch };
    let unique_id = identity.unique_id();
    let open = fs.open_read(path).unwrap();
    let reader = SstReader::open(open, path.to_owned(), identity, None, None).unwrap();
    let data_end = reader.properties().data_bytes as usize;
    let mut parts = Vec::new();
    for block in Arc::new(reader).blocks() {
        let (start, len) = block.unwrap();
        let at = start as usize..(start + len) as usize;
        parts.push(Part { path: path.to_owned(), unique_id, what: "data block", at });
    }
    // After the data each block verifies by its own offset and length.
    let file = fs.read_raw(path).unwrap();
    let mut start = data_end;
    let mut sealed = Vec::new();
    while let Some(end) = (start + TRAILER_BYTES + 1..=file.len())
        .find(|end| is_sealed(&file[start..*end], unique_id, start))
    {
        sealed.push(start..end);
        start = end;
    }
    // An index of two levels is several blocks; the top one is last.
    let count = sealed.len();
    for (number, at) in sealed.into_iter().enumerate() {
        let what = match number {
            0 => "bloom",
            _ if number + 1 == count => "properties",
            _ => "index",
        };
        parts.push(Part { path: path.to_owned(), unique_id, what, at });
    }
    parts.push(Part { path: path.to_owned(), unique_id, what: "footer", at: start..file.len() });
    parts
}

fn seal_of(block: &[u8], unique_id: u128, start: usize) -> u64 {
    // As `sstable/stored.rs` computes it.
    let seed = unique_id as u64 ^ (start as u64).wrapping_mul(0x9e6c_63d0_876a_9a99);
    checksum64_seeded(&block[..block.len() - CHECKSUM_BYTES], seed)
}

fn is_sealed(block: &[u8], unique_id: u128, start: usize) -> bool {
    block.ends_with(&seal_of(block, unique_id, start).to_le_bytes())
}

/// Changes the bytes of a part in its file, and corrects the checksum of the block if it is to be
/// `sealed`. Returns the original bytes, which undo the change.
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
