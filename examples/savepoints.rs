//! An import of orders in one transaction: an order that turns out to be wrong in the middle is taken back by a
//! savepoint, and the others are committed together.
//!
//! `cargo run --example savepoints`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use siltstone::{Db, Durability, Partition, Result, Transaction};

/// An order: its number, and articles with their counts.
type Order = (u32, &'static [(&'static str, u32)]);

const ORDERS: [Order; 4] = [
    (1, &[("bolt", 40), ("nut", 40)]),
    // There are too few nuts left for the second line.
    (2, &[("bolt", 10), ("nut", 70)]),
    (3, &[("nut", 60)]),
    (4, &[("bolt", 50), ("washer", 1)]),
];

struct Shop {
    stock: Partition,
    lines: Partition,
}

fn count(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().expect("this program writes 4 bytes"))
}

/// Writes the lines of an order, and takes its articles from the stock. Returns whether all were there; the lines
/// before the missing one are written then, too.
fn take(transaction: &mut Transaction, shop: &Shop, order: Order) -> Result<bool> {
    let (number, articles) = order;
    for (article, wanted) in articles {
        let there = transaction.get(&shop.stock, article)?.map_or(0, |bytes| count(&bytes));
        let Some(left) = there.checked_sub(*wanted) else { return Ok(false) };
        transaction.put(&shop.stock, article, left.to_be_bytes());
        transaction.put(&shop.lines, format!("{number}/{article}"), wanted.to_be_bytes());
    }
    Ok(true)
}

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("siltstone-savepoints-{}", std::process::id()));
    let db = Db::open(&folder)?;
    let shop = Shop { stock: db.partition("stock")?, lines: db.partition("lines")? };
    for article in ["bolt", "nut"] {
        shop.stock.put(article, 100u32.to_be_bytes())?;
    }

    // Runs again from its begin if another writer changes what it read.
    let (refused, _) = db.transact_with(Durability::Sync, |transaction| {
        let mut refused = Vec::new();
        for order in ORDERS {
            transaction.set_savepoint();
            if !take(transaction, &shop, order)? {
                // The writes since the savepoint are gone, those before it stay.
                transaction.rollback_to_savepoint()?;
                refused.push(order.0);
            }
        }
        Ok::<_, siltstone::Error>(refused)
    })?;
    println!("refused: {refused:?}");
    assert_eq!(refused, [2, 4]);

    let mut lines = Vec::new();
    for key in shop.lines.keys() {
        lines.push(String::from_utf8_lossy(&key?).into_owned());
    }
    assert_eq!(lines, ["1/bolt", "1/nut", "3/nut"], "no line of a refused order");
    let left = ["bolt", "nut"].map(|article| shop.stock.get(article));
    for (article, left) in ["bolt", "nut"].iter().zip(left) {
        println!("{} of {article} are left", count(&left?.expect("it was put")));
    }
    assert_eq!(shop.stock.get("bolt")?.as_deref(), Some(&60u32.to_be_bytes()[..]));
    assert_eq!(shop.stock.get("nut")?.as_deref(), Some(&0u32.to_be_bytes()[..]));

    drop(shop);
    db.close()?;
    let removed = std::fs::remove_dir_all(&folder);
    removed.expect("no other program uses the folder");
    Ok(())
}
