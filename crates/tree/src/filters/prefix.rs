//! [`PrefixDropFilter`]: deletes every key with one of a set of prefixes.

use std::sync::Arc;

use crate::codec::{Reader, put_bytes};
use crate::error::Result;
use crate::hooks::{CompactionFilter, CompactionFilterFactory, Decision, Entry, Job};

/// Deletes every entry whose key begins with one of a set of prefixes.
///
/// The prefixes are stored with the partition, so that every open finds the filter by its name and
/// continues its work. Entries in tables are removed when the tables are compacted;
/// `Partition::compact` does that at once.
#[derive(Clone, Debug)]
pub struct PrefixDropFilter {
    prefixes: Arc<[Vec<u8>]>,
}

impl PrefixDropFilter {
    /// The name under which partitions store it.
    pub const NAME: &'static str = "prefix-drop";

    /// Returns a filter that deletes keys with one of `prefixes`.
    pub fn new(prefixes: impl IntoIterator<Item = impl Into<Vec<u8>>>) -> PrefixDropFilter {
        let mut prefixes: Vec<Vec<u8>> = prefixes.into_iter().map(Into::into).collect();
        // Sorted, so that equal sets have equal parameters.
        prefixes.sort_unstable();
        PrefixDropFilter { prefixes: prefixes.into() }
    }

    /// The filter that [`CompactionFilterFactory::params`] of another one describes.
    pub fn from_params(params: &[u8]) -> Option<PrefixDropFilter> {
        let mut reader = Reader::new(params);
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
        self.prefixes.iter().for_each(|prefix| put_bytes(&mut params, prefix));
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
