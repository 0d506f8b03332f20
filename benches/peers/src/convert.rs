//! `convert`: entries of a RocksDB or LevelDB database as siltstone's stream of entries, and the reverse.
//!
//! ```text
//! siltstone-peers convert export rocksdb FOLDER FILE      siltstone import DB FILE
//! siltstone export DB FILE --format stream                siltstone-peers convert import leveldb FOLDER FILE
//! ```
//!
//! `docs/portability.md` describes the stream. Both directions go on where they stopped: an export from
//! the key that arrived last (`--from`), an import of the same or of a new stream with `--resume`, which
//! writes no entry that is there with the same value.
//!
//! Invariants:
//! 1. Memory is bounded by one value and a batch of [`BATCH_BYTES`], whatever the database has: the other
//!    engines take and return values as a whole.
//! 2. An entry whose bytes the stream does not attest reaches no database.

mod leveldb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write, stdin, stdout};
use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use siltstone::stream::{EntryReader, EntryWriter, StreamPartition};

use crate::engines::{Fault, bytes_of_hex};

/// Bytes of keys and values that are written to a database at once, or one entry.
const BATCH_BYTES: usize = 1 << 20;
/// Bytes that are read from a stream, or written to it, at once.
const BUFFER_BYTES: usize = 1 << 20;

/// The ends of a conversion.
#[derive(Debug, clap::Args)]
pub struct Ends {
    /// Engine of the database
    engine: Engine,
    /// Folder of the database
    folder: PathBuf,
    /// File of the stream, which an export makes; - is standard output or input
    stream: PathBuf,
    /// Column family of RocksDB
    #[arg(long, default_value = "default")]
    family: String,
    /// Partition in the stream [default: for an export the name of the column family, for an import the only one]
    #[arg(long)]
    partition: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum Args {
    /// Write the entries of a database as a stream, in the order of their keys
    Export {
        #[command(flatten)]
        ends: Ends,
        /// Begin at this key: continues an export that was interrupted
        #[arg(long)]
        from: Option<String>,
        /// As --from, in hex digits
        #[arg(long, conflicts_with = "from")]
        from_hex: Option<String>,
        /// Have an import keep values of 64 KiB and more in chunk files
        #[arg(long)]
        large_values: bool,
    },
    /// Put the entries of a stream into a database, which is made if it is not there
    Import {
        #[command(flatten)]
        ends: Ends,
        /// Skip entries that are there with the same value: continues an import that was interrupted
        #[arg(long)]
        resume: bool,
    },
}

/// An engine whose databases are converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// RocksDB.
    Rocksdb,
    /// LevelDB.
    Leveldb,
}

/// Called with each entry; an error ends the walk.
type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> Result<(), Fault> + 'v;

/// A database of another engine.
trait Foreign {
    /// Passes the entries from `from` on to `visit`, in the order of their keys, as of one time.
    fn each(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<(), Fault>;

    /// Returns the value of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Fault>;

    /// Sets keys to values; the last value of a key counts.
    fn put_all(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Result<(), Fault>;

    /// Makes all puts durable.
    fn sync(&self) -> Result<(), Fault>;
}

/// The number of entries that a conversion wrote and skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    written: u64,
    skipped: u64,
}

/// Runs `convert`.
pub fn run(args: &Args) -> Result<(), Fault> {
    let count = match args {
        Args::Export { ends, from, from_hex, large_values } => {
            let from = match from_hex {
                Some(digits) => bytes_of_hex(digits)
                    .ok_or_else(|| format!("no hex digits in pairs: {digits}"))?,
                None => from.clone().unwrap_or_default().into_bytes(),
            };
            let name = ends.partition.clone().unwrap_or_else(|| ends.family.clone());
            let partition = StreamPartition { name, has_large_values: *large_values };
            let database = open(ends, Purpose::Export)?;
            if is_standard_stream(&ends.stream) {
                let mut out = BufWriter::with_capacity(BUFFER_BYTES, stdout().lock());
                export(&*database, partition, &from, &mut out)?
            } else {
                let file = File::create_new(&ends.stream)?;
                let mut out = BufWriter::with_capacity(BUFFER_BYTES, &file);
                let count = export(&*database, partition, &from, &mut out)?;
                drop(out);
                file.sync_all()?;
                count
            }
        }
        Args::Import { ends, resume } => {
            let source: Box<dyn Read> = match is_standard_stream(&ends.stream) {
                true => Box::new(stdin().lock()),
                false => Box::new(File::open(&ends.stream)?),
            };
            let mut source = BufReader::with_capacity(BUFFER_BYTES, source);
            let mut reader = EntryReader::new(&mut source, &ends.stream)?;
            let wanted = wanted_partition(reader.partitions(), ends.partition.as_deref())?;
            let database = open(ends, Purpose::Import)?;
            import(&*database, &mut reader, wanted, *resume)?
        }
    };
    eprintln!("{} entries written, {} skipped", count.written, count.skipped);
    Ok(())
}

fn is_standard_stream(path: &Path) -> bool {
    path == Path::new("-")
}

/// The reason why a database is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// It is read, and must be there.
    Export,
    /// It is written.
    Import,
}

fn open(ends: &Ends, purpose: Purpose) -> Result<Box<dyn Foreign>, Fault> {
    let Ends { engine, folder, family, .. } = ends;
    // Both engines have a file of this name. LevelDB would make a new database in any folder.
    if purpose == Purpose::Export && !folder.join("CURRENT").is_file() {
        return Err(format!("no database in {}", folder.display()).into());
    }
    match engine {
        #[cfg(feature = "rocksdb")]
        Engine::Rocksdb => Ok(Box::new(rocksdb::Database::open(folder, family, purpose)?)),
        #[cfg(not(feature = "rocksdb"))]
        Engine::Rocksdb => Err("compiled without RocksDB".into()),
        Engine::Leveldb if family != "default" => Err("LevelDB has no column families".into()),
        Engine::Leveldb => Ok(Box::new(leveldb::Database::open(folder)?)),
    }
}

/// The number of the partition to be imported.
fn wanted_partition(found: &[StreamPartition], name: Option<&str>) -> Result<usize, Fault> {
    let at = match name {
        Some(name) => found.iter().position(|partition| partition.name == name),
        None => (found.len() == 1).then_some(0),
    };
    let names = found.iter().map(|partition| partition.name.as_str());
    at.ok_or_else(|| {
        let names = names.collect::<Vec<_>>().join(", ");
        format!("name one partition of the stream with --partition: {names}").into()
    })
}

fn export(
    database: &dyn Foreign,
    partition: StreamPartition,
    from: &[u8],
    out: &mut dyn Write,
) -> Result<Count, Fault> {
    let mut writer = EntryWriter::new(out, &[partition])?;
    database.each(from, &mut |key, value| Ok(writer.put(0, key, value)?))?;
    let written = writer.end()?.entries;
    Ok(Count { written, skipped: 0 })
}

/// Entries on their way into a database.
#[derive(Default)]
struct Batch {
    entries: Vec<(Vec<u8>, Vec<u8>)>,
    bytes: usize,
    /// The keys of the entries, if they are compared with the database.
    keys: HashSet<Vec<u8>>,
}

impl Batch {
    fn put_into(&mut self, database: &dyn Foreign) -> Result<(), Fault> {
        database.put_all(&self.entries)?;
        self.entries.clear();
        self.keys.clear();
        self.bytes = 0;
        Ok(())
    }
}

fn import(
    database: &dyn Foreign,
    reader: &mut EntryReader<'_>,
    partition: usize,
    is_resuming: bool,
) -> Result<Count, Fault> {
    let mut batch = Batch::default();
    let imported = import_entries(database, reader, partition, is_resuming, &mut batch);
    // Also after an error of the stream: the checksums cover the entries before it.
    batch.put_into(database)?;
    database.sync()?;
    imported
}

fn import_entries(
    database: &dyn Foreign,
    reader: &mut EntryReader<'_>,
    partition: usize,
    is_resuming: bool,
    batch: &mut Batch,
) -> Result<Count, Fault> {
    let mut count = Count::default();
    while let Some(entry) = reader.next_entry()? {
        if entry.partition != partition {
            continue;
        }
        // It grows with the pieces: a length alone is no reason to reserve memory.
        let mut value = Vec::new();
        while let Some(piece) = reader.next_piece()? {
            value.extend_from_slice(piece);
        }
        if is_resuming {
            // The database does not have the entry with which this one is to be compared: the last
            // value of a key counts, as without `--resume`.
            if batch.keys.contains(&entry.key) {
                batch.put_into(database)?;
            }
            if database.get(&entry.key)?.as_deref() == Some(&value[..]) {
                count.skipped += 1;
                continue;
            }
            // The value is in memory twice.
            batch.bytes += entry.key.len();
            batch.keys.insert(entry.key.clone());
        }
        count.written += 1;
        batch.bytes += entry.key.len() + value.len();
        batch.entries.push((entry.key, value));
        if batch.bytes >= BATCH_BYTES {
            batch.put_into(database)?;
        }
    }
    Ok(count)
}
