//! The read path: functions of a `ReadView` and a sequence number, which `Db`, snapshots and
//! secondaries share.

mod cursor;
mod dead;
mod get;
mod moves;
mod multi_get;
mod range;
mod readahead;
mod source;

pub use cursor::{Cursor, OpenPartition, ReadPoint};
pub use get::Located;
pub use moves::ReadCursor;
pub use range::{Bounds, KeyRange, Keys, Range};

pub(crate) use cursor::stored_bounds;
pub(crate) use get::{GetContext, Search, get, is_answer, lost, read_handle, resolve, search};
pub(crate) use multi_get::multi_get;
pub(crate) use range::prefix_bounds;
pub(crate) use source::Source;
