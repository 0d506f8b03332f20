//! Tables with typed keys and values, and secondary indexes, on top of siltstone.
//!
//! A [`TableDefinition`] names a table and its types; [`TableDefinition::open`] returns the [`TypedTable`]. A table is a
//! partition, so snapshots, transactions, secondaries, checkpoints and the rest of siltstone apply to it. An
//! [`IndexDefinition`] names a secondary index, which is a partition of its own: each write to the table writes to its
//! indexes in the same commit.
//!
//! ```
//! use serde::{Deserialize, Serialize};
//! use siltstone::Db;
//! use typed::{IndexDefinition, TableDefinition};
//!
//! #[derive(Debug, PartialEq, Serialize, Deserialize)]
//! struct User {
//!     name: String,
//!     city: String,
//! }
//!
//! const USERS: TableDefinition<u64, User> = TableDefinition::new("users");
//! const BY_CITY: IndexDefinition<String, u64, User> =
//!     IndexDefinition::new("by_city", |_, user| vec![user.city.clone()]);
//!
//! # fn main() -> typed::Result<()> {
//! # let db = Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
//! let users = USERS.index(BY_CITY).open(&db)?;
//! users.put(7, &User { name: "Anna".into(), city: "Bern".into() })?;
//! users.put(9, &User { name: "Ben".into(), city: "Basel".into() })?;
//! assert_eq!(users.get(7)?.map(|user| user.name).as_deref(), Some("Anna"));
//! assert_eq!(users.range(8..).count(), 1);
//! let found: Vec<_> = users.by(&BY_CITY)?.now()?.get("Bern").collect::<typed::Result<_>>()?;
//! assert_eq!(found[0].0, 7);
//! # Ok(())
//! # }
//! ```
//!
//! The types of a table are stored with it, see [`TableDefinition::new`]. `docs/typed.md` of the repository describes
//! the order of keys and how a type of values is changed.

mod catalog;
mod codec;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod decoders;
mod definition;
mod error;
mod index;
mod key;
mod rows;
mod table;
#[cfg(test)]
mod tests;

pub use codec::{Codec, Postcard};
pub use definition::{TableDefinition, TableHost};
pub use error::{Result, TypedError};
pub use index::{IndexDefinition, IndexReport, IndexRows, TypedIndex};
pub use key::{Key, KeyPrefix};
pub use rows::{ReadsPartitions, TableRows, TypedRange};
pub use table::{TableBatch, TypedTable};
