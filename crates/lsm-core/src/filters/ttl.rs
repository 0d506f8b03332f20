//! [`TtlFilter`]: entries that expire leave.

use std::sync::Arc;
use std::time::Duration;

use super::ttl_rule::TtlRule;
use crate::error::Result;
use crate::hooks::{CompactionFilter, CompactionFilterFactory, Decision, Entry, Expiry, Job};
use crate::types::{EntryKind, KeyForm};

/// Deletes entries whose time has come, in flushes and compactions.
///
/// Tables remember when their entries expire. One of which more than a tenth has expired, or all
/// that ever does, is written anew without them, also where nobody writes or calls. Tables that were
/// written before the partition had this filter are written once, so that it is known of them as
/// well.
///
/// **Reads** do not ask the filter: an entry is returned until a flush or a compaction has removed
/// it, by gets as by scans. Who must not see an expired entry compares its moment. An entry that has
/// once been gone does not come back: an older version of its key is never seen instead. A snapshot
/// goes on seeing what it saw, and what it sees leaves some seconds after its release, if that is
/// more than a tenth of a table, or later with the rest.
///
/// There are two forms:
/// - [`TtlFilter::stored`] says where the moment stands. It is stored with the partition, and every
///   open finds it by itself.
/// - [`TtlFilter::new`] takes code. Each open has to supply it through its hook provider, or
///   `partition_with`; `Db::health` names the partitions where it is missing.
#[derive(Clone)]
pub struct TtlFilter {
    expiry: Arc<dyn Expiry>,
    params: Vec<u8>,
}

impl TtlFilter {
    /// The name under which partitions store it.
    pub const NAME: &'static str = "ttl";

    /// Returns the filter of a rule that is stored with the partition.
    ///
    /// A partition whose rule changes has its tables written once, as one that gets its first.
    pub fn stored(rule: &TtlRule) -> TtlFilter {
        let params = rule.params();
        TtlFilter::from_params(&params).expect("a rule reads back")
    }

    /// Returns the filter of a rule that [`CompactionFilterFactory::params`] of another one describes; `None` if
    /// they describe none, as those of a filter that was made of code.
    pub fn from_params(params: &[u8]) -> Option<TtlFilter> {
        let rule = TtlRule::from_params(params)?;
        Some(TtlFilter { expiry: Arc::new(rule), params: params.to_vec() })
    }

    /// Returns the filter of this code, which is not stored. `expires_at` says when the entry of a
    /// key and value expires, `None` for never; a value that is stored apart is shown as an empty
    /// one. `now` says what time it is, in the same unit, and is called under locks of the engine:
    /// it calls nothing of the database.
    ///
    /// The time of a table is remembered as this code said it: code that changes its mind needs a
    /// `Partition::compact`.
    pub fn new(
        expires_at: impl Fn(&[u8], &[u8]) -> Option<u64> + Send + Sync + 'static,
        now: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> TtlFilter {
        TtlFilter { expiry: Arc::new(Code { expires_at, now }), params: Vec::new() }
    }
}

/// An expiry that is code of the application.
struct Code<E, N> {
    expires_at: E,
    now: N,
}

impl<E, N> Expiry for Code<E, N>
where
    E: Fn(&[u8], &[u8]) -> Option<u64> + Send + Sync,
    N: Fn() -> u64 + Send + Sync,
{
    fn expires_at(&self, key: &[u8], value: Option<&[u8]>) -> Option<u64> {
        (self.expires_at)(key, value.unwrap_or_default())
    }

    fn now(&self, _unix_time: Duration) -> u64 {
        (self.now)()
    }
}

impl CompactionFilterFactory for TtlFilter {
    fn name(&self) -> &str {
        TtlFilter::NAME
    }

    fn params(&self) -> Vec<u8> {
        self.params.clone()
    }

    fn expiry(&self) -> Option<Arc<dyn Expiry>> {
        Some(self.expiry.clone())
    }

    fn start(&self, job: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
        let now = self.expiry.now(job.unix_time);
        Ok(Box::new(TtlJob { expiry: self.expiry.clone(), now, key_form: job.key_form }))
    }
}

struct TtlJob {
    expiry: Arc<dyn Expiry>,
    now: u64,
    key_form: KeyForm,
}

impl CompactionFilter for TtlJob {
    fn decide(&mut self, entry: Entry<'_>) -> Result<Decision> {
        let value = (entry.kind != EntryKind::Handle).then_some(entry.value);
        let expires_at = self.expiry.expires_at(self.key_form.user(entry.key), value);
        let is_expired = expires_at.is_some_and(|at| at <= self.now);
        Ok(if is_expired { Decision::Remove } else { Decision::Keep })
    }
}
