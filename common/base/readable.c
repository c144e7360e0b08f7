#include "readable.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_DIGITS = 16 }; // with a sign, a point and a power there is no room for more

/* "2.9e+10" would be longer, and "29123456789.0000" is not read. */
static void readable_power(double value, char out[PS_READABLE_BYTES])
{
    char text[PS_READABLE_BYTES];
    int power = 0;
    snprintf(text, sizeof text, "%.1e", value);
    for (char *at = text; *at; at++)
        if (*at == 'e') {
            power = atoi(at + 1);
            *at = '\0';
            break;
        }
    snprintf(out, PS_READABLE_BYTES, "%.8se%d", text, power);
}

const char *ps_readable_whole(double value, char out[PS_READABLE_BYTES])
{
    char digits[PS_READABLE_BYTES];
    if (!(fabs(value) < 1e16)) return ps_readable_figure(value, out); // there is no room
    const int n = snprintf(digits, sizeof digits, "%.0f", fabs(value));
    char *at = out;
    if (value < 0) *at++ = '-';
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) *at++ = ',';
        *at++ = digits[i];
    }
    *at = '\0';
    return out;
}

/* A value with that many digits, up to 1e16 without a power. */
static void readable_digits(double value, int digits, char out[PS_READABLE_BYTES])
{
    const double size = fabs(value);
    const int before = size >= 1 && size < 1e16 ? (int)log10(size) + 1 : 0;
    snprintf(out, PS_READABLE_BYTES, "%.*g", digits > before ? digits : before, value);
}

const char *ps_readable_value(double value, double span, char out[PS_READABLE_BYTES])
{
    const double size = fabs(value), digits = 3 + ceil(log10(size / span));
    if (isfinite(digits) && digits > 4 && !(size < 1e9 && value == floor(value)))
        readable_digits(value, (int)fmin(digits, MOST_DIGITS), out);
    else if (size < 1e9 && (size >= 1e4 || value == floor(value)))
        snprintf(out, PS_READABLE_BYTES, "%.0f", value);
    else if (size >= 1e-3 && size < 1e4)
        snprintf(out, PS_READABLE_BYTES, "%.4g", value);
    else
        ps_readable_figure(value, out);
    return out;
}

const char *ps_readable_figure(double value, char out[PS_READABLE_BYTES])
{
    const double size = fabs(value);
    if (!isfinite(value))
        snprintf(out, PS_READABLE_BYTES, "%s",
                 isnan(value) ? "nan"
                 : value < 0  ? "-inf"
                              : "inf");
    else if (size >= 1e7 || (size > 0 && size < 1e-3))
        readable_power(value, out);
    else if (size >= 1000)
        ps_readable_whole(value, out);
    else
        snprintf(out, PS_READABLE_BYTES, "%.*f", size < 10 ? 4 : 2, value);
    return out;
}

const char *ps_readable_count(double value, char out[PS_READABLE_BYTES])
{
    static const char *const units[] = {"", " k", " M", " G", " T"};
    int unit = 0;
    for (; value >= 999.5 && unit < 4; unit++)
        value /= 1000;
    snprintf(out, PS_READABLE_BYTES, "%.*f%s", unit && value < 99.95 ? 1 : 0, value,
             units[unit]);
    return out;
}
