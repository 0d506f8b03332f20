//! One run of large values: one engine, a new database, `testkit::bench::large` over a plan.
//!
//! The result has the same form as that of `run`: a row for each operation on each size and for each
//! mix, and totals. When everything is deleted and given back, values of all sizes are put once more,
//! for the space that they take.

use std::cell::Cell;
use std::path::PathBuf;

use serde_json::{Value, json};
use testkit::bench::Ack;
use testkit::bench::large::{
    LargeBench, LargeEngine, LargeFailure, LargeOutcome, LargePlan, SizeRates,
};
use testkit::bench::measure::disk_bytes;

use crate::cost::{Begun, RunArgs};
use crate::engines::{Fault, Peer, Task};
use crate::settings::Settings;

/// The workload that runs if no other is named.
const DEFAULT_PLAN: &str = include_str!("../large.json");
/// The values of the last part are so many times fewer than those that are measured.
const SPACE_SHARE: u64 = 4;

/// Arguments of `large`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: RunArgs,
    /// Sizes, repetitions and mixes [default: large.json of this crate]
    #[arg(long)]
    plan: Option<PathBuf>,
    /// Mebibytes of values of each size, but three values at least [default: the plan's]
    #[arg(long)]
    mib_per_size: Option<u64>,
}

/// An engine for the workload, which counts the puts.
struct Counted<P> {
    engine: P,
    put_bytes: Cell<u64>,
}

impl<P: Peer> LargeEngine for Counted<P> {
    type Error = Fault;

    fn put(&self, key: &[u8], value: &[u8], when: Ack) -> Result<(), Fault> {
        self.put_bytes.set(self.put_bytes.get() + (key.len() + value.len()) as u64);
        self.engine.put(key, value, when)
    }

    fn get(&self, key: &[u8], buf: &mut [u8]) -> Result<Option<usize>, Fault> {
        self.engine.read_into(key, buf)
    }

    fn lend(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<Option<bool>, Fault> {
        self.engine.lend(key, visit)
    }

    fn delete(&self, key: &[u8]) -> Result<(), Fault> {
        self.engine.delete(key, Ack::Os)
    }

    fn reclaim(&self) -> Result<(), Fault> {
        self.engine.reclaim()
    }
}

/// Runs what the arguments say and writes the result.
pub fn run(args: &Args) -> Result<(), Fault> {
    let plan = plan(args)?;
    let config = json!({
        "suite": "large",
        "sizes": plan.sizes,
        "repetitions": plan.repetitions,
        "bytes_per_size": plan.bytes_per_size,
        "trim_percent": plan.trim_percent,
        "mix_operations": plan.mix_operations,
        "seed": args.common.seed,
        "memory_mib": args.common.memory_mib,
    });
    args.common.run("large", config, Measure { args: &args.common, plan: &plan })
}

fn plan(args: &Args) -> Result<LargePlan, Fault> {
    let mut plan = match &args.plan {
        None => LargePlan::parse(DEFAULT_PLAN)?,
        Some(path) => LargePlan::parse(&std::fs::read_to_string(path)?)
            .map_err(|what| format!("{}: {what}", path.display()))?,
    };
    plan.bytes_per_size = args.mib_per_size.map_or(plan.bytes_per_size, |mib| mib << 20);
    Ok(plan)
}

/// One run of the engine that the arguments name.
struct Measure<'a> {
    args: &'a RunArgs,
    plan: &'a LargePlan,
}

impl Task for Measure<'_> {
    type Outcome = Result<Value, Fault>;

    fn with<P: Peer>(self) -> Result<Value, Fault> {
        let settings = Settings { large_values: true, ..Settings::new(0) };
        let engine = P::open(&self.args.dir, &settings)?;
        let counted = Counted { engine, put_bytes: Cell::new(0) };
        let begun = Begun::now(&counted.engine);

        let mut bench = LargeBench::new(&counted, self.plan, self.args.seed);
        let outcome = bench.run(&mut |_| ()).map_err(|failure| match failure {
            LargeFailure::Engine(fault) => fault,
            LargeFailure::Wrong(key) => format!("{key} reads back wrong").into(),
        })?;
        drop(bench);
        let empty_bytes = disk_bytes(&self.args.dir);
        let live_bytes = self.fill(&counted)?;
        counted.engine.settle()?;

        let cost = begun.cost(&counted.engine, &self.args.dir);
        let mut total = cost.json(counted.put_bytes.get(), live_bytes);
        total["empty_bytes"] = json!(empty_bytes);
        counted.engine.close()?;
        Ok(json!({ "workloads": rows(&outcome), "total": total }))
    }
}

impl Measure<'_> {
    /// Puts values of every size and keeps them. Returns their bytes, keys included.
    fn fill<P: Peer>(&self, engine: &Counted<P>) -> Result<u64, Fault> {
        let before = engine.put_bytes.get();
        let longest = self.plan.sizes.iter().copied().max().unwrap_or(0);
        let mut value = vec![0; usize::try_from(longest)?];
        testkit::Rng::new(self.args.seed ^ longest).fill(&mut value);
        for &size in &self.plan.sizes {
            let values = self.plan.bytes_per_size / SPACE_SHARE / size;
            for n in 0..values.clamp(1, self.plan.repetitions) {
                let key = format!("stays-{size}-{n:06}");
                engine.put(key.as_bytes(), &value[..usize::try_from(size)?], Ack::Os)?;
            }
        }
        Ok(engine.put_bytes.get() - before)
    }
}

/// A size as a person writes it: in KiB if it is whole ones, else in MB or bytes.
fn size_name(size: u64) -> String {
    match size {
        _ if size.is_multiple_of(1 << 10) && size < 1 << 20 => format!("{} KiB", size >> 10),
        _ if size.is_multiple_of(1_000_000) => format!("{} MB", size / 1_000_000),
        _ => format!("{size} bytes"),
    }
}

/// A row of the report; bytes per millisecond are thousands of bytes per second.
fn row(operation: &str, rates: &SizeRates, bytes_per_ms: Option<f64>) -> Value {
    json!({
        "workload": format!("{operation}, {}", size_name(rates.size)),
        "ops": rates.repetitions,
        "mb_per_second": bytes_per_ms.map(|bytes| bytes / 1000.0),
    })
}

/// Reads the rate of one operation, if the engine has it.
type RateOf = fn(&SizeRates) -> Option<f64>;

/// Operation by operation, size by size, then the mixes.
fn rows(outcome: &LargeOutcome) -> Vec<Value> {
    let operations: [(&str, RateOf); 7] = [
        ("put", |rates| Some(rates.put)),
        ("put synced", |rates| Some(rates.put_synced)),
        ("get", |rates| Some(rates.get)),
        ("memcpy", |rates| Some(rates.memcpy)),
        ("lent first", |rates| rates.lent_first),
        ("lent", |rates| rates.lent),
        ("delete", |rates| Some(rates.delete)),
    ];
    let mut rows = Vec::new();
    for (name, rate_of) in operations {
        rows.extend(outcome.sizes.iter().map(|rates| row(name, rates, rate_of(rates))));
    }
    for mix in &outcome.mixes {
        let seconds = mix.took.as_secs_f64().max(1e-9);
        rows.push(json!({
            "workload": format!("mix, {}", mix.name),
            "ops": mix.operations,
            "mb_per_second": mix.bytes as f64 / 1e6 / seconds,
        }));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_names_that_people_give_them() {
        let names = [1024, 65_536, 1_000_000, 64_000_000, 1234].map(size_name);
        assert_eq!(names, ["1 KiB", "64 KiB", "1 MB", "64 MB", "1234 bytes"]);
    }

    #[test]
    fn the_default_plan_has_the_sizes_of_the_suite() {
        let plan = LargePlan::parse(DEFAULT_PLAN).unwrap();
        assert_eq!(plan.sizes, [1024, 4096, 65_536, 1_000_000, 8_000_000, 64_000_000]);
        assert_eq!(plan.mixes.len(), 3);
        assert_eq!(plan.mix_operations, 100);
    }

    #[test]
    fn a_run_puts_everything_and_reports_space_and_written_bytes() {
        let dir =
            std::env::temp_dir().join(format!("siltstone-peers-large-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let out = dir.with_extension("json");
        let plan_file = dir.with_extension("plan");
        let mut plan: Value = serde_json::from_str(DEFAULT_PLAN).unwrap();
        plan["sizes"] = json!([1024, 100_000]);
        plan["mix_weights"] = json!([1, 1]);
        plan["bytes_per_size"] = json!(1_000_000);
        std::fs::write(&plan_file, plan.to_string()).unwrap();
        let args = Args {
            common: RunArgs {
                engine: "siltstone".to_owned(),
                seed: 1,
                dir: dir.clone(),
                round: 1,
                memory_mib: None,
                out: out.clone(),
            },
            plan: Some(plan_file.clone()),
            mib_per_size: None,
        };
        run(&args).unwrap();
        let result: Value = serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
        assert_eq!(result["workloads"].as_array().unwrap().len(), 7 * 2 + 3);
        assert_eq!(result["workloads"][1]["workload"], "put, 100000 bytes");
        let total = &result["total"];
        assert_eq!(total["live_bytes"], (1024 + 17) * 244 + (100_000 + 19) * 2);
        assert!(total["write_amplification"].as_f64().unwrap() >= 1.0);
        assert!(total["space_amplification"].as_f64().unwrap() >= 1.0);
        std::fs::remove_dir_all(&dir).unwrap();
        std::fs::remove_file(&out).unwrap();
        std::fs::remove_file(&plan_file).unwrap();
    }
}
