//! `dump`: the meaning of each byte of a table, a log segment, a manifest or another file of a
//! database.
//!
//! It reads one file, needs no database around it, and writes nothing. The engine describes the
//! bytes; this file formats the result, inner ranges further to the right.

use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::json;
#[cfg(feature = "encryption")]
use siltstone::fs::Fs;
use siltstone::raw::{self, Description};

use crate::bucket::needs_folder;
use crate::output::{Failure, Output};

/// Arguments of `dump`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Path of a table, log segment, manifest, claim, fork, commit cursor or lease
    file: PathBuf,
    /// Also print each entry, operation and change
    #[arg(long)]
    entries: bool,
    /// Print JSON, one object a range
    #[arg(long)]
    json: bool,
}

/// The description of a file, which may be encrypted.
fn describe(path: &Path, entries: bool) -> siltstone::Result<Description> {
    #[cfg(feature = "encryption")]
    if let Some(fs) = crate::files::encrypted_files()
        // A commit cursor is never encrypted.
        && !matches!(fs.keys_of(path)?, encryption::FileKeys::None)
    {
        return raw::describe(fs.open_read(path)?, path, entries);
    }
    raw::describe_path(path, entries)
}

/// Prints the meaning of each byte.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    needs_folder(&args.file, "dump", "remote restore makes a folder of a bucket")?;
    if !args.file.is_file() {
        return Err(Failure::NotFound(format!("no file {}", args.file.display())));
    }
    let description = describe(&args.file, args.entries)?;
    let mut out = Output::new(args.json);
    let kind = description.format.name();
    let bytes = description.bytes;
    out.line(format_args!("{kind}, {bytes} bytes"), &json!({ "kind": kind, "bytes": bytes }))?;
    let width = bytes.to_string().len();
    let mut around: Vec<Range<u64>> = Vec::new();
    for (range, text) in &description.lines {
        while around.last().is_some_and(|outer| range.end > outer.end || range.start >= outer.end) {
            around.pop();
        }
        let indent = 2 * around.len();
        let from = range.start;
        let to = range.end;
        out.line(
            format_args!("{from:>width$}..{to:<width$} {:indent$}{text}", ""),
            &json!({ "from": from, "to": to, "depth": around.len(), "text": text }),
        )?;
        if around.last() != Some(range) {
            around.push(range.clone());
        }
    }
    out.finish()
}
