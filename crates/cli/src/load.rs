//! `load`: puts a tree of files or the lines of a file into a partition, or compares them.
//!
//! `--format files`: the key is the path below the folder with `/` between its parts, the value
//! is the content, of any size; see `load/files.rs`. `--format lines`: each line is key TAB value. `tsv`, `csv` and `jsonl` are read by `load/rows.rs`. Of two rows with one key the
//! later wins.
//!
//! Invariants:
//! 1. Entries beyond a limit of the engine are skipped and listed, never cut.
//! 2. Loading ends with a flush, or as one bulk load: what was reported as loaded survives a power
//!    cut.
//! 3. `--check` writes nothing and makes nothing.

mod files;
mod rows;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::json;
use siltstone::limits::USER_KEY_BYTES_MAX;
use siltstone::{Db, Durability, Error, ErrorKind, LargeValueOptions, Options, Partition};

use self::files::Content;
use crate::bytes::Bytes;
use crate::engine::{self, Existing, Making, Target};
use crate::output::{Failure, Output, note};
use crate::progress;

/// A batch is written when it exceeds so many bytes; an entry of that size is written by itself.
const BATCH_BYTES: usize = 1 << 20;
/// So many skipped or differing entries are named; the rest is counted.
const NAMED_MAX: u64 = 20;

/// The way in which the source is cut into entries.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// Each file below a folder is an entry
    Files,
    /// Each line is an entry: key TAB value; the value may contain TABs
    Lines,
    /// Each line is a row of fields that are separated by TABs
    Tsv,
    /// Each row is an entry: RFC 4180, with quotes
    Csv,
    /// Each line is a JSON object: "key" and "value", or either as "..._base64" or "..._hex"
    Jsonl,
}

/// Arguments of `load`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    making: Making,
    /// Folder or file to load; - is standard input
    source: PathBuf,
    /// Format of the source
    #[arg(long, value_enum)]
    format: Format,
    #[command(flatten)]
    columns: rows::Columns,
    /// Keep values of 64 KiB and more in chunk files; --format files does so in a partition
    /// without entries
    #[arg(long, conflicts_with = "check")]
    large_values: bool,
    /// Compare the source with the partition, and change nothing
    #[arg(long, conflicts_with_all = ["remote", "create"])]
    check: bool,
    /// The source is sorted by key, each key once: write tables at once, all of it or nothing
    #[arg(long, conflicts_with = "check")]
    sorted: bool,
}

/// Loads, or compares.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if engine::is_standard_stream(&args.source) && !matches!(args.format, Format::Files) {
        return if args.check { check(args) } else { load(args) };
    }
    if !args.source.exists() {
        return Err(Failure::NotFound(format!("no {}", args.source.display())));
    }
    let (is_right, needed) = match args.format {
        Format::Files => (args.source.is_dir(), "folder"),
        _ => (args.source.is_file(), "file"),
    };
    if !is_right {
        return Err(Failure::Usage(format!("{} is not a {needed}", args.source.display())));
    }
    if args.check { check(args) } else { load(args) }
}

/// Called with each entry of the source.
type Sink<'a> = dyn FnMut(Vec<u8>, Content) -> Result<(), Failure> + 'a;

fn each_entry(args: &Args, sink: &mut Sink<'_>) -> Result<(), Failure> {
    if matches!(args.format, Format::Files) {
        return files::each(&args.source, sink);
    }
    each_small(args, &mut |key, value| sink(key, Content::Bytes(value)))
}

/// Reads each entry of a source that is not a folder.
fn each_small(
    args: &Args,
    sink: &mut dyn FnMut(Vec<u8>, Vec<u8>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    match args.format {
        Format::Lines => each_line(&args.source, sink),
        format => each_row(&args.source, format, &args.columns, sink),
    }
}

/// The partition to load into. Files may have any size, so a partition without entries gets large
/// values for them; the options of one with entries are not changed.
fn partition_to_load(db: &Db, args: &Args) -> Result<Partition, Failure> {
    let name = &args.target.partition;
    let partition = db.partition(name)?;
    // Files may be large, and rows are not. The owner of a partition with entries has chosen its
    // options.
    let is_for_files = matches!(args.format, Format::Files) && partition.first()?.is_none();
    if partition.space().is_some() || !(args.large_values || is_for_files) {
        return Ok(partition);
    }
    let options = partition.options().large_values(LargeValueOptions::default());
    Ok(db.partition_with(name, options)?)
}

/// Something that is counted; the first ones are named on standard error.
struct NamedCount {
    what: &'static str,
    count: u64,
}

impl NamedCount {
    fn new(what: &'static str) -> NamedCount {
        NamedCount { what, count: 0 }
    }

    fn add(&mut self, key: &[u8], why: &str) {
        self.count += 1;
        if self.count <= NAMED_MAX {
            note(format_args!("{} {}: {why}", self.what, Bytes::Text.text(key)));
        } else if self.count == NAMED_MAX + 1 {
            note(format_args!("{}: further entries are only counted", self.what));
        }
    }
}

fn load(args: &Args) -> Result<(), Failure> {
    let written = args.making.open(&args.target.database, "load")?;
    let partition = partition_to_load(&written.db, args)?;
    let mut refused = NamedCount::new("skipped");
    let Loaded { entries, bytes } = match args.sorted {
        true => load_sorted(args, &partition, &mut refused)?,
        false => load_any(args, &written.db, &partition, &mut refused)?,
    };
    let skipped = refused.count;
    let mut out = Output::new(args.target.json);
    out.line(
        format_args!("loaded {entries} entries, {bytes} bytes; skipped {skipped}"),
        &json!({ "loaded": entries, "bytes": bytes, "skipped": skipped }),
    )?;
    out.finish()?;
    Ok(written.close()?)
}

/// Counts of the entries that were loaded.
#[derive(Default)]
struct Loaded {
    entries: u64,
    bytes: u64,
}

impl Loaded {
    fn count(&mut self, key: &[u8], value_bytes: u64) {
        self.entries += 1;
        self.bytes += key.len() as u64 + value_bytes;
    }
}

fn load_any(
    args: &Args,
    db: &Db,
    partition: &Partition,
    refused: &mut NamedCount,
) -> Result<Loaded, Failure> {
    let mut loader = Loader::new(db, partition);
    let bar = progress::counting("loading");
    each_entry(args, &mut |key, content| {
        bar.inc(key.len() as u64 + content.len());
        loader.add(key, content, refused)
    })?;
    // The rest, which is less than a batch.
    loader.write(refused)?;
    db.flush()?;
    bar.finish_and_clear();
    Ok(loader.loaded)
}

fn load_sorted(
    args: &Args,
    partition: &Partition,
    refused: &mut NamedCount,
) -> Result<Loaded, Failure> {
    let mut loaded = Loaded::default();
    let bar = progress::counting("loading");
    partition.bulk_load_by(|load| {
        each_entry(args, &mut |key, content| {
            bar.inc(key.len() as u64 + content.len());
            // Checked before: a failed put would end the whole load.
            if let Some(why) = beyond_limits(partition, &key, content.len()) {
                refused.add(&key, why);
                return Ok(());
            }
            let value = content.read()?;
            load.put(&key, &value)?;
            loaded.count(&key, value.len() as u64);
            Ok(())
        })
    })?;
    bar.finish_and_clear();
    Ok(loaded)
}

/// Collects entries into batches.
struct Loader<'a> {
    db: &'a Db,
    partition: &'a Partition,
    batch: Vec<(Vec<u8>, Vec<u8>)>,
    batch_bytes: usize,
    loaded: Loaded,
}

impl<'a> Loader<'a> {
    fn new(db: &'a Db, partition: &'a Partition) -> Loader<'a> {
        Loader { db, partition, batch: Vec::new(), batch_bytes: 0, loaded: Loaded::default() }
    }

    fn add(
        &mut self,
        key: Vec<u8>,
        content: Content,
        refused: &mut NamedCount,
    ) -> Result<(), Failure> {
        let value = match content {
            Content::Bytes(value) => value,
            Content::File(file) => {
                // In the order of the source, because the later of two entries of a key wins.
                self.write(refused)?;
                match file.put(self.partition, &key) {
                    Ok(()) => self.loaded.count(&key, file.len()),
                    Err(Failure::Engine(e)) if is_limit(&e) => refused.add(&key, &e.to_string()),
                    Err(failure) => return Err(failure),
                }
                return Ok(());
            }
        };
        let len = key.len() + value.len();
        if self.batch_bytes + len > BATCH_BYTES {
            self.write(refused)?;
        }
        self.batch_bytes += len;
        self.batch.push((key, value));
        Ok(())
    }

    /// Writes the collected entries. A batch that exceeds a limit is written entry by entry, to
    /// find the one that does.
    fn write(&mut self, refused: &mut NamedCount) -> Result<(), Failure> {
        // Taken out first, so that a failed batch is not written a second time.
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        if batch.is_empty() {
            return Ok(());
        }
        let entries = batch.iter().map(|(key, value)| (key, value));
        match engine::put_all(self.db, self.partition, entries, Durability::Os) {
            Ok(()) => {
                batch.iter().for_each(|(key, value)| self.loaded.count(key, value.len() as u64));
            }
            // One entry beyond a limit refuses its whole batch. Put one by one, all others are
            // written.
            Err(e) if is_limit(&e) => {
                for (key, value) in &batch {
                    match self.partition.put(key, value) {
                        Ok(_) => self.loaded.count(key, value.len() as u64),
                        Err(e) if is_limit(&e) => refused.add(key, &e.to_string()),
                        Err(e) => return Err(e.into()),
                    }
                }
            }
            Err(e) => return Err(e.into()),
        }
        Ok(())
    }
}

fn is_limit(e: &Error) -> bool {
    e.kind() == ErrorKind::LimitExceeded
}

/// The limit that an entry exceeds, if it does. The database is opened with the default limits.
fn beyond_limits(partition: &Partition, key: &[u8], value_bytes: u64) -> Option<&'static str> {
    if key.len() > USER_KEY_BYTES_MAX {
        return Some("a key beyond the limit");
    }
    // A large value may have any length.
    let is_too_long = value_bytes > Options::default().value_bytes_max;
    (is_too_long && partition.space().is_none()).then_some("a value beyond the limit")
}

fn check(args: &Args) -> Result<(), Failure> {
    let existing = Existing::open_to_compare(&args.target.database, "load")?;
    let partition = existing.partition(&args.target.partition)?;
    let mut refused = NamedCount::new("skipped");
    let mut missing = NamedCount::new("missing");
    let mut different = NamedCount::new("different");
    let mut equal = 0u64;
    let mut bytes = 0u64;
    let mut compare = |key: Vec<u8>, content: Content| -> Result<(), Failure> {
        let len = content.len();
        match partition.open_blob(&key)? {
            Some(stored) if content.is_equal_to(&stored)? => {
                equal += 1;
                bytes += key.len() as u64 + len;
            }
            Some(stored) => {
                let lens = format!("{} bytes stored, {len} in the source", stored.len());
                different.add(&key, &lens);
            }
            None => match beyond_limits(&partition, &key, len) {
                Some(why) => refused.add(&key, why),
                None => missing.add(&key, "not in the database"),
            },
        }
        Ok(())
    };
    match args.format {
        Format::Files => each_entry(args, &mut compare)?,
        _ => {
            // The last row of a key is the one that counts.
            let mut last = BTreeMap::new();
            each_small(args, &mut |key, value| {
                last.insert(key, value);
                Ok(())
            })?;
            last.into_iter().try_for_each(|(key, value)| compare(key, Content::Bytes(value)))?;
        }
    }

    let missing = missing.count;
    let different = different.count;
    let skipped = refused.count;
    let mut out = Output::new(args.target.json);
    out.line(
        format_args!(
            "equal {equal} entries, {bytes} bytes; missing {missing}, different {different}, \
             skipped {skipped}"
        ),
        &json!({
            "equal": equal, "bytes": bytes, "missing": missing, "different": different,
            "skipped": skipped,
        }),
    )?;
    out.finish()?;
    existing.close()?;
    if missing + different > 0 {
        return Err(Failure::NotFound("the database differs from the source".to_owned()));
    }
    Ok(())
}

fn open(path: &Path) -> Result<impl BufRead, Failure> {
    Ok(BufReader::new(engine::open_source(path)?))
}

fn each_line(
    path: &Path,
    sink: &mut dyn FnMut(Vec<u8>, Vec<u8>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for (at, line) in open(path)?.split(b'\n').enumerate() {
        let line = line.map_err(|e| Failure::io("read", path, &e))?;
        let Some(tab) = line.iter().position(|&byte| byte == b'\t') else {
            let place = path.display();
            return Err(Failure::Usage(format!("{place}:{}: no TAB on this line", at + 1)));
        };
        sink(line[..tab].to_vec(), line[tab + 1..].to_vec())?;
    }
    Ok(())
}

fn each_row(
    path: &Path,
    format: Format,
    columns: &rows::Columns,
    sink: &mut dyn FnMut(Vec<u8>, Vec<u8>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let file = open(path)?;
    let read = match format {
        Format::Jsonl => rows::each_json_line(file, sink),
        _ => rows::each_table_row(file, matches!(format, Format::Csv), columns, sink),
    };
    read.map_err(|stop| match stop {
        rows::Stop::Sink(failure) => failure,
        rows::Stop::Io(e) => Failure::io("read", path, &e),
        rows::Stop::Fault(fault) => {
            Failure::Usage(format!("{}:{}: {}", path.display(), fault.line, fault.what))
        }
    })
}
