//! [`import`]: reads a stream of either format.

use std::io::{self, Read};

use lsm_core::error::{Error, ErrorKind, Result};

use crate::arriving::Importer;
use crate::entries::EntryReader;
use crate::format::MAGIC;
use crate::options::{StreamImport, StreamSummary};
use crate::text;
use lsm_core::Db;
use lsm_core::Partition;

/// Reads a stream in either format and puts the entries. `open_partition` opens or creates a partition by its
/// name, and gives it large values if the flag is set and it has no entry.
///
/// # Errors
/// A damaged stream; those of puts, of `from` and of `open_partition`. The entries before the error are
/// imported.
pub fn import(
    db: &Db,
    from: &mut dyn Read,
    options: &StreamImport,
    open_partition: &dyn Fn(&str, bool) -> Result<Partition>,
) -> Result<StreamSummary> {
    db.check_usable()?;
    let mut importer = Importer::new(db, options, open_partition);
    let mut magic = Vec::new();
    let read = (&mut *from).take(MAGIC.len() as u64).read_to_end(&mut magic);
    read.map_err(|e| Error::io("read", &options.source, e))?;
    let imported = if magic == MAGIC {
        EntryReader::after_magic(from, options.source.clone())
            .and_then(|reader| import_checked(&mut importer, reader, options))
    } else if magic == text::MAGIC {
        text::import(&mut importer, &mut io::Cursor::new(magic).chain(from), options)
    } else {
        let what = "neither a stream of entries nor the text of Berkeley DB";
        Err(Error::corruption(&options.source, 0, what))
    };
    // The entries before an error are whole.
    let committed = importer.commit();
    // The error of the stream first: a failed commit after it is most likely its consequence.
    imported?;
    committed?;
    // The caller may delete its source when this returns. The batches were committed without a
    // sync.
    db.flush()?;
    Ok(importer.summary())
}

fn import_checked(
    importer: &mut Importer<'_>,
    mut reader: EntryReader<'_>,
    options: &StreamImport,
) -> Result<()> {
    // All partitions before the first entry. A refused name or a missing hook then fails before
    // anything is written; and partitions without entries are created, too.
    let header = reader.partitions().to_vec();
    if options.partition.is_some() && header.len() != 1 {
        let count = header.len();
        let message = format!("one partition was named, and the stream has {count}");
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    let mut partitions: Vec<Partition> = Vec::with_capacity(header.len());
    for found in &header {
        let name = options.partition.as_ref().unwrap_or(&found.name);
        partitions.push(importer.partition(name, found.has_large_values)?);
    }
    while let Some(entry) = reader.next_entry()? {
        let partition = &partitions[entry.partition];
        let mut arriving = importer.begin(partition, &entry.key, Some(entry.value_len))?;
        while let Some(piece) = reader.next_piece().map_err(|e| at(e, partition, &entry.key))? {
            arriving.push(piece)?;
        }
        importer.end(arriving)?;
    }
    Ok(())
}

/// Adds to an error the entry whose value could not be imported.
fn at(error: Error, partition: &Partition, key: &[u8]) -> Error {
    error.at_key(key).in_partition(partition.name())
}
