#include "hash.h"

#include <string.h>

void ps_hash_init(ps_hash *h)
{
    h->state = 0xcbf29ce484222325u;
}

void ps_hash_bytes(ps_hash *h, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    uint64_t s = h->state;
    for (size_t i = 0; i < n; i++)
        s = (s ^ p[i]) * 0x100000001b3u;
    h->state = s;
}

void ps_hash_u64(ps_hash *h, uint64_t value)
{
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(value >> (8 * i));
    ps_hash_bytes(h, bytes, sizeof bytes);
}

void ps_hash_double(ps_hash *h, double value)
{
    uint64_t bits;
    if (value == 0) value = 0.0; // -0 compares equal to 0 and becomes it
    memcpy(&bits, &value, sizeof bits);
    ps_hash_u64(h, bits);
}

void ps_hash_string(ps_hash *h, const char *text)
{
    size_t n = strlen(text);
    ps_hash_u64(h, n);
    ps_hash_bytes(h, text, n);
}

uint64_t ps_hash_value(const ps_hash *h)
{
    uint64_t v = h->state;
    v = (v ^ (v >> 33)) * 0xff51afd7ed558ccdu;
    v = (v ^ (v >> 33)) * 0xc4ceb9fe1a85ec53u;
    return v ^ (v >> 33);
}
