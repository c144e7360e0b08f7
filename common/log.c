#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"

/* Written before threads start, read-only afterwards (the one exception to "no mutable
 * globals": a logger that had to be passed along would reach every signature). */
static struct {
    char role[32];
    ps_log_level level;
    uint64_t start_ns;
} logger = {.role = "pstrain", .level = PS_LOG_INFO};

void ps_log_init(const char *role, ps_log_level level)
{
    ps_log_set_role(role);
    logger.level = level;
    logger.start_ns = ps_clock_ns();
}

void ps_log_set_role(const char *role)
{
    snprintf(logger.role, sizeof logger.role, "%s", role);
}

void ps_log_write(ps_log_level level, const char *event, const char *fmt, ...)
{
    static const char *const names[] = {"DEBUG", "INFO ", "WARN ", "ERROR"};
    if (level < logger.level) return;
    char line[2048];
    double seconds = (double)(ps_clock_ns() - logger.start_ns) * 1e-9;
    int n = snprintf(line, sizeof line, "%.3f %s %s %s ", seconds, logger.role,
                     names[level], event);
    va_list args;
    va_start(args, fmt);
    vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, args);
    va_end(args);
    size_t used = strlen(line);
    line[used++] = '\n';
    // One write a line, so that lines of several processes in one file stay whole.
    ssize_t written = write(STDERR_FILENO, line, used);
    (void)written;
}
