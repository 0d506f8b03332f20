//! [`Level`]: how far a partition is brought before it is read, and what that guarantees.

use std::time::Duration;

use lsm_core::db::Commit;

/// The freshness that a read asks for, from strong to eventual. The numbers are those of the SCID thesis.
///
/// Each is a promise of one partition, but [`Level::Prefix`], which is one of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Level 1. Linearizable: the read sees every commit that was acknowledged, and every commit that
    /// somebody read on the primary or on another secondary at this level, before the read began.
    ///
    /// It needs the primary's commit cursor, which is there on the same machine, or a database that
    /// is closed. With neither it is [`Unsupported`](crate::ErrorKind::Unsupported); for a partition
    /// without a log that has something in memory, [`NotLogged`](crate::ErrorKind::NotLogged).
    ///
    /// If nothing was written to the partition since it was read last, it costs a few loads from
    /// memory and no system call, however much is written to others.
    Strong,
    /// Level 2. At most so many operations behind, and at most so old; a bound that is absent does not
    /// matter. Operations are counted over all partitions, so that the partition itself is never
    /// further behind. Age is measured by this process's own clock from the beginning of the last
    /// look that found the partition complete; no two clocks are compared.
    ///
    /// A partition that is beyond a bound is brought up to the present moment, as at
    /// [`Level::Strong`].
    Bounded {
        /// Operations.
        operations: Option<u64>,
        /// Age.
        age: Option<Duration>,
    },
    /// Level 3. The read sees the commit of this token, and everything that its writer had read before it:
    /// who passes on the newest token that it got reads its own writes, and never goes back.
    ///
    /// A token of a commit that a crash took, or of another history, is
    /// [`SessionLost`](crate::ErrorKind::SessionLost).
    Session(Commit),
    /// Level 4. All partitions as they were together behind one commit: a batch over several is seen
    /// whole or not at all. It is the state of the last whole [`sync`](crate::Secondary::sync); the first
    /// read makes one. It never waits, and never goes back.
    Prefix,
    /// Level 5. The partition as it was at some moment: what was last synced of it. It never waits and
    /// never looks.
    Eventual,
}

/// The goal of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Everything that is committed when the call begins. Without a cursor: everything that the log
    /// attests as durable.
    Latest,
    /// The commit of a token, and everything before it.
    Token(Commit),
}

/// The fate of a read whose level cannot be had in its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnmet {
    /// It is an error.
    #[default]
    Error,
    /// The read sees what there is, and says that it is [`Level::Eventual`].
    Weaker,
}

/// The way in which a partition is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// The level.
    pub level: Level,
    /// The longest time that the read waits for the primary, which may be stopped between two steps
    /// of a commit, or not have made the commit yet. Default: 1 s.
    pub wait: Duration,
    /// The fate of the read then.
    pub on_unmet: OnUnmet,
}

impl ReadOptions {
    /// A read at `level` that waits for up to a second, and then fails.
    pub fn new(level: Level) -> ReadOptions {
        ReadOptions { level, wait: Duration::from_secs(1), on_unmet: OnUnmet::Error }
    }

    /// Sets the longest wait.
    #[must_use]
    pub fn wait(self, wait: Duration) -> ReadOptions {
        ReadOptions { wait, ..self }
    }

    /// Sets what becomes of a read that cannot have its level.
    #[must_use]
    pub fn on_unmet(self, on_unmet: OnUnmet) -> ReadOptions {
        ReadOptions { on_unmet, ..self }
    }
}
