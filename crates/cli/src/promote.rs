//! `promote`: takes a database from the process that writes it, and leaves it closed.
//!
//! For an operator whose primary does not answer. Another process can open the database afterwards;
//! if the old primary wakes up, it cannot write to it any more.

use std::path::PathBuf;

use serde_json::json;
use siltstone::Db;

use crate::bucket::needs_folder;
use crate::files::files;
use crate::output::{Failure, Output};

/// Arguments of `promote`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the database
    database: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Fences the primary, recovers what it had committed, and closes the database.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    needs_folder(
        &args.database,
        "promote",
        "remote take-over takes a database from another machine",
    )?;
    // Refuses a folder without a database, which an open for writing would make one.
    let secondary = Db::secondary_builder(&args.database).fs(files()).open()?;
    let db = Db::promote(&secondary)?;
    let seq = db.visible_seq();
    drop(secondary);
    let mut out = Output::new(args.json);
    let text = format!("taken over at sequence {seq}; the old primary is fenced");
    out.line(text, &json!({ "sequence": seq.get() }))?;
    out.finish()?;
    Ok(db.close()?)
}
