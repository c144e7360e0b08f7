/* What a launcher is told: whole lines, or nothing; and nothing that it does ends or
 * holds this process. */
#include "tell.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "err.h"
#include "log.h"

static int pipe_ends[2];

static const char *tell_where(int fd)
{
    static char text[64];
    struct stat s;
    assert_int_equal(fstat(fd, &s), 0);
    snprintf(text, sizeof text, "%d:%llu", fd, (unsigned long long)s.st_ino);
    return text;
}

static int open_pipe(void **state)
{
    (void)state;
    if (pipe(pipe_ends) != 0) return -1;
    fcntl(pipe_ends[0], F_SETFL, O_NONBLOCK);
    ps_tell_start(tell_where(pipe_ends[1]));
    return 0;
}

static int close_pipe(void **state)
{
    (void)state;
    close(pipe_ends[0]);
    return close(pipe_ends[1]);
}

static const char *take(void)
{
    static char text[1 << 17];
    const ssize_t n = read(pipe_ends[0], text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

TEST_WITH(an_event_is_a_line, open_pipe, close_pipe)
{
    ps_tell("rejoin", "{}");
    ps_tell("joined", "{s:s, s:i}", "role", "a \"b\"\n", "rank", 3);
    assert_string_equal(
        take(), "{\"event\":\"rejoin\"}\n"
                "{\"event\":\"joined\",\"role\":\"a \\\"b\\\"\\n\",\"rank\":3}\n");
}

TEST_WITH(a_failure_is_told, open_pipe, close_pipe)
{
    ps_log_failure("failed", ps_err_set(PS_ERR_IO, "a\x01 \xff"));
    assert_string_equal(take(),
                        "{\"event\":\"failure\",\"kind\":\"IO\",\"passing\":false,"
                        "\"reason\":\"a\\\\x01 \\\\xff\"}\n");
    char quotes[PS_ERR_MESSAGE_BYTES];
    memset(quotes, '"', sizeof quotes);
    quotes[sizeof quotes - 1] = '\0';
    ps_log_failure("failed", ps_err_set(PS_ERR_PEER, "%s", quotes));
    const char *told = take();
    assert_int_equal(strlen(told), 2 * (sizeof quotes - 1) +
                                       strlen("{\"event\":\"failure\",\"kind\":\"PEER\","
                                              "\"passing\":true,\"reason\":\"\"}\n"));
}

TEST_WITH(what_is_no_line_is_not_told, open_pipe, close_pipe)
{
    char text[PIPE_BUF];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    ps_tell("failure", "{s:s}", "reason", text);
    ps_tell("failure", "{s:s}", "reason", "\xff");
    assert_string_equal(take(), "");
    const size_t rest = strlen("{\"event\":\"failure\",\"reason\":\"\"}\n");
    text[sizeof text - rest] = '\0';
    ps_tell("failure", "{s:s}", "reason", text);
    assert_int_equal(strlen(take()), sizeof text);
}

TEST_WITH(another_file_gets_nothing, open_pipe, close_pipe)
{
    int other[2];
    char wrong[64];
    FILE *file = tmpfile();
    assert_int_equal(pipe(other), 0);
    snprintf(wrong, sizeof wrong, "%d%s", other[1],
             strchr(tell_where(pipe_ends[1]), ':'));
    const char *const none[] = {
        NULL, "", "x", "1", "1:", "-1:0", "99999999999:1", "1000000:1", wrong};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        ps_tell_start(none[i]);
    ps_tell_start(tell_where(fileno(file)));
    ps_tell("rejoin", "{}");
    assert_string_equal(take(), "{\"event\":\"rejoin\"}\n"); // as before
    assert_int_equal(ftell(file), 0);
    fclose(file);
    close(other[0]);
    close(other[1]);
}

TEST_WITH(a_launcher_that_does_not_read, open_pipe, close_pipe)
{
    const int held = fcntl(pipe_ends[1], F_GETPIPE_SZ);
    for (int i = 0; i < held / 8; i++)
        ps_tell("rejoin", "{}");
    const char *told = take();
    const size_t line = strlen("{\"event\":\"rejoin\"}\n");
    assert_in_range(strlen(told), held - PIPE_BUF, held);
    assert_int_equal(strlen(told) % line, 0);
}

TEST_WITH(a_launcher_that_has_ended, open_pipe, close_pipe)
{
    close(pipe_ends[0]);
    ps_tell("rejoin", "{}"); // SIGPIPE would end this process
    sigset_t pending;
    sigpending(&pending);
    assert_false(sigismember(&pending, SIGPIPE));
    pipe_ends[0] = open("/dev/null", O_RDONLY);
}

TEST_WITH(programs_of_this_process_get_no_descriptor, open_pipe, close_pipe)
{
    assert_int_equal(fcntl(pipe_ends[1], F_GETFD), FD_CLOEXEC);
}
