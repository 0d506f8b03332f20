//! The check that a log reaches as far as it must ([`MustReach`]), for every reader.
//!
//! Recovery, read-only opens next to a writer and secondaries compare the end that they found with
//! it, so that none of them takes damage in the middle of the log for its end. `version/mod.rs`
//! fills in the part from the manifest; `verdict.rs` checks the attestations of later frames.

use std::path::PathBuf;

use super::LogReader;
use crate::error::{Error, Result};
use crate::types::MustReach;

impl LogReader {
    /// An error if the log ends before what it must reach.
    ///
    /// # Errors
    /// `Corruption` that names the place where it ends.
    pub fn check_reaches(&self, must: &MustReach) -> Result<()> {
        let place = self.position().place;
        if let Some(closed) = must.closed
            // Zeros in the place of lost frames leave no damage to find, so the close records where
            // the log ended.
            && place < closed
        {
            let stop = self.stopped.unwrap_or("no frame");
            let what = format!(
                "log ends here ({stop}), but was closed at offset {} of segment {}",
                closed.offset, closed.segment
            );
            return Err(Error::corruption(self.present_path(), place.offset, what));
        }
        if self.lsn().unwrap_or_default() < must.committed {
            return Err(place.too_short_for(self.present_path(), must.committed));
        }
        if self.last_seq < must.flushed {
            let what = format!(
                "the log ends with sequence {}, but was durable through {} before a flush",
                self.last_seq, must.flushed
            );
            return Err(Error::corruption(self.present_path(), place.offset, what));
        }
        Ok(())
    }
    /// The path of the segment where the log ends, or of the first one.
    fn present_path(&self) -> PathBuf {
        let source = self.sources.get(self.idx).or(self.sources.first());
        source.map_or_else(PathBuf::new, |source| source.path.clone())
    }
}
