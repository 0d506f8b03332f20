//! Tables of many runs: medians over the rounds, and siltstone by its best rival.
//!
//! The folder of runs has one folder per data set, with a file `command` (how it was made) and one
//! JSON file per run. See `data.rs` for what is made of the runs; `method.md` is the text in front.
//!
//! Invariant: where two engines were not given the same work, or did not find the same, there is
//! no report.

mod data;
mod tables;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

pub use self::data::median;
use self::data::{DataSet, Run};
use crate::engines::{self, Fault};
use crate::machine::QUIET_CORES_MAX;
use crate::settings::Settings;

/// Arguments of `report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder of the data sets' folders
    #[arg(long)]
    runs: PathBuf,
    /// File for the tables
    #[arg(long)]
    markdown: PathBuf,
    /// File for all figures
    #[arg(long)]
    json: PathBuf,
    /// Folder for copies of both files, unless a run of the report is invalid
    #[arg(long)]
    publish: Option<PathBuf>,
    /// A description of the machine, in addition to what it reports itself
    #[arg(long, default_value = "")]
    machine: String,
    /// Commit of siltstone
    #[arg(long, default_value = "unknown")]
    commit: String,
}

/// Reads the runs and writes the report.
pub fn run(args: &Args) -> Result<(), Fault> {
    let sets = read_sets(&args.runs)?;
    let machine = machine(&args.machine);
    let versions = versions(&sets, &args.commit);
    let markdown = markdown(&sets, &machine, &versions)?;
    let json = json!({
        "machine": machine,
        "versions": versions,
        "data_sets": sets.iter().map(DataSet::json).collect::<Vec<Value>>(),
    });
    std::fs::write(&args.markdown, markdown)?;
    std::fs::write(&args.json, format!("{json:#}\n"))?;
    match &args.publish {
        Some(folder) => publish(&sets, [&args.markdown, &args.json], folder),
        None => Ok(()),
    }
}

/// Copies the report to `folder`. Fails, and copies nothing, if the report has no run or calls one of
/// its data sets invalid.
fn publish(sets: &[DataSet], files: [&Path; 2], folder: &Path) -> Result<(), Fault> {
    if sets.is_empty() {
        return Err("not published: nothing was measured".into());
    }
    let invalid: Vec<&DataSet> = sets.iter().filter(|set| !set.is_valid()).collect();
    if !invalid.is_empty() {
        let commands: Vec<&str> = invalid.iter().map(|set| set.command.as_str()).collect();
        let text = "not published: the machine was not quiet during a run of";
        return Err(format!("{text}\n  {}", commands.join("\n  ")).into());
    }
    for file in files {
        let name = file.file_name().ok_or("the report is no file")?;
        std::fs::copy(file, folder.join(name))?;
    }
    Ok(())
}

/// Fails if others worked during the run in `file`.
pub fn check_run(file: &Path) -> Result<(), Fault> {
    let run: Value = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    let others = Run::from_json(&run)?.cores_of_others();
    if others <= QUIET_CORES_MAX {
        return Ok(());
    }
    Err(format!("others used {others:.2} cores during {}", file.display()).into())
}

fn read_sets(folder: &Path) -> Result<Vec<DataSet>, Fault> {
    let mut folders = Vec::new();
    if folder.is_dir() {
        for name in std::fs::read_dir(folder)? {
            folders.extend(Some(name?.path()).filter(|path| path.is_dir()));
        }
    }
    folders.sort();
    let sets = folders.iter().map(|folder| DataSet::read(folder));
    let sets: Vec<DataSet> = sets.collect::<Result<_, _>>()?;
    Ok(sets.into_iter().filter(|set| !set.runs.is_empty()).collect())
}

/// The value after `name` in a text file of the kernel.
fn kernel_says(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The report of the machine itself, and the description of the caller.
fn machine(description: &str) -> String {
    let cpu = kernel_says("/proc/cpuinfo", "model name").unwrap_or("unknown processor".to_owned());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kibibytes = kernel_says("/proc/meminfo", "MemTotal")
        .and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
    let gibibytes = kibibytes.unwrap_or(0.0) / f64::from(1 << 20);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel = kernel.trim();
    let description =
        if description.is_empty() { String::new() } else { format!("{description}: ") };
    format!("{description}{cores} cores ({cpu}), {gibibytes:.1} GiB of memory, Linux {kernel}")
}

/// The engines that were measured, each with its version.
fn versions(sets: &[DataSet], commit: &str) -> Value {
    let mut versions = serde_json::Map::new();
    for name in engines::NAMES {
        let runs = sets.iter().flat_map(|set| &set.runs);
        let known = runs.filter(|run| run.engine == name).map(|run| run.version.clone()).next();
        if let Some(version) = known {
            let commit =
                if engines::is_ours(name) { format!(" ({commit})") } else { String::new() };
            versions.insert(name.to_owned(), json!(format!("{version}{commit}")));
        }
    }
    Value::Object(versions)
}

fn markdown(sets: &[DataSet], machine: &str, versions: &Value) -> Result<String, Fault> {
    let mut text = include_str!("method.md").trim_end().to_owned();
    text += "\n\n| every engine | |\n| --- | --- |\n";
    for (what, value) in Settings::new(0).rows() {
        writeln!(text, "| {what} | {value} |")?;
    }
    text += "\n## Results\n\n";
    if sets.is_empty() {
        text += "Not measured yet.\n";
        return Ok(text);
    }
    let versions = versions.as_object().into_iter().flatten();
    let versions: Vec<String> = versions
        .map(|(name, version)| format!("{name} {}", version.as_str().unwrap_or("?")))
        .collect();
    writeln!(text, "Machine: {machine}.\n\nVersions: {}.", versions.join(", "))?;
    for set in sets {
        set.check_same_work()?;
        tables::write(&mut text, set)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
