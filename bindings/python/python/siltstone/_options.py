"""The options of an open and of a partition, as keywords.

An option that a call does not name has its default at an open, and keeps its stored value at a partition. The pages
of ``Options`` and ``PartitionOptions`` in the Rust documentation describe each of them with its range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict

if TYPE_CHECKING:
    # A dependency of type checkers alone. The one of the standard library is newer than the oldest Python.
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from ._siltstone import CompactionFilter, EventListener, MergeOperator, Resources


class EngineOptions(TypedDict, total=False):
    """Options of one open of a database or a secondary. They are not stored."""

    #: Size of the block cache. Default: a quarter of the memory of the machine, at most 1 GiB.
    cache_bytes: int
    #: Memory for the memtables. Default: a sixteenth of the memory, from 1 MiB to 64 MiB.
    write_buffer_bytes: int
    #: Maximum length of a segment of the log. Default: 64 MiB.
    wal_segment_bytes: int
    #: Whether small writes to the log may go through a mapping. Default: True.
    wal_mapped: bool
    #: Whether tables without compression are read through mappings, on Linux. Default: False.
    tables_mapped: bool
    #: Maximum length of the log that an open may have to replay. Default: 512 MiB.
    wal_bytes_max: int
    #: Time within which a write without ``sync`` reaches the device. Default: 1000.
    sync_interval_ms: int
    #: Maximum length of a value that is not streamed. Default: 64 MiB.
    value_bytes_max: int
    #: Maximum size of a batch. Default: 256 MiB.
    batch_bytes_max: int
    #: Number of threads that compact. Default: the number of cores less one.
    compaction_threads: int
    #: Bytes a second that flushes and compactions write. Default: 0, no limit.
    background_bytes_per_second: int
    #: Size beyond which the manifest begins a new generation. Default: 4 MiB.
    manifest_bytes_max: int
    #: Number of files that stay open for reading. Default: half of ``ulimit -n``.
    open_files_max: int
    #: Bytes that stay on the disk for secondaries. Default: 16 GiB.
    leased_bytes_max: int
    #: Bytes of the log that stay for those who follow the changes. Default: 0.
    log_retained_bytes: int
    #: Time for which these bytes stay. Default: no limit.
    log_retained_seconds: int
    #: The code of merge operators of the application, for partitions that store their names. Default: none.
    merge_operators: Sequence[MergeOperator]
    #: What the database shares with others. Default: it has its own.
    resources: Resources


class OpenOptions(EngineOptions, total=False):
    """Options of one open of a database. They are not stored."""

    #: Make the folder and the database if they do not exist. Default: True.
    create_if_missing: bool
    #: Refuse a folder that has a database. Default: False.
    error_if_exists: bool
    #: Write nothing, and start no background thread. Default: False.
    read_only: bool
    #: Read the committed state while another process writes. Default: False.
    beside_writer: bool
    #: Take the database over from a process of this machine that has it open. Default: False.
    take_over: bool
    #: The code of compaction filters of the application, for partitions that store their names. Default: none.
    compaction_filters: Sequence[CompactionFilter]
    #: Functions that get the events of background work. Default: none.
    listeners: Sequence[EventListener]


class Event(TypedDict, total=False):
    """An event of background work, for an ``EventListener``."""

    #: ``flushed``, ``compacted``, ``stall_changed``, ``corruption``, ``repaired``, ``quarantined``, ``chunk_created``,
    #: ``chunk_sealed``, ``chunk_reclaimed``, ``background_error``, ``resumed`` or ``clock_jumped``.
    kind: Required[str]
    #: The name of the partition.
    partition: str
    #: The length of the table of a flush, or of a chunk file.
    bytes: int
    #: How long a flush or a compaction took.
    seconds: float
    #: The uppermost level of the inputs of a compaction.
    level_from: int
    #: The level of its outputs.
    level_to: int
    #: The length of its inputs.
    read_bytes: int
    #: The length of its outputs; 0 for tables that only moved.
    written_bytes: int
    #: The delay of writers, from 0 to 1000, when they are stopped.
    pressure_permille: int
    #: The strongest cause of it.
    reason: str
    #: What was damaged, how it was repaired, or what has failed.
    message: str
    #: The key of an entry that was repaired.
    key: bytes
    #: The bytes that were found in the place of a value.
    value: bytes
    #: The path of a chunk file.
    file: str


class ResourceOptions(TypedDict, total=False):
    """Options of ``Resources``. They are not stored."""

    #: Size of the block cache; 0 turns it off for all. Default: a quarter of the memory, at most 1 GiB.
    cache_bytes: int
    #: Memory for the memtables of all databases. Default: a sixteenth of the memory, from 1 MiB to 64 MiB.
    write_buffer_bytes: int
    #: Number of threads that flush, and of those that sync logs. Default: 2.
    flush_threads: int
    #: Number of threads that compact. Default: the number of cores less one.
    compaction_threads: int
    #: Bytes a second that all flushes and compactions write. Default: 0, no limit.
    background_bytes_per_second: int
    #: Number of files that stay open for reading. Default: half of ``ulimit -n``.
    open_files_max: int


class ResourceUsage(TypedDict):
    """The use of ``Resources`` by all databases together."""

    #: Open databases that are written to.
    databases: int
    #: Threads that run.
    threads: int
    #: Memory of the block cache in bytes.
    cache_bytes: int
    #: The most that it may take.
    cache_bytes_max: int
    #: Memory of active memtables in bytes.
    active_memtable_bytes: int
    #: The most that they should have.
    write_buffer_bytes: int
    #: Memory of memtables that wait for their flush, in bytes.
    sealed_memtable_bytes: int
    #: Memory of the memtables of secondaries, in bytes. Up to half of ``write_buffer_bytes`` of it counts as active.
    followed_memtable_bytes: int
    #: Files that are open for reading.
    open_files: int
    #: The maximum of them.
    open_files_max: int
    #: The rate of flushes and compactions in bytes a second; 0 is no limit.
    background_bytes_per_second: int


class LargeValueOptions(TypedDict, total=False):
    """How a partition keeps large values; see docs/large-values.md."""

    #: Length from which on a value is kept in a chunk file. Default: 64 KiB.
    threshold_bytes: int
    #: Length from which on a chunk file takes no more values. Default: 256 MiB.
    chunk_bytes: int
    #: Length of the parts that have a checksum of their own. Default: 256 KiB.
    sub_block_bytes: int
    #: Share of garbage, in thousandths, from which on a chunk file is rewritten.
    garbage_permille: int
    #: Limit of the rate of these rewrites. Default: none.
    move_bytes_per_second: int
    #: Compression of new values; ``"zstd"`` needs a build with the feature ``zstd``. Default: ``"none"``.
    compression: Literal["lz4", "zstd", "none"]


class TtlRule(TypedDict, total=False):
    """When the entries of a partition expire; see docs/expiry.md."""

    #: Where the number is that says it.
    place: Required[Literal["key", "key_from_end", "value", "value_from_end"]]
    #: The number of bytes before it, or after it. Default: 0.
    offset: int
    #: The number of its bytes. Default: 8.
    width: Literal[4, 8]
    #: Its byte order. Default: False.
    little_endian: bool
    #: Its unit. Default: ``"seconds"``.
    unit: Literal["seconds", "millis", "micros", "nanos"]
    #: Seconds from the number, which is then the time of creation. Default: the number is the time of expiry.
    time_to_live: float
    #: Seconds after which an expired entry is removed at the latest. Default: a day.
    stays_at_most: float
    #: Whether reads return expired entries until they are removed. Default: False.
    reads_see_expired: bool


class Fifo(TypedDict, total=False):
    """The limits beyond which the oldest tables of a partition are removed with all their entries."""

    #: Bytes of all tables together. Default: no limit.
    bytes_max: int
    #: Seconds since a table was written. Default: no limit.
    seconds_max: int


class PartitionOptions(TypedDict, total=False):
    """Options of a partition. They are stored with it.

    An existing partition keeps those that a call does not name. ``compaction_filters`` alone replaces all filters of the
    partition, also its rule of expiry and MetaHive: name ``ttl`` and ``metahive`` with it to keep them.
    """

    #: Whether writes go to the log. Fixed when the partition is made. Default: True.
    logged: bool
    #: Compression of the tables of the deep levels; ``"zstd"`` needs a build with the feature ``zstd``. Default: ``"lz4"``.
    compression: Literal["lz4", "zstd", "none"]
    #: Size beyond which a block is closed. Default: 4096.
    block_bytes: int
    #: Bits of the Bloom filter for each key. Default: 10.
    bloom_bits_per_key: int
    #: Size beyond which a table is closed. Default: 64 MiB.
    table_bytes: int
    #: Number of tables that triggers a compaction of level 0. Default: 4.
    level0_tables: int
    #: Size of the first level below level 0. Default: 256 MiB.
    level_base_bytes: int
    #: Ratio of the sizes of two levels. Default: 10.
    level_multiplier: int
    #: The prefixes in Bloom filters: a length, the byte that ends them, or False. Default: False.
    prefix_extractor: int | Buffer | Literal[False]
    #: Limits of a partition whose tables are not merged, and whose oldest tables go. Default: False, tables are merged.
    fifo: Fifo | Literal[False]
    #: Whether a checksum is kept with every entry. Default: False.
    metahive: bool
    #: Whether, and how, large values are kept in chunk files. Those that a dict does not name have their defaults.
    #: Default: False.
    large_values: bool | LargeValueOptions
    #: A ready-made operator: add, max, min, append or set-bits; append with its separator. Or one of the application.
    merge_operator: str | tuple[str, Buffer] | MergeOperator
    #: Compaction filters of the application, in the order in which they decide. Default: none.
    compaction_filters: Sequence[CompactionFilter]
    #: When entries expire, or False: never. Default: False.
    ttl: TtlRule | Literal[False]


class Bounds(TypedDict, total=False):
    """How old a read of a secondary may be."""

    #: The operations of the primary since then.
    operations: int
    #: The seconds since then.
    age: float


class Lag(TypedDict):
    """How far a partition of a secondary is from its primary."""

    #: The operations of the primary since the newest visible one.
    operations: int | None
    #: The bytes of the log that are missing.
    bytes: int | None
    #: The seconds since the last catch-up that found the partition complete.
    age: float | None


class RepairReport(TypedDict):
    """What a repair has found."""

    #: Whether every key is what it was.
    is_complete: bool
    #: The entries of each partition of the new database.
    partitions: dict[str, int]
    #: Every damaged place: message, file, offset, partition, level, key and keys, as far as they are known.
    damage: list[dict[str, Any]]
    #: The keys that may be absent, have an older value, or be ones that were deleted: ``partition`` (None is all), ``keys``
    #: (first and last, None is all), and ``why``.
    doubtful: list[dict[str, Any]]
    #: The damaged places that have their content again, each with its ``source``.
    repaired: list[dict[str, Any]]


class BackupInfo(TypedDict):
    """A backup of a ``BackupEngine``."""

    #: Its number.
    backup_id: int
    #: The seconds since 1970 at which it was made.
    timestamp: int
    #: The sequence number of its last commit.
    seq: int
    #: The bytes of all its files.
    size: int
    #: The bytes that it added to the folder.
    new_bytes: int
    #: The number of its files.
    number_files: int
    #: The partitions without a log, which are as of their last flush.
    unlogged: list[str]
