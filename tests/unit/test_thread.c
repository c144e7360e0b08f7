/* Threads carry the names that top and gdb show. */
#include "thread.h"

#include <semaphore.h>

#include "check.h"

static void *wait_for_post(void *arg)
{
    sem_wait(arg);
    return arg;
}

static void expect_name(const char *given, const char *shown)
{
    sem_t end;
    ps_thread thread;
    char name[16];
    void *result;
    sem_init(&end, 0, 0);
    assert_ok(ps_thread_start(&thread, given, wait_for_post, &end));
    assert_int_equal(pthread_getname_np(thread.id, name, sizeof name), 0);
    sem_post(&end);
    pthread_join(thread.id, &result);
    sem_destroy(&end);
    assert_string_equal(name, shown);
    assert_ptr_equal(result, &end);
}

TEST(a_thread_has_its_name)
{
    expect_name("exchange", "exchange");
}

TEST(a_long_name_is_cut)
{
    expect_name("a name of more bytes", "a name of more ");
}
