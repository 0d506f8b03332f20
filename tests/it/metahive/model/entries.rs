//! Data blocks with other entries: as memory that loses or confuses entries would have them
//! written. Every byte of the block is valid for the format, and its length is unchanged.

use lsm_core::internals::sstable::{SstIdentity, SstOptions, SstReader, SstWriter};
use lsm_core::raw::{EntryKind, RawMode};
use lsm_core::types::{DbId, Epoch, FileNo, KeyRef, Trailer};

use super::*;

/// An entry of a table, hidden or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    key: Vec<u8>,
    seq: SeqNo,
    kind: EntryKind,
    value: Vec<u8>,
    hidden: bool,
    block: (PathBuf, u64),
}

/// All entries of all tables.
pub(super) fn items(store: &Store) -> Vec<Item> {
    let mut items = Vec::new();
    for table in store.p.walk().unwrap().tables() {
        let mut entries = table.walk(RawMode::default()).unwrap();
        while let Some(entry) = entries.next().unwrap() {
            items.push(Item {
                key: entry.key.to_vec(),
                seq: entry.stored_seq,
                kind: entry.kind,
                value: entry.value.to_vec(),
                hidden: entry.hidden,
                block: (table.path(), entry.at.block_offset),
            });
        }
    }
    items
}

/// An entry with its metadata, and which of the two it is.
fn pair_of(items: &[Item], entry: &Item) -> Vec<Item> {
    let plus = [&entry.key[..], &[SUFFIX]].concat();
    let its = items.iter().filter(|item| {
        item.block.0 == entry.block.0
            && item.seq == entry.seq
            && if item.hidden { item.key == plus } else { item.key == entry.key }
    });
    its.cloned().collect()
}

/// Other bytes for the data block `part`, and a description of the change; `None` if the block
/// cannot be given its length.
pub(super) fn other_entries(
    all: &[Item],
    part: &Part,
    bytes: &[u8],
    rng: &mut Rng,
) -> Option<(Vec<u8>, &'static str)> {
    let block = (part.path.clone(), part.at.start as u64);
    let mut items: Vec<Item> = all.iter().filter(|item| item.block == block).cloned().collect();
    let visible: Vec<Item> = items.iter().filter(|item| !item.hidden).cloned().collect();
    let elsewhere: Vec<&Item> =
        all.iter().filter(|item| !item.hidden && item.block != block).collect();
    if visible.is_empty() || elsewhere.is_empty() {
        return None;
    }
    let one = rng.pick(&visible).clone();
    let pair = pair_of(&items, &one);
    let how = match rng.below(6) {
        0 => {
            items.retain(|item| !pair.contains(item));
            "an entry dropped"
        }
        1 => {
            items.retain(|item| !pair.contains(item));
            // A version of the key from another table, with metadata that matches.
            let others: Vec<_> = elsewhere.iter().filter(|item| item.key == one.key).collect();
            let other = others.get(rng.below(others.len().max(1) as u64) as usize)?;
            items.extend(pair_of(all, other));
            "an older version in the place of an entry"
        }
        2 => {
            items.retain(|item| !pair.contains(item));
            items.extend(pair_of(all, elsewhere.get(rng.below(elsewhere.len() as u64) as usize)?));
            "an entry of another block in the place of one"
        }
        3 => {
            let other = rng.pick(&visible).clone();
            for item in items.iter_mut().filter(|item| !item.hidden) {
                if item.key == one.key && item.seq == one.seq {
                    (item.kind, item.value) = (other.kind, other.value.clone());
                } else if item.key == other.key && item.seq == other.seq {
                    (item.kind, item.value) = (one.kind, one.value.clone());
                }
            }
            "two values swapped"
        }
        4 => {
            items.retain(|item| !(item.hidden && pair.contains(item)));
            "metadata dropped"
        }
        _ => {
            let other = rng.pick(&visible).clone();
            let other = pair_of(&items, &other).into_iter().find(|item| item.hidden)?;
            let mine = pair.iter().find(|item| item.hidden)?;
            for item in items.iter_mut().filter(|item| *item == mine) {
                item.value[8..].copy_from_slice(&other.value[8..]);
            }
            "metadata of another entry"
        }
    };
    let payload = payload_of(items, bytes)?;
    let mut out = bytes.to_vec();
    out[..payload.len()].copy_from_slice(&payload);
    Some((out, how))
}

const TRAILER_BYTES: usize = 9;
const TAIL_BYTES: usize = 16;

/// The payload of a block with these entries, as long as that of `bytes`: a hidden entry that
/// belongs to no key fills the rest.
fn payload_of(mut items: Vec<Item>, bytes: &[u8]) -> Option<Vec<u8>> {
    let target = bytes.len() - TRAILER_BYTES;
    let base = &bytes[target - TAIL_BYTES..][..8];
    let base = SeqNo::new(u64::from_le_bytes(base.try_into().unwrap()))?;
    items.sort_by(|a, b| (&a.key, b.seq).cmp(&(&b.key, a.seq)));
    let is_strict =
        items.windows(2).all(|two| (&two[0].key, two[0].seq) != (&two[1].key, two[1].seq));
    if items.is_empty() || items[0].hidden || !is_strict || items.iter().any(|it| it.seq < base) {
        return None;
    }
    let payload = written(&items, base);
    if payload.len() == target {
        return Some(payload);
    }
    let owner = items.iter().rfind(|item| !item.hidden)?.clone();
    let key = [&owner.key[..], &[SUFFIX]].concat();
    let oldest = items.iter().filter(|item| item.key == key).map(|item| item.seq).min()?;
    let seq = SeqNo::new(oldest.get().checked_sub(1)?).filter(|seq| *seq >= base)?;
    let filler = Item { key, seq, kind: EntryKind::Tombstone, hidden: true, ..owner };
    (8..=target).find_map(|len| {
        let mut filled = items.clone();
        filled.push(Item { value: vec![0xee; len], ..filler.clone() });
        filled.sort_by(|a, b| (&a.key, b.seq).cmp(&(&b.key, a.seq)));
        Some(written(&filled, base)).filter(|payload| payload.len() == target)
    })
}

/// A block as the writer of tables makes it.
fn written(items: &[Item], base: SeqNo) -> Vec<u8> {
    let fs = MemFs::new();
    fs.create_dir(Path::new("/t")).unwrap();
    let path = Path::new("/t/t");
    let file = fs.open_append(path, lsm_core::fs::AppendMode::IfAbsent).unwrap();
    let identity = SstIdentity { db_id: DbId(1), file: FileNo(1), epoch: Epoch(1) };
    let options = SstOptions {
        block_bytes: 1 << 20,
        compression: Compression::None,
        bloom_bits_per_key: 0,
        prefix_extractor: None,
    };
    let mut writer = SstWriter::new(file, identity, base, options);
    writer.set_hidden_suffix(&[SUFFIX]);
    writer.allow_cut(false);
    for item in items {
        let key = KeyRef::new(&item.key, Trailer::new(item.seq, item.kind));
        if item.hidden {
            writer.add_hidden(key, &item.value).unwrap();
        } else {
            writer.add(key, &item.value).unwrap();
        }
    }
    writer.finish().unwrap();
    let file = fs.open_read(path).unwrap();
    let reader = SstReader::open(file, path.to_owned(), identity, None, None).unwrap();
    let len = reader.properties().data_bytes as usize - TRAILER_BYTES;
    fs.read_raw(path).unwrap()[..len].to_vec()
}
