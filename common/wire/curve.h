/* The keys of a job, and which address may be used without them.
 *
 * A connection is encrypted, and both ends prove who they are, by ZeroMQ's CURVE
 * (rfc.zeromq.org/spec/26). Each role of a job has a pair of keys of its own. A process
 * holds its role's secret key and both public keys:
 *
 *   folder/server.key, folder/worker.key    a line each:
 *
 *   pstrain-key 1 ROLE SECRET SERVERS WORKERS\n
 *
 *   ROLE: server or worker. SECRET: that role's secret key. SERVERS, WORKERS: the roles'
 *   public keys. Keys are 64 hexadecimal digits.
 *
 * A socket that is bound proves its process's role. The coordinator's door lets in a
 * process that proves one of the two roles. Everything behind it lets in only members: a
 * member's secret (secret.h), which the coordinator draws for it in every run, is its
 * secret key there (gate.h).
 */
#ifndef PS_CURVE_H
#define PS_CURVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config.h"
#include "role.h"

enum { PS_CURVE_KEY_BYTES = 32 };

typedef struct ps_curve_key {
    uint8_t bytes[PS_CURVE_KEY_BYTES];
} ps_curve_key;

/* How the connections of a process are protected. All zero: plain, and only over the
 * loopback. */
typedef struct ps_curve {
    bool on;       // there are keys
    bool insecure; // plain connections may leave this host
    ps_role role;  // of this process
    ps_curve_key secret;
    ps_curve_key public_of[PS_ROLE_COUNT]; // by role
} ps_curve;

/* keys: a folder, or such a line itself, or "": none. As ps_curve_read. No message shows
 * a key. */
ps_err ps_curve_load(ps_curve *curve, const char *keys, bool insecure, ps_role role);
/* ARG for a job with keys whose exchange cannot be encrypted, without net.insecure. */
ps_err ps_curve_check_exchange(const ps_config *config);
/* As ps_curve_load, of net.curve and net.insecure; and as ps_curve_check_exchange. */
ps_err ps_curve_init(ps_curve *curve, const ps_config *config, ps_role role);

/* Reads the role's file. IO when there is none, or when others may read it or replace it;
 * FORMAT when it is something else. Each names the file and the mend. */
ps_err ps_curve_read(ps_curve *curve, const char *folder, ps_role role);

/* Draws the keys of a job and writes both files (mode 0600) into the folder, which is
 * made (mode 0700) if there is none. Where both files are already, checks them and
 * changes nothing. IO; UNSUPPORTED when ZeroMQ was built without CURVE. */
ps_err ps_curve_make(const char *folder);

/* The public key that belongs to a secret one. UNSUPPORTED as above. */
ps_err ps_curve_public(const ps_curve_key *secret, ps_curve_key *out);

/* Whose public key that is; false when it is neither role's. */
bool ps_curve_find_role(const ps_curve *curve, const void *key, size_t bytes,
                        ps_role *out);

/* Whether an endpoint ("tcp://10.0.0.7:5000") may be bound or connected to: any with keys
 * or with net.insecure, else only those of this host. curve may be NULL: neither. ARG
 * says both ways out. */
ps_err ps_curve_check_endpoint(const ps_curve *curve, const char *endpoint);

#endif
