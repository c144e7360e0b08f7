/* Logging: an event and key=value pairs, one line each, to where the program says; until
 * then to nowhere. Our programs log to standard error:
 *
 *   12.345 worker/0 INFO  push step=3 chunk=7
 *
 * Logged once, where it is handled; kernels never log. A line is one line, whatever a
 * peer has put into a host name or a reason: what is not printable is escaped
 * (printable.h), and what is too long is cut.
 */
#ifndef PS_LOG_H
#define PS_LOG_H

#include <stdint.h>

typedef enum ps_log_level {
    PS_LOG_DEBUG,
    PS_LOG_INFO,
    PS_LOG_WARN,
    PS_LOG_ERROR
} ps_log_level;

/* Takes a line, "push step=3 chunk=7", without an end of line. text is valid until it
 * returns. Called from any thread, by several at once, and must not log. */
typedef void (*ps_log_sink)(void *ctx, ps_log_level level, const char *text);

/* Lines of `level` and above go to the sink; NULL: nowhere. Called before any other
 * thread of ours starts. */
void ps_log_set_sink(ps_log_sink sink, void *ctx, ps_log_level level);

/* For programs: the sink is standard error, with the seconds since this call and the role
 * ("worker/0", copied) before each line. Called as ps_log_set_sink. */
void ps_log_init(const char *role, ps_log_level level);
/* The role again once a rank has been given. From any thread. */
void ps_log_set_role(const char *role);

void ps_log_write(ps_log_level level, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#define PS_DEBUG(event, ...) ps_log_write(PS_LOG_DEBUG, event, __VA_ARGS__)
#define PS_INFO(event, ...)  ps_log_write(PS_LOG_INFO, event, __VA_ARGS__)
#define PS_WARN(event, ...)  ps_log_write(PS_LOG_WARN, event, __VA_ARGS__)
#define PS_ERROR(event, ...) ps_log_write(PS_LOG_ERROR, event, __VA_ARGS__)

/* How many lines strangers have caused at one place of the code; zeroed. */
typedef struct ps_log_quota {
    uint64_t lines, since_ns, left_out;
} ps_log_quota;

/* For what anybody who can connect may cause again and again: the first
 * PS_LOG_FEW_LINES lines, then that many in each further minute. The line after some that
 * were left out says how many they were. The quota is guarded by the logger. */
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
