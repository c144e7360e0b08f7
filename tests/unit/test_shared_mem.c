/* Memory that processes share: sizes around a large page, and nothing left behind; lists
 * that grow. */
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "mem.h"

enum { PAGE = 4096, LARGE = 2 << 20 };

static const size_t sizes[] = {0,         1,     PAGE,      PAGE + 1,
                               LARGE - 1, LARGE, LARGE + 1, 5 * LARGE + PAGE};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

static bool is_mapped(const void *p)
{
    return msync((void *)((uintptr_t)p / PAGE * PAGE), PAGE, MS_ASYNC) == 0;
}

TEST(both_see_the_same)
{
    for (int i = 0; i < N_SIZES; i++) {
        const size_t bytes = sizes[i], last = bytes > 0 ? bytes - 1 : 0;
        ps_shared_mem mine, theirs;
        assert_ok(ps_shared_mem_init(&mine, bytes, "memory"));
        assert_ok(ps_shared_mem_attach(&theirs, dup(mine.fd), bytes, "memory"));
        unsigned char *a = mine.base, *b = theirs.base;
        assert_int_equal(mine.bytes, bytes);
        assert_int_equal((uintptr_t)a % (bytes < LARGE ? PAGE : LARGE), 0);
        assert_int_equal((uintptr_t)b % (bytes < LARGE ? PAGE : LARGE), 0);
        for (size_t k = 0; k < bytes; k++)
            if (a[k] != 0) fail_msg("byte %zu is not 0", k);
        a[0] = 7;
        assert_int_equal(b[0], 7);
        b[last] = 9;
        assert_int_equal(a[last], 9);
        ps_shared_mem_fini(&mine);
        assert_int_equal(b[last], 9);
        ps_shared_mem_fini(&theirs);
        assert_false(is_mapped(a) || is_mapped(a + last));
        assert_false(is_mapped(b) || is_mapped(b + last));
    }
}

TEST(an_arena_shows_another)
{
    for (int i = 1; i < N_SIZES; i++) {
        ps_shared_mem mine, theirs;
        assert_ok(ps_shared_mem_init(&mine, sizes[i], "memory"));
        assert_ok(ps_shared_mem_init(&theirs, sizes[i], "memory"));
        unsigned char *a = mine.base, *b = theirs.base;
        const size_t last = sizes[i] - 1;
        memset(a, 1, sizes[i]);
        memset(b, 2, sizes[i]);
        assert_ok(ps_shared_mem_show(&mine, &theirs, "memory"));
        assert_ptr_equal(mine.base, a);
        assert_memory_equal(a, b, sizes[i]);
        b[last] = 9;
        assert_int_equal(a[last], 9);
        ps_shared_mem_fini(&theirs);
        assert_int_equal(a[last], 9);
        ps_shared_mem_fini(&mine);
        assert_false(is_mapped(a) || is_mapped(a + last));
    }
}

TEST(another_size_is_refused)
{
    ps_shared_mem mine, theirs;
    assert_ok(ps_shared_mem_init(&mine, LARGE + 1, "memory"));
    static const size_t others[] = {PAGE, LARGE, 2 * LARGE + 1};
    for (int i = 0; i < 3; i++) {
        assert_error(ps_shared_mem_attach(&theirs, dup(mine.fd), others[i], "memory"),
                     PS_ERR_PEER, "memory: the segment has 4194304 bytes");
        ps_shared_mem_fini(&theirs);
    }
    ps_shared_mem_fini(&mine);
    assert_int_not_equal(ps_shared_mem_init(&mine, SIZE_MAX, "memory"), PS_OK);
    ps_shared_mem_fini(&mine);
}

/* Where twice as many cannot be counted, the list stays as it is. */
TEST(a_list_grows_as_far_as_it_can_be_counted)
{
    uint16_t *list = NULL;
    uint32_t room = 0;
    for (uint32_t n = 0; n < 100; n++) {
        assert_ok(ps_mem_room(&list, n, &room, sizeof *list, "a list"));
        assert_true(n < room && list[n] == 0);
        list[n] = (uint16_t)(n + 1);
    }
    for (uint16_t n = 0; n < 100; n++)
        assert_int_equal(list[n], n + 1);
    uint16_t *const before = list;
    room = UINT32_C(1) << 31;
    assert_error(ps_mem_room(&list, room, &room, sizeof *list, "a list"), PS_ERR_NOMEM,
                 "a list: no memory for a list of more than 2147483648");
    assert_ptr_equal(list, before);
    assert_int_equal(room, UINT32_C(1) << 31);
    free(list);
}
