//! [`reasons`]: why the database of a server is not healthy, for its page, and for routers.

use siltstone::{Health, PartitionHealth};

use crate::node::Role;
use crate::shared::Shared;

/// The reasons; none if all is well.
pub(crate) fn reasons(shared: &Shared) -> Vec<String> {
    match &*shared.node.role() {
        Role::Primary(primary) if primary.db.is_fenced() => {
            vec!["another primary has taken the database over".to_owned()]
        }
        Role::Primary(primary) => of_database(&primary.db.health()),
        Role::Reader(_) => {
            let failure = shared.metrics.follow_failure.lock().clone();
            failure.map(|why| format!("the last sync failed: {why}")).into_iter().collect()
        }
    }
}

fn of_database(health: &Health) -> Vec<String> {
    let single = [
        ("read-only", &health.read_only),
        ("the folder of the database, or its files, were deleted", &health.deleted),
        ("writes are refused", &health.refused),
        ("readers have no level 1", &health.cursor_failure),
        ("the storage fails in the background", &health.storage_failure),
        ("compactions skip a table", &health.damage),
    ];
    let single = single.iter().filter_map(|(what, why)| Some(format!("{what}: {}", why.as_ref()?)));
    let mut reasons: Vec<String> = single.collect();
    reasons.extend(health.stalls.iter().map(|stall| {
        format!("partition {:?}: writes are delayed by {}", stall.partition, stall.reason)
    }));
    reasons.extend(health.background_errors.iter().map(ToString::to_string));
    reasons.extend(health.clock_jump.iter().map(|jump| format!("expiry waits: {jump}")));
    health.partitions.iter().for_each(|partition| of_partition(partition, &mut reasons));
    if reasons.is_empty() && !health.is_healthy() {
        reasons.push("not healthy: `siltstone stats` has the figures".to_owned());
    }
    reasons
}

fn of_partition(partition: &PartitionHealth, reasons: &mut Vec<String>) {
    let name = &partition.name;
    let gaps = partition.gaps.iter();
    reasons.extend(gaps.map(|gap| format!("partition {name:?}: damaged beyond repair: {gap}")));
    let filters = partition.absent_filters.iter();
    reasons.extend(filters.map(|it| format!("partition {name:?}: without its filter {it:?}")));
    let Some(store) = &partition.value_store else { return };
    if let Some(why) = &store.refused {
        reasons.push(format!("partition {name:?}: large values are refused: {why}"));
    }
    if let Some(why) = &store.unmoved {
        reasons.push(format!("partition {name:?}: garbage stays: {why}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_named() {
        assert!(of_database(&Health::default()).is_empty());
        let why = Some("because".to_owned());
        let mut health = Health::default();
        health.read_only.clone_from(&why);
        health.deleted.clone_from(&why);
        health.refused.clone_from(&why);
        health.cursor_failure.clone_from(&why);
        health.storage_failure.clone_from(&why);
        health.damage = why;
        let reasons = of_database(&health);
        assert_eq!(reasons.len(), 6);
        assert!(reasons.iter().all(|reason| reason.ends_with(": because")), "{reasons:?}");
    }
}
