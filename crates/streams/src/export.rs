//! [`export`]: writes the entries of partitions as they were at one moment.

use std::io::Write;
use std::ops::{Bound, RangeBounds};

use largeval::BlobReader;
use lsm_core::error::Result;

use crate::arriving::each_piece;
use crate::format::{PIECE_BYTES, StreamWriter};
use crate::options::{StreamExport, StreamFormat, StreamPartition, StreamSummary};
use crate::text;
use lsm_core::Db;
use lsm_core::Partition;
use lsm_core::Snapshot;
use lsm_core::db::Salvage;
use lsm_core::{Error, ErrorKind};

/// The value of an entry that is exported.
pub(crate) enum ExportedValue<'a> {
    /// In memory.
    Whole(&'a [u8]),
    /// To be read in pieces.
    Stored(&'a BlobReader),
}

impl ExportedValue<'_> {
    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> u64 {
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
    pub(crate) fn pieces(&self, each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        match self {
            // In pieces as well, though it is in memory: the form of a stream does not depend on
            // where a value lay.
            ExportedValue::Whole(value) => value.chunks(PIECE_BYTES as usize).try_for_each(each),
            ExportedValue::Stored(value) => each_piece(value, value.len(), each),
        }
    }
}

/// The partitions of an export, at one moment.
pub(crate) struct Exported {
    snapshot: Snapshot,
    pub(crate) partitions: Vec<Partition>,
    range: (Bound<Vec<u8>>, Bound<Vec<u8>>),
}

impl Exported {
    /// Passes the entries of a partition to `each`, in ascending order of their keys.
    ///
    /// # Errors
    /// Those of the reads and of `each`.
    pub(crate) fn each_entry(
        &self,
        partition: &Partition,
        mut each: impl FnMut(&[u8], &ExportedValue<'_>) -> Result<()>,
    ) -> Result<()> {
        let entries = self.snapshot.range(partition, self.range.clone());
        if largeval::store_of(partition).is_none() {
            for entry in entries {
                let (key, value) = entry?;
                each(&key, &ExportedValue::Whole(&value))?;
            }
            return Ok(());
        }
        // A value may be larger than memory.
        for key in entries.keys() {
            let key = key?;
            if let Some(value) =
                largeval::open_blob(partition.locate(Some(&self.snapshot), &key)?, &key)?
            {
                each(&key, &ExportedValue::Stored(&value))?;
            }
        }
        Ok(())
    }
}

/// Writes the keys and values of partitions to `out`, as they are at the call: one moment for all partitions.
///
/// # Errors
/// A partition that does not exist, or whose name the text cannot express; those of reads and of `out`.
pub fn export(db: &Db, out: &mut dyn Write, options: &StreamExport) -> Result<StreamSummary> {
    // A handle that cannot be used has no names.
    db.check_usable()?;
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
        let has_large_values = largeval::store_of(partition).is_some();
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

/// Writes what can be read of a damaged database to `out`.
///
/// # Errors
/// A partition that does not exist; a format other than [`StreamFormat::Checked`]; those of the device and of `out`.
pub fn export_salvaged(
    salvage: &mut Salvage,
    out: &mut dyn Write,
    options: &StreamExport,
) -> Result<StreamSummary> {
    if options.format != StreamFormat::Checked {
        let what = "a salvage is exported as a stream with checksums, not as text";
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    let names = options.partitions.clone().unwrap_or_else(|| salvage.partition_names());
    let header: Vec<_> = names
        .iter()
        .map(|name| StreamPartition {
            name: name.clone(),
            has_large_values: salvage.has_value_store(name),
        })
        .collect();
    let mut writer = StreamWriter::begin(out, &header)?;
    let mut summary = StreamSummary::default();
    for (number, name) in names.iter().enumerate() {
        salvage.each_entry(name, &mut |key, value| {
            if !RangeBounds::<Vec<u8>>::contains(&options.range, &key.to_vec()) {
                return Ok(());
            }
            writer.entry(number as u32, key, value.len() as u64)?;
            ExportedValue::Whole(value).pieces(|piece| writer.piece(piece))?;
            summary.count(key, value.len() as u64);
            Ok(())
        })?;
    }
    writer.end(summary.entries)?;
    Ok(summary)
}
