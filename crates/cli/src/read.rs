//! `get`, `scan` and `count`: they read and change nothing, even while another process writes.

use std::ffi::OsString;

use serde_json::{Value, json};
use siltstone::large_values::BlobReader;
use siltstone::{Readable, RemainingTime};

use crate::bucket::ReadLength;
use crate::bytes::{Bytes, Encoding};
use crate::engine::{self, ReadTarget};
use crate::output::{Failure, Output};
use crate::progress;
use crate::source::Source;

/// Arguments of `get`.
#[derive(Debug, clap::Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    target: ReadTarget,
    /// The keys; with more than one, each value is printed after its key and a tab
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<OsString>,
    #[command(flatten)]
    encoding: Encoding,
    /// Write only the bytes of the value, of one key
    #[arg(long, conflicts_with_all = ["hex", "base64", "json", "remaining"])]
    raw: bool,
    /// Print entries that have expired as well, as long as they are stored
    #[arg(long)]
    expired: bool,
    /// Print after each value how long it is still seen: seconds, `unlimited` or `expired`
    #[arg(long)]
    remaining: bool,
}

/// Prints the values of keys, as of one moment.
pub(crate) fn get(args: &GetArgs) -> Result<(), Failure> {
    let bytes = args.encoding.bytes();
    let keys = args.keys.iter().map(|key| bytes.argument(key));
    let keys = keys.collect::<Result<Vec<_>, Failure>>()?;
    if args.raw && keys.len() > 1 {
        return Err(Failure::Usage("--raw takes one key".to_owned()));
    }
    let source = Source::open(&args.target.database, ReadLength::Short)?;
    let mut partition = source.partition(&args.target.partition)?;
    // Before the expired ones are asked for: these have no time left.
    let times = keys.iter().filter(|_| args.remaining).map(|key| partition.remaining_time(key));
    let times = times.collect::<siltstone::Result<Vec<_>>>()?;
    if args.expired {
        partition = partition.with_expired();
    }

    let mut out = Output::new(args.target.json);
    if args.raw {
        let key = &keys[0];
        stream(&mut partition.open_blob(key)?.ok_or_else(|| absent(bytes, &[key]))?, &mut out)?;
        out.finish()?;
        return Ok(source.close()?);
    }
    let values = partition.multi_get(&keys)?;
    let mut missing = Vec::new();
    for (at, (key, value)) in keys.iter().zip(&values).enumerate() {
        let Some(value) = value else {
            missing.push(key);
            continue;
        };
        let mut text = bytes.text(value);
        let mut json = bytes.entry(key, Some(value));
        if keys.len() > 1 {
            text = format!("{}\t{text}", bytes.text(key));
        }
        if let Some(time) = times.get(at) {
            text = format!("{text}\t{}", remaining_text(*time));
            json["remaining"] = remaining_json(*time);
        }
        out.line(text, &json)?;
    }
    out.finish()?;
    source.close()?;
    if missing.is_empty() { Ok(()) } else { Err(absent(bytes, &missing)) }
}

/// The time that an entry has left; of one that readers do not see, `None`.
fn remaining_text(time: Option<RemainingTime>) -> String {
    match time {
        None => "expired".to_owned(),
        Some(RemainingTime::Limited(time)) => time.as_secs().to_string(),
        Some(_) => "unlimited".to_owned(),
    }
}

fn remaining_json(time: Option<RemainingTime>) -> Value {
    match time {
        Some(RemainingTime::Limited(time)) => json!(time.as_secs()),
        other => json!(remaining_text(other)),
    }
}

fn absent(bytes: Bytes, keys: &[&Vec<u8>]) -> Failure {
    let texts: Vec<String> = keys.iter().map(|key| bytes.text(key)).collect();
    Failure::NotFound(format!("no key {}", texts.join(", ")))
}

/// Prints a value that may be larger than memory.
fn stream(value: &mut BlobReader, out: &mut Output) -> Result<(), Failure> {
    // No larger than the value, because most are short.
    let mut piece = vec![0; engine::PIECE_BYTES.min(value.len() as usize)];
    loop {
        let len = engine::read_piece(value, &mut piece).map_err(engine::stored_failure)?;
        if len == 0 {
            return Ok(());
        }
        out.raw(&piece[..len])?;
    }
}

/// Arguments of `scan`.
#[derive(Debug, clap::Args)]
pub(crate) struct ScanArgs {
    #[command(flatten)]
    target: ReadTarget,
    /// Print only keys with this prefix
    #[arg(long, conflicts_with_all = ["from", "to"])]
    prefix: Option<OsString>,
    /// First key of the range
    #[arg(long)]
    from: Option<OsString>,
    /// End of the range; this key is not included
    #[arg(long)]
    to: Option<OsString>,
    /// Print in descending order of keys
    #[arg(long)]
    reverse: bool,
    /// Maximum number of entries
    #[arg(long)]
    limit: Option<usize>,
    /// Print keys only
    #[arg(long)]
    keys: bool,
    #[command(flatten)]
    encoding: Encoding,
}

/// Prints entries in key order.
pub(crate) fn scan(args: &ScanArgs) -> Result<(), Failure> {
    let bytes = args.encoding.bytes();
    let prefix = bytes.optional(args.prefix.as_ref())?;
    let from = bytes.optional(args.from.as_ref())?;
    let to = bytes.optional(args.to.as_ref())?;

    let source = Source::open(&args.target.database, ReadLength::Long)?;
    let partition = source.partition(&args.target.partition)?;
    let entries = match prefix {
        Some(prefix) => partition.prefix(&prefix),
        None => engine::entries(&partition, from, to),
    };
    let mut out = Output::new(args.target.json);
    if args.keys {
        // Keys alone: otherwise each large value would be read.
        for key in args.in_order(entries.keys()) {
            let key = key?;
            out.line(bytes.text(&key), &bytes.entry(&key, None))?;
        }
    } else {
        for entry in args.in_order(entries) {
            let (key, value) = entry?;
            let text = format_args!("{}\t{}", bytes.text(&key), bytes.text(&value)).to_string();
            out.line(text, &bytes.entry(&key, Some(&value)))?;
        }
    }
    out.finish()?;
    Ok(source.close()?)
}

impl ScanArgs {
    /// The requested items in the requested order.
    fn in_order<T>(
        &self,
        items: impl DoubleEndedIterator<Item = T> + 'static,
    ) -> Box<dyn Iterator<Item = T>> {
        let limit = self.limit.unwrap_or(usize::MAX);
        // Reversed before it is limited: the last entries of a range, and not its first ones backwards.
        if self.reverse { Box::new(items.rev().take(limit)) } else { Box::new(items.take(limit)) }
    }
}

/// Arguments of `count`.
#[derive(Debug, clap::Args)]
pub(crate) struct CountArgs {
    #[command(flatten)]
    target: ReadTarget,
}

/// Prints how many entries there are.
pub(crate) fn count(args: &CountArgs) -> Result<(), Failure> {
    let source = Source::open(&args.target.database, ReadLength::Long)?;
    let partition = source.partition(&args.target.partition)?;
    let count = progress::during("counting", String::new, || engine::count(&partition))?;
    drop(partition);
    let mut out = Output::new(args.target.json);
    out.line(count, &json!({ "count": count }))?;
    out.finish()?;
    Ok(source.close()?)
}
