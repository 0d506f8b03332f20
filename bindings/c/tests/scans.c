// Listeners, scans of transactions, and streams of entries. tests/programs.rs compiles and runs it.

#include <stdatomic.h>

#include "check.h"

// What a listener has seen. Several threads use it.
struct seen {
    atomic_int flushed, compacted, errors, others, destroyed, refused;
    atomic_bool knows_partition, has_bytes;
    siltstone_db_t *_Atomic db;
};

static void on_event(void *of, const siltstone_event_t *event) {
    struct seen *seen = of;
    if (event->partition == NULL || event->text == NULL) abort();
    switch (event->kind) {
        case SILTSTONE_EVENT_FLUSHED:
            atomic_fetch_add(&seen->flushed, 1);
            if (strcmp(event->partition, "users") == 0) atomic_store(&seen->knows_partition, true);
            if (event->bytes > 0) atomic_store(&seen->has_bytes, true);
            break;
        case SILTSTONE_EVENT_COMPACTED:
            atomic_fetch_add(&seen->compacted, 1);
            if (event->level_to == 0 || event->level_to < event->level_from) abort();
            break;
        case SILTSTONE_EVENT_BACKGROUND_ERROR:
            atomic_fetch_add(&seen->errors, 1);
            break;
        default:
            atomic_fetch_add(&seen->others, 1);
    }
    // A listener calls nothing of the library, as a hook.
    siltstone_db_t *db = atomic_load(&seen->db);
    if (db != NULL && !siltstone_flush(db, NULL)) atomic_fetch_add(&seen->refused, 1);
}

static void destroy(void *of) {
    atomic_fetch_add(&((struct seen *)of)->destroyed, 1);
}

static void listeners(const char *path) {
    struct seen seen = {0};
    refused(siltstone_event_listener_create(&seen, NULL, destroy, &error) != NULL, SILTSTONE_INVALID_ARGUMENT, "on_event is NULL");
    siltstone_event_listener_t *listener = siltstone_event_listener_create(&seen, on_event, destroy, &error);
    CHECK(listener != NULL);
    siltstone_options_t *options = siltstone_options_create();
    refused(siltstone_options_add_event_listener(options, NULL, &error), SILTSTONE_INVALID_ARGUMENT, "listener is NULL");
    CHECK(siltstone_options_add_event_listener(options, listener, &error));
    siltstone_event_listener_free(listener);
    siltstone_db_t *db = siltstone_open(path, options, &error);
    CHECK(db != NULL);
    siltstone_options_free(options);
    siltstone_partition_t *users = siltstone_partition_open(db, "users", NULL, true, &error);
    CHECK(users != NULL);
    atomic_store(&seen.db, db);
    for (int round = 0; round < 2; round++) {
        put(users, "a", "1");
        put(users, "b", "2");
        CHECK(siltstone_flush(db, &error));
    }
    CHECK(siltstone_compact(users, NULL, 0, NULL, 0, &error));
    CHECK(siltstone_wait_idle(db, &error));
    CHECK(atomic_load(&seen.flushed) >= 2 && atomic_load(&seen.compacted) >= 1);
    CHECK(atomic_load(&seen.knows_partition) && atomic_load(&seen.has_bytes));
    CHECK(atomic_load(&seen.refused) >= 3 && atomic_load(&seen.errors) == 0 && atomic_load(&seen.destroyed) == 0);
    CHECK(siltstone_close(db, &error));
    siltstone_partition_free(users);
    siltstone_db_free(db);
    CHECK(atomic_load(&seen.destroyed) == 1);
}

// The entries of a scan, as "key=value " each.
static void scanned(siltstone_transaction_t *of, const siltstone_partition_t *in, const char *start, const char *stop,
                    bool reverse, const char *expected) {
    char text[256] = "";
    size_t start_len = start == NULL ? 0 : strlen(start), stop_len = stop == NULL ? 0 : strlen(stop);
    siltstone_scan_t *scan = siltstone_transaction_scan(of, in, start, start_len, stop, stop_len, reverse, &error);
    CHECK(scan != NULL);
    size_t key_len = 0, value_len = 0;
    CHECK(siltstone_scan_key(scan, &key_len) == NULL && siltstone_scan_value(scan, &value_len) == NULL);
    bool found = false;
    for (;;) {
        CHECK(siltstone_scan_next(scan, &found, &error));
        if (!found) break;
        const char *key = siltstone_scan_key(scan, &key_len), *value = siltstone_scan_value(scan, &value_len);
        size_t end = strlen(text);
        snprintf(text + end, sizeof text - end, "%.*s=%.*s ", (int)key_len, key, (int)value_len, value);
    }
    CHECK(siltstone_scan_key(scan, &key_len) == NULL);
    siltstone_scan_free(scan);
    if (strcmp(text, expected) != 0) {
        fprintf(stderr, "scanned \"%s\", not \"%s\"\n", text, expected);
        exit(1);
    }
}

static void scans(siltstone_db_t *db, siltstone_partition_t *users) {
    put(users, "a", "1");
    put(users, "c", "3");
    siltstone_transaction_t *transaction = siltstone_transaction_begin(db, &error);
    CHECK(siltstone_transaction_put(transaction, users, "b", 1, "2", 1, &error));
    CHECK(siltstone_transaction_delete(transaction, users, "c", 1, &error));
    // After the begin: not seen.
    put(users, "d", "4");
    scanned(transaction, users, NULL, NULL, false, "a=1 b=2 ");
    scanned(transaction, users, NULL, NULL, true, "b=2 a=1 ");
    scanned(transaction, users, "b", "c", false, "b=2 ");
    refused(siltstone_transaction_scan(NULL, users, NULL, 0, NULL, 0, false, &error) != NULL, SILTSTONE_INVALID_ARGUMENT,
            "transaction is NULL");
    refused(siltstone_scan_next(NULL, NULL, &error), SILTSTONE_INVALID_ARGUMENT, "scan is NULL");
    siltstone_scan_free(NULL);
    // What was scanned counts as read: "d" lies in a range that was passed.
    refused(siltstone_transaction_commit(transaction, false, NULL, &error), SILTSTONE_CONFLICT, "");
    has(users, NULL, "b", NULL);
}

// Bytes in memory that are written, and then read.
struct stream {
    char bytes[4096];
    size_t len, at, writes;
    bool fails;
};

static bool take(void *of, const void *data, size_t len) {
    struct stream *stream = of;
    stream->writes++;
    if (stream->fails || stream->len + len > sizeof stream->bytes) return false;
    memcpy(stream->bytes + stream->len, data, len);
    stream->len += len;
    return true;
}

static bool lend(void *of, void *buffer, size_t len, size_t *count) {
    struct stream *stream = of;
    if (stream->fails) return false;
    size_t left = stream->len - stream->at;
    // Small pieces, as a pipe may have.
    *count = left < len ? left : len;
    if (*count > 7) *count = 7;
    memcpy(buffer, stream->bytes + stream->at, *count);
    stream->at += *count;
    return true;
}

static void streams(siltstone_db_t *db) {
    struct stream stream = {0};
    uint64_t entries = 9;
    CHECK(siltstone_export_stream(db, "users", SILTSTONE_STREAM_CHECKED, take, &stream, &entries, &error));
    CHECK(entries == 3 && stream.len > 0);
    CHECK(siltstone_import_stream(db, "copy", false, lend, &stream, &entries, &error) && entries == 3);
    siltstone_partition_t *copy = siltstone_partition_open(db, "copy", NULL, false, &error);
    CHECK(copy != NULL);
    has(copy, NULL, "a", "1");
    has(copy, NULL, "d", "4");
    // A changed byte is found, and the functions may fail.
    stream.bytes[stream.len / 2] ^= 1;
    stream.at = 0;
    refused(siltstone_import_stream(db, "other", false, lend, &stream, &entries, &error), SILTSTONE_CORRUPTION, "");
    stream.fails = true;
    refused(siltstone_import_stream(db, "other", true, lend, &stream, &entries, &error), SILTSTONE_IO, "function that reads has failed");
    stream.writes = 0;
    refused(siltstone_export_stream(db, NULL, 0, take, &stream, &entries, &error), SILTSTONE_IO, "function that writes has failed");
    CHECK(stream.writes == 1);
    refused(siltstone_export_stream(db, NULL, 7, take, &stream, &entries, &error), SILTSTONE_INVALID_ARGUMENT, "no format 7");
    refused(siltstone_export_stream(db, NULL, 0, NULL, NULL, NULL, &error), SILTSTONE_INVALID_ARGUMENT, "write is NULL");
    refused(siltstone_import_stream(db, NULL, false, NULL, NULL, NULL, &error), SILTSTONE_INVALID_ARGUMENT, "read is NULL");
    struct stream text = {0};
    CHECK(siltstone_export_stream(db, "copy", SILTSTONE_STREAM_BERKELEY_TEXT, take, &text, NULL, &error));
    CHECK(text.len > 8 && memcmp(text.bytes, "VERSION=", 8) == 0);
    siltstone_partition_free(copy);
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    listeners(arguments[1]);
    siltstone_db_t *db = siltstone_open(arguments[1], NULL, &error);
    CHECK(db != NULL);
    siltstone_partition_t *users = siltstone_partition_open(db, "users", NULL, true, &error);
    CHECK(users != NULL && siltstone_clear(users, false, NULL, &error));
    scans(db, users);
    streams(db);
    CHECK(siltstone_close(db, &error));
    siltstone_partition_free(users);
    siltstone_db_free(db);
    puts("all checks passed");
    return 0;
}
