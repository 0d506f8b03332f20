//! `simulate`: what a database of a size will cost, without its data.
//!
//! Each size is a simulation of its own: records are put for the first time, then overwritten. Nothing is opened or
//! written. The drawing is made in `simulate/plot.rs`.

mod plot;

use std::path::PathBuf;

use clap::ValueEnum;
use serde_json::{Value, json};
use siltstone::simulate::{FillOrder, Growth, OverwriteChoice, SimulatedLoad, Simulation};
use siltstone::{Options, PartitionOptions};

use crate::bench::folder::parse_bytes;
use crate::output::{Failure, Output, note};
use crate::stats::bytes;

/// The most bytes that are put, 2^60. Sums of costs are a few times as many, and have 64 bits.
const PUT_BYTES_MAX: f64 = (1_u64 << 60) as f64;

/// Arguments of `simulate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of records of the largest size
    #[arg(long, default_value_t = 1_000_000_000)]
    records: u64,
    /// Number of records of the smallest size [default: a thousandth of the largest]
    #[arg(long)]
    from: Option<u64>,
    /// Sizes in each factor of ten
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=10))]
    per_decade: u32,
    /// Length of each key in bytes
    #[arg(long, default_value_t = 16)]
    key_size: u64,
    /// Length of each value in bytes
    #[arg(long, default_value_t = 100)]
    value_size: u64,
    /// Order in which the records are put for the first time
    #[arg(long, value_enum, default_value_t = Order::Random)]
    order: Order,
    /// Overwrites after that, for each record; 0 for none. All puts together are at most 1 EiB
    #[arg(long, default_value_t = 1.0)]
    overwrites: f64,
    /// Records that are overwritten
    #[arg(long, value_enum, default_value_t = Choice::Uniform)]
    choice: Choice,
    /// Length of a compressed block in percent
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u8).range(1..=100))]
    compressed: u8,
    /// Bytes that compactions write while one byte is put, if writers outrun them [default: as many as are due]
    #[arg(long)]
    compaction_speed: Option<f64>,
    /// Write buffer, such as 64MiB [default: the engine's; so of the next ones]
    #[arg(long, value_parser = parse_bytes)]
    write_buffer: Option<u64>,
    /// Length of a table, such as 64MiB
    #[arg(long, value_parser = parse_bytes)]
    table_bytes: Option<u64>,
    /// Tables of level 0 that start a compaction
    #[arg(long)]
    level0_tables: Option<u32>,
    /// The most bytes of the first level that level 0 is compacted into, such as 256MiB
    #[arg(long, value_parser = parse_bytes)]
    level_base: Option<u64>,
    /// Size of a level over that of the one above
    #[arg(long)]
    level_multiplier: Option<u32>,
    /// Draw the costs over the number of records into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON, an object for each size
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Order {
    /// Random, each record once
    Random,
    /// The order of the keys
    Ascending,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Choice {
    /// Each as often as any other
    Uniform,
    /// A few far more often, as in YCSB
    Zipfian,
}

/// The costs of a size.
struct Row {
    filled: Growth,
    /// After the overwrites, if there are any.
    overwritten: Option<Growth>,
}

impl Row {
    fn last(&self) -> &Growth {
        self.overwritten.as_ref().unwrap_or(&self.filled)
    }

    fn write_amplification_of_overwrites(&self) -> Option<f64> {
        self.overwritten.as_ref().map(|growth| growth.write_amplification_since(&self.filled))
    }
}

impl Args {
    fn load(&self, records: u64) -> SimulatedLoad {
        let mut load = SimulatedLoad::default();
        load.records = records;
        load.key_bytes = self.key_size;
        load.value_bytes = self.value_size;
        load.order = match self.order {
            Order::Random => FillOrder::Random,
            Order::Ascending => FillOrder::Ascending,
        };
        load.choice = match self.choice {
            Choice::Uniform => OverwriteChoice::Uniform,
            Choice::Zipfian => OverwriteChoice::Zipfian,
        };
        load.compressed_share = f64::from(self.compressed) / 100.0;
        load.compaction_speed = self.compaction_speed;
        load
    }

    fn options(&self) -> (Options, PartitionOptions) {
        let mut options = Options::new();
        if let Some(bytes) = self.write_buffer {
            options = options.write_buffer_bytes(bytes);
        }
        let mut partition = PartitionOptions::new();
        if let Some(bytes) = self.table_bytes {
            partition = partition.table_bytes(bytes);
        }
        if let Some(tables) = self.level0_tables {
            partition = partition.level0_tables(tables);
        }
        if let Some(bytes) = self.level_base {
            partition = partition.level_base_bytes(bytes);
        }
        if let Some(times) = self.level_multiplier {
            partition = partition.level_multiplier(times);
        }
        (options, partition)
    }

    /// The sizes, the smallest first.
    fn sizes(&self) -> Result<Vec<u64>, Failure> {
        let from = self.from.unwrap_or(self.records / 1000).max(1);
        if from > self.records {
            let wrong = "--from is more than --records";
            return Err(Failure::Usage(wrong.to_owned()));
        }
        let mut sizes = Vec::new();
        for step in 0.. {
            let size =
                self.records as f64 / 10_f64.powf(f64::from(step) / f64::from(self.per_decade));
            // A size a little below the smallest is that one, rounded.
            if (size * 1.001) < from as f64 {
                break;
            }
            sizes.push(size.round() as u64);
        }
        sizes.reverse();
        Ok(sizes)
    }

    fn simulate(&self, records: u64) -> Result<Row, Failure> {
        let (options, partition) = self.options();
        let mut simulation = Simulation::new(self.load(records), &options, &partition)?;
        simulation.fill(records);
        simulation.flush();
        let filled = simulation.growth();
        simulation.restart_averages();
        let overwrites = (self.overwrites * records as f64) as u64;
        simulation.overwrite(overwrites);
        simulation.flush();
        let overwritten = (overwrites > 0).then(|| simulation.growth());
        Ok(Row { filled, overwritten })
    }
}

/// Simulates each size and prints it.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if !args.overwrites.is_finite() || args.overwrites < 0.0 {
        return Err(Failure::Usage("--overwrites is 0 or more".to_owned()));
    }
    let puts = (1.0 + args.overwrites) * args.records as f64;
    let record_bytes = args.key_size.saturating_add(args.value_size);
    if puts * record_bytes as f64 > PUT_BYTES_MAX {
        let wrong = format!(
            "{} records and {} overwrites of each put {:.1e} bytes; at most 1 EiB, {PUT_BYTES_MAX:.1e} bytes, is simulated",
            args.records,
            args.overwrites,
            puts * record_bytes as f64
        );
        return Err(Failure::Usage(wrong));
    }
    let sizes = args.sizes()?;
    let mut out = Output::new(args.json);
    if !args.json {
        let head = format!(
            "{:>14} {:>10} {:>10} {:>10} {:>7} {:>10} {:>8}  levels",
            "records", "data", "write amp", "overwrites", "space", "per get", "tables"
        );
        out.line(head, &Value::Null)?;
    }
    let mut rows = Vec::new();
    for records in sizes {
        let row = args.simulate(records)?;
        out.line(text(&row), &json(&row))?;
        out.flush()?;
        rows.push(row);
    }
    out.finish()?;
    if let Some(path) = &args.svg {
        crate::svg::save(path, &plot::draw(&rows))?;
        if !args.json {
            note(format_args!("drawn into {}", path.display()));
        }
    }
    Ok(())
}

fn text(row: &Row) -> String {
    let last = row.last();
    let overwrites = row.write_amplification_of_overwrites();
    let levels = last.level_bytes.iter().enumerate().filter(|(_, bytes)| **bytes > 0);
    let levels = levels.map(|(level, of_level)| format!("{level}: {}", bytes(*of_level)));
    format!(
        "{:>14} {:>10} {:>10.2} {:>10} {:>7.2} {:>10.1} {:>8}  {}",
        last.records,
        bytes(last.live_bytes),
        row.filled.write_amplification(),
        overwrites.map_or_else(|| "-".to_owned(), |it| format!("{it:.2}")),
        last.space_amplification(),
        last.tables_per_get_average,
        last.table_count(),
        levels.collect::<Vec<_>>().join(", ")
    )
}

fn json(row: &Row) -> Value {
    let last = row.last();
    json!({
        "records": last.records,
        "live_bytes": last.live_bytes,
        "table_bytes": last.table_bytes(),
        "fill_write_amplification": row.filled.write_amplification(),
        "overwrite_write_amplification": row.write_amplification_of_overwrites(),
        "space_amplification": last.space_amplification(),
        "tables_per_get": last.tables_per_get_average,
        "tables": last.table_count(),
        "level_bytes": last.level_bytes,
        "level_tables": last.level_tables,
        "writes": last.writes,
        "put_bytes": last.put_bytes,
        "log_bytes": last.log_bytes,
        "flush_bytes": last.flush_bytes,
        "compaction_bytes": last.compaction_bytes,
        "flushes": last.flush_count,
        "compactions": last.compaction_count,
        "moves": last.move_count,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The arguments of a command line.
    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        <Line as clap::Parser>::parse_from(line.split(' ')).args
    }

    fn sizes(line: &str) -> Option<Vec<u64>> {
        args(line).sizes().ok()
    }

    #[test]
    fn sizes_ascend_to_the_largest_by_equal_factors() {
        assert_eq!(
            sizes("simulate --records 1000000 --from 10000 --per-decade 1"),
            Some(vec![10_000, 100_000, 1_000_000])
        );
        assert_eq!(
            sizes("simulate --records 100000 --from 10000"),
            Some(vec![10_000, 31_623, 100_000])
        );
        assert_eq!(sizes("simulate --records 10 --from 10"), Some(vec![10]));
        assert_eq!(sizes("simulate --records 10 --from 11"), None);
    }

    #[test]
    fn a_row_has_the_costs_and_a_drawing_has_a_line_for_each() {
        let args =
            args("simulate --records 10000000 --from 1000000 --level-multiplier 4 --compressed 50");
        let rows: Vec<_> =
            [1_000_000, 10_000_000].iter().filter_map(|size| args.simulate(*size).ok()).collect();
        let last = json(&rows[1]);
        assert_eq!(last["records"], 10_000_000);
        let overwritten = last["overwrite_write_amplification"].as_f64();
        assert!(overwritten > last["fill_write_amplification"].as_f64(), "{last}");
        // Half of what was put, and the first levels as they are.
        let space = last["space_amplification"].as_f64();
        assert!(space.is_some_and(|it| (0.5..0.9).contains(&it)), "{last}");
        assert!(text(&rows[1]).contains("10000000"));
        let drawing = plot::draw(&rows);
        assert!(drawing.contains("10 million"));
        for class in 0..4 {
            assert_eq!(drawing.matches(&format!("polyline class=\"l{class}\"")).count(), 2);
        }
    }

    #[test]
    fn what_cannot_be_simulated_is_wrong_usage() {
        for line in [
            "simulate --records 0",
            "simulate --overwrites -1",
            "simulate --overwrites NaN",
            "simulate --overwrites 1e18",
            "simulate --records 1000000000000000 --value-size 10000",
            "simulate --write-buffer 1",
        ] {
            let Ok(parsed) = <Line as clap::Parser>::try_parse_from(line.split(' ')) else {
                continue;
            };
            let failure =
                run(&parsed.args).err().map(|failure| format!("{:?}", failure.exit_code()));
            assert_eq!(failure, Some(format!("{:?}", std::process::ExitCode::from(2))), "{line}");
        }
    }
}
