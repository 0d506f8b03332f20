//! The differences between a folder and its journal, which an open ships first.

use lsm_core::fs::AppendMode;
use siltstone::Result;

use super::{Extension, LocalFolder};
use crate::folder::{FileClass, StoredChange};
use crate::noted::NotedChange;
use crate::shipper::Shipper;

fn note(shipper: &Shipper, change: StoredChange) {
    shipper.note(NotedChange::Whole(change));
}

impl LocalFolder {
    /// Notes what the journal lacks.
    ///
    /// Only the recovery decides which commits of a log count: not those in the torn end that a power cut leaves, nor
    /// those after a frame whose large value is lost. So logs and manifests are put only with the state that the next
    /// open of the database recovers. Until then the bucket keeps the state that it has, or has no database.
    pub(super) fn ship(&self, shipper: &Shipper, extension: Extension) -> Result<()> {
        for (name, class, _) in extension {
            if name.ends_with(".wal") || name.ends_with(".manifest") {
                shipper.defer(name);
                continue;
            }
            match class {
                FileClass::Log => self.ship_log(shipper, name)?,
                FileClass::Table | FileClass::Chunk => self.ship_ranges(shipper, &name)?,
            }
        }
        Ok(())
    }

    /// Notes what the journal lacks of a log that no recovery continues.
    fn ship_log(&self, shipper: &Shipper, name: String) -> Result<()> {
        let file = self.fs.open_read(&self.path(&name))?;
        let known = shipper.written(&name);
        if known.is_none() {
            note(shipper, StoredChange::Create { name: name.clone() });
        }
        let offset = known.unwrap_or(0);
        let mut bytes = vec![0; (file.len()? - offset) as usize];
        file.read_at(offset, &mut bytes)?;
        note(shipper, StoredChange::Append { name, offset, bytes });
        Ok(())
    }

    /// Puts what the journal lacks of a table or of a chunk file, as far as it can be read: a power cut tears what was
    /// not synced. The rest is a gap of the file in the bucket, and reads as zeros there. If something names it, its
    /// checksum refuses them, as a read here refuses what is torn.
    ///
    /// A file that cannot be opened was never synced either, if the bucket has none of its bytes. It is not put: the
    /// recovery ends the log before a value in it, and the error of anything else that names it names the file.
    fn ship_ranges(&self, shipper: &Shipper, name: &str) -> Result<()> {
        let path = self.path(name);
        let known = shipper.written(name);
        let file = match self.fs.open_read(&path) {
            Err(error) if error.is_corruption() && known.unwrap_or(0) == 0 => return Ok(()),
            file => file?,
        };
        let wanted = known.unwrap_or(0)..file.len()?;
        if wanted.is_empty() {
            return Ok(());
        }
        // A killed process may have left them unsynced.
        self.fs.open_append(&path, AppendMode::Existing)?.sync()?;
        if known.is_none() {
            note(shipper, StoredChange::Create { name: name.to_owned() });
        }
        let parts = file.readable(wanted.clone())?;
        let end = parts.last().map_or(wanted.start, |part| part.end);
        for part in parts {
            let piece = shipper.put_range("table", name, part, &*file)?;
            note(shipper, StoredChange::Piece { name: name.to_owned(), piece });
        }
        if end < wanted.end {
            // The next open compares the lengths.
            note(shipper, StoredChange::Extend { name: name.to_owned(), len: wanted.end });
        }
        Ok(())
    }
}
