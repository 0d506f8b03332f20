//! [`TypedError`]: the errors of tables, with those of the store among them.

use std::fmt;

/// The result of the calls of this crate.
pub type Result<T, E = TypedError> = std::result::Result<T, E>;

/// An error of a table. Unless a variant says otherwise, nothing was written, and the table is usable.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum TypedError {
    /// An error of the store.
    Store(siltstone::Error),
    /// The table or an index was created with other types, another codec, or other indexes.
    OtherTypes {
        /// Name of the table.
        table: String,
        /// The difference: what is stored, and what the definition says.
        what: String,
    },
    /// The indexes of the table have changed since this handle was opened. Open the table again.
    Stale {
        /// Name of the table.
        table: String,
    },
    /// Another row has the key in a unique index.
    Taken {
        /// Name of the index.
        index: String,
    },
    /// A value that the codec cannot encode, or stored bytes that are no key or value of the type.
    Codec {
        /// The table or the index.
        table: String,
        /// The reason.
        what: String,
    },
    /// An index names a row that the table does not have.
    Inconsistent {
        /// Name of the partition of the index.
        index: String,
        /// Key of its entry in that partition.
        key: Vec<u8>,
    },
}

impl TypedError {
    /// Returns the error of the store, if it is one.
    pub fn store(&self) -> Option<&siltstone::Error> {
        match self {
            TypedError::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for TypedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TypedError::Store(error) => error.fmt(f),
            TypedError::OtherTypes { table, what } => {
                write!(f, "table {table:?} was created differently: {what}")
            }
            TypedError::Stale { table } => {
                write!(
                    f,
                    "the indexes of table {table:?} have changed since it was opened; open it again"
                )
            }
            TypedError::Taken { index } => {
                write!(f, "another row has this key in the unique index {index:?}")
            }
            TypedError::Codec { table, what } => write!(f, "table {table:?}: {what}"),
            TypedError::Inconsistent { index, key } => {
                let key = key.escape_ascii();
                write!(
                    f,
                    "index {index:?} names in its entry \"{key}\" a row that the table does not have"
                )
            }
        }
    }
}

impl std::error::Error for TypedError {}

impl From<siltstone::Error> for TypedError {
    fn from(error: siltstone::Error) -> TypedError {
        TypedError::Store(error)
    }
}
