//! [`Level`]: the consistency level of a read, and its guarantee.

use std::time::Duration;

use lsm_core::db::Commit;

/// The consistency level of a read, from strong to eventual. The numbers are those of the SCID thesis (V. D. Thakkar, Arizona
/// State University, 2023).
///
/// The guarantee of a level covers one partition. The guarantee of [`Level::Prefix`] covers all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Level {
    /// Level 1. Linearizable: the read sees every commit that was acknowledged before the read began, and
    /// every commit that an earlier read on the primary, or on a secondary at this level, has returned.
    ///
    /// This level needs the commit cursor of a primary on the same machine, or a closed database.
    /// Otherwise the read returns [`Unsupported`](crate::ErrorKind::Unsupported). For an unlogged
    /// partition with data in memory it returns [`NotLogged`](crate::ErrorKind::NotLogged). If the primary
    /// is stopped between two steps of a commit, the read returns [`Behind`](crate::ErrorKind::Behind) after
    /// its maximum wait. If the process of the primary has ended there, the read sees that commit.
    ///
    /// The removal of an entry by a compaction filter or a TTL is no commit, and this level does not cover it:
    /// after a read that does not find such an entry, a read on another secondary may still return it.
    ///
    /// If the partition did not change since its last read, the read costs a few loads from memory and no
    /// system call, even if other partitions change.
    Strong,
    /// Level 2. Bounded lag: at most a number of operations behind, and at most an age. A missing bound
    /// is no limit. Operations are counted over all partitions, so the lag of the partition itself is not
    /// larger. The age is measured by the clock of this process, from the begin of the last catch-up
    /// that found the partition complete; clocks of different processes are not compared.
    ///
    /// If the partition is beyond a bound, it catches up to the present, as at [`Level::Strong`].
    Bounded {
        /// Operations.
        operations: Option<u64>,
        /// Age.
        age: Option<Duration>,
    },
    /// Level 3. Session: the read sees the commit of this token and all earlier commits. A client that
    /// always passes its newest token reads its own writes and never goes back.
    ///
    /// A token of a commit that a crash lost, or of another history, returns
    /// [`SessionLost`](crate::ErrorKind::SessionLost).
    Session(Commit),
    /// Level 4. Prefix: all partitions as of one commit, so a batch over several partitions is
    /// visible whole or not at all. It is the state of the last complete
    /// [`sync`](crate::Secondary::sync); the first read performs one, to [`Target::Latest`]. This
    /// level never waits and never goes back. Two reads perform another sync: a read of a partition
    /// that was created since, and, as at [`Level::Eventual`], a get whose file was deleted. It is
    /// to [`Target::Durable`] if the last one was.
    Prefix,
    /// Level 5. Eventual: the partition as of its last sync. This level never waits and never catches up,
    /// with one exception: if no lease protects the files and one was deleted, a get catches up. It
    /// catches up only to what is durable if the partition was only ever synced to
    /// [`Target::Durable`].
    Eventual,
}

/// The goal of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// All commits at the begin of the call. Without a cursor, all commits that the log proves to be
    /// durable.
    Latest,
    /// Everything that is durable, as far as the log proves it. A secondary that is only ever
    /// synced to this shows nothing that a crash of the machine could undo. A sync of any partition
    /// to another goal ends that for all partitions until the next epoch: they are then shown up to
    /// the goal that was reached.
    Durable,
    /// The commit of a token, and all earlier commits.
    Token(Commit),
}

/// The result of a read that cannot reach its level in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnUnmet {
    /// An error.
    #[default]
    Error,
    /// A read of the available state, which reports [`Level::Eventual`].
    Weaker,
}

/// The options of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadOptions {
    /// The level.
    pub level: Level,
    /// The maximum time that the read waits for the primary, which may have stopped between two steps of
    /// a commit, or may not have made the commit yet. Default: 1 s.
    pub wait: Duration,
    /// The result after that time.
    pub on_unmet: OnUnmet,
}

impl ReadOptions {
    /// Returns options for a read at `level` that waits for up to a second, and then fails.
    pub fn new(level: Level) -> ReadOptions {
        ReadOptions { level, wait: Duration::from_secs(1), on_unmet: OnUnmet::Error }
    }

    /// Sets the maximum wait.
    #[must_use]
    pub fn wait(self, wait: Duration) -> ReadOptions {
        ReadOptions { wait, ..self }
    }

    /// Sets the result of a read that cannot reach its level.
    #[must_use]
    pub fn on_unmet(self, on_unmet: OnUnmet) -> ReadOptions {
        ReadOptions { on_unmet, ..self }
    }
}
