/* Errors: each thread has its own message, a caller can prefix it, and other calls keep
 * it. */
#include "err.h"

#include <errno.h>
#include <pthread.h>

#include "check.h"

TEST(a_message_grows_to_the_left)
{
    assert_int_equal(ps_err_set(PS_ERR_IO, "no %s", "disk"), PS_ERR_IO);
    assert_int_equal(ps_err_prefix(PS_ERR_PEER, "worker %d", 3), PS_ERR_PEER);
    assert_string_equal(ps_err_message(), "worker 3: no disk");
    errno = ENOENT;
    ps_err_errno(PS_ERR_IO, "a.yaml");
    assert_string_equal(ps_err_message(), "a.yaml: No such file or directory");
    ps_err_set(PS_ERR_IO, "%s again", ps_err_message());
    assert_string_equal(ps_err_message(), "a.yaml: No such file or directory again");
    assert_string_equal(ps_err_name(PS_ERR_NUMERIC), "NUMERIC");
}

static void *fail_elsewhere(void *saved)
{
    ps_err_set(PS_ERR_TIMEOUT, "elsewhere");
    *(ps_err_saved *)saved = ps_err_save(PS_ERR_TIMEOUT);
    return NULL;
}

TEST(a_failure_outlives_others)
{
    ps_err_saved theirs;
    pthread_t thread;
    char longest[2 * PS_ERR_MESSAGE_BYTES];
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    ps_err_set(PS_ERR_NET, "%s", longest);
    const ps_err_saved first = ps_err_save(PS_ERR_NET);
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, &theirs), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(ps_err_restore(&theirs), PS_ERR_TIMEOUT);
    assert_string_equal(ps_err_message(), "elsewhere");
    assert_int_equal(ps_err_restore(&first), PS_ERR_NET);
    assert_int_equal(strlen(ps_err_message()), PS_ERR_MESSAGE_BYTES - 1);
}
