//! [`SstReader::verify`]: reads a whole table and compares everything in it with everything else.
//!
//! Called by `verify` and scrubs. It bypasses every cache and reads large pieces, in the order of
//! the file where it can. It does not rely on what the open table has in memory, except to go on
//! where the file is damaged.
//!
//! Invariants:
//! 1. It reports each damage that it can distinguish from others. Only the caller ends the walk.
//! 2. It does not report what only follows from damage that it has reported (a count that lacks the
//!    entries of a lost block).

use crate::codec::checksum128;
use crate::error::{Error, Result};
use crate::types::{EntryKind, InternalKey, SeqNo};

use super::block::Block;
use super::bloom::Bloom;
use super::footer::Footer;
use super::index::{Index, extent_at};
use super::properties::{SstProperties, numbers};
use super::read_ahead::ReadAhead;
use super::reader::SstReader;
use super::stored::{Access, Extent, StoredPayload, TableSource};

/// Bytes that are read at once.
const PIECE_BYTES: u64 = 1 << 20;

/// The manifest's account of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// First visible key.
    pub smallest: InternalKey,
    /// Last visible key.
    pub largest: InternalKey,
    /// Smallest sequence number of the visible entries, as stored.
    pub min_seq: SeqNo,
    /// Largest sequence number of the visible entries, as stored.
    pub max_seq: SeqNo,
    /// Visible entries.
    pub entries: u64,
    /// Tombstones among them.
    pub tombstones: u64,
    /// Hidden entries.
    pub hidden: u64,
}

/// Damage of a table.
#[derive(Clone, Debug)]
pub struct TableDamage {
    /// Offset of the damaged block in the file, where it is one place.
    pub offset: Option<u64>,
    /// User keys between which those of the damaged block lie, where that is known: the first is
    /// missing at the front of the table.
    pub first_key: Option<Vec<u8>>,
    /// See `first_key`.
    pub last_key: Option<Vec<u8>>,
    /// The defect, or the reason why it could not be read.
    pub error: Error,
}

/// The findings in a table.
#[derive(Clone, Debug, Default)]
pub struct TableFindings {
    /// All damage, bytes that cannot be read among it.
    pub damage: Vec<TableDamage>,
    /// Poisons: records that were damaged before the table was written. The table itself is sound.
    pub poisons: Vec<TableDamage>,
    /// Visible entries that were read.
    pub entries: u64,
    /// Hidden entries that were read.
    pub hidden: u64,
}

impl SstReader {
    /// Checks the whole file: each checksum and the file hash over them, that blocks lie one
    /// after the other, the order of all keys, separators, bloom, and counts, ranges and bounds
    /// in the properties and, if given, in the manifest. `progress` gets the bytes of each
    /// block after it, and may end the walk with an error.
    ///
    /// Returns all damage that it found, and how many entries it read: those of a damaged block are
    /// not counted.
    ///
    /// # Errors
    /// Only those of `progress`.
    ///
    /// # Cost
    /// Reads the file once, past the caches; keeps its index and bloom in memory a second time.
    pub fn verify(
        &self,
        expected: Option<&Expected>,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<TableFindings> {
        let mut verify = Verify {
            reader: self,
            source: self.source(),
            progress,
            ahead: ReadAhead::new(Access::Uncached, PIECE_BYTES),
            damage: Vec::new(),
            poisons: Vec::new(),
            blocks: Vec::new(),
            is_index_whole: true,
            is_data_whole: true,
            data_end: 0,
            seen: Seen::default(),
        };
        verify.run(expected)?;
        let Verify { damage, poisons, seen, .. } = verify;
        let entries = seen.properties.entries();
        let hidden = seen.properties.hidden;
        Ok(TableFindings { damage, poisons, entries, hidden })
    }
}

/// A data block that the index names.
struct NamedBlock {
    extent: Extent,
    separator: InternalKey,
}

/// The content of the data blocks, by their own account.
#[derive(Default)]
struct Seen {
    properties: SstProperties,
    smallest: Option<InternalKey>,
    /// The last visible entry, and the last entry of all.
    largest: Option<InternalKey>,
    last: Option<InternalKey>,
}

struct Verify<'a> {
    // Fixed after construction.
    reader: &'a SstReader,
    source: &'a TableSource,
    progress: &'a mut dyn FnMut(u64) -> Result<()>,
    ahead: ReadAhead,
    // What was found so far.
    damage: Vec<TableDamage>,
    poisons: Vec<TableDamage>,
    /// Every block that was looked at, with its checksum as stored; none where it is damaged.
    blocks: Vec<(Extent, Option<[u8; 8]>)>,
    is_index_whole: bool,
    is_data_whole: bool,
    /// End of the last data block that the index names.
    data_end: u64,
    seen: Seen,
}

impl Verify<'_> {
    fn run(&mut self, expected: Option<&Expected>) -> Result<()> {
        let (footer, footer_at) = self.footer()?;
        let properties = self.properties(&footer)?;
        self.dictionary(&properties)?;
        let bloom = self.bloom(&footer)?;
        let named = self.index(&footer)?;
        self.data_end = named.last().map_or(0, |block| block.extent.end());
        let mut before = None;
        for block in &named {
            self.data_block(block, before, bloom.as_ref())?;
            before = Some(&block.separator);
        }
        self.layout(&footer, footer_at);
        // Counts of a part of the blocks would differ for a reason that is reported already.
        if self.is_index_whole && self.is_data_whole {
            self.account(&properties, &footer, expected);
        }
        Ok(())
    }

    fn report(&mut self, offset: impl Into<Option<u64>>, what: impl Into<String>) {
        let offset = offset.into();
        let error = self.source.corruption(offset, what);
        self.note(offset, error, None, None);
    }

    fn note(
        &mut self,
        offset: Option<u64>,
        error: Error,
        first: Option<&InternalKey>,
        last: Option<&InternalKey>,
    ) {
        self.damage.push(TableDamage {
            offset,
            first_key: first.map(|key| key.user.to_vec()),
            last_key: last.map(|key| key.user.to_vec()),
            error,
        });
    }

    /// Reads the block at `extent` past the caches; its damage is an error.
    fn read(&mut self, extent: Extent) -> Result<StoredPayload> {
        // A piece may fail because of what lies after the block.
        let alone;
        let stored = match self.ahead.stored(self.reader, extent) {
            Ok(stored) => Ok(stored),
            Err(_) => {
                alone = self.source.read_stored(Access::Uncached, extent);
                alone.as_deref().map_err(Error::clone)
            }
        };
        let checksum = stored.as_ref().ok().and_then(|stored| stored.last_chunk::<8>().copied());
        let payload = stored.and_then(|stored| self.source.open(extent.offset, stored));
        self.blocks.push((extent, checksum.filter(|_| payload.is_ok())));
        payload
    }

    /// The footer of the file, or, where it is damaged, that of the open table.
    fn footer(&mut self) -> Result<(Footer, u64)> {
        // The known footer is used on: after a damaged one nothing else could be verified.
        let (known, known_at) = self.reader.footer();
        let read = Footer::read(self.source, Access::Uncached);
        match self.source.file.len() {
            Ok(len) if len == self.source.file_bytes => {}
            Ok(len) => self.report(None, format!("length of the file changed to {len}")),
            Err(error) => self.note(None, error, None, None),
        }
        (self.progress)(self.source.file_bytes - known_at)?;
        match read {
            Ok((footer, at)) if (footer, at) == (*known, known_at) => {}
            Ok((_, at)) => self.report(at, "footer is not the one that the table was opened with"),
            Err(error) => self.note(Some(known_at), error, None, None),
        }
        Ok((*known, known_at))
    }

    fn properties(&mut self, footer: &Footer) -> Result<SstProperties> {
        let extent = footer.properties;
        let payload = self.read(extent);
        (self.progress)(extent.len)?;
        let read = payload.and_then(|payload| {
            SstProperties::decode(self.source, extent.offset, &payload.bytes[..payload.len])
        });
        match read {
            Ok(properties) => Ok(properties),
            Err(error) => {
                self.note(Some(extent.offset), error, None, None);
                Ok(self.reader.properties().clone())
            }
        }
    }

    /// The blocks are decompressed with that of the open table, so that damage of it hides no other.
    fn dictionary(&mut self, properties: &SstProperties) -> Result<()> {
        let Some((extent, checksum)) = properties.dictionary else { return Ok(()) };
        let read = self.read(extent).map(drop);
        (self.progress)(extent.len)?;
        let known = self.blocks.last().and_then(|(_, sum)| *sum);
        let what = match read {
            Ok(()) if known == Some(checksum.to_le_bytes()) => return Ok(()),
            Ok(()) => "its checksum is not the one that the properties have".to_owned(),
            Err(error) => error.damage().map_or(error.to_string(), |damage| damage.what.clone()),
        };
        self.report(extent.offset, format!("the dictionary of the table: {what}"));
        Ok(())
    }

    fn bloom(&mut self, footer: &Footer) -> Result<Option<Bloom>> {
        let extent = footer.bloom;
        if extent.len == 0 {
            return Ok(None);
        }
        let payload = self.read(extent);
        (self.progress)(extent.len)?;
        let read = payload.and_then(|payload| {
            Bloom::parse(&payload.bytes[..payload.len])
                .map_err(|e| self.source.corruption(extent.offset, e.to_string()))
        });
        read.or_else(|error| {
            self.note(Some(extent.offset), error, None, None);
            Ok(None)
        })
    }

    /// The data blocks that the index names, in order. Where its top is damaged, that of the open
    /// table is used; what a damaged partition names is lost.
    fn index(&mut self, footer: &Footer) -> Result<Vec<NamedBlock>> {
        let top = self.index_block(footer.index)?;
        let top = top.and_then(|block| Index::new(block, footer.index_levels));
        let known;
        let top = match &top {
            Some(top) => top,
            None => {
                if self.damage.iter().all(|known| known.offset != Some(footer.index.offset)) {
                    self.report(footer.index.offset, "index entries do not name blocks");
                }
                known = self.reader.index();
                known
            }
        };
        let mut named = Vec::new();
        for i in 0..top.block().len() {
            let Some(extent) = top.extent(i) else { continue };
            let fence = top.block().whole_key(i);
            if top.levels() == 1 {
                named.push(NamedBlock { extent, separator: fence });
                continue;
            }
            let Some(leaf) = self.index_block(extent)? else {
                self.is_index_whole = false;
                continue;
            };
            for j in 0..leaf.len() {
                match extent_at(&leaf, j) {
                    Some(extent) => named.push(NamedBlock { extent, separator: leaf.whole_key(j) }),
                    None => {
                        self.is_index_whole = false;
                        self.report(extent.offset, "index entry does not name a block");
                    }
                }
            }
            if named.last().is_some_and(|last| last.separator != fence) {
                self.report(extent.offset, "index partition ends at another key than its fence");
            }
        }
        Ok(named)
    }

    fn index_block(&mut self, extent: Extent) -> Result<Option<Block>> {
        let payload = self.read(extent);
        (self.progress)(extent.len)?;
        let block = payload.and_then(|payload| {
            Block::parse(payload, None)
                .map_err(|e| self.source.corruption(extent.offset, e.to_string()))
        });
        block.map(Some).or_else(|error| {
            self.note(Some(extent.offset), error, None, None);
            Ok(None)
        })
    }

    /// Checks a data block against its neighbours, its separator and the bloom.
    fn data_block(
        &mut self,
        named: &NamedBlock,
        before: Option<&InternalKey>,
        bloom: Option<&Bloom>,
    ) -> Result<()> {
        let extent = named.extent;
        let payload = self.read(extent);
        (self.progress)(extent.len)?;
        let payload_len = payload.as_ref().map_or(0, |payload| payload.len as u64);
        let block = match payload.and_then(|payload| self.reader.parse(extent, payload)) {
            Ok(block) => block,
            Err(error) => {
                self.is_data_whole = false;
                self.note(Some(extent.offset), error, before, Some(&named.separator));
                return Ok(());
            }
        };
        let suffix = self.reader.hidden_suffix().unwrap_or_default();
        let (first, last) = block.edges(suffix);
        let mut wrong = Vec::new();
        if self.seen.last.as_ref().is_some_and(|last| *last >= first) {
            wrong.push("first key is not after the block before");
        }
        if before.is_some_and(|before| *before >= first) {
            wrong.push("first key is not after the separator before the block");
        }
        if last > named.separator {
            wrong.push("last key is after the separator of the block");
        }
        for what in wrong {
            let error = self.source.corruption(extent.offset, what);
            self.note(Some(extent.offset), error, Some(&first), Some(&last));
        }
        self.seen.last = Some(last);
        self.entries(extent, &block, bloom);
        let seen = &mut self.seen.properties;
        seen.hidden += block.hidden_len() as u64;
        seen.data_blocks += 1;
        seen.block_bytes_max = seen.block_bytes_max.max(payload_len);
        Ok(())
    }

    /// Counts the visible entries of a block and asks the bloom for their keys.
    fn entries(&mut self, extent: Extent, block: &Block, bloom: Option<&Bloom>) {
        let mut user = Vec::new();
        for i in 0..block.len() {
            let entry = block.key(i);
            if i == 0 || !entry.key.is(&user) {
                user.clear();
                user.extend_from_slice(entry.key.shared);
                user.extend_from_slice(entry.key.suffix);
                if let Some(what) = bloom.and_then(|bloom| bloom.lacks(&user)) {
                    let error = self.source.corruption(extent.offset, what).at_key(&user);
                    self.note(Some(extent.offset), error, None, None);
                }
            }
            let kind = entry.trailer.kind().unwrap_or(EntryKind::Poison);
            if kind == EntryKind::Poison {
                let error =
                    self.source.corruption(extent.offset, EntryKind::POISONED).at_key(&user);
                let offset = Some(extent.offset);
                let key = Some(user.clone());
                let damage = TableDamage { offset, first_key: key.clone(), last_key: key, error };
                self.poisons.push(damage);
            }
            self.seen.properties.count(kind, entry.trailer.seq(), user.len(), block.value(i).len());
            // Keys are copied at the edges alone, not for each entry.
            let is_edge = self.seen.smallest.is_none() || i + 1 == block.len();
            if is_edge {
                let key = InternalKey { user: user.as_slice().into(), trailer: entry.trailer };
                self.seen.smallest.get_or_insert_with(|| key.clone());
                self.seen.largest = Some(key);
            }
        }
    }

    /// Checks that the blocks are all of the file, and their checksums the file hash.
    fn layout(&mut self, footer: &Footer, footer_at: u64) {
        self.blocks.sort_by_key(|(extent, _)| (extent.offset, extent.len));
        let blocks = std::mem::take(&mut self.blocks);
        let mut at = 0;
        let mut is_whole = self.is_index_whole;
        // The blocks of a lost index partition lie somewhere among the data.
        let lost_until = if self.is_index_whole { 0 } else { self.data_end };
        let end = Extent { offset: footer_at, len: 0 };
        for extent in blocks.iter().map(|(extent, _)| *extent).chain([end]) {
            if extent.offset > at && at >= lost_until {
                let what = format!("{} bytes belong to nothing", extent.offset - at);
                self.report(at, what);
                is_whole = false;
            }
            if extent.offset < at {
                self.report(extent.offset, "blocks overlap");
                is_whole = false;
            }
            at = at.max(extent.end());
        }
        let checksums: Option<Vec<[u8; 8]>> =
            blocks.iter().map(|(_, checksum)| *checksum).collect();
        if checksums.is_some_and(|checksums| {
            is_whole && checksum128(checksums.as_flattened()) != footer.file_hash
        }) {
            self.report(None, "file hash is not that of the block checksums");
        }
    }

    /// Holds what the data blocks hold against properties and manifest.
    fn account(
        &mut self,
        properties: &SstProperties,
        footer: &Footer,
        expected: Option<&Expected>,
    ) {
        let identity = self.reader.identity();
        let seen = SstProperties {
            smallest: user_key(self.seen.smallest.as_ref()),
            largest: user_key(self.seen.largest.as_ref()),
            compression: properties.compression,
            bloom_bits_per_key: properties.bloom_bits_per_key,
            file: identity.file,
            epoch: identity.epoch,
            data_bytes: self.data_end,
            hidden_suffix: self.reader.properties().hidden_suffix.clone(),
            user: properties.user.clone(),
            ..self.seen.properties.clone()
        };
        let at = footer.properties.offset;
        for (name, said, is) in numbers(properties, &seen) {
            if said != is {
                self.report(at, format!("properties say {name} {said}, the blocks say {is}"));
            }
        }
        if (&properties.smallest, &properties.largest) != (&seen.smallest, &seen.largest) {
            self.report(at, "properties have other bounds than the blocks");
        }
        if properties.hidden_suffix != seen.hidden_suffix {
            self.report(at, "properties have another hidden suffix than the open table");
        }
        let Some(expected) = expected else { return };
        for (name, said, is) in [
            ("entries", expected.entries, seen.entries()),
            ("tombstones", expected.tombstones, seen.tombstones),
            ("hidden entries", expected.hidden, seen.hidden),
            ("smallest sequence number", expected.min_seq.get(), seen.min_seq.get()),
            ("largest sequence number", expected.max_seq.get(), seen.max_seq.get()),
        ] {
            if said != is {
                self.report(None, format!("manifest says {name} {said}, the blocks say {is}"));
            }
        }
        if self.seen.smallest.as_ref() != Some(&expected.smallest) {
            self.report(None, "first key is not the manifest's");
        }
        if self.seen.largest.as_ref() != Some(&expected.largest) {
            self.report(None, "last key is not the manifest's");
        }
    }
}

/// The user key, or nothing in a table without visible entries.
fn user_key(key: Option<&InternalKey>) -> Vec<u8> {
    key.map_or(Vec::new(), |key| key.user.to_vec())
}
