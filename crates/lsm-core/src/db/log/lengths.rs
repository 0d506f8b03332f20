//! The lengths of new segments: by what was written recently, and by how many were begun.
//!
//! Called by `segments.rs`.

/// A segment is at least so long, if the options allow it; the first ones are shorter, see
/// [`FIRST_SEGMENT_BYTES`].
pub(super) const SEGMENT_BYTES_MIN: u64 = 256 << 10;
/// The first segment of an epoch is at least so long, and each later one at least twice as long as that, up to
/// [`SEGMENT_BYTES_MIN`]. So a database of a few bytes takes a few KiB, and the segments of a writer with few
/// writes do not stay short: each new segment takes three syncs.
pub(super) const FIRST_SEGMENT_BYTES: u64 = 4 << 10;
/// A segment is so many times as long as the recent appends.
const GROWTH: u64 = 8;
/// A segment is made for at most so many appends of the recent size.
const APPENDS_MAX: u64 = 128 << 10;

/// The recent appends: all to the present segment, and less and less of earlier ones.
#[derive(Clone, Copy, Default)]
pub(super) struct Recent {
    /// Calls of the file, with one frame or several.
    pub(super) appends: u64,
    pub(super) bytes: u64,
    /// The segments that were begun in this epoch, which are not forgotten.
    pub(super) segments: u32,
}

impl Recent {
    /// Halves the earlier counts: a segment is begun, or the log was idle for some time.
    pub(super) fn fade(&mut self) {
        self.appends /= 2;
        self.bytes /= 2;
    }

    /// The length of a new segment, of at most `bytes_max`. A store with few writes takes little space; under
    /// load segments reach their full length after a few, so making them, which takes three syncs, is rare.
    /// Small appends take long to fill one of the greatest length, and it would hold the disk space all that
    /// time.
    pub(super) fn segment_bytes(self, bytes_max: u64) -> u64 {
        let doublings = self.segments.min(SEGMENT_BYTES_MIN.ilog2());
        let bytes_min = (FIRST_SEGMENT_BYTES << doublings).min(SEGMENT_BYTES_MIN).min(bytes_max);
        let filled = (self.bytes / self.appends.max(1)).saturating_mul(APPENDS_MAX);
        self.bytes.saturating_mul(GROWTH).min(filled).clamp(bytes_min, bytes_max)
    }
}
