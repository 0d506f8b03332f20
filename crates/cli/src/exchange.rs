//! `checkpoint`, `export` and `ingest`: databases and parts of them to and from other folders. An
//! export as a stream is in `streams.rs`.

use std::ffi::OsString;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use serde_json::json;
use siltstone::stream::{StreamExport, StreamFormat};
use siltstone::{ErrorKind, ExportOptions};

use crate::bucket::{ReadLength, needs_folder, url_of};
use crate::bytes::Encoding;
use crate::engine::{self, Existing, INSTEAD_OF_URL, Making, ReadTarget, Target};
use crate::folder::is_shipped;
use crate::output::{Failure, Output, note};
use crate::{files, progress, repair, resp, streams};

/// The file of an export that describes its tables.
const EXPORT: &str = "EXPORT";

/// Arguments of `checkpoint`.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckpointArgs {
    /// Folder of the database
    database: PathBuf,
    /// Folder of the copy; it must be empty or not exist
    folder: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Copies a database; files are linked if possible.
pub(crate) fn checkpoint(args: &CheckpointArgs) -> Result<(), Failure> {
    let CheckpointArgs { database, folder, .. } = args;
    needs_folder(database, "checkpoint", "remote restore makes a folder of a bucket")?;
    if is_shipped(database)? {
        return Err(Failure::Usage(format!(
            "{} is shipped to a bucket, and a checkpoint would write to it\n  \
             remote restore makes a folder of the bucket",
            database.display()
        )));
    }
    progress::end_at_interrupt(format!(
        "siltstone: interrupted; {} stays as it is, and {} is no database unless the copy was complete\n  \
         remove that folder, or give the next copy another one",
        database.display(),
        folder.display()
    ))?;
    Existing::check(database)?;
    let copied = match files::builder(database).open() {
        // Only the process that writes can flush. So this copies its log as well.
        Err(error) if error.kind() == ErrorKind::Locked => {
            engine::note_writer();
            during_copy(folder, || files::builder(database).checkpoint(folder))?
        }
        opened => {
            let db = opened?;
            let seq = during_copy(folder, || db.checkpoint(folder))?;
            db.close()?;
            return print_checkpoint(args, seq.get(), &[]);
        }
    };
    note_unlogged(&copied.unlogged);
    print_checkpoint(args, copied.seq.get(), &copied.unlogged)
}

/// Notes on standard error that a copy next to a writer lacks entries of the partitions `names`.
pub(crate) fn note_unlogged(names: &[String]) {
    if !names.is_empty() {
        let names = names.join(", ");
        note(format_args!("siltstone: without a log, so only what was flushed is in it: {names}"));
    }
}

/// Runs `copy`, and shows how much is in the folder meanwhile.
fn during_copy<T: Send>(folder: &Path, copy: impl FnOnce() -> T + Send) -> T {
    progress::during("copying", || progress::folder_bytes(folder), copy)
}

fn print_checkpoint(args: &CheckpointArgs, seq: u64, unlogged: &[String]) -> Result<(), Failure> {
    let mut out = Output::new(args.json);
    let folder = args.folder.display().to_string();
    let json = json!({ "checkpoint": folder, "sequence": seq, "unlogged": unlogged });
    out.line(format_args!("checkpoint in {folder}: sequence {seq}"), &json)?;
    out.finish()
}

/// Arguments of `export`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    target: ReadTarget,
    /// Folder of the tables, empty or not there; or new file of the stream, - is standard output
    folder: PathBuf,
    /// Format of the export
    #[arg(long, value_enum, default_value = "tables")]
    format: Format,
    /// Export all partitions, with a format other than tables
    #[arg(long, conflicts_with = "partition")]
    all_partitions: bool,
    /// First key of the range
    #[arg(long)]
    from: Option<OsString>,
    /// End of the range; this key is not included
    #[arg(long)]
    to: Option<OsString>,
    /// Export what can be read of a damaged database, with --format stream; what is lost goes to standard error
    #[arg(long)]
    salvage: bool,
    /// Leave the metadata of MetaHive out; only tables have it
    #[arg(long)]
    without_metadata: bool,
    #[command(flatten)]
    encoding: Encoding,
}

/// The format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Tables in a folder, for `ingest`
    Tables,
    /// A stream with checksums, for `import`
    Stream,
    /// Text as `db_dump` of Berkeley DB writes it, for `db_load`, `mdb_load` and `import`
    DbDump,
    /// Commands of Redis, for `redis-cli --pipe`
    Resp,
}

/// Writes entries to tables for any database, or to a stream.
pub(crate) fn export(args: &ExportArgs) -> Result<(), Failure> {
    let bytes = args.encoding.bytes();
    let range = (
        bytes.optional(args.from.as_ref())?.map_or(Bound::Unbounded, Bound::Included),
        bytes.optional(args.to.as_ref())?.map_or(Bound::Unbounded, Bound::Excluded),
    );
    let format = match args.format {
        Format::Tables if args.all_partitions => {
            let message = "--all-partitions needs another --format than tables";
            return Err(Failure::Usage(message.to_owned()));
        }
        Format::Tables if url_of(&args.target.database).is_some() => {
            let message = "export of a URL needs another --format than tables";
            return Err(Failure::Usage(message.to_owned()));
        }
        Format::Resp if args.salvage => {
            return Err(Failure::Usage("--salvage needs --format stream".to_owned()));
        }
        Format::Resp => return export_resp(args, &range),
        Format::Tables => None,
        Format::Stream => Some(StreamFormat::Checked),
        Format::DbDump => Some(StreamFormat::BerkeleyText),
    };
    progress::end_at_interrupt(format!(
        "siltstone: interrupted; the export in {} is not complete, and is refused as a whole one",
        args.folder.display()
    ))?;
    if args.salvage {
        return export_salvaged(args, format, range);
    }
    let existing = Existing::open_to_read(&args.target.database, ReadLength::Long)?;
    let Some(format) = format else { return export_tables(args, existing, range) };
    let mut options = StreamExport::new().format(format).range(range);
    if !args.all_partitions {
        existing.partition(&args.target.partition)?;
        options = options.partitions([&args.target.partition]);
    }
    streams::export(&existing.db, &args.folder, &options, args.target.json)?;
    Ok(existing.close()?)
}

fn export_resp(args: &ExportArgs, range: &resp::Range) -> Result<(), Failure> {
    let existing = Existing::open_to_read(&args.target.database, ReadLength::Long)?;
    let names = match args.all_partitions {
        true => engine::partition_names(&existing.db),
        false => vec![args.target.partition.clone()],
    };
    resp::export(&existing, &names, args.all_partitions, range, &args.folder, args.target.json)?;
    Ok(existing.close()?)
}

fn export_salvaged(
    args: &ExportArgs,
    format: Option<StreamFormat>,
    range: (Bound<Vec<u8>>, Bound<Vec<u8>>),
) -> Result<(), Failure> {
    let Some(format) = format else {
        return Err(Failure::Usage("--salvage needs --format stream".to_owned()));
    };
    let mut options = StreamExport::new().format(format).range(range);
    if !args.all_partitions {
        options = options.partitions([&args.target.partition]);
    }
    repair::export(&args.target.database, &args.folder, &options)
}

fn export_tables(
    args: &ExportArgs,
    existing: Existing,
    range: (Bound<Vec<u8>>, Bound<Vec<u8>>),
) -> Result<(), Failure> {
    let partition = existing.partition(&args.target.partition)?;
    let summary = progress::during(
        "exporting",
        || progress::folder_bytes(&args.folder),
        || {
            let options = ExportOptions::new().hidden_entries(!args.without_metadata);
            partition.export_with(range, &args.folder, options)
        },
    )?;
    drop(partition);
    let entries = summary.entries;
    let tables = summary.tables;
    let mut out = Output::new(args.target.json);
    let json = json!({ "exported": entries, "tables": tables, "bytes": summary.bytes });
    out.line(format_args!("exported {entries} entries in {tables} tables"), &json)?;
    out.finish()?;
    Ok(existing.close()?)
}

/// Arguments of `ingest`.
#[derive(Debug, clap::Args)]
pub(crate) struct IngestArgs {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    making: Making,
    /// Folder of the export
    folder: PathBuf,
}

/// Ingests an export; makes the database and the partition if they do not exist.
pub(crate) fn ingest(args: &IngestArgs) -> Result<(), Failure> {
    needs_folder(&args.target.database, "ingest", INSTEAD_OF_URL)?;
    // Before a database is made for it.
    if !args.folder.join(EXPORT).is_file() {
        return Err(Failure::Usage(format!("there is no export in {}", args.folder.display())));
    }
    let written = args.making.open(&args.target.database, "ingest")?;
    let partition = written.db.partition(&args.target.partition)?;
    let summary = progress::during("ingesting", String::new, || partition.ingest(&args.folder))?;
    drop(partition);
    let entries = summary.entries;
    let tables = summary.tables;
    let mut out = Output::new(args.target.json);
    let json = json!({ "ingested": entries, "tables": tables, "bytes": summary.bytes });
    out.line(format_args!("ingested {entries} entries in {tables} tables"), &json)?;
    out.finish()?;
    Ok(written.close()?)
}
