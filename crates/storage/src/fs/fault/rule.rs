//! The vocabulary of [`FaultFs`](super::FaultFs): operations, and rules that make some of them
//! fail.
//!
//! Plain data, made by tests and applied by `fault/mod.rs`.

use std::io;
use std::path::Path;
use std::sync::Arc;

#[expect(unused_imports, reason = "the documentation links to them")]
use crate::fs::{File, Fs};
use crate::machine;

/// The sort of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// [`Fs::create_dir`].
    CreateDir,
    /// [`Fs::open_append`] of a new name.
    Create,
    /// [`Fs::open_append`] of an existing file.
    OpenExisting,
    /// [`Fs::open_read`].
    OpenRead,
    /// [`Fs::put_if_absent`].
    PutIfAbsent,
    /// [`Fs::list`].
    List,
    /// [`Fs::delete`].
    Delete,
    /// [`Fs::link`]; the path is the new name.
    Link,
    /// [`Fs::sync_dir`].
    SyncDir,
    /// [`Fs::try_lock`].
    Lock,
    /// [`Fs::try_lock_shared`].
    LockShared,
    /// [`File::append`].
    Append,
    /// [`File::read_at`] and [`File::read_at_uncached`].
    Read,
    /// [`File::sync`].
    Sync,
    /// [`File::begin_sync`]. Broken, it does nothing, and the sync has more to do.
    BeginSync,
    /// [`File::begin_next_sync`].
    BeginNextSync,
    /// [`File::len`].
    Len,
    /// [`File::preallocate`].
    Preallocate,
    /// [`File::map_appends`] and [`File::map`]. Broken, they do nothing, and bytes are written or read.
    Map,
    /// [`File::overwrite`].
    Overwrite,
    /// [`File::punch`].
    Punch,
    /// [`Fs::free_bytes`].
    FreeBytes,
    /// [`Fs::map_words`] of a new name.
    MapWords,
}

impl OpKind {
    /// Every kind, for tests that count their coverage.
    pub const ALL: [OpKind; 23] = [
        OpKind::CreateDir,
        OpKind::Create,
        OpKind::OpenExisting,
        OpKind::OpenRead,
        OpKind::PutIfAbsent,
        OpKind::List,
        OpKind::Delete,
        OpKind::Link,
        OpKind::SyncDir,
        OpKind::Lock,
        OpKind::LockShared,
        OpKind::Append,
        OpKind::Read,
        OpKind::Sync,
        OpKind::BeginSync,
        OpKind::BeginNextSync,
        OpKind::Len,
        OpKind::Preallocate,
        OpKind::Map,
        OpKind::Overwrite,
        OpKind::Punch,
        OpKind::FreeBytes,
        OpKind::MapWords,
    ];

    /// Returns `true` if it can change the state after a crash. (The first lock creates its file.)
    pub fn mutates(self) -> bool {
        !matches!(
            self,
            OpKind::OpenExisting
                | OpKind::OpenRead
                | OpKind::List
                | OpKind::LockShared
                | OpKind::Read
                | OpKind::BeginSync
                | OpKind::BeginNextSync
                | OpKind::Len
                | OpKind::Map
                | OpKind::FreeBytes
                | OpKind::MapWords
        )
    }

    fn takes_handle(self) -> bool {
        matches!(
            self,
            OpKind::CreateDir
                | OpKind::Create
                | OpKind::OpenExisting
                | OpKind::OpenRead
                | OpKind::PutIfAbsent
                | OpKind::List
                | OpKind::SyncDir
                | OpKind::Lock
                | OpKind::LockShared
                | OpKind::FreeBytes
        )
    }

    fn takes_space(self) -> bool {
        matches!(
            self,
            OpKind::CreateDir
                | OpKind::Create
                | OpKind::PutIfAbsent
                | OpKind::Link
                | OpKind::SyncDir
                | OpKind::Append
                | OpKind::Sync
                | OpKind::Preallocate
                | OpKind::MapWords
        )
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsOp {
    /// Its number among all operations, from 0.
    pub index: u64,
    /// The number of mutating operations before it.
    pub mutation: u64,
    /// The sort of operation.
    pub kind: OpKind,
    /// The file or folder.
    pub path: Arc<Path>,
    /// Bytes to append, read, publish or punch, or the length to preallocate; else 0.
    pub len: u64,
}

impl FsOp {
    /// Returns `true` if it can change the state after a crash.
    pub fn mutates(&self) -> bool {
        self.kind.mutates()
    }
}

/// The operation that a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultAt {
    /// The one with this index; a sticky rule: every one from it on.
    Op(u64),
    /// The mutating one with this number among those that mutate; sticky: every mutating one from
    /// it on.
    Mutation(u64),
    /// The `nth` (from 0, counted since the rule was added) of `kind` on a path that ends in
    /// `suffix`; sticky: every such one from it on.
    Nth {
        /// The sort of operation.
        kind: OpKind,
        /// End of the path as text; empty for any.
        suffix: String,
        /// The number of such operations that go through first.
        nth: u64,
    },
}

/// The action of a rule. A rule does not apply to an operation for which its action is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// It fails with an I/O error and does nothing. Any operation.
    Eio,
    /// It fails with [`io::ErrorKind::StorageFull`] and does nothing. Operations that can take
    /// space: creations, growth and syncs (of space that was promised and is missing).
    Enospc,
    /// It fails as in a process that may open no other file, and does nothing. Operations that open one.
    Emfile,
    /// As [`FaultAction::Emfile`], in the last step of `put_if_absent`: the folder cannot be opened for its
    /// sync.
    EmfileAtSync,
    /// So many bytes are appended, at most all, then it fails with an I/O error. Appends.
    ShortWrite(u64),
    /// As [`FaultAction::ShortWrite`], with [`io::ErrorKind::StorageFull`]. Appends.
    ShortWriteNoSpace(u64),
    /// It fails with an I/O error, and the content never becomes durable, though it stays readable and a
    /// later sync succeeds (as on ext4). Syncs of files and folders, and `put_if_absent`, whose last step is
    /// a sync of the folder: its content is then visible under a name that no later sync saves. A failed sync
    /// of a folder loses all names that were made in it since the last good one.
    SyncLost,
    /// As [`FaultAction::SyncLost`], but reads do not see the unsynced bytes any more, either (as
    /// on Btrfs).
    SyncReverted,
    /// It succeeds and makes nothing durable; an honest sync later does. The same operations.
    SyncLie,
    /// It panics and does nothing, like a bug of a file system or of its caller. Any operation.
    Panic,
}

impl FaultAction {
    /// Returns `true` if an operation of this sort can break in this way.
    pub fn can_happen_to(self, kind: OpKind) -> bool {
        match self {
            FaultAction::Eio | FaultAction::Panic => true,
            FaultAction::Enospc => kind.takes_space(),
            FaultAction::Emfile => kind.takes_handle(),
            FaultAction::EmfileAtSync => kind == OpKind::PutIfAbsent,
            FaultAction::ShortWrite(_) | FaultAction::ShortWriteNoSpace(_) => {
                kind == OpKind::Append
            }
            FaultAction::SyncLost | FaultAction::SyncReverted | FaultAction::SyncLie => {
                matches!(kind, OpKind::Sync | OpKind::SyncDir | OpKind::PutIfAbsent)
            }
        }
    }

    pub(super) fn error(self) -> io::Error {
        match self {
            FaultAction::Enospc | FaultAction::ShortWriteNoSpace(_) => {
                io::ErrorKind::StorageFull.into()
            }
            FaultAction::Emfile | FaultAction::EmfileAtSync => machine::out_of_handles(),
            _ => io::Error::other("injected input/output error"),
        }
    }
}

/// An operation to break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// The operation.
    pub at: FaultAt,
    /// The way in which it breaks.
    pub action: FaultAction,
    /// Not only this one but all later ones too, until [`FaultFs::heal`](super::FaultFs::heal).
    pub sticky: bool,
}

impl FaultRule {
    /// Breaks one operation.
    pub fn once(at: FaultAt, action: FaultAction) -> FaultRule {
        FaultRule { at, action, sticky: false }
    }

    /// Breaks an operation and the later ones.
    pub fn sticky(at: FaultAt, action: FaultAction) -> FaultRule {
        FaultRule { at, action, sticky: true }
    }
}

/// A rule, and the number of operations so far that match it.
pub(super) struct ArmedRule {
    pub(super) rule: FaultRule,
    pub(super) passed: u64,
}

impl ArmedRule {
    /// Returns `true` if the rule breaks `op`.
    pub(super) fn hits(&mut self, op: &FsOp) -> bool {
        let FaultRule { at, action, sticky } = &self.rule;
        let (number, wanted) = match at {
            FaultAt::Op(index) => (op.index, *index),
            FaultAt::Mutation(number) if op.mutates() => (op.mutation, *number),
            FaultAt::Mutation(_) => return false,
            FaultAt::Nth { kind, suffix, nth } => {
                if op.kind != *kind || !op.path.to_string_lossy().ends_with(suffix.as_str()) {
                    return false;
                }
                self.passed += 1;
                (self.passed - 1, *nth)
            }
        };
        // Counted before the action is compared with the operation, so that the number of an
        // operation does not depend on the action.
        let is_due = if *sticky { number >= wanted } else { number == wanted };
        is_due && action.can_happen_to(op.kind)
    }
}
