//! The part of `stats` that shows problems: the result of `Db::health`, as text and as JSON.
//!
//! Only `stats.rs` calls it. In the text, problems come first, each with its duration; the distance
//! to the limits is always shown.
//!
//! Invariant: text and JSON are made from the same copy and leave nothing out.

use std::fmt::{Display, Write};
use std::time::Duration;

use serde_json::{Value, json};
use siltstone::{BackgroundFailure, Gauge, Health, PartitionHealth, StallHealth};

use super::{bytes, value_store_json};

/// A name or a reason from outside, for a terminal.
fn escaped(text: &str) -> impl Display + '_ {
    text.escape_debug()
}

fn seconds(duration: Duration) -> String {
    format!("{:.3} s", duration.as_secs_f64())
}

/// Lines without an end, as those of `stats.rs` before them.
pub(super) fn text(health: &Health) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &dyn Display| {
        let _ = write!(text, "\n{name:<20} {value}");
    };
    line("healthy", &if health.is_healthy() { "yes" } else { "no" });
    line("read-only", health.read_only.as_ref().map_or(&"no", |why| why));
    space_lines(health, &mut line);
    if health.stalls.is_empty() {
        line("held back", &"no writers");
    }
    for StallHealth { partition, reason, pressure_permille, since, .. } in &health.stalls {
        let how = if *pressure_permille < 1000 { "slowed down" } else { "stopped" };
        let name = escaped(partition);
        let since = seconds(*since);
        let value =
            format!("writers of {name}, {how} by {reason}, {pressure_permille}/1000, for {since}");
        line("held back", &value);
    }
    if health.background_errors.is_empty() {
        line("background error", &"none");
    }
    for failure in &health.background_errors {
        line("background error", &failure_text(failure));
    }
    if let Some(damage) = &health.damage {
        line("skipped table", damage);
    }
    if let Some(panic) = &health.listener_panic {
        line("listener", panic);
    }
    if let Some(why) = &health.cursor_failure {
        line("commit cursor", &escaped(why));
    }
    if let Some(jump) = &health.clock_jump {
        line("expiry waits", jump);
    }
    line("sealed memtables", &gauge_text(&health.sealed_memtable_bytes, bytes));
    line("log to keep", &gauge_text(&health.wal_bytes, bytes));
    for partition in &health.partitions {
        for filter in &partition.absent_filters {
            let name = escaped(&partition.name);
            line("without", &format!("compaction filter {} of {name}", escaped(filter)));
        }
        for gap in &partition.gaps {
            // The keys of its text are escaped already.
            line("lost", &format!("{}: {gap}", escaped(&partition.name)));
        }
    }
    chunk_lines(health, &mut line);
    for PartitionHealth { name, compaction_debt_bytes, level0_tables, .. } in &health.partitions {
        let name = escaped(name);
        line("compaction debt", &format!("{name}: {}", gauge_text(compaction_debt_bytes, bytes)));
        line(
            "level-0 tables",
            &format!("{name}: {}", gauge_text(level0_tables, |count: u64| count.to_string())),
        );
    }
    match health.oldest_snapshot {
        None => line("oldest snapshot", &"none"),
        Some(age) => line("oldest snapshot", &format!("taken {} ago", seconds(age))),
    }
    line("held by readers", &format!("{} of obsolete tables", bytes(health.pinned_obsolete_bytes)));
    let Gauge { value, soft, hard, .. } = health.open_files;
    line(
        "open files",
        &format!("{value}, up to {soft} are kept open; the process may open {hard}"),
    );
    text
}

/// The lines about missing files, and about a full disk.
fn space_lines(health: &Health, line: &mut dyn FnMut(&str, &dyn Display)) {
    if let Some(why) = &health.deleted {
        line("deleted files", &escaped(why));
    }
    if let Some(why) = &health.refused {
        line("refused", &format!("writes: {}", escaped(why)));
    }
    if let Some(why) = &health.storage_failure {
        line("storage", &escaped(why));
    }
}

/// The lines about chunk files.
fn chunk_lines(health: &Health, line: &mut dyn FnMut(&str, &dyn Display)) {
    for partition in &health.partitions {
        let Some(store) = &partition.value_store else { continue };
        let name = escaped(&partition.name);
        let [dead, held] = [store.dead_bytes, store.pinned_bytes].map(bytes);
        line("chunk files", &format!("{name}: {dead} to reclaim, readers hold {held}"));
        if let Some(failure) = &store.failure {
            line("in doubt", &format!("large values of {name}: {}", escaped(failure)));
        }
        if let Some(why) = &store.refused {
            line("refused", &format!("large values of {name}: {}", escaped(why)));
        }
        if let Some(why) = &store.unmoved {
            line("garbage stays", &format!("in chunk files of {name}: {}", escaped(why)));
        }
    }
}

fn failure_text(failure: &BackgroundFailure) -> String {
    let BackgroundFailure { reason, class, severity, resume, error, .. } = failure;
    let attempts = failure.attempts;
    let since = seconds(failure.since);
    let again = match failure.retry_in {
        Some(retry) => format!("next attempt in {}", seconds(retry)),
        None => "no further attempt".to_owned(),
    };
    format!(
        "{reason:?} fails for {since}, {attempts} times, {again} \
         ({class:?}, {severity:?}, {resume:?}): {error}"
    )
}

fn gauge_text(gauge: &Gauge, unit: impl Fn(u64) -> String) -> String {
    let [value, hard, left] = [gauge.value, gauge.hard, gauge.left()].map(&unit);
    let slower = match gauge.soft < gauge.hard {
        true => format!("; slower from {} on", unit(gauge.soft)),
        false => String::new(),
    };
    format!("{value} of {hard}, {left} left{slower}")
}

pub(super) fn json(health: &Health) -> Value {
    let stalls = health.stalls.iter().map(|stall| {
        json!({
            "partition": stall.partition,
            "reason": stall.reason,
            "pressure_permille": stall.pressure_permille,
            "since_seconds": stall.since.as_secs_f64(),
        })
    });
    let partitions = health.partitions.iter().map(|partition| {
        json!({
            "partition": partition.name,
            "compaction_debt_bytes": gauge_json(&partition.compaction_debt_bytes),
            "level0_tables": gauge_json(&partition.level0_tables),
            "gaps": partition.gaps.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "absent_filters": partition.absent_filters,
            "value_store": partition.value_store.as_ref().map(value_store_json),
        })
    });
    json!({
        "healthy": health.is_healthy(),
        "read_only": health.read_only,
        "deleted": health.deleted,
        "refused": health.refused,
        "cursor_failure": health.cursor_failure,
        "storage_failure": health.storage_failure,
        "stalls": stalls.collect::<Vec<_>>(),
        "background_errors":
            health.background_errors.iter().map(failure_json).collect::<Vec<_>>(),
        "damage": health.damage,
        "listener_panic": health.listener_panic,
        "partitions": partitions.collect::<Vec<_>>(),
        "sealed_memtable_bytes": gauge_json(&health.sealed_memtable_bytes),
        "wal_bytes": gauge_json(&health.wal_bytes),
        "oldest_snapshot_seconds": health.oldest_snapshot.map(|age| age.as_secs_f64()),
        "pinned_obsolete_bytes": health.pinned_obsolete_bytes,
        "open_files": gauge_json(&health.open_files),
        "clock_jump": health.clock_jump.map(|jump| serde_json::json!({
            "expected_unix_seconds": jump.expected.as_secs(),
            "found_unix_seconds": jump.found.as_secs(),
        })),
    })
}

fn failure_json(failure: &BackgroundFailure) -> Value {
    json!({
        "reason": format!("{:?}", failure.reason),
        "class": format!("{:?}", failure.class),
        "severity": format!("{:?}", failure.severity),
        "resume": format!("{:?}", failure.resume),
        "error": failure.error.to_string(),
        "attempts": failure.attempts,
        "since_seconds": failure.since.as_secs_f64(),
        "retry_in_seconds": failure.retry_in.map(|retry| retry.as_secs_f64()),
    })
}

fn gauge_json(gauge: &Gauge) -> Value {
    let Gauge { value, soft, hard, .. } = *gauge;
    json!({ "value": value, "soft": soft, "hard": hard, "left": gauge.left() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use siltstone::hooks::{CompactionFilter, CompactionFilterFactory, Job};
    use siltstone::{BackgroundMode, Db, Hooks, Options, PartitionOptions, Result};

    use super::super::tests::missing;
    use super::*;

    /// Panics at every job.
    struct Broken;

    impl CompactionFilterFactory for Broken {
        fn name(&self) -> &'static str {
            "broken"
        }

        fn start(&self, _job: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
            panic!("as it was written to")
        }
    }

    /// Health after writes to a partition that cannot be flushed, until they are stopped.
    fn stopped() -> Health {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::builder(folder.path())
            .options(Options::new().write_buffer_bytes(64 << 10))
            .background(BackgroundMode::Stepped)
            .open()
            .unwrap();
        let hooks = Hooks::new().filter(Arc::new(Broken));
        let p = db.partition_with("p\n", PartitionOptions::new().hooks(hooks)).unwrap();
        let _snapshot = db.snapshot();
        let refused = (0..10_000).find_map(|_| p.put("k", [7; 1000]).err()).unwrap();
        assert!(refused.to_string().contains("stopped"), "{refused}");
        db.health()
    }

    #[test]
    fn problems_are_printed_with_their_reason_and_duration() {
        let health = stopped();
        let text = text(&health);
        for part in [
            "\nhealthy              no\n",
            "\nheld back            writers of p\\n, stopped by memtables that wait for a flush, \
             1000/1000, for ",
            "\nbackground error     Flush fails for ",
            "(Hook, Hard, Retry): partition \"p\\n\": start of the compaction filter \"broken\" \
             panicked: as it was written to\n",
            " of 160.0 KiB, 0 B left; slower from 96.0 KiB on\n",
            "\nlevel-0 tables       p\\n: 0 of 48, 48 left; slower from 20 on\n",
            "\noldest snapshot      taken ",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        let json = json(&health);
        assert_eq!(json["healthy"], false);
        let stalls = json["stalls"].as_array().unwrap();
        let stall = stalls.iter().find(|stall| stall["partition"] == "p\n").unwrap();
        assert_eq!(stall["reason"], "memtables that wait for a flush");
        assert!(stall["pressure_permille"] == 1000 && stall["since_seconds"].is_f64(), "{stall}");
        let failure = &json["background_errors"][0];
        assert_eq!((&failure["reason"], &failure["class"]), (&"Flush".into(), &"Hook".into()));
        assert!(failure["attempts"].as_u64() >= Some(1) && failure["since_seconds"].is_f64());
        assert_eq!(json["sealed_memtable_bytes"]["left"], 0);
        assert!(json["oldest_snapshot_seconds"].is_f64(), "{json}");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "copies a fixture, which no database has open")]
    fn lost_keys_are_printed() {
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/gap");
        let folder = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(fixture).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
        }
        let db = Db::open(folder.path()).unwrap();
        let health = db.health();
        let text = text(&health);
        let lost = health.partitions.iter().flat_map(|partition| &partition.gaps);
        let lost: Vec<String> = lost.map(ToString::to_string).collect();
        assert!(!lost.is_empty() && text.contains("\nhealthy              no\n"), "{text}");
        let json = json(&health).to_string();
        for gap in lost {
            assert!(text.contains(&gap), "{gap} is not in {text}");
            let quoted = serde_json::to_string(&gap).unwrap();
            assert!(json.contains(&quoted), "{quoted} is not in {json}");
        }
    }

    #[test]
    fn json_has_every_field_of_health() {
        let health = stopped();
        let missing = missing(&format!("{health:?}"), &json(&health).to_string());
        // Under another name, or with the unit; the last one is a word of the error.
        let renamed = ["name", "oldest_snapshot", "since", "retry_in", "panicked"];
        assert_eq!(missing, BTreeSet::from(renamed.map(str::to_owned)));
    }

    #[test]
    fn the_reason_for_a_read_only_store_is_printed() {
        let mut health = Health::default();
        health.read_only = Some("a sync of the log failed".to_owned());
        health.damage = Some("a table is damaged".to_owned());
        health.listener_panic = Some("an event listener panicked".to_owned());
        let text = text(&health);
        for part in [
            "\nread-only            a sync of the log failed\n",
            "\nskipped table        a table is damaged\n",
            "\nlistener             an event listener panicked\n",
            "\nhealthy              no\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        let json = json(&health);
        assert_eq!(json["read_only"], "a sync of the log failed");
        assert_eq!(json["damage"], "a table is damaged");
    }
}
