//! [`RunArgs`]: the arguments of every run, and the writing of its result; [`Begun`]: the cost of a
//! run from its begin to its end.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::bench::measure::{Memory, Usage, disk_bytes, process_dirtied_bytes};
use testkit::bench::run::per;

use crate::engines::{self, Fault, Peer, Task};
use crate::machine::Spent;

/// The arguments that every run has.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Name of the engine
    #[arg(long)]
    pub engine: String,
    /// Seed of every random choice
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Folder for the database; must be new or empty
    #[arg(long)]
    pub dir: PathBuf,
    /// Number of the round, for the report
    #[arg(long, default_value_t = 1)]
    pub round: u64,
    /// Mebibytes of memory that the caller allows this process, for the report
    #[arg(long)]
    pub memory_mib: Option<u64>,
    /// File for the result
    #[arg(long)]
    pub out: PathBuf,
}

impl RunArgs {
    /// Runs `task` on the engine in an empty folder, and writes its result under the name
    /// `sequence`, with the `config` of the run.
    pub fn run(
        &self,
        sequence: &str,
        config: Value,
        task: impl Task<Outcome = Result<Value, Fault>>,
    ) -> Result<(), Fault> {
        make_empty_folder(&self.dir)?;
        let measured = engines::with_engine(&self.engine, task);
        let mut result = measured.ok_or(format!("no engine {}; see `engines`", self.engine))??;
        result["engine"] = json!(self.engine);
        result["version"] = json!(engines::version(&self.engine));
        result["sequence"] = json!(sequence);
        result["round"] = json!(self.round);
        result["config"] = config;
        std::fs::write(&self.out, format!("{result:#}\n"))?;
        Ok(())
    }
}

/// Makes the folder unless it is there; fails if it is not empty.
fn make_empty_folder(folder: &Path) -> Result<(), Fault> {
    std::fs::create_dir_all(folder)?;
    if std::fs::read_dir(folder)?.next().is_some() {
        return Err(format!("{} is not empty", folder.display()).into());
    }
    Ok(())
}

/// The begin of a run.
pub struct Begun {
    machine: Option<Spent>,
    usage: Usage,
    dirtied_bytes: Option<u64>,
    start: Instant,
}

/// The cost of a run.
pub struct Cost {
    elapsed: Duration,
    usage: Usage,
    dirtied_bytes: Option<u64>,
    cores_of_others: Option<f64>,
    peak_memory_bytes: Option<u64>,
    disk_bytes: Option<u64>,
}

impl Begun {
    /// A run of `engine` begins.
    pub fn now(engine: &impl Peer) -> Begun {
        Begun {
            machine: Spent::now(),
            usage: Usage::now(engine.written_bytes()),
            dirtied_bytes: process_dirtied_bytes(),
            start: Instant::now(),
        }
    }

    /// The cost up to now; the database is in `folder`.
    pub fn cost(self, engine: &impl Peer, folder: &Path) -> Cost {
        let elapsed = self.start.elapsed();
        let usage = Usage::now(engine.written_bytes()).since(&self.usage);
        // Files from before the run that are removed count against the bytes written since.
        let dirtied_bytes = process_dirtied_bytes().zip(self.dirtied_bytes);
        Cost {
            elapsed,
            usage,
            dirtied_bytes: dirtied_bytes.map(|(now, then)| now.saturating_sub(then)),
            cores_of_others: self.machine.and_then(|machine| machine.cores_of_others()),
            peak_memory_bytes: Memory::now().peak_bytes,
            disk_bytes: disk_bytes(folder),
        }
    }
}

impl Cost {
    /// The totals of a run that put so many bytes, of which so many are live.
    pub fn json(&self, put_bytes: u64, live_bytes: u64) -> Value {
        let written_bytes = self.usage.written_bytes;
        json!({
            "seconds": self.elapsed.as_secs_f64(),
            "cpu_seconds": self.usage.cpu.as_secs_f64(),
            "cores_of_others": self.cores_of_others,
            "peak_memory_bytes": self.peak_memory_bytes,
            "user_bytes_written": put_bytes,
            "bytes_written": written_bytes,
            "write_amplification": per(written_bytes, put_bytes),
            "device_write_amplification": per(self.dirtied_bytes, put_bytes),
            "live_bytes": live_bytes,
            "disk_bytes": self.disk_bytes,
            "space_amplification": per(self.disk_bytes, live_bytes),
        })
    }
}
