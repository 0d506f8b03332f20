//! [`reasons`]: why the database of a server is not healthy, for its page, and for routers.

use std::fmt;

use siltstone::{Health, PartitionHealth};

use crate::node::Role;
use crate::shared::Shared;
use crate::users::{Right, User};

/// A reason why a database is not healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reason {
    /// The partition that it is of; `None` for the database.
    partition: Option<String>,
    what: String,
    /// The error, which may name keys of any partition.
    why: Option<String>,
}

impl Reason {
    fn of_database(what: &str, why: Option<&str>) -> Reason {
        Reason { partition: None, what: what.to_owned(), why: why.map(str::to_owned) }
    }

    fn of(partition: &str, what: &str, why: &str) -> Reason {
        let partition = Some(partition.to_owned());
        Reason { partition, what: what.to_owned(), why: Some(why.to_owned()) }
    }

    /// The part that a user may see.
    fn for_user(&self, user: &User) -> Reason {
        match &self.partition {
            _ if user.may_read_all() => self.clone(),
            Some(partition) if user.check(Right::Read, partition).is_ok() => self.clone(),
            Some(_) => Reason::of_database("a partition is not healthy", None),
            None => Reason::of_database(&self.what, None),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(partition) = &self.partition {
            write!(f, "partition {partition:?}: ")?;
        }
        f.write_str(&self.what)?;
        self.why.as_ref().map_or(Ok(()), |why| write!(f, ": {why}"))
    }
}

/// Characters of the health in a line.
const LINE_CHARACTERS_MAX: usize = 500;

/// The health in one line: `ok`, or what `user` may see of the reasons.
pub(crate) fn line(reasons: &[Reason], user: &User) -> String {
    if reasons.is_empty() {
        return "ok".to_owned();
    }
    let mut shown: Vec<Reason> = reasons.iter().map(|reason| reason.for_user(user)).collect();
    shown.dedup();
    let shown: Vec<String> = shown.iter().map(Reason::to_string).collect();
    let line = shown.join("; ");
    let characters = line.chars().take(LINE_CHARACTERS_MAX);
    characters.map(|it| if it.is_control() { ' ' } else { it }).collect()
}

/// The reasons; none if all is well. Looks at all partitions.
pub(crate) fn reasons(shared: &Shared) -> Vec<Reason> {
    match &*shared.node.role() {
        Role::Primary(primary) if primary.db.is_fenced() => {
            vec![Reason::of_database("another primary has taken the database over", None)]
        }
        Role::Primary(primary) => of_database(&primary.db.health()),
        Role::Reader(_) => {
            let failure = shared.metrics.follow_failure.lock().clone();
            let failure = failure.iter();
            failure.map(|why| Reason::of_database("the last sync failed", Some(why))).collect()
        }
    }
}

fn of_database(health: &Health) -> Vec<Reason> {
    let single = [
        ("read-only", &health.read_only),
        ("the folder of the database, or its files, were deleted", &health.deleted),
        ("writes are refused", &health.refused),
        ("readers have no level 1", &health.cursor_failure),
        ("the storage fails in the background", &health.storage_failure),
        ("compactions skip a table", &health.damage),
    ];
    let single = single.iter().filter(|(_, why)| why.is_some());
    let mut reasons: Vec<Reason> =
        single.map(|(what, why)| Reason::of_database(what, why.as_deref())).collect();
    reasons.extend(health.stalls.iter().map(|stall| delayed(&stall.partition, stall.reason)));
    reasons.extend(health.background_errors.iter().map(failed));
    reasons.extend(health.clock_jump.iter().map(jumped));
    health.partitions.iter().for_each(|partition| of_partition(partition, &mut reasons));
    if reasons.is_empty() && !health.is_healthy() {
        let what = "not healthy: `siltstone stats` has the figures";
        reasons.push(Reason::of_database(what, None));
    }
    reasons
}

fn delayed(partition: &str, why: &str) -> Reason {
    Reason::of(partition, "writes are delayed", why)
}

fn failed(failure: impl fmt::Display) -> Reason {
    Reason::of_database("background work fails", Some(&failure.to_string()))
}

fn jumped(jump: impl fmt::Display) -> Reason {
    Reason::of_database("expiry waits", Some(&jump.to_string()))
}

fn of_partition(partition: &PartitionHealth, reasons: &mut Vec<Reason>) {
    let name = &partition.name;
    let gaps = partition.gaps.iter();
    reasons.extend(gaps.map(|gap| Reason::of(name, "damaged beyond repair", &gap.to_string())));
    let filters = partition.absent_filters.iter();
    reasons.extend(filters.map(|it| Reason::of(name, "without its filter", &format!("{it:?}"))));
    let Some(store) = &partition.value_store else { return };
    let of_store = [
        ("large values are refused", &store.refused),
        ("garbage stays", &store.unmoved),
        ("large values are in doubt", &store.failure),
    ];
    let found = of_store.iter().filter_map(|(what, why)| Some((what, why.as_ref()?)));
    reasons.extend(found.map(|(what, why)| Reason::of(name, what, why)));
}

#[cfg(test)]
mod tests {
    use siltstone::{Db, Gap, SeqNo, ValueStoreStats};

    use super::*;
    use crate::users::Users;

    /// The health of a database with each defect, as far as a program can make it.
    fn sick() -> Health {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(folder.path()).unwrap();
        db.partition("users").unwrap();
        let why = Some("because".to_owned());
        let mut health = db.health();
        health.read_only.clone_from(&why);
        health.deleted.clone_from(&why);
        health.refused.clone_from(&why);
        health.cursor_failure.clone_from(&why);
        health.storage_failure.clone_from(&why);
        health.damage.clone_from(&why);
        let partition = health.partitions.iter_mut().find(|it| it.name == "users").unwrap();
        partition.absent_filters.push("because".to_owned());
        partition.gaps.push(Gap {
            from: Box::default(),
            from_below: SeqNo::ZERO,
            to: Box::default(),
            to_included: false,
            through: SeqNo::ZERO,
            closed_at: None,
        });
        let mut store = ValueStoreStats::default();
        store.refused.clone_from(&why);
        store.unmoved.clone_from(&why);
        store.failure = why;
        partition.value_store = Some(store);
        health
    }

    #[test]
    fn each_reason_is_named() {
        assert!(of_database(&Health::default()).is_empty());
        let mut reasons = of_database(&sick());
        reasons.extend([delayed("users", "because"), failed("because"), jumped("because")]);
        let named: Vec<String> = reasons.iter().map(|reason| reason.what.clone()).collect();
        assert_eq!(
            named,
            [
                "read-only",
                "the folder of the database, or its files, were deleted",
                "writes are refused",
                "readers have no level 1",
                "the storage fails in the background",
                "compactions skip a table",
                "damaged beyond repair",
                "without its filter",
                "large values are refused",
                "garbage stays",
                "large values are in doubt",
                "writes are delayed",
                "background work fails",
                "expiry waits",
            ]
        );
        let gap = reasons.iter().position(|it| it.what == "damaged beyond repair");
        for (at, reason) in reasons.iter().enumerate().filter(|(at, _)| Some(*at) != gap) {
            assert!(reason.to_string().contains(": because") || at == 7, "{reason}");
        }
    }

    #[test]
    fn a_user_sees_the_health_of_what_it_may_read() {
        let users = "all k read=*\nusers k read=users\nposts k write=posts\n";
        let users = Users::parse(users).unwrap();
        let reasons = [
            Reason::of("users", "garbage stays", "secret"),
            Reason::of("users", "large values are refused", "secret"),
            Reason::of_database("compactions skip a table", Some("table of posts")),
        ];
        let foreign = "a partition is not healthy; compactions skip a table";
        let own = "partition \"users\": garbage stays: secret; \
                   partition \"users\": large values are refused: secret; compactions skip a table";
        let all = format!("{own}: table of posts");
        for (name, expected) in [("all", &*all), ("users", own), ("posts", foreign)] {
            let user = users.authenticate(name.as_bytes(), b"k").unwrap();
            assert_eq!(line(&reasons, &user), expected, "{name}");
            assert_eq!(line(&[], &user), "ok");
        }
    }
}
