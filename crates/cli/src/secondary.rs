//! `secondary`: follows a database that another process writes, and prints its lag.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use siltstone::secondary::{Lag, Level, Secondary, SecondaryPartition, Target};
use siltstone::{Db, Slice};

use crate::bucket::{BucketPlace, ReadLength, url_of};
use crate::bytes::Bytes;
use crate::files::files;
use crate::output::{Failure, Output};

/// Arguments of `secondary`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the database, or URL of its bucket
    database: PathBuf,
    /// Follow only this partition
    #[arg(long)]
    partition: Option<String>,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
    /// Print the lag in the text format of Prometheus
    #[arg(long, conflicts_with_all = ["json", "partition", "serve"])]
    prometheus: bool,
    /// Catch up and print again every so many seconds, until interrupted. From a bucket each time costs two GETs for
    /// each partition: every second 2 $ a month on S3 Standard, every 60 seconds 0.03 $
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    watch: Option<u64>,
    /// Answer requests on standard input: `get KEY`, `strong KEY`, `scan PREFIX`, `lag`, `sync`, each on
    /// a line of its own
    #[arg(long, requires = "partition", conflicts_with = "watch")]
    serve: bool,
    /// Stop after this many prints
    #[arg(long, requires = "watch", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// Follows and prints.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let secondary = open(args)?;
    let mut out = Output::new(args.json);
    if let (true, Some(name)) = (args.serve, &args.partition) {
        return serve(&secondary, &secondary.partition(name)?, &mut out);
    }
    let most = if args.watch.is_some() { args.count.unwrap_or(u64::MAX) } else { 1 };
    for round in 0..most {
        if let Some(seconds) = args.watch.filter(|_| round > 0) {
            // The thread is never unparked on purpose; after an early wake-up it prints early.
            std::thread::park_timeout(Duration::from_secs(seconds));
        }
        if args.prometheus {
            // Before the catch-up: afterwards there is no lag.
            out.raw(siltstone::metrics::prometheus(&secondary.stats(), &[]).as_bytes())?;
            secondary.sync(Target::Latest)?;
            out.flush()?;
            continue;
        }
        let names = match &args.partition {
            Some(name) => vec![name.clone()],
            None => secondary.partition_names(),
        };
        for name in names {
            let partition = secondary.partition(&name)?;
            // Before the catch-up: afterwards there is no lag.
            let lag = partition.lag();
            let seq = partition.sync(Target::Latest)?.seq.get();
            out.line(text(&partition, lag, seq), &json(&secondary, &partition, lag, seq))?;
        }
        out.flush()?;
    }
    out.finish()
}

fn open(args: &Args) -> Result<Secondary, Failure> {
    let Some(url) = url_of(&args.database) else {
        return Ok(Db::secondary_builder(&args.database).fs(files()).open()?);
    };
    let is_long = args.serve || args.watch.is_some();
    let length = if is_long { ReadLength::Long } else { ReadLength::Short };
    Ok(BucketPlace::new(url)?.reader(length)?.secondary().open()?)
}

/// Answers requests until there are no more.
fn serve(
    secondary: &Secondary,
    partition: &SecondaryPartition,
    out: &mut Output,
) -> Result<(), Failure> {
    for line in std::io::stdin().lines() {
        let line = line.map_err(|e| Failure::Io(format!("cannot read a request: {e}")))?;
        let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match verb {
            "get" => answer(out, rest, partition.get(rest)?)?,
            "strong" => answer(out, rest, partition.at(Level::Strong)?.get(rest)?)?,
            "scan" => {
                for entry in partition.at(Level::Eventual)?.prefix(rest) {
                    let (key, value) = entry?;
                    let text = format!("{}\t{}", as_text(&key), as_text(&value));
                    out.line(text, &Bytes::Text.entry(&key, Some(&value)))?;
                }
            }
            "lag" | "sync" => {
                let lag = partition.lag();
                if verb == "sync" {
                    partition.sync(Target::Latest)?;
                }
                let seq = partition.at(Level::Eventual)?.as_of().seq.get();
                out.line(text(partition, lag, seq), &json(secondary, partition, lag, seq))?;
            }
            _ => {
                let text = "get KEY, strong KEY, scan PREFIX, lag, or sync";
                out.line(text, &json!({ "error": text }))?;
            }
        }
        // After each answer: the client waits for it before it sends more.
        out.flush()?;
    }
    Ok(())
}

fn as_text(bytes: &[u8]) -> String {
    Bytes::Text.text(bytes)
}

fn answer(out: &mut Output, key: &str, value: Option<Slice>) -> Result<(), Failure> {
    let text = value.as_ref().map_or("(nothing)".to_owned(), |value| as_text(value));
    out.line(text, &Bytes::Text.with(json!({ "key": key }), "value", value.as_deref()))
}

fn text(partition: &SecondaryPartition, lag: Lag, seq: u64) -> String {
    let name = partition.name().escape_debug().to_string();
    let operations = lag.operations.map_or("?".to_owned(), |count| count.to_string());
    let bytes = lag.bytes.map_or("?".to_owned(), |count| count.to_string());
    let age = lag.age.map_or("?".to_owned(), |age| format!("{:.3} s", age.as_secs_f64()));
    format!("{name:<20} was {operations} operations, {bytes} bytes, {age} behind; now at {seq}")
}

fn json(secondary: &Secondary, partition: &SecondaryPartition, lag: Lag, seq: u64) -> Value {
    json!({
        "partition": partition.name(),
        "lag_operations": lag.operations,
        "lag_bytes": lag.bytes,
        "lag_seconds": lag.age.map(|age| age.as_secs_f64()),
        "seq": seq,
        "has_live_primary": secondary.has_live_primary(),
        "memtable_bytes": secondary.memtable_bytes(),
    })
}
