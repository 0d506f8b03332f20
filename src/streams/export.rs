//! [`export`]: writes the entries of partitions as they were at one moment.

use std::io::Write;
use std::ops::Bound;

use largeval::BlobReader;
use lsm_core::error::Result;

use super::arriving::each_piece;
use super::format::{PIECE_BYTES, StreamWriter};
use super::options::{StreamExport, StreamFormat, StreamPartition, StreamSummary};
use super::text;
use crate::db::Db;
use crate::large::ReadBlobs;
use crate::partition::Partition;
use crate::snapshot::Snapshot;

/// The value of an entry that is exported.
pub(super) enum ExportedValue<'a> {
    /// In memory.
    Whole(&'a [u8]),
    /// To be read in pieces.
    Stored(&'a BlobReader),
}

impl ExportedValue<'_> {
    /// Returns the length in bytes.
    pub(super) fn len(&self) -> u64 {
        match self {
            ExportedValue::Whole(value) => value.len() as u64,
            ExportedValue::Stored(value) => value.len(),
        }
    }

    /// Passes the value to `each` in pieces of [`PIECE_BYTES`]; the last may be shorter. An empty
    /// value has no piece.
    ///
    /// # Errors
    /// Those of the read and of `each`.
    pub(super) fn pieces(&self, each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        match self {
            // In pieces as well, though it is in memory: the form of a stream does not depend on
            // where a value lay.
            ExportedValue::Whole(value) => value.chunks(PIECE_BYTES as usize).try_for_each(each),
            ExportedValue::Stored(value) => each_piece(value, value.len(), each),
        }
    }
}

/// The partitions of an export, at one moment.
pub(super) struct Exported {
    snapshot: Snapshot,
    pub(super) partitions: Vec<Partition>,
    range: (Bound<Vec<u8>>, Bound<Vec<u8>>),
}

impl Exported {
    /// Passes the entries of a partition to `each`, in ascending order of their keys.
    ///
    /// # Errors
    /// Those of the reads and of `each`.
    pub(super) fn each_entry(
        &self,
        partition: &Partition,
        mut each: impl FnMut(&[u8], &ExportedValue<'_>) -> Result<()>,
    ) -> Result<()> {
        let entries = self.snapshot.range(partition, self.range.clone());
        if partition.space().is_none() {
            for entry in entries {
                let (key, value) = entry?;
                each(&key, &ExportedValue::Whole(&value))?;
            }
            return Ok(());
        }
        // A value may be larger than memory.
        let at_moment = self.snapshot.of(partition);
        for key in entries.keys() {
            let key = key?;
            if let Some(value) = at_moment.open_blob(&key)? {
                each(&key, &ExportedValue::Stored(&value))?;
            }
        }
        Ok(())
    }
}

/// As [`Db::export_stream`].
///
/// # Errors
/// Those of [`Db::export_stream`].
pub(super) fn export(
    db: &Db,
    out: &mut dyn Write,
    options: &StreamExport,
) -> Result<StreamSummary> {
    // A handle that cannot be used has no names.
    db.0.check_usable()?;
    let names = options.partitions.clone().unwrap_or_else(|| db.partition_names());
    // Opened before the snapshot: a snapshot reads a partition that is dropped later only by a
    // handle from before.
    let partitions = names.iter().map(|name| db.open_partition(name));
    let partitions = partitions.collect::<Result<Vec<_>>>()?;
    // One for all partitions: batches over several of them arrive whole.
    let snapshot = db.snapshot();
    let exported = Exported { snapshot, partitions, range: options.range.clone() };
    match options.format {
        StreamFormat::Checked => export_checked(&exported, out),
        StreamFormat::BerkeleyText => text::export(&exported, out),
    }
}

fn export_checked(exported: &Exported, out: &mut dyn Write) -> Result<StreamSummary> {
    let mut header = Vec::new();
    for partition in &exported.partitions {
        // The import needs it: otherwise it would put values of any length into tables, or refuse
        // them.
        let has_large_values = partition.space().is_some();
        header.push(StreamPartition { name: partition.name().to_owned(), has_large_values });
    }
    let mut writer = StreamWriter::begin(out, &header)?;
    let mut summary = StreamSummary::default();
    for (number, partition) in exported.partitions.iter().enumerate() {
        exported.each_entry(partition, |key, value| {
            writer.entry(number as u32, key, value.len())?;
            value.pieces(|piece| writer.piece(piece))?;
            summary.count(key, value.len());
            Ok(())
        })?;
    }
    writer.end(summary.entries)?;
    Ok(summary)
}
