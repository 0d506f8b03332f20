//! `scrub`: compares every entry of a database with its metadata, partition by partition.
//!
//! Partitions come in the order of their numbers, which never changes: so a mark in one of them
//! shows which are done. The findings of each partition are printed when its run ends.
//!
//! Invariant: the exit code is 0 only if nothing that was read is damaged.

use std::path::PathBuf;

use serde_json::{Value, json};
use siltstone::Partition;
use siltstone::metahive::{self, ScrubMark, ScrubOptions, ScrubReport, TableReport};

use crate::engine::{Existing, partition_names};
use crate::explain::{fault_json, sealing_json};
use crate::output::{Failure, Output};
use crate::parts::{self, Part, damage_json, printable};

/// Arguments of `scrub`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the database, or URL of its bucket
    database: PathBuf,
    /// Scrub only this partition
    #[arg(long)]
    partition: Option<String>,
    #[command(flatten)]
    part: Part,
    /// Print JSON, one object a partition
    #[arg(long)]
    json: bool,
}

/// Scrubs the partitions, and prints the findings of each.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mark: Option<ScrubMark> = args.part.mark()?;
    let mut out = Output::new(args.json);
    let existing = match parts::open(&args.database)? {
        Ok(existing) => existing,
        Err(damage) => {
            let json = json!({ "opened": false, "damage": [damage_json(&damage)] });
            out.line(parts::refusal_text(&damage), &json)?;
            out.finish()?;
            return parts::verdict(true, args.database.display());
        }
    };
    let mut run = ScrubVerb { part: &args.part, tables: 0, bytes: 0 };
    let mut stopped = None;
    let mut is_damaged = false;
    for partition in partitions(&existing, args.partition.as_deref(), mark)? {
        let report = run.scrub(&partition, mark)?;
        is_damaged |= !report.is_undamaged();
        out.line(printable(&report), &report_json(&report))?;
        out.flush()?;
        stopped = report.mark;
        if stopped.is_some() {
            break;
        }
    }
    args.part.keep(stopped)?;
    out.finish()?;
    existing.close()?;
    parts::verdict(is_damaged, args.database.display())
}

/// The partitions that still have to be scrubbed, in the order of their numbers.
fn partitions(
    existing: &Existing,
    only: Option<&str>,
    mark: Option<ScrubMark>,
) -> Result<Vec<Partition>, Failure> {
    let names = match only {
        Some(name) => vec![name.to_owned()],
        None => partition_names(&existing.db),
    };
    let mut left = Vec::new();
    for name in names {
        let partition = existing.partition(&name)?;
        let walk = partition.walk()?;
        let db = walk.db_id();
        let id = walk.partition_id();
        if mark.is_some_and(|mark: ScrubMark| {
            mark.db() != db || (only.is_some() && mark.partition() != Some(id))
        }) {
            let text = "the mark is of another database or partition".to_owned();
            return Err(Failure::Usage(text));
        }
        if mark.is_none_or(|mark| mark.partition() <= Some(id)) {
            left.push((id, partition));
        }
    }

    left.sort_by_key(|(id, _)| *id);
    Ok(left.into_iter().map(|(_, partition)| partition).collect())
}

/// The parts of all partitions that were read so far.
struct ScrubVerb<'a> {
    part: &'a Part,
    tables: u64,
    bytes: u64,
}

impl ScrubVerb<'_> {
    fn scrub(
        &mut self,
        partition: &Partition,
        mark: Option<ScrubMark>,
    ) -> Result<ScrubReport, Failure> {
        let id = partition.walk()?.partition_id();
        let bar = parts::bar(&format!("{} ", partition.name()));
        let options = ScrubOptions::new()
            .bytes_per_second(self.part.rate)
            .resume_after(mark.filter(|mark| mark.partition() == Some(id)))
            .on_progress(|progress| {
                bar.set_length(progress.bytes);
                bar.set_position(progress.bytes_done);
                let tables = progress.files_done;
                let bytes = progress.bytes_done;
                self.part.goes_on(self.tables + tables, self.bytes + bytes)
            });
        let report = partition.scrub(options);
        bar.finish_and_clear();
        let report = report?;
        self.tables += report.tables.len() as u64;
        self.bytes += report.bytes;
        Ok(report)
    }
}

fn counts_json(counts: &metahive::ScrubCounts) -> Value {
    json!({
        "entries": counts.entries,
        "sealed": counts.sealed,
        "unsealed": counts.unsealed,
        "foreign": counts.foreign,
        "orphans": counts.orphans,
        "split_pairs": counts.split_pairs,
        "metadata_damaged": counts.metadata_damaged,
        "suspects": counts.suspects,
        "values": counts.values,
    })
}

fn table_json(table: &TableReport) -> Value {
    json!({
        "file": table.path.display().to_string(),
        "level": table.level,
        "bytes": table.bytes,
        "sealing": sealing_json(&table.sealing),
        "seal_entries": table.seal_entries,
        "counts": counts_json(&table.counts),
        "faults": table.faults.iter().map(fault_json).collect::<Vec<_>>(),
        "damage": table.damage.iter().map(damage_json).collect::<Vec<_>>(),
    })
}

fn report_json(report: &ScrubReport) -> Value {
    json!({
        "partition": report.partition,
        "opened": true,
        "has_metahive": report.has_metahive,
        "tables": report.tables.iter().map(table_json).collect::<Vec<_>>(),
        "counts": counts_json(&report.counts),
        "bytes": report.bytes,
        "unflushed_entries": report.unflushed.entries,
        "is_undamaged": report.is_undamaged(),
        "is_sealed": report.is_sealed(),
        "mark": report.mark.map(|mark| mark.to_string()),
    })
}
