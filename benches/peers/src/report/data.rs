//! Runs of one data set, and the medians over their rounds.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::engines::{self, Fault};
use crate::machine::QUIET_CORES_MAX;

/// One process: one engine, one sequence of workloads.
#[derive(Clone, Debug)]
pub struct Run {
    /// Name of the engine.
    pub engine: String,
    /// Its version.
    pub version: String,
    /// The workloads, as they were given.
    pub sequence: String,
    /// One object per workload, in order.
    pub rows: Vec<Value>,
    /// The cost of all of it.
    pub total: Value,
    /// The settings of the run.
    pub config: Value,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

impl Run {
    /// From the file that `run` wrote.
    pub fn from_json(value: &Value) -> Result<Run, Fault> {
        let mut rows = value["workloads"].as_array().ok_or("a run without workloads")?.clone();
        for row in &mut rows {
            let per_op = row["cpu_seconds"].as_f64().zip(row["ops"].as_f64());
            if let Some((seconds, ops)) = per_op.filter(|(_, ops)| *ops > 0.0) {
                row["cpu_us_per_op"] = json!(seconds * 1e6 / ops);
            }
        }
        Ok(Run {
            engine: text(&value["engine"]),
            version: text(&value["version"]),
            sequence: text(&value["sequence"]),
            rows,
            total: value["total"].clone(),
            config: value["config"].clone(),
        })
    }

    /// Cores that others used during it. A run without this figure counts as invalid.
    pub fn cores_of_others(&self) -> f64 {
        self.total["cores_of_others"].as_f64().unwrap_or(f64::INFINITY)
    }
}

/// The position of a workload in a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The sequence.
    pub sequence: String,
    /// Its row in the sequence.
    pub row: usize,
    /// Name of the workload as it is printed.
    pub name: String,
}

/// Runs that differ in engine, sequence and round.
#[derive(Clone, Debug)]
pub struct DataSet {
    /// The command that made them.
    pub command: String,
    /// In the order of their files' names.
    pub runs: Vec<Run>,
}

/// The middle of `values`; between the two middle ones of an even number.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

/// The median and all rounds of each figure that was measured.
fn figures_of<'a>(figures: impl Iterator<Item = (&'a str, Vec<f64>)>) -> Value {
    let measured = figures.filter(|(_, values)| !values.is_empty());
    let pairs = measured.map(|(key, values)| {
        (key.to_owned(), json!({ "median": median(values.clone()), "rounds": values }))
    });
    Value::Object(pairs.collect())
}

impl DataSet {
    /// All runs in `folder`.
    pub fn read(folder: &Path) -> Result<DataSet, Fault> {
        let mut files = Vec::new();
        for name in std::fs::read_dir(folder)? {
            files.push(name?.path());
        }
        files.sort();
        files.retain(|path| path.extension().is_some_and(|ending| ending == "json"));
        let mut runs = Vec::new();
        for file in files {
            let of_file = |fault: &dyn std::fmt::Display| format!("{}: {fault}", file.display());
            let text = std::fs::read_to_string(&file)?;
            let value: Value = serde_json::from_str(&text).map_err(|e| of_file(&e))?;
            runs.push(Run::from_json(&value).map_err(|e| of_file(&e))?);
        }
        let command = std::fs::read_to_string(folder.join("command")).unwrap_or_default();
        Ok(DataSet { command: command.trim().to_owned(), runs })
    }

    /// Names of the engines that were measured, ours first.
    pub fn engines(&self) -> Vec<&'static str> {
        let is_there = |name: &&str| self.runs.iter().any(|run| run.engine == **name);
        engines::NAMES.into_iter().filter(is_there).collect()
    }

    /// Sequences in order.
    pub fn sequences(&self) -> Vec<&str> {
        let mut sequences: Vec<&str> = Vec::new();
        for run in &self.runs {
            if !sequences.contains(&run.sequence.as_str()) {
                sequences.push(&run.sequence);
            }
        }
        sequences
    }

    /// Runs of each engine and sequence, the least of them.
    pub fn rounds(&self) -> usize {
        let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for run in &self.runs {
            *counts.entry((&run.engine, &run.sequence)).or_default() += 1;
        }
        counts.into_values().min().unwrap_or(0)
    }

    /// Every workload, in order; not the settling between them. A name that occurs twice says which
    /// sequence it is of and which workload of that.
    pub fn places(&self) -> Vec<Place> {
        let mut places: Vec<Place> = Vec::new();
        let mut numbers = Vec::new();
        for (number, sequence) in (1..).zip(self.sequences()) {
            let Some(run) = self.runs.iter().find(|run| run.sequence == sequence) else { continue };
            let names = run.rows.iter().map(|row| text(&row["workload"])).enumerate();
            let workloads = names.filter(|(_, name)| name != "settle");
            for (position, (row, name)) in (1..).zip(workloads) {
                places.push(Place { sequence: sequence.to_owned(), row, name });
                numbers.push(format!("{number}.{position}"));
            }
        }
        let names: Vec<String> = places.iter().map(|place| place.name.clone()).collect();
        for (place, number) in places.iter_mut().zip(numbers) {
            if names.iter().filter(|name| **name == place.name).count() > 1 {
                place.name = format!("{} ({number})", place.name);
            }
        }
        places
    }

    /// The figures of every round of `engine` at `place` under the JSON pointer `key`.
    pub fn values(&self, engine: &str, place: &Place, key: &str) -> Vec<f64> {
        let runs = self.runs.iter().filter(|run| run.engine == engine);
        let runs = runs.filter(|run| run.sequence == place.sequence);
        runs.filter_map(|run| run.rows.get(place.row)?.pointer(key)?.as_f64()).collect()
    }

    /// Returns whether a run has a figure under the JSON pointer `key`.
    pub fn has(&self, places: &[Place], key: &str) -> bool {
        let engines = self.engines();
        places.iter().any(|place| engines.iter().any(|e| !self.values(e, place, key).is_empty()))
    }

    /// The figures of every round of `engine` under `key` for the whole of `sequence`.
    pub fn totals(&self, engine: &str, sequence: &str, key: &str) -> Vec<f64> {
        let runs = self.runs.iter().filter(|run| run.engine == engine);
        let runs = runs.filter(|run| run.sequence == sequence);
        runs.filter_map(|run| run.total[key].as_f64()).collect()
    }

    /// The most cores that others used during a run.
    pub fn cores_of_others(&self) -> f64 {
        self.runs.iter().map(Run::cores_of_others).fold(0.0, f64::max)
    }

    /// Returns whether the machine was quiet during all runs.
    pub fn is_valid(&self) -> bool {
        self.cores_of_others() <= QUIET_CORES_MAX
    }

    /// The suite that `run.sh` measured: the one that the command names, or the default.
    pub fn suite(&self) -> &str {
        if let Some(suite) = self.runs.first().and_then(|run| run.config["suite"].as_str()) {
            return suite;
        }
        let mut words = self.command.split_whitespace();
        words.find(|word| *word == "--suite").and_then(|_| words.next()).unwrap_or("core")
    }

    /// Returns whether the set is of large values.
    pub fn is_large(&self) -> bool {
        self.suite() == "large"
    }

    /// Returns whether more is better at `place`. In the suite of features, less of some figures is better.
    pub fn is_more_better(&self, place: &Place) -> bool {
        let runs = self.runs.iter().filter(|run| run.sequence == place.sequence);
        !runs.filter_map(|run| run.rows.get(place.row)).any(|row| row["good"] == "less")
    }

    /// Fails unless all engines were given the same work and found the same. What a thread next to
    /// the counted one wrote depends on time, and is left out; with several counted threads, so does
    /// what they found, and with a time limit all of it.
    pub fn check_same_work(&self) -> Result<(), Fault> {
        for sequence in self.sequences() {
            let mut first: Option<(&Run, Vec<Value>)> = None;
            for run in self.runs.iter().filter(|run| run.sequence == sequence) {
                let keys = ["workload", "ops", "found", "missed", "user_bytes_scanned"];
                let has_threads = run.config["threads"].as_u64().is_some_and(|count| count > 1);
                let is_limited = run.config["seconds"].is_number();
                let keys = match (is_limited, has_threads) {
                    (true, _) => &keys[..1],
                    (false, true) => &keys[..2],
                    (false, false) => &keys[..],
                };
                let work = run
                    .rows
                    .iter()
                    .map(|row| Value::Array(keys.iter().map(|key| row[*key].clone()).collect()));
                let mut work: Vec<Value> = work.collect();
                work.push(run.config.clone());
                match &first {
                    None => first = Some((run, work)),
                    Some((other, expected)) if *expected != work => {
                        let a = &other.engine;
                        let b = &run.engine;
                        return Err(format!("{a} and {b} did other work in {sequence}").into());
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    /// The medians, and what every round had.
    pub fn json(&self) -> Value {
        let engines = self.engines();
        let by_engine = |pick: &dyn Fn(&str) -> Value| {
            let pairs = engines.iter().map(|engine| ((*engine).to_owned(), pick(engine)));
            Value::Object(pairs.collect())
        };
        let keys = [
            "figure",
            "ops_per_second",
            "mb_per_second",
            "p50_us",
            "p99_us",
            "p999_us",
            "max_us",
            "idle_max_us",
            "cpu_seconds",
            "cpu_us_per_op",
        ];
        let workload = |place: &Place| {
            let figures = by_engine(&|engine| {
                let values = keys.map(|key| (key, self.values(engine, place, &format!("/{key}"))));
                figures_of(values.into_iter())
            });
            json!({ "workload": place.name, "sequence": place.sequence, "engines": figures })
        };
        let keys = [
            "seconds",
            "cpu_seconds",
            "cores_of_others",
            "peak_memory_bytes",
            "write_amplification",
            "device_write_amplification",
            "close_seconds",
            "reopen_seconds",
            "filled_bytes",
            "empty_bytes",
            "disk_bytes",
            "space_amplification",
        ];
        let sequence = |sequence: &&str| {
            let figures = by_engine(&|engine| {
                figures_of(keys.into_iter().map(|key| (key, self.totals(engine, sequence, key))))
            });
            json!({ "sequence": sequence, "engines": figures })
        };
        json!({
            "command": self.command,
            "config": self.runs.first().map(|run| run.config.clone()),
            "rounds": self.rounds(),
            "workloads": self.places().iter().map(workload).collect::<Vec<Value>>(),
            "totals": self.sequences().iter().map(sequence).collect::<Vec<Value>>(),
        })
    }
}
