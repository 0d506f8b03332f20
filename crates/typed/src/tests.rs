//! Tests of this crate: the order of keys, tables and their types, partitions of indexes, and random histories with power cuts.

mod histories;
mod order;
mod partitions;
mod tables;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use siltstone::Db;
use siltstone::fs::{Fs, MemFs};

use crate::{IndexDefinition, TableDefinition};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct User {
    city: String,
    email: Option<u8>,
}

const USERS: TableDefinition<u32, User> = TableDefinition::new("users");
const BY_CITY: IndexDefinition<String, u32, User> =
    IndexDefinition::new("by_city", |_, user| vec![user.city.clone()]);
const BY_EMAIL: IndexDefinition<u8, u32, User> =
    IndexDefinition::unique("by_email", |_, user| user.email.into_iter().collect());

fn user(city: &str, email: Option<u8>) -> User {
    User { city: city.to_owned(), email }
}

fn open(fs: impl Fs + 'static) -> Db {
    Db::builder("/db").fs(Arc::new(fs)).open().unwrap()
}

fn fresh() -> Db {
    open(MemFs::new())
}
