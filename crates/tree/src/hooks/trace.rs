//! Events for the `tracing` subscriber of the application.

use super::Event;

/// An event as a line of the application's log.
pub fn trace(event: &Event) {
    match event {
        Event::Flushed { partition, bytes, took } => {
            tracing::info!(partition, bytes, ?took, "flushed");
        }
        Event::Compacted { partition, level_from, level_to, read_bytes, written_bytes, took } => {
            let from = level_from;
            let to = level_to;
            tracing::info!(partition, from, to, read_bytes, written_bytes, ?took, "compacted");
        }
        Event::StallChanged { partition, pressure_permille, reason } => {
            tracing::info!(partition, pressure_permille, reason, "stall changed");
        }
        Event::Corruption(damage) => tracing::error!(%damage, "corruption"),
        Event::Repaired { partition, source, .. } => {
            tracing::warn!(partition, source, "repaired an entry");
        }
        Event::ChunkChanged { partition, path, change, bytes } => {
            tracing::info!(partition, path = %path.display(), ?change, bytes, "chunk file changed");
        }
        Event::Quarantined { damage, .. } => tracing::error!(%damage, "an entry is beyond repair"),
        Event::BackgroundError(error) => tracing::error!(%error, "background work failed"),
        Event::Resumed => tracing::info!("writes are accepted again"),
        Event::ClockJumped(jump) => tracing::warn!("{jump}"),
    }
}
