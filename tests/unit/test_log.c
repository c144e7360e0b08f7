/* A log entry is one line, and a stranger can cause only few of them. */
#include "log.h"

#include <pthread.h>
#include <unistd.h>

#include "check.h"
#include "printable.h"

/* What is written to standard error between begin and end. */
typedef struct captured {
    FILE *file;
    int before;
    char text[1 << 18];
} captured;

static captured log_text;

static void begin(void)
{
    log_text.file = tmpfile();
    assert_non_null(log_text.file);
    log_text.before = dup(STDERR_FILENO);
    assert_true(dup2(fileno(log_text.file), STDERR_FILENO) >= 0);
}

static const char *end(void)
{
    assert_true(dup2(log_text.before, STDERR_FILENO) >= 0);
    close(log_text.before);
    rewind(log_text.file);
    size_t n = fread(log_text.text, 1, sizeof log_text.text - 1, log_text.file);
    log_text.text[n] = '\0';
    fclose(log_text.file);
    return log_text.text;
}

static int count(const char *text, const char *word)
{
    int n = 0;
    for (; (text = strstr(text, word)); text += strlen(word))
        n++;
    return n;
}

static void assert_printable(const char *text, const char *want)
{
    char out[256];
    assert_int_equal(ps_printable(text, out, sizeof out), strlen(want));
    assert_string_equal(out, want);
}

TEST(control_characters_are_escaped)
{
    assert_printable("plain \"text\" with \\n", "plain \"text\" with \\n");
    assert_printable("a\nb\rc\td", "a\\nb\\rc\\td");
    assert_printable("\x1b[2K\x07\x7f", "\\x1b[2K\\x07\\x7f");
    assert_printable("Bäcker ▊ 節 🙂",
                     "Bäcker ▊ 節 🙂"); // two to four bytes each
    assert_printable("\xc2\x9b"
                     "31m",
                     "\\xc2\\x9b31m");                   // CSI as one character (ECMA-48)
    assert_printable("\xe2\x80\xa8", "\\xe2\\x80\\xa8"); // LINE SEPARATOR
    assert_printable("\xef\xbf\xbf", "\\xef\\xbf\\xbf"); // U+FFFF, no character
}

/* RFC 3629: overlong forms, surrogates, beyond U+10FFFF, cut and lone bytes. */
TEST(what_is_no_utf8_is_escaped)
{
    assert_printable("\xc0\x8a", "\\xc0\\x8a");
    assert_printable("\xe0\x80\x8a", "\\xe0\\x80\\x8a");
    assert_printable("\xed\xa0\x80", "\\xed\\xa0\\x80");
    assert_printable("\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80");
    assert_printable("\xf8\x88\x80\x80\x80", "\\xf8\\x88\\x80\\x80\\x80");
    assert_printable("\xff", "\\xff");
    assert_printable("a\xe7\xaf", "a\\xe7\\xaf");
    assert_printable("\xe7\nb", "\\xe7\\nb");
}

TEST(long_texts_are_cut_between_characters)
{
    char out[16];
    for (size_t cap = 8; cap <= sizeof out; cap++) {
        memset(out, 'Z', sizeof out);
        size_t n = ps_printable("節節節節節節節節", out, cap);
        assert_true(n < cap && n == strlen(out) && n >= cap - 6);
        assert_string_equal(out + n - 3, "...");
        assert_int_equal((n - 3) % 3, 0);
        n = ps_printable("\n\n\n\n\n\n\n\n\n\n\n", out, cap);
        assert_true(n < cap && n == strlen(out));
        assert_string_equal(out + n - 3, "...");
        assert_true(out[n - 4] == 'n');
    }
    assert_int_equal(ps_printable("1234567", out, 8), 7); // just fits
    assert_string_equal(out, "1234567");
    assert_int_equal(ps_printable("12345678", out, 8), 7);
    assert_string_equal(out, "1234...");
}

TEST(nobody_forges_a_line)
{
    ps_log_init("server/0", PS_LOG_INFO);
    begin();
    PS_INFO("joined", "host=%s",
            "b\x1b[31m\n9.999 server/0 ERROR failed kind=IO passing=false\r");
    const char *text = end();
    assert_int_equal(count(text, "\n"), 1);
    assert_null(strchr(text, '\x1b'));
    assert_null(strchr(text, '\r'));
    assert_non_null(strstr(text, " server/0 INFO  joined host=b\\x1b[31m\\n9.999 "));
}

TEST(a_line_has_a_longest)
{
    char *reason = malloc(100001);
    assert_non_null(reason);
    memset(reason, '\a', 100000);
    reason[100000] = '\0';
    begin();
    PS_WARN("long", "reason=%s", reason);
    const char *text = end();
    free(reason);
    assert_int_equal(count(text, "\n"), 1);
    assert_true(strlen(text) <= 2048);
    assert_non_null(strstr(text, "...\n"));
}

TEST(strangers_cause_few_lines)
{
    ps_log_quota quota = {0};
    begin();
    for (int i = 0; i < 1000; i++)
        ps_log_write_few(&quota, PS_LOG_WARN, "refused", "attempt=%d", i);
    const char *text = end();
    assert_int_equal(count(text, "\n"), PS_LOG_FEW_LINES);
    assert_non_null(strstr(text, "attempt=63\n"));
    quota.since_ns -= 61 * UINT64_C(1000000000); // a minute later
    begin();
    ps_log_write_few(&quota, PS_LOG_WARN, "refused", "attempt=%d", 1000);
    ps_log_write_few(&quota, PS_LOG_WARN, "refused", "attempt=%d", 1001);
    text = end();
    assert_int_equal(count(text, "left_out="), 1);
    assert_non_null(strstr(text, "left_out=936 "));
    assert_non_null(strstr(text, "attempt=1000\n"));
    assert_non_null(strstr(text, "attempt=1001\n"));
    begin();
    for (int i = 0; i < 200; i++) // one place in the code has one quota
        PS_WARN_FEW("refused", "again=%d", i);
    assert_int_equal(count(end(), "\n"), PS_LOG_FEW_LINES);
}

static void note(void *ctx, ps_log_level level, const char *text)
{
    snprintf(ctx, 64, "%d|%s", (int)level, text);
}

TEST(lines_go_where_the_program_says)
{
    char heard[64] = "";
    begin();
    ps_log_set_sink(NULL, NULL, PS_LOG_DEBUG);
    PS_ERROR("lost", "a=1");
    ps_log_set_sink(note, heard, PS_LOG_WARN);
    PS_INFO("push", "step=%d", 3);
    assert_string_equal(heard, "");
    PS_WARN("push", "step=%d", 4);
    assert_string_equal(end(), "");
    assert_string_equal(heard, "2|push step=4");
    ps_log_init("server/0", PS_LOG_INFO);
}

static void *say(void *arg)
{
    for (int i = 0; i < 2000; i++)
        PS_INFO("beat", "i=%d", i);
    return arg;
}

/* A member sets its rank while its threads are already running. */
TEST(a_role_changes_beside_lines)
{
    pthread_t thread;
    begin();
    assert_int_equal(pthread_create(&thread, NULL, say, NULL), 0);
    for (int i = 0; i < 2000; i++)
        ps_log_set_role(i % 2 ? "worker/0" : "worker/1234567");
    pthread_join(thread, NULL);
    const char *text = end();
    assert_int_equal(count(text, "\n"), 2000);
    assert_int_equal(count(text, " server/0 INFO ") + count(text, " worker/0 INFO ") +
                         count(text, " worker/1234567 INFO "),
                     2000);
}
