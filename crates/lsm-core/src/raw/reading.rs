//! [`read()`]: a get that also shows the blocks that it searched without a result, and the entry
//! that it returns, with its place and its hidden entry.
//!
//! For sister crates that judge an entry before it is handed out. It asks the same places in the
//! same order as a get, through the same blooms and the same cached blocks.
//!
//! Invariants:
//! 1. Its answer is that of a get at the same moment, or an error.
//! 2. Each table whose bloom lets the key pass, up to the one that has it, is shown.

use std::fmt;
use std::sync::Arc;

use super::Origin;
use crate::error::Result;
use crate::hooks::PartitionHooks;
use crate::memtable::Memtable;
use crate::read::{self, Chain, GetContext, ReadPoint};
use crate::sstable::{EntryAt, TableBlock, bloom_hash};
use crate::types::{EntryKind, SeqNo, Slice, Trailer};
use crate::version::Table;

/// A partition as a read sees it: as it is now, at a snapshot, or on a replica.
pub trait ReadAt {
    /// Calls `look` with what a point read of `key` needs, and the key as it is stored.
    ///
    /// # Errors
    /// If it is closed or dropped; what `look` returns, with the partition's name.
    fn with_view<T>(
        &self,
        key: &[u8],
        look: impl FnOnce(&PinnedView<'_>, &[u8]) -> Result<T>,
    ) -> Result<T>;

    /// Returns what a scan needs, and the hooks.
    ///
    /// # Errors
    /// If it is closed or dropped.
    fn read_point(&self) -> Result<(ReadPoint, Arc<PartitionHooks>)>;
}

/// The pinned view of a partition, for one call.
pub struct PinnedView<'a> {
    /// Memtables, tables, value store and sequence number.
    pub(crate) context: GetContext<'a>,
    /// Its hooks.
    pub hooks: &'a PartitionHooks,
    /// Its name.
    pub partition: &'a str,
}

impl PinnedView<'_> {
    /// The operations up to this one are seen.
    #[inline]
    pub fn seq(&self) -> SeqNo {
        self.context.seq
    }
}

/// Sees what a point read comes to. An error ends the read.
pub trait Witness {
    /// A block that would hold the key and does not. The table's bloom said that it might: one in
    /// a hundred at the usual size.
    fn passed(&mut self, block: &TableBlock<'_>) -> Result<()>;

    /// The newest version that is seen, of whatever kind.
    fn found(&mut self, found: &Found<'_>) -> Result<()>;
}

/// An entry that was found.
pub struct Found<'a> {
    /// The sequence number that counts.
    pub seq: SeqNo,
    /// The sequence number in the file: another one in a file that was ingested.
    pub stored_seq: SeqNo,
    /// Its kind.
    pub kind: EntryKind,
    /// Its value, payload or handle: the bytes that the read returns.
    pub value: &'a [u8],
    /// Its place in a table; `None` for a memtable.
    pub place: Option<TablePlace<'a>>,
}

/// The place of an entry of a table.
#[derive(Clone, Copy)]
pub struct TablePlace<'a> {
    /// The level of the table.
    pub(crate) level: usize,
    /// The table.
    pub(crate) table: &'a Table,
    /// The block, which also finds the hidden entry: [`TableBlock::hidden_of`].
    pub block: &'a TableBlock<'a>,
    /// The index of the entry in the block.
    pub at: EntryAt,
}

impl Found<'_> {
    /// Its place in the words of a walk.
    pub fn origin(&self) -> Origin {
        let Some(TablePlace { level, table, block, at }) = self.place else {
            return Origin::MEMTABLE;
        };
        Origin {
            file: Some(table.meta.file),
            level,
            block_offset: block.offset(),
            entry: block.place(at),
            block_verified: true,
        }
    }
}

impl fmt::Debug for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value.escape_ascii();
        write!(f, "{:?}/{:?} = \"{value}\" {:?}", self.seq, self.kind, self.origin())
    }
}

/// The value of `key`, a stored key. `is_fresh` reads all blocks past every cache and keeps what
/// it read there.
///
/// # Errors
/// Those of a get, and of the witness.
///
/// # Cost
/// As a get.
#[inline]
pub fn read(
    pinned: &PinnedView<'_>,
    key: &[u8],
    is_fresh: bool,
    witness: &mut impl Witness,
) -> Result<Option<Slice>> {
    let context = &pinned.context;
    let hash = bloom_hash(key);
    let at = context.seq;
    let mut looks = Looks { context, key, hash, at, is_fresh, witness, seq: None, chain: None };
    let found = read::search(context.view, key, &mut looks)?;
    if let Some(chain) = looks.chain {
        return Ok(chain.finish()?.map(Into::into));
    }
    Ok(if read::is_answer(context, key, looks.seq)? { found.flatten() } else { None })
}

/// The search of [`read()`].
struct Looks<'l, W> {
    context: &'l GetContext<'l>,
    key: &'l [u8],
    hash: u64,
    /// The versions through this one are wanted.
    at: SeqNo,
    is_fresh: bool,
    witness: &'l mut W,
    /// The sequence number of what was found.
    seq: Option<SeqNo>,
    /// The versions so far, if the newest is an operand.
    chain: Option<Chain<'l>>,
}

/// The meaning of an entry that was found.
enum Meaning {
    /// It ends the search, with the value of the key unless that is made of several versions.
    Answer(Option<Slice>),
    /// Older ones count, too.
    Older,
}

impl<W> Looks<'_, W> {
    /// The meaning of the entry that was found.
    #[inline]
    fn resolve(
        &mut self,
        trailer: Trailer,
        value: Slice,
        table: Option<&Table>,
    ) -> Result<Meaning> {
        let kind = trailer.kind();
        if kind != Some(EntryKind::Operand) && self.chain.is_none() {
            return read::resolve(self.context, kind, value, table, self.key).map(Meaning::Answer);
        }
        self.take(trailer, value, table)
    }

    #[cold]
    fn take(&mut self, trailer: Trailer, value: Slice, table: Option<&Table>) -> Result<Meaning> {
        let mut chain = match self.chain.take() {
            Some(chain) => chain,
            None => Chain::new(self.context, self.key)?,
        };
        let has_ended = chain.take(trailer, value, table)? || trailer.seq() == SeqNo::ZERO;
        self.chain = Some(chain);
        self.at = trailer.seq().previous();
        Ok(if has_ended { Meaning::Answer(None) } else { Meaning::Older })
    }
}

impl<'a, W: Witness> read::Search<'a> for Looks<'_, W> {
    /// The value that the entry that was found gives the key.
    type Found = Option<Slice>;

    #[inline(always)]
    fn in_memtable(&mut self, memtable: &'a Memtable) -> Result<Option<Self::Found>> {
        while let Some((trailer, value)) = memtable.get_checked(self.key, self.hash, self.at)? {
            let seq = trailer.seq();
            let kind = trailer.kind().unwrap_or(EntryKind::Poison);
            self.seq = Some(seq);
            // Before the value is fetched: what the witness refuses is not handed out.
            self.witness.found(&Found {
                seq,
                stored_seq: seq,
                kind,
                value: &value,
                place: None,
            })?;
            if let Meaning::Answer(resolved) = self.resolve(Trailer::new(seq, kind), value, None)? {
                return Ok(Some(resolved));
            }
        }
        Ok(None)
    }

    #[inline(always)]
    fn in_table(&mut self, level: usize, table: &'a Table) -> Result<Option<Self::Found>> {
        let reader = table.reader(self.context.tables).map_err(|error| error.at_key(self.key))?;
        while let Some(looked) = reader.look_up(self.key, self.hash, self.at, self.is_fresh)? {
            // The bloom let the key pass and the block does not have it: a damaged key would look the
            // same.
            let Some(entry) = looked.entry else {
                self.witness.passed(&looked.block)?;
                return Ok(None);
            };
            let stored_seq = entry.stored.seq();
            // A block with an entry of an unknown kind does not parse.
            let kind = entry.stored.kind().unwrap_or(EntryKind::Poison);
            let seq = table.meta.global_seq.unwrap_or(stored_seq);
            self.seq = Some(seq);
            self.witness.found(&Found {
                seq,
                stored_seq,
                kind,
                value: &entry.value,
                place: Some(TablePlace { level, table, block: &looked.block, at: entry.at }),
            })?;
            let trailer = Trailer::new(seq, kind);
            if let Meaning::Answer(resolved) = self.resolve(trailer, entry.value, Some(table))? {
                return Ok(Some(resolved));
            }
        }
        Ok(None)
    }
}
