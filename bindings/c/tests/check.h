// What the tests in C share: checks that end the program, and a few calls with the one error that a program has.

#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "siltstone.h"

#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #condition);   \
            if (error != NULL) fprintf(stderr, "%s\n", siltstone_error_message(error)); \
            exit(1);                                                              \
        }                                                                         \
    } while (0)

// The error of the last call that failed. One variable for all, as a program has it.
static siltstone_error_t *error = NULL;

// The call in `line` failed with `kind`, and the error says `text`.
static void refused_at(int line, bool succeeded, siltstone_error_kind_t kind, const char *text) {
    CHECK(error != NULL || (fprintf(stderr, "of line %d\n", line), false));
    if (succeeded || siltstone_error_kind(error) != kind || strstr(siltstone_error_message(error), text) == NULL) {
        fprintf(stderr, "%s:%d: not kind %d with \"%s\": %s\n", __FILE__, line, kind, text, siltstone_error_message(error));
        exit(1);
    }
    siltstone_error_free(error);
    error = NULL;
}

#define refused(succeeded, kind, text) refused_at(__LINE__, succeeded, kind, text)

static bool is(const void *data, size_t len, const char *text) {
    return data != NULL && len == strlen(text) && memcmp(data, text, len) == 0;
}

// The value of `key` is `text`; NULL: there is none.
static void has(const siltstone_partition_t *of, const siltstone_snapshot_t *at, const char *key, const char *text) {
    siltstone_value_t *value = NULL;
    CHECK(siltstone_get(of, at, key, strlen(key), &value, &error));
    size_t len = 0;
    const void *data = siltstone_value_data(value, &len);
    CHECK(text == NULL ? value == NULL && data == NULL : is(data, len, text));
    bool exists = text == NULL;
    CHECK(siltstone_contains(of, at, key, strlen(key), &exists, &error) && exists == (text != NULL));
    siltstone_value_free(value);
}

static void put(const siltstone_partition_t *to, const char *key, const char *value) {
    CHECK(siltstone_put(to, key, strlen(key), value, strlen(value), false, NULL, &error));
}

#endif
