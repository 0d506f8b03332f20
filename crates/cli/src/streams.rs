//! `import`, and `export` as a stream: entries through files and pipes.
//!
//! Invariant: standard output has nothing but the stream, if it is the target.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read};
use std::path::{Path, PathBuf};

use serde_json::json;
use siltstone::stream::{StreamExport, StreamImport, StreamSummary};
use siltstone::{Db, Error};

use crate::engine::{Making, is_standard_stream, open_source};
use crate::output::{Failure, Output, note};
use crate::progress;

/// Bytes that are read at once, or collected before they are written.
const BUFFER_BYTES: usize = 1 << 20;

/// Writes the stream to the new file `path`, or to standard output.
pub(crate) fn export(
    db: &Db,
    path: &Path,
    options: &StreamExport,
    json: bool,
) -> Result<(), Failure> {
    let bar = progress::counting("exporting");
    if is_standard_stream(path) {
        let out = BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock());
        let summary = db.export_stream(bar.wrap_write(out), options).map_err(standard_output)?;
        bar.finish_and_clear();
        // To standard error, because standard output has the stream.
        note(result_text("exported", summary));
        return Ok(());
    }
    // A new file: an export never overwrites the only copy of an older one.
    let mut file = create(path)?;
    let out = BufWriter::with_capacity(BUFFER_BYTES, &mut file);
    // After a failed export, the partial file stays: its entries can be imported, and another
    // export can continue after them.
    let summary = db.export_stream(bar.wrap_write(out), options)?;
    // The command succeeds only when the stream survives a power cut: it may be the backup before a
    // deletion.
    file.sync_all().map_err(|e| Failure::io("sync", path, &e))?;
    bar.finish_and_clear();
    report("exported", summary, json)
}

/// A reader that closes the pipe ends the command quietly.
pub(crate) fn standard_output(error: Error) -> Failure {
    let source = error.io_source().map(io::Error::kind);
    match source {
        Some(io::ErrorKind::BrokenPipe) => Failure::PipeClosed,
        _ => Failure::Engine(error),
    }
}

/// Arguments of `import`.
#[derive(Debug, clap::Args)]
pub(crate) struct ImportArgs {
    /// Folder of the database
    database: PathBuf,
    /// File with the stream, or with text of `db_dump`; - is standard input
    source: PathBuf,
    /// Import into this partition, whatever name the stream has
    #[arg(long)]
    partition: Option<String>,
    /// Skip entries that are there with the same value: continues an import that was interrupted
    #[arg(long)]
    resume: bool,
    /// Keep values of 64 KiB and more in chunk files, in partitions without entries
    #[arg(long)]
    large_values: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    making: Making,
}

/// Puts the entries of a stream; makes the database and the partitions if they do not exist.
pub(crate) fn import(args: &ImportArgs) -> Result<(), Failure> {
    let source = open_source(&args.source)?;
    let written = args.making.open(&args.database, "import")?;
    let mut options = StreamImport::new().resume(args.resume).large_values(args.large_values);
    if let Some(name) = &args.partition {
        options = options.partition(name);
    }
    if !is_standard_stream(&args.source) {
        options = options.source(&args.source);
    }
    let bar = progress::counting("importing");
    let mut source = BufReader::with_capacity(BUFFER_BYTES, bar.wrap_read(source));
    let summary = written.db.import_stream(&mut source, &options)?;
    // Two concatenated streams would look imported, although only the first was. The entries of the
    // first are in the database already.
    if is_followed(&mut source, &args.source)? {
        let message = format!("bytes after the end of the stream in {}", args.source.display());
        return Err(Failure::Usage(message));
    }
    bar.finish_and_clear();
    report("imported", summary, args.json)?;
    Ok(written.close()?)
}

/// Returns whether the source has bytes after its stream.
fn is_followed(source: &mut dyn Read, path: &Path) -> Result<bool, Failure> {
    let mut byte = [0];
    let read = source.read(&mut byte).map_err(|e| Failure::io("read", path, &e))?;
    Ok(read > 0)
}

pub(crate) fn result_text(verb: &str, summary: StreamSummary) -> String {
    let StreamSummary { entries, bytes, skipped, .. } = summary;
    format!("{verb} {entries} entries, {bytes} bytes; skipped {skipped}")
}

fn report(verb: &str, summary: StreamSummary, json: bool) -> Result<(), Failure> {
    let mut out = Output::new(json);
    let StreamSummary { entries, bytes, skipped, .. } = summary;
    out.line(
        result_text(verb, summary),
        &json!({ verb: entries, "bytes": bytes, "skipped": skipped }),
    )?;
    out.finish()
}

pub(crate) fn create(path: &Path) -> Result<File, Failure> {
    File::create_new(path).map_err(|e| Failure::io("create", path, &e))
}
