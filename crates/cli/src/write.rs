//! `put` and `delete`: one entry, or a deleted range of keys, durable when the command ends.

use std::ffi::OsString;
use std::io::Read;
use std::ops::Bound;
use std::path::PathBuf;

use serde_json::{Value, json};
use siltstone::{Durability, Partition};

use crate::bytes::{Bytes, Encoding};
use crate::engine::{self, Existing, Making, Target, Writing};
use crate::output::{Failure, Output};

/// Arguments of `put`.
#[derive(Debug, clap::Args)]
pub(crate) struct PutArgs {
    #[command(flatten)]
    target: Target,
    /// The key
    key: OsString,
    /// The value
    #[arg(required_unless_present = "value_file")]
    value: Option<OsString>,
    /// Read the value from this file, byte for byte; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    value_file: Option<PathBuf>,
    #[command(flatten)]
    making: Making,
    #[command(flatten)]
    encoding: Encoding,
}

/// Sets a key to a value; makes the database and the partition if they do not exist.
pub(crate) fn put(args: &PutArgs) -> Result<(), Failure> {
    let bytes = args.encoding.bytes();
    let key = bytes.argument(&args.key)?;
    let mut value = bytes.optional(args.value.as_ref())?.unwrap_or_default();
    // All arguments are read before anything is made.
    let file = match &args.value_file {
        Some(path) => Some((path, engine::open_source(path)?)),
        None => None,
    };
    let written = args.making.open(&args.target.database, "put")?;
    let partition = written.db.partition(&args.target.partition)?;
    match file {
        // Streamed only if the value goes to a chunk file. A value of a table is held in memory in
        // any case.
        Some((path, mut source)) if partition.space().is_some() => {
            engine::put_stream(&partition, &key, None, &mut source, path, Durability::Sync)?;
        }
        file => {
            if let Some((path, mut source)) = file {
                let read = source.read_to_end(&mut value);
                read.map_err(|e| Failure::io("read", path, &e))?;
            }
            partition.put_with(&key, &value, Durability::Sync).map(drop)?;
        }
    }
    report(&args.target, bytes.with(json!({ "done": "put" }), "key", &*key))?;
    Ok(written.close()?)
}

/// Arguments of `delete`.
#[derive(Debug, clap::Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    writing: Writing,
    /// The key
    #[arg(required_unless_present_any = ["prefix", "from", "to"])]
    key: Option<OsString>,
    /// Delete all keys with this prefix, at once
    #[arg(long, conflicts_with_all = ["key", "from", "to"])]
    prefix: Option<OsString>,
    /// Delete all keys from this one on, at once; with --to a range
    #[arg(long, conflicts_with = "key")]
    from: Option<OsString>,
    /// Delete all keys before this one, at once; with --from a range
    #[arg(long, conflicts_with = "key")]
    to: Option<OsString>,
    #[command(flatten)]
    encoding: Encoding,
}

/// Deletes a key, which must exist, or a range of keys.
pub(crate) fn delete(args: &DeleteArgs) -> Result<(), Failure> {
    let bytes = args.encoding.bytes();
    let existing = Existing::open(&args.target.database, &args.writing, "delete")?;
    let partition = existing.partition(&args.target.partition)?;
    let Some(key) = bytes.optional(args.key.as_ref())? else {
        let deed = delete_many(args, &partition, bytes)?;
        report(&args.target, deed)?;
        return Ok(existing.close()?);
    };
    // The engine accepts a deletion of any key. A user who mistypes a key should get an error.
    if !partition.contains(&key)? {
        return Err(Failure::NotFound(format!("no key {}", bytes.text(&key))));
    }
    partition.delete_with(&key, Durability::Sync)?;
    report(&args.target, bytes.with(json!({ "done": "deleted" }), "key", &*key))?;
    Ok(existing.close()?)
}

/// Deletes the keys of a range; returns it as an object.
fn delete_many(args: &DeleteArgs, partition: &Partition, bytes: Bytes) -> Result<Value, Failure> {
    let done = json!({ "done": "deleted" });
    if let Some(prefix) = bytes.optional(args.prefix.as_ref())? {
        partition.delete_prefix_with(&prefix, Durability::Sync)?;
        return Ok(bytes.with(done, "prefix", &*prefix));
    }
    let from = bytes.optional(args.from.as_ref())?;
    let to = bytes.optional(args.to.as_ref())?;
    let object = bytes.with(done, "from", from.as_deref());
    let object = bytes.with(object, "to", to.as_deref());
    let lower = from.map_or(Bound::Unbounded, Bound::Included);
    let upper = to.map_or(Bound::Unbounded, Bound::Excluded);
    partition.delete_range_with((lower, upper), Durability::Sync)?;
    Ok(object)
}

/// Prints no text, because it succeeded; one object as JSON.
fn report(target: &Target, deed: Value) -> Result<(), Failure> {
    if target.json {
        let mut out = Output::new(true);
        out.line("", &deed)?;
        out.finish()?;
    }
    Ok(())
}
