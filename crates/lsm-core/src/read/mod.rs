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
pub use range::{Bounds, KeyRange, Keys, Range};

pub(crate) use cursor::stored_bounds;
pub(crate) use expired::{Alive, AliveAt, ReadTime};
pub(crate) use fold::{Chain, missing as missing_operator};
pub(crate) use get::{GetContext, Search, get, is_answer, lost, resolve, search};
pub(crate) use multi_get::multi_get;
pub(crate) use range::prefix_bounds;
pub(crate) use source::Source;
