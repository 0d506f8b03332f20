//! [`Expiry`]: by which time entries leave a partition.
//!
//! A filter that removes entries by their age says so here. The engine then asks it of every entry
//! that a flush or a compaction writes, tables remember the answers, and a table in which enough has
//! expired becomes due for a compaction by itself.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::{CompactionFilterFactory, PartitionHooks};
use crate::codec::{checksum64, put_bytes};

/// The moments at which entries expire, in a unit of its own.
pub trait Expiry: Send + Sync {
    /// Returns the moment from which on the entry of a user key is to go; `None` for never. The value
    /// is `None` where it is stored apart, as large values are.
    fn expires_at(&self, key: &[u8], value: Option<&[u8]>) -> Option<u64>;

    /// Returns the present moment in the unit of [`expires_at`](Self::expires_at). `unix_time` is
    /// that of the database's clock ([`Clock::unix_time`](crate::clock::Clock::unix_time)).
    ///
    /// Called under locks of the engine: it looks at a clock and calls nothing of the database.
    fn now(&self, unix_time: Duration) -> u64;

    /// Returns the time for which an expired entry may stay in a table in which little has expired;
    /// `None` until everything of the table that ever expires has. Default.
    fn stays_for(&self) -> Option<u64> {
        None
    }

    /// Returns `true` if the answer may stand in the value, so that no value may be stored apart.
    /// Default: no.
    fn reads_values(&self) -> bool {
        false
    }

    /// Returns `true` if readers do not see an expired entry either. Then they call
    /// [`expires_at`](Self::expires_at) with each entry that they find, on their own threads, and a panic is
    /// theirs. Default: no.
    fn hides(&self) -> bool {
        false
    }

    /// Returns a moment as the time since 1970; `None` if it is not measured by the database's clock. Default.
    fn unix_time(&self, moment: u64) -> Option<Duration> {
        let _ = moment;
        None
    }
}

/// The [`Expiry`] of a partition and the mark by which tables know it.
#[derive(Clone)]
pub struct Ageing {
    /// The times of the filter.
    pub expiry: Arc<dyn Expiry>,
    /// A checksum of the filter's name and parameters: what a table remembers of another one is
    /// not asked.
    pub rule: u64,
}

/// The [`Ageing`] of a partition, found by the first call that asks: every look for a compaction does.
///
/// A clone starts empty, because the filters of the cloned hooks may be changed.
#[derive(Default)]
pub struct KnownAgeing(OnceLock<Option<Ageing>>);

impl KnownAgeing {
    /// This one, whatever the filters are.
    pub fn of(ageing: Option<Ageing>) -> KnownAgeing {
        KnownAgeing(OnceLock::from(ageing))
    }
}

impl Clone for KnownAgeing {
    fn clone(&self) -> KnownAgeing {
        KnownAgeing::default()
    }
}

impl PartitionHooks {
    /// The filter that removes entries by their age.
    pub fn ageing(&self) -> Option<&Ageing> {
        let known = self.ageing.0.get_or_init(|| self.filters.iter().find_map(ageing_of));
        known.as_ref()
    }

    /// The times by which readers do not see expired entries.
    pub fn hiding(&self) -> Option<&Arc<dyn Expiry>> {
        self.ageing().map(|ageing| &ageing.expiry).filter(|expiry| expiry.hides())
    }
}

fn ageing_of(filter: &Arc<dyn CompactionFilterFactory>) -> Option<Ageing> {
    let expiry = filter.expiry()?;
    let mut mark = Vec::new();
    put_bytes(&mut mark, filter.name().as_bytes());
    put_bytes(&mut mark, &filter.params());
    Some(Ageing { expiry, rule: checksum64(&mark) })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::error::Result;
    use crate::filters::{TtlFilter, TtlRule};
    use crate::hooks::{CompactionFilter, Job};

    /// Counts how often it is asked for its times.
    struct Counting(AtomicUsize);

    impl CompactionFilterFactory for Counting {
        fn name(&self) -> &'static str {
            "counting"
        }

        fn expiry(&self) -> Option<Arc<dyn Expiry>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            TtlFilter::stored(&TtlRule::in_value(0)).expiry()
        }

        fn start(&self, _job: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
            unreachable!("no job starts")
        }
    }

    #[test]
    fn the_times_of_a_partition_are_found_once_and_not_kept_by_clones() {
        let filter = Arc::new(Counting(AtomicUsize::new(0)));
        let hooks = PartitionHooks { filters: vec![filter.clone()], ..PartitionHooks::default() };
        let rule = hooks.ageing().expect("it has times").rule;
        assert_eq!(hooks.ageing().map(|ageing| ageing.rule), Some(rule));
        assert_eq!(filter.0.load(Ordering::Relaxed), 1);
        let mut other = hooks.clone();
        other.filters = vec![Arc::new(TtlFilter::stored(&TtlRule::in_value(8)))];
        assert_ne!(other.ageing().map(|ageing| ageing.rule), Some(rule));
    }
}
