// First steps with siltstone in C: a partition, a batch, a scan, a transaction and a clean close.
//
//     cc example.c -lsiltstone -o example && ./example folder

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "siltstone.h"

// Ends the program with the text of an error.
static void fail(siltstone_error_t *error) {
    fprintf(stderr, "%s\n", siltstone_error_message(error));
    siltstone_error_free(error);
    exit(1);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    siltstone_error_t *error = NULL;
    siltstone_db_t *db = siltstone_open(argv[1], NULL, &error);
    if (db == NULL) fail(error);
    siltstone_partition_t *users = siltstone_partition_open(db, "users", NULL, true, &error);
    if (users == NULL) fail(error);

    // Both users appear together, and are on the device when the call returns.
    siltstone_batch_t *batch = siltstone_batch_create(db, &error);
    if (batch == NULL) fail(error);
    if (!siltstone_batch_put(batch, users, "alice", 5, "admin", 5, &error)) fail(error);
    if (!siltstone_batch_put(batch, users, "bob", 3, "author", 6, &error)) fail(error);
    if (!siltstone_batch_commit(batch, true, NULL, &error)) fail(error);
    siltstone_batch_free(batch);

    // Keys and values are lent until the next move.
    siltstone_iter_t *iter = siltstone_iter_create(users, NULL, NULL, 0, NULL, 0, &error);
    if (iter == NULL) fail(error);
    int count = 0;
    bool moved = siltstone_iter_seek_to_first(iter, &error);
    for (; moved && siltstone_iter_valid(iter); moved = siltstone_iter_next(iter, &error)) {
        size_t key_len, value_len;
        const char *key = siltstone_iter_key(iter, &key_len);
        const char *value = siltstone_iter_value(iter, &value_len, &error);
        if (value == NULL) fail(error);
        printf("%.*s = %.*s\n", (int)key_len, key, (int)value_len, value);
        count++;
    }
    if (!moved) fail(error);
    siltstone_iter_free(iter);

    // Refused if another writer changes alice meanwhile; then repeat the whole work.
    siltstone_transaction_t *transaction = siltstone_transaction_begin(db, &error);
    if (transaction == NULL) fail(error);
    siltstone_value_t *value = NULL;
    if (!siltstone_transaction_get(transaction, users, "alice", 5, false, &value, &error)) fail(error);
    if (value != NULL && !siltstone_transaction_delete(transaction, users, "alice", 5, &error)) fail(error);
    siltstone_value_free(value);
    if (!siltstone_transaction_commit(transaction, false, NULL, &error)) fail(error);
    printf("%d users, and no conflict\n", count);

    // Reports what freeing alone would hide.
    if (!siltstone_close(db, &error)) fail(error);
    siltstone_partition_free(users);
    siltstone_db_free(db);
    return 0;
}
