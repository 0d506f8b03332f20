//! `explain`: everything that is stored of one key, its places, and whether it agrees with its
//! metadata.
//!
//! Invariant: the exit code is 0 only if something is stored of the key and none of it is damaged.

use std::ffi::OsString;

use serde_json::{Value, json};
use siltstone::metahive::{EntryFault, ExplainedMetadata, ExplainedVersion, Explanation, Sealing};

use crate::bucket::ReadLength;
use crate::bytes::{Bytes, Encoding};
use crate::engine::{Existing, ReadTarget};
use crate::output::{Failure, Output};
use crate::parts::{self, damage_json, printable};

/// Arguments of `explain`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: ReadTarget,
    /// The key
    key: OsString,
    #[command(flatten)]
    encoding: Encoding,
}

/// Prints what is known of a key.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let bytes = args.encoding.bytes();
    let key = bytes.argument(&args.key)?;
    let existing = Existing::open_to_read(&args.target.database, ReadLength::Short)?;
    let partition = existing.partition(&args.target.partition)?;
    let explanation = partition.explain(&key)?;
    let mut out = Output::new(args.target.json);
    out.line(printable(&explanation), &explanation_json(&explanation, bytes))?;
    out.finish()?;
    drop(partition);
    existing.close()?;
    parts::verdict(explanation.is_damaged(), format_args!("key {}", bytes.text(&key)))?;
    match explanation.versions.is_empty() {
        true => Err(Failure::NotFound(format!("no key {}", bytes.text(&key)))),
        false => Ok(()),
    }
}

fn explanation_json(explanation: &Explanation, bytes: Bytes) -> Value {
    let object = json!({
        "partition": explanation.partition,
        "versions": versions_json(&explanation.versions),
        "orphans": versions_json(&explanation.orphans),
        "damage": explanation.damage.iter().map(damage_json).collect::<Vec<_>>(),
        "is_damaged": explanation.is_damaged(),
    });
    bytes.with(object, "key", &*explanation.key)
}

fn versions_json(versions: &[ExplainedVersion]) -> Vec<Value> {
    versions.iter().map(version_json).collect()
}

fn version_json(explained: &ExplainedVersion) -> Value {
    let version = &explained.version;
    json!({
        "sequence": version.seq.get(),
        "stored_sequence": version.stored_seq.get(),
        "kind": format!("{:?}", version.kind),
        "value_bytes": version.value.len(),
        "file": version.path.as_ref().map(|path| path.display().to_string()),
        "level": version.at.file.map(|_| version.at.level),
        "offset": version.at.file.map(|_| version.at.block_offset),
        "entry": version.at.file.map(|_| version.at.entry),
        "block_verified": version.at.block_verified,
        "sealing": explained.sealing.as_ref().map(sealing_json),
        "metadata": explained.metadata.as_ref().map(metadata_json),
        "verdict": explained.verdict().map(|verdict| format!("{verdict:?}")),
        "expired": explained.expiry.map(|expiry| expiry.at <= expiry.now),
        "remaining_seconds": explained.expiry.map(|it| it.at.saturating_sub(it.now).as_secs_f64()),
        "fault": explained.fault.as_ref().map(fault_json),
    })
}

fn metadata_json(metadata: &ExplainedMetadata) -> Value {
    let integrity = metadata.integrity.map(|payload| {
        json!({
            "sequence": payload.seq.get(),
            "checksum": format!("{:016x}", payload.sum),
            "checksum_of_checksum": payload.sum_of_sum.to_string(),
        })
    });
    json!({
        "in_properties": metadata.at.is_none(),
        "offset": metadata.at.map(|at| at.block_offset),
        "entry": metadata.at.map(|at| at.entry),
        "payload": Bytes::Hex.text(&metadata.payload),
        "integrity": integrity,
    })
}

/// A word for the metadata of a table: present, absent, or its maker.
pub(crate) fn sealing_json(sealing: &Sealing) -> Value {
    match sealing {
        Sealing::Unsealed => json!("unsealed"),
        Sealing::Sealed => json!("sealed"),
        Sealing::Foreign(what) => json!({ "foreign": what }),
        other => json!(format!("{other:?}")),
    }
}

/// The faults of an entry, as an object.
pub(crate) fn fault_json(fault: &EntryFault) -> Value {
    let object = json!({
        "sequence": fault.seq.get(),
        "kind": format!("{:?}", fault.kind),
        "offset": fault.at.block_offset,
        "entry": fault.at.entry,
        "what": fault.what,
        "verdict": format!("{:?}", fault.verdict),
    });
    Bytes::Text.with(object, "key", &*fault.key)
}
