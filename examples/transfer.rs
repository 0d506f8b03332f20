//! Transactions: threads transfer money between accounts at the same time, an audit always sees the
//! same sum, and a transaction with outdated reads is refused.
//!
//! `cargo run --example transfer`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use siltstone::{Db, Durability, ErrorKind, Partition, Readable, Result, Transaction};

const ACCOUNTS: u64 = 8;
const THREADS: u64 = 4;
const TRANSFERS: u64 = 250;
const START: u64 = 1000;

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("this program writes 8 bytes"))
}

/// Returns the sum of all accounts.
fn total(accounts: &impl Readable) -> Result<u64> {
    accounts.iter().map(|account| Ok(number(&account?.1))).sum()
}

fn balance(transaction: &Transaction, bank: &Bank, account: u64) -> Result<u64> {
    let found = transaction.get(&bank.accounts, account.to_be_bytes())?;
    Ok(found.map_or(0, |balance| number(&balance)))
}

/// Transfers an amount and adds a line to the journal. Returns whether the balance was sufficient.
fn transfer(db: &Db, bank: &Bank, from: u64, to: u64, amount: u64) -> Result<bool> {
    // Runs again if another transaction changes what this one read.
    db.transact(|transaction| {
        let left = balance(transaction, bank, from)?;
        let right = balance(transaction, bank, to)?;
        if left < amount {
            return Ok(false);
        }
        transaction.put(&bank.accounts, from.to_be_bytes(), (left - amount).to_be_bytes());
        transaction.put(&bank.accounts, to.to_be_bytes(), (right + amount).to_be_bytes());
        // The next line of the journal; two that see the same last line conflict.
        let last = transaction.iter(&bank.journal).next_back().transpose()?;
        let line = last.map_or(0, |(line, _)| number(&line)) + 1;
        transaction.put(&bank.journal, line.to_be_bytes(), format!("{from} {to} {amount}"));
        Ok(true)
    })
}

struct Bank {
    accounts: Partition,
    journal: Partition,
}

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("siltstone-transfer-{}", std::process::id()));
    let db = Db::open(&folder)?;
    let bank = Bank { accounts: db.partition("accounts")?, journal: db.partition("journal")? };
    for account in 0..ACCOUNTS {
        bank.accounts.put(account.to_be_bytes(), START.to_be_bytes())?;
    }

    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let db = &db;
            let bank = &bank;
            scope.spawn(move || {
                for n in 0..TRANSFERS {
                    let from = (n + thread) % ACCOUNTS;
                    let to = (n * 3 + thread + 1) % ACCOUNTS;
                    if from != to {
                        transfer(db, bank, from, to, n % 7 + 1).expect("the disk is sound");
                    }
                }
            });
        }
        for _ in 0..100 {
            let now = db.snapshot();
            let seen = total(&now.of(&bank.accounts)).expect("the disk is sound");
            assert_eq!(seen, ACCOUNTS * START, "money never appears or disappears");
        }
    });
    assert_eq!(total(&bank.accounts)?, ACCOUNTS * START);
    let lines = bank.journal.iter().count() as u64;
    let (last, _) = bank.journal.last()?.expect("transfers were written down");
    assert_eq!(number(&last), lines, "every transfer has a line of its own");
    println!("{lines} transfers, and {} in the accounts as before", total(&bank.accounts)?);

    // A transaction conflicts if data that it read has changed.
    let mut audit = db.transaction();
    let sum = total(&audit.of(&bank.accounts))?;
    audit.put(&bank.journal, "audit", sum.to_be_bytes());
    bank.accounts.put("a new account", 0_u64.to_be_bytes())?;
    let refused = audit.commit(Durability::Sync).expect_err("an account was opened meanwhile");
    println!("the audit is refused: {refused}");
    assert_eq!(refused.kind(), ErrorKind::Conflict);

    drop(bank);
    db.close()?;
    let removed = std::fs::remove_dir_all(&folder);
    removed.expect("no other program uses the folder");
    Ok(())
}
