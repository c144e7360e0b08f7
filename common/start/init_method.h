/* How processes find the coordinator: tcp://host:port, or file:///path on a file system
 * that all of them see. The coordinator writes its address into the file:
 *
 *   pstrain-init 1 ADDRESS PORT NONCE\n      (NONCE: 16 hexadecimal digits)
 *
 * The nonce is the job's, and a process joins with the nonce that it read. So a file left
 * over from a dead job leads nowhere, even if another job listens on that port by now.
 * The process reads the file again until the living coordinator has replaced it. The
 * command line reader resolves env://, because it alone reads the environment.
 */
#ifndef PS_INIT_METHOD_H
#define PS_INIT_METHOD_H

#include <stdbool.h>
#include <stdint.h>

#include "net.h"

enum { PS_INIT_PATH_MAX = 1024 };

typedef struct ps_init_method {
    bool is_file;
    char host[256]; // tcp: a name or an address, without brackets
    int port;       // tcp: 0: a free one (for a job of one process)
    char path[PS_INIT_PATH_MAX];
} ps_init_method;

/* ARG lists the valid forms. */
ps_err ps_init_method_parse(const char *text, ps_init_method *out);

/* True for a tcp:// method whose host is this one without a look-up: an address of
 * 127.0.0.0/8, ::1 or localhost. False for NULL. */
bool ps_init_method_is_loopback(const char *text);

typedef struct ps_init_record {
    char address[PS_ADDRESS_MAX];
    int port;
    uint64_t nonce;
} ps_init_record;

/* Replaces the file as a whole: readers see the old one or the new one. IO. */
ps_err ps_init_file_write(const char *path, const ps_init_record *record);
/* IO when there is none (yet), FORMAT when it is something else. */
ps_err ps_init_file_read(const char *path, ps_init_record *record);
/* Removes it if it is still the one with this nonce. */
void ps_init_file_remove(const char *path, uint64_t nonce);

#endif
