#include "printable.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { ESCAPED_MAX = 5 }; // "\xNN" and the end

/* The code point at text, and its bytes; 0 bytes when it is not UTF-8 (RFC 3629). */
static uint32_t printable_decode_utf8(const uint8_t *text, size_t *bytes)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const uint8_t first = text[0];
    *bytes = first < 0x80 ? 1 : first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : 4;
    if (*bytes == 1) return first;
    uint32_t point = first & (0x7fu >> *bytes);
    bool valid = *bytes < 4 || first >> 3 == 30;
    for (size_t i = 1; i < *bytes && valid; i++) { // the NUL at the end is not valid here
        valid = text[i] >> 6 == 2;
        point = point << 6 | (text[i] & 0x3f);
    }
    valid = valid && point >= least[*bytes] && point <= 0x10ffff &&
            (point < 0xd800 || point > 0xdfff);
    if (!valid) *bytes = 0;
    return point;
}

bool ps_utf8_is_valid(const char *text)
{
    size_t bytes = 1;
    for (const uint8_t *at = (const uint8_t *)text; *at && bytes > 0; at += bytes)
        printable_decode_utf8(at, &bytes);
    return bytes > 0;
}

/* C0, DEL, C1, the characters at which some programs end a line, and two that are none
 * (XML does not take them). */
static bool is_control(uint32_t point)
{
    return point < 0x20 || (point >= 0x7f && point < 0xa0) || point == 0x2028 ||
           point == 0x2029 || point == 0xfffe || point == 0xffff;
}

/* Writes one byte, escaped; returns the length. */
static size_t printable_escape(uint8_t byte, char out[ESCAPED_MAX])
{
    const char *letter = byte == '\n'   ? "\\n"
                         : byte == '\r' ? "\\r"
                         : byte == '\t' ? "\\t"
                                        : NULL;
    int n = letter ? snprintf(out, ESCAPED_MAX, "%s", letter)
                   : snprintf(out, ESCAPED_MAX, "\\x%02x", byte);
    return (size_t)n;
}

size_t ps_printable(const char *text, char *out, size_t cap)
{
    const uint8_t *at = (const uint8_t *)text;
    size_t used = 0, cut = 0; // cut: where "..." still fits after whole characters
    while (*at) {
        size_t bytes;
        const uint32_t point = printable_decode_utf8(at, &bytes);
        const bool plain = bytes > 0 && !is_control(point);
        char escaped[ESCAPED_MAX];
        const size_t n = plain ? bytes : printable_escape(*at, escaped);
        if (used + 4 <= cap) cut = used;
        if (used + n >= cap) {
            memcpy(out + cut, "...", 4);
            return cut + 3;
        }
        memcpy(out + used, plain ? (const char *)at : escaped, n);
        used += n;
        at += plain ? bytes : 1;
    }
    out[used] = '\0';
    return used;
}
