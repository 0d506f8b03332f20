//! `gaps`: the ranges of keys in which entries are lost, their repair, and the acceptance of the loss.

use std::ffi::OsString;
use std::ops::Bound;

use serde_json::json;
use siltstone::{Gap, Partition};

use crate::bucket::ReadLength;
use crate::bytes::Encoding;
use crate::engine::{Existing, ReadTarget, Target, Writing};
use crate::output::{Failure, Output};
use crate::progress;

type ByteRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The subcommands of `gaps`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum GapsCommand {
    /// Lists the gaps; the exit status is 1 if there are any
    List(ListArgs),
    /// Repairs damage in a range with MetaHive's sources, and lists the gaps that remain
    ///
    /// The range is compacted, so that each block is verified and repaired from the sources that are there now. The exit
    /// status is 1 if gaps remain.
    Repair(RangeArgs),
    /// Accepts the loss of the entries in the gaps of a range, and lists these gaps
    ///
    /// Reads of the range succeed again. Every older entry in a gap is hidden for ever.
    Accept(RangeArgs),
}

/// Arguments of `gaps list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    target: ReadTarget,
    #[command(flatten)]
    encoding: Encoding,
}

/// Arguments of `gaps repair` and `gaps accept`.
#[derive(Debug, clap::Args)]
pub(crate) struct RangeArgs {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    writing: Writing,
    /// First key of the range
    #[arg(long)]
    from: Option<OsString>,
    /// End of the range; this key is not included
    #[arg(long)]
    to: Option<OsString>,
    #[command(flatten)]
    encoding: Encoding,
}

/// Runs a subcommand of `gaps`.
pub(crate) fn run(command: &GapsCommand) -> Result<(), Failure> {
    match command {
        GapsCommand::List(ListArgs { target, encoding }) => {
            let existing = Existing::open_to_read(&target.database, ReadLength::Short)?;
            let gaps = existing.partition(&target.partition)?.gaps();
            print(&gaps, *encoding, target.json)?;
            existing.close()?;
            verdict(&gaps, &target.partition)
        }
        GapsCommand::Repair(args) => {
            let gaps = args.change("gaps repair", Partition::repair)?;
            print(&gaps, args.encoding, args.target.json)?;
            verdict(&gaps, &args.target.partition)
        }
        GapsCommand::Accept(args) => {
            let gaps = args.change("gaps accept", Partition::accept_loss)?;
            print(&gaps, args.encoding, args.target.json)
        }
    }
}

impl RangeArgs {
    fn change(
        &self,
        verb: &str,
        call: impl FnOnce(&Partition, ByteRange) -> siltstone::Result<Vec<Gap>> + Send,
    ) -> Result<Vec<Gap>, Failure> {
        let bytes = self.encoding.bytes();
        let from = bytes.optional(self.from.as_ref())?;
        let to = bytes.optional(self.to.as_ref())?;
        let range = (
            from.map_or(Bound::Unbounded, Bound::Included),
            to.map_or(Bound::Unbounded, Bound::Excluded),
        );
        let existing = Existing::open(&self.target.database, &self.writing, verb)?;
        let partition = existing.partition(&self.target.partition)?;
        let gaps = progress::during(verb, String::new, move || call(&partition, range))?;
        existing.close()?;
        Ok(gaps)
    }
}

fn print(gaps: &[Gap], encoding: Encoding, is_json: bool) -> Result<(), Failure> {
    let bytes = encoding.bytes();
    let mut out = Output::new(is_json);
    for gap in gaps {
        let from = bytes.text(&gap.from);
        let to = bytes.text(&gap.to);
        let is_accepted = gap.closed_at.is_some();
        let object = bytes.with(json!({ "is_accepted": is_accepted }), "from", &*gap.from);
        let object = bytes.with(object, "to", &*gap.to);
        let state = if is_accepted { ", accepted" } else { "" };
        out.line(format_args!("entries between {from} and {to} are lost{state}"), &object)?;
    }
    out.finish()
}

fn verdict(gaps: &[Gap], partition: &str) -> Result<(), Failure> {
    match gaps.len() {
        0 => Ok(()),
        1 => Err(Failure::NotFound(format!("partition {partition:?} has a gap"))),
        count => Err(Failure::NotFound(format!("partition {partition:?} has {count} gaps"))),
    }
}
