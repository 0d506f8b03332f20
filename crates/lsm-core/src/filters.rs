//! Small compaction filters that applications ask for: entries that expire, prefixes that go.
//!
//! Both only decide, so both are exact under snapshots: what a snapshot sees stays until it is
//! gone. Neither hides an entry from reads before a compaction has come by.

use std::sync::Arc;

use crate::error::Result;
use crate::hooks::{CompactionFilter, CompactionFilterFactory, Decision, Entry, Job};

type ExpiresAt = dyn Fn(&[u8], &[u8]) -> Option<u64> + Send + Sync;
type Now = dyn Fn() -> u64 + Send + Sync;

/// Deletes entries whose time has come, in compactions and flushes.
///
/// The application says, from key and value, when an entry expires; the clock is its own
/// too, in the same unit.
#[derive(Clone)]
pub struct TtlFilter {
    expires_at: Arc<ExpiresAt>,
    now: Arc<Now>,
}

impl TtlFilter {
    /// The name under which partitions store it.
    pub const NAME: &'static str = "ttl";

    /// `expires_at` says when the entry of a key and value expires, `None` for never; `now` says
    /// what time it is, asked once for each job.
    pub fn new(
        expires_at: impl Fn(&[u8], &[u8]) -> Option<u64> + Send + Sync + 'static,
        now: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> TtlFilter {
        TtlFilter { expires_at: Arc::new(expires_at), now: Arc::new(now) }
    }
}

impl CompactionFilterFactory for TtlFilter {
    fn name(&self) -> &str {
        TtlFilter::NAME
    }

    fn start(&self, _job: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
        Ok(Box::new(TtlJob { expires_at: self.expires_at.clone(), now: (self.now)() }))
    }
}

struct TtlJob {
    expires_at: Arc<ExpiresAt>,
    now: u64,
}

impl CompactionFilter for TtlJob {
    fn decide(&mut self, entry: Entry<'_>) -> Result<Decision> {
        let expired = (self.expires_at)(entry.key, entry.value).is_some_and(|at| at <= self.now);
        Ok(if expired { Decision::Remove } else { Decision::Keep })
    }
}

/// Deletes every entry whose key begins with one of a set of prefixes.
///
/// The prefixes are stored with the partition, so a later open goes on where this one stopped.
#[derive(Clone, Debug)]
pub struct PrefixDropFilter {
    prefixes: Arc<[Vec<u8>]>,
}

impl PrefixDropFilter {
    /// The name under which partitions store it.
    pub const NAME: &'static str = "prefix-drop";

    /// Drops what begins with one of `prefixes`.
    pub fn new(prefixes: impl IntoIterator<Item = impl Into<Vec<u8>>>) -> PrefixDropFilter {
        let mut prefixes: Vec<Vec<u8>> = prefixes.into_iter().map(Into::into).collect();
        prefixes.sort_unstable();
        PrefixDropFilter { prefixes: prefixes.into() }
    }

    /// The filter that [`CompactionFilterFactory::params`] of another one describes.
    pub fn from_params(params: &[u8]) -> Option<PrefixDropFilter> {
        let mut reader = crate::codec::Reader::new(params);
        let mut prefixes: Vec<Vec<u8>> = Vec::new();
        while !reader.is_empty() {
            prefixes.push(reader.bytes().ok()?.to_vec());
        }
        Some(PrefixDropFilter { prefixes: prefixes.into() })
    }
}

impl CompactionFilterFactory for PrefixDropFilter {
    fn name(&self) -> &str {
        PrefixDropFilter::NAME
    }

    fn params(&self) -> Vec<u8> {
        let mut params = Vec::new();
        self.prefixes.iter().for_each(|prefix| crate::codec::put_bytes(&mut params, prefix));
        params
    }

    fn start(&self, _job: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
        Ok(Box::new(self.clone()))
    }
}

impl CompactionFilter for PrefixDropFilter {
    fn decide(&mut self, entry: Entry<'_>) -> Result<Decision> {
        let dropped = self.prefixes.iter().any(|prefix| entry.key.starts_with(prefix));
        Ok(if dropped { Decision::Remove } else { Decision::Keep })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_read_back_from_their_params() {
        let filter = PrefixDropFilter::new(["b", "a/"]);
        let again = PrefixDropFilter::from_params(&filter.params()).unwrap();
        assert_eq!(filter.prefixes, again.prefixes);
        assert!(PrefixDropFilter::from_params(&[9, 1]).is_none());
    }
}
