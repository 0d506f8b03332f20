//! `put` and `delete`: one entry, durable when the command ends.

use std::ffi::OsString;

use serde_json::json;
use siltstone::{Db, Durability};

use crate::engine::{Existing, Target};
use crate::output::{Bytes, Failure, Output};

/// Arguments of `put`.
#[derive(Debug, clap::Args)]
pub(crate) struct PutArgs {
    #[command(flatten)]
    target: Target,
    /// The key
    key: OsString,
    /// The value
    value: OsString,
    /// Key and value are given in hex
    #[arg(long)]
    hex: bool,
}

/// Sets a key to a value; makes the database and the partition if they are not there.
pub(crate) fn put(args: &PutArgs) -> Result<(), Failure> {
    let bytes = Bytes::new(args.hex);
    let key = bytes.argument(&args.key)?;
    let value = bytes.argument(&args.value)?;
    let db = Db::open(&args.target.database)?;
    let partition = db.partition(&args.target.partition)?;
    partition.put_with(&key, &value, Durability::Sync)?;
    tell(&args.target, "put", &bytes.text(&key))?;
    Ok(db.close()?)
}

/// Arguments of `delete`.
#[derive(Debug, clap::Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    target: Target,
    /// The key
    key: OsString,
    /// The key is given in hex
    #[arg(long)]
    hex: bool,
}

/// Deletes a key, which must exist.
pub(crate) fn delete(args: &DeleteArgs) -> Result<(), Failure> {
    let bytes = Bytes::new(args.hex);
    let key = bytes.argument(&args.key)?;
    let existing = Existing::open(&args.target.database)?;
    let partition = existing.partition(&args.target.partition)?;
    if !partition.contains(&key)? {
        return Err(Failure::NotFound(format!("no key {}", bytes.text(&key))));
    }
    partition.delete_with(&key, Durability::Sync)?;
    tell(&args.target, "deleted", &bytes.text(&key))?;
    Ok(existing.db.close()?)
}

/// Silent as text, because it worked; one object as JSON.
fn tell(target: &Target, deed: &str, key: &str) -> Result<(), Failure> {
    if target.json {
        let mut out = Output::new(true);
        out.line("", &json!({ "done": deed, "key": key }))?;
        out.finish()?;
    }
    Ok(())
}
