//! [`TtlFilter`]: removes expired entries.

use std::sync::Arc;
use std::time::Duration;

use super::ttl_rule::TtlRule;
use crate::error::Result;
use crate::hooks::{CompactionFilter, CompactionFilterFactory, Decision, Entry, Expiry, Job};
use crate::types::{EntryKind, KeyForm};

/// A filter that removes expired entries in flushes and compactions.
///
/// The manifest stores for each table when its entries expire. If more than a tenth of the entries of a
/// table have expired, or all that can expire, background work rewrites the table without them, even if
/// no program writes. Tables from before the partition had this filter are rewritten once, so that their
/// times are known, too.
///
/// An older version of a key never reappears after an entry has expired. A snapshot still sees its entries;
/// they are removed some seconds after its release if they are more than a tenth of a table, and
/// otherwise later with the rest.
///
/// There are two forms:
/// - [`TtlFilter::stored`] takes a rule that names the place of the time. The rule is stored with the
///   partition, and every open finds it. **Reads** obey it: an expired entry is not there, unless
///   [`TtlRule::reads_see_expired`] is set.
/// - [`TtlFilter::new`] takes code. Each open must supply the code through its hook provider, or through
///   `partition_with`; `Db::health` names the partitions without it. **Reads** do not call it: gets and
///   scans return an entry until a flush or a compaction has removed it.
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
    /// A change of the rule rewrites the tables of the partition once, like a first rule.
    pub fn stored(rule: &TtlRule) -> TtlFilter {
        let params = rule.params();
        TtlFilter::from_params(&params).expect("a rule reads back")
    }

    /// Returns the filter of a rule that [`CompactionFilterFactory::params`] of another one describes; `None`
    /// if they describe none, as those of a filter that was made of code.
    pub fn from_params(params: &[u8]) -> Option<TtlFilter> {
        let rule = TtlRule::from_params(params)?;
        Some(TtlFilter { expiry: Arc::new(rule), params: params.to_vec() })
    }

    /// Returns the filter of this code, which is not stored. `expires_at` returns the time of expiry for a
    /// key and value, or `None` for never; it gets an empty value for a separately stored value. `now`
    /// returns the current time in the same unit, and the engine believes it: a clock that is ahead for a
    /// moment removes what has not expired. It is called under locks of the engine, so it must not call the
    /// database.
    ///
    /// The manifest stores the times that this code returned; after a change of the code, call
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
        // Once for the whole job: a clock of the application may be slow to ask, and may go back.
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
        // The bytes of a handle are an address in the value store and no value.
        let value = (entry.kind != EntryKind::Handle).then_some(entry.value);
        let expires_at = self.expiry.expires_at(self.key_form.user(entry.key), value);
        let is_expired = expires_at.is_some_and(|at| at <= self.now);
        Ok(if is_expired { Decision::Remove } else { Decision::Keep })
    }
}
