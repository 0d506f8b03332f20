//! `chunks`: the chunk files of a partition's large values, as the paper's table of chunks has them.
//!
//! A line for each file with its last offset and key range, and with the bytes that live and that
//! are garbage; then the sums.

use serde_json::json;
use siltstone::large_values::{ChunkInfo, Space};

use crate::bucket::ReadLength;
use crate::bytes::Bytes;
use crate::engine::{Existing, ReadTarget};
use crate::output::{Failure, Output};
use crate::stats::bytes;

/// Arguments of `chunks`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: ReadTarget,
}

/// Prints the chunk files.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let existing = Existing::open_to_read(&args.target.database, ReadLength::Short)?;
    let partition = existing.partition(&args.target.partition)?;
    let (Some(chunks), Some(space)) = (partition.chunks(), partition.space()) else {
        let message = format!("partition {:?} has no large values", args.target.partition);
        return Err(Failure::Usage(message));
    };
    let mut out = Output::new(args.target.json);
    for chunk in &chunks {
        out.line(chunk_text(chunk), &chunk_json(chunk))?;
    }
    out.line(space_text(chunks.len(), &space), &space_json(chunks.len(), &space))?;
    out.finish()?;
    Ok(existing.close()?)
}

fn state(chunk: &ChunkInfo) -> &'static str {
    match (chunk.is_moving, chunk.is_sealed) {
        (true, _) => "moving",
        (false, true) => "sealed",
        (false, false) => "open",
    }
}

fn file_name(chunk: &ChunkInfo) -> String {
    let name = chunk.path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn chunk_text(chunk: &ChunkInfo) -> String {
    let keys = match chunk.live_blocks {
        0 => "-".to_owned(),
        _ => {
            let smallest = Bytes::Text.text(&chunk.smallest);
            format!("{smallest} to {}", Bytes::Text.text(&chunk.largest))
        }
    };
    format!(
        "{} {:>6} last offset {}, live {} in {} values, pending {}, dead {}, keys {keys}",
        file_name(chunk),
        state(chunk),
        bytes(chunk.last_offset),
        bytes(chunk.live_bytes),
        chunk.live_blocks,
        bytes(chunk.pending_bytes),
        bytes(chunk.dead_bytes),
    )
}

fn chunk_json(chunk: &ChunkInfo) -> serde_json::Value {
    let object = json!({
        "path": chunk.path.display().to_string(),
        "state": state(chunk),
        "last_offset": chunk.last_offset,
        "live_values": chunk.live_blocks,
        "live_bytes": chunk.live_bytes,
        "pending_bytes": chunk.pending_bytes,
        "dead_bytes": chunk.dead_bytes,
    });
    let object = Bytes::Text.with(object, "first_key", &*chunk.smallest);
    Bytes::Text.with(object, "last_key", &*chunk.largest)
}

fn space_text(count: usize, space: &Space) -> String {
    format!(
        "{count} chunk files, {}: live {}, pending {}, dead {} (of it pinned by readers {})",
        bytes(space.total_bytes),
        bytes(space.live_bytes),
        bytes(space.pending_bytes),
        bytes(space.dead_bytes),
        bytes(space.pinned_bytes),
    )
}

fn space_json(count: usize, space: &Space) -> serde_json::Value {
    json!({
        "chunk_files": count,
        "total_bytes": space.total_bytes,
        "live_bytes": space.live_bytes,
        "pending_bytes": space.pending_bytes,
        "dead_bytes": space.dead_bytes,
        "pinned_bytes": space.pinned_bytes,
    })
}
