//! The look at the files alone: the part of [`FollowPosition`] for a folder without the cursor of a living
//! primary. The invariants are those of `follow/position.rs`.

use std::sync::Arc;

use super::FollowPosition;
use crate::db::ownership::{CountedPart, counted_part};
use crate::error::{Error, Result};
use crate::follow::Inner;
use crate::follow::bound::{Bound, BoundSource};
use crate::fs::FolderState;
use crate::fs::names::{FileKind, FileName};
use crate::shared::{CommitCursorReader, CommitCursorState};
use crate::version::{TailNews, age_of};
use crate::wal::{Attested, Lsn};

impl FollowPosition {
    /// Without the cursor of a living primary: the fence of one, or the attestations of the log. A
    /// primary may write on another machine, or nowhere.
    pub(super) fn look_at_files(&mut self, inner: &Inner) -> Result<Option<Bound>> {
        self.reopen_cursor(inner)?;
        if self.has_live_cursor() {
            return Ok(None);
        }
        let cursor = self.cursor.clone();
        let cursor = cursor.as_ref().map(|cursor| (&**cursor, cursor.state()));
        // One listing shows claims and generations.
        let listed = inner.fs.list_names(&inner.dir, "")?;
        match counted_part(&*inner.fs, &inner.dir, &listed, self.version().epoch, cursor)? {
            CountedPart::AsWritten => {}
            CountedPart::Through(settled) => return self.look_at_fence(inner, settled),
            CountedPart::Replaced => {
                self.reattach(inner)?;
                return Ok(None);
            }
            CountedPart::Unknown => return self.look_back().map(Some),
        }
        let names = listed.iter().filter_map(|name| FileName::parse(name));
        let newest = names.filter(|name| name.kind == FileKind::Manifest).map(age_of).max();
        let is_last = newest.is_none_or(|newest| newest <= age_of(self.manifest.name()));
        // An epoch that is about to begin has no edits yet. Later its cursor has their number.
        let is_opening = cursor.is_some_and(|(_, state)| state == CommitCursorState::Opening);
        if !is_last || (!is_opening && self.manifest.poll(None)? == TailNews::Rotated) {
            let before = self.manifest.generation();
            self.reattach(inner)?;
            let is_news = self.manifest.generation() != before;
            if is_news || self.has_live_cursor() {
                return Ok(None);
            }
        }
        self.look_at_log(inner, None)
    }

    /// Opens the cursor of the epoch, unless it is known to be fenced.
    fn reopen_cursor(&mut self, inner: &Inner) -> Result<()> {
        if self.cursor.as_ref().is_some_and(|it| it.state() == CommitCursorState::Superseded) {
            return Ok(());
        }
        let version = self.version();
        let cursor =
            CommitCursorReader::open(&*inner.fs, &inner.dir, version.db_id, version.epoch)?;
        // The file of a closed cursor is deleted, and its mapping still shows that it is closed.
        self.cursor = cursor.map(Arc::new).or_else(|| self.cursor.take());
        Ok(())
    }

    /// The end of the attested log, which must reach `committed` if that is known; `None` if the
    /// manifest has a newer edit meanwhile.
    pub(super) fn look_at_log(
        &mut self,
        inner: &Inner,
        committed: Option<Lsn>,
    ) -> Result<Option<Bound>> {
        if inner.follows_tables_only {
            let reach = Lsn::default();
            return Ok(Some(Bound { source: BoundSource::Log, reach, is_durable: false }));
        }
        self.ensure_log(inner)?;
        let is_closed = self.version().log_closed.is_some();
        let reach = match (&self.log, is_closed) {
            (Some(log), false) => {
                let Attested { durable, manifest_edit, end } =
                    log.attested(self.version(), committed)?;
                if manifest_edit > self.version().edit_number {
                    self.reach_edit(inner, manifest_edit)?;
                    return Ok(None);
                }
                match self.folder {
                    FolderState::Unknown => durable,
                    // The storage answers for every byte, so no later frame has to.
                    FolderState::Settled | FolderState::Current => end,
                }
            }
            // Its end is durable, and nothing follows it.
            _ => Lsn(u64::MAX),
        };
        let reach = reach.max(self.noted.reach);
        Ok(Some(Bound { source: BoundSource::Log, reach, is_durable: false }))
    }

    /// Reads the manifest to `edit`, which the log attests as durable.
    fn reach_edit(&mut self, inner: &Inner, edit: u64) -> Result<()> {
        // No further: later edits may not be settled yet.
        if self.manifest.poll(Some(edit))? == TailNews::Rotated {
            return self.reattach(inner);
        }
        let last = self.version().edit_number;
        if last >= edit {
            return Ok(());
        }
        // It was durable before the log could attest it, so its bytes are lost.
        let what = format!("the manifest ends at edit {last}, but the log attests edit {edit}");
        Err(Error::corruption(self.manifest.name().path(&inner.dir), None, what))
    }
}
