#include "init_method.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "new_file.h"
#include "parse_text.h"
#include "regular_file.h"

static ps_err parse_tcp(const char *text, const char *rest, ps_init_method *out)
{
    const char *colon = strrchr(rest, ':');
    int64_t port;
    if (!colon || !ps_parse_int(colon + 1, &port) || port < 0 || port > 65535)
        return ps_err_set(PS_ERR_ARG, "%s: a port of 1 .. 65535 is expected at its end",
                          text);
    size_t n = (size_t)(colon - rest);
    if (n >= 2 && rest[0] == '[' && rest[n - 1] == ']') {
        rest++;
        n -= 2;
    }
    if (n == 0 || n >= sizeof out->host)
        return ps_err_set(PS_ERR_ARG, "%s: a host is expected before the port", text);
    memcpy(out->host, rest, n);
    out->port = (int)port;
    return PS_OK;
}

ps_err ps_init_method_parse(const char *text, ps_init_method *out)
{
    *out = (ps_init_method){0};
    if (strncmp(text, "tcp://", 6) == 0) return parse_tcp(text, text + 6, out);
    if (strncmp(text, "file://", 7) == 0 && text[7] == '/' && text[8] != '\0') {
        if (strlen(text + 7) >= sizeof out->path - 32)
            return ps_err_set(PS_ERR_ARG, "%s: the path is too long", text);
        snprintf(out->path, sizeof out->path, "%s", text + 7);
        out->is_file = true;
        return PS_OK;
    }
    return ps_err_set(PS_ERR_ARG,
                      "%s: is not one of tcp://host:port, env:// "
                      "(MASTER_ADDR, MASTER_PORT) or file:///absolute/path",
                      text);
}

static ps_err write_whole(const char *path, const char *line)
{
    int fd;
    PS_TRY(ps_new_file_open(path, &fd));
    size_t n = strlen(line);
    ssize_t written = write(fd, line, n);
    int failed = written != (ssize_t)n || fsync(fd) != 0;
    ps_err err = failed ? ps_err_errno(PS_ERR_IO, "writing %s", path) : PS_OK;
    close(fd);
    return err;
}

bool ps_init_method_is_loopback(const char *text)
{
    ps_init_method m;
    if (!text || strncmp(text, "tcp://", 6) != 0) return false;
    if (ps_init_method_parse(text, &m) != PS_OK) return false; // reported later
    return strcmp(m.host, "localhost") == 0 || strcmp(m.host, "::1") == 0 ||
           strncmp(m.host, "127.", 4) == 0;
}

ps_err ps_init_file_write(const char *path, const ps_init_record *record)
{
    char aside[PS_INIT_PATH_MAX + 32], line[192];
    snprintf(aside, sizeof aside, "%s.%016" PRIx64, path, record->nonce);
    snprintf(line, sizeof line, "pstrain-init 1 %s %d %016" PRIx64 "\n", record->address,
             record->port, record->nonce);
    ps_err err = write_whole(aside, line);
    if (err == PS_OK && rename(aside, path) != 0)
        err = ps_err_errno(PS_ERR_IO, "%s", path);
    if (err != PS_OK) unlink(aside);
    return err;
}

/* Sixteen hexadecimal digits and nothing else. */
static int parse_nonce(const char *text, uint64_t *out)
{
    if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) return -1;
    *out = strtoull(text, NULL, 16);
    return 0;
}

ps_err ps_init_file_read(const char *path, ps_init_record *record)
{
    *record = (ps_init_record){0};
    FILE *f;
    PS_TRY(ps_regular_file_stream(path, "r", &f));
    char line[192], nonce[32], end;
    int items = 0;
    if (fgets(line, sizeof line, f))
        items = sscanf(line, "pstrain-init 1 %63s %d %31s%c", record->address,
                       &record->port, nonce, &end);
    fclose(f);
    if (items != 4 || end != '\n' || parse_nonce(nonce, &record->nonce) != 0 ||
        record->port < 1 || record->port > 65535 || !ps_net_is_literal(record->address))
        return ps_err_set(
            PS_ERR_FORMAT,
            "%s: is not a file that a coordinator writes; remove it or choose "
            "another path",
            path);
    return PS_OK;
}

void ps_init_file_remove(const char *path, uint64_t nonce)
{
    ps_init_record record;
    if (ps_init_file_read(path, &record) == PS_OK && record.nonce == nonce) unlink(path);
}
