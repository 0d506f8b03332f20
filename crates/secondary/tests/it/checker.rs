//! A history of one writer and several readers, and its check against the guarantees of the levels.
//!
//! A tick is a number that only grows, taken before a call begins and after it has ended. Every commit
//! writes its number into the partitions that it touches, so a read says which commit it saw last. With
//! one writer and numbers that only grow, a history of strong reads is linearizable if no read misses a
//! commit that ended before the read began, none sees a commit that began after the read ended, and none
//! is older than a strong read that ended before it began.
//!
//! The writer never loses a commit that was acknowledged, so partitions do not go back over epochs.

use lsm_core::db::Commit;
use secondary::Level;

/// Number of partitions.
pub(crate) const PARTITIONS: usize = 3;

/// An attempt to commit.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    /// Grows from attempt to attempt; the first one is 1.
    pub(crate) number: u64,
    pub(crate) touched: [bool; PARTITIONS],
    pub(crate) began: u64,
    pub(crate) ended: u64,
    /// The commit failed, and the next epoch did not find it.
    pub(crate) is_lost: bool,
    /// `None` if the call failed.
    pub(crate) token: Option<Commit>,
}

/// A read of one partition.
#[derive(Clone, Debug)]
pub(crate) struct Read {
    /// Readers that share a secondary have the same number.
    pub(crate) secondary: usize,
    pub(crate) level: Level,
    pub(crate) partition: usize,
    pub(crate) began: u64,
    pub(crate) ended: u64,
    /// The number of the last commit that was seen; 0 for none.
    pub(crate) seen: u64,
    pub(crate) as_of: Commit,
}

/// A read of all partitions as of one commit.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub(crate) secondary: usize,
    pub(crate) began: u64,
    pub(crate) ended: u64,
    pub(crate) seen: [u64; PARTITIONS],
}

/// Everything that was recorded.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// In the order of their numbers.
    pub(crate) writes: Vec<Write>,
    pub(crate) reads: Vec<Read>,
    pub(crate) cuts: Vec<Cut>,
}

impl Write {
    /// Returns whether it is the commit of `token`, or one before it. The numbers of all commits in
    /// the history of an epoch grow. An epoch reuses the numbers of refused commits of the epoch
    /// before, so a commit of a later epoch is not compared.
    fn is_through(&self, token: Commit) -> bool {
        self.token.is_some_and(|own| own.epoch <= token.epoch && own.seq <= token.seq)
    }

    fn seq(&self) -> Option<u64> {
        self.token.map(|token| token.seq.get())
    }
}

impl History {
    /// The commits to a partition.
    fn commits(&self, partition: usize) -> impl DoubleEndedIterator<Item = &Write> {
        self.writes.iter().filter(move |write| !write.is_lost && write.touched[partition])
    }

    /// The number of the last commit to a partition that `is_meant`; 0 for none.
    fn last(&self, partition: usize, is_meant: impl Fn(&Write) -> bool) -> u64 {
        self.commits(partition).rfind(|write| is_meant(write)).map_or(0, |write| write.number)
    }

    /// The first violation of a guarantee.
    pub(crate) fn check(&self) -> Result<(), String> {
        for read in &self.reads {
            self.check_read(read).map_err(|what| format!("{what}: {read:?}{}", self.near(read)))?;
        }
        for cut in &self.cuts {
            self.check_cut(cut).map_err(|what| format!("{what}: {cut:?}"))?;
        }
        self.check_order()
    }

    /// The attempts to commit next to the one that a read saw, for a message.
    fn near(&self, read: &Read) -> String {
        let near = self.writes.iter().filter(|write| write.number.abs_diff(read.seen) <= 4);
        near.map(|write| format!("\n{write:?}")).collect()
    }

    fn check_read(&self, read: &Read) -> Result<(), String> {
        let seen = read.seen;
        let commit = self.commits(read.partition).find(|write| write.number == seen);
        if seen > 0 && commit.is_none() {
            return Err("the commit was lost, or never made".to_owned());
        }
        if commit.is_some_and(|write| write.began > read.ended) {
            return Err("it saw the future".to_owned());
        }
        let least = self.least_of(read);
        if seen < least {
            return Err(format!("it missed commit {least}"));
        }
        let through = self.last(read.partition, |write| write.is_through(read.as_of));
        if seen < through {
            return Err(format!("it is as of a commit, and lacks {through} before it"));
        }
        let mut before = self.commits(read.partition).filter(|write| write.number <= seen);
        if before.any(|write| write.token.is_some() && !write.is_through(read.as_of)) {
            return Err("it is as of a commit, and has a later one".to_owned());
        }
        Ok(())
    }

    /// The number of the last commit that the level promises.
    fn least_of(&self, read: &Read) -> u64 {
        let began = read.began;
        let partition = read.partition;
        match read.level {
            Level::Strong => self.last(partition, |write| write.ended < began),
            Level::Session(token) => self.last(partition, |write| write.is_through(token)),
            Level::Bounded { operations: Some(operations), .. } => {
                let acknowledged = self.writes.iter().rfind(|write| write.ended < began);
                let newest = acknowledged.and_then(Write::seq).unwrap_or_default();
                let through = newest.saturating_sub(operations);
                self.last(partition, |write| write.seq().is_some_and(|seq| seq <= through))
            }
            Level::Bounded { age: Some(age), .. } => {
                let since = began.saturating_sub(age.as_micros() as u64);
                self.last(partition, |write| write.ended < since)
            }
            Level::Bounded { .. } | Level::Prefix | Level::Eventual => 0,
            other => panic!("the checker does not know {other:?}"),
        }
    }

    fn check_cut(&self, cut: &Cut) -> Result<(), String> {
        let newest = cut.seen.iter().max().copied().unwrap_or_default();
        for (partition, seen) in cut.seen.iter().enumerate() {
            let expected = self.last(partition, |write| write.number <= newest);
            if *seen != expected {
                return Err(format!("partition {partition} should be at commit {expected}"));
            }
        }
        Ok(())
    }

    /// Checks that nothing goes back: a partition for its strong readers, a partition on one secondary,
    /// and the cuts of one secondary.
    fn check_order(&self) -> Result<(), String> {
        for partition in 0..PARTITIONS {
            let reads: Vec<&Read> =
                self.reads.iter().filter(|it| it.partition == partition).collect();
            let strong = reads.iter().filter(|read| read.level == Level::Strong);
            check_growth(strong.map(|read| (read.began, read.ended, read.seen)).collect())
                .map_err(|what| format!("strong reads of partition {partition}: {what}"))?;
            for secondary in 0..=self.secondaries() {
                let own = reads.iter().filter(|read| read.secondary == secondary);
                check_growth(own.map(|read| (read.began, read.ended, read.seen)).collect())
                    .map_err(|what| format!("partition {partition} on {secondary}: {what}"))?;
            }
        }
        for secondary in 0..=self.secondaries() {
            let own = self.cuts.iter().filter(|cut| cut.secondary == secondary);
            let newest = own.map(|cut| (cut.began, cut.ended, cut.seen.iter().sum()));
            check_growth(newest.collect())
                .map_err(|what| format!("cuts of {secondary}: {what}"))?;
        }
        Ok(())
    }

    fn secondaries(&self) -> usize {
        self.reads.iter().map(|read| read.secondary).max().unwrap_or_default()
    }
}

/// Checks that a look that begins after another has ended sees no less. Each has its begin, its end
/// and the number seen.
fn check_growth(mut looks: Vec<(u64, u64, u64)>) -> Result<(), String> {
    looks.sort_unstable();
    let mut by_end = looks.clone();
    by_end.sort_unstable_by_key(|(_, ended, _)| *ended);
    let mut ended_before = by_end.iter().peekable();
    let mut most = 0;
    for (began, _, seen) in looks {
        while let Some((_, _, earlier)) = ended_before.next_if(|(_, ended, _)| *ended < began) {
            most = most.max(*earlier);
        }
        if seen < most {
            return Err(format!("{seen} was seen at {began}, after {most}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lsm_core::types::{Epoch, SeqNo};

    use super::*;

    fn commit(seq: u64) -> Commit {
        Commit { seq: SeqNo::new(seq).unwrap(), epoch: Epoch(1) }
    }

    /// Commit `number` at the ticks from 10 times its number on, with the sequence 2 times its number.
    fn write(number: u64, touched: [bool; PARTITIONS]) -> Write {
        let began = 10 * number;
        let token = Some(commit(2 * number));
        Write { number, touched, began, ended: began + 5, is_lost: false, token }
    }

    fn history() -> History {
        let writes = vec![
            write(1, [true, true, false]),
            write(2, [true, false, false]),
            Write { is_lost: true, token: None, ..write(3, [true; PARTITIONS]) },
            write(4, [true, false, true]),
        ];
        History { writes, ..History::default() }
    }

    fn read(level: Level, at: [u64; 2], seen: u64) -> Read {
        let [began, ended] = at;
        let as_of = commit((2 * seen).max(1));
        Read { secondary: 0, level, partition: 0, began, ended, seen, as_of }
    }

    fn check(reads: &[Read], cuts: &[Cut]) -> Result<(), String> {
        History { reads: reads.to_vec(), cuts: cuts.to_vec(), ..history() }.check()
    }

    #[test]
    fn what_the_levels_allow_passes() {
        let bounded = Level::Bounded { operations: Some(4), age: None };
        let aged = Level::Bounded { operations: None, age: Some(Duration::from_micros(40)) };
        let in_epoch_2 = Commit { epoch: Epoch(2), ..commit(4) };
        let reads = [
            read(Level::Strong, [11, 12], 1),
            read(Level::Strong, [16, 24], 1),
            read(Level::Session(commit(4)), [26, 27], 2),
            read(bounded, [50, 51], 2),
            read(aged, [60, 61], 2),
            read(Level::Eventual, [70, 71], 2),
            // The next epoch keeps the numbers of the commits that it has found.
            Read { as_of: in_epoch_2, ..read(Level::Eventual, [75, 76], 2) },
            read(Level::Strong, [80, 81], 4),
        ];
        let cut = Cut { secondary: 0, began: 1, ended: 90, seen: [2, 1, 0] };
        assert_eq!(check(&reads, &[cut]), Ok(()));
    }

    #[test]
    fn what_a_level_forbids_is_found() {
        let bounded = Level::Bounded { operations: Some(0), age: None };
        let aged = Level::Bounded { operations: None, age: Some(Duration::from_micros(4)) };
        for (what, forbidden) in [
            ("a stale strong read", read(Level::Strong, [46, 47], 2)),
            ("the future", read(Level::Eventual, [5, 9], 1)),
            ("a lost commit", read(Level::Eventual, [60, 61], 3)),
            ("less than the token", read(Level::Session(commit(4)), [60, 61], 1)),
            ("too many operations behind", read(bounded, [50, 51], 2)),
            ("too old", read(aged, [50, 51], 2)),
            (
                "less than its place",
                Read { as_of: commit(8), ..read(Level::Eventual, [60, 61], 2) },
            ),
            (
                "more than its place",
                Read { as_of: commit(3), ..read(Level::Eventual, [60, 61], 2) },
            ),
        ] {
            assert!(check(&[forbidden], &[]).is_err(), "{what}");
        }
        let other = Read { secondary: 1, ..read(Level::Strong, [43, 44], 2) };
        let during = [read(Level::Strong, [41, 42], 4), other];
        assert!(check(&during, &[]).is_err(), "a strong read that is older than an earlier one");
        let eventual = [read(Level::Eventual, [46, 47], 4), read(Level::Eventual, [48, 49], 2)];
        assert!(check(&eventual, &[]).is_err(), "a partition that goes back");
        let torn = Cut { secondary: 0, began: 60, ended: 61, seen: [4, 1, 0] };
        assert!(check(&[], std::slice::from_ref(&torn)).is_err(), "a torn cut");
        let whole = Cut { seen: [4, 1, 4], ..torn };
        let older = Cut { began: 70, ended: 71, seen: [2, 1, 0], ..whole };
        assert!(check(&[], &[whole, older]).is_err(), "cuts that go back");
    }
}
