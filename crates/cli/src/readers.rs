//! `readers`: the secondaries that hold files of a database.

use std::fmt::Write;
use std::path::PathBuf;

use serde_json::json;
use siltstone::LeaseHolder;

use crate::bucket::{ReadLength, needs_folder};
use crate::engine::Existing;
use crate::output::{Failure, Output};

/// Arguments of `readers`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the database
    database: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints the secondaries, and the age of the state that each reads.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    needs_folder(&args.database, "readers", "remote status lists the leases of a bucket")?;
    let existing = Existing::open_to_read(&args.database, ReadLength::Short)?;
    let mut holders = existing.db.lease_holders()?;
    // This command's own, if it reads while another process writes.
    holders.retain(|holder| holder.process != std::process::id());
    let held_bytes = existing.db.stats().leased_bytes;
    let mut out = Output::new(args.json);
    let values: Vec<_> = holders.iter().map(json_of).collect();
    out.line(text(&holders, held_bytes), &json!({ "readers": values, "held_bytes": held_bytes }))?;
    out.finish()?;
    Ok(existing.close()?)
}

fn json_of(holder: &LeaseHolder) -> serde_json::Value {
    json!({
        "process": holder.process,
        "is_local": holder.is_local,
        "edits_behind": holder.edits_behind,
    })
}

fn text(holders: &[LeaseHolder], held_bytes: u64) -> String {
    let mut text = format!("{} secondaries hold {held_bytes} bytes", holders.len());
    for holder in holders {
        let LeaseHolder { process, is_local, edits_behind, .. } = holder;
        let place = if *is_local { "here" } else { "elsewhere" };
        let _ = write!(text, "\nprocess {process} {place}, {edits_behind} edits behind");
    }
    text
}
