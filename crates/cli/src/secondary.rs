//! `secondary`: follows a database that another process writes, and prints how far behind it is.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use siltstone::Db;
use siltstone::secondary::{Lag, Secondary, SecondaryPartition, Target};

use crate::output::{Failure, Output};

/// Arguments of `secondary`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the database
    database: PathBuf,
    /// Follow only this partition
    #[arg(long)]
    partition: Option<String>,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
    /// Catch up and print again every so many seconds, until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    watch: Option<u64>,
    /// Stop after this many prints
    #[arg(long, requires = "watch", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// Follows and prints.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let secondary = Db::secondary(&args.database)?;
    let mut out = Output::new(args.json);
    let most = if args.watch.is_some() { args.count.unwrap_or(u64::MAX) } else { 1 };
    for round in 0..most {
        if let Some(seconds) = args.watch.filter(|_| round > 0) {
            // Nobody unparks this thread; one that wakes early prints early.
            std::thread::park_timeout(Duration::from_secs(seconds));
        }
        let names = match &args.partition {
            Some(name) => vec![name.clone()],
            None => secondary.partition_names(),
        };
        for name in names {
            let partition = secondary.partition(&name)?;
            // Before it is caught up with: afterwards there is no lag.
            let lag = partition.lag();
            let seq = partition.sync(Target::Latest)?.seq.get();
            out.line(text(&partition, lag, seq), &json(&secondary, &partition, lag, seq))?;
        }
        out.flush()?;
    }
    out.finish()
}

fn text(partition: &SecondaryPartition, lag: Lag, seq: u64) -> String {
    let name = partition.name().escape_debug().to_string();
    let operations = lag.operations.map_or("?".to_owned(), |count| count.to_string());
    let age = lag.age.map_or("?".to_owned(), |age| format!("{:.3} s", age.as_secs_f64()));
    format!("{name:<20} was {operations} operations, {age} behind; now at {seq}")
}

fn json(secondary: &Secondary, partition: &SecondaryPartition, lag: Lag, seq: u64) -> Value {
    json!({
        "partition": partition.name(),
        "lag_operations": lag.operations,
        "lag_seconds": lag.age.map(|age| age.as_secs_f64()),
        "seq": seq,
        "has_live_primary": secondary.has_live_primary(),
        "memtable_bytes": secondary.memtable_bytes(),
    })
}
