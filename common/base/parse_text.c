#include "parse_text.h"

#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Reads digits from *p on; false when there is none or the value is above max. */
static bool text_digits(const char **p, uint64_t max, uint64_t *out)
{
    const char *s = *p;
    uint64_t v = 0;
    if (*s < '0' || *s > '9') return false;
    for (; *s >= '0' && *s <= '9'; s++) {
        uint64_t d = (uint64_t)(*s - '0');
        if (v > (max - d) / 10) return false;
        v = v * 10 + d;
    }
    *p = s;
    *out = v;
    return true;
}

bool ps_parse_uint(const char *text, uint64_t *out)
{
    if (*text == '+') text++;
    return text_digits(&text, UINT64_MAX, out) && *text == '\0';
}

bool ps_parse_int(const char *text, int64_t *out)
{
    bool negative = *text == '-';
    uint64_t v;
    if (*text == '-' || *text == '+') text++;
    if (!text_digits(&text, INT64_MAX, &v) || *text) return false;
    *out = negative ? -(int64_t)v : (int64_t)v;
    return true;
}

static locale_t with_point;

static void text_make_locale(void)
{
    with_point = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
}

/* strtod on text that can only be a decimal number. Not strtod itself: a program that
 * uses the library may have chosen a language in which a half is 0,5. */
static bool text_decimal(const char **p, double *out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    size_t n = strspn(*p, "+-.0123456789eE");
    char *end;
    if (n == 0 || strspn(*p, "+-") > 1) return false;
    pthread_once(&once, text_make_locale);
    if (!with_point) return false; // no memory
    *out = strtod_l(*p, &end, with_point);
    bool whole = end == *p + n;
    *p = end;
    return whole && isfinite(*out);
}

bool ps_parse_double(const char *text, double *out)
{
    double over, under = 1;
    if (!text_decimal(&text, &over)) return false;
    if (*text == '/') {
        text++;
        if (!text_decimal(&text, &under) || under == 0) return false;
    }
    *out = over / under;
    return *text == '\0' && isfinite(*out);
}

bool ps_parse_bool(const char *text, bool *out)
{
    static const char *const words[] = {"true", "yes", "on", "false", "no", "off"};
    for (int i = 0; i < 6; i++) {
        if (strcasecmp(text, words[i]) != 0) continue;
        *out = i < 3;
        return true;
    }
    return false;
}

bool ps_parse_bytes(const char *text, int64_t *out)
{
    static const struct {
        const char *suffix;
        int shift;
    } units[] = {{"", 0},     {"k", 10}, {"kib", 10}, {"m", 20},
                 {"mib", 20}, {"g", 30}, {"gib", 30}};
    uint64_t v;
    if (!text_digits(&text, INT64_MAX, &v)) return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcasecmp(text, units[i].suffix) != 0) continue;
        if (v > (uint64_t)INT64_MAX >> units[i].shift) return false;
        *out = (int64_t)(v << units[i].shift);
        return true;
    }
    return false;
}
