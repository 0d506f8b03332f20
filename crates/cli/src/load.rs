//! `load`: puts a tree of files or the lines of a file into a partition, or compares them.
//!
//! `--format files`: the key is the path below the folder with `/` between its parts, the value
//! is the content. Symbolic links and special files are left out. `--format lines`: each line is
//! key TAB value. `tsv`, `csv` and `jsonl` are read by `load/rows.rs`. Of two rows with one key the
//! later wins.
//!
//! Invariants:
//! 1. Entries beyond a limit of the engine are skipped and listed, never cut.
//! 2. Loading ends with a flush, or as one bulk load: what was reported as loaded survives a power
//!    cut.
//! 3. `--check` writes nothing and makes nothing.

mod rows;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::json;
use siltstone::limits::USER_KEY_BYTES_MAX;
use siltstone::{Db, Durability, Error, ErrorKind, Options, Partition};

use crate::bytes::Bytes;
use crate::engine::{self, Existing, Target};
use crate::output::{Failure, Output, note};
use crate::progress;

/// A batch is written beyond so many bytes; an entry as large as that is written alone.
const BATCH_BYTES: usize = 1 << 20;
/// A larger file cannot be an inline value in any format version, so it is not even read.
const FILE_BYTES_MAX: u64 = 1 << 30;
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
    /// Folder or file to load; - is standard input
    source: PathBuf,
    /// Format of the source
    #[arg(long, value_enum)]
    format: Format,
    #[command(flatten)]
    columns: rows::Columns,
    /// Compare the source with the partition, and change nothing
    #[arg(long)]
    check: bool,
    /// The source is sorted by key, each key once: write tables at once, all of it or nothing
    #[arg(long, conflicts_with = "check")]
    sorted: bool,
}

/// Loads, or compares.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if is_standard_input(&args.source) && !matches!(args.format, Format::Files) {
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

fn each_entry(
    args: &Args,
    skipped: &mut NamedCount,
    sink: &mut dyn FnMut(Vec<u8>, Vec<u8>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    match args.format {
        Format::Files => each_file(&args.source, skipped, sink),
        Format::Lines => each_line(&args.source, sink),
        format => each_row(&args.source, format, &args.columns, sink),
    }
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
    let db = Db::open(&args.target.database)?;
    let partition = db.partition(&args.target.partition)?;
    let mut skipped = NamedCount::new("skipped");
    let mut refused = NamedCount::new("skipped");
    let Loaded { entries, bytes } = match args.sorted {
        true => load_sorted(args, &partition, &mut skipped, &mut refused)?,
        false => load_any(args, &db, &partition, &mut skipped, &mut refused)?,
    };
    let skipped = skipped.count + refused.count;
    let mut out = Output::new(args.target.json);
    out.line(
        format_args!("loaded {entries} entries, {bytes} bytes; skipped {skipped}"),
        &json!({ "loaded": entries, "bytes": bytes, "skipped": skipped }),
    )?;
    out.finish()?;
    Ok(db.close()?)
}

/// Counts of the entries that were loaded.
#[derive(Default)]
struct Loaded {
    entries: u64,
    bytes: u64,
}

impl Loaded {
    fn count(&mut self, key: &[u8], value: &[u8]) {
        self.entries += 1;
        self.bytes += (key.len() + value.len()) as u64;
    }
}

fn load_any(
    args: &Args,
    db: &Db,
    partition: &Partition,
    skipped: &mut NamedCount,
    refused: &mut NamedCount,
) -> Result<Loaded, Failure> {
    let mut loader = Loader::new(db, partition);
    let bar = progress::counting("loading");
    each_entry(args, skipped, &mut |key, value| {
        bar.inc((key.len() + value.len()) as u64);
        loader.add(key, value, refused)
    })?;
    loader.write(refused)?;
    db.flush()?;
    bar.finish_and_clear();
    Ok(loader.loaded)
}

fn load_sorted(
    args: &Args,
    partition: &Partition,
    skipped: &mut NamedCount,
    refused: &mut NamedCount,
) -> Result<Loaded, Failure> {
    let mut loaded = Loaded::default();
    let bar = progress::counting("loading");
    partition.bulk_load_by(|load| {
        each_entry(args, skipped, &mut |key, value| {
            bar.inc((key.len() + value.len()) as u64);
            match load.put(&key, &value) {
                Ok(()) => loaded.count(&key, &value),
                Err(e) if is_limit(&e) => refused.add(&key, &e.to_string()),
                Err(e) => return Err(Failure::from(e)),
            }
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
        value: Vec<u8>,
        refused: &mut NamedCount,
    ) -> Result<(), Failure> {
        let len = key.len() + value.len();
        if self.batch_bytes + len > BATCH_BYTES {
            self.write(refused)?;
        }
        self.batch_bytes += len;
        self.batch.push((key, value));
        Ok(())
    }

    /// Writes what was collected. A batch that passes a limit is written entry by entry, to learn
    /// which one it was.
    fn write(&mut self, refused: &mut NamedCount) -> Result<(), Failure> {
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        if batch.is_empty() {
            return Ok(());
        }
        let entries = batch.iter().map(|(key, value)| (key, value));
        match engine::put_all(self.db, self.partition, entries, Durability::Os) {
            Ok(()) => batch.iter().for_each(|(key, value)| self.loaded.count(key, value)),
            Err(e) if is_limit(&e) => {
                for (key, value) in &batch {
                    match self.partition.put(key, value) {
                        Ok(_) => self.loaded.count(key, value),
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

/// Returns whether loading skips such an entry: it opens the database with the default limits.
fn is_beyond_limits(key: &[u8], value: &[u8]) -> bool {
    key.is_empty()
        || key.len() > USER_KEY_BYTES_MAX
        || value.len() as u64 > Options::default().value_bytes_max
}

fn check(args: &Args) -> Result<(), Failure> {
    let existing = Existing::open(&args.target.database)?;
    let partition = existing.partition(&args.target.partition)?;
    let mut skipped = NamedCount::new("skipped");
    let mut refused = NamedCount::new("skipped");
    let mut missing = NamedCount::new("missing");
    let mut different = NamedCount::new("different");
    let mut equal = 0u64;
    let mut bytes = 0u64;
    let mut compare = |key: Vec<u8>, value: Vec<u8>| -> Result<(), Failure> {
        match partition.get(&key)? {
            Some(stored) if *stored == value[..] => {
                equal += 1;
                bytes += (key.len() + value.len()) as u64;
            }
            Some(stored) => {
                let lens = format!("{} bytes stored, {} in the source", stored.len(), value.len());
                different.add(&key, &lens);
            }
            None if is_beyond_limits(&key, &value) => refused.add(&key, "beyond a limit"),
            None => missing.add(&key, "not in the database"),
        }
        Ok(())
    };
    match args.format {
        Format::Files => each_entry(args, &mut skipped, &mut compare)?,
        _ => {
            // The last row of a key is the one that counts.
            let mut last = BTreeMap::new();
            each_entry(args, &mut skipped, &mut |key, value| {
                last.insert(key, value);
                Ok(())
            })?;
            last.into_iter().try_for_each(|(key, value)| compare(key, value))?;
        }
    }

    let missing = missing.count;
    let different = different.count;
    let skipped = skipped.count + refused.count;
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
    existing.db.close()?;
    if missing + different > 0 {
        return Err(Failure::NotFound("the database differs from the source".to_owned()));
    }
    Ok(())
}

/// Every regular file below `root`, in the order of their names, folder by folder.
#[expect(clippy::disallowed_methods, reason = "the source is no database")]
fn each_file(
    root: &Path,
    skipped: &mut NamedCount,
    sink: &mut dyn FnMut(Vec<u8>, Vec<u8>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut folders = vec![(root.to_owned(), Vec::new())];
    while let Some((folder, key_prefix)) = folders.pop() {
        let list = |e: std::io::Error| Failure::io("list", &folder, &e);
        let names = fs::read_dir(&folder).map_err(list)?;
        let mut names = names.collect::<Result<Vec<_>, _>>().map_err(list)?;
        names.sort_by_key(fs::DirEntry::file_name);
        for name in names {
            let path = name.path();
            let mut key = key_prefix.clone();
            key.extend_from_slice(name.file_name().as_encoded_bytes());
            let kind = name.file_type().map_err(|e| Failure::io("look at", &path, &e))?;
            if kind.is_dir() {
                key.push(b'/');
                folders.push((path, key));
            } else if kind.is_file() {
                let len = name.metadata().map_err(|e| Failure::io("look at", &path, &e))?.len();
                if len > FILE_BYTES_MAX {
                    skipped.add(&key, &format!("{len} bytes are beyond every limit"));
                    continue;
                }
                let value = fs::read(&path).map_err(|e| Failure::io("read", &path, &e))?;
                sink(key, value)?;
            }
        }
    }
    Ok(())
}

fn is_standard_input(path: &Path) -> bool {
    path.as_os_str() == "-"
}

#[expect(clippy::disallowed_methods, reason = "the source is no database")]
fn open(path: &Path) -> Result<Box<dyn BufRead>, Failure> {
    if is_standard_input(path) {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let file = fs::File::open(path).map_err(|e| Failure::io("open", path, &e))?;
    Ok(Box::new(BufReader::new(file)))
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
