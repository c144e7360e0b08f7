#include "log.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "printable.h"
#include "tell.h"

enum { LINE_BYTES = 2048, ROLE_BYTES = 32, PREFIX_BYTES = 64 };
enum { REASON_BYTES = 1536 }; // with every quote escaped an event has room for it
static const uint64_t MINUTE_NS = 60 * UINT64_C(1000000000);

/* Global, because otherwise every function would need a logger as a parameter. Level and
 * start are written before threads start. */
static struct {
    pthread_mutex_t lock; // of the role and of every quota; never held across I/O
    char role[ROLE_BYTES];
    ps_log_sink sink; // NULL: lines are dropped
    void *ctx;
    ps_log_level level;
    uint64_t start_ns;
} logger = {.lock = PTHREAD_MUTEX_INITIALIZER, .role = "pstrain"};

static void to_stderr(void *ctx, ps_log_level level, const char *text)
{
    static const char *const names[] = {"DEBUG", "INFO ", "WARN ", "ERROR"};
    char role[ROLE_BYTES], line[LINE_BYTES];
    pthread_mutex_lock(&logger.lock);
    memcpy(role, logger.role, sizeof role);
    pthread_mutex_unlock(&logger.lock);
    const double seconds = ps_clock_seconds_since(logger.start_ns);
    const int used =
        snprintf(line, sizeof line, "%.3f %s %s %s\n", seconds, role, names[level], text);
    // One write per line, so that lines of several processes in one file stay whole.
    ssize_t written = write(STDERR_FILENO, line, (size_t)used);
    (void)written;
}

void ps_log_set_sink(ps_log_sink sink, void *ctx, ps_log_level level)
{
    logger.ctx = ctx;
    logger.level = level;
    logger.sink = sink;
}

void ps_log_init(const char *role, ps_log_level level)
{
    ps_log_set_role(role);
    logger.start_ns = ps_clock_ns();
    ps_log_set_sink(to_stderr, NULL, level);
}

void ps_log_set_role(const char *role)
{
    pthread_mutex_lock(&logger.lock);
    snprintf(logger.role, sizeof logger.role, "%s", role);
    pthread_mutex_unlock(&logger.lock);
}

char *ps_log_role(char *out, size_t n)
{
    pthread_mutex_lock(&logger.lock);
    snprintf(out, n, "%s", logger.role);
    pthread_mutex_unlock(&logger.lock);
    return out;
}

bool ps_log_shows(ps_log_level level)
{
    return logger.sink && level >= logger.level;
}

static void log_write_line(ps_log_level level, const char *event, const char *fmt,
                           va_list args)
{
    char said[LINE_BYTES], text[LINE_BYTES - PREFIX_BYTES - ROLE_BYTES];
    vsnprintf(said, sizeof said, fmt, args);
    const size_t used = (size_t)snprintf(text, sizeof text, "%.64s ", event);
    ps_printable(said, text + used, sizeof text - used);
    logger.sink(logger.ctx, level, text);
}

void ps_log_write(ps_log_level level, const char *event, const char *fmt, ...)
{
    if (!ps_log_shows(level)) return;
    va_list args;
    va_start(args, fmt);
    log_write_line(level, event, fmt, args);
    va_end(args);
}

void ps_log_failure(const char *event, ps_err code)
{
    const bool passing = ps_err_is_passing(code);
    char reason[REASON_BYTES];
    ps_printable(ps_err_message(), reason, sizeof reason);
    ps_tell("failure", "{s:s, s:b, s:s}", "kind", ps_err_name(code), "passing", passing,
            "reason", reason);
    PS_ERROR(event, "kind=%s passing=%s reason=\"%s\"", ps_err_name(code),
             passing ? "true" : "false", ps_err_message());
}

/* Whether one more line may be written; *left_out: how many were dropped since the last
 * one. */
static bool log_take_line(ps_log_quota *q, uint64_t *left_out)
{
    const uint64_t now = ps_clock_ns();
    pthread_mutex_lock(&logger.lock);
    if (now - q->since_ns > MINUTE_NS) {
        q->since_ns = now;
        q->lines = 0;
    }
    const bool may = q->lines < PS_LOG_FEW_LINES;
    *left_out = q->left_out;
    q->lines += may;
    q->left_out = may ? 0 : q->left_out + 1;
    pthread_mutex_unlock(&logger.lock);
    return may;
}

void ps_log_write_few(ps_log_quota *quota, ps_log_level level, const char *event,
                      const char *fmt, ...)
{
    uint64_t left_out;
    if (!ps_log_shows(level) || !log_take_line(quota, &left_out)) return;
    if (left_out > 0)
        ps_log_write(level, event, "left_out=%" PRIu64 " (more than %d a minute)",
                     left_out, PS_LOG_FEW_LINES);
    va_list args;
    va_start(args, fmt);
    log_write_line(level, event, fmt, args);
    va_end(args);
}
