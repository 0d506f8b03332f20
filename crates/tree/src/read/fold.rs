//! The value of a key whose newest visible version is an operand: operands and the value below them, folded.
//!
//! Gets and cursors come here when they have found an operand; nothing else in the read path knows of merges. The
//! search begins again at the newest place: that costs one look more, and plain reads stay as they are.
//!
//! A read folds one operand for each table and snapshot that keeps one, and of each memtable what `memtable/folds.rs`
//! leaves to it.

use std::sync::Arc;

use super::get::{GetContext, Search, is_answer, search, unreadable};
use super::source::Source;
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::AttachedOperator;
use crate::iter::{InternalIter, MergeIter};
use crate::memtable::Memtable;
use crate::sstable::{BlockCheck, bloom_hash};
use crate::types::{EntryKind, KeyRef, SeqNo, Slice, Trailer};
use crate::version::{HookKind, HookRecord, PartitionVersion, Table, TableContext};

/// The versions of a key that make up its value, the newest first.
pub struct Chain<'a> {
    context: &'a GetContext<'a>,
    key: &'a [u8],
    operator: &'a AttachedOperator,
    operands: Vec<Slice>,
    base: Option<Vec<u8>>,
    has_ended: bool,
}

impl<'a> Chain<'a> {
    /// No version of `key` yet.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the code of the operator is missing.
    pub fn new(context: &'a GetContext<'a>, key: &'a [u8]) -> Result<Chain<'a>> {
        let operator = context.operator.ok_or_else(|| missing(&context.view.version, key))?;
        Ok(Chain { context, key, operator, operands: Vec::new(), base: None, has_ended: false })
    }

    /// Takes in the next older version, which lies in `table`. Returns `true` if no older one counts.
    ///
    /// # Errors
    /// Corruption, of the version or because a newer one may be lost; those of the value store.
    pub fn take(&mut self, trailer: Trailer, value: Slice, table: Option<&Table>) -> Result<bool> {
        let seq = trailer.seq();
        if !is_answer(self.context, self.key, Some(seq))? {
            self.has_ended = true;
            return Ok(true);
        }
        match (trailer.kind(), self.context.store) {
            (Some(EntryKind::Operand), _) => {
                self.operands.push(value);
                return Ok(false);
            }
            (Some(EntryKind::Tombstone), _) => {}
            (Some(EntryKind::Value), _) if !self.context.is_alive(self.key, Some(&value)) => {}
            (Some(EntryKind::Value), _) => self.base = Some(value.to_vec()),
            (Some(EntryKind::Handle), Some(store)) => {
                let read = store.read(&value).map_err(|error| error.at_key(self.key))?;
                self.base = Some(read);
            }
            (kind, _) => return Err(unreadable(kind, table, self.context.tables, self.key)),
        }
        self.has_ended = true;
        Ok(true)
    }

    /// The value; `None` if no version counts, or if it has expired.
    ///
    /// # Errors
    /// Those of the operator; corruption if a version below the oldest may be lost.
    pub fn finish(self) -> Result<Option<Vec<u8>>> {
        if !self.has_ended {
            is_answer(self.context, self.key, None)?;
        }
        // The newest version is hidden: deleted with a range, or given up.
        if self.operands.is_empty() && self.base.is_none() {
            return Ok(None);
        }
        let operands = self.operands.iter().rev().map(|operand| &operand[..]);
        let folded = self.operator.fold(self.key, self.base, operands)?;
        Ok(Some(folded).filter(|folded| self.context.is_alive(self.key, Some(folded))))
    }
}

/// The value of `key`, a stored key whose newest visible version is an operand; `None` if it has expired.
///
/// # Errors
/// Those of a get, and of the operator; [`ErrorKind::Unsupported`] if its code is missing.
#[cold]
pub fn fold(context: &GetContext<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let chain = Chain::new(context, key)?;
    let gaps = &context.view.version.gaps;
    // Where entries are lost, and where the value below may have expired, each version is looked at by itself.
    let are_folds_used =
        gaps.is_empty() && !context.alive.is_some_and(|alive| alive.rule.reads_values());
    let floor = are_folds_used.then(|| context.view.deleted_at(key, context.seq));
    let mut versions = Versions { chain, hash: bloom_hash(key), at: context.seq, floor };
    search(context.view, key, &mut versions)?;
    versions.chain.finish()
}

/// As [`fold`], by sources whose blocks `check` sees.
pub(super) fn fold_checked(
    context: &GetContext<'_>,
    tables: &Arc<TableContext>,
    key: &[u8],
    check: &Arc<dyn BlockCheck>,
) -> Result<Option<Vec<u8>>> {
    let mut chain = Chain::new(context, key)?;
    let clear_seq = context.view.clear_at(context.seq);
    let sources = Source::all_checked(context.view, tables, clear_seq, Some(check), None)?;
    let mut versions = MergeIter::new(sources);
    versions.seek(Some(KeyRef::seek(key, context.seq)))?;
    while versions.valid() && versions.key().user == key {
        let trailer = versions.key().trailer;
        if chain.take(trailer, versions.current().value_slice(), None)? {
            break;
        }
        versions.next()?;
    }
    chain.finish()
}

/// The error of an operation on `key` in a partition whose merge operator is missing.
#[cold]
pub fn missing(partition: &PartitionVersion, key: &[u8]) -> Error {
    let PartitionVersion { name, hooks, .. } = partition;
    let operator = hooks.iter().find(|record| record.kind == HookKind::MergeOperator);
    let what = match operator {
        Some(HookRecord { name, .. }) => format!("the code of merge operator {name:?} is missing"),
        None => "it has no merge operator".to_owned(),
    };
    let message = format!("partition {name:?}, key \"{}\": {what}", key.escape_ascii());
    Error::new(ErrorKind::Unsupported, message)
}

/// The search of [`fold`].
struct Versions<'a> {
    chain: Chain<'a>,
    hash: u64,
    /// The versions through this one are wanted.
    at: SeqNo,
    /// Versions below it are deleted; `None` if no fold of a memtable may be used.
    floor: Option<SeqNo>,
}

impl Versions<'_> {
    /// Takes in a version; returns what ends the search.
    fn take(
        &mut self,
        trailer: Trailer,
        value: Slice,
        table: Option<&Table>,
    ) -> Result<Option<()>> {
        let is_last = self.chain.take(trailer, value, table)?;
        Ok(self.go_below(trailer.seq(), is_last))
    }

    fn go_below(&mut self, seq: SeqNo, is_last: bool) -> Option<()> {
        self.at = seq.previous();
        (is_last || seq == SeqNo::ZERO).then_some(())
    }
}

impl<'a> Search<'a> for Versions<'a> {
    type Found = ();

    fn in_memtable(&mut self, memtable: &'a Memtable) -> Result<Option<()>> {
        while let Some((trailer, value)) = memtable.get(self.chain.key, self.hash, self.at) {
            let folded = match self.floor {
                Some(floor) => {
                    memtable.fold(self.chain.key, self.at, floor, self.chain.operator)?
                }
                None => None,
            };
            let ended = match folded {
                None => self.take(trailer, value, None)?,
                Some(folded) => {
                    if folded.is_whole {
                        self.chain.base = Some(folded.bytes.to_vec());
                        self.chain.has_ended = true;
                    } else {
                        self.chain.operands.push(Slice::copy_from(&folded.bytes));
                    }
                    self.go_below(folded.from, folded.is_whole)
                }
            };
            if ended.is_some() {
                return Ok(ended);
            }
        }
        Ok(None)
    }

    fn in_table(&mut self, _level: usize, table: &'a Table) -> Result<Option<()>> {
        let key = self.chain.key;
        let reader = table.reader(self.chain.context.tables).map_err(|error| error.at_key(key))?;
        while let Some((trailer, value)) =
            reader.get(key, self.hash, self.at).map_err(|error| error.at_key(key))?
        {
            if let Some(ended) = self.take(trailer, value, Some(table))? {
                return Ok(Some(ended));
            }
        }
        Ok(None)
    }
}
