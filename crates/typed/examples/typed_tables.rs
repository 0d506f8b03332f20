//! Typed tables: rows by key, by the first part of a key and by indexes; a unique index that refuses a second row; an
//! index that is added to a table later.
//!
//! `cargo run -p siltstone-typed --example typed_tables`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use serde::{Deserialize, Serialize};
use siltstone::Db;
use typed::{IndexDefinition, Result, TableDefinition, TypedError};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct User {
    name: String,
    email: String,
    city: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Post {
    text: String,
}

const USERS: TableDefinition<u64, User> = TableDefinition::new("users");
const BY_EMAIL: IndexDefinition<String, u64, User> =
    IndexDefinition::unique("by_email", |_, user| vec![user.email.clone()]);
const BY_CITY: IndexDefinition<String, u64, User> =
    IndexDefinition::new("by_city", |_, user| vec![user.city.clone()]);
/// By author and time, so that the posts of an author are neighbours.
const POSTS: TableDefinition<(u64, i64), Post> = TableDefinition::new("posts");

fn user(name: &str, city: &str) -> User {
    User { name: name.to_owned(), email: format!("{name}@example.org"), city: city.to_owned() }
}

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("siltstone-typed-{}", std::process::id()));
    let db = Db::open(&folder)?;
    let users = USERS.index(BY_EMAIL).open(&db)?;
    let posts = POSTS.open(&db)?;

    // A row and its entries in the indexes are one commit; a transaction holds several tables together.
    db.transact(|transaction| {
        users.put_in(transaction, 1, &user("anna", "Bern"))?;
        users.put_in(transaction, 2, &user("ben", "Basel"))?;
        for at in [-5, 10, 20] {
            posts.put_in(transaction, (1, at), &Post { text: format!("at {at}") })?;
        }
        posts.put_in(transaction, (2, 0), &Post { text: "hello".to_owned() })?;
        Ok::<_, TypedError>(())
    })?;

    // The order of keys is that of their values: -5 comes before 10.
    let of_anna: Vec<i64> = posts.prefix((1,)).map(|post| Ok(post?.0.1)).collect::<Result<_>>()?;
    assert_eq!(of_anna, [-5, 10, 20]);
    assert_eq!(posts.range((1, 0)..=(1, 10)).count(), 1);

    let (id, found) =
        users.by(&BY_EMAIL)?.now()?.get("ben@example.org").next().expect("it was put")?;
    println!("{id}: {found:?}");
    let taken = users.put(3, &user("ben", "Zug")).map(drop);
    assert!(matches!(taken, Err(TypedError::Taken { .. })));

    // Another index: the open builds it from the rows. The handle from before would not write to it, and is refused.
    let before = users;
    let users = USERS.index(BY_EMAIL).index(BY_CITY).open(&db)?;
    assert!(matches!(before.delete(1), Err(TypedError::Stale { .. })));
    users.put(3, &user("carl", "Bern"))?;
    let in_bern: Vec<u64> =
        users.by(&BY_CITY)?.now()?.get("Bern").map(|row| Ok(row?.0)).collect::<Result<_>>()?;
    assert_eq!(in_bern, [1, 3]);
    for report in users.verify()? {
        println!("index {}: {} entries", report.name, report.entries);
        assert!(report.is_consistent());
    }

    // Other types are an error, and not garbage.
    let refused = TableDefinition::<String, User>::new("users")
        .open(&db)
        .map(drop)
        .expect_err("keys are u64");
    println!("{refused}");
    db.close()?;
    println!("the database is in {}", folder.display());
    Ok(())
}
