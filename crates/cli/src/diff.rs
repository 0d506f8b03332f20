//! `diff`: the keys that differ between two databases, by partition.
//!
//! Both are read in the order of their keys, each as it is when the command begins. A database is a folder, a checkpoint, or
//! the URL of a bucket; another process may write it.
//!
//! Invariant: the exit status is 0 only if both were read to the end and nothing differs.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::json;
use siltstone::{Readable, Result as StoreResult, Slice};

use crate::bucket::ReadLength;
use crate::bytes::{Bytes, Encoding};
use crate::output::{Failure, Output};
use crate::source::{Readings, Source};

/// Arguments of `diff`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of a database, or URL of its bucket
    left: PathBuf,
    /// Folder of the other database, or URL of its bucket
    right: PathBuf,
    /// Compare this partition only
    #[arg(long)]
    partition: Option<String>,
    /// Stop after so many differences
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Print nothing; the exit status says it
    #[arg(long, conflicts_with = "json")]
    quiet: bool,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    encoding: Encoding,
}

/// Prints the keys that differ.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let left = Source::open(&args.left, ReadLength::Long)?;
    let right = Source::open(&args.right, ReadLength::Long)?;
    let names: BTreeSet<String> = match &args.partition {
        Some(name) => BTreeSet::from([name.clone()]),
        None => [left.partition_names(), right.partition_names()].concat().into_iter().collect(),
    };
    let mut report = Report {
        out: Output::new(args.json),
        bytes: args.encoding.bytes(),
        left: if args.quiet { 1 } else { args.limit.unwrap_or(u64::MAX) },
        is_quiet: args.quiet,
        count: 0,
    };
    for name in &names {
        if report.left == 0 {
            break;
        }
        compare(present(&left, name)?, present(&right, name)?, name, &mut report)?;
    }
    let count = report.count;
    report.out.finish()?;
    left.close()?;
    right.close()?;
    match count {
        0 => Ok(()),
        1 => Err(Failure::NotFound("1 difference".to_owned())),
        count => Err(Failure::NotFound(format!("{count} differences"))),
    }
}

/// A partition of `source`, if it is there.
fn present(source: &Source, name: &str) -> Result<Option<Readings>, Failure> {
    match source.partition_names().iter().any(|found| found == name) {
        true => source.partition(name).map(Some),
        false => Ok(None),
    }
}

/// The differences that were found, and the place where they are printed.
struct Report {
    out: Output,
    bytes: Bytes,
    /// Differences until the end.
    left: u64,
    is_quiet: bool,
    count: u64,
}

impl Report {
    /// Adds a difference: `<` only left, `>` only right, `!` other values.
    fn add(&mut self, mark: &str, partition: &str, key: Option<&[u8]>) -> Result<(), Failure> {
        self.count += 1;
        self.left -= 1;
        if self.is_quiet {
            return Ok(());
        }
        let text = key.map_or("(the partition)".to_owned(), |key| self.bytes.text(key));
        let what = match mark {
            "<" => "only_left",
            ">" => "only_right",
            _ => "value",
        };
        let object = json!({ "partition": partition, "difference": what });
        let object = self.bytes.with(object, "key", key);
        self.out.line(format_args!("{mark} {partition}\t{text}"), &object)
    }
}

type Entries = dyn Iterator<Item = StoreResult<(Slice, Slice)>>;

fn compare(
    left: Option<Readings>,
    right: Option<Readings>,
    name: &str,
    report: &mut Report,
) -> Result<(), Failure> {
    match (&left, &right) {
        (Some(_), None) => report.add("<", name, None)?,
        (None, Some(_)) => report.add(">", name, None)?,
        _ => {}
    }
    let mut left: Box<Entries> = match left {
        Some(readings) => Box::new(readings.iter()),
        None => Box::new(std::iter::empty()),
    };
    let mut right: Box<Entries> = match right {
        Some(readings) => Box::new(readings.iter()),
        None => Box::new(std::iter::empty()),
    };
    let mut one = left.next().transpose()?;
    let mut other = right.next().transpose()?;
    while report.left > 0 {
        let order = match (&one, &other) {
            (None, None) => return Ok(()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((one, _)), Some((other, _))) => one.cmp(other),
        };
        if let Some((key, _)) = one.as_ref().filter(|_| order.is_lt()) {
            report.add("<", name, Some(key))?;
        }
        if let Some((key, _)) = other.as_ref().filter(|_| order.is_gt()) {
            report.add(">", name, Some(key))?;
        }
        if let (Some((key, one)), Some((_, other))) = (&one, &other)
            && order.is_eq()
            && one != other
        {
            report.add("!", name, Some(key))?;
        }
        if order.is_le() {
            one = left.next().transpose()?;
        }
        if order.is_ge() {
            other = right.next().transpose()?;
        }
    }
    Ok(())
}
