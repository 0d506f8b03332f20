//! `compact` and `partitions`: a database as a whole.

use std::path::PathBuf;

use serde_json::json;

use crate::bucket::ReadLength;
use crate::engine::{self, Existing, Target, Writing};
use crate::output::{Failure, Output};
use crate::progress;
use crate::source::Source;

/// Arguments of `compact`.
#[derive(Debug, clap::Args)]
pub(crate) struct CompactArgs {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    writing: Writing,
    /// Compact every partition
    #[arg(long, conflicts_with = "partition")]
    all: bool,
}

/// Merges everything down to the lowest level.
pub(crate) fn compact(args: &CompactArgs) -> Result<(), Failure> {
    let existing = Existing::open(&args.target.database, &args.writing, "compact")?;
    let names = match args.all {
        true => engine::partition_names(&existing.db),
        false => vec![args.target.partition.clone()],
    };
    for name in &names {
        let partition = existing.partition(name)?;
        let before = existing.db.stats().compaction_read_bytes;
        progress::during(
            &format!("compacting {name:?}"),
            || progress::compacted(&existing.db, name, before),
            || partition.compact(..),
        )?;
    }
    // Compactions that these have triggered belong to the work, and their files to the result that
    // the user looks at next.
    existing.db.wait_idle()?;
    let mut out = Output::new(args.target.json);
    out.line(format_args!("compacted {}", names.join(", ")), &json!({ "compacted": names }))?;
    out.finish()?;
    Ok(existing.close()?)
}

/// Arguments of `partitions`.
#[derive(Debug, clap::Args)]
pub(crate) struct PartitionsArgs {
    /// Folder of the database, or URL of its bucket
    database: PathBuf,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Lists the partitions.
pub(crate) fn partitions(args: &PartitionsArgs) -> Result<(), Failure> {
    let source = Source::open(&args.database, ReadLength::Short)?;
    let mut out = Output::new(args.json);
    for name in source.partition_names() {
        out.line(&name, &json!({ "partition": name }))?;
    }
    out.finish()?;
    Ok(source.close()?)
}
