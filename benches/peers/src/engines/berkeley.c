/*
 * Berkeley DB behind plain functions. Its own interface is a table of function pointers inside a
 * structure whose layout belongs to the header, which only C can read.
 *
 * Each function returns 0 or a number for bdb_error; BDB_NOT_FOUND stands for no entry. A call that
 * lost a deadlock is repeated here, since it had no effect.
 */
#include <db.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BDB_NOT_FOUND = 1 };

struct bdb {
    DB_ENV *env;
    DB *db;
};

struct bdb_slice {
    const void *bytes;
    uint32_t len;
};

struct bdb_entry {
    struct bdb_slice key;
    struct bdb_slice value;
};

static DBT dbt_of(struct bdb_slice slice) {
    DBT dbt;
    memset(&dbt, 0, sizeof dbt);
    dbt.data = (void *)slice.bytes;
    dbt.size = slice.len;
    return dbt;
}

static int told(int code) { return code == DB_NOTFOUND ? BDB_NOT_FOUND : code; }

const char *bdb_error(int code) { return db_strerror(code); }

void bdb_version(int *numbers) { db_version(&numbers[0], &numbers[1], &numbers[2]); }

void bdb_close(struct bdb *bdb) {
    if (bdb->db != NULL) bdb->db->close(bdb->db, 0);
    if (bdb->env != NULL) bdb->env->close(bdb->env, 0);
    free(bdb);
}

/* A handle that was made is stored even if a later step fails; bdb_close takes it. */
int bdb_open(struct bdb **out, const char *folder, uint32_t cache_bytes, uint32_t page_bytes,
             uint32_t log_bytes) {
    struct bdb *bdb = calloc(1, sizeof *bdb);
    int code;
    if (bdb == NULL) return 12; /* ENOMEM */
    *out = bdb;
    if ((code = db_env_create(&bdb->env, 0)) != 0) return code;
    DB_ENV *env = bdb->env;
    uint32_t parts = DB_INIT_MPOOL | DB_INIT_LOG | DB_INIT_LOCK | DB_INIT_TXN;
    if ((code = env->set_cachesize(env, 0, cache_bytes, 1)) != 0) return code;
    if ((code = env->set_lg_max(env, log_bytes)) != 0) return code;
    if ((code = env->set_lk_detect(env, DB_LOCK_DEFAULT)) != 0) return code;
    if ((code = env->log_set_config(env, DB_LOG_AUTO_REMOVE, 1)) != 0) return code;
    code = env->open(env, folder, DB_CREATE | DB_PRIVATE | DB_THREAD | parts, 0644);
    if (code != 0) return code;
    if ((code = db_create(&bdb->db, env, 0)) != 0) return code;
    DB *db = bdb->db;
    if ((code = db->set_pagesize(db, page_bytes)) != 0) return code;
    return db->open(db, NULL, "bench.db", NULL, DB_BTREE, DB_CREATE | DB_THREAD | DB_AUTO_COMMIT,
                    0644);
}

/* All entries in one transaction; an entry whose value has no bytes pointer is deleted. */
int bdb_write(struct bdb *bdb, const struct bdb_entry *entries, size_t count, int synced) {
    for (;;) {
        DB_TXN *txn;
        uint32_t flags = synced ? DB_TXN_SYNC : DB_TXN_WRITE_NOSYNC;
        int code = bdb->env->txn_begin(bdb->env, NULL, &txn, flags);
        if (code != 0) return code;
        for (size_t n = 0; n < count && code == 0; n++) {
            DBT key = dbt_of(entries[n].key);
            DBT value = dbt_of(entries[n].value);
            if (value.data != NULL) {
                code = bdb->db->put(bdb->db, txn, &key, &value, 0);
            } else {
                code = bdb->db->del(bdb->db, txn, &key, 0);
                if (code == DB_NOTFOUND) code = 0;
            }
        }
        if (code == 0) return txn->commit(txn, 0);
        txn->abort(txn);
        if (code != DB_LOCK_DEADLOCK) return code;
    }
}

/* Copies the value to buf and tells its length; one that does not fit gives DB_BUFFER_SMALL,
 * which bdb_is_small knows, and its length. */
int bdb_get(struct bdb *bdb, struct bdb_slice key_slice, void *buf, uint32_t buf_len,
            uint32_t *len) {
    int code;
    do {
        DBT key = dbt_of(key_slice);
        DBT value;
        memset(&value, 0, sizeof value);
        value.data = buf;
        value.ulen = buf_len;
        value.flags = DB_DBT_USERMEM;
        code = bdb->db->get(bdb->db, NULL, &key, &value, 0);
        *len = value.size;
    } while (code == DB_LOCK_DEADLOCK);
    return told(code);
}

int bdb_is_small(int code) { return code == DB_BUFFER_SMALL; }

int bdb_cursor(struct bdb *bdb, DBC **out) { return bdb->db->cursor(bdb->db, NULL, out, 0); }

void bdb_cursor_close(DBC *cursor) { cursor->close(cursor); }

enum { MOVE_FIRST, MOVE_LAST, MOVE_NEXT, MOVE_PREVIOUS, MOVE_SEEK };

/* Moves and shows the entry, whose bytes live until the cursor moves; MOVE_SEEK reads the key. */
int bdb_move(DBC *cursor, int move, struct bdb_entry *entry) {
    static const uint32_t moves[] = {DB_FIRST, DB_LAST, DB_NEXT, DB_PREV, DB_SET_RANGE};
    struct bdb_slice none = {NULL, 0};
    int code;
    DBT key;
    DBT value;
    do {
        key = dbt_of(move == MOVE_SEEK ? entry->key : none);
        value = dbt_of(none);
        code = cursor->get(cursor, &key, &value, moves[move]);
    } while (code == DB_LOCK_DEADLOCK);
    if (code != 0) return told(code);
    entry->key.bytes = key.data;
    entry->key.len = key.size;
    entry->value.bytes = value.data;
    entry->value.len = value.size;
    return 0;
}

/* Writes all dirty pages and the log; log files that nobody needs go. */
int bdb_checkpoint(struct bdb *bdb) {
    return bdb->env->txn_checkpoint(bdb->env, 0, 0, DB_FORCE);
}

/* Gives free pages back to the file system. */
int bdb_compact(struct bdb *bdb) {
    int code = bdb->db->compact(bdb->db, NULL, NULL, NULL, NULL, DB_FREE_SPACE, NULL);
    return code != 0 ? code : bdb_checkpoint(bdb);
}
