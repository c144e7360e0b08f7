#include "curve_stand_in.h"

#include <stdio.h>
#include <string.h>
#include <zmq.h>

#include "world.h"

enum { KEYED = 60, SECRETS = 600, Z85_BYTES = 41 }; // what is chosen

/* fmix64 of MurmurHash3, over all words for each word. */
void curve_stand_in_public(const uint8_t secret[STAND_IN_KEY_BYTES],
                           uint8_t out[STAND_IN_KEY_BYTES])
{
    for (size_t at = 0; at < STAND_IN_KEY_BYTES; at += sizeof(uint64_t)) {
        uint64_t hash = at + 1;
        for (size_t i = 0; i < STAND_IN_KEY_BYTES; i += sizeof(uint64_t)) {
            uint64_t word;
            memcpy(&word, secret + i, sizeof word);
            hash = (hash ^ word) * UINT64_C(0xff51afd7ed558ccd);
            hash = (hash ^ hash >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
            hash ^= hash >> 33;
        }
        memcpy(out + at, &hash, sizeof hash);
    }
}

int zmq_has(const char *what)
{
    return strcmp(what, "curve") == 0;
}

int zmq_curve_keypair(char *public, char *secret)
{
    uint8_t key[STAND_IN_KEY_BYTES];
    for (size_t i = 0; i < sizeof key; i++)
        key[i] = (uint8_t)world_draw(256);
    zmq_z85_encode(secret, key, sizeof key);
    return zmq_curve_public(public, secret);
}

int zmq_curve_public(char *public, const char *secret)
{
    uint8_t key[STAND_IN_KEY_BYTES], other[STAND_IN_KEY_BYTES];
    if (!zmq_z85_decode(key, secret)) return -1;
    curve_stand_in_public(key, other);
    return zmq_z85_encode(public, other, sizeof other) ? 0 : -1;
}

/* ---- a job's ---- */

bool curve_stand_in_job_has_keys(void)
{
    return world_since(WORLD_KEYS) && world_choice(KEYED, 4) == 0;
}

void curve_stand_in_secret(bool is_worker, uint8_t out[STAND_IN_KEY_BYTES])
{
    for (uint64_t i = 0; i < STAND_IN_KEY_BYTES; i++)
        out[i] = (uint8_t)world_choice(SECRETS + 2 * i + is_worker, 256);
}

static size_t put_hex(char *out, const uint8_t key[STAND_IN_KEY_BYTES])
{
    for (int i = 0; i < STAND_IN_KEY_BYTES; i++)
        snprintf(out + 2 * i, 3, "%02x", key[i]);
    out[2 * STAND_IN_KEY_BYTES] = ' ';
    return 2 * STAND_IN_KEY_BYTES + 1;
}

/* A line as of a file of keys (common/wire/curve.h). */
const char *curve_stand_in_setting(bool is_worker)
{
    static char lines[2][300];
    char *line = lines[is_worker];
    uint8_t secret[STAND_IN_KEY_BYTES], public[STAND_IN_KEY_BYTES];
    if (!curve_stand_in_job_has_keys()) return "net.insecure=true";
    size_t n = (size_t)snprintf(line, sizeof lines[0], "net.curve=pstrain-key 1 %s ",
                                is_worker ? "worker" : "server");
    curve_stand_in_secret(is_worker, secret);
    n += put_hex(line + n, secret);
    for (int role = 0; role < 2; role++) { // servers first
        curve_stand_in_secret(role == 1, secret);
        curve_stand_in_public(secret, public);
        n += put_hex(line + n, public);
    }
    line[n - 1] = '\0';
    return line;
}
