//! [`Importer`] and [`Arriving`]: puts entries whose values come in pieces.

use std::io::{Read, Seek, SeekFrom, Write};

use largeval::BlobReader;
use lsm_core::error::{Error, Result};
use lsm_core::options::Durability;

use crate::format::PIECE_BYTES;
use crate::options::{StreamImport, StreamSummary};
use largeval::BlobWriter;
use lsm_core::Batch;
use lsm_core::Db;
use lsm_core::Partition;

/// A batch has at most so many bytes, or one entry; a larger value is streamed if its partition has
/// large values.
const HELD_BYTES: usize = 1 << 20;

/// Opens or creates a partition by its name, with large values if the flag is set and it has no entry.
pub(crate) type OpenPartition<'d> = dyn Fn(&str, bool) -> Result<Partition> + 'd;

/// Puts the entries of a stream in their order.
pub(crate) struct Importer<'d> {
    db: &'d Db,
    options: &'d StreamImport,
    open_partition: &'d OpenPartition<'d>,
    batch: Batch,
    batch_bytes: usize,
    /// [`HELD_BYTES`], or less where the database takes no batch of that size.
    batch_bytes_max: usize,
    /// Name of the partition of the batch.
    batch_of: String,
    summary: StreamSummary,
}

/// An entry whose value is arriving in pieces.
pub(crate) struct Arriving<'p> {
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
    pub(crate) fn new(
        db: &'d Db,
        options: &'d StreamImport,
        open_partition: &'d OpenPartition<'d>,
    ) -> Importer<'d> {
        let summary = StreamSummary::default();
        let batch = db.batch();
        let most = usize::try_from(db.options().batch_bytes_max).unwrap_or(usize::MAX);
        let batch_bytes_max = HELD_BYTES.min(most);
        let batch_of = String::new();
        Importer {
            db,
            options,
            open_partition,
            batch,
            batch_bytes: 0,
            batch_bytes_max,
            batch_of,
            summary,
        }
    }

    /// Opens the partition `name`, and creates it if it does not exist. Gives it large values if it
    /// has no entry and `has_large_values` or the options ask for them.
    ///
    /// # Errors
    /// Those of the call that opens it.
    pub(crate) fn partition(&self, name: &str, has_large_values: bool) -> Result<Partition> {
        (self.open_partition)(name, has_large_values || self.options.has_large_values)
    }

    /// Begins an entry.
    ///
    /// # Errors
    /// Those of a get; a key that the partition does not take.
    pub(crate) fn begin<'p>(
        &mut self,
        partition: &'p Partition,
        key: &[u8],
        len: Option<u64>,
    ) -> Result<Arriving<'p>> {
        // Here and not by the batch, which would refuse the entries before this one, too.
        partition.stored_key(key)?;
        // Before a byte of the value arrives: a value that is stored already is compared piece by
        // piece, and never held in memory.
        let mut stored = self.stored(partition, key, len)?;
        // The batch may set the key to another value.
        if stored.is_some() && !self.batch.is_empty() {
            self.commit()?;
            stored = self.stored(partition, key, len)?;
        }
        let place = stored.map_or(ArrivedPieces::Held(Vec::new()), ArrivedPieces::Present);
        // Known here, because a value of unknown length exceeds its limit only while it arrives.
        let value_bytes_max = self.db.options().value_bytes_max;
        Ok(Arriving { partition, key: key.to_vec(), len, came: 0, value_bytes_max, place })
    }

    /// Returns the stored value that the arriving one may be equal to; the latter has `len` bytes
    /// if that is known.
    fn stored(
        &self,
        partition: &Partition,
        key: &[u8],
        len: Option<u64>,
    ) -> Result<Option<BlobReader>> {
        if !self.options.is_resuming {
            return Ok(None);
        }
        let stored = largeval::open_blob(partition.locate(None, key)?, key)?;
        // A value of another length differs, and need not be read.
        Ok(stored.filter(|stored| len.is_none_or(|len| len == stored.len())))
    }

    /// Ends an entry: puts it, unless the partition has it.
    ///
    /// # Errors
    /// Those of a put.
    pub(crate) fn end(&mut self, mut entry: Arriving<'_>) -> Result<()> {
        self.summary.count(&entry.key, entry.came);
        if let ArrivedPieces::Present(stored) = &entry.place {
            if stored.len() == entry.came {
                self.summary.skipped += 1;
                return Ok(());
            }
            // It has ended before the stored value has: the arrived bytes are equal, but the value
            // is shorter.
            entry.leave_present()?;
        }
        match entry.place {
            ArrivedPieces::Held(value) => {
                let len = entry.key.len() + value.len();
                let name = entry.partition.name();
                // A batch may not mix partitions with a log and without.
                if self.batch_bytes + len > self.batch_bytes_max || self.batch_of != name {
                    self.commit()?;
                    name.clone_into(&mut self.batch_of);
                }
                self.batch_bytes += len;
                self.batch.add_put(entry.partition, &entry.key, &value);
            }
            ArrivedPieces::Streamed(writer) => {
                // The order of the stream is kept: of two entries of a key the later wins.
                self.commit()?;
                // Without a sync. The import ends with a flush, which makes all of it durable at
                // once.
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
    pub(crate) fn commit(&mut self) -> Result<()> {
        self.batch_bytes = 0;
        // A new batch in any case. After an error, the entries of this one must not be committed
        // with later ones.
        let batch = std::mem::replace(&mut self.batch, self.db.batch());
        batch.commit(Durability::Os).map(drop)
    }

    pub(crate) fn summary(&self) -> StreamSummary {
        self.summary
    }
}

impl Arriving<'_> {
    /// Takes the next piece of the value.
    ///
    /// # Errors
    /// A limit of the value; those of the chunk file and of the stored value.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Result<()> {
        if let ArrivedPieces::Present(stored) = &mut self.place {
            if goes_on_with(stored, piece)? {
                self.came += piece.len() as u64;
                return Ok(());
            }
            self.leave_present()?;
        }
        self.came += piece.len() as u64;
        self.put_down(piece)
    }

    /// Takes the arrived pieces from the stored value, which turned out to be different.
    fn leave_present(&mut self) -> Result<()> {
        // In memory at first, as if nothing had been compared: the pieces pass the same choice as
        // those of a new value.
        let nothing = ArrivedPieces::Held(Vec::new());
        let ArrivedPieces::Present(stored) = std::mem::replace(&mut self.place, nothing) else {
            return Ok(());
        };
        each_piece(&stored, self.came, |piece| self.put_down(piece))
    }

    fn put_down(&mut self, piece: &[u8]) -> Result<()> {
        if let ArrivedPieces::Held(held) = &mut self.place {
            let len = (held.len() + piece.len()) as u64;
            let is_streamable = largeval::store_of(self.partition).is_some();
            if !is_streamable || len <= self.value_bytes_max.min(HELD_BYTES as u64) {
                if len > self.value_bytes_max {
                    let name = self.partition.name();
                    let what = format!(
                        "length of the value of key \"{}\" in partition {name:?}, which has no large \
                         values,",
                        self.key.escape_ascii()
                    );
                    return Err(Error::limit(&what, len, self.value_bytes_max));
                }
                held.extend_from_slice(piece);
                return Ok(());
            }
            // Begun late: most values are short, and share a batch with others.
            let mut writer = largeval::put_stream(self.partition, &self.key, self.len)?;
            writer.write_all(held)?;
            self.place = ArrivedPieces::Streamed(writer);
        }
        if let ArrivedPieces::Streamed(writer) = &mut self.place {
            writer.write_all(piece)?;
        }
        Ok(())
    }
}

/// Returns whether the next bytes of `stored` equal `piece`.
fn goes_on_with(stored: &mut BlobReader, piece: &[u8]) -> Result<bool> {
    // Checked first: a read past its end would be an error, but the value only differs.
    if stored.stream_position()? + piece.len() as u64 > stored.len() {
        return Ok(false);
    }
    let mut found = vec![0; piece.len()];
    stored.read_exact(&mut found)?;
    Ok(found == piece)
}

/// Gives the first `len` bytes of a value to `each`, in pieces of [`PIECE_BYTES`]; the last may be
/// shorter. Reads in order, because a reader keeps what it has verified for the next piece.
///
/// # Errors
/// Those of the read and of `each`.
pub(crate) fn each_piece(
    value: &BlobReader,
    len: u64,
    mut each: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    // A clone has a position of its own, so that the caller's stays.
    let mut value = value.clone();
    value.seek(SeekFrom::Start(0))?;
    let mut piece = vec![0; PIECE_BYTES.min(len) as usize];
    let mut left = len;
    while left > 0 {
        let piece = &mut piece[..left.min(PIECE_BYTES) as usize];
        value.read_exact(piece)?;
        each(piece)?;
        left -= piece.len() as u64;
    }
    Ok(())
}
