//! [`Importer`] and [`Arriving`]: puts entries whose values come in pieces.

use std::io::Write;

use largeval::{BlobReader, LargeValueOptions};
use lsm_core::error::{Error, Result};
use lsm_core::options::Durability;

use super::format::PIECE_BYTES;
use super::{StreamImport, StreamSummary};
use crate::batch::Batch;
use crate::db::Db;
use crate::large::BlobWriter;
use crate::partition::Partition;

/// A batch is committed from so many bytes on; a larger value is streamed if its partition has large
/// values.
const HELD_BYTES: usize = 1 << 20;

/// Puts the entries of a stream in their order.
pub(super) struct Importer<'d> {
    db: &'d Db,
    options: &'d StreamImport,
    batch: Batch,
    batch_bytes: usize,
    summary: StreamSummary,
}

/// An entry of which all, some or no pieces have come.
pub(super) struct Arriving<'p> {
    partition: &'p Partition,
    key: Vec<u8>,
    /// Length of the value, if it is known.
    len: Option<u64>,
    /// Bytes of the value that have come.
    came: u64,
    value_bytes_max: u64,
    place: ArrivedPieces,
}

/// The pieces that have come.
enum ArrivedPieces {
    /// Equal to the front of the stored value.
    Present(BlobReader),
    /// In memory.
    Held(Vec<u8>),
    /// In a chunk file.
    Streamed(BlobWriter),
}

impl<'d> Importer<'d> {
    pub(super) fn new(db: &'d Db, options: &'d StreamImport) -> Importer<'d> {
        let summary = StreamSummary::default();
        Importer { db, options, batch: db.batch(), batch_bytes: 0, summary }
    }

    /// Opens the partition `name`, and creates it if it does not exist. Gives it large values if it
    /// has no entry and `has_large_values` or the options ask for them.
    ///
    /// # Errors
    /// Those of [`Db::partition`].
    pub(super) fn partition(&self, name: &str, has_large_values: bool) -> Result<Partition> {
        let partition = self.db.partition(name)?;
        let wants_them = has_large_values || self.options.has_large_values;
        // The owner of a partition with entries has decided.
        if !wants_them || partition.space().is_some() || partition.first()?.is_some() {
            return Ok(partition);
        }
        let options = partition.options().large_values(LargeValueOptions::default());
        self.db.partition_with(name, options)
    }

    /// Begins an entry.
    ///
    /// # Errors
    /// Those of a get.
    pub(super) fn begin<'p>(
        &mut self,
        partition: &'p Partition,
        key: &[u8],
        len: Option<u64>,
    ) -> Result<Arriving<'p>> {
        let mut place = ArrivedPieces::Held(Vec::new());
        if self.options.is_resuming {
            if let Some(stored) = partition.open_blob(key)? {
                place = ArrivedPieces::Present(stored);
            }
            // The batch may set the key to another value.
            if matches!(place, ArrivedPieces::Present(_)) && !self.batch.is_empty() {
                self.commit()?;
                if let Some(stored) = partition.open_blob(key)? {
                    place = ArrivedPieces::Present(stored);
                }
            }
        }
        let value_bytes_max = self.db.options().value_bytes_max;
        Ok(Arriving { partition, key: key.to_vec(), len, came: 0, value_bytes_max, place })
    }

    /// Ends an entry: puts it, unless the partition has it.
    ///
    /// # Errors
    /// Those of a put.
    pub(super) fn end(&mut self, mut entry: Arriving<'_>) -> Result<()> {
        self.summary.count(&entry.key, entry.came);
        if let ArrivedPieces::Present(stored) = &entry.place {
            if stored.len() == entry.came {
                self.summary.skipped += 1;
                return Ok(());
            }
            entry.leave_present()?;
        }
        match entry.place {
            ArrivedPieces::Held(value) => {
                self.batch_bytes += entry.key.len() + value.len();
                self.batch.of(entry.partition).put(&entry.key, value);
                if self.batch_bytes >= HELD_BYTES {
                    self.commit()?;
                }
            }
            ArrivedPieces::Streamed(writer) => {
                // The order of the stream is kept: of two entries of a key the later wins.
                self.commit()?;
                writer.commit(Durability::Os)?;
            }
            ArrivedPieces::Present(_) => {}
        }
        Ok(())
    }

    /// Commits the entries that have ended.
    ///
    /// # Errors
    /// Those of [`Batch::commit`].
    pub(super) fn commit(&mut self) -> Result<()> {
        self.batch_bytes = 0;
        // Also if it is empty: a batch whose only operation exceeds a limit says so at the commit.
        let batch = std::mem::replace(&mut self.batch, self.db.batch());
        batch.commit(Durability::Os).map(drop)
    }

    pub(super) fn summary(&self) -> StreamSummary {
        self.summary
    }
}

impl Arriving<'_> {
    /// Takes the next piece of the value.
    ///
    /// # Errors
    /// A limit of the value; those of the chunk file and of the stored value.
    pub(super) fn push(&mut self, piece: &[u8]) -> Result<()> {
        if let ArrivedPieces::Present(stored) = &self.place {
            if is_at(stored, self.came, piece)? {
                self.came += piece.len() as u64;
                return Ok(());
            }
            self.leave_present()?;
        }
        self.came += piece.len() as u64;
        self.put_down(piece)
    }

    /// Takes the pieces that have come from the stored value, which turned out to be another value.
    fn leave_present(&mut self) -> Result<()> {
        let nothing = ArrivedPieces::Held(Vec::new());
        let ArrivedPieces::Present(stored) = std::mem::replace(&mut self.place, nothing) else {
            return Ok(());
        };
        let mut piece = vec![0; PIECE_BYTES.min(self.came) as usize];
        let mut at = 0;
        while at < self.came {
            let len = (self.came - at).min(PIECE_BYTES);
            stored.read_exact_at(at, &mut piece[..len as usize])?;
            self.put_down(&piece[..len as usize])?;
            at += len;
        }
        Ok(())
    }

    fn put_down(&mut self, piece: &[u8]) -> Result<()> {
        if let ArrivedPieces::Held(held) = &mut self.place {
            let len = held.len() + piece.len();
            if len <= HELD_BYTES || self.partition.space().is_none() {
                if len as u64 > self.value_bytes_max {
                    let name = self.partition.name();
                    let what = format!(
                        "length of the value of key \"{}\" in partition {name:?}, which has no large \
                         values,",
                        self.key.escape_ascii()
                    );
                    return Err(Error::limit(&what, len as u64, self.value_bytes_max));
                }
                held.extend_from_slice(piece);
                return Ok(());
            }
            let mut writer = self.partition.put_stream(&self.key, self.len)?;
            writer.write_all(held)?;
            self.place = ArrivedPieces::Streamed(writer);
        }
        if let ArrivedPieces::Streamed(writer) = &mut self.place {
            writer.write_all(piece)?;
        }
        Ok(())
    }
}

/// Returns whether `stored` has these bytes at `offset`.
fn is_at(stored: &BlobReader, offset: u64, piece: &[u8]) -> Result<bool> {
    if offset + piece.len() as u64 > stored.len() {
        return Ok(false);
    }
    let mut found = vec![0; piece.len()];
    stored.read_exact_at(offset, &mut found)?;
    Ok(found == piece)
}
