//! The command's access to the engine: opening a database, its partitions and its entries.
//!
//! All subcommands open databases through this file, so that they agree on the meaning of "not
//! there".
//!
//! Invariants:
//! 1. [`Existing::open`] and those to read never create a database, [`Existing::partition`] never
//!    creates a partition.
//! 2. Damage is never a reason to open read-only: it is reported as recovery reports it.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use remote::Primary;
use siltstone::{
    Builder, Db, Durability, Error, ErrorKind, Options, Partition, Range, Readable, Result,
};

use crate::bench::folder::{parse_bytes, parse_rate};
use crate::bucket::{BucketPlace, ReadLength, needs_folder, noted_url, url_of};
use crate::files;
use crate::folder::{holds_database, is_shipped, refuse_other_files};
use crate::output::{Failure, note};
use crate::progress;

/// Name of the partition that always exists.
const DEFAULT_PARTITION: &str = "default";

/// A write buffer for commands that only read: a quarter of the memory that the log may need.
const READ_ONLY_BUFFER_BYTES: u64 = 1 << 30;

/// The advice of a verb that takes `--remote` and no URL.
pub(crate) const INSTEAD_OF_URL: &str = "--remote ships a folder to the bucket of a URL";

/// The database, the partition and the output format: the same for every subcommand that writes to one
/// partition.
#[derive(Debug, clap::Args)]
pub(crate) struct Target {
    /// Folder of the database
    pub(crate) database: PathBuf,
    /// Partition to work on
    #[arg(long, default_value = DEFAULT_PARTITION)]
    pub(crate) partition: String,
    /// Print JSON, one object a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// As [`Target`], for the subcommands that read.
#[derive(Debug, clap::Args)]
pub(crate) struct ReadTarget {
    /// Folder of the database, or URL of its bucket
    pub(crate) database: PathBuf,
    /// Partition to read
    #[arg(long, default_value = DEFAULT_PARTITION)]
    pub(crate) partition: String,
    /// Print JSON, one object a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// The options of every subcommand that writes.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Writing {
    /// Hold at most this many bytes of writes, such as 16MiB, in memory before they go to tables. The default is a
    /// sixteenth of the memory, at most 64MiB. Less of it is for a small disk, where the log takes up to four times as much
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    write_buffer: Option<u64>,
    /// Limit flushes and compactions together to so many bytes a second, such as 20MiB, for a disk that other programs need
    #[arg(long, value_name = "BYTES", value_parser = parse_rate)]
    background_rate: Option<u64>,
    /// Ship the folder to the bucket of this URL, and return when the bucket has all writes
    #[arg(long, value_name = "URL")]
    remote: Option<String>,
}

/// The options of every subcommand that makes the database if there is none.
#[derive(Debug, clap::Args)]
pub(crate) struct Making {
    #[command(flatten)]
    writing: Writing,
    /// Make the database also in a folder that has other files
    #[arg(long)]
    create: bool,
}

impl Making {
    /// Returns whether there can be a database at `path`: a folder that is shipped to a bucket is made of the bucket.
    /// Refuses a URL.
    pub(crate) fn may_exist(&self, path: &Path, verb: &str) -> Result<bool, Failure> {
        needs_folder(path, verb, INSTEAD_OF_URL)?;
        Ok(self.writing.remote.is_some() || (path.is_dir() && holds_database(path)?))
    }

    /// Opens the database at `path` for the subcommand `verb`; creates it if there is none.
    pub(crate) fn open(&self, path: &Path, verb: &str) -> Result<Written, Failure> {
        if !self.create {
            refuse_other_files(path)?;
        }
        self.writing.open(path, verb)
    }
}

impl Writing {
    /// Opens the database at `path` for the subcommand `verb`; creates it if there is none.
    fn open(&self, path: &Path, verb: &str) -> Result<Written, Failure> {
        needs_folder(path, verb, INSTEAD_OF_URL)?;
        let shipping = match &self.remote {
            Some(url) => {
                let shipping = claim(url, path)?;
                // What the command reports is stored before. The rest is in the folder as far as it came.
                progress::end_at_interrupt(format!(
                    "siltstone: interrupted; the bucket may lack some of these writes\n  \
                     {} has them, and the next command with --remote ships them",
                    path.display()
                ))?;
                Some(shipping)
            }
            None if is_shipped(path)? => {
                let noted = noted_url(path)?;
                let url = noted.as_deref().unwrap_or("URL");
                let path = path.display();
                return Err(Failure::Usage(format!(
                    "{path} is shipped to a bucket, which would not get this write\n  \
                     write with --remote {url}\n  \
                     or give the bucket up: delete the files remote-* in {path}"
                )));
            }
            None => {
                progress::end_at_interrupt(format!(
                    "siltstone: interrupted; {} keeps what it had, and what this command had committed\n  \
                     the same command again writes the rest",
                    path.display()
                ))?;
                None
            }
        };
        let builder = match &shipping {
            Some(primary) => primary.builder(),
            None => files::builder(path),
        };
        Ok(Written { db: self.start(builder)?, shipping })
    }

    /// Opens the database with the options of the arguments.
    fn start(&self, builder: Builder) -> Result<Db> {
        let builder = match self.write_buffer {
            Some(bytes) => builder.write_buffer_bytes(bytes),
            None => builder,
        };
        let db = builder.open()?;
        if let Some(rate) = self.background_rate {
            db.set_background_bytes_per_second(rate)?;
        }
        Ok(db)
    }
}

/// Claims the database in the bucket of `url` for the folder `path`.
fn claim(url: &str, path: &Path) -> Result<Primary, Failure> {
    let place = BucketPlace::new(url)?;
    // Deletes nothing: the command does not know the retention of the program that is the primary otherwise.
    let remote = place.remote.clone().retention(Duration::MAX);
    let claimed = place.during("claiming", || remote.primary(path));
    match claimed {
        Err(error) if error.kind() == ErrorKind::Fenced => {
            note("siltstone: `siltstone remote take-over` continues from the bucket");
            Err(error.into())
        }
        claimed => Ok(claimed?),
    }
}

/// A database that is open for writing.
pub(crate) struct Written {
    pub(crate) db: Db,
    /// The database closes before it.
    shipping: Option<Primary>,
}

impl Written {
    /// Closes the database. If its folder is shipped, returns when the bucket has all of it.
    pub(crate) fn close(self) -> Result<()> {
        self.db.close()?;
        match &self.shipping {
            Some(primary) => progress::during("shipping", String::new, || primary.ship()),
            None => Ok(()),
        }
    }
}

/// A database that existed before.
pub(crate) struct Existing {
    pub(crate) db: Db,
    path: PathBuf,
    /// The database closes before it.
    shipping: Option<Primary>,
}

impl Existing {
    /// Opens the database at `path`; refuses if there is none.
    pub(crate) fn open(path: &Path, writing: &Writing, verb: &str) -> Result<Existing, Failure> {
        if url_of(path).is_none() {
            Existing::check(path)?;
        }
        let Written { db, shipping } = writing.open(path, verb)?;
        Ok(Existing { db, path: path.to_owned(), shipping })
    }

    /// Opens the database at `path`, a folder or a URL, for a command that reads. If another process writes it, the
    /// command sees the state that it has committed by now; a note on standard error says so, but for a URL.
    pub(crate) fn open_to_read(path: &Path, length: ReadLength) -> Result<Existing, Failure> {
        if let Some(url) = url_of(path) {
            let place = BucketPlace::new(url)?;
            let reader = place.reader(length)?;
            place.note_acknowledgement(&reader)?;
            let db = reader.builder().options(read_only_options()).open()?;
            return Ok(Existing::of(db, path));
        }
        match Existing::open_alone_to_read(path) {
            Err(Failure::Engine(error)) if error.kind() == ErrorKind::Locked => {
                note_writer();
                let options = read_only_options();
                let db = files::builder(path).options(options).beside_writer(true).open()?;
                Ok(Existing::of(db, path))
            }
            opened => opened,
        }
    }

    /// As [`Existing::open_alone_to_read`], and refuses a URL.
    pub(crate) fn open_to_compare(path: &Path, verb: &str) -> Result<Existing, Failure> {
        needs_folder(path, verb, INSTEAD_OF_URL)?;
        Existing::open_alone_to_read(path)
    }

    /// Opens the database at `path` for a command that reads, unless another process writes. If
    /// nothing can be written, it is opened read-only, with a note on standard error.
    pub(crate) fn open_alone_to_read(path: &Path) -> Result<Existing, Failure> {
        Existing::check(path)?;
        if is_shipped(path)? {
            // A recovery would remove files that the bucket has, and the folder would have to be made again.
            let db = files::builder(path).options(read_only_options()).read_only(true).open()?;
            return Ok(Existing::of(db, path));
        }
        let db = match files::builder(path).open() {
            Err(error) if is_unwritable(&error) => {
                note(format_args!("siltstone: opened read-only, because {error}"));
                files::builder(path).options(read_only_options()).read_only(true).open()?
            }
            opened => opened?,
        };
        Ok(Existing::of(db, path))
    }

    fn of(db: Db, path: &Path) -> Existing {
        Existing { db, path: path.to_owned(), shipping: None }
    }

    /// Closes the database, see [`Written::close`].
    pub(crate) fn close(self) -> Result<()> {
        Written { db: self.db, shipping: self.shipping }.close()
    }

    /// Returns an error if there is no database: opening would create one.
    pub(crate) fn check(path: &Path) -> Result<(), Failure> {
        // By the names of files, and not by an open: that would make a database in any folder,
        // after a typing error in a path.
        if path.is_dir() && holds_database(path)? {
            return Ok(());
        }
        Err(Failure::NotFound(format!("no database in {}", path.display())))
    }

    /// The partition `name`; returns an error if there is none.
    pub(crate) fn partition(&self, name: &str) -> Result<Partition, Failure> {
        match self.db.open_partition(name) {
            Err(error) if error.kind() == ErrorKind::PartitionNotFound => {
                let place = self.path.display();
                Err(Failure::NotFound(format!("no partition {name:?} in {place}")))
            }
            opened => Ok(opened?),
        }
    }
}

/// The options of a database that is not written: all unflushed data is replayed into memory, and the buffer of its
/// writer may be larger than the default here.
fn read_only_options() -> Options {
    Options::new().write_buffer_bytes(READ_ONLY_BUFFER_BYTES)
}

/// Notes on standard error that another process has the database open for writing.
pub(crate) fn note_writer() {
    note(format_args!("siltstone: another process writes; reading what it has committed"));
}

/// Returns whether a database did not open because nothing can be written: no space, no permission,
/// or a read-only medium.
fn is_unwritable(error: &Error) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    let source = error.io_source().map(std::io::Error::kind);
    match error.kind() {
        // An open writes what it replayed to tables. Without space for them the data can still be
        // read.
        ErrorKind::NoSpace => true,
        ErrorKind::Io => matches!(source, Some(PermissionDenied | ReadOnlyFilesystem)),
        _ => false,
    }
}

/// Names of all partitions, in order.
pub(crate) fn partition_names(db: &Db) -> Vec<String> {
    db.partition_names()
}

/// The entries from `from` on and below `to`.
pub(crate) fn entries(
    partition: &impl Readable<Range = Range>,
    from: Option<Vec<u8>>,
    to: Option<Vec<u8>>,
) -> Range {
    match (from, to) {
        (None, None) => partition.range(..),
        (Some(from), None) => partition.range(from..),
        (None, Some(to)) => partition.range(..to),
        (Some(from), Some(to)) => partition.range(from..to),
    }
}

/// The number of entries; reads every key.
pub(crate) fn count(partition: &impl Readable<Range = Range>) -> Result<u64> {
    let mut count = 0;
    // Keys alone: a count would otherwise read each large value.
    for key in partition.iter().keys() {
        key?;
        count += 1;
    }
    Ok(count)
}

/// Returns whether a path stands for standard input or standard output.
pub(crate) fn is_standard_stream(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Opens a file outside of every database; `-` is standard input.
#[expect(clippy::disallowed_methods, reason = "the file is outside every database")]
pub(crate) fn open_source(path: &Path) -> Result<Box<dyn Read>, Failure> {
    if is_standard_stream(path) {
        return Ok(Box::new(io::stdin()));
    }
    if path.is_dir() {
        return Err(Failure::Usage(format!("{} is a folder, not a file", path.display())));
    }
    // Not buffered here. All callers read in large pieces, or buffer themselves.
    let file = std::fs::File::open(path).map_err(|e| Failure::io("open", path, &e))?;
    Ok(Box::new(file))
}

/// A value that is streamed passes through memory in pieces of so many bytes.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// Fills `piece` from `source`, but for its end; returns how many bytes came.
pub(crate) fn read_piece(source: &mut dyn Read, piece: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    // A pipe gives a few KiB at a time. Full pieces need fewer calls of the writer.
    while len < piece.len() {
        match source.read(&mut piece[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(len)
}

/// The failure of a reader or a writer of a stored value.
pub(crate) fn stored_failure(e: io::Error) -> Failure {
    Failure::Engine(Error::from(e))
}

/// Streams `source`, which is the file at `path` and `len` bytes long if that is known, into the
/// value of `key`. The partition has large values.
pub(crate) fn put_stream(
    partition: &Partition,
    key: &[u8],
    len: Option<u64>,
    source: &mut dyn Read,
    path: &Path,
    durability: Durability,
) -> Result<(), Failure> {
    let mut writer = partition.put_stream(key, len)?;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let len = read_piece(source, &mut piece).map_err(|e| Failure::io("read", path, &e))?;
        if len == 0 {
            break;
        }
        writer.write_all(&piece[..len]).map_err(stored_failure)?;
    }
    // Only here does the value get its key. A source that fails earlier leaves nothing but garbage,
    // which is reclaimed.
    writer.commit(durability)?;
    Ok(())
}

/// Writes several entries, all or nothing.
pub(crate) fn put_all<K: AsRef<[u8]>, V: AsRef<[u8]>>(
    db: &Db,
    partition: &Partition,
    entries: impl IntoIterator<Item = (K, V)>,
    durability: Durability,
) -> Result<()> {
    let mut batch = db.batch();
    for (key, value) in entries {
        batch.of(partition).put(key, value);
    }
    batch.commit(durability)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied() -> std::io::Error {
        std::io::ErrorKind::PermissionDenied.into()
    }

    #[test]
    fn damage_is_no_reason_to_read_without_writing() {
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        assert!(is_unwritable(&Error::io("create", Path::new("a"), full)));
        assert!(is_unwritable(&Error::io("create", Path::new("a"), denied())));
        let damaged = Error::corruption("a", 1, "bad");
        assert!(!is_unwritable(&damaged));
        let around = Error::io("read", Path::new("a"), denied());
        assert!(!is_unwritable(&Error::because(ErrorKind::Corruption, "bad", around)));
        let lost = std::io::Error::from(std::io::ErrorKind::NotFound);
        assert!(!is_unwritable(&Error::io("open", Path::new("a"), lost)));
    }

    #[test]
    fn the_background_rate_is_that_of_the_arguments() {
        let fs = std::sync::Arc::new(siltstone::fs::MemFs::new());
        for (background_rate, expected) in [(None, 0), (Some(3 << 20), 3 << 20)] {
            let writing = Writing { background_rate, ..Writing::default() };
            let db = writing.start(Db::builder("/db").fs(fs.clone())).unwrap();
            assert_eq!(db.stats().background_bytes_per_second, expected);
            db.close().unwrap();
        }
    }
}
