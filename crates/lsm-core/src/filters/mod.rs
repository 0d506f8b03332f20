//! Small compaction filters that applications ask for: entries that expire, prefixes that go.
//!
//! Both only decide, so both are exact under snapshots: what a snapshot sees stays until it is
//! gone. Neither hides an entry from reads before a compaction has come by.

mod prefix;
mod ttl;
mod ttl_rule;

pub use prefix::PrefixDropFilter;
pub use ttl::TtlFilter;
pub use ttl_rule::{TimeUnit, TimeWidth, TtlRule};
