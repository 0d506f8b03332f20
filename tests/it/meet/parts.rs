//! The partitions of a run, their options, and the entries that go by themselves: expired ones, and the oldest of a
//! FIFO.

use std::sync::Arc;
use std::time::Duration;

use lsm_core::hooks::{CompactionFilter, CompactionFilterFactory, Job};
use siltstone::operators::AppendOperator;
use siltstone::{
    CompactionStyle, Compression, Hooks, LargeValueOptions, MetaHiveOptions, PartitionOptions,
    PrefixExtractor, Result, TimeWidth, TtlFilter, TtlRule,
};
use testkit::model::{Contents, Model, Op, State, Step};

/// The partition whose entries expire, and the one that is a FIFO. Each key of the latter is put once, in order.
pub const EXPIRING: &str = "t";
pub const FIFO: &str = "f";
/// Partitions with operands and large values. The first one is always there.
pub const ORDINARY: [&str; 3] = ["default", "p", "q"];

/// A value of the expiring partition lives so many seconds.
const LIVES_FOR: u64 = 30;
/// The bytes of the tables of the FIFO.
const FIFO_BYTES: u64 = 4 << 10;

/// The options of a partition that steps change.
#[derive(Clone, Copy, Debug, Default)]
pub struct PartSettings {
    /// Large values on or off; `None` leaves them.
    pub large: Option<bool>,
    pub metahive: bool,
    /// It was made with MetaHive, and stores some keys in another form for ever.
    pub escapes_keys: bool,
    pub watched: bool,
    pub prefix: Option<u16>,
}

/// A filter of the application that keeps everything.
struct Watcher;

impl CompactionFilter for Watcher {}

impl CompactionFilterFactory for Watcher {
    fn name(&self) -> &'static str {
        "watcher"
    }

    fn start(&self, _: &Job<'_>) -> Result<Box<dyn CompactionFilter>> {
        Ok(Box::new(Watcher))
    }
}

/// The options of a partition.
pub fn options(name: &str, settings: PartSettings, compression: Compression) -> PartitionOptions {
    let mut options = PartitionOptions::new()
        .compression(compression)
        .block_bytes(256)
        .table_bytes(1 << 10)
        .level0_tables(2)
        .level_base_bytes(2 << 10)
        .level_multiplier(2)
        .prefix_extractor(settings.prefix.map(PrefixExtractor::Fixed))
        .hooks(Hooks::new());
    if name == EXPIRING {
        let rule = TtlRule::in_value(0).width(TimeWidth::U32);
        let rule = rule.time_to_live(Duration::from_secs(LIVES_FOR));
        let rule = rule.stays_at_most(Duration::from_secs(40));
        options = options.filter(Arc::new(TtlFilter::stored(&rule)));
    } else if name == FIFO {
        let style = CompactionStyle::Fifo { bytes_max: FIFO_BYTES, seconds_max: u64::MAX };
        options = options.compaction_style(style);
    } else {
        options = options.merge_operator(Arc::new(AppendOperator::default()));
    }
    if let Some(is_on) = settings.large {
        let large = LargeValueOptions::new().threshold_bytes(256).sub_block_bytes(256);
        let mut large = large.chunk_bytes(4 << 10).garbage_permille(100);
        if compression == Compression::Zstd {
            large = large.compression(compression);
        }
        options = options.large_values(if is_on { large } else { LargeValueOptions::off() });
    }
    if settings.metahive {
        options = options.metahive(MetaHiveOptions::new());
    }
    if settings.watched { options.filter(Arc::new(Watcher)) } else { options }
}

fn is_alive(value: &[u8], now: u64) -> bool {
    value.first_chunk().is_none_or(|at| u64::from(u32::from_be_bytes(*at)) + LIVES_FOR > now)
}

/// A value of the expiring partition.
pub fn expiring_value(now: u64, rest: &[u8]) -> Vec<u8> {
    [&(now as u32).to_be_bytes()[..], rest].concat()
}

/// The state without what has expired.
pub fn alive(written: &State, now: u64) -> State {
    let mut alive = written.clone();
    if let Some(contents) = alive.get_mut(EXPIRING) {
        contents.retain(|_, value| is_alive(value, now));
    }
    alive
}

/// The model as readers see it at a time: what has expired is as deleted.
pub fn alive_model(model: &Model, now: u64) -> Model {
    let mut seen = Model::new();
    for step in model.log() {
        let mut step = step.clone();
        if let Step::Commit(ops) = &mut step {
            for Op { value, .. } in ops.iter_mut().filter(|op| op.partition == EXPIRING) {
                value.take_if(|value| !is_alive(value, now));
            }
        }
        seen.step(step);
    }
    seen
}

/// All that was ever put into the FIFO.
pub fn put_into_fifo(model: &Model) -> Contents {
    let mut all = Contents::new();
    for step in model.log() {
        match step {
            Step::Commit(ops) => {
                let puts = ops.iter().filter(|op| op.partition == FIFO);
                all.extend(puts.filter_map(|op| Some((op.key.clone(), op.value.clone()?))));
            }
            Step::Create(_) | Step::Drop(_) => {}
        }
    }
    all
}

/// The observed state with the entries of the FIFO that went because they are the oldest ones.
pub fn with_removed(observed: &State, expected: &State) -> State {
    let mut observed = observed.clone();
    if let (Some(seen), Some(all)) = (observed.get_mut(FIFO), expected.get(FIFO)) {
        let first = seen.keys().next().cloned();
        let removed = all.iter().filter(|(key, _)| first.as_ref().is_none_or(|it| *key < it));
        let removed: Contents = removed.map(|(key, value)| (key.clone(), value.clone())).collect();
        let bytes: usize = all.values().map(|value| value.len()).sum();
        if bytes as u64 > FIFO_BYTES / 2 {
            seen.extend(removed);
        }
    }
    observed
}
