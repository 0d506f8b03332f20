//! `put` and `delete`: one entry, durable when the command ends.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::json;
use siltstone::{Db, Durability};

use crate::bytes::Encoding;
use crate::engine::{Existing, Target};
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
    encoding: Encoding,
}

/// Sets a key to a value; makes the database and the partition if they are not there.
pub(crate) fn put(args: &PutArgs) -> Result<(), Failure> {
    let bytes = args.encoding.bytes();
    let key = bytes.argument(&args.key)?;
    let value = match &args.value_file {
        Some(path) => read_whole(path)?,
        None => bytes.optional(args.value.as_ref())?.unwrap_or_default(),
    };
    let db = Db::open(&args.target.database)?;
    let partition = db.partition(&args.target.partition)?;
    partition.put_with(&key, &value, Durability::Sync)?;
    tell(&args.target, "put", &bytes.text(&key))?;
    Ok(db.close()?)
}

/// The content of a file; `-` is standard input.
#[expect(clippy::disallowed_methods, reason = "the file is outside every database")]
fn read_whole(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = match path.as_os_str() == "-" {
        true => io::stdin().read_to_end(&mut bytes),
        false => fs::File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)),
    };
    read.map_err(|e| Failure::io("read", path, &e))?;
    Ok(bytes)
}

/// Arguments of `delete`.
#[derive(Debug, clap::Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    target: Target,
    /// The key
    key: OsString,
    #[command(flatten)]
    encoding: Encoding,
}

/// Deletes a key, which must exist.
pub(crate) fn delete(args: &DeleteArgs) -> Result<(), Failure> {
    let bytes = args.encoding.bytes();
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
