//! The lowest floor of siltstone: files, clocks, errors, and the bytes that every format shares.
//!
//! Nothing here knows a log, a table or a database, and no thread that is started here outlives its call. `fs`, `clock` and `sweep` are
//! contracts and what implements them; they import the vocabulary: `types`, `codec`, `error`, `limits`, `machine`.

pub mod clock;
pub mod codec;
pub mod error;
pub mod fs;
pub mod limits;
pub mod machine;
pub mod sweep;
pub mod threads;
pub mod types;

pub use error::{Damage, Error, ErrorKind, Result};
