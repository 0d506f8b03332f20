//! The medians as Markdown.
//!
//! In each table the best of a row is bold, and the last column is siltstone by the best of its
//! rivals: above 1 is better where more is better, below 1 where less is.

use std::fmt::{self, Write};

use super::data::{DataSet, Place, median};
use crate::engines::{OURS, is_ours};

/// The end of a column that is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Good {
    More,
    Less,
}

impl Good {
    fn best(self, values: impl Iterator<Item = f64>) -> Option<f64> {
        match self {
            Good::More => values.max_by(f64::total_cmp),
            Good::Less => values.min_by(f64::total_cmp),
        }
    }
}

/// A whole number with commas.
fn whole(digits: &str) -> String {
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with commas, and with as many decimal places as its size needs.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    let (left, right) = text.find('.').map_or((text.as_str(), ""), |at| text.split_at(at));
    whole(left) + right
}

/// One row: a value per engine, ours by the best of the others.
fn row(out: &mut String, name: &str, values: &[(&str, Option<f64>)], good: Good) -> fmt::Result {
    write!(out, "| {name} |")?;
    let best = good.best(values.iter().filter_map(|(_, value)| *value));
    for (_, value) in values {
        match value {
            None => write!(out, " - |")?,
            Some(value) if best == Some(*value) => write!(out, " **{}** |", number(*value))?,
            Some(value) => write!(out, " {} |", number(*value))?,
        }
    }
    let ours = values.iter().find(|(engine, _)| *engine == OURS).and_then(|(_, value)| *value);
    let rivals = values.iter().filter(|(engine, _)| !is_ours(engine));
    let rival = good.best(rivals.filter_map(|(_, value)| *value));
    match ours.zip(rival).filter(|(_, rival)| *rival > 0.0) {
        Some((ours, rival)) => write!(out, " {} |", number(ours / rival)),
        None => write!(out, " - |"),
    }
}

fn head(out: &mut String, title: &str, engines: &[&str], more: &[&str]) -> fmt::Result {
    let columns = [engines, &["siltstone / best rival"], more].concat();
    writeln!(out, "\n| {title} | {} |", columns.join(" | "))?;
    writeln!(out, "| --- |{}", " ---: |".repeat(columns.len()))
}

/// Writes the table of a data set: rates, pauses where a run looked for them, and what each sequence cost as a whole.
/// `benchmarks.json` has the other figures.
pub fn write(out: &mut String, set: &DataSet) -> fmt::Result {
    introduce(out, set)?;
    let engines = set.engines();
    let places = set.places();
    let (title, key) = match set.suite() {
        "large" => ("MB per second", "/mb_per_second"),
        "features" => ("figure", "/figure"),
        _ => ("operations per second", "/ops_per_second"),
    };
    head(out, title, &engines, &["spread"])?;
    // A `load` fills a database for the workloads after it, as a fill that has a row of its own does.
    for place in places.iter().filter(|place| !place.name.starts_with("load")) {
        rate(out, set, &engines, place, &place.name, key)?;
        if place.name.starts_with("readwhilewriting") {
            let beside = "/writes_beside/ops_per_second";
            rate(out, set, &engines, place, "... its concurrent writes", beside)?;
        }
    }
    if set.has(&places, "/idle_max_us") {
        pauses(out, set, &engines, &places)?;
    }
    let sequences = set.sequences();
    for (number, sequence) in sequences.iter().enumerate() {
        let name = match sequences.len() {
            1 => String::new(),
            _ => format!("sequence {}: ", number + 1),
        };
        totals(out, set, &engines, &name, sequence)?;
    }
    Ok(())
}

/// A whole number among the settings of a set; `-` if the set does not have it.
fn setting(set: &DataSet, key: &str) -> String {
    let value = set.runs.first().and_then(|run| run.config[key].as_u64());
    value.map_or("-".to_owned(), |n| whole(&n.to_string()))
}

/// Writes the heading: the suite, and everything in which sets of one suite differ.
fn heading(out: &mut String, set: &DataSet) -> fmt::Result {
    write!(out, "\n### {}: ", set.suite())?;
    if set.is_large() {
        let sizes = set.runs.first().and_then(|run| run.config["sizes"].as_array());
        write!(out, "values of {} sizes", sizes.map_or(0, Vec::len))?;
    } else if set.suite() == "features" {
        write!(out, "calls beyond puts, gets and scans")?;
    } else {
        if let [place] = &set.places()[..] {
            write!(out, "{} of ", place.name)?;
        }
        let records = setting(set, "records");
        let key = setting(set, "key_size");
        let value = setting(set, "value_size");
        write!(out, "{records} records of {key} + {value} bytes")?;
    }
    for (key, name) in [("cache_mib", "block cache"), ("memory_mib", "memory")] {
        let mebibytes = setting(set, key);
        if mebibytes != "-" {
            write!(out, ", {name} of {mebibytes} MiB")?;
        }
    }
    writeln!(out, "\n")
}

fn introduce(out: &mut String, set: &DataSet) -> fmt::Result {
    let config = set.runs.first().map(|run| &run.config);
    let figure = |key: &str| config.and_then(|config| config[key].as_u64());
    heading(out, set)?;
    if set.is_large() {
        let repetitions = setting(set, "repetitions");
        let mebibytes = figure("bytes_per_size").map_or(0, |bytes| bytes >> 20);
        write!(out, "Up to {repetitions} values and {mebibytes} MiB of each ")?;
        write!(out, "size, but three values at least. Rounds: {}", set.rounds())?;
    } else if set.suite() == "features" {
        write!(out, "Rounds: {}. A ratio compares two ways of one engine, in turns", set.rounds())?;
    } else {
        let ops = figure("ops").map_or("as many as records".to_owned(), |n| whole(&n.to_string()));
        match figure("seconds") {
            None => write!(out, "Operations of a workload that is not a fill: {ops}. ")?,
            Some(limit) => write!(out, "Seconds of a workload that is not a fill: {limit}. ")?,
        }
        write!(out, "Rounds: {}. ", set.rounds())?;
        match figure("sync_interval_ms") {
            Some(0) | None => write!(out, "Syncs by siltstone: off")?,
            Some(interval) => write!(out, "Syncs by siltstone: every {interval} ms")?,
        }
    }
    if let Some(threads) = figure("threads").filter(|threads| *threads > 1) {
        write!(out, ". Threads: {threads}")?;
    }
    if let Some(rate) = figure("write_rate") {
        write!(out, ". Writes during reads: {} per second", whole(&rate.to_string()))?;
    }
    if config.is_some_and(|config| config["lz4"] == true) {
        write!(out, ". Compression: LZ4")?;
    }
    if let Some(mebibytes) = figure("cache_mib") {
        write!(out, ". Block cache: {} MiB", whole(&mebibytes.to_string()))?;
    }
    if let Some(mebibytes) = figure("memory_mib") {
        write!(out, ". Memory of the process and of its page cache: {mebibytes} MiB")?;
    }
    if config.is_some_and(|config| config["settles"] == false) {
        write!(out, ". The databases were not compacted between the workloads")?;
    }
    writeln!(out, ".\n\n```console\n{}\n```", set.command)?;
    if !set.is_valid() {
        writeln!(
            out,
            "\n**The machine was not quiet: others used up to {} of its cores during a run. The \
             figures by the clock are not valid; those in processor time are.**",
            number(set.cores_of_others())
        )?;
    }
    Ok(())
}

/// The latencies of runs next to a loop that only looks at the clock, and the longest pause of that loop.
fn pauses(
    out: &mut String,
    set: &DataSet,
    engines: &[&'static str],
    places: &[Place],
) -> fmt::Result {
    let rows = [
        ("p99.9, us", "/p999_us"),
        ("longest, us", "/max_us"),
        ("longest pause of the idle loop, us", "/idle_max_us"),
    ];
    for place in places {
        for (title, key) in rows {
            let value = |engine: &&'static str| (*engine, median(set.values(engine, place, key)));
            let values: Vec<_> = engines.iter().map(value).collect();
            row(out, &format!("{}: {title}", place.name), &values, Good::Less)?;
            out.push_str(" |\n");
        }
    }
    Ok(())
}

/// The row of `place`, and how far the rounds of an engine lie apart, for the worst of them.
fn rate(
    out: &mut String,
    set: &DataSet,
    engines: &[&'static str],
    place: &Place,
    name: &str,
    key: &str,
) -> fmt::Result {
    let rounds = |engine: &str| set.values(engine, place, key);
    let values: Vec<_> = engines.iter().map(|engine| (*engine, median(rounds(engine)))).collect();
    row(out, name, &values, if set.is_more_better(place) { Good::More } else { Good::Less })?;
    let spread = |engine: &&str| {
        let rounds = rounds(engine);
        let most = Good::More.best(rounds.iter().copied())?;
        let least = Good::Less.best(rounds.iter().copied())?;
        Some((most - least) / median(rounds)?)
    };
    let worst = engines.iter().filter_map(spread).fold(0.0, f64::max);
    writeln!(out, " {:.0} % |", worst * 100.0)
}

/// The rows of what a sequence cost, with all compactions. They end the table of the rates.
fn totals(
    out: &mut String,
    set: &DataSet,
    engines: &[&'static str],
    name: &str,
    sequence: &str,
) -> fmt::Result {
    const MIB: f64 = 1048576.0;
    let rows = [
        ("peak memory, MiB", "peak_memory_bytes", MIB),
        ("bytes written / bytes put", "write_amplification", 1.0),
        ("closing, ms", "close_seconds", 1e-3),
        ("opening again, ms", "reopen_seconds", 1e-3),
        ("on disk before closing, MiB", "filled_bytes", MIB),
        ("on disk with everything deleted, MiB", "empty_bytes", MIB),
    ];
    for (title, key, unit) in rows {
        let value = |engine: &&'static str| {
            (*engine, median(set.totals(engine, sequence, key)).map(|value| value / unit))
        };
        let values: Vec<_> = engines.iter().map(value).collect();
        if values.iter().all(|(_, value)| value.is_none()) {
            continue;
        }
        row(out, &format!("{name}{title}"), &values, Good::Less)?;
        out.push_str(" |\n");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas_and_few_digits() {
        let texts = [0.0, 0.567, 9.994, 12.34, 123.4, 1234.5, 1_234_567.8].map(number);
        assert_eq!(texts, ["0.00", "0.57", "9.99", "12.3", "123", "1,234", "1,234,568"]);
    }

    #[test]
    fn ours_is_compared_with_the_best_rival_and_not_with_itself() {
        let mapped = "siltstone-mapped";
        let values =
            [(OURS, Some(30.0)), (mapped, Some(25.0)), ("rocksdb", Some(20.0)), ("fjall", None)];
        let check = |good, expected: &str| {
            let mut out = String::new();
            row(&mut out, "x", &values, good).unwrap();
            assert_eq!(out, expected);
        };
        check(Good::More, "| x | **30.0** | 25.0 | 20.0 | - | 1.50 |");
        check(Good::Less, "| x | 30.0 | 25.0 | **20.0** | - | 1.50 |");
    }
}
