/* Logging: an event and key=value pairs, one line each. Lines go to the sink that the
 * program sets; before that they are dropped. Our programs log to standard error:
 *
 *   12.345 worker/0 INFO  push step=3 chunk=7
 *
 * An event is logged once, where it is handled; kernels never log. It stays one line
 * whatever a peer puts into a host name or a reason: characters that are not printable
 * are escaped (printable.h), and text that is too long is cut. People read the lines; a
 * launcher is told what it decides by (tell.h). A field whose text others choose comes
 * last.
 */
#ifndef PS_LOG_H
#define PS_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"

typedef enum ps_log_level {
    PS_LOG_DEBUG,
    PS_LOG_INFO,
    PS_LOG_WARN,
    PS_LOG_ERROR
} ps_log_level;

/* Takes a line, "push step=3 chunk=7", without a newline. text is valid during the call.
 * Several threads may call it at once. It must not log. */
typedef void (*ps_log_sink)(void *ctx, ps_log_level level, const char *text);

/* Lines of `level` and above go to the sink; NULL drops them. Must be called before any
 * other thread of ours starts. */
void ps_log_set_sink(ps_log_sink sink, void *ctx, ps_log_level level);

/* For programs: the sink is standard error, with the seconds since this call and the role
 * ("worker/0", copied) before each line. Must be called before any other thread of ours
 * starts. */
void ps_log_init(const char *role, ps_log_level level);
/* Changes the role, once the rank is known. Any thread may call it. */
void ps_log_set_role(const char *role);
/* Copies the role into out, cut to n bytes with the null; returns out. Any thread. */
char *ps_log_role(char *out, size_t n);

/* Whether a line of that level goes anywhere. */
bool ps_log_shows(ps_log_level level);

void ps_log_write(ps_log_level level, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Logs this thread's last failure as an ERROR, kind=PEER passing=true reason="...", and
 * tells the launcher, which decides by it whether to start the process again. */
void ps_log_failure(const char *event, ps_err code);

#define PS_DEBUG(event, ...) ps_log_write(PS_LOG_DEBUG, event, __VA_ARGS__)
#define PS_INFO(event, ...)  ps_log_write(PS_LOG_INFO, event, __VA_ARGS__)
#define PS_WARN(event, ...)  ps_log_write(PS_LOG_WARN, event, __VA_ARGS__)
#define PS_ERROR(event, ...) ps_log_write(PS_LOG_ERROR, event, __VA_ARGS__)

/* Counts the lines that strangers have caused at one place of the code. Must start
 * zeroed. */
typedef struct ps_log_quota {
    uint64_t lines, since_ns, left_out;
} ps_log_quota;

/* For events that anybody who can connect may repeat: logs the first PS_LOG_FEW_LINES
 * lines, then that many in each further minute. The first line after a gap says how many
 * were left out. The quota is guarded by the logger. */
enum { PS_LOG_FEW_LINES = 64 };
void ps_log_write_few(ps_log_quota *quota, ps_log_level level, const char *event,
                      const char *fmt, ...) __attribute__((format(printf, 4, 5)));

#define PS_LOG_FEW_(level, event, ...)                                                   \
    do {                                                                                 \
        static ps_log_quota quota_;                                                      \
        ps_log_write_few(&quota_, level, event, __VA_ARGS__);                            \
    } while (0)
#define PS_WARN_FEW(event, ...) PS_LOG_FEW_(PS_LOG_WARN, event, __VA_ARGS__)

#endif
