/* What is dropped takes no room: a job may set and drop more keys than fit. */
#include "coord_store.h"

#include "check.h"

enum { ROOM = 1 << 20 }; // keys

static ps_coord_store store;

static const char *key_of(uint64_t i)
{
    static char text[32];
    snprintf(text, sizeof text, "buffers/%llu", (unsigned long long)i);
    return text;
}

static int empty(void **state)
{
    (void)state;
    ps_coord_store_fini(&store);
    return 0;
}

TEST_WITH(keys_come_and_go, NULL, empty)
{
    const void *value;
    size_t bytes;
    for (uint64_t i = 0; i < 10000; i++) {
        assert_ok(ps_coord_store_set(&store, key_of(i), &i, sizeof i));
        assert_int_equal(store.n_keys, 1);
        ps_coord_store_drop(&store, key_of(i));
        ps_coord_store_drop(&store, key_of(i)); // there is none
        assert_int_equal(store.n_keys + store.bytes, 0);
        assert_false(ps_coord_store_get(&store, key_of(i), &value, &bytes));
    }
}

/* The others of a bucket stay. */
TEST_WITH(one_of_many_goes, NULL, empty)
{
    enum { N = 4 * PS_COORD_STORE_BUCKETS };
    for (uint64_t i = 0; i < N; i++)
        assert_ok(ps_coord_store_set(&store, key_of(i), &i, sizeof i));
    for (uint64_t i = 0; i < N; i += 3)
        ps_coord_store_drop(&store, key_of(i));
    for (uint64_t i = 0; i < N; i++) {
        const void *value;
        size_t bytes;
        assert_int_equal(ps_coord_store_get(&store, key_of(i), &value, &bytes),
                         i % 3 != 0);
        if (i % 3) assert_memory_equal(value, &i, sizeof i);
    }
    assert_int_equal(store.n_keys, N - (N + 2) / 3);
    assert_int_equal(store.bytes, store.n_keys * sizeof(uint64_t));
}

/* It is full, and a key that goes makes room for another one. */
TEST_WITH(a_full_one_takes_no_more, NULL, empty)
{
    assert_ok(ps_coord_store_set(&store, "one of them", "", 0));
    store.n_keys = ROOM;
    assert_error(ps_coord_store_set(&store, "one", "", 0), PS_ERR_PEER, "too many keys");
    ps_coord_store_drop(&store, "one of them");
    assert_ok(ps_coord_store_set(&store, "one", "", 0));
    assert_int_equal(store.n_keys, ROOM);
}
