//! The values that a table points to, in the value store of its partition.
//!
//! Called by `files.rs` for each intact table: so a missing value is damage of its keys.
//!
//! A value that cannot be read is a finding like damage, and the values of other files are still read.
//!
//! Invariant: damage of a value counts only if its table is live after it was found. A table that
//! was merged meanwhile may point to values that were moved since.

use std::sync::Arc;

use super::VerifyRun;
use crate::error::{Error, ErrorKind, Result};
use crate::iter::InternalIter;
use crate::partition::PartitionState;
use crate::sstable::{ReadMode, SstReader};
use crate::types::{EntryKind, FileNo};
use crate::version::Table;

impl VerifyRun<'_> {
    /// Compares every value that a table points to with its checksums, on the device.
    pub(super) fn check_values(
        &mut self,
        partition: &str,
        table: &Table,
        reader: SstReader,
    ) -> Result<()> {
        let Some(partition) = self.db.catalog.named(partition) else { return Ok(()) };
        let Some(store) = partition.store().cloned() else { return Ok(()) };
        let mut entries = Arc::new(reader).iter(ReadMode::Streaming);
        entries.seek(None)?;
        // The first one stands for all of the table, which may be millions.
        let mut unsupported = None;
        while entries.valid() {
            let key = entries.key();
            if key.trailer.kind() == Some(EntryKind::Handle) {
                let user = key.user;
                let read = store.call("verify", |store| {
                    let value = store.value(entries.value())?;
                    value.verify(user, &mut |bytes| self.advance(bytes))
                });
                match read {
                    Err(error) if self.ends_run(&error) => {
                        return Err(error.in_partition(&partition.name));
                    }
                    Err(error) if error.kind() == ErrorKind::Unsupported => {
                        unsupported.get_or_insert(error.in_partition(&partition.name));
                    }
                    Err(error) => self.note_value(&partition, table, user, &error),
                    Ok(()) => {}
                }
            }
            entries.next()?;
        }
        unsupported.map_or(Ok(()), Err)
    }

    fn note_value(&mut self, partition: &PartitionState, table: &Table, key: &[u8], error: &Error) {
        if !has_table(partition, table.meta.file) {
            return;
        }
        let mut damage = crate::error::Damage::of(error, &table.path(&self.db.setup.tables));
        damage.partition.get_or_insert_with(|| partition.name.to_string());
        damage.key.get_or_insert_with(|| key.to_vec());
        self.damage.push(damage);
    }
}

fn has_table(partition: &PartitionState, file: FileNo) -> bool {
    let view = partition.view();
    !partition.is_dropped() && view.version.tables().any(|(_, table)| table.meta.file == file)
}
