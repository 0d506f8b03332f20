//! A cursor in a skiplist that shares ownership of the list, so that its lifetime is not bounded.
//!
//! Layout and invariants are in `skiplist.rs`.

use std::ptr::NonNull;
use std::sync::Arc;

use super::SkipList;
use super::node::{Node, NodeRef};
use super::version::{Version, VersionRef};
use crate::types::KeyRef;

/// A position in a list that keeps the list alive.
pub(in crate::memtable) struct ListCursor {
    list: Arc<SkipList>,
    /// The place in `list`; `None` before the first move and past an end.
    at: Option<(NonNull<Node>, NonNull<Version>)>,
}

// SAFETY: the pointers lead into the list, which is `Send` and `Sync`, and which the cursor keeps.
unsafe impl Send for ListCursor {}
// SAFETY: shared, the cursor only reads its two pointers, and `get` reads the list as any reader does.
unsafe impl Sync for ListCursor {}

impl ListCursor {
    /// Nowhere in `list`.
    pub(in crate::memtable) fn new(list: Arc<SkipList>) -> ListCursor {
        ListCursor { list, at: None }
    }

    /// Its position.
    #[inline]
    pub(in crate::memtable) fn get(&self) -> Option<(NodeRef<'_>, VersionRef<'_>)> {
        // SAFETY: the moves store only nodes and versions of `list`, which the cursor keeps alive.
        self.at.map(|(node, version)| unsafe { (NodeRef::new(node), VersionRef::new(version)) })
    }

    /// To nowhere.
    pub(in crate::memtable) fn leave(&mut self) {
        self.at = None;
    }

    pub(in crate::memtable) fn go_first(&mut self) {
        self.at = newest_of(self.list.first());
    }

    pub(in crate::memtable) fn go_last(&mut self) {
        self.at = oldest_of(self.list.last());
    }

    /// Moves to the first entry that is not before `target`.
    pub(in crate::memtable) fn seek(&mut self, target: KeyRef<'_>) {
        let found = self.list.at_or_after(target.user);
        self.at = match found {
            Some(node) if node.key() == target.user => {
                match node.newest().at_most(target.trailer) {
                    Some(version) => Some((node.node, version.version)),
                    None => newest_of(node.next()),
                }
            }
            found => newest_of(found),
        };
        if let Some((node, _)) = self.get() {
            node.prefetch_next();
        }
    }

    /// Moves to the last entry that is before `target`.
    pub(in crate::memtable) fn seek_before(&mut self, target: KeyRef<'_>) {
        // Versions above the target are before it, so the key's own node is asked first.
        let node = self.list.find(target.user);
        let version = node.and_then(|node| Some((node, node.newest().above(target.trailer)?)));
        self.at = match version {
            Some((node, version)) => Some((node.node, version.version)),
            None => oldest_of(self.list.before(target.user)),
        };
    }

    /// To the next entry. Nowhere goes nowhere.
    pub(in crate::memtable) fn next(&mut self) {
        let Some((node, version)) = self.get() else { return };
        self.at = match version.older() {
            Some(older) => Some((node.node, older.version)),
            None => newest_of(following(node)),
        };
    }

    /// Moves to the newest entry of the next key. Without a position it does nothing.
    pub(in crate::memtable) fn next_key(&mut self) {
        let Some((node, _)) = self.get() else { return };
        self.at = newest_of(following(node));
    }

    /// To the entry before. Nowhere goes nowhere.
    pub(in crate::memtable) fn prev(&mut self) {
        let Some((node, version)) = self.get() else { return };
        self.at = match node.newest().above(version.trailer()) {
            Some(newer) => Some((node.node, newer.version)),
            None => oldest_of(self.list.before(node.key())),
        };
    }
}

/// Returns the next node. The second one after it is prefetched while the caller works.
#[inline]
fn following(node: NodeRef<'_>) -> Option<NodeRef<'_>> {
    let next = node.next()?;
    next.prefetch_after_next();
    Some(next)
}

fn newest_of(node: Option<NodeRef<'_>>) -> Option<(NonNull<Node>, NonNull<Version>)> {
    node.map(|node| (node.node, node.newest().version))
}

fn oldest_of(node: Option<NodeRef<'_>>) -> Option<(NonNull<Node>, NonNull<Version>)> {
    node.map(|node| (node.node, node.newest().oldest().version))
}
