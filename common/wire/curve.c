#include "curve.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "loopback.h"
#include "new_file.h"
#include "regular_file.h"

enum {
    Z85_BYTES = 41, // 40 characters for 32 bytes, and a NUL
    HEX = 2 * PS_CURVE_KEY_BYTES,
    LINE_MAX_BYTES = 512,
    PATH_BYTES = 4096,
    OTHERS_READ = 077, // group and others, all rights
    OTHERS_WRITE = 022
};

static const char MAGIC[] = "pstrain-key 1 ";

static ps_err curve_unsupported(void)
{
    return ps_err_set(PS_ERR_UNSUPPORTED,
                      "this libzmq has no CURVE: install one that was built with "
                      "libsodium, as Debian's is");
}

ps_err ps_curve_public(const ps_curve_key *secret, ps_curve_key *out)
{
    char text[Z85_BYTES], public[Z85_BYTES];
    if (!zmq_has("curve") || !zmq_z85_encode(text, secret->bytes, sizeof secret->bytes) ||
        zmq_curve_public(public, text) != 0 || !zmq_z85_decode(out->bytes, public))
        return curve_unsupported();
    return PS_OK;
}

bool ps_curve_find_role(const ps_curve *curve, const void *key, size_t bytes,
                        ps_role *out)
{
    for (int r = 0; r < PS_ROLE_COUNT; r++) {
        if (bytes != PS_CURVE_KEY_BYTES ||
            memcmp(curve->public_of[r].bytes, key, bytes) != 0)
            continue;
        *out = (ps_role)r;
        return true;
    }
    return false;
}

ps_err ps_curve_check_endpoint(const ps_curve *curve, const char *endpoint)
{
    if ((curve && (curve->on || curve->insecure)) || strncmp(endpoint, "tcp://", 6) != 0)
        return PS_OK;
    char host[PS_LOOPBACK_HOST_MAX];
    const char *from = endpoint + 6, *colon = strrchr(from, ':');
    size_t n = colon ? (size_t)(colon - from) : strlen(from);
    if (n > 1 && from[0] == '[' && from[n - 1] == ']') from++, n -= 2;
    snprintf(host, sizeof host, "%.*s", (int)n, from);
    if (strcmp(host, "localhost") == 0 || ps_net_is_loopback(host)) return PS_OK;
    return ps_err_set(
        PS_ERR_ARG,
        "%s is not this host's loopback, and the job has no keys: give it "
        "some (psrun --curve DIR, or --curve DIR everywhere; SECURITY.md), "
        "or say --insecure (net.insecure=true) where everybody on the "
        "network is trusted; a job on this host only: MASTER_ADDR=127.0.0.1",
        endpoint);
}

/* ---- a line ---- */

static void put_hex(char out[HEX + 1], const ps_curve_key *key)
{
    for (int i = 0; i < PS_CURVE_KEY_BYTES; i++)
        snprintf(out + 2 * i, 3, "%02x", key->bytes[i]);
}

/* Reads a key and the blank or the end behind it. */
static bool take_hex(const char **at, ps_curve_key *out)
{
    for (int i = 0; i < PS_CURVE_KEY_BYTES; i++) {
        unsigned byte;
        const char *p = *at + 2 * i;
        if (!isxdigit((unsigned char)p[0]) || !isxdigit((unsigned char)p[1]) ||
            sscanf(p, "%2x", &byte) != 1)
            return false;
        out->bytes[i] = (uint8_t)byte;
    }
    *at += HEX;
    if (**at == ' ') ++*at;
    return true;
}

static bool take_role(const char **at, ps_role *out)
{
    for (int r = 0; r < PS_ROLE_COUNT; r++) {
        const char *name = ps_role_name((ps_role)r);
        size_t n = strlen(name);
        if (strncmp(*at, name, n) != 0 || (*at)[n] != ' ') continue;
        *out = (ps_role)r;
        *at += n + 1;
        return true;
    }
    return false;
}

static ps_err curve_malformed(const char *where)
{
    return ps_err_set(PS_ERR_FORMAT,
                      "%s: no key of pstrain: make new ones (ps-server --make-keys DIR)",
                      where);
}

/* where names the text's source in errors. */
static ps_err curve_parse(ps_curve *c, const char *text, ps_role role, const char *where)
{
    const char *at = text + strlen(MAGIC);
    ps_curve_key own;
    if (strncmp(text, MAGIC, strlen(MAGIC)) != 0 || !take_role(&at, &c->role) ||
        !take_hex(&at, &c->secret) || !take_hex(&at, &c->public_of[PS_ROLE_SERVER]) ||
        !take_hex(&at, &c->public_of[PS_ROLE_WORKER]) || (*at && strcmp(at, "\n") != 0))
        return curve_malformed(where);
    if (c->role != role)
        return ps_err_set(PS_ERR_ARG,
                          "%s is the key of a %s, and this is a %s: give each role its "
                          "own (server.key, worker.key)",
                          where, ps_role_name(c->role), ps_role_name(role));
    PS_TRY(ps_curve_public(&c->secret, &own));
    if (memcmp(&own, &c->public_of[role], sizeof own) != 0) return curve_malformed(where);
    c->on = true;
    return PS_OK;
}

/* ---- files ---- */

static ps_err curve_path_of(const char *folder, ps_role role, char out[PATH_BYTES])
{
    int n = snprintf(out, PATH_BYTES, "%s/%s.key", folder, ps_role_name(role));
    if (n < PATH_BYTES) return PS_OK;
    return ps_err_set(PS_ERR_ARG, "%.60s...: the folder's name is too long", folder);
}

/* Files that belong to somebody else are a container's secrets: root has placed them, and
 * a group may be how this user reads them. */
static ps_err check_modes(const char *path, int fd, const char *folder)
{
    struct stat file, dir;
    if (fstat(fd, &file) != 0) return ps_err_errno(PS_ERR_IO, "%s", path);
    if (stat(folder, &dir) != 0) return ps_err_errno(PS_ERR_IO, "%s", folder);
    const mode_t loose = file.st_uid == geteuid() ? OTHERS_READ : 027;
    if (file.st_mode & loose)
        return ps_err_set(PS_ERR_IO,
                          "%s: other users may read or change it (mode %04o): chmod 600 "
                          "%s, and make new keys if others have used this host",
                          path, (unsigned)(file.st_mode & 07777), path);
    if (dir.st_mode & OTHERS_WRITE && !(dir.st_mode & S_ISVTX))
        return ps_err_set(PS_ERR_IO,
                          "%s: other users may replace the keys in it (mode %04o): chmod "
                          "700 %s",
                          folder, (unsigned)(dir.st_mode & 07777), folder);
    return PS_OK;
}

ps_err ps_curve_read(ps_curve *curve, const char *folder, ps_role role)
{
    char path[PATH_BYTES], text[LINE_MAX_BYTES];
    PS_TRY(curve_path_of(folder, role, path));
    int fd;
    ps_err err = ps_regular_file_open(path, O_RDONLY, &fd);
    if (err != PS_OK && errno == EINVAL) return err;
    if (err != PS_OK)
        return ps_err_errno(PS_ERR_IO,
                            "%s: no key of a %s (psrun --curve makes keys, and so does "
                            "ps-server --make-keys %s)",
                            path, ps_role_name(role), folder);
    err = check_modes(path, fd, folder);
    ssize_t n = err == PS_OK ? read(fd, text, sizeof text - 1) : 0;
    if (n < 0) err = ps_err_errno(PS_ERR_IO, "%s", path);
    close(fd);
    if (err != PS_OK) return err;
    text[n] = '\0';
    err = curve_parse(curve, text, role, path);
    explicit_bzero(text, sizeof text);
    return err;
}

ps_err ps_curve_load(ps_curve *curve, const char *keys, bool insecure, ps_role role)
{
    *curve = (ps_curve){.role = role, .insecure = insecure};
    if (!keys[0]) return PS_OK;
    if (strncmp(keys, MAGIC, strlen(MAGIC)) == 0)
        return curve_parse(curve, keys, role,
                           "the key that was handed over (PS_CURVE_KEY)");
    return ps_curve_read(curve, keys, role);
}

ps_err ps_curve_check_exchange(const ps_config *config)
{
    const ps_config_net *net = &config->net;
    const ps_exchange_kind kind = config->exchange.name;
    const bool open = kind != PS_EXCHANGE_PS && kind != PS_EXCHANGE_NONE;
    if (!open || !net->curve[0] || net->insecure) return PS_OK;
    return ps_err_set(PS_ERR_ARG,
                      "the job has keys, but what Gloo and NCCL send is not encrypted: "
                      "train through servers (ps mode), or say --insecure "
                      "(net.insecure=true) where everybody on the network is trusted");
}

ps_err ps_curve_init(ps_curve *curve, const ps_config *config, ps_role role)
{
    PS_TRY(ps_curve_check_exchange(config));
    return ps_curve_load(curve, config->net.curve, config->net.insecure, role);
}

/* ---- making them ---- */

static ps_err curve_draw(ps_curve_key *secret, ps_curve_key *public)
{
    char public_text[Z85_BYTES], text[Z85_BYTES];
    if (!zmq_has("curve") || zmq_curve_keypair(public_text, text) != 0 ||
        !zmq_z85_decode(secret->bytes, text) ||
        !zmq_z85_decode(public->bytes, public_text))
        return curve_unsupported();
    return PS_OK;
}

static ps_err write_key(const char *folder, const ps_curve *c)
{
    char path[PATH_BYTES], secret[HEX + 1], servers[HEX + 1], workers[HEX + 1];
    PS_TRY(curve_path_of(folder, c->role, path));
    put_hex(secret, &c->secret);
    put_hex(servers, &c->public_of[PS_ROLE_SERVER]);
    put_hex(workers, &c->public_of[PS_ROLE_WORKER]);
    int fd;
    PS_TRY(ps_new_file_open(path, &fd));
    ps_err err = PS_OK;
    if (fchmod(fd, 0600) != 0 ||
        dprintf(fd, "%s%s %s %s %s\n", MAGIC, ps_role_name(c->role), secret, servers,
                workers) < 0)
        err = ps_err_errno(PS_ERR_IO, "%s", path);
    if (close(fd) != 0 && err == PS_OK) err = ps_err_errno(PS_ERR_IO, "%s", path);
    return err;
}

static ps_err curve_make_folder(const char *folder)
{
    struct stat s;
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        return ps_err_errno(PS_ERR_IO, "making the folder %s", folder);
    if (stat(folder, &s) != 0) return ps_err_errno(PS_ERR_IO, "%s", folder);
    if (!(s.st_mode & OTHERS_READ)) return PS_OK;
    return ps_err_set(PS_ERR_IO,
                      "%s: other users may use the folder (mode %04o), and keys are not "
                      "for them: chmod 700 %s",
                      folder, (unsigned)(s.st_mode & 07777), folder);
}

static ps_err has_key(const char *folder, ps_role role, bool *out)
{
    char path[PATH_BYTES];
    PS_TRY(curve_path_of(folder, role, path));
    *out = access(path, F_OK) == 0;
    return PS_OK;
}

ps_err ps_curve_make(const char *folder)
{
    ps_curve pair[PS_ROLE_COUNT] = {{0}};
    bool there[PS_ROLE_COUNT];
    PS_TRY(curve_make_folder(folder));
    for (int r = 0; r < PS_ROLE_COUNT; r++)
        PS_TRY(has_key(folder, (ps_role)r, &there[r]));
    if (there[0] != there[1])
        return ps_err_set(PS_ERR_IO,
                          "%s holds one role's key without the other's: take the right "
                          "folder, or remove the key and start again",
                          folder);
    for (int r = 0; there[0] && r < PS_ROLE_COUNT; r++)
        PS_TRY(ps_curve_read(&pair[r], folder, (ps_role)r));
    if (there[0]) return PS_OK;
    for (int r = 0; r < PS_ROLE_COUNT; r++)
        PS_TRY(curve_draw(&pair[r].secret, &pair[r].public_of[r]));
    for (int r = 0; r < PS_ROLE_COUNT; r++) {
        pair[r].role = (ps_role)r;
        pair[r].public_of[!r] = pair[!r].public_of[!r];
        PS_TRY(write_key(folder, &pair[r]));
    }
    explicit_bzero(pair, sizeof pair);
    return PS_OK;
}
