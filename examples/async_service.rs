//! A service in async code: many tasks write, and other tasks read their writes at the same time.
//!
//! `cargo run --features async --example async_service`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use siltstone::asynchronous::Async;
use siltstone::secondary::{Level, ReadOptions, Secondary};
use siltstone::{Db, Durability, Result};
use tokio::task::JoinSet;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("siltstone-async-{}", std::process::id()));
    let db = Async::<Db>::open(&folder).await?;
    let orders = db.partition("orders").await?;

    // Eight customers at once. Each waits until its order is on the device, and blocks no thread
    // meanwhile: orders that arrive together share one sync.
    let mut customers = JoinSet::new();
    for customer in 0..8_u32 {
        let db = db.clone();
        let orders = orders.clone();
        customers.spawn(async move {
            let order = orders.blocking();
            let batch = db.blocking().batch().put(order, customer.to_be_bytes(), "a lamp");
            let commit = db.commit(batch, Durability::Os).await?;
            db.blocking().durable(commit.seq).await?;
            Ok::<_, siltstone::Error>(commit)
        });
    }

    // A secondary, which would live in another process: it waits for each commit by its token.
    let secondary = Async::<Secondary>::open(&folder).await?;
    let followed = secondary.partition("orders").await?;
    while let Some(customer) = customers.join_next().await {
        let commit = customer.expect("no task panics")?;
        let at = ReadOptions::new(Level::Session(commit)).wait(Duration::from_secs(10));
        let mut rows = followed.read(&at).await?.rows(..);
        let mut count = 0;
        while rows.next().await?.is_some() {
            count += 1;
        }
        println!("commit {} is durable; the secondary sees {count} orders", commit.seq);
    }

    followed.release().await;
    secondary.release().await;
    orders.release().await;
    db.close().await?;
    let removed = std::fs::remove_dir_all(&folder);
    removed.expect("no other program uses the folder");
    Ok(())
}
