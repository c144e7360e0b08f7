/* Handing arenas to a process on the same host: memfds over an abstract Unix socket. A
 * worker may also hand in the memory of its rings (wire_rings.h), and an arena for rows
 * of embedding tables (rows_body.h).
 *
 * Abstract names belong to a network namespace: a process that can connect is on this
 * host and in this namespace, so that emulated or shaped links are never bypassed. The
 * name carries 128 random bits that only members of the job learn; both ends check the
 * peer's user.
 *
 *   worker -> server: {magic u32, rank u32, nonce u64, bytes u64, ring_bytes u64,
 *                      row_bytes u64}
 *                     + fds: params, grads, and with ring_bytes > 0 the rings, with
 *                       row_bytes > 0 the arena for rows
 *   server -> worker: {magic u32, accepted u32, text[248]}
 *                     + fds: to a worker with rings, an eventfd of each shard, which
 * wakes it
 */
#ifndef PS_SHM_PASS_H
#define PS_SHM_PASS_H

#include "clock.h"
#include "mem.h"

enum {
    PS_SHM_NAME_MAX = 80,
    PS_SHM_FDS = 4,       // of an offer: params, grads, rings, rows
    PS_SHM_WAKES_MAX = 64 // shards of a server that a worker can wake
};

typedef struct ps_shm_offer {
    uint32_t magic, rank;
    uint64_t nonce;
    uint64_t bytes;      // of each arena
    uint64_t ring_bytes; // 0: no rings
    uint64_t row_bytes;  // 0: no arena for rows
} ps_shm_offer;

typedef struct ps_shm_answer {
    uint32_t magic, accepted;
    char text[248]; // why not
} ps_shm_answer;

/* Listens on a fresh name, which is written to name. *fd is non-blocking. */
ps_err ps_shm_listen(char name[PS_SHM_NAME_MAX], int *fd);
/* Accepts one connection of this user or root: *fd, or -1 when there is none. NOMEM when
 * only a lack of descriptors or memory prevents it. */
ps_err ps_shm_accept(int listen_fd, int *fd);
ps_err ps_shm_connect(const char *name, ps_deadline deadline, int *fd);

/* fds: params, grads, rings, rows; those of which there are no bytes are ignored, and -1
 * when received. PEER when the other end breaks off, TIMEOUT at the deadline. */
ps_err ps_shm_offer_send(int fd, const ps_shm_offer *offer, const int fds[PS_SHM_FDS]);
/* fds: owned by the caller on PS_OK. */
ps_err ps_shm_offer_recv(int fd, ps_deadline deadline, ps_shm_offer *offer,
                         int fds[PS_SHM_FDS]);
/* refusal NULL: accepted, with n wakes, PS_SHM_WAKES_MAX at most. */
ps_err ps_shm_answer_send(int fd, const char *refusal, const int *wakes, int n);
/* PEER with the refusal's text when refused, and when end_fd (-1: none) becomes readable
 * before the answer is there. The answer must bring exactly n wakes; the caller owns them
 * on PS_OK.
 */
ps_err ps_shm_answer_recv(int fd, int end_fd, ps_deadline deadline, int *wakes, int n);

#endif
