//! Counters of the block cache, striped so that threads do not share a cache line.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The counts of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Blocks that were found.
    pub hits: u64,
    /// Blocks that were not.
    pub misses: u64,
    /// Memory that the kept blocks take, in bytes.
    pub bytes: u64,
    /// The memory that it may take, in bytes.
    pub capacity: u64,
    /// Number of kept blocks.
    pub blocks: u64,
}

const STRIPES: usize = 32;

#[derive(Default)]
#[repr(align(128))]
struct Stripe {
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Hits and misses. All orderings are relaxed: sums are for people, nothing hangs on them.
pub(super) struct CacheCounters([Stripe; STRIPES]);

static NEXT_STRIPE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The stripe of this thread; beyond the last until it is chosen.
    static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
}

#[inline]
fn stripe() -> usize {
    STRIPE.with(|stripe| {
        if stripe.get() >= STRIPES {
            stripe.set(NEXT_STRIPE.fetch_add(1, Ordering::Relaxed) % STRIPES);
        }
        stripe.get()
    })
}

impl CacheCounters {
    pub(super) fn new() -> CacheCounters {
        CacheCounters(std::array::from_fn(|_| Stripe::default()))
    }

    #[inline]
    pub(super) fn count(&self, hit: bool) {
        let stripe = &self.0[stripe()];
        let counter = if hit { &stripe.hits } else { &stripe.misses };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// All hits and all misses.
    pub(super) fn totals(&self) -> (u64, u64) {
        self.0.iter().fold((0, 0), |(hits, misses), stripe| {
            let more_hits = stripe.hits.load(Ordering::Relaxed);
            (hits + more_hits, misses + stripe.misses.load(Ordering::Relaxed))
        })
    }
}
