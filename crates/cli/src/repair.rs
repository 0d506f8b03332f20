//! `repair`, and `export --salvage`: what can be read of a damaged database.
//!
//! Invariant: the damaged database is never written to.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use siltstone::stream::StreamExport;
use siltstone::{Damage, DoubtfulKeys, SalvageReport};

use crate::bucket::needs_folder;
use crate::bytes::Bytes;
use crate::engine::{Existing, is_standard_stream};
use crate::files;
use crate::output::{Failure, Output, note};
use crate::progress;
use crate::streams::{create, result_text, standard_output};

/// Arguments of `repair`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the damaged database, which is not changed
    database: PathBuf,
    /// Folder of the new database; it must be empty or not exist
    #[arg(long)]
    into: PathBuf,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Makes a new database, and prints what is lost.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    needs_folder(&args.database, "repair", "remote restore makes a folder of a bucket")?;
    progress::end_at_interrupt(format!(
        "siltstone: interrupted; {} is not changed, and {} is no database\n  \
         the same command begins again",
        args.database.display(),
        args.into.display()
    ))?;
    let report = progress::during(
        "repairing",
        || progress::folder_bytes(&args.into),
        || files::builder(&args.database).repair_into(&args.into),
    )?;
    // The repair has removed its files, and the library removes no folders.
    let mut scratch = args.into.clone().into_os_string();
    scratch.push(".unfinished");
    let _ = std::fs::remove_dir(scratch);
    let mut out = Output::new(args.json);
    lines(&report, &mut |text, json| out.line(text, json))?;
    out.finish()
}

/// Exports what can be read to the new file `path`, or to standard output; the report goes to standard error.
pub(crate) fn export(database: &Path, path: &Path, options: &StreamExport) -> Result<(), Failure> {
    needs_folder(database, "export --salvage", "remote verify checks a bucket")?;
    // Before the file is made. Its tables or its log suffice: a manifest is not needed.
    Existing::check(database)?;
    let bar = progress::counting("exporting");
    let builder = files::builder(database);
    let (summary, report) = if is_standard_stream(path) {
        let out = BufWriter::new(std::io::stdout().lock());
        builder.export_salvaged(bar.wrap_write(out), options).map_err(standard_output)?
    } else {
        let mut file = create(path)?;
        let mut out = BufWriter::new(bar.wrap_write(&mut file));
        let done = builder.export_salvaged(&mut out, options)?;
        out.flush().map_err(|e| Failure::io("write", path, &e))?;
        drop(out);
        file.sync_all().map_err(|e| Failure::io("sync", path, &e))?;
        done
    };
    bar.finish_and_clear();
    note(result_text("exported", summary));
    lines(&report, &mut |text, _| {
        note(text);
        Ok(())
    })
}

/// Passes the lines of a report to `each`.
fn lines(
    report: &SalvageReport,
    each: &mut dyn FnMut(&str, &Value) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for partition in &report.partitions {
        let name = &partition.name;
        let entries = partition.entries;
        let text = format!("partition {name}: {entries} entries");
        each(&text, &json!({ "partition": name, "entries": entries }))?;
    }
    for (damage, source) in &report.repaired {
        let text = format!("repaired: {}, by {source}", place(damage));
        each(&text, &json!({ "repaired": place(damage), "source": source }))?;
    }
    for damage in &report.damage {
        let text = format!("damaged: {}", place(damage));
        let json = json!({
            "damaged": damage.file.display().to_string(), "offset": damage.offset,
            "partition": damage.partition, "what": damage.what,
        });
        let json = Bytes::Text.with(json, "key", damage.key.as_deref());
        each(&text, &json)?;
    }
    for doubt in &report.doubtful {
        let (text, json) = doubtful(doubt);
        each(&text, &json)?;
    }
    let complete = report.is_complete();
    let text = if complete {
        "complete: every key is what it was"
    } else {
        "incomplete: a doubtful key may be absent, have an older value, or be one that was deleted"
    };
    each(text, &json!({ "complete": complete }))
}

fn place(damage: &Damage) -> String {
    let mut text = damage.file.display().to_string();
    if let Some(offset) = damage.offset {
        text.push_str(&format!(" at {offset}"));
    }
    if let Some(partition) = &damage.partition {
        text.push_str(&format!(", partition {partition}"));
    }
    if let Some(key) = &damage.key {
        text.push_str(&format!(", key \"{}\"", key.escape_ascii()));
    }
    format!("{text}: {}", damage.what)
}

fn doubtful(doubt: &DoubtfulKeys) -> (String, Value) {
    let partition = doubt.partition.as_ref();
    let scope = partition.map_or("all partitions".to_owned(), |name| format!("partition {name}"));
    let keys = doubt
        .keys
        .as_ref()
        .map(|(first, last)| (first.escape_ascii().to_string(), last.escape_ascii().to_string()));
    let range = match &keys {
        None => "all keys".to_owned(),
        Some((first, last)) if first == last => format!("key \"{first}\""),
        Some((first, last)) => format!("keys \"{first}\" to \"{last}\""),
    };
    let text = format!("doubtful: {scope}, {range}: {}", doubt.why);
    let json = json!({ "doubtful": doubt.why, "partition": partition });
    let keys = doubt.keys.as_ref();
    let json = Bytes::Text.with(json, "first", keys.map(|(first, _)| &**first));
    let json = Bytes::Text.with(json, "last", keys.map(|(_, last)| &**last));
    (text, json)
}
