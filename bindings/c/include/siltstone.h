// The C interface of siltstone: an embeddable key-value store with partitions, batches, transactions and snapshots.
//
// Made by cbindgen from bindings/c/src: change it there. docs/bindings.md is the guide.
//
// Rules for all functions:
//
// - Bytes are a pointer and a length, and may contain zeros. Names and paths end with a zero. A NULL pointer with the
//   length 0 is no bytes; where a range is meant, NULL is no bound.
// - A function that can fail takes `error`. It may be NULL. If the function fails, it returns false or NULL, sets
//   `*error` to an object for siltstone_error_free, and changes no other output.
// - An object is freed by the function that has `free` in its name, once; NULL is ignored. Objects may be freed in
//   any order: each keeps what it needs.
// - Databases, secondaries, partitions, snapshots, values, readers, errors, resources, backup engines, items of feeds, merge
//   operators and compaction filters may be used by several threads at once. An iterator, a batch, a transaction, a
//   writer, a feed and options may be used by one thread at a time.
// - Hooks are functions of the application that the library calls: merge operators and compaction filters. Any thread may
//   call them, several at once, so a hook guards what its context points to. A hook returns: it does not throw, and does
//   not jump out. It may call the functions of its output, and no other function of this header: those that can fail
//   are refused then with SILTSTONE_INVALID_ARGUMENT, and what a hook frees is freed by another thread. The same holds
//   for the destructor of a hook. A hook that never returns keeps its thread, and siltstone_close waits for it. After the
//   fork of a process no hook is called in the child.
// - A panic inside is the error SILTSTONE_INTERNAL; it never leaves a function.
// - A child of fork cannot use the objects of its parent: calls fail, and freeing changes nothing.


#ifndef SILTSTONE_H
#define SILTSTONE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The kind of what a feed returns.
typedef enum {
  // A kind that is newer than this header.
  SILTSTONE_FEED_UNKNOWN = 0,
  // A commit.
  SILTSTONE_FEED_COMMIT = 1,
  // Sequence numbers that the log lacks: of ingested tables, or of partitions without a log.
  SILTSTONE_FEED_UNLOGGED = 2,
  // A partition was dropped. This is no commit and has no number.
  SILTSTONE_FEED_DROPPED = 3,
} siltstone_feed_item_kind_t;

// The kind of a change.
typedef enum {
  // A kind that is newer than this header.
  SILTSTONE_CHANGE_UNKNOWN = 0,
  // The key has the value.
  SILTSTONE_CHANGE_PUT = 1,
  // The value is an operand that is merged into that of the key.
  SILTSTONE_CHANGE_MERGE = 2,
  // The key is deleted.
  SILTSTONE_CHANGE_DELETE = 3,
  // The keys from `key` on and before `stop` are deleted; `stop` is NULL for a range without an end.
  SILTSTONE_CHANGE_DELETE_RANGE = 4,
  // All keys of the partition are deleted.
  SILTSTONE_CHANGE_CLEAR = 5,
  // The value of the key is known to be damaged.
  SILTSTONE_CHANGE_DAMAGED = 6,
} siltstone_change_kind_t;

// The kind of a failure. ErrorKind in the documentation of the Rust crate says what each means, and how to react.
typedef enum {
  // A kind that is newer than this header.
  SILTSTONE_UNKNOWN = 0,
  // A file operation failed.
  SILTSTONE_IO = 1,
  // The device is full.
  SILTSTONE_NO_SPACE = 2,
  // Stored bytes differ from the written bytes.
  SILTSTONE_CORRUPTION = 3,
  // Another process, or another handle, has the database open for writing.
  SILTSTONE_LOCKED = 4,
  // A key, value, batch or count exceeds a limit; nothing was written.
  SILTSTONE_LIMIT_EXCEEDED = 5,
  // An argument is invalid; nothing was done.
  SILTSTONE_INVALID_ARGUMENT = 6,
  // The key has an ending that the partition reserves; nothing was written.
  SILTSTONE_RESERVED_KEY = 7,
  // The call would have to wait for compactions; nothing was written.
  SILTSTONE_WOULD_STALL = 8,
  // Another writer changed what the batch or transaction depends on; nothing was written.
  SILTSTONE_CONFLICT = 9,
  // Another transaction has the lock of a key.
  SILTSTONE_LOCK_TIMEOUT = 10,
  // The transaction waits for a key whose owner waits for the transaction.
  SILTSTONE_DEADLOCK = 11,
  // The partition does not exist, or was dropped.
  SILTSTONE_PARTITION_NOT_FOUND = 12,
  // The store refuses writes.
  SILTSTONE_READ_ONLY = 13,
  // The database was closed, or is that of the parent of this process.
  SILTSTONE_CLOSED = 14,
  // A hook failed or panicked.
  SILTSTONE_HOOK_PANICKED = 15,
  // Code of the library panicked: a bug.
  SILTSTONE_INTERNAL = 16,
  // The files need a newer version, or a feature that this one does not know.
  SILTSTONE_UNSUPPORTED = 17,
  // The primary deleted a file that a reader reads.
  SILTSTONE_FILE_GONE = 18,
  // The manifest that a secondary reads is too old.
  SILTSTONE_NEEDS_MANIFEST = 19,
  // The token names a commit that this database will never have.
  SILTSTONE_SESSION_LOST = 20,
  // A secondary lost its lease.
  SILTSTONE_LEASE_LOST = 21,
  // The log does not reach back to the position of a feed.
  SILTSTONE_TOO_OLD = 22,
  // The partition has no log.
  SILTSTONE_NOT_LOGGED = 23,
  // A secondary could not catch up within its time limit.
  SILTSTONE_BEHIND = 24,
  // Another process has taken the database over.
  SILTSTONE_FENCED = 25,
} siltstone_error_kind_t;

// The form of a stream of entries.
typedef enum {
  // With checksums.
  SILTSTONE_STREAM_CHECKED = 0,
  // The text of Berkeley DB.
  SILTSTONE_STREAM_BERKELEY_TEXT = 1,
} siltstone_entry_format_t;

// The kind of an event.
typedef enum {
  // A kind of a later version; its text says what it is.
  SILTSTONE_EVENT_UNKNOWN = 0,
  // A flush wrote memtables to a table.
  SILTSTONE_EVENT_FLUSHED = 1,
  // A compaction replaced tables by new ones.
  SILTSTONE_EVENT_COMPACTED = 2,
  // The delay of writers changed.
  SILTSTONE_EVENT_STALL_CHANGED = 3,
  // Damaged bytes were found.
  SILTSTONE_EVENT_CORRUPTION = 4,
  // A damaged entry was repaired.
  SILTSTONE_EVENT_REPAIRED = 5,
  // A damaged entry could not be repaired.
  SILTSTONE_EVENT_QUARANTINED = 6,
  // A chunk file of large values was made.
  SILTSTONE_EVENT_CHUNK_CREATED = 7,
  // A chunk file takes no more values.
  SILTSTONE_EVENT_CHUNK_SEALED = 8,
  // A chunk file was removed.
  SILTSTONE_EVENT_CHUNK_RECLAIMED = 9,
  // Background work failed, or a listener did.
  SILTSTONE_EVENT_BACKGROUND_ERROR = 10,
  // The store accepts writes again after a failure.
  SILTSTONE_EVENT_RESUMED = 11,
  // The calendar jumped.
  SILTSTONE_EVENT_CLOCK_JUMPED = 12,
} siltstone_event_kind_t;

// The decision of a compaction filter.
typedef enum {
  // The entry stays.
  SILTSTONE_KEEP = 0,
  // The entry is deleted.
  SILTSTONE_REMOVE = 1,
  // The entry gets the value in the output.
  SILTSTONE_REPLACE = 2,
  // The filter failed. The job fails, keeps its inputs, and is tried again later.
  SILTSTONE_FAIL = 3,
} siltstone_decision_t;

// How new a read of a secondary is. docs/secondary.md describes the levels.
typedef enum {
  // What the secondary has.
  SILTSTONE_LEVEL_EVENTUAL = 0,
  // The same moment in all partitions.
  SILTSTONE_LEVEL_PREFIX = 1,
  // At least the commit of a token.
  SILTSTONE_LEVEL_SESSION = 2,
  // Everything that was committed before the read.
  SILTSTONE_LEVEL_STRONG = 3,
} siltstone_level_t;

// A folder of backups of one database.
typedef struct siltstone_backup_engine_t siltstone_backup_engine_t;

// Operations that are committed together.
typedef struct siltstone_batch_t siltstone_batch_t;

// A feed: the commits of a database in their order, each once, as far as they are durable.
typedef struct siltstone_changes_t siltstone_changes_t;

// A compaction filter of the application.
typedef struct siltstone_compaction_filter_t siltstone_compaction_filter_t;

// An open database.
typedef struct siltstone_db_t siltstone_db_t;

// A listener of the application.
typedef struct siltstone_event_listener_t siltstone_event_listener_t;

// Why a function failed.
typedef struct siltstone_error_t siltstone_error_t;

// What a feed returns.
typedef struct siltstone_feed_item_t siltstone_feed_item_t;

// The bytes, or the failure, that a hook returns. It ends with the call of the hook.
typedef struct siltstone_hook_output_t siltstone_hook_output_t;

// A cursor over a range. It shows the state of the moment at which it was made.
typedef struct siltstone_iter_t siltstone_iter_t;

// A merge operator of the application.
typedef struct siltstone_merge_operator_t siltstone_merge_operator_t;

// Options of an open. They are not stored.
typedef struct siltstone_options_t siltstone_options_t;

// A partition: a key space with its own tables and options.
typedef struct siltstone_partition_t siltstone_partition_t;

// Options of a partition. They are stored with it.
typedef struct siltstone_partition_options_t siltstone_partition_options_t;

// A block cache, memory for memtables, threads, a rate of background writes, and open files, which many databases share.
typedef struct siltstone_resources_t siltstone_resources_t;

// A scan of a range as a transaction sees it. The part that it has passed counts as read by the transaction.
typedef struct siltstone_scan_t siltstone_scan_t;

// A read-only instance of a database that another process writes.
typedef struct siltstone_secondary_t siltstone_secondary_t;

// A partition of a secondary.
typedef struct siltstone_secondary_partition_t siltstone_secondary_partition_t;

// Options of resources. They are not stored.
typedef struct siltstone_resource_options_t siltstone_resource_options_t;

// The whole database at one moment.
typedef struct siltstone_snapshot_t siltstone_snapshot_t;

// Reads and writes that are committed together, or refused with SILTSTONE_CONFLICT.
typedef struct siltstone_transaction_t siltstone_transaction_t;

// A value that a read returned. Its bytes are lent, without a copy where the engine can.
typedef struct siltstone_value_t siltstone_value_t;

// A value that is read by offset.
typedef struct siltstone_reader_t siltstone_reader_t;

// A value that is written in parts. It is in the database after the commit.
typedef struct siltstone_writer_t siltstone_writer_t;

// A backup.
typedef struct {
  // Its number, from 1 on.
  uint32_t backup_id;
  // The seconds since 1970 at which it was made.
  uint64_t timestamp;
  // The sequence number of its last commit.
  uint64_t seq;
  // The bytes of all its files.
  uint64_t size;
  // The bytes that it added to the folder.
  uint64_t new_bytes;
  // The number of its files.
  uint64_t number_files;
  // The number of partitions without a log, which are as of their last flush.
  uint64_t unlogged;
} siltstone_backup_info_t;

// A commit: its place in the history of the database.
typedef struct {
  // The sequence number of its last operation.
  uint64_t seq;
  // The epoch of its writer.
  uint32_t epoch;
} siltstone_commit_t;

// One change of a commit. Its bytes live as long as the item.
typedef struct {
  // Its kind.
  siltstone_change_kind_t kind;
  // The name of the partition, which ends with a zero.
  const char *partition;
  // Its length without that. Programs in other languages can make names that contain zeros.
  size_t partition_len;
  // The key, or the first key of a range; NULL if it has none.
  const void *key;
  // Its length.
  size_t key_len;
  // The key before which a range ends, or NULL.
  const void *stop;
  // Its length.
  size_t stop_len;
  // The value or operand; NULL if there is none, and for a large value: siltstone_feed_item_value reads it.
  const void *value;
  // Its length.
  size_t value_len;
  // Whether the value is a large value.
  bool is_large;
} siltstone_change_t;

// What a repair has found. `siltstone repair` also prints the places and the keys.
typedef struct {
  // Whether every key is what it was.
  bool is_complete;
  // The entries of the new database.
  uint64_t entries;
  // The damaged places.
  uint64_t damaged;
  // The damaged places that have their content again.
  uint64_t repaired;
  // The ranges of keys that may be absent, have an older value, or be ones that were deleted.
  uint64_t doubtful;
} siltstone_repair_report_t;

// Takes `len` bytes, and returns true; or false for a failure, which ends the stream. Called by the thread of the call.
typedef bool (*siltstone_write_fn_t)(void *context, const void *data, size_t len);

// Fills `buffer` with up to `len` bytes, and sets `count` to their number, which is 0 at the end only. Returns false for a
// failure, which ends the stream. Called by the thread of the call.
typedef bool (*siltstone_read_fn_t)(void *context, void *buffer, size_t len, size_t *count);

// Appends the result of `existing` and of `count` operands, the oldest first, to `output`, and returns true; or false for
// a failure. `existing` is the value of the key, or an operand that is older than the others: the operator must be
// associative. Called by any thread, by several at once, and at times while writers wait. The bytes live until it returns.
typedef bool (*siltstone_merge_fn_t)(void *context,
                                     const void *key,
                                     size_t key_len,
                                     const void *existing,
                                     size_t existing_len,
                                     size_t count,
                                     const void *const *operands,
                                     const size_t *operand_lens,
                                     siltstone_hook_output_t *output);

// Ends a context, after the last call of its hook. Called once, by any thread. The rules for hooks hold for it: it calls
// no function that can fail, and what it frees is freed by another thread.
typedef void (*siltstone_destroy_fn_t)(void *context);

// Returns a siltstone_decision_t about an entry that a flush or a compaction is about to write; the new value for
// SILTSTONE_REPLACE is appended to `output`. `value` is NULL for a large value, which is not read. Called by any thread,
// and by several at once. The bytes live until it returns.
typedef uint32_t (*siltstone_filter_fn_t)(void *context,
                                          const void *key,
                                          size_t key_len,
                                          const void *value,
                                          size_t value_len,
                                          siltstone_hook_output_t *output);

// An event of background work. What a kind does not have is 0 or an empty text. It lives until the listener returns.
typedef struct {
  // A siltstone_event_kind_t.
  uint32_t kind;
  // The name of the partition.
  const char *partition;
  // The damage, the error, the source of a repair, the cause of a delay, or the path of a chunk file.
  const char *text;
  // The length of the table of a flush, of the outputs of a compaction, or of a chunk file.
  uint64_t bytes;
  // The length of the inputs of a compaction.
  uint64_t read_bytes;
  // How long a flush or a compaction took.
  uint64_t took_us;
  // The uppermost level of the inputs of a compaction.
  uint32_t level_from;
  // The level of its outputs.
  uint32_t level_to;
  // The delay of writers, from 0 to 1000, when they are stopped.
  uint32_t pressure_permille;
} siltstone_event_t;

// Gets an event. Called by a thread that does background work, or that asks for it, and which waits for the return. It
// returns nothing: what fails is its own affair.
typedef void (*siltstone_event_fn_t)(void *context, const siltstone_event_t *event);

// The use of resources by all databases together.
typedef struct {
  // Open databases that are written to.
  uint64_t databases;
  // Threads that run.
  uint64_t threads;
  // Memory of the block cache in bytes.
  uint64_t cache_bytes;
  // The most that it may take, in bytes.
  uint64_t cache_bytes_max;
  // Memory of active memtables, in bytes.
  uint64_t active_memtable_bytes;
  // The most that they should have, in bytes.
  uint64_t write_buffer_bytes;
  // Memory of memtables that wait for their flush, in bytes.
  uint64_t sealed_memtable_bytes;
  // Memory of the memtables of secondaries, in bytes. Up to half of `write_buffer_bytes` of it counts as active.
  uint64_t followed_memtable_bytes;
  // Files that are open for reading.
  uint64_t open_files;
  // The maximum of them.
  uint64_t open_files_max;
  // The rate of flushes and compactions in bytes a second; 0 is no limit.
  uint64_t background_bytes_per_second;
} siltstone_resource_usage_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens the folder of backups `dir`, which the first backup makes. Copies, restores and verifies at most
// `bytes_per_second`; 0 is no limit.
siltstone_backup_engine_t *siltstone_backup_engine_open(const char *dir,
                                                        uint64_t bytes_per_second,
                                                        siltstone_error_t **error);

// Frees a backup engine. The backups stay.
void siltstone_backup_engine_free(siltstone_backup_engine_t *engine);

// Makes a backup of an open database, while writes continue. `info` may be NULL, here and in the other functions.
bool siltstone_backup_create(const siltstone_backup_engine_t *engine,
                             const siltstone_db_t *db,
                             siltstone_backup_info_t *info,
                             siltstone_error_t **error);

// Makes a backup of the database in the folder `path`, which another process may write.
bool siltstone_backup_create_of(const siltstone_backup_engine_t *engine,
                                const char *path,
                                siltstone_backup_info_t *info,
                                siltstone_error_t **error);

// Sets `count` to the number of backups, and fills `infos` with the oldest of them, at most `capacity`.
bool siltstone_backup_info(const siltstone_backup_engine_t *engine,
                           siltstone_backup_info_t *infos,
                           size_t capacity,
                           size_t *count,
                           siltstone_error_t **error);

// Reads every file of a backup, or of all backups if `backup_id` is 0, and compares it with its checksums. Sets
// `damage_count` to the number of damaged files.
bool siltstone_backup_verify(const siltstone_backup_engine_t *engine,
                             uint32_t backup_id,
                             size_t *damage_count,
                             siltstone_error_t **error);

// Makes a database of a backup, of the newest one if `backup_id` is 0, in the empty folder `into`.
bool siltstone_backup_restore(const siltstone_backup_engine_t *engine,
                              uint32_t backup_id,
                              const char *into,
                              siltstone_backup_info_t *info,
                              siltstone_error_t **error);

// Deletes all backups but the newest `keep`, and sets `deleted` to their number.
bool siltstone_backup_purge_old(const siltstone_backup_engine_t *engine,
                                size_t keep,
                                size_t *deleted,
                                siltstone_error_t **error);

// Deletes a backup, which may be damaged.
bool siltstone_backup_delete(const siltstone_backup_engine_t *engine,
                             uint32_t backup_id,
                             siltstone_error_t **error);

// Returns an empty batch.
siltstone_batch_t *siltstone_batch_create(const siltstone_db_t *db, siltstone_error_t **error);

// Frees a batch. What was not committed is discarded.
void siltstone_batch_free(siltstone_batch_t *batch);

// Adds a put.
bool siltstone_batch_put(siltstone_batch_t *batch,
                         const siltstone_partition_t *partition,
                         const void *key,
                         size_t key_len,
                         const void *value,
                         size_t value_len,
                         siltstone_error_t **error);

// Adds a deletion.
bool siltstone_batch_delete(siltstone_batch_t *batch,
                            const siltstone_partition_t *partition,
                            const void *key,
                            size_t key_len,
                            siltstone_error_t **error);

// Requires that no one has written to a key after the sequence number `at_most`: or the commit is SILTSTONE_CONFLICT.
bool siltstone_batch_require(siltstone_batch_t *batch,
                             const siltstone_partition_t *partition,
                             const void *key,
                             size_t key_len,
                             uint64_t at_most,
                             siltstone_error_t **error);

// Adds a merge.
bool siltstone_batch_merge(siltstone_batch_t *batch,
                           const siltstone_partition_t *partition,
                           const void *key,
                           size_t key_len,
                           const void *operand,
                           size_t operand_len,
                           siltstone_error_t **error);

// Adds the deletion of the keys from `start` on and before `stop`. NULL is no bound.
bool siltstone_batch_delete_range(siltstone_batch_t *batch,
                                  const siltstone_partition_t *partition,
                                  const void *start,
                                  size_t start_len,
                                  const void *stop,
                                  size_t stop_len,
                                  siltstone_error_t **error);

// Adds the deletion of the keys that begin with a prefix.
bool siltstone_batch_delete_prefix(siltstone_batch_t *batch,
                                   const siltstone_partition_t *partition,
                                   const void *prefix,
                                   size_t prefix_len,
                                   siltstone_error_t **error);

// Adds the deletion of all keys of a partition.
bool siltstone_batch_clear(siltstone_batch_t *batch,
                           const siltstone_partition_t *partition,
                           siltstone_error_t **error);

// Adds a value that was written as a stream. Frees the writer, also after a failure.
bool siltstone_batch_put_writer(siltstone_batch_t *batch,
                                siltstone_writer_t *writer,
                                siltstone_error_t **error);

// Returns the number of operations.
size_t siltstone_batch_count(const siltstone_batch_t *batch);

// Commits the operations. The batch is empty afterwards, also after a failure, and can be used again.
bool siltstone_batch_commit(siltstone_batch_t *batch,
                            bool sync,
                            siltstone_commit_t *commit,
                            siltstone_error_t **error);

// Returns a feed of the commits after `from`: of all partitions, or of `partition` if it is not NULL; of all keys, or of
// those with a prefix. NULL is before the first commit, and a commit with the epoch 0 a number alone, as that of a
// snapshot. Another one that is not in the history fails with SILTSTONE_SESSION_LOST. docs/changes.md says how long the
// log keeps commits.
siltstone_changes_t *siltstone_changes_create(const siltstone_db_t *db,
                                              const siltstone_commit_t *from,
                                              const char *partition,
                                              const void *prefix,
                                              size_t prefix_len,
                                              siltstone_error_t **error);

// Returns a feed as siltstone_changes_create does, of the database that a secondary follows.
siltstone_changes_t *siltstone_secondary_changes_create(const siltstone_secondary_t *secondary,
                                                        const siltstone_commit_t *from,
                                                        const char *partition,
                                                        const void *prefix,
                                                        size_t prefix_len,
                                                        siltstone_error_t **error);

// Frees a feed.
void siltstone_changes_free(siltstone_changes_t *changes);

// Returns the position from which another feed goes on.
siltstone_commit_t siltstone_changes_position(const siltstone_changes_t *changes);

// Sets `item` to what comes next, or to NULL if nothing has become durable within `wait_ms`; 0 does not wait. After a
// failure the next call tries again from the same place. Fails with SILTSTONE_TOO_OLD if the log does not reach back.
bool siltstone_changes_next(siltstone_changes_t *changes,
                            uint64_t wait_ms,
                            siltstone_feed_item_t **item,
                            siltstone_error_t **error);

// Frees an item, and what it lends.
void siltstone_feed_item_free(siltstone_feed_item_t *item);

// Returns the kind of an item.
siltstone_feed_item_kind_t siltstone_feed_item_kind(const siltstone_feed_item_t *item);

// Returns the first sequence number of an item; 0 if it has none.
uint64_t siltstone_feed_item_first_seq(const siltstone_feed_item_t *item);

// Returns the last sequence number of an item; 0 if it has none.
uint64_t siltstone_feed_item_seq(const siltstone_feed_item_t *item);

// Returns the name of a dropped partition, and sets `len` to its length without the zero at its end; NULL for other kinds. It
// lives as long as the item.
const char *siltstone_feed_item_partition(const siltstone_feed_item_t *item,
                                          size_t *len);

// Returns the number of changes of a commit.
size_t siltstone_feed_item_count(const siltstone_feed_item_t *item);

// Sets `change` to the change `index` of a commit. Returns false if there is none.
bool siltstone_feed_item_change(const siltstone_feed_item_t *item,
                                size_t index,
                                siltstone_change_t *change);

// Sets `value` to the value or operand of the change `index`; a large value is read now. NULL if there is none, or if a
// large value is gone: then get the key.
bool siltstone_feed_item_value(const siltstone_feed_item_t *item,
                               size_t index,
                               siltstone_value_t **value,
                               siltstone_error_t **error);

// Returns the version of the library.
const char *siltstone_version(void);

// Opens the database in the folder `path`. `options` may be NULL.
siltstone_db_t *siltstone_open(const char *path,
                               const siltstone_options_t *options,
                               siltstone_error_t **error);

// Writes everything that can be read of the database in the folder `path`, which is not changed, to a new one in the folder
// `into`, which must be empty. `options` may be NULL; they supply the hooks that its partitions need.
bool siltstone_repair(const char *path,
                      const char *into,
                      const siltstone_options_t *options,
                      siltstone_repair_report_t *report,
                      siltstone_error_t **error);

// Closes the database: ends background work, and syncs the log. Later calls on it, and on all that came of it, fail with
// SILTSTONE_CLOSED; iterators that are on an entry still lend it. The object stays until it is freed.
bool siltstone_close(const siltstone_db_t *db,
                     siltstone_error_t **error);

// Frees a database. The last object of a database that is freed closes it, as siltstone_close does, without its errors.
void siltstone_db_free(siltstone_db_t *db);

// Writes the memtables of all partitions to tables.
bool siltstone_flush(const siltstone_db_t *db, siltstone_error_t **error);

// Changes the bytes a second that flushes and compactions write, also of those that run now; 0 is no limit.
bool siltstone_set_background_bytes_per_second(const siltstone_db_t *db,
                                               uint64_t bytes,
                                               siltstone_error_t **error);

// Waits until no background work is left.
bool siltstone_wait_idle(const siltstone_db_t *db, siltstone_error_t **error);

// Waits until the commit `seq` is on the device. One to a partition without a log is only after siltstone_flush.
bool siltstone_wait_durable(const siltstone_db_t *db,
                            uint64_t seq,
                            siltstone_error_t **error);

// Copies the database to the folder `dir`, by hard links where it can.
bool siltstone_checkpoint(const siltstone_db_t *db, const char *dir, siltstone_error_t **error);

// Drops the partition `name` with its data.
bool siltstone_drop_partition(const siltstone_db_t *db,
                              const char *name,
                              siltstone_error_t **error);

// Reads every file, at most `bytes_per_second` (0: as fast as it can). Sets `damage_count` to the number of damaged
// places, which is 0 for a sound database. Fails after that if there are files that this build cannot read.
bool siltstone_verify(const siltstone_db_t *db,
                      uint64_t bytes_per_second,
                      size_t *damage_count,
                      siltstone_error_t **error);

// Returns the statistics as JSON, with the names of Stats in the documentation of the Rust crate.
siltstone_value_t *siltstone_stats_json(const siltstone_db_t *db, siltstone_error_t **error);

// Takes a snapshot of the whole database.
siltstone_snapshot_t *siltstone_snapshot_create(const siltstone_db_t *db,
                                                siltstone_error_t **error);

// Returns the sequence number of the last operation that a snapshot shows.
uint64_t siltstone_snapshot_seq(const siltstone_snapshot_t *snapshot);

// Frees a snapshot: compactions may remove what only it shows.
void siltstone_snapshot_free(siltstone_snapshot_t *snapshot);

// Returns the kind of an error.
siltstone_error_kind_t siltstone_error_kind(const siltstone_error_t *error);

// Returns the text of an error, which names the file, the offset, the key or the limit. It lives as long as the
// error.
const char *siltstone_error_message(const siltstone_error_t *error);

// Returns whether the same call may succeed later without any other action.
bool siltstone_error_is_retryable(const siltstone_error_t *error);

// Returns the file of a failed operation or of damage, or NULL. It lives as long as the error.
const char *siltstone_error_file(const siltstone_error_t *error);

// Sets `offset` to the place of damage in its file. Returns false if it is not known.
bool siltstone_error_offset(const siltstone_error_t *error, uint64_t *offset);

// Returns the damaged key, and sets `len` to its length; NULL if it is not known. It lives as long as the error.
const void *siltstone_error_key(const siltstone_error_t *error,
                                size_t *len);

// Frees an error.
void siltstone_error_free(siltstone_error_t *error);

// Writes the entries of the partition `partition`, or of all if it is NULL, as they are now. Sets `entries` to their
// number. `format` is a siltstone_entry_format_t. docs/portability.md describes both forms.
bool siltstone_export_stream(const siltstone_db_t *db,
                             const char *partition,
                             uint32_t format,
                             siltstone_write_fn_t write,
                             void *context,
                             uint64_t *entries,
                             siltstone_error_t **error);

// Puts the entries of a stream, in either form, into the partition `partition`, or into those that it names if it is NULL.
// With `resume` only what differs from what is there is written. Sets `entries` to the number of entries.
bool siltstone_import_stream(const siltstone_db_t *db,
                             const char *partition,
                             bool resume,
                             siltstone_read_fn_t read,
                             void *context,
                             uint64_t *entries,
                             siltstone_error_t **error);

// Appends bytes to the output of a hook.
void siltstone_hook_output_append(siltstone_hook_output_t *output, const void *data, size_t len);

// Sets the text of a failure, which the error of the call or job has. The hook still returns that it failed.
void siltstone_hook_output_fail(siltstone_hook_output_t *output,
                                const char *message);

// Makes a merge operator. `name` and `params` are stored with partitions. `destroy` may be NULL; it is not called if this
// function fails. docs/merge-operators.md has the rules for operators.
siltstone_merge_operator_t *siltstone_merge_operator_create(const char *name,
                                                            const void *params,
                                                            size_t params_len,
                                                            void *context,
                                                            siltstone_merge_fn_t merge,
                                                            siltstone_destroy_fn_t destroy,
                                                            siltstone_error_t **error);

// Frees a merge operator. Options and databases that use it keep what they need.
void siltstone_merge_operator_free(siltstone_merge_operator_t *operator_);

// Makes a compaction filter. `name` and `params` are stored with partitions. `destroy` may be NULL; it is not called if
// this function fails. A snapshot that sees an entry keeps it, whatever a filter would decide.
siltstone_compaction_filter_t *siltstone_compaction_filter_create(const char *name,
                                                                  const void *params,
                                                                  size_t params_len,
                                                                  void *context,
                                                                  siltstone_filter_fn_t decide,
                                                                  siltstone_destroy_fn_t destroy,
                                                                  siltstone_error_t **error);

// Frees a compaction filter. Options and databases that use it keep what they need.
void siltstone_compaction_filter_free(siltstone_compaction_filter_t *filter);

// Returns an iterator over the keys from `start` on and before `stop`; NULL is no bound. It reads a snapshot that is not
// NULL, or the present state. It is on no entry at first.
siltstone_iter_t *siltstone_iter_create(const siltstone_partition_t *partition,
                                        const siltstone_snapshot_t *snapshot,
                                        const void *start,
                                        size_t start_len,
                                        const void *stop,
                                        size_t stop_len,
                                        siltstone_error_t **error);

// Frees an iterator, and what it holds.
void siltstone_iter_free(siltstone_iter_t *iter);

// Returns whether the iterator is on an entry. It is not before the first move, after the end, and after a failure.
bool siltstone_iter_valid(const siltstone_iter_t *iter);

// Moves to the first entry.
bool siltstone_iter_seek_to_first(siltstone_iter_t *iter, siltstone_error_t **error);

// Moves to the last entry.
bool siltstone_iter_seek_to_last(siltstone_iter_t *iter, siltstone_error_t **error);

// Moves to the first entry whose key is `key` or after it.
bool siltstone_iter_seek(siltstone_iter_t *iter,
                         const void *key,
                         size_t key_len,
                         siltstone_error_t **error);

// Moves to the last entry whose key is before `key`.
bool siltstone_iter_seek_before(siltstone_iter_t *iter,
                                const void *key,
                                size_t key_len,
                                siltstone_error_t **error);

// Moves to the next entry. The iterator must be on one.
bool siltstone_iter_next(siltstone_iter_t *iter, siltstone_error_t **error);

// Moves to the previous entry. The iterator must be on one.
bool siltstone_iter_prev(siltstone_iter_t *iter, siltstone_error_t **error);

// Returns the key of the entry, and sets `len` to its length; NULL if the iterator is on none. The bytes live until the
// iterator is moved or freed.
const void *siltstone_iter_key(const siltstone_iter_t *iter,
                               size_t *len);

// Returns the value of the entry, and sets `len` to its length. A large value is read by this call. The bytes live until
// the iterator is moved or freed.
const void *siltstone_iter_value(const siltstone_iter_t *iter,
                                 size_t *len,
                                 siltstone_error_t **error);

// Makes a listener. `destroy` may be NULL; it is not called if this function fails.
siltstone_event_listener_t *siltstone_event_listener_create(void *context,
                                                            siltstone_event_fn_t on_event,
                                                            siltstone_destroy_fn_t destroy,
                                                            siltstone_error_t **error);

// Frees a listener. Options and databases that use it keep what they need.
void siltstone_event_listener_free(siltstone_event_listener_t *listener);

// Adds a listener, which gets the events of the databases that are opened with these options.
bool siltstone_options_add_event_listener(siltstone_options_t *options,
                                          const siltstone_event_listener_t *listener,
                                          siltstone_error_t **error);

// Returns the default options of an open.
siltstone_options_t *siltstone_options_create(void);

// Frees options.
void siltstone_options_free(siltstone_options_t *options);

// Sets whether the database is made if it does not exist. Default: true.
void siltstone_options_set_create_if_missing(siltstone_options_t *options, bool is_on);

// Sets whether a folder that has a database is refused. Default: false.
void siltstone_options_set_error_if_exists(siltstone_options_t *options, bool is_on);

// Sets whether nothing is written. Default: false.
void siltstone_options_set_read_only(siltstone_options_t *options, bool is_on);

// Sets whether the committed state is read while another process writes. Default: false.
void siltstone_options_set_beside_writer(siltstone_options_t *options, bool is_on);

// Sets whether the database is taken over from a process of this machine that has it open. Default: false.
void siltstone_options_set_take_over(siltstone_options_t *options,
                                     bool is_on);

// Sets the size of the block cache. Default: a quarter of the memory of the machine, at most 1 GiB.
void siltstone_options_set_cache_bytes(siltstone_options_t *options, uint64_t bytes);

// Sets the memory for the memtables. Default: a sixteenth of the memory, from 1 MiB to 64 MiB.
void siltstone_options_set_write_buffer_bytes(siltstone_options_t *options, uint64_t bytes);

// Sets the bytes of the log that stay for feeds of changes after their data are in tables. Default: 0.
void siltstone_options_set_log_retained_bytes(siltstone_options_t *options,
                                              uint64_t bytes);

// Sets the bytes a second that flushes and compactions write, 0 for no limit. Default: 0.
void siltstone_options_set_background_bytes_per_second(siltstone_options_t *options,
                                                       uint64_t bytes);

// Sets the time within which a write without `sync` reaches the device. Default: 1000.
void siltstone_options_set_sync_interval_ms(siltstone_options_t *options, uint64_t interval_ms);

// Sets the maximum length of a value that is not streamed. Default: 64 MiB.
void siltstone_options_set_value_bytes_max(siltstone_options_t *options, uint64_t bytes);

// Sets the number of threads that compact. Default: the number of cores less one.
void siltstone_options_set_compaction_threads(siltstone_options_t *options, size_t threads);

// Sets the number of files that stay open for reading. Default: half of the limit of the process.
void siltstone_options_set_open_files_max(siltstone_options_t *options, size_t files);

// Shares the cache, the memory, the threads, the rate and the open files of `resources`. NULL shares none. Default: none.
void siltstone_options_set_resources(siltstone_options_t *options,
                                     const siltstone_resources_t *resources);

// Supplies the code of a merge operator, for partitions that store its name and parameters. May be called several times.
bool siltstone_options_add_merge_operator(siltstone_options_t *options,
                                          const siltstone_merge_operator_t *operator_,
                                          siltstone_error_t **error);

// Supplies the code of a compaction filter, for partitions that store its name and parameters. May be called several
// times. Without it a partition opens, and keeps what the filter would remove.
bool siltstone_options_add_compaction_filter(siltstone_options_t *options,
                                             const siltstone_compaction_filter_t *filter,
                                             siltstone_error_t **error);

// Returns the default options of a partition.
siltstone_partition_options_t *siltstone_partition_options_create(void);

// Returns the stored options of a partition, to change some of them: siltstone_partition_open stores those that are not
// set as their defaults. Hooks are not among them; a partition keeps them.
siltstone_partition_options_t *siltstone_partition_options_of(const siltstone_partition_t *partition,
                                                              siltstone_error_t **error);

// Frees options.
void siltstone_partition_options_free(siltstone_partition_options_t *options);

// Sets whether writes go to the log. Fixed when the partition is made. Default: true.
void siltstone_partition_options_set_logged(siltstone_partition_options_t *options, bool is_on);

// Sets whether the tables of the deep levels are compressed, by LZ4. Default: true.
void siltstone_partition_options_set_compressed(siltstone_partition_options_t *options, bool is_on);

// Sets that the tables of the deep levels are compressed with Zstandard. A build without the feature `zstd` refuses the
// partition as SILTSTONE_UNSUPPORTED.
void siltstone_partition_options_set_zstd(siltstone_partition_options_t *options);

// Sets the size beyond which a block is closed. Default: 4096.
void siltstone_partition_options_set_block_bytes(siltstone_partition_options_t *options,
                                                 uint32_t bytes);

// Sets the bits of the Bloom filter for each key; 0 makes none. Default: 10.
void siltstone_partition_options_set_bloom_bits_per_key(siltstone_partition_options_t *options,
                                                        uint32_t bits);

// Sets the size beyond which a table is closed. Default: 64 MiB.
void siltstone_partition_options_set_table_bytes(siltstone_partition_options_t *options,
                                                 uint64_t bytes);

// Puts the first `len` bytes of keys into Bloom filters. Default: no prefix.
void siltstone_partition_options_set_fixed_prefix(siltstone_partition_options_t *options,
                                                  uint16_t len);

// Puts the bytes of keys through the first `byte` into Bloom filters. Default: no prefix.
void siltstone_partition_options_set_prefix_through(siltstone_partition_options_t *options,
                                                    uint8_t byte);

// Merges no tables, and removes the oldest ones while all have more than `bytes_max` bytes, and those that are older than
// `seconds_max` seconds. UINT64_MAX is no limit. Default: tables are merged into levels.
void siltstone_partition_options_set_fifo(siltstone_partition_options_t *options,
                                          uint64_t bytes_max,
                                          uint64_t seconds_max);

// Sets whether a checksum is kept with every entry, which every compaction verifies. The other hooks of the partition
// stay. Default: false.
void siltstone_partition_options_set_metahive(siltstone_partition_options_t *options,
                                              bool is_on);

// Sets the rule of expiry, such as `value:0,ms` for the millisecond of the expiry in the first 8 bytes of the value;
// docs/expiry.md has the form. NULL ends the rule. The other hooks of the partition stay.
bool siltstone_partition_options_set_ttl(siltstone_partition_options_t *options,
                                         const char *rule,
                                         siltstone_error_t **error);

// Keeps values from `threshold_bytes` on in chunk files; 0 is the default, 64 KiB, and UINT64_MAX moves them back into
// tables.
void siltstone_partition_options_set_large_values(siltstone_partition_options_t *options,
                                                  uint64_t threshold_bytes);

// Sets a ready-made merge operator: `add`, `max`, `min`, `set-bits`, or `append` with its separator as parameters.
bool siltstone_partition_options_set_merge_operator(siltstone_partition_options_t *options,
                                                    const char *name,
                                                    const void *params,
                                                    size_t params_len,
                                                    siltstone_error_t **error);

// Gives the partition a merge operator of the application. Its name and parameters are stored and never change; later
// opens need siltstone_options_add_merge_operator.
bool siltstone_partition_options_use_merge_operator(siltstone_partition_options_t *options,
                                                    const siltstone_merge_operator_t *operator_,
                                                    siltstone_error_t **error);

// Adds a compaction filter of the application, after those that were added. The filters of the options replace those
// of the partition. Later opens need siltstone_options_add_compaction_filter.
bool siltstone_partition_options_add_compaction_filter(siltstone_partition_options_t *options,
                                                       const siltstone_compaction_filter_t *filter,
                                                       siltstone_error_t **error);

// Opens the partition `name`. `options` may be NULL: an existing partition keeps its options, and a new one has the
// defaults. Other options are stored. Without `create` it must exist.
siltstone_partition_t *siltstone_partition_open(const siltstone_db_t *db,
                                                const char *name,
                                                const siltstone_partition_options_t *options,
                                                bool create,
                                                siltstone_error_t **error);

// Frees a partition object. The partition stays in the database.
void siltstone_partition_free(siltstone_partition_t *partition);

// Sets a key to a value. With `sync` the device has it when the call returns. `commit` may be NULL.
bool siltstone_put(const siltstone_partition_t *partition,
                   const void *key,
                   size_t key_len,
                   const void *value,
                   size_t value_len,
                   bool sync,
                   siltstone_commit_t *commit,
                   siltstone_error_t **error);

// Sets a key to `value`, if it has the value `expected`; `is_set` says whether it had. NULL is a key that does not exist,
// before or after the call. `commit` may be NULL.
bool siltstone_compare_and_set(const siltstone_partition_t *partition,
                               const void *key,
                               size_t key_len,
                               const void *expected,
                               size_t expected_len,
                               const void *value,
                               size_t value_len,
                               bool sync,
                               bool *is_set,
                               siltstone_commit_t *commit,
                               siltstone_error_t **error);

// Deletes a key. A key that does not exist is no error.
bool siltstone_delete(const siltstone_partition_t *partition,
                      const void *key,
                      size_t key_len,
                      bool sync,
                      siltstone_commit_t *commit,
                      siltstone_error_t **error);

// Merges an operand into the value of a key. The partition needs a merge operator.
bool siltstone_merge(const siltstone_partition_t *partition,
                     const void *key,
                     size_t key_len,
                     const void *operand,
                     size_t operand_len,
                     bool sync,
                     siltstone_commit_t *commit,
                     siltstone_error_t **error);

// Deletes the keys from `start` on and before `stop`, in one operation. NULL is no bound.
bool siltstone_delete_range(const siltstone_partition_t *partition,
                            const void *start,
                            size_t start_len,
                            const void *stop,
                            size_t stop_len,
                            bool sync,
                            siltstone_commit_t *commit,
                            siltstone_error_t **error);

// Deletes the keys that begin with a prefix, in one operation.
bool siltstone_delete_prefix(const siltstone_partition_t *partition,
                             const void *prefix,
                             size_t prefix_len,
                             bool sync,
                             siltstone_commit_t *commit,
                             siltstone_error_t **error);

// Deletes all keys of a partition, in one operation.
bool siltstone_clear(const siltstone_partition_t *partition,
                     bool sync,
                     siltstone_commit_t *commit,
                     siltstone_error_t **error);

// Sets `value` to the value of a key, or to NULL if there is none: now, or in a snapshot that is not NULL.
bool siltstone_get(const siltstone_partition_t *partition,
                   const siltstone_snapshot_t *snapshot,
                   const void *key,
                   size_t key_len,
                   siltstone_value_t **value,
                   siltstone_error_t **error);

// Sets `exists` to whether there is a key: now, or in a snapshot that is not NULL.
bool siltstone_contains(const siltstone_partition_t *partition,
                        const siltstone_snapshot_t *snapshot,
                        const void *key,
                        size_t key_len,
                        bool *exists,
                        siltstone_error_t **error);

// Sets `values[i]` to the value of the key `keys[i]` with `key_lens[i]` bytes, or to NULL, for each of `count` keys: all
// of one moment, or of a snapshot that is not NULL.
bool siltstone_multi_get(const siltstone_partition_t *partition,
                         const siltstone_snapshot_t *snapshot,
                         size_t count,
                         const void *const *keys,
                         const size_t *key_lens,
                         siltstone_value_t **values,
                         siltstone_error_t **error);

// Compacts the keys from `start` on and before `stop` to the bottom level. NULL is no bound.
bool siltstone_compact(const siltstone_partition_t *partition,
                       const void *start,
                       size_t start_len,
                       const void *stop,
                       size_t stop_len,
                       siltstone_error_t **error);

// Returns the default options of resources.
siltstone_resource_options_t *siltstone_resource_options_create(void);

// Frees options.
void siltstone_resource_options_free(siltstone_resource_options_t *options);

// Sets the size of the block cache; 0 turns it off for all. Default: a quarter of the memory of the machine, at most 1 GiB.
void siltstone_resource_options_set_cache_bytes(siltstone_resource_options_t *options,
                                                uint64_t bytes);

// Sets the memory for the memtables of all databases. Default: a sixteenth of the memory, from 1 MiB to 64 MiB.
void siltstone_resource_options_set_write_buffer_bytes(siltstone_resource_options_t *options,
                                                       uint64_t bytes);

// Sets the number of threads that flush, and of those that sync logs. Default: 2.
void siltstone_resource_options_set_flush_threads(siltstone_resource_options_t *options,
                                                  size_t threads);

// Sets the number of threads that compact. Default: the number of cores less one.
void siltstone_resource_options_set_compaction_threads(siltstone_resource_options_t *options,
                                                       size_t threads);

// Sets the bytes a second that the flushes and compactions of all databases write, 0 for no limit. Default: 0.
void siltstone_resource_options_set_background_bytes_per_second(siltstone_resource_options_t *options,
                                                                uint64_t bytes);

// Sets the number of files that stay open for reading. Default: half of the limit of the process.
void siltstone_resource_options_set_open_files_max(siltstone_resource_options_t *options,
                                                   size_t files);

// Makes resources. `options` may be NULL. Threads start with the first database.
siltstone_resources_t *siltstone_resources_create(const siltstone_resource_options_t *options,
                                                  siltstone_error_t **error);

// Frees resources. Open databases that use them keep what they need.
void siltstone_resources_free(siltstone_resources_t *resources);

// Changes the bytes a second that flushes and compactions write, also of those that run now; 0 is no limit.
bool siltstone_resources_set_background_bytes_per_second(const siltstone_resources_t *resources,
                                                         uint64_t bytes,
                                                         siltstone_error_t **error);

// Sets `usage` to what all databases together use now.
bool siltstone_resources_usage(const siltstone_resources_t *resources,
                               siltstone_resource_usage_t *usage,
                               siltstone_error_t **error);

// Returns a scan over the keys from `start` on and before `stop`, as the transaction sees them at this moment with its own
// writes; NULL is no bound. With `reverse` it goes from the last key to the first. It is on no entry at first.
siltstone_scan_t *siltstone_transaction_scan(const siltstone_transaction_t *transaction,
                                             const siltstone_partition_t *partition,
                                             const void *start,
                                             size_t start_len,
                                             const void *stop,
                                             size_t stop_len,
                                             bool reverse,
                                             siltstone_error_t **error);

// Moves to the next entry, and sets `found` to whether there is one.
bool siltstone_scan_next(siltstone_scan_t *scan, bool *found, siltstone_error_t **error);

// Returns the key of the entry, and sets `len` to its length; NULL if the scan is on none. The bytes live until the scan is
// moved or freed.
const void *siltstone_scan_key(const siltstone_scan_t *scan,
                               size_t *len);

// Returns the value of the entry, as siltstone_scan_key does the key.
const void *siltstone_scan_value(const siltstone_scan_t *scan, size_t *len);

// Frees a scan, and what it holds.
void siltstone_scan_free(siltstone_scan_t *scan);

// Opens a secondary of the database in the folder `path`. `options` may be NULL; those that are about writing are ignored.
siltstone_secondary_t *siltstone_secondary_open(const char *path,
                                                const siltstone_options_t *options,
                                                siltstone_error_t **error);

// Frees a secondary. Its files are free when its partitions and iterators are freed as well.
void siltstone_secondary_free(siltstone_secondary_t *secondary);

// Catches up with all that is committed. Sets `commit` to what is visible then; it may be NULL.
bool siltstone_secondary_sync(const siltstone_secondary_t *secondary,
                              siltstone_commit_t *commit,
                              siltstone_error_t **error);

// Opens the partition `name` of a secondary. It must exist; sync the secondary to see new ones.
siltstone_secondary_partition_t *siltstone_secondary_partition_open(const siltstone_secondary_t *secondary,
                                                                    const char *name,
                                                                    siltstone_error_t **error);

// Frees a partition of a secondary.
void siltstone_secondary_partition_free(siltstone_secondary_partition_t *partition);

// Sets `value` to the value of a key, or to NULL if there is none, as new as `level` (a siltstone_level_t) asks. The
// level SILTSTONE_LEVEL_SESSION needs a `token`, others ignore it. Catches up for at most `wait_ms`, and fails with
// SILTSTONE_BEHIND then.
bool siltstone_secondary_get(const siltstone_secondary_partition_t *partition,
                             uint32_t level,
                             const siltstone_commit_t *token,
                             uint64_t wait_ms,
                             const void *key,
                             size_t key_len,
                             siltstone_value_t **value,
                             siltstone_error_t **error);

// Returns an iterator over the keys from `start` on and before `stop`, as siltstone_iter_create does, of a state that is as
// new as siltstone_secondary_get says.
siltstone_iter_t *siltstone_secondary_iter_create(const siltstone_secondary_partition_t *partition,
                                                  uint32_t level,
                                                  const siltstone_commit_t *token,
                                                  uint64_t wait_ms,
                                                  const void *start,
                                                  size_t start_len,
                                                  const void *stop,
                                                  size_t stop_len,
                                                  siltstone_error_t **error);

// Takes the database over from its writer, which is fenced, and opens it for writing, without hooks of the application:
// partitions get their merge operators by siltstone_partition_open. The secondary stays, and is still to be freed.
siltstone_db_t *siltstone_secondary_promote(const siltstone_secondary_t *secondary,
                                            siltstone_error_t **error);

// Begins a value of a partition that keeps large values. `len` is its length, or UINT64_MAX if it is not known.
siltstone_writer_t *siltstone_writer_create(const siltstone_partition_t *partition,
                                            const void *key,
                                            size_t key_len,
                                            uint64_t len,
                                            siltstone_error_t **error);

// As siltstone_writer_create, of a value whose key is known only after its last byte: siltstone_writer_set_key gives it.
siltstone_writer_t *siltstone_writer_create_unkeyed(const siltstone_partition_t *partition,
                                                    uint64_t len,
                                                    siltstone_error_t **error);

// Sets the key of a writer that was made without one, before it is committed or added to a batch.
bool siltstone_writer_set_key(siltstone_writer_t *writer,
                              const void *key,
                              size_t key_len,
                              siltstone_error_t **error);

// Appends bytes.
bool siltstone_writer_write(siltstone_writer_t *writer,
                            const void *data,
                            size_t len,
                            siltstone_error_t **error);

// Commits a value, and frees its writer, also after a failure.
bool siltstone_writer_commit(siltstone_writer_t *writer,
                             bool sync,
                             siltstone_commit_t *commit,
                             siltstone_error_t **error);

// Discards a value, and frees its writer.
void siltstone_writer_free(siltstone_writer_t *writer);

// Sets `reader` to a reader of the value of a key, or to NULL if there is none: now, or in a snapshot that is not NULL.
// A reader may be used by several threads at once.
bool siltstone_reader_open(const siltstone_partition_t *partition,
                           const siltstone_snapshot_t *snapshot,
                           const void *key,
                           size_t key_len,
                           siltstone_reader_t **reader,
                           siltstone_error_t **error);

// Returns the length of the value.
uint64_t siltstone_reader_size(const siltstone_reader_t *reader);

// Fills `buffer` with `len` bytes from `offset` on, which must exist.
bool siltstone_reader_read_at(const siltstone_reader_t *reader,
                              uint64_t offset,
                              void *buffer,
                              size_t len,
                              siltstone_error_t **error);

// Frees a reader.
void siltstone_reader_free(siltstone_reader_t *reader);

// Begins a transaction, which reads the present state of the database.
siltstone_transaction_t *siltstone_transaction_begin(const siltstone_db_t *db,
                                                     siltstone_error_t **error);

// Rolls a transaction back, and frees it.
void siltstone_transaction_free(siltstone_transaction_t *transaction);

// Commits a transaction, and frees it, also after a failure. After SILTSTONE_CONFLICT and SILTSTONE_DEADLOCK repeat
// the whole work in a new one.
bool siltstone_transaction_commit(siltstone_transaction_t *transaction,
                                  bool sync,
                                  siltstone_commit_t *commit,
                                  siltstone_error_t **error);

// Sets `value` to the value of a key, or to NULL: the one that the transaction wrote, or that of its begin. With
// `for_update` the key is locked until the transaction ends, and this and later calls read its newest value.
bool siltstone_transaction_get(siltstone_transaction_t *transaction,
                               const siltstone_partition_t *partition,
                               const void *key,
                               size_t key_len,
                               bool for_update,
                               siltstone_value_t **value,
                               siltstone_error_t **error);

// Sets how long a lock of a key is waited for.
bool siltstone_transaction_set_lock_timeout_ms(siltstone_transaction_t *transaction,
                                               uint64_t timeout_ms,
                                               siltstone_error_t **error);

// Sets a key to a value.
bool siltstone_transaction_put(siltstone_transaction_t *transaction,
                               const siltstone_partition_t *partition,
                               const void *key,
                               size_t key_len,
                               const void *value,
                               size_t value_len,
                               siltstone_error_t **error);

// Deletes a key.
bool siltstone_transaction_delete(siltstone_transaction_t *transaction,
                                  const siltstone_partition_t *partition,
                                  const void *key,
                                  size_t key_len,
                                  siltstone_error_t **error);

// Merges an operand into the value of a key.
bool siltstone_transaction_merge(siltstone_transaction_t *transaction,
                                 const siltstone_partition_t *partition,
                                 const void *key,
                                 size_t key_len,
                                 const void *operand,
                                 size_t operand_len,
                                 siltstone_error_t **error);

// Deletes the keys from `start` on and before `stop`. NULL is no bound.
bool siltstone_transaction_delete_range(siltstone_transaction_t *transaction,
                                        const siltstone_partition_t *partition,
                                        const void *start,
                                        size_t start_len,
                                        const void *stop,
                                        size_t stop_len,
                                        siltstone_error_t **error);

// Notes a place to which the writes can be rolled back.
bool siltstone_transaction_set_savepoint(siltstone_transaction_t *transaction,
                                         siltstone_error_t **error);

// Undoes the writes since the last savepoint, and removes it.
bool siltstone_transaction_rollback_to_savepoint(siltstone_transaction_t *transaction,
                                                 siltstone_error_t **error);

// Returns the bytes of a value, and sets `len` to their number. They live as long as the value, also after the close of
// the database.
const void *siltstone_value_data(const siltstone_value_t *value,
                                 size_t *len);

// Frees a value.
void siltstone_value_free(siltstone_value_t *value);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SILTSTONE_H */
