// Merge operators and compaction filters of a program. tests/programs.rs compiles and runs it.

#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

// The counts of the hooks, and the settings that they read. Several threads use it.
struct context {
    atomic_int calls, operands, destroyed, large;
    atomic_bool lets_fail_pass, has_started, may_free;
    siltstone_db_t *_Atomic closes, *_Atomic frees;
    siltstone_partition_t *_Atomic frees_partition;
    siltstone_transaction_t *_Atomic commits_transaction;
    siltstone_writer_t *_Atomic commits_writer, *_Atomic adds_writer;
    siltstone_batch_t *_Atomic commits_batch;
};

static void sleep_ms(long ms) {
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

// The longest of all bytes. The operand `fail` fails with a text, and `mute` without one.
static bool longest(void *of, const void *key, size_t key_len, const void *existing, size_t existing_len, size_t count,
                    const void *const *operands, const size_t *operand_lens, siltstone_hook_output_t *output) {
    struct context *context = of;
    atomic_fetch_add(&context->calls, 1);
    atomic_fetch_add(&context->operands, (int)count);
    if (key == NULL || key_len == 0) return false;
    for (size_t at = 0; at < count; at++) {
        if (is(operands[at], operand_lens[at], "fail")) {
            siltstone_hook_output_fail(output, "no operand is called fail");
            return false;
        }
        if (is(operands[at], operand_lens[at], "mute")) return false;
        if (is(operands[at], operand_lens[at], "null")) {
            // Refused, and a failure although the hook says that it has succeeded.
            siltstone_hook_output_append(output, NULL, 1);
            return true;
        }
        if (operand_lens[at] > existing_len) {
            existing = operands[at];
            existing_len = operand_lens[at];
        }
    }
    // In two parts, as an operator may build its result.
    siltstone_hook_output_append(output, existing, existing_len / 2);
    siltstone_hook_output_append(output, (const char *)existing + existing_len / 2, existing_len - existing_len / 2);
    return true;
}

// The own database from a hook: each call is refused at once, and none waits for the job.
static void close_from_hook(siltstone_db_t *db) {
    siltstone_error_t *refusal = NULL;
    if (siltstone_close(db, &refusal) || siltstone_error_kind(refusal) != SILTSTONE_INVALID_ARGUMENT) abort();
    if (strstr(siltstone_error_message(refusal), "a hook may call no function") == NULL) abort();
    siltstone_error_free(refusal);
    if (siltstone_flush(db, NULL) || siltstone_wait_idle(db, NULL) || siltstone_snapshot_create(db, NULL) != NULL) abort();
}

// Commits that free their objects, or empty them, also when they are refused.
static void commit_from_hook(struct context *context) {
    siltstone_transaction_t *transaction = atomic_exchange(&context->commits_transaction, NULL);
    if (transaction == NULL) return;
    siltstone_batch_t *batch = atomic_load(&context->commits_batch);
    if (siltstone_transaction_commit(transaction, false, NULL, NULL)) abort();
    if (siltstone_writer_commit(atomic_load(&context->commits_writer), false, NULL, NULL)) abort();
    if (siltstone_batch_put_writer(batch, atomic_load(&context->adds_writer), NULL)) abort();
    if (siltstone_batch_commit(batch, false, NULL, NULL)) abort();
}

static void destroy(void *of) {
    struct context *context = of;
    siltstone_db_t *closes = atomic_load(&context->closes);
    if (closes != NULL) close_from_hook(closes);
    atomic_fetch_add(&context->destroyed, 1);
}

// Decides by the first letter of the key.
static uint32_t sweep(void *of, const void *key, size_t key_len, const void *value, size_t value_len,
                      siltstone_hook_output_t *output) {
    struct context *context = of;
    atomic_fetch_add(&context->calls, 1);
    if (value == NULL) atomic_fetch_add(&context->large, 1);
    siltstone_db_t *closes = atomic_load(&context->closes);
    if (closes != NULL) close_from_hook(closes);
    commit_from_hook(context);
    if (atomic_load(&context->frees) != NULL) {
        atomic_store(&context->has_started, true);
        while (!atomic_load(&context->may_free)) sleep_ms(1);
        // The last objects of the own database.
        siltstone_partition_free(atomic_exchange(&context->frees_partition, NULL));
        siltstone_db_free(atomic_exchange(&context->frees, NULL));
    }
    switch (key_len == 0 ? 0 : *(const char *)key) {
    case 'r': return SILTSTONE_REMOVE;
    case 'x':
        // Once: the new value is shown to later jobs.
        if (value_len == 3) return SILTSTONE_KEEP;
        siltstone_hook_output_append(output, "new", 3);
        return SILTSTONE_REPLACE;
    case 'f':
        if (atomic_load(&context->lets_fail_pass)) return SILTSTONE_KEEP;
        siltstone_hook_output_fail(output, "the sky is red");
        return SILTSTONE_FAIL;
    case 'n': return atomic_load(&context->lets_fail_pass) ? SILTSTONE_KEEP : 9;
    default: return SILTSTONE_KEEP;
    }
}

static siltstone_merge_operator_t *operator_of(struct context *context) {
    siltstone_merge_operator_t *made = siltstone_merge_operator_create("longest", "v1", 2, context, longest, destroy, &error);
    CHECK(made != NULL);
    return made;
}

static siltstone_compaction_filter_t *filter_of(struct context *context) {
    siltstone_compaction_filter_t *made = siltstone_compaction_filter_create("sweeper", NULL, 0, context, sweep, destroy, &error);
    CHECK(made != NULL);
    return made;
}

// A partition with both hooks.
static siltstone_partition_t *hooked(const siltstone_db_t *db, const char *name, struct context *merges, struct context *sweeps) {
    siltstone_partition_options_t *options = siltstone_partition_options_create();
    siltstone_partition_options_set_large_values(options, 4096);
    if (merges != NULL) {
        siltstone_merge_operator_t *operator = operator_of(merges);
        CHECK(siltstone_partition_options_use_merge_operator(options, operator, &error));
        siltstone_merge_operator_free(operator);
    }
    if (sweeps != NULL) {
        siltstone_compaction_filter_t *filter = filter_of(sweeps);
        CHECK(siltstone_partition_options_add_compaction_filter(options, filter, &error));
        siltstone_compaction_filter_free(filter);
    }
    siltstone_partition_t *partition = siltstone_partition_open(db, name, options, true, &error);
    CHECK(partition != NULL);
    siltstone_partition_options_free(options);
    return partition;
}

static void merge(const siltstone_partition_t *of, const char *key, const char *operand) {
    CHECK(siltstone_merge(of, key, strlen(key), operand, strlen(operand), false, NULL, &error));
}

// Waits for an end of a thread of the library.
static void wait_for(atomic_int *count, int expected) {
    for (int ms = 0; atomic_load(count) != expected && ms < 60000; ms++) sleep_ms(1);
    CHECK(atomic_load(count) == expected);
}

static void test_arguments(void) {
    struct context context = {0};
    refused(siltstone_merge_operator_create(NULL, NULL, 0, &context, longest, destroy, &error) != NULL, SILTSTONE_INVALID_ARGUMENT, "name is NULL");
    refused(siltstone_merge_operator_create("", NULL, 0, &context, longest, destroy, &error) != NULL, SILTSTONE_INVALID_ARGUMENT, "is empty");
    refused(siltstone_merge_operator_create("a", NULL, 1, &context, longest, destroy, &error) != NULL, SILTSTONE_INVALID_ARGUMENT, "params is NULL");
    refused(siltstone_merge_operator_create("a", NULL, 0, &context, NULL, destroy, &error) != NULL, SILTSTONE_INVALID_ARGUMENT, "merge is NULL");
    refused(siltstone_compaction_filter_create("\xff", NULL, 0, &context, sweep, destroy, &error) != NULL, SILTSTONE_INVALID_ARGUMENT, "not UTF-8");
    refused(siltstone_compaction_filter_create("a", NULL, 0, &context, NULL, destroy, &error) != NULL, SILTSTONE_INVALID_ARGUMENT, "decide is NULL");
    CHECK(atomic_load(&context.destroyed) == 0);
    siltstone_options_t *options = siltstone_options_create();
    siltstone_partition_options_t *of_partition = siltstone_partition_options_create();
    refused(siltstone_options_add_merge_operator(options, NULL, &error), SILTSTONE_INVALID_ARGUMENT, "operator is NULL");
    refused(siltstone_options_add_compaction_filter(options, NULL, &error), SILTSTONE_INVALID_ARGUMENT, "filter is NULL");
    refused(siltstone_partition_options_use_merge_operator(of_partition, NULL, &error), SILTSTONE_INVALID_ARGUMENT, "operator is NULL");
    refused(siltstone_partition_options_add_compaction_filter(of_partition, NULL, &error), SILTSTONE_INVALID_ARGUMENT, "filter is NULL");
    siltstone_options_free(options);
    siltstone_partition_options_free(of_partition);
    siltstone_merge_operator_free(operator_of(&context));
    // Without a destructor, and without a context.
    siltstone_compaction_filter_free(siltstone_compaction_filter_create("a", NULL, 0, NULL, sweep, NULL, &error));
    CHECK(atomic_load(&context.destroyed) == 1);
    siltstone_hook_output_append(NULL, "a", 1);
    siltstone_hook_output_fail(NULL, "a");
}

static void test_merges(const char *path) {
    struct context context = {0};
    siltstone_db_t *db = siltstone_open(path, NULL, &error);
    siltstone_partition_t *names = hooked(db, "names", &context, NULL);
    const char *operands[] = {"bob", "robert", "rob"};
    for (int at = 0; at < 3; at++) merge(names, "a", operands[at]);
    // The first operand is the value of a new key; the others come in one call.
    has(names, NULL, "a", "robert");
    CHECK(atomic_load(&context.calls) > 0 && atomic_load(&context.operands) >= 2 * atomic_load(&context.calls));
    merge(names, "e", "");
    has(names, NULL, "e", "");
    put(names, "b", "x");
    CHECK(siltstone_flush(db, &error));
    merge(names, "b", "fail");
    siltstone_value_t *value = NULL;
    refused(siltstone_get(names, NULL, "b", 1, &value, &error), SILTSTONE_HOOK_PANICKED,
            "partition \"names\", key \"b\", merge operator \"longest\": no operand is called fail");
    // A job keeps the operands that it cannot fold, and the other keys are not affected.
    CHECK(siltstone_flush(db, &error) && siltstone_compact(names, NULL, 0, NULL, 0, &error));
    has(names, NULL, "a", "robert");
    refused(siltstone_get(names, NULL, "b", 1, &value, &error), SILTSTONE_HOOK_PANICKED, "is called fail");
    put(names, "b", "x");
    merge(names, "b", "mute");
    refused(siltstone_get(names, NULL, "b", 1, &value, &error), SILTSTONE_HOOK_PANICKED, "it failed");
    put(names, "b", "x");
    merge(names, "b", "null");
    refused(siltstone_get(names, NULL, "b", 1, &value, &error), SILTSTONE_HOOK_PANICKED, "data is NULL");
    put(names, "b", "x");
    merge(names, "a", "al");
    siltstone_partition_free(names);
    siltstone_db_free(db);
    CHECK(atomic_load(&context.destroyed) == 1);

    // Without the code the operands stay.
    db = siltstone_open(path, NULL, &error);
    names = siltstone_partition_open(db, "names", NULL, false, &error);
    refused(siltstone_get(names, NULL, "a", 1, &value, &error), SILTSTONE_UNSUPPORTED, "longest");
    refused(siltstone_merge(names, "a", 1, "b", 1, false, NULL, &error), SILTSTONE_UNSUPPORTED, "longest");
    has(names, NULL, "b", "x");
    siltstone_partition_free(names);
    siltstone_db_free(db);
}

static void test_opens(const char *path) {
    struct context context = {0}, sweeps = {0};
    siltstone_options_t *options = siltstone_options_create();
    siltstone_merge_operator_t *operator = operator_of(&context);
    siltstone_compaction_filter_t *filter = filter_of(&sweeps);
    CHECK(siltstone_options_add_merge_operator(options, operator, &error));
    CHECK(siltstone_options_add_compaction_filter(options, filter, &error));
    siltstone_merge_operator_free(operator);
    siltstone_compaction_filter_free(filter);
    siltstone_db_t *db = siltstone_open(path, options, &error);
    siltstone_partition_t *names = siltstone_partition_open(db, "names", NULL, false, &error);
    merge(names, "a", "bartholomew");
    has(names, NULL, "a", "bartholomew");
    siltstone_secondary_t *secondary = siltstone_secondary_open(path, options, &error);
    siltstone_secondary_partition_t *followed = siltstone_secondary_partition_open(secondary, "names", &error);
    siltstone_value_t *value = NULL;
    size_t len;
    CHECK(siltstone_secondary_get(followed, SILTSTONE_LEVEL_STRONG, NULL, 10000, "a", 1, &value, &error));
    CHECK(is(siltstone_value_data(value, &len), 11, "bartholomew"));
    siltstone_value_free(value);
    siltstone_secondary_partition_free(followed);
    siltstone_secondary_free(secondary);
    // The filter is found by its stored name.
    siltstone_partition_free(hooked(db, "swept", NULL, &sweeps));
    siltstone_db_free(db);
    siltstone_partition_free(names);
    db = siltstone_open(path, options, &error);
    siltstone_options_free(options);
    siltstone_partition_t *swept = siltstone_partition_open(db, "swept", NULL, false, &error);
    put(swept, "r", "removed");
    CHECK(siltstone_flush(db, &error) && siltstone_compact(swept, NULL, 0, NULL, 0, &error));
    has(swept, NULL, "r", NULL);
    siltstone_partition_free(swept);
    siltstone_db_free(db);
    CHECK(atomic_load(&context.destroyed) == 1 && atomic_load(&sweeps.destroyed) == 2);
}

static void test_filters(const char *path) {
    struct context context = {0};
    static char large[10000];
    siltstone_db_t *db = siltstone_open(path, NULL, &error);
    siltstone_partition_t *swept = hooked(db, "filtered", NULL, &context);
    put(swept, "a", "kept");
    put(swept, "r", "removed");
    put(swept, "x", "longer");
    CHECK(siltstone_put(swept, "large", 5, large, sizeof large, false, NULL, &error));
    siltstone_snapshot_t *before = siltstone_snapshot_create(db, &error);
    CHECK(siltstone_flush(db, &error));
    has(swept, before, "r", "removed");
    siltstone_snapshot_free(before);
    CHECK(siltstone_compact(swept, NULL, 0, NULL, 0, &error));
    has(swept, NULL, "a", "kept");
    has(swept, NULL, "r", NULL);
    has(swept, NULL, "x", "new");
    CHECK(atomic_load(&context.large) > 0);
    // A failure fails the job and loses nothing; once the filter works, so does the job.
    const char *keys[] = {"f", "n"}, *texts[] = {"compaction filter \"sweeper\": the sky is red", "there is no decision 9"};
    for (int at = 0; at < 2; at++) {
        atomic_store(&context.lets_fail_pass, false);
        put(swept, keys[at], "here");
        refused(siltstone_flush(db, &error), SILTSTONE_HOOK_PANICKED, texts[at]);
        has(swept, NULL, keys[at], "here");
        atomic_store(&context.lets_fail_pass, true);
        CHECK(siltstone_flush(db, &error));
        has(swept, NULL, keys[at], "here");
    }
    // A hook that closes its own database.
    atomic_store(&context.closes, db);
    put(swept, "b", "1");
    int calls = atomic_load(&context.calls);
    CHECK(siltstone_flush(db, &error) && atomic_load(&context.calls) > calls);
    atomic_store(&context.closes, (siltstone_db_t *)NULL);
    // A destructor that does so.
    struct context destroyed = {0};
    atomic_store(&destroyed.closes, db);
    siltstone_merge_operator_free(operator_of(&destroyed));
    CHECK(atomic_load(&destroyed.destroyed) == 1);
    CHECK(siltstone_close(db, &error));
    siltstone_partition_free(swept);
    siltstone_db_free(db);
    CHECK(atomic_load(&context.destroyed) == 1);
}

// A hook frees the last objects of its database: another thread closes it, when the job has ended.
static void test_last_free(const char *path) {
    struct context context = {0};
    siltstone_options_t *options = siltstone_options_create();
    siltstone_options_set_write_buffer_bytes(options, 64 << 10);
    siltstone_db_t *db = siltstone_open(path, options, &error);
    siltstone_options_free(options);
    siltstone_partition_t *swept = hooked(db, "freed", NULL, &context);
    atomic_store(&context.frees_partition, swept);
    atomic_store(&context.frees, db);
    static char value[2048];
    for (int count = 0; !atomic_load(&context.has_started); count++) {
        CHECK(count < 10000 && siltstone_put(swept, &count, sizeof count, value, sizeof value, false, NULL, &error));
        sleep_ms(2);
    }
    atomic_store(&context.may_free, true);
    wait_for(&context.destroyed, 1);
}

static void test_commits_in_a_hook(const char *path) {
    struct context context = {0};
    siltstone_db_t *db = siltstone_open(path, NULL, &error);
    siltstone_partition_t *swept = hooked(db, "committed", NULL, &context);
    put(swept, "a", "1");
    siltstone_transaction_t *transaction = siltstone_transaction_begin(db, &error);
    siltstone_value_t *value = NULL;
    CHECK(siltstone_transaction_get(transaction, swept, "a", 1, true, &value, &error));
    siltstone_value_free(value);
    // The transaction does not see it, so the filter is asked.
    put(swept, "later", "1");
    siltstone_batch_t *batch = siltstone_batch_create(db, &error);
    CHECK(siltstone_batch_put(batch, swept, "b", 1, "1", 1, &error) && siltstone_batch_count(batch) == 1);
    atomic_store(&context.commits_batch, batch);
    atomic_store(&context.commits_writer, siltstone_writer_create(swept, "c", 1, UINT64_MAX, &error));
    atomic_store(&context.adds_writer, siltstone_writer_create(swept, "d", 1, UINT64_MAX, &error));
    atomic_store(&context.commits_transaction, transaction);
    CHECK(siltstone_flush(db, &error) && atomic_load(&context.commits_transaction) == NULL);
    CHECK(siltstone_batch_count(batch) == 0);
    // The lock of the transaction has ended with it.
    transaction = siltstone_transaction_begin(db, &error);
    CHECK(siltstone_transaction_set_lock_timeout_ms(transaction, 10000, &error));
    CHECK(siltstone_transaction_get(transaction, swept, "a", 1, true, &value, &error));
    siltstone_value_free(value);
    siltstone_transaction_free(transaction);
    siltstone_batch_free(batch);
    siltstone_partition_free(swept);
    siltstone_db_free(db);
    wait_for(&context.destroyed, 1);
}

static void *merge_often(void *of) {
    for (int count = 0; count < 100; count++) {
        siltstone_value_t *value = NULL;
        if (!siltstone_merge(of, "k", 1, "abcdefghij", (size_t)count % 10 + 1, false, NULL, NULL)) return NULL;
        if (!siltstone_get(of, NULL, "k", 1, &value, NULL) || value == NULL) return NULL;
        siltstone_value_free(value);
    }
    return of;
}

static void test_threads_and_fork(const char *path) {
    struct context context = {0};
    siltstone_db_t *db = siltstone_open(path, NULL, &error);
    siltstone_partition_t *names = hooked(db, "busy", &context, NULL);
    pthread_t threads[4];
    for (int at = 0; at < 4; at++) CHECK(pthread_create(&threads[at], NULL, merge_often, names) == 0);
    for (int at = 0; at < 4; at++) {
        void *done = NULL;
        CHECK(pthread_join(threads[at], &done) == 0 && done == names);
    }
    has(names, NULL, "k", "abcdefghij");
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        siltstone_value_t *value;
        int calls = atomic_load(&context.calls);
        refused(siltstone_get(names, NULL, "k", 1, &value, &error), SILTSTONE_CLOSED, "forked");
        siltstone_partition_free(names);
        siltstone_db_free(db);
        CHECK(atomic_load(&context.calls) == calls && atomic_load(&context.destroyed) == 0);
        execl("/bin/sh", "sh", "-c", "exit 0", (char *)NULL);
        _exit(1);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    siltstone_partition_free(names);
    siltstone_db_free(db);
    CHECK(atomic_load(&context.destroyed) == 1);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    test_arguments();
    test_merges(argv[1]);
    test_opens(argv[1]);
    test_filters(argv[1]);
    test_threads_and_fork(argv[1]);
    test_commits_in_a_hook(argv[1]);
    test_last_free(argv[1]);
    puts("all checks passed");
    return 0;
}
