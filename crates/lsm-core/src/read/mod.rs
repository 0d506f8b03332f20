//! The read path: functions of a [`ReadView`](crate::partition::ReadView) and a sequence number,
//! so that `Db`, snapshots and secondaries share them.

mod cursor;
mod get;
mod range;
mod source;

pub use cursor::{Cursor, ReadPoint, stored_bounds};
pub use get::{GetContext, Search, get, read_handle, resolve, search};
pub use range::{Bounds, KeyRange, Keys, Range, prefix_bounds};
pub use source::Source;
