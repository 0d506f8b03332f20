//! `partition`: creates, drops and clears a partition, and shows and changes its options.
//!
//! Invariant: an option that is not named keeps its value.

use std::path::PathBuf;

use serde_json::{Value, json};
use siltstone::metahive::MetaHive;
use siltstone::{
    CompactionStyle, Compression, Durability, LargeValueOptions, MetaHiveOptions, Partition,
    PartitionOptions, PrefixExtractor, TtlFilter, TtlRule,
};

use crate::bench::folder::parse_bytes;
use crate::bucket::ReadLength;
use crate::engine::{Existing, Making, Writing};
use crate::merge::OperatorArgs;
use crate::output::{Failure, Output};

/// The subcommands of `partition`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum PartitionCommand {
    /// Creates a partition, which must not exist, and the database if necessary
    Create(CreateArgs),
    /// Prints the options of a partition
    Show(NameArgs),
    /// Changes options of a partition; those that are not named keep their values
    ///
    /// Tables get the new options when compactions write them again (`siltstone compact`).
    Set(SetArgs),
    /// Deletes all entries of a partition, in one operation
    Clear(ChangeArgs),
    /// Drops a partition with its entries and its options
    Drop(ChangeArgs),
}

/// A partition of a database.
#[derive(Debug, clap::Args)]
pub(crate) struct NameArgs {
    /// Folder of the database
    database: PathBuf,
    /// Name of the partition
    name: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `partition create`.
#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    named: NameArgs,
    #[command(flatten)]
    options: OptionArgs,
    /// Keep no log: entries are durable after a flush only
    #[arg(long)]
    unlogged: bool,
    #[command(flatten)]
    making: Making,
}

/// Arguments of `partition set`.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command")]
#[derive(Debug, clap::Args)]
pub(crate) struct SetArgs {
    #[command(flatten)]
    named: NameArgs,
    #[command(flatten)]
    options: OptionArgs,
    /// The stored entries have the times of --expire; without this a partition with entries gets no rule
    #[arg(long, requires = "expire")]
    expire_stored: bool,
    /// Remove the checksums of entries (MetaHive)
    #[arg(long, conflicts_with = "metahive")]
    no_metahive: bool,
    /// Move large values back into tables
    #[arg(long, conflicts_with = "large_values")]
    no_large_values: bool,
    /// End the rule of expiry: expired entries that no compaction has removed are read again
    #[arg(long, conflicts_with = "expire")]
    no_expire: bool,
    #[command(flatten)]
    writing: Writing,
}

/// Arguments of `partition clear` and `partition drop`.
#[derive(Debug, clap::Args)]
pub(crate) struct ChangeArgs {
    #[command(flatten)]
    named: NameArgs,
    #[command(flatten)]
    writing: Writing,
}

/// The options of a partition that can be changed.
#[derive(Debug, clap::Args)]
pub(crate) struct OptionArgs {
    /// Compression of tables
    #[arg(long, value_enum)]
    compression: Option<Codec>,
    /// Size of a block of a table
    #[arg(long, value_name = "BYTES", value_parser = parse_u32_bytes)]
    block_bytes: Option<u32>,
    /// Bits of a Bloom filter for each key; 0 for none
    #[arg(long, value_name = "BITS")]
    bloom_bits: Option<u32>,
    /// Size at which a table ends
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    table_bytes: Option<u64>,
    /// Tables of level 0 that begin a compaction
    #[arg(long, value_name = "TABLES")]
    level0_tables: Option<u32>,
    /// Target of the first level below level 0
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    level_base_bytes: Option<u64>,
    /// Ratio of the targets of neighbouring levels
    #[arg(long, value_name = "RATIO")]
    level_multiplier: Option<u32>,
    /// Prefix of keys by which scans pass over tables: fixed:LENGTH, through:CHARACTER, through:0xHH or none
    #[arg(long, value_name = "PREFIX", value_parser = parse_prefix)]
    prefix_extractor: Option<Prefix>,
    /// Bytes beyond which the oldest tables are removed with all their entries (FIFO); 0 for levels
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    fifo_bytes: Option<u64>,
    /// Age in seconds beyond which tables of a FIFO are removed; 0 for no limit
    #[arg(long, value_name = "SECONDS")]
    fifo_seconds: Option<u64>,
    /// Store a checksum with every entry (MetaHive); other hooks stay
    #[arg(long)]
    metahive: bool,
    /// Keep large values in chunk files; other hooks stay
    #[arg(long)]
    large_values: bool,
    /// Rule of expiry: the place of a time in each value or key, such as value:0,ms for the millisecond of the
    /// expiry in the first 8 bytes of the value
    ///
    /// value, value-end, key or key-end with :OFFSET in bytes, and after commas: u32 (4 bytes and not 8), le
    /// (little-endian), ms, us or ns (not seconds), after:N (the time is that of the creation, and entries expire N
    /// units later), stays:N (the most that an expired entry stays in a table), seen (reads see expired entries).
    /// The rule of `siltstone serve --expire` is value:0,ms
    #[arg(long, value_name = "RULE")]
    expire: Option<TtlRule>,
    #[command(flatten)]
    operator: OperatorArgs,
}

/// A compression of tables.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Codec {
    None,
    Lz4,
    /// Zstandard, in a build with the feature `zstd`
    Zstd,
}

fn parse_u32_bytes(text: &str) -> Result<u32, String> {
    u32::try_from(parse_bytes(text)?).map_err(|_| format!("{text} is too large"))
}

/// A prefix extractor, or none. A type, because the argument parser takes an `Option` for an absent argument.
#[derive(Clone, Copy, Debug)]
struct Prefix(Option<PrefixExtractor>);

fn parse_prefix(text: &str) -> Result<Prefix, String> {
    let known = match text.split_once(':') {
        None => (text == "none").then_some(None),
        Some(("fixed", len)) => len.parse().ok().map(|len| Some(PrefixExtractor::Fixed(len))),
        Some(("through", byte)) => {
            let one = <[u8; 1]>::try_from(byte.as_bytes()).ok().map(|[byte]| byte);
            let hex = byte.strip_prefix("0x").filter(|hex| hex.len() == 2 && !hex.starts_with('+'));
            let byte = one.or_else(|| u8::from_str_radix(hex?, 16).ok());
            byte.map(|byte| Some(PrefixExtractor::Through(byte)))
        }
        Some(_) => None,
    };
    let expected = "is not fixed:LENGTH (up to 65535), through:CHARACTER, through:0xHH or none";
    known.map(Prefix).ok_or_else(|| format!("{text:?} {expected}"))
}

impl SetArgs {
    fn turn_off(&self, mut options: PartitionOptions) -> PartitionOptions {
        if self.no_metahive {
            options = options.without_metahive();
        }
        if self.no_large_values {
            options = options.large_values(LargeValueOptions::off());
        }
        if self.no_expire {
            options = options.without_filter(TtlFilter::NAME);
        }
        options
    }
}

impl OptionArgs {
    fn apply(&self, mut options: PartitionOptions) -> Result<PartitionOptions, Failure> {
        if let Some(codec) = self.compression {
            options = options.compression(match codec {
                Codec::None => Compression::None,
                Codec::Lz4 => Compression::Lz4,
                Codec::Zstd => Compression::Zstd,
            });
        }
        if let Some(bytes) = self.block_bytes {
            options = options.block_bytes(bytes);
        }
        if let Some(bits) = self.bloom_bits {
            options = options.bloom_bits_per_key(bits);
        }
        if let Some(bytes) = self.table_bytes {
            options = options.table_bytes(bytes);
        }
        if let Some(tables) = self.level0_tables {
            options = options.level0_tables(tables);
        }
        if let Some(bytes) = self.level_base_bytes {
            options = options.level_base_bytes(bytes);
        }
        if let Some(ratio) = self.level_multiplier {
            options = options.level_multiplier(ratio);
        }
        if let Some(Prefix(extractor)) = self.prefix_extractor {
            options = options.prefix_extractor(extractor);
        }
        let style = self.style(options.get_compaction_style());
        options = options.compaction_style(style);
        if let Some(rule) = &self.expire {
            options = options.ttl(rule);
        }
        if let Some(operator) = self.operator.find()? {
            options = options.merge_operator(operator);
        }
        if self.metahive {
            options = options.metahive(MetaHiveOptions::default());
        }
        if self.large_values {
            options = options.large_values(LargeValueOptions::default());
        }
        Ok(options)
    }

    /// Refuses a new rule of expiry for entries that may have no times: their bytes would be taken for times, and
    /// compactions would remove them.
    fn check_times(&self, partition: &Partition) -> Result<(), Failure> {
        let Some(rule) = &self.expire else { return Ok(()) };
        if partition.ttl().as_ref() == Some(rule) {
            return Ok(());
        }
        let Some(first) = partition.with_expired().keys().next() else { return Ok(()) };
        let what = format!(
            "partition {:?} has entries, such as the key \"{}\", whose bytes at {rule} would be taken for times\n  \
             --expire-stored says that they are these times",
            partition.name(),
            first?.escape_ascii()
        );
        Err(Failure::Usage(what))
    }
}

impl OptionArgs {
    /// The rule of compactions that the arguments make of `stored`.
    fn style(&self, stored: CompactionStyle) -> CompactionStyle {
        if self.fifo_bytes == Some(0) {
            return CompactionStyle::Leveled;
        }
        let mut bytes_max = u64::MAX;
        let mut seconds_max = u64::MAX;
        if let CompactionStyle::Fifo { bytes_max: bytes, seconds_max: seconds } = stored {
            bytes_max = bytes;
            seconds_max = seconds;
        }
        bytes_max = self.fifo_bytes.unwrap_or(bytes_max);
        seconds_max = match self.fifo_seconds {
            None => seconds_max,
            Some(0) => u64::MAX,
            Some(limit) => limit,
        };
        match (stored, bytes_max, seconds_max) {
            (CompactionStyle::Leveled, u64::MAX, u64::MAX) => stored,
            _ => CompactionStyle::Fifo { bytes_max, seconds_max },
        }
    }
}

/// Runs a subcommand of `partition`.
pub(crate) fn run(command: &PartitionCommand) -> Result<(), Failure> {
    match command {
        PartitionCommand::Create(args) => create(args),
        PartitionCommand::Show(NameArgs { database, name, json }) => {
            let existing = Existing::open_to_read(database, ReadLength::Short)?;
            print(&existing.partition(name)?, *json)?;
            Ok(existing.close()?)
        }
        PartitionCommand::Set(args) => {
            let SetArgs { named, options, expire_stored, writing, .. } = args;
            let existing = Existing::open(&named.database, writing, "partition set")?;
            let partition = existing.partition(&named.name)?;
            if !expire_stored {
                options.check_times(&partition)?;
            }
            let changed = args.turn_off(options.apply(partition.options())?);
            print(&existing.db.partition_with(&named.name, changed)?, named.json)?;
            Ok(existing.close()?)
        }
        PartitionCommand::Clear(ChangeArgs { named, writing }) => {
            let existing = Existing::open(&named.database, writing, "partition clear")?;
            existing.partition(&named.name)?.clear_with(Durability::Sync)?;
            say("cleared", named)?;
            Ok(existing.close()?)
        }
        PartitionCommand::Drop(ChangeArgs { named, writing }) => {
            let existing = Existing::open(&named.database, writing, "partition drop")?;
            existing.partition(&named.name)?;
            existing.db.drop_partition(&named.name)?;
            say("dropped", named)?;
            Ok(existing.close()?)
        }
    }
}

fn create(args: &CreateArgs) -> Result<(), Failure> {
    let CreateArgs { named, options, unlogged, making } = args;
    let written = making.open(&named.database, "partition create")?;
    if written.db.has_partition(&named.name) {
        let text = format!("partition {:?} exists; `partition set` changes it", named.name);
        return Err(Failure::Usage(text));
    }
    let options = options.apply(PartitionOptions::new().logged(!unlogged))?;
    print(&written.db.partition_with(&named.name, options)?, named.json)?;
    Ok(written.close()?)
}

fn say(deed: &str, named: &NameArgs) -> Result<(), Failure> {
    let mut out = Output::new(named.json);
    out.line(format_args!("{deed} {}", named.name), &json!({ deed: named.name }))?;
    out.finish()
}

/// The hooks of a partition: a name, a rule or a number of bytes; `none` without one.
fn hook_rows(partition: &Partition) -> Vec<(&'static str, Value)> {
    let filters = partition.filters();
    let expire = match partition.ttl() {
        Some(rule) => rule.to_string(),
        None if has(&filters, TtlFilter::NAME) => "by code of a program".to_owned(),
        None => "none".to_owned(),
    };
    let operator = match partition.merge_operator() {
        None => "none".to_owned(),
        Some((name, params)) if params.is_empty() => name,
        Some((name, params)) => format!("{name}:{}", params.escape_ascii()),
    };
    let known = [TtlFilter::NAME, MetaHive::NAME];
    let others = filters.iter().map(|(name, _)| &name[..]).filter(|name| !known.contains(name));
    let others: Vec<&str> = others.collect();
    let large = partition.large_value_options().is_some_and(|options| options.is_on());
    vec![
        ("expire", expire.into()),
        ("operator", operator.into()),
        ("metahive", has(&filters, MetaHive::NAME).into()),
        ("large_values", large.into()),
        ("other_filters", if others.is_empty() { "none".into() } else { others.join(",").into() }),
    ]
}

fn has(filters: &[(String, Vec<u8>)], name: &str) -> bool {
    filters.iter().any(|(filter, _)| filter == name)
}

/// Prints the options of a partition.
fn print(partition: &Partition, is_json: bool) -> Result<(), Failure> {
    let options = partition.options();
    let compression = match options.get_compression() {
        Compression::None => "none",
        Compression::Zstd => "zstd",
        _ => "lz4",
    };
    let extractor = options.get_prefix_extractor();
    let extractor = extractor.map_or_else(|| "none".to_owned(), |it| it.to_string());
    let mut rows: Vec<(&str, Value)> = vec![
        ("partition", partition.name().into()),
        ("logged", options.get_logged().into()),
        ("compression", compression.into()),
        ("block_bytes", options.get_block_bytes().into()),
        ("bloom_bits", options.get_bloom_bits_per_key().into()),
        ("table_bytes", options.get_table_bytes().into()),
        ("level0_tables", options.get_level0_tables().into()),
        ("level_base_bytes", options.get_level_base_bytes().into()),
        ("level_multiplier", options.get_level_multiplier().into()),
        ("prefix_extractor", extractor.into()),
        ("compaction_style", options.get_compaction_style().to_string().into()),
    ];
    rows.extend(hook_rows(partition));
    let text: Vec<String> = rows
        .iter()
        .map(|(name, value)| format!("{name:<17} {}", value.to_string().trim_matches('"')))
        .collect();
    let object = rows.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let mut out = Output::new(is_json);
    out.line(text.join("\n"), &Value::Object(object))?;
    out.finish()
}
