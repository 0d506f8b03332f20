//! A transfer of money: atomic batches over two partitions, and a snapshot that still returns the
//! earlier state.
//!
//! `cargo run --example batch_and_snapshot`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use siltstone::{Db, Durability, Partition, Result, Snapshot};

/// Returns the sum of all accounts in `snapshot`.
fn total(snapshot: &Snapshot, accounts: &Partition) -> Result<u64> {
    snapshot.iter(accounts).map(|entry| Ok(number(&entry?.1))).sum()
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("this program writes 8 bytes"))
}

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("siltstone-batch-{}", std::process::id()));
    let db = Db::open(&folder)?;
    let accounts = db.partition("accounts")?;
    let journal = db.partition("journal")?;
    accounts.put("alice", 100u64.to_be_bytes())?;
    accounts.put("bob", 0u64.to_be_bytes())?;

    let before = db.snapshot();
    let balance = |name: &str| -> Result<u64> {
        Ok(number(&accounts.get(name)?.expect("the account was opened")))
    };
    for n in 1..=3u64 {
        // Two accounts and the journal change together. The device has them when commit returns.
        let commit = db
            .batch()
            .put(&accounts, "alice", (balance("alice")? - 10).to_be_bytes())
            .put(&accounts, "bob", (balance("bob")? + 10).to_be_bytes())
            .put(&journal, n.to_be_bytes(), "alice gives bob 10")
            .commit(Durability::Sync)?;
        println!("transfer {n} is commit {}; bob has {}", commit.seq.get(), balance("bob")?);
    }

    let now = db.snapshot();
    assert_eq!((total(&before, &accounts)?, total(&now, &accounts)?), (100, 100));
    assert_eq!(before.iter(&journal).count(), 0);
    assert_eq!(now.iter(&journal).count(), 3);
    let then = before.get(&accounts, "bob")?.expect("the account was opened");
    println!("the first snapshot still says that bob has {}", number(&then));
    assert_eq!(number(&then), 0);

    db.close()?;
    let removed = std::fs::remove_dir_all(&folder);
    removed.expect("no other program uses the folder");
    Ok(())
}
