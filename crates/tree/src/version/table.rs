//! [`SstMeta`], the manifest's description of a table, and [`Table`], a live table of a Version.
//!
//! Made by flush and compaction, contained in edits and levels. It opens its file at its first
//! read, and writes none.
//!
//! Invariants:
//! 1. `smallest <= largest` and `min_seq <= max_seq`; `apply` refuses anything else.
//! 2. A live table is one [`Table`] object for its whole life: a move between levels keeps the
//!    `Arc`, so that its reader stays open.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::error::{Error, ErrorKind, Result};
use crate::fs::names::{FileKind, FileName};
use crate::fs::{File, Fs, OpenFiles, TableFile};
use crate::hooks::Ageing;
use crate::limits::INTERNAL_KEY_BYTES_MAX;
use crate::options::Compression;
use crate::sstable::{BlockCache, Salvaged, SstIdentity, SstReader, SstSummary, salvage};
use crate::types::{Counter, DbId, DeletedRange, Epoch, FileNo, Gap, Gaps, InternalKey, SeqNo};

use super::{Expiries, WriteFence};

/// The bounds that do not belong to the table they bound. One byte on disk: bit 0 smallest, bit 1
/// largest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// No entry has the user key of `smallest`.
    pub smallest_excluded: bool,
    /// No entry has the user key of `largest`.
    pub largest_excluded: bool,
}

impl Bounds {
    /// Both bounds are entries of the table: what this version writes.
    pub const INCLUSIVE: Bounds = Bounds { smallest_excluded: false, largest_excluded: false };

    /// The byte on disk.
    pub fn to_u8(self) -> u8 {
        u8::from(self.smallest_excluded) | u8::from(self.largest_excluded) << 1
    }

    /// The flags of a byte on disk; `None` if it has bits that this version does not know.
    pub fn from_u8(byte: u8) -> Option<Bounds> {
        (byte < 4)
            .then_some(Bounds { smallest_excluded: byte & 1 != 0, largest_excluded: byte & 2 != 0 })
    }
}

/// Entries of a table that a newer one of the same table shadows for all readers but those at some
/// snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The newest snapshot that they were kept for.
    pub snapshot: SeqNo,
    /// The number of entries.
    pub entries: u64,
}

/// The manifest's description of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SstMeta {
    /// Its file number.
    pub file: FileNo,
    /// The epoch in its file's name.
    pub epoch: Epoch,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Hash of the file, as in its footer.
    pub hash: u128,
    /// First internal key.
    pub smallest: InternalKey,
    /// Last internal key.
    pub largest: InternalKey,
    /// Shows which of the two keys above do not belong to the table.
    pub bounds: Bounds,
    /// Smallest stored sequence.
    pub min_seq: SeqNo,
    /// Largest stored sequence.
    pub max_seq: SeqNo,
    /// Number of entries, hidden ones not counted.
    pub entries: u64,
    /// Tombstones among them.
    pub tombstones: u64,
    /// Entries that a compaction filter added.
    pub hidden: u64,
    /// The sequence that all entries have instead of their stored ones, for an ingested file.
    pub global_seq: Option<SeqNo>,
    /// The identity in the file itself, for an ingested file: its blocks verify against this.
    pub foreign: Option<SstIdentity>,
    /// The compression that its blocks were written with; absent for tables of older code.
    pub compression: Option<Compression>,
    /// The entries that could be dropped once snapshots are released, by snapshot, ascending.
    pub kept: Arc<[Kept]>,
    /// The times at which its entries expire; absent if no filter computed them.
    pub expiries: Option<Expiries>,
    /// The time at which its entries were flushed, in seconds since 1970; absent unless tables of the partition go by
    /// their age.
    pub written_at: Option<u64>,
}

impl SstMeta {
    /// The name of the file.
    pub fn file_name(&self) -> FileName {
        FileName::new(FileKind::Sst, self.file, self.epoch)
    }

    /// The description of a table that was just written.
    pub fn of(summary: SstSummary) -> SstMeta {
        SstMeta {
            file: summary.identity.file,
            epoch: summary.identity.epoch,
            bytes: summary.file_bytes,
            hash: summary.file_hash,
            smallest: summary.smallest,
            largest: summary.largest,
            bounds: Bounds::INCLUSIVE,
            min_seq: summary.min_seq,
            max_seq: summary.max_seq,
            entries: summary.entries,
            tombstones: summary.tombstones,
            hidden: summary.hidden,
            global_seq: None,
            foreign: None,
            compression: None,
            kept: Arc::new([]),
            expiries: None,
            written_at: None,
        }
    }

    /// Returns `true` if the table may hold the user key.
    #[inline]
    pub fn covers(&self, user: &[u8]) -> bool {
        !self.ends_before(user) && !self.starts_after(user)
    }

    /// The number of entries that a rewrite would drop while `held`, ascending, are the live
    /// snapshots.
    pub fn droppable(&self, held: &[SeqNo]) -> u64 {
        // The numbers come from the manifest and are statistics. The sum saturates, so that a wrong
        // number cannot end the program.
        let released = self.kept.iter().filter(|kept| held.binary_search(&kept.snapshot).is_err());
        released.map(|kept| kept.entries).fold(0, u64::saturating_add)
    }

    /// The times at which its entries expire by a rule; `None` if the table was written without it.
    pub fn expiries_by(&self, ageing: &Ageing) -> Option<&Expiries> {
        self.expiries.as_ref().filter(|expiries| expiries.rule == ageing.rule)
    }

    /// The newest sequence of an entry in the table.
    pub fn newest(&self) -> SeqNo {
        self.global_seq.unwrap_or(self.max_seq)
    }

    /// The oldest sequence of an entry in the table.
    pub fn oldest(&self) -> SeqNo {
        self.global_seq.unwrap_or(self.min_seq)
    }

    /// Returns `true` if every entry of the table sorts before the user key.
    #[inline]
    pub fn ends_before(&self, user: &[u8]) -> bool {
        match (*self.largest.user).cmp(user) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => self.bounds.largest_excluded,
            std::cmp::Ordering::Greater => false,
        }
    }

    /// Returns `true` if every entry of the table sorts after the user key.
    #[inline]
    pub fn starts_after(&self, user: &[u8]) -> bool {
        match (*self.smallest.user).cmp(user) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => self.bounds.smallest_excluded,
            std::cmp::Ordering::Greater => true,
        }
    }

    /// Returns `true` if the table may hold a user key of the range.
    pub fn overlaps(&self, range: UserRange<'_>) -> bool {
        !range.start.is_some_and(|start| self.ends_before(start))
            && !range.end.is_some_and(|end| self.starts_after(end))
    }

    /// Returns `true` if an entry that `span` hides may be in the table, as far as its bounds tell.
    pub fn may_be_below(&self, span: &DeletedRange) -> bool {
        self.oldest() < span.seq
            && !self.ends_before(&span.start)
            // The end of a span is no key of it.
            && span.end.as_ref().is_none_or(|end| *self.smallest.user < **end)
    }

    /// The user keys that the table may hold.
    pub fn range(&self) -> UserRange<'_> {
        UserRange { start: Some(&self.smallest.user), end: Some(&self.largest.user) }
    }

    /// Returns the reason why the description is impossible, if there is one.
    pub(super) fn fault(&self) -> Option<&'static str> {
        let longest_key = self.smallest.user.len().max(self.largest.user.len());
        if self.smallest.user > self.largest.user || self.smallest > self.largest {
            Some("its smallest key is after its largest")
        } else if longest_key > INTERNAL_KEY_BYTES_MAX {
            Some("a bound is longer than any key")
        } else if self.min_seq > self.max_seq {
            Some("its smallest sequence is after its largest")
        } else if self.tombstones > self.entries {
            Some("it has more tombstones than entries")
        } else {
            None
        }
    }
}

/// User keys from `start` to `end`, both included; `None` is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserRange<'a> {
    /// First user key.
    pub start: Option<&'a [u8]>,
    /// Last user key.
    pub end: Option<&'a [u8]>,
}

impl<'a> UserRange<'a> {
    /// Every key.
    pub const ALL: UserRange<'static> = UserRange { start: None, end: None };

    /// From `start` to `end`, both included.
    pub fn new(start: &'a [u8], end: &'a [u8]) -> UserRange<'a> {
        UserRange { start: Some(start), end: Some(end) }
    }

    /// Returns `true` if the two ranges have a key in common.
    pub fn overlaps(self, other: UserRange<'_>) -> bool {
        !self.ends_before(other) && !other.ends_before(self)
    }

    fn ends_before(self, other: UserRange<'_>) -> bool {
        match (self.end, other.start) {
            (Some(end), Some(start)) => end < start,
            _ => false,
        }
    }
}

/// The means to open tables.
pub struct TableContext {
    /// The file system of the files.
    pub fs: Arc<dyn Fs>,
    /// Their folder.
    pub dir: PathBuf,
    /// The database that each file must name.
    pub db_id: DbId,
    /// The meaning of a missing file.
    pub missing: Missing,
    /// The cache of their blocks; `None` keeps none.
    pub cache: Option<Arc<dyn BlockCache>>,
    /// They are read through mappings if possible.
    pub are_mapped: bool,
    /// The set that bounds how many of them are open at once; `None` is without bounds.
    pub files: Option<Arc<OpenFiles>>,
    /// The questions of scans to their blooms.
    pub prefix_counts: PrefixCounts,
}

/// The questions of scans to the blooms of tables, whether they have a prefix.
#[derive(Debug, Default)]
pub struct PrefixCounts {
    /// Tables whose bloom was asked.
    pub asked: Counter,
    /// Tables among them that the scan left out.
    pub spared: Counter,
}

/// The meaning of a table whose file is missing.
#[derive(Clone)]
pub enum Missing {
    /// Damage: only this process deletes files.
    Damage,
    /// Damage, unless another process has taken the database over from the writer of this fence: then that
    /// process has deleted the table.
    DamageUnlessFenced(Arc<dyn WriteFence>),
    /// Damage as long as the lease at this path exists. Afterwards the primary has deleted the table.
    DamageUnder(PathBuf),
    /// Damage if this function finds the table in the manifest, as `is_named` does. Otherwise the primary
    /// has deleted it, and no lease protects this reader.
    DamageIf(fn(&TableContext, &Path) -> bool),
    /// The primary has deleted it: this is a secondary that no lease protects.
    Gone,
    /// The primary has deleted it: this is a secondary whose lease it revoked.
    LeaseLost,
}

impl TableContext {
    /// Returns an error in a child of the process that opened the tables.
    #[inline]
    pub fn check_process(&self) -> Result<()> {
        self.files.as_ref().map_or(Ok(()), |set| set.process().check())
    }

    pub(super) fn open_file(&self, path: &Path) -> Result<Arc<dyn File>> {
        match &self.files {
            Some(set) => Ok(Arc::new(TableFile::open(set, path)?)),
            None => self.fs.open_read(path),
        }
    }
}

/// A live table. The first read opens its reader, which stays as long as the table lives. The file
/// of the reader may be closed between two reads.
pub struct Table {
    /// The manifest's description of it.
    pub meta: SstMeta,
    reader: OnceLock<Arc<SstReader>>,
    /// The closed gaps that were known to the job which wrote the table: the table has none of the
    /// entries that they hide. Unknown for tables of an earlier run of the program.
    clear_of: OnceLock<Gaps>,
    /// The table has no entry that a deleted range through this number hides; zero if that is unknown, as for tables
    /// of an earlier run of the program. Relaxed: an older number costs a look at the table.
    erased_through: AtomicU64,
}

impl Table {
    /// The table of a description.
    pub fn new(meta: SstMeta) -> Table {
        Table {
            meta,
            reader: OnceLock::new(),
            clear_of: OnceLock::new(),
            erased_through: AtomicU64::new(0),
        }
    }

    /// The path of its file.
    pub fn path(&self, context: &TableContext) -> PathBuf {
        self.meta.file_name().path(&context.dir)
    }

    /// Its reader.
    ///
    /// # Errors
    /// Corruption if the file is missing or contradicts the manifest. The next call tries again.
    ///
    /// # Cost
    /// The first call opens the file and reads filter and index.
    #[inline]
    pub fn reader(&self, context: &TableContext) -> Result<&Arc<SstReader>> {
        match self.reader.get() {
            Some(reader) => Ok(reader),
            None => self.open(context),
        }
    }

    #[cold]
    fn open(&self, context: &TableContext) -> Result<&Arc<SstReader>> {
        let reader = self.open_apart(context)?;
        // Two first readers may open it at once; one of the two is kept.
        Ok(self.reader.get_or_init(|| Arc::new(reader)))
    }

    /// Its reader, if the table was read before.
    pub fn opened(&self) -> Option<&Arc<SstReader>> {
        self.reader.get()
    }

    /// Another reader of it, from the file as it is now, which the table does not keep. Errors and
    /// cost as in the first call of [`Table::reader`].
    pub fn open_apart(&self, context: &TableContext) -> Result<SstReader> {
        let path = self.path(context);
        let file = context.open_file(&path).map_err(|error| {
            if error.is_missing() { missing(context, &path, error) } else { error }
        })?;
        let SstMeta { file: file_no, epoch, global_seq, foreign, .. } = self.meta;
        let own = SstIdentity { db_id: context.db_id, file: file_no, epoch };
        let identity = foreign.unwrap_or(own);
        // Length and hash from the manifest: a file of an earlier state of the folder, restored by
        // hand, is refused.
        let expected = Some((self.meta.bytes, self.meta.hash));
        let reader = SstReader::open(file, path, identity, expected, context.cache.clone())?;
        let reader = if context.are_mapped { reader.map() } else { reader };
        Ok(reader.placed(file_no, global_seq))
    }

    /// Opens its file for a walk, although it does not open otherwise: see `sstable/salvage.rs`.
    /// `suffix` is that of hidden keys in its partition.
    ///
    /// # Errors
    /// `Io`; `Unsupported`. `None` if nothing in it can be read.
    pub fn salvage(&self, context: &TableContext, suffix: &[u8]) -> Result<Option<Salvaged>> {
        let path = self.path(context);
        let file = match context.open_file(&path) {
            Ok(file) => file,
            // A missing file is beyond repair, and no reason to try again.
            Err(error) if error.is_missing() => return Ok(None),
            Err(error) => return Err(error),
        };
        let SstMeta { file: file_no, epoch, hash, global_seq, foreign, .. } = self.meta;
        let own = SstIdentity { db_id: context.db_id, file: file_no, epoch };
        let salvaged = salvage(file, path, foreign.unwrap_or(own), hash, suffix)?;
        Ok(salvaged.map(|Salvaged { reader, repaired }| Salvaged {
            reader: reader.placed(file_no, global_seq),
            repaired,
        }))
    }

    /// Notes that the job which wrote the table has left out what deleted ranges through `seq` hide.
    pub fn set_erased_through(&self, seq: SeqNo) {
        self.erased_through.store(seq.get(), Ordering::Relaxed);
    }

    /// Returns `true` if it may have an entry that `span` hides.
    pub fn may_be_below(&self, span: &DeletedRange) -> bool {
        self.meta.may_be_below(span) && self.erased_through.load(Ordering::Relaxed) < span.seq.get()
    }

    /// Notes that the job which wrote the table has left out the entries that these closed gaps
    /// hide.
    pub fn set_clear_of(&self, closed: Gaps) {
        // Called once, by the installation of the job.
        let _ = self.clear_of.set(closed);
    }

    /// Returns `true` if the table is known to have no entry that a closed gap hides.
    pub fn is_clear_of(&self, gap: &Gap) -> bool {
        self.meta.ends_before(&gap.from)
            || self.meta.starts_after(&gap.to)
            // No entry here is older than a lost one, so the gap hides none of them.
            || self.meta.oldest() >= gap.through
            || self.clear_of.get().is_some_and(|closed| closed.contains(gap))
    }

    /// Memory of its filter and index, in bytes, if it is open.
    pub fn memory_bytes(&self) -> u64 {
        self.reader.get().map_or(0, |reader| reader.memory_bytes())
    }

    /// Bytes of its file that are read through a mapping.
    pub fn mapped_bytes(&self) -> u64 {
        self.reader.get().map_or(0, |reader| reader.mapped_bytes())
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("meta", &self.meta).finish_non_exhaustive()
    }
}

/// Two tables are equal when their descriptions in the manifest are.
impl PartialEq for Table {
    fn eq(&self, other: &Table) -> bool {
        self.meta == other.meta
    }
}

impl Eq for Table {}

#[cold]
fn missing(context: &TableContext, path: &Path, error: Error) -> Error {
    match &context.missing {
        Missing::Damage => missing_table(path),
        Missing::DamageUnlessFenced(fence) if fence.is_fenced() => {
            let message =
                "the new primary has deleted a table that this one, which is fenced, reads";
            Error::because(ErrorKind::FileGone, message, error)
        }
        Missing::DamageUnlessFenced(_) => missing_table(path),
        Missing::DamageUnder(lease) => match context.fs.open_read(lease) {
            Ok(_) => missing_table(path),
            // The lease is deleted before the files that it held, so an existing lease proves that
            // the table was not deleted on purpose.
            Err(gone) if gone.is_missing() => lease_lost(error),
            // The lease may exist or not, so neither verdict would be true.
            Err(unknown) => unknown,
        },
        Missing::LeaseLost => lease_lost(error),
        Missing::DamageIf(is_named) if is_named(context, path) => missing_table(path),
        Missing::DamageIf(_) | Missing::Gone => {
            let message = "the primary has deleted a table that is read here; read again";
            Error::because(ErrorKind::FileGone, message, error)
        }
    }
}

fn missing_table(path: &Path) -> Error {
    Error::corruption(path, None, "the table is missing")
}

fn lease_lost(error: Error) -> Error {
    let message = "the primary has deleted the lease that held a table";
    Error::because(ErrorKind::LeaseLost, message, error)
}
