//! The faults of an operation, and those that need not be reported.

use lsm_core::fs::{FaultAction, FaultRule, FsOp, OpKind};

/// The faults that an operation can have.
pub fn actions(op: &FsOp) -> Vec<FaultAction> {
    use FaultAction::{Eio, Enospc, ShortWrite, ShortWriteNoSpace, SyncLost, SyncReverted};
    match op.kind {
        OpKind::Append => vec![
            Eio,
            Enospc,
            ShortWrite(op.len / 2),
            ShortWrite(u64::MAX),
            ShortWriteNoSpace(op.len * 3 / 4),
        ],
        // What it takes away of values is damage of their keys (`values.rs` in the folder of `resume.rs`).
        OpKind::Sync if has_ending(op, "chunk") => vec![Eio, Enospc, SyncLost],
        OpKind::Sync | OpKind::SyncDir | OpKind::PutIfAbsent => {
            vec![Eio, Enospc, SyncLost, SyncReverted]
        }
        OpKind::Create | OpKind::Preallocate => vec![Eio, Enospc],
        _ => vec![Eio],
    }
}

/// The reason why a fault at `log[at]` need not be reported; `None` if it must be.
pub fn harmless(log: &[FsOp], at: usize) -> Option<&'static str> {
    let kind_before = |back: usize| at.checked_sub(back).map(|at| log[at].kind);
    let of_manifest = log[at].path.to_string_lossy().ends_with(".manifest");
    match log[at].kind {
        OpKind::Map => Some("appends to the log are written then"),
        OpKind::FreeBytes => Some("the free space counts as unlimited"),
        OpKind::Link => Some("the file is copied"),
        OpKind::OpenExisting if has_ending(&log[at], "sst") => Some("as for its link"),
        OpKind::Sync
            if has_ending(&log[at], "sst") && kind_before(1) == Some(OpKind::OpenExisting) =>
        {
            Some("as for its link")
        }
        OpKind::Sync if is_segment(&log[at]) && kind_before(1) == Some(OpKind::OpenExisting) => {
            Some("nothing of the log of the run before is kept then")
        }
        OpKind::LockShared | OpKind::OpenRead | OpKind::Read if is_lease(&log[at]) => {
            Some("what the lease may hold stays, and it is looked at again")
        }
        OpKind::BeginSync => Some("the sync that follows has more to do"),
        OpKind::Delete => Some("nothing needs the file, and the next open removes it"),
        OpKind::List => Some("what leases may hold stays, and they are looked for again"),
        OpKind::SyncDir if kind_before(1) == Some(OpKind::Delete) => {
            Some("the removed files come back after a crash, and the next open removes them")
        }
        OpKind::PutIfAbsent | OpKind::OpenExisting | OpKind::Len if of_manifest => {
            Some("the present generation of the manifest takes edits all the same")
        }
        OpKind::Append if of_manifest && kind_before(1) == Some(OpKind::Len) => {
            Some("a generation that could not name its successor counts until that has an edit")
        }
        OpKind::Sync if of_manifest && kind_before(2) == Some(OpKind::Len) => {
            Some("as for the append before it")
        }
        OpKind::Append if is_index_at_close(log, at) => {
            Some("a segment without an index is walked, and there is no one to report to")
        }
        _ => None,
    }
}

fn has_ending(op: &FsOp, ending: &str) -> bool {
    op.path.extension().is_some_and(|it| it == ending)
}

fn is_segment(op: &FsOp) -> bool {
    has_ending(op, "wal")
}

fn is_lease(op: &FsOp) -> bool {
    op.path.to_string_lossy().contains("reader-")
}

/// Returns `true` if `log[at]` appends to a segment after a later one has begun, and no sync of the log comes until
/// the next open. A frame goes to the last segment, and a close syncs it.
fn is_index_at_close(log: &[FsOp], at: usize) -> bool {
    let mut before = log[..at].iter();
    let mut after = log[at + 1..].iter().take_while(|op| op.kind != OpKind::Lock);
    is_segment(&log[at])
        && before.any(|op| op.kind == OpKind::Create && is_segment(op) && op.path > log[at].path)
        && !after.any(|op| op.kind == OpKind::Sync && is_segment(op))
}

/// Returns `true` if the store compensates for the fault: the log creates a shorter segment where
/// the disk has no room for one of the usual length; the space reserved after a closed log is freed
/// with its file; and secondaries read the log where the commit cursor has no lock, and its file is
/// created again at once.
pub fn is_made_up_for(op: &FsOp, rule: &FaultRule) -> bool {
    if op.path.to_string_lossy().contains("cursor-") {
        return op.kind == OpKind::Lock || (op.kind == OpKind::MapWords && !rule.sticky);
    }
    let no_room = op.kind == OpKind::Preallocate && rule.action == FaultAction::Enospc;
    // The header of an encrypted segment, which goes before the space that is reserved.
    let is_header =
        op.kind == OpKind::Append && op.len == 256 && rule.action == FaultAction::Enospc;
    op.kind == OpKind::Punch || ((no_room || is_header) && !rule.sticky)
}
