//! Loads whose costs are known. `tests/simulate.rs` compares others with a real database.

use super::*;

fn simulated(load: SimulatedLoad) -> SimulatedPartition {
    SimulatedPartition::new(load, &Options::default(), &PartitionOptions::default()).unwrap()
}

#[test]
fn a_fill_in_key_order_writes_each_byte_to_log_and_level_0_alone() {
    let load = SimulatedLoad {
        records: 20_000_000,
        order: FillOrder::Ascending,
        ..SimulatedLoad::default()
    };
    // No table is moved under another compression.
    let plain = PartitionOptions { compression: Compression::None, ..PartitionOptions::default() };
    let mut simulation = SimulatedPartition::new(load, &Options::default(), &plain).unwrap();
    simulation.fill(load.records);
    simulation.flush();
    let growth = simulation.growth();
    assert_eq!((growth.compaction_bytes, growth.records), (0, load.records));
    assert!(growth.move_count > 30, "{growth:?}");
    assert!(growth.tables_per_get <= 1.0 + 1e-9, "{growth:?}");
    // The last record has a table, and no record has two.
    let entries: u64 = simulation.version.tables().map(|(_, table)| table.meta.entries).sum();
    assert!(load.records - entries < growth.table_count(), "{entries} of {}", load.records);
}

#[test]
fn merges_keep_every_record_and_every_overwrite() {
    for choice in [OverwriteChoice::Uniform, OverwriteChoice::Zipfian] {
        let load = SimulatedLoad { records: 30_000_000, choice, ..SimulatedLoad::default() };
        let mut simulation = simulated(load);
        simulation.fill(load.records);
        simulation.overwrite(load.records);
        simulation.flush();
        let mut filled = 0.0;
        let mut draws = 0.0;
        for contents in simulation.contents.values() {
            filled += contents.filled * contents.width();
            draws += contents.draws * contents.width();
        }
        assert!((filled - 1.0).abs() < 1e-6 && (draws - 1.0).abs() < 1e-6, "{filled} {draws}");
        assert_eq!(simulation.contents.len() as u64, simulation.growth().table_count());
        let coverage: f64 = simulation.contents.values().map(TableContents::width).sum();
        assert!((coverage - simulation.tables_per_get()).abs() < 1e-6, "{coverage}");
    }
}

#[test]
fn a_fill_in_key_order_after_overwrites_keeps_them() {
    let order = FillOrder::Ascending;
    let load = SimulatedLoad { records: 20_000, order, ..SimulatedLoad::default() };
    let mut simulation = simulated(load);
    simulation.fill(10_000);
    simulation.overwrite(10_000);
    simulation.fill(10_000);
    simulation.flush();
    let contents = simulation.contents.values();
    let draws: f64 = contents.map(|contents| contents.draws * contents.width()).sum();
    assert!(draws > 0.0, "the overwrites are in a table");
}

#[test]
fn popular_records_are_merged_early_and_cost_less() {
    let mut costs = Vec::new();
    for choice in [OverwriteChoice::Uniform, OverwriteChoice::Zipfian] {
        let load = SimulatedLoad { records: 50_000_000, choice, ..SimulatedLoad::default() };
        let mut simulation = simulated(load);
        simulation.fill(load.records);
        let filled = simulation.growth();
        simulation.overwrite(load.records);
        costs.push(simulation.growth().write_amplification_since(&filled));
    }
    assert!(costs[1] < 0.9 * costs[0], "{costs:?}");
}

#[test]
fn compactions_that_are_slow_are_deferred_and_write_less() {
    let load = SimulatedLoad { records: 50_000_000, ..SimulatedLoad::default() };
    let mut keeps_up = simulated(load);
    let mut lags = simulated(SimulatedLoad { compaction_speed: Some(1.0), ..load });
    keeps_up.fill(load.records);
    lags.fill(load.records);
    assert!(lags.growth().compaction_bytes < keeps_up.growth().compaction_bytes);
    assert!(lags.growth().tables_per_get_average > keeps_up.growth().tables_per_get_average);
}

#[test]
fn a_load_that_makes_no_sense_is_refused() {
    let fifo = PartitionOptions {
        compaction_style: CompactionStyle::Fifo { bytes_max: 1 << 30, seconds_max: 60 },
        ..PartitionOptions::default()
    };
    let leveled = PartitionOptions::default();
    let good = SimulatedLoad::default();
    for (load, partition) in [
        (SimulatedLoad { records: 0, ..good }, &leveled),
        (SimulatedLoad { key_bytes: 0, ..good }, &leveled),
        (SimulatedLoad { value_bytes: u64::MAX, ..good }, &leveled),
        (SimulatedLoad { compressed_share: 0.0, ..good }, &leveled),
        (SimulatedLoad { compressed_share: f64::NAN, ..good }, &leveled),
        (SimulatedLoad { compaction_speed: Some(-1.0), ..good }, &leveled),
        (good, &fifo),
    ] {
        let refused = SimulatedPartition::new(load, &Options::default(), partition).err();
        let refused = refused.map(|error| error.kind());
        assert_eq!(refused, Some(ErrorKind::InvalidArgument), "{load:?}");
    }
}
