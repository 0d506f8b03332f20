//! `verify`: reads every file of a database and names all damage.
//!
//! Opening the database replays its log, so damage that opening refuses is reported like any
//! other. What was found of a run that is stopped is printed when it stops, with a mark in a file
//! from which the next run goes on.
//!
//! Invariant: the exit code is 0 only if nothing that was read is damaged.

use std::fs;
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use siltstone::{Damage, VerifyMark, VerifyOptions, VerifyReport};

use crate::bench::parse_bytes;
use crate::engine::Existing;
use crate::output::{Bytes, Failure, Output};

/// Arguments of `verify`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the database
    database: PathBuf,
    /// Read no more than so many bytes a second, such as 50MiB
    #[arg(long, value_parser = parse_bytes, default_value = "0")]
    rate: u64,
    /// Keep in this file how far a run came that was stopped, and go on from there
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Stop at the first file beyond so many bytes, such as 10GiB
    #[arg(long, value_parser = parse_bytes, requires = "resume", value_name = "BYTES")]
    at_most: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Reads everything, and prints what it found.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mark = match &args.resume {
        Some(path) => read_mark(path)?,
        None => None,
    };
    let existing = match Existing::open(&args.database) {
        Ok(existing) => existing,
        Err(Failure::Engine(error)) if error.damage().is_some() => {
            let damage: Vec<Damage> = error.damage().into_iter().cloned().collect();
            let text = format!("the database does not open\n  {}", damage_text(&damage[0]));
            return print(args, &text, &report_json(&damage, None), damage.len());
        }
        Err(failure) => return Err(failure),
    };
    let bar = ProgressBar::new(0);
    let style = "{bytes:>12} of {total_bytes:12} [{wide_bar}] {bytes_per_sec}, {eta}";
    bar.set_style(ProgressStyle::with_template(style).expect("the template is well formed"));
    let options = VerifyOptions::new().bytes_per_second(args.rate).resume_after(mark);
    let report = existing.db.verify(options.on_progress(|progress| {
        bar.set_length(progress.bytes);
        bar.set_position(progress.bytes_done);
        // The first file is read whatever its size, so that every run comes further.
        let is_first = progress.files_done == 0;
        is_first || args.at_most.is_none_or(|most| progress.bytes_done <= most)
    }));
    bar.finish_and_clear();
    let report = report?;
    if let Some(path) = &args.resume {
        write_mark(path, report.mark)?;
    }
    existing.db.close()?;
    let found = report.damage().len();
    print(args, &report_text(&report), &report_json(report.damage(), Some(&report)), found)
}

fn print(args: &Args, text: &str, json: &Value, found: usize) -> Result<(), Failure> {
    let mut out = Output::new(args.json);
    out.line(text, json)?;
    out.finish()?;
    match found {
        0 => Ok(()),
        _ => Err(Failure::NotFound(format!("{} is damaged", args.database.display()))),
    }
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
    if report.mark.is_some() {
        text += "; stopped before the end";
    }
    for damage in report.damage() {
        text += "\n  ";
        text += &damage_text(damage);
    }
    text
}

/// One line; a name may hold anything, and a terminal sees it escaped.
fn damage_text(damage: &Damage) -> String {
    damage
        .to_string()
        .chars()
        .flat_map(|c| match c.is_control() {
            true => c.escape_default().collect::<Vec<_>>(),
            false => vec![c],
        })
        .collect()
}

fn report_json(damage: &[Damage], report: Option<&VerifyReport>) -> Value {
    let key = |key: &Vec<u8>| Bytes::Escaped.text(key);
    let damage = damage.iter().map(|damage| {
        json!({
            "partition": damage.partition,
            "level": damage.level,
            "file": damage.file.display().to_string(),
            "offset": damage.offset,
            "key": damage.key.as_ref().map(key),
            "first_key": damage.keys.as_ref().map(|(first, _)| key(first)),
            "last_key": damage.keys.as_ref().map(|(_, last)| key(last)),
            "what": damage.what,
        })
    });
    json!({
        "damage": damage.collect::<Vec<_>>(),
        "opened": report.is_some(),
        "files": report.map_or(0, |report| report.files),
        "bytes": report.map_or(0, |report| report.bytes),
        "entries": report.map_or(0, |report| report.entries),
        "mark": report.and_then(|report| report.mark).map(|mark| mark.to_string()),
    })
}

#[expect(clippy::disallowed_methods, reason = "the file is outside every database")]
fn read_mark(path: &Path) -> Result<Option<VerifyMark>, Failure> {
    match fs::read(path) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let mark = text.trim_end().parse().map_err(|_| {
                Failure::Usage(format!("{} holds no mark of a verification", path.display()))
            });
            mark.map(Some)
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Failure::io("read", path, &e)),
    }
}

/// Keeps the mark, or removes it when there is nothing left to go on with.
#[expect(clippy::disallowed_methods, reason = "the file is outside every database")]
fn write_mark(path: &Path, mark: Option<VerifyMark>) -> Result<(), Failure> {
    let Some(mark) = mark else {
        return match fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(Failure::io("remove", path, &e))
            }
            _ => Ok(()),
        };
    };
    fs::write(path, format!("{mark}\n")).map_err(|e| Failure::io("write", path, &e))
}
