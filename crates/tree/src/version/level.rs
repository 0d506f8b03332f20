//! [`Level`]: the tables of one level in order, with fences that find one of them.
//!
//! `apply` builds it; every read and the picker use it. It never changes: an edit makes a new one.
//!
//! Invariants:
//! 1. Level 0 is ordered newest first: by newest sequence, then by file number, both descending.
//! 2. Deeper levels are ordered by key and disjoint by user key: all versions of a user key are in
//!    one table.
//! 3. `fences[i]` is the 8-byte prefix of the i-th largest user key, after the bytes that all
//!    largest user keys share. Level 0 has no fences.

use std::cmp::{Ordering, Reverse};
use std::ops::Range;
use std::sync::Arc;

use super::table::{Table, UserRange};
use crate::types::{SeqNo, first_not_below, prefix8};

/// The tables of one level. A clone counts one reference.
#[derive(Clone, Debug, Default)]
pub struct Level(Arc<LevelTables>);

#[derive(Clone, Debug, Default)]
struct LevelTables {
    tables: Vec<Arc<Table>>,
    fences: Vec<u64>,
    /// The number of bytes that the largest user keys share.
    shared: usize,
    bytes: u64,
    newest: SeqNo,
    has_tombstones: bool,
}

impl PartialEq for Level {
    // The rest is made of the tables.
    fn eq(&self, other: &Level) -> bool {
        self.0.tables == other.0.tables
    }
}

impl Eq for Level {}

impl Level {
    /// Level 0 of these tables, in any order.
    pub fn newest_first(mut tables: Vec<Arc<Table>>) -> Level {
        // By the newest sequence number, because a read must search in this order. File numbers
        // would follow it only as long as a single job writes to level 0.
        tables.sort_by_key(|table| Reverse((table.meta.newest(), table.meta.file)));
        let bytes = bytes_of(&tables);
        let newest = newest_of(&tables);
        let has_tombstones = have_tombstones(&tables);
        let fences = Vec::new();
        Level(Arc::new(LevelTables { tables, fences, shared: 0, bytes, newest, has_tombstones }))
    }

    /// A deeper level of these tables, in any order.
    ///
    /// # Errors
    /// The first two tables that may hold the same user key.
    pub fn sorted(mut tables: Vec<Arc<Table>>) -> Result<Level, (Arc<Table>, Arc<Table>)> {
        tables.sort_by(|a, b| a.meta.smallest.cmp(&b.meta.smallest));
        for pair in tables.windows(2) {
            let left = &pair[0].meta;
            let right = &pair[1].meta;
            // Neighbours may name the same key if one of them excludes it.
            if !left.ends_before(&right.smallest.user) && !right.starts_after(&left.largest.user) {
                return Err((pair[0].clone(), pair[1].clone()));
            }
        }
        let shared = shared_by(&tables);
        let fences = fences_of(&tables, shared);
        let bytes = bytes_of(&tables);
        let newest = newest_of(&tables);
        let has_tombstones = have_tombstones(&tables);
        Ok(Level(Arc::new(LevelTables { tables, fences, shared, bytes, newest, has_tombstones })))
    }

    /// Puts tables in the place of others. Deeper levels only. The caller has made sure that the new ones ascend, and
    /// lie between the neighbours of the old ones.
    ///
    /// # Cost
    /// If no other clone of the level lives, that of the tables that come and go, and of moving what comes after them.
    pub fn replace(&mut self, at: Range<usize>, added: Vec<Arc<Table>>) {
        let level = Arc::make_mut(&mut self.0);
        let new = at.start..at.start + added.len();
        let newest = newest_of(&added);
        level.has_tombstones |= have_tombstones(&added);
        let gone: Vec<_> = level.tables.splice(at.clone(), added).collect();
        level.bytes -= bytes_of(&gone);
        level.bytes += bytes_of(&level.tables[new.clone()]);
        let is_newest_gone = newest_of(&gone) == level.newest && newest < level.newest;
        level.newest =
            if is_newest_gone { newest_of(&level.tables) } else { level.newest.max(newest) };
        if have_tombstones(&gone) {
            level.has_tombstones = have_tombstones(&level.tables);
        }
        let shared = shared_by(&level.tables);
        if shared == level.shared {
            level.fences.splice(at, fences_of(&level.tables[new], shared));
        } else {
            level.shared = shared;
            level.fences = fences_of(&level.tables, shared);
        }
        debug_assert!(level.tables.windows(2).all(|it| it[0].meta.largest < it[1].meta.smallest));
    }

    /// The tables in the level's order.
    #[inline]
    pub fn tables(&self) -> &[Arc<Table>] {
        &self.0.tables
    }

    /// Length of all files together, in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// The newest sequence of an entry in the level.
    pub fn newest(&self) -> SeqNo {
        self.0.newest
    }

    /// Returns `true` if one of the tables has tombstones. A pick asks before it looks at each table.
    pub fn has_tombstones(&self) -> bool {
        self.0.has_tombstones
    }

    /// Returns `true` if the level has no tables.
    pub fn is_empty(&self) -> bool {
        self.0.tables.is_empty()
    }

    /// Index of the first table that does not end before the user key; the number of tables if
    /// all do. Deeper levels only.
    pub fn index_of(&self, user: &[u8]) -> usize {
        let Some(first) = self.0.tables.first() else {
            return 0;
        };
        debug_assert_eq!(self.0.fences.len(), self.0.tables.len(), "level 0 has no fences");
        let shared = &first.meta.largest.user[..self.0.shared];
        // After `Equal` the key has all shared bytes, so it can be cut after them.
        let head = &user[..user.len().min(self.0.shared)];
        match head.cmp(shared) {
            Ordering::Less => return 0,
            Ordering::Greater => return self.0.tables.len(),
            Ordering::Equal => {}
        }
        let word = prefix8(&user[self.0.shared..]);
        // Words first: they lie in one array, and a table is only touched if words are equal.
        let low = first_not_below(&self.0.fences, word);
        // Equal words decide nothing: compare whole keys among those, usually none or one.
        let equal = self.0.fences[low..].iter().take_while(|fence| **fence == word).count();
        let run = &self.0.tables[low..low + equal];
        low + run.partition_point(|table| table.meta.ends_before(user))
    }

    /// The one table that may hold the user key. Deeper levels only.
    #[inline]
    pub fn find(&self, user: &[u8]) -> Option<&Arc<Table>> {
        let table = self.0.tables.get(self.index_of(user))?;
        (!table.meta.starts_after(user)).then_some(table)
    }

    /// The tables that may hold a user key of the range. Deeper levels only.
    pub fn overlapping(&self, range: UserRange<'_>) -> &[Arc<Table>] {
        let from = range.start.map_or(0, |start| self.index_of(start));
        let rest = &self.0.tables[from..];
        let count = range
            .end
            .map_or(rest.len(), |end| rest.partition_point(|table| !table.meta.starts_after(end)));
        &rest[..count]
    }
}

fn bytes_of(tables: &[Arc<Table>]) -> u64 {
    tables.iter().map(|table| table.meta.bytes).sum()
}

fn have_tombstones(tables: &[Arc<Table>]) -> bool {
    tables.iter().any(|table| table.meta.tombstones > 0)
}

fn newest_of(tables: &[Arc<Table>]) -> SeqNo {
    tables.iter().map(|table| table.meta.newest()).max().unwrap_or_default()
}

/// The number of bytes that all largest keys share. Without them, the first eight bytes of all largest keys are often
/// equal, and the fences decide nothing.
fn shared_by(tables: &[Arc<Table>]) -> usize {
    match (tables.first(), tables.last()) {
        (Some(first), Some(last)) => {
            shared_bytes(&first.meta.largest.user, &last.meta.largest.user)
        }
        _ => 0,
    }
}

fn fences_of(tables: &[Arc<Table>], shared: usize) -> Vec<u64> {
    tables.iter().map(|table| prefix8(&table.meta.largest.user[shared..])).collect()
}

fn shared_bytes(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
