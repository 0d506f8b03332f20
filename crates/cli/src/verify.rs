//! `verify`: reads every file of a database and names all damage.
//!
//! Invariant: the exit code is 0 only if nothing that was read is damaged, and this build can read everything.

use std::path::PathBuf;

use serde_json::{Value, json};
use siltstone::{Damage, VerifyOptions, VerifyReport};

use crate::output::{Failure, Output};
use crate::parts::{self, Part, damage_json, printable};

/// Arguments of `verify`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the database, or URL of its bucket
    database: PathBuf,
    #[command(flatten)]
    part: Part,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Reads everything, and prints what it found.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mark = args.part.mark()?;
    let existing = match parts::open(&args.database)? {
        Ok(existing) => existing,
        Err(damage) => {
            let text = parts::refusal_text(&damage);
            return print(args, &text, &report_json(&[damage], None), true);
        }
    };
    let bar = parts::bar("");
    let options = VerifyOptions::new().bytes_per_second(args.part.rate).resume_after(mark);
    let report = existing.db.verify(options.on_progress(|progress| {
        bar.set_length(progress.bytes);
        bar.set_position(progress.bytes_done);
        args.part.goes_on(progress.files_done, progress.bytes_done)
    }));
    bar.finish_and_clear();
    let report = report?;
    args.part.keep(report.mark)?;
    existing.close()?;
    let json = report_json(report.damage(), Some(&report));
    print(args, &report_text(&report), &json, !report.damage().is_empty())?;
    match report.unsupported.len() {
        0 => Ok(()),
        files => Err(Failure::NotFound(format!(
            "this build cannot read {files} files of {}",
            args.database.display()
        ))),
    }
}

fn print(args: &Args, text: &str, json: &Value, is_damaged: bool) -> Result<(), Failure> {
    let mut out = Output::new(args.json);
    out.line(text, json)?;
    out.finish()?;
    parts::verdict(is_damaged, args.database.display())
}

fn report_text(report: &VerifyReport) -> String {
    let mut text = match report.damage().len() {
        0 => "no damage".to_owned(),
        1 => "damage in 1 place".to_owned(),
        places => format!("damage in {places} places"),
    };
    text += &format!(
        "; {} files, {} bytes, {} entries read",
        report.files, report.bytes, report.entries
    );
    if report.hidden > 0 {
        text += &format!(", and {} of metadata", report.hidden);
    }
    if report.mark.is_some() {
        text += "; stopped before the end";
    }
    for damage in report.damage() {
        text += "\n  ";
        text += &printable(damage);
    }
    for file in &report.unsupported {
        text += "\n  not verified: ";
        text += &printable(file);
    }
    text
}

fn report_json(damage: &[Damage], report: Option<&VerifyReport>) -> Value {
    json!({
        "damage": damage.iter().map(damage_json).collect::<Vec<_>>(),
        "opened": report.is_some(),
        "files": report.map_or(0, |report| report.files),
        "bytes": report.map_or(0, |report| report.bytes),
        "entries": report.map_or(0, |report| report.entries),
        "metadata_entries": report.map_or(0, |report| report.hidden),
        "unsupported": report.map_or(&[][..], |report| &report.unsupported),
        "mark": report.and_then(|report| report.mark).map(|mark| mark.to_string()),
    })
}
