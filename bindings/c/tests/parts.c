// Backups, feeds of changes, and shared resources, with right and with wrong arguments. tests/programs.rs compiles and
// runs it.

#define _POSIX_C_SOURCE 200809L

#include "check.h"

static void test_resources(const char *path) {
    siltstone_resource_options_t *options = siltstone_resource_options_create();
    siltstone_resource_options_set_cache_bytes(options, 1 << 20);
    siltstone_resource_options_set_write_buffer_bytes(options, 1 << 20);
    siltstone_resource_options_set_flush_threads(options, 1);
    siltstone_resource_options_set_compaction_threads(options, 1);
    siltstone_resource_options_set_background_bytes_per_second(options, 1 << 20);
    siltstone_resource_options_set_open_files_max(options, 0);
    siltstone_resource_options_set_open_files_max(NULL, 7);
    refused(siltstone_resources_create(options, &error) != NULL, SILTSTONE_INVALID_ARGUMENT, "open_files_max is 0");
    siltstone_resource_options_set_open_files_max(options, 100);
    siltstone_resources_t *resources = siltstone_resources_create(options, &error);
    siltstone_resources_t *defaults = siltstone_resources_create(NULL, &error);
    CHECK(resources != NULL && defaults != NULL);
    siltstone_resources_free(defaults);
    siltstone_resource_options_free(options);

    siltstone_options_t *open = siltstone_options_create();
    siltstone_options_set_resources(open, resources);
    siltstone_db_t *databases[2];
    for (int at = 0; at < 2; at++) {
        char of_tenant[4096];
        snprintf(of_tenant, sizeof of_tenant, "%s of tenant %d", path, at);
        databases[at] = siltstone_open(of_tenant, open, &error);
        CHECK(databases[at] != NULL);
        siltstone_partition_t *users = siltstone_partition_open(databases[at], "users", NULL, true, &error);
        put(users, "a", "1");
        siltstone_partition_free(users);
    }
    siltstone_resource_usage_t usage;
    CHECK(siltstone_resources_usage(resources, &usage, &error) && usage.databases == 2 && usage.threads > 0);
    CHECK(usage.cache_bytes_max >= 1 << 20 && usage.write_buffer_bytes == 1 << 20 && usage.open_files_max == 100);
    CHECK(usage.background_bytes_per_second == 1 << 20 && usage.active_memtable_bytes > 0);
    CHECK(siltstone_resources_set_background_bytes_per_second(resources, 1 << 21, &error));
    CHECK(siltstone_resources_usage(resources, &usage, &error) && usage.background_bytes_per_second == 1 << 21);
    refused(siltstone_resources_set_background_bytes_per_second(resources, 1, &error), SILTSTONE_INVALID_ARGUMENT, "1");
    refused(siltstone_resources_usage(NULL, &usage, &error), SILTSTONE_INVALID_ARGUMENT, "resources is NULL");
    CHECK(siltstone_set_background_bytes_per_second(databases[0], 1 << 20, &error));
    refused(siltstone_set_background_bytes_per_second(databases[0], 1, &error), SILTSTONE_INVALID_ARGUMENT, "1");
    // A secondary shares them, too; another open shares none.
    char of_tenant[4096];
    snprintf(of_tenant, sizeof of_tenant, "%s of tenant 0", path);
    siltstone_secondary_t *secondary = siltstone_secondary_open(of_tenant, open, &error);
    CHECK(secondary != NULL);
    CHECK(siltstone_resources_usage(resources, &usage, &error) && usage.followed_memtable_bytes < 1 << 20);
    siltstone_secondary_free(secondary);
    siltstone_options_set_resources(open, NULL);
    snprintf(of_tenant, sizeof of_tenant, "%s of a tenant alone", path);
    siltstone_db_t *alone = siltstone_open(of_tenant, open, &error);
    CHECK(siltstone_resources_usage(resources, &usage, &error) && usage.databases == 2);
    siltstone_db_free(alone);
    siltstone_options_free(open);
    // In any order.
    siltstone_db_free(databases[0]);
    siltstone_resources_free(resources);
    CHECK(siltstone_flush(databases[1], &error) && siltstone_close(databases[1], &error));
    siltstone_db_free(databases[1]);
    siltstone_resources_free(NULL);
}

static void test_backups(const char *path, const siltstone_db_t *db, const siltstone_partition_t *users) {
    char dir[4096], into[4096];
    snprintf(dir, sizeof dir, "%s backups", path);
    siltstone_backup_engine_t *engine = siltstone_backup_engine_open(dir, 0, &error);
    siltstone_backup_info_t first, second, of_path, infos[2];
    size_t count = 7, damage_count = 7, deleted = 0;
    CHECK(engine != NULL && siltstone_backup_info(engine, NULL, 0, &count, &error) && count == 0);
    siltstone_commit_t commit;
    CHECK(siltstone_put(users, "a", 1, "1", 1, false, &commit, &error));
    CHECK(siltstone_backup_create(engine, db, &first, &error));
    CHECK(first.backup_id == 1 && first.seq >= commit.seq && first.size > 0 && first.new_bytes > 0);
    CHECK(first.number_files > 0 && first.timestamp > 0 && first.unlogged == 0);
    put(users, "a", "2");
    CHECK(siltstone_backup_create(engine, db, &second, &error) && second.backup_id == 2);
    CHECK(siltstone_backup_create_of(engine, path, &of_path, &error) && of_path.seq == second.seq);
    CHECK(siltstone_backup_info(engine, infos, 2, &count, &error) && count == 3 && infos[1].backup_id == 2);
    CHECK(siltstone_backup_verify(engine, 0, &damage_count, &error) && damage_count == 0);
    CHECK(siltstone_backup_verify(engine, 1, &damage_count, &error) && damage_count == 0);
    refused(siltstone_backup_verify(engine, 9, &damage_count, &error), SILTSTONE_INVALID_ARGUMENT, "9");
    for (uint32_t backup_id = 0; backup_id < 2; backup_id++) {
        snprintf(into, sizeof into, "%s restored %u", path, (unsigned)backup_id);
        CHECK(siltstone_backup_restore(engine, backup_id, into, &of_path, &error));
        CHECK(of_path.backup_id == (backup_id == 0 ? 3 : 1));
        siltstone_db_t *restored = siltstone_open(into, NULL, &error);
        siltstone_partition_t *old = siltstone_partition_open(restored, "users", NULL, false, &error);
        has(old, NULL, "a", backup_id == 0 ? "2" : "1");
        siltstone_partition_free(old);
        siltstone_db_free(restored);
    }
    refused(siltstone_backup_restore(engine, 1, into, NULL, &error), SILTSTONE_INVALID_ARGUMENT, "");
    CHECK(siltstone_backup_delete(engine, 2, &error));
    refused(siltstone_backup_delete(engine, 2, &error), SILTSTONE_INVALID_ARGUMENT, "2");
    CHECK(siltstone_backup_purge_old(engine, 1, &deleted, &error) && deleted == 1);
    refused(siltstone_backup_create(engine, NULL, NULL, &error), SILTSTONE_INVALID_ARGUMENT, "db is NULL");
    refused(siltstone_backup_info(engine, NULL, 2, &count, &error), SILTSTONE_INVALID_ARGUMENT, "infos is NULL");
    refused(siltstone_backup_purge_old(NULL, 1, NULL, &error), SILTSTONE_INVALID_ARGUMENT, "engine is NULL");
    siltstone_backup_engine_free(engine);
    siltstone_backup_engine_free(NULL);
}

// The next item, which is there at once.
static siltstone_feed_item_t *next(siltstone_changes_t *changes, siltstone_feed_item_kind_t kind) {
    siltstone_feed_item_t *item = NULL;
    CHECK(siltstone_changes_next(changes, 0, &item, &error) && item != NULL && siltstone_feed_item_kind(item) == kind);
    return item;
}

static bool ends(siltstone_changes_t *changes, uint64_t wait_ms) {
    siltstone_feed_item_t *item = NULL;
    return siltstone_changes_next(changes, wait_ms, &item, &error) && item == NULL;
}

// A commit of each kind of change: the feed has them in their order.
static siltstone_commit_t commit_all(const siltstone_db_t *db, const siltstone_partition_t *all) {
    static char large[10000];
    siltstone_batch_t *batch = siltstone_batch_create(db, &error);
    siltstone_commit_t commit;
    CHECK(siltstone_batch_clear(batch, all, &error) && siltstone_batch_put(batch, all, "p", 1, "", 0, &error));
    CHECK(siltstone_batch_merge(batch, all, "m", 1, "one", 3, &error) && siltstone_batch_delete(batch, all, "d", 1, &error));
    CHECK(siltstone_batch_delete_range(batch, all, "x", 1, "y", 1, &error));
    CHECK(siltstone_batch_delete_range(batch, all, "z", 1, NULL, 0, &error));
    CHECK(siltstone_batch_put(batch, all, "large", 5, large, sizeof large, &error));
    CHECK(siltstone_batch_commit(batch, true, &commit, &error));
    siltstone_batch_free(batch);
    return commit;
}

static void check_all(const siltstone_feed_item_t *item, siltstone_commit_t commit) {
    const struct { siltstone_change_kind_t kind; const char *key, *stop, *value; } expected[] = {
        {SILTSTONE_CHANGE_CLEAR, NULL, NULL, NULL},   {SILTSTONE_CHANGE_PUT, "p", NULL, ""},
        {SILTSTONE_CHANGE_MERGE, "m", NULL, "one"},   {SILTSTONE_CHANGE_DELETE, "d", NULL, NULL},
        {SILTSTONE_CHANGE_DELETE_RANGE, "x", "y", NULL}, {SILTSTONE_CHANGE_DELETE_RANGE, "z", NULL, NULL},
        {SILTSTONE_CHANGE_PUT, "large", NULL, NULL}};
    size_t count = sizeof expected / sizeof *expected, len;
    CHECK(siltstone_feed_item_count(item) == count && siltstone_feed_item_seq(item) == commit.seq);
    CHECK(siltstone_feed_item_first_seq(item) == commit.seq - count + 1 && siltstone_feed_item_partition(item, NULL) == NULL);
    for (size_t at = 0; at < count; at++) {
        siltstone_change_t change;
        siltstone_value_t *value = NULL;
        bool is_large = at == count - 1;
        CHECK(siltstone_feed_item_change(item, at, &change) && change.kind == expected[at].kind);
        CHECK(strcmp(change.partition, "all") == 0 && change.partition_len == 3 && change.is_large == is_large);
        CHECK(expected[at].key == NULL ? change.key == NULL : is(change.key, change.key_len, expected[at].key));
        CHECK(expected[at].stop == NULL ? change.stop == NULL : is(change.stop, change.stop_len, expected[at].stop));
        CHECK(expected[at].value == NULL ? change.value == NULL : is(change.value, change.value_len, expected[at].value));
        CHECK(siltstone_feed_item_value(item, at, &value, &error));
        CHECK((value != NULL) == (expected[at].value != NULL || is_large));
        CHECK(!is_large || (siltstone_value_data(value, &len) != NULL && len == 10000));
        siltstone_value_free(value);
    }
    siltstone_change_t change;
    siltstone_value_t *value;
    CHECK(!siltstone_feed_item_change(item, count, &change) && !siltstone_feed_item_change(NULL, 0, &change));
    refused(siltstone_feed_item_value(item, count, &value, &error), SILTSTONE_INVALID_ARGUMENT, "no change 7");
}

static void test_conditions(const siltstone_db_t *db, const siltstone_partition_t *users) {
    siltstone_commit_t first, second;
    bool is_set = false;
    CHECK(siltstone_compare_and_set(users, "seat", 4, NULL, 0, "ann", 3, false, &is_set, &first, &error) && is_set);
    CHECK(siltstone_compare_and_set(users, "seat", 4, NULL, 0, "bob", 3, false, &is_set, NULL, &error) && !is_set);
    CHECK(siltstone_compare_and_set(users, "seat", 4, "ann", 3, NULL, 0, true, &is_set, &second, &error) && is_set);
    CHECK(second.seq > first.seq);
    refused(siltstone_compare_and_set(NULL, "k", 1, NULL, 0, NULL, 0, false, &is_set, NULL, &error), SILTSTONE_INVALID_ARGUMENT, "partition is NULL");
    for (int is_stale = 0; is_stale < 2; is_stale++) {
        siltstone_batch_t *batch = siltstone_batch_create(db, &error);
        uint64_t at_most = is_stale ? first.seq : second.seq;
        CHECK(batch != NULL && siltstone_batch_require(batch, users, "seat", 4, at_most, &error));
        CHECK(siltstone_batch_put(batch, users, "a", 1, "1", 1, &error));
        bool is_done = siltstone_batch_commit(batch, false, NULL, &error);
        if (is_stale) refused(is_done, SILTSTONE_CONFLICT, "seat");
        else CHECK(is_done);
        siltstone_batch_free(batch);
    }
}

static void test_changes(const char *path, const siltstone_db_t *db, const siltstone_partition_t *users) {
    siltstone_partition_options_t *options = siltstone_partition_options_create();
    CHECK(siltstone_partition_options_set_merge_operator(options, "append", ",", 1, &error));
    siltstone_partition_options_set_large_values(options, 4096);
    siltstone_partition_t *all = siltstone_partition_open(db, "all", options, true, &error);
    siltstone_partition_options_free(options);
    options = siltstone_partition_options_create();
    siltstone_partition_options_set_logged(options, false);
    siltstone_partition_t *unlogged = siltstone_partition_open(db, "unlogged", options, true, &error);
    siltstone_partition_options_free(options);
    // Options that begin with the defaults would change what is fixed.
    options = siltstone_partition_options_create();
    refused(siltstone_partition_open(db, "unlogged", options, true, &error) != NULL, SILTSTONE_INVALID_ARGUMENT, "fixed at creation as false");
    siltstone_partition_options_free(options);
    refused(siltstone_partition_options_of(NULL, &error) != NULL, SILTSTONE_INVALID_ARGUMENT, "partition is NULL");
    options = siltstone_partition_options_of(unlogged, &error);
    siltstone_partition_options_set_block_bytes(options, 8192);
    refused(siltstone_partition_options_set_ttl(options, "values", &error), SILTSTONE_INVALID_ARGUMENT, "values");
    CHECK(siltstone_partition_options_set_ttl(options, "key:9999,ms", &error));
    siltstone_partition_options_set_metahive(options, true);
    siltstone_partition_options_set_metahive(options, false);
    CHECK(siltstone_partition_options_set_ttl(options, NULL, &error));
    siltstone_partition_options_set_large_values(options, UINT64_MAX);
    siltstone_partition_t *changed = siltstone_partition_open(db, "unlogged", options, true, &error);
    CHECK(changed != NULL);
    siltstone_partition_free(changed);
    siltstone_partition_options_free(options);
    siltstone_commit_t before, commit, last;
    CHECK(siltstone_put(users, "a", 1, "1", 1, true, &before, &error));
    siltstone_changes_t *changes = siltstone_changes_create(db, &before, NULL, NULL, 0, &error);
    siltstone_changes_t *of_users = siltstone_changes_create(db, &before, "users", "b", 1, &error);
    CHECK(changes != NULL && of_users != NULL && siltstone_changes_position(changes).seq <= before.seq && ends(changes, 0));
    commit = commit_all(db, all);
    siltstone_feed_item_t *item = next(changes, SILTSTONE_FEED_COMMIT);
    check_all(item, commit);
    siltstone_feed_item_free(item);
    CHECK(siltstone_changes_position(changes).seq == commit.seq && ends(changes, 1));

    // Numbers that the log lacks, and a filter that passes over all but one commit.
    put(unlogged, "a", "1");
    CHECK(siltstone_put(users, "b", 1, "2", 1, true, &last, &error));
    item = next(changes, SILTSTONE_FEED_UNLOGGED);
    CHECK(siltstone_feed_item_first_seq(item) == commit.seq + 1 && siltstone_feed_item_count(item) == 0);
    siltstone_feed_item_free(item);
    siltstone_feed_item_free(next(changes, SILTSTONE_FEED_COMMIT));
    siltstone_secondary_t *secondary = siltstone_secondary_open(path, NULL, &error);
    siltstone_changes_t *followed = siltstone_secondary_changes_create(secondary, &before, "users", NULL, 0, &error);
    siltstone_changes_t *again = siltstone_changes_create(db, &commit, "users", NULL, 0, &error);
    siltstone_changes_t *feeds[] = {of_users, followed, again};
    for (int at = 0; at < 3; at++) {
        // Unlogged numbers concern every filter.
        do {
            item = NULL;
            CHECK(feeds[at] != NULL && siltstone_changes_next(feeds[at], 10000, &item, &error) && item != NULL);
            if (siltstone_feed_item_kind(item) == SILTSTONE_FEED_COMMIT) break;
            siltstone_feed_item_free(item);
        } while (true);
        CHECK(siltstone_feed_item_seq(item) == last.seq && siltstone_feed_item_count(item) == 1);
        siltstone_feed_item_free(item);
        siltstone_changes_free(feeds[at]);
    }
    siltstone_secondary_free(secondary);

    siltstone_partition_free(all);
    CHECK(siltstone_drop_partition(db, "all", &error));
    item = next(changes, SILTSTONE_FEED_DROPPED);
    size_t len = 0;
    const char *dropped = siltstone_feed_item_partition(item, &len);
    CHECK(is(dropped, len, "all") && siltstone_feed_item_seq(item) == 0);
    siltstone_feed_item_free(item);
    siltstone_commit_t wrong = {UINT64_MAX, 0};
    refused(siltstone_changes_create(db, &wrong, NULL, NULL, 0, &error) != NULL, SILTSTONE_INVALID_ARGUMENT, "no sequence number");
    wrong = (siltstone_commit_t){before.seq, before.epoch + 1};
    refused(siltstone_changes_create(db, &wrong, NULL, NULL, 0, &error) != NULL, SILTSTONE_SESSION_LOST, "history");
    refused(siltstone_changes_create(NULL, NULL, NULL, NULL, 0, &error) != NULL, SILTSTONE_INVALID_ARGUMENT, "db is NULL");
    refused(siltstone_changes_next(NULL, 0, &item, &error), SILTSTONE_INVALID_ARGUMENT, "changes is NULL");
    CHECK(siltstone_changes_position(NULL).seq == 0 && siltstone_feed_item_kind(NULL) == SILTSTONE_FEED_UNKNOWN);
    CHECK(siltstone_close(db, &error));
    refused(siltstone_changes_next(changes, 0, &item, &error), SILTSTONE_CLOSED, "closed");
    siltstone_changes_free(changes);
    siltstone_partition_free(unlogged);
}

// The database at `path` is closed.
static void test_repair(const char *path) {
    char into[4096];
    snprintf(into, sizeof into, "%s repaired", path);
    siltstone_options_t *options = siltstone_options_create();
    siltstone_repair_report_t report;
    CHECK(siltstone_repair(path, into, options, &report, &error) && report.is_complete && report.entries > 1);
    CHECK(report.damaged == 0 && report.repaired == 0 && report.doubtful == 0);
    siltstone_options_free(options);
    refused(siltstone_repair(path, into, NULL, NULL, &error), SILTSTONE_INVALID_ARGUMENT, "");
    refused(siltstone_repair(NULL, into, NULL, NULL, &error), SILTSTONE_INVALID_ARGUMENT, "path is NULL");
    siltstone_db_t *db = siltstone_open(into, NULL, &error);
    siltstone_partition_t *users = siltstone_partition_open(db, "users", NULL, false, &error);
    CHECK(users != NULL);
    has(users, NULL, "b", "2");
    siltstone_partition_free(users);
    // A build without the feature names it.
    siltstone_partition_options_t *zstd = siltstone_partition_options_create();
    siltstone_partition_options_set_zstd(zstd);
    users = siltstone_partition_open(db, "zstd", zstd, true, &error);
    if (users == NULL) refused(false, SILTSTONE_UNSUPPORTED, "zstd");
    siltstone_partition_free(users);
    siltstone_partition_options_free(zstd);
    siltstone_db_free(db);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    siltstone_db_t *db = siltstone_open(argv[1], NULL, &error);
    siltstone_partition_t *users = siltstone_partition_open(db, "users", NULL, true, &error);
    CHECK(users != NULL);
    test_resources(argv[1]);
    test_backups(argv[1], db, users);
    test_conditions(db, users);
    test_changes(argv[1], db, users);
    siltstone_partition_free(users);
    siltstone_db_free(db);
    test_repair(argv[1]);
    puts("all checks passed");
    return 0;
}
