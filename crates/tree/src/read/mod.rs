//! The read path: functions of a `ReadView` and a sequence number, which `Db`, snapshots and
//! secondaries share.

mod cursor;
mod dead;
mod expired;
mod fold;
mod get;
mod moves;
mod multi_get;
mod point;
mod prefix;
mod range;
mod readahead;
mod source;

pub use cursor::Cursor;
pub use expired::RemainingTime;
pub use get::Located;
pub use moves::ReadCursor;
pub use point::{OpenPartition, ReadPoint};
pub use range::{Bounds, KeyRange, Keys, LazyRange, Range, RangeEnd};

pub use cursor::stored_bounds;
pub use expired::{Alive, AliveAt, ReadTime};
pub use fold::{Chain, missing as missing_operator};
pub use get::{GetContext, Search, get, is_answer, lost, resolve, search};
pub use multi_get::{all_values, multi_get};
pub use range::prefix_bounds;
pub use source::Source;
