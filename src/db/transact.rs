//! [`Db::transact`]: a transaction that is repeated after conflicts.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::thread;
use std::time::Duration;

use lsm_core::db::Commit;
use lsm_core::error::{Error, ErrorKind};
use lsm_core::options::{Durability, WriteOptions};

use super::Db;
use crate::transaction::Transaction;

/// The first pause between two attempts. After the first conflict there is none: the other writer is done.
const PAUSE_MIN: Duration = Duration::from_micros(50);
/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// Options of [`Db::transact_with`]. A [`Durability`] or [`WriteOptions`] converts to them.
///
/// # Examples
/// ```
/// use siltstone::{Durability, ErrorKind, TransactOptions};
///
/// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
/// let users = db.partition("users")?;
/// let options = TransactOptions::new().durability(Durability::Sync).attempts_max(3);
/// let answer = db.transact_with(options, |transaction| {
///     let found = transaction.get(&users, "alice")?;
///     transaction.put(&users, "alice", "admin");
///     users.put("alice", "author")?; // another writer, who always comes first
///     Ok::<_, siltstone::Error>(found)
/// });
/// assert_eq!(answer.expect_err("three conflicts").kind(), ErrorKind::Conflict);
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransactOptions {
    /// The options of the commit. Default: those of [`WriteOptions`], with [`Durability::Os`].
    pub write: WriteOptions,
    /// The number of attempts, the first one included; 0 counts as 1. Default: no limit. Every conflict means that
    /// another writer has succeeded, but a long transaction among many short ones may meet one each time.
    pub attempts_max: u32,
}

impl TransactOptions {
    /// Returns the default options.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{Durability, TransactOptions};
    ///
    /// assert_eq!(TransactOptions::new().write.durability, Durability::Os);
    /// ```
    pub fn new() -> TransactOptions {
        TransactOptions { write: WriteOptions::default(), attempts_max: u32::MAX }
    }

    /// Sets the durability of the commit.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{Durability, TransactOptions};
    ///
    /// let options = TransactOptions::new().durability(Durability::Sync);
    /// assert_eq!(options, TransactOptions::from(Durability::Sync));
    /// ```
    #[must_use]
    pub fn durability(self, durability: Durability) -> TransactOptions {
        TransactOptions { write: durability.into(), ..self }
    }

    /// Sets the number of attempts, see [`TransactOptions::attempts_max`](field@TransactOptions::attempts_max).
    ///
    /// # Examples
    /// ```
    /// use siltstone::TransactOptions;
    ///
    /// assert_eq!(TransactOptions::new().attempts_max(3).attempts_max, 3);
    /// ```
    #[must_use]
    pub fn attempts_max(self, attempts_max: u32) -> TransactOptions {
        TransactOptions { attempts_max, ..self }
    }
}

impl Default for TransactOptions {
    fn default() -> TransactOptions {
        TransactOptions::new()
    }
}

impl From<WriteOptions> for TransactOptions {
    fn from(write: WriteOptions) -> TransactOptions {
        TransactOptions { write, ..TransactOptions::new() }
    }
}

impl From<Durability> for TransactOptions {
    fn from(durability: Durability) -> TransactOptions {
        TransactOptions::new().durability(durability)
    }
}

/// Transactions that are repeated.
impl Db {
    /// Runs `work` in a transaction and commits it. If another writer changed what `work` read, or `work` was refused a
    /// lock because of a deadlock, the writes are discarded, and `work` runs again in a new transaction. So `work` must
    /// have no side effects but those on its transaction. It may return any error that an
    /// [`Error`](crate::Error) converts to; an error discards the writes.
    ///
    /// # Errors
    /// Those of `work`, and those of [`Transaction::commit`] other than conflicts.
    ///
    /// # Durability
    /// That of [`Durability::Os`]; [`Db::transact_with`] takes another.
    ///
    /// # Cost
    /// That of a transaction for each attempt. The second attempt begins at once. Before each later one the thread
    /// pauses, at first for 50 microseconds at most, and twice as long each time, up to 10 milliseconds.
    ///
    /// # Examples
    /// ```
    /// use siltstone::{Db, Partition};
    ///
    /// type Failure = Box<dyn std::error::Error + Send + Sync>;
    ///
    /// /// Takes `amount` from an account; returns the rest.
    /// fn withdraw(db: &Db, accounts: &Partition, name: &str, amount: u64) -> Result<u64, Failure> {
    ///     db.transact(|transaction| {
    ///         let balance = transaction.get(accounts, name)?.ok_or("there is no such account")?;
    ///         let balance: u64 = std::str::from_utf8(&balance)?.parse()?;
    ///         let rest = balance.checked_sub(amount).ok_or("the balance is too low")?;
    ///         transaction.put(accounts, name, rest.to_string());
    ///         Ok(rest)
    ///     })
    /// }
    ///
    /// # fn main() -> Result<(), Failure> {
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let accounts = db.partition("accounts")?;
    /// accounts.put("alice", "100")?;
    /// assert_eq!(withdraw(&db, &accounts, "alice", 30)?, 70);
    /// assert!(withdraw(&db, &accounts, "alice", 80).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn transact<R, E: From<Error>>(
        &self,
        work: impl FnMut(&mut Transaction) -> Result<R, E>,
    ) -> Result<R, E> {
        self.transact_with(TransactOptions::new(), work).map(|(result, _)| result)
    }

    /// Runs `work` as [`Db::transact`] does, with options; returns its result and the commit.
    ///
    /// # Errors
    /// As [`Db::transact`]; [`ErrorKind::Conflict`] or the error of `work` if no attempt is left.
    ///
    /// # Examples
    /// ```
    /// use siltstone::Durability;
    ///
    /// # let db = siltstone::Db::builder("/db").fs(std::sync::Arc::new(siltstone::fs::MemFs::new())).open()?;
    /// let users = db.partition("users")?;
    /// let (is_new, commit) = db.transact_with(Durability::Sync, |transaction| {
    ///     let is_new = !transaction.contains(&users, "alice")?;
    ///     transaction.put(&users, "alice", "admin");
    ///     Ok::<_, siltstone::Error>(is_new)
    /// })?;
    /// assert!(is_new && db.durable_seq() >= commit.seq);
    /// # Ok::<(), siltstone::Error>(())
    /// ```
    pub fn transact_with<R, E: From<Error>>(
        &self,
        options: impl Into<TransactOptions>,
        mut work: impl FnMut(&mut Transaction) -> Result<R, E>,
    ) -> Result<(R, Commit), E> {
        let TransactOptions { write, attempts_max } = options.into();
        let mut attempt = 1;
        loop {
            let mut transaction = self.transaction();
            let result = work(&mut transaction);
            let is_last = attempt >= attempts_max;
            let refused = match result {
                // Of any type, so that the transaction itself has to say it.
                Err(_) if !is_last && transaction.0.is_deadlocked() => {
                    // With its locks, before the pause.
                    drop(transaction);
                    None
                }
                Err(error) => return Err(error),
                Ok(result) => match transaction.commit(write) {
                    Ok(commit) => return Ok((result, commit)),
                    Err(error) => Some(error),
                },
            };
            match refused {
                Some(error) if is_last || error.kind() != ErrorKind::Conflict => {
                    return Err(error.into());
                }
                _ => pause(attempt),
            }
            attempt = attempt.saturating_add(1);
        }
    }
}

/// Pauses after the attempt with this number, counted from 1, has failed.
fn pause(attempt: u32) {
    // The writer that came first is likely done. One more conflict means that many want the same.
    if attempt == 1 {
        thread::yield_now();
        return;
    }
    thread::park_timeout(pause_before(attempt, thread::current().id()));
}

/// From half of the step to all of it: threads that failed together would fail together again.
fn pause_before(attempt: u32, thread: impl Hash) -> Duration {
    let step = PAUSE_MIN.saturating_mul(1 << (attempt - 2).min(16)).min(PAUSE_MAX);
    let mut hasher = DefaultHasher::new();
    (attempt, thread).hash(&mut hasher);
    let part = (hasher.finish() >> 40) as u32;
    step / 2 + step.mul_f64(f64::from(part) / f64::from(1 << 24)) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_differ_by_thread() {
        for (attempt, longest) in
            [(2, 50), (3, 100), (4, 200), (9, 6_400), (10, 10_000), (u32::MAX, 10_000)]
        {
            let longest = Duration::from_micros(longest);
            let pauses: Vec<_> = (0..100).map(|thread| pause_before(attempt, thread)).collect();
            assert!(
                pauses.iter().all(|pause| longest / 2 <= *pause && *pause <= longest),
                "{attempt}"
            );
            assert!(pauses.iter().any(|pause| *pause != pauses[0]), "{attempt}");
        }
    }
}
