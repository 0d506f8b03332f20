//! [`Budget`]: the bytes that the incomplete requests of all connections hold.
//!
//! Invariant: the sum is that of the connections that live. Each counts its own bytes, and its end takes them away.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of an incomplete request that are not counted.
const UNCOUNTED_BYTES: usize = 64 << 10;

/// The bytes of all incomplete requests.
#[derive(Debug)]
pub(crate) struct Budget {
    most: usize,
    // Relaxed: nothing else depends on it.
    used: AtomicUsize,
}

/// The part of one connection.
pub(crate) struct Incomplete {
    budget: Arc<Budget>,
    counted: usize,
}

impl Budget {
    pub(crate) fn new(most: usize) -> Budget {
        Budget { most, used: AtomicUsize::new(0) }
    }
}

impl Incomplete {
    pub(crate) fn new(budget: Arc<Budget>) -> Incomplete {
        Incomplete { budget, counted: 0 }
    }

    /// Counts `bytes` in the place of those before; `false` if there are too many of all connections.
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        let bytes = bytes.saturating_sub(UNCOUNTED_BYTES);
        if bytes == self.counted {
            return true;
        }
        let others = self.budget.used.fetch_add(bytes, Ordering::Relaxed) - self.counted;
        self.budget.used.fetch_sub(self.counted, Ordering::Relaxed);
        self.counted = bytes;
        bytes == 0 || others + bytes <= self.budget.most
    }
}

impl Drop for Incomplete {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_that_of_the_connections_that_live() {
        let budget = Arc::new(Budget::new(1000));
        let mut one = Incomplete::new(budget.clone());
        let mut other = Incomplete::new(budget.clone());
        assert!(one.set(UNCOUNTED_BYTES) && one.set(UNCOUNTED_BYTES + 600));
        assert!(other.set(UNCOUNTED_BYTES + 400) && !other.set(UNCOUNTED_BYTES + 401));
        drop(other);
        assert!(one.set(UNCOUNTED_BYTES + 1000) && !one.set(UNCOUNTED_BYTES + 1001) && one.set(0));
        drop(one);
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }
}
