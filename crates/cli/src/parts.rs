//! The common part of `verify` and `scrub`: both read everything, at a limited rate or in several
//! runs if requested, and name all damage.
//!
//! Opening the database replays its log, so damage that the open refuses is reported like any
//! other. A run that is stopped prints its findings, and writes a mark to a file from which the
//! next run continues.
//!
//! Invariant: a name or a phrase from a file reaches the terminal escaped.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use siltstone::Damage;

use crate::bench::folder::parse_bytes;
use crate::bucket::ReadLength;
use crate::bytes::Bytes;
use crate::engine::Existing;
use crate::output::Failure;
use crate::progress;

/// Arguments of a run that may be one part of several.
#[derive(Debug, clap::Args)]
pub(crate) struct Part {
    /// Maximum read rate per second, such as 50MiB; 0 is no limit
    #[arg(long, value_parser = parse_bytes, default_value = "0")]
    pub(crate) rate: u64,
    /// Store the position of a stopped run in this file (also after Ctrl-C), and continue from it
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Stop at the first file beyond this many bytes, such as 10GiB
    #[arg(long, value_parser = parse_bytes, requires = "resume", value_name = "BYTES")]
    at_most: Option<u64>,
}

impl Part {
    /// Returns whether to read on. The first file is read whatever its size, so that every run
    /// makes progress.
    pub(crate) fn goes_on(&self, files_done: u64, bytes_done: u64) -> bool {
        // Only a run with a file for its mark ends in order. Without one the position would be
        // lost, and Ctrl-C ends the process as usual.
        let is_asked_to_stop = self.resume.is_some() && progress::is_interrupted();
        files_done == 0 || (!is_asked_to_stop && self.at_most.is_none_or(|most| bytes_done <= most))
    }

    /// The mark of an earlier run, if it was stopped.
    #[expect(clippy::disallowed_methods, reason = "the file is outside every database")]
    pub(crate) fn mark<M: FromStr>(&self) -> Result<Option<M>, Failure> {
        let Some(path) = &self.resume else { return Ok(None) };
        // From here on Ctrl-C ends the run and leaves a mark.
        progress::watch_for_interrupt()?;
        match fs::read(path) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                let mark = text.trim_end().parse().map_err(|_| {
                    Failure::Usage(format!("{} holds no position of a stopped run", path.display()))
                });
                mark.map(Some)
            }
            // The first run of several finds no file.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Failure::io("read", path, &e)),
        }
    }

    /// Stores the mark, or removes it when nothing is left to read.
    #[expect(clippy::disallowed_methods, reason = "the file is outside every database")]
    pub(crate) fn keep(&self, mark: Option<impl Display>) -> Result<(), Failure> {
        let Some(path) = &self.resume else { return Ok(()) };
        let Some(mark) = mark else {
            return match fs::remove_file(path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    Err(Failure::io("remove", path, &e))
                }
                _ => Ok(()),
            };
        };
        // Written to a new file and renamed: a full disk or a crash leaves the mark of the run
        // before.
        let mut made = path.clone().into_os_string();
        made.push(".new");
        let made = PathBuf::from(made);
        fs::write(&made, format!("{mark}\n")).map_err(|e| Failure::io("write", &made, &e))?;
        fs::rename(&made, path).map_err(|e| Failure::io("rename", &made, &e))
    }
}

/// The database, or the damage that prevents the open.
pub(crate) fn open(path: &Path) -> Result<Result<Existing, Damage>, Failure> {
    match Existing::open_to_read(path, ReadLength::Long) {
        Ok(existing) => Ok(Ok(existing)),
        Err(Failure::Engine(error)) => match error.damage() {
            // Damage that recovery refuses is a finding of this command, and belongs into its
            // report.
            Some(damage) => Ok(Err(damage.clone())),
            None => Err(Failure::Engine(error)),
        },
        Err(failure) => Err(failure),
    }
}

/// The message for a database that does not open because of this damage.
pub(crate) fn refusal_text(damage: &Damage) -> String {
    format!("the database does not open\n  {}", printable(damage))
}

/// A bar of bytes after `name`.
pub(crate) fn bar(name: &str) -> ProgressBar {
    let style = "{prefix}{bytes:>12} of {total_bytes:12} [{wide_bar}] {bytes_per_sec}, {eta}";
    let bar = ProgressBar::new(0).with_prefix(printable(name));
    bar.with_style(ProgressStyle::with_template(style).expect("the template is well formed"))
}

/// The exit of a command that found damage, or none.
pub(crate) fn verdict(is_damaged: bool, what: impl Display) -> Result<(), Failure> {
    match is_damaged {
        false => Ok(()),
        true => Err(Failure::NotFound(format!("{what} is damaged"))),
    }
}

/// A name may have any characters; they are escaped for a terminal, except the ends of lines.
pub(crate) fn printable(text: impl Display) -> String {
    text.to_string()
        .chars()
        .flat_map(|c: char| match c.is_control() && c != '\n' {
            // Names and messages come from files, and could otherwise control the terminal.
            true => c.escape_default().collect::<Vec<_>>(),
            false => vec![c],
        })
        .collect()
}

/// Damage as an object.
pub(crate) fn damage_json(damage: &Damage) -> Value {
    let object = json!({
        "partition": damage.partition,
        "level": damage.level,
        "file": damage.file.display().to_string(),
        "offset": damage.offset,
        "what": damage.what,
    });
    let object = Bytes::Text.with(object, "key", damage.key.as_deref());
    let keys = damage.keys.as_ref();
    let object = Bytes::Text.with(object, "first_key", keys.map(|(first, _)| &**first));
    Bytes::Text.with(object, "last_key", keys.map(|(_, last)| &**last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_run_stops_after_its_first_file_if_it_can_leave_a_mark() {
        let marked = Part { rate: 0, resume: Some("mark".into()), at_most: None };
        let unmarked = Part { rate: 0, resume: None, at_most: None };
        assert!(marked.goes_on(7, 1 << 40));
        progress::interrupt();
        assert!(marked.goes_on(0, 0) && !marked.goes_on(1, 1));
        assert!(unmarked.goes_on(7, 1 << 40));
    }
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the files are outside every database")]
    fn a_mark_that_cannot_be_written_leaves_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mark");
        let part = Part { rate: 0, resume: Some(path.clone()), at_most: None };
        part.keep(Some(1)).unwrap();
        let next = folder.path().join("mark.new");
        fs::create_dir(&next).unwrap();
        assert!(part.keep(Some(2)).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n");
        fs::remove_dir(&next).unwrap();
        part.keep(Some(3)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "3\n");
        part.keep(None::<u32>).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
