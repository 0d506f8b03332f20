//! Ready-made compaction filters: entries that expire, and dropped prefixes.
//!
//! Both respect snapshots: an entry that a snapshot sees stays until the snapshot is released. A stored rule of
//! expiry is also obeyed by reads; the others hide no entry before a compaction has removed it.

mod prefix;
mod ttl;
mod ttl_rule;
mod ttl_text;

pub use prefix::PrefixDropFilter;
pub use ttl::TtlFilter;
pub use ttl_rule::{TimeUnit, TimeWidth, TtlRule};
