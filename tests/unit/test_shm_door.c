/* Arenas are taken from workers of this job alone, sealed and of the right size; a peer
 * that sends something else gets a refusal and does no harm. */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "event.h"
#include "shm_door.h"

enum { BYTES = 8192, RANKS = 2 };
static const uint64_t nonce = 0x1122334455667788u;

static ps_deadline soon(void)
{
    return ps_deadline_in_ms(20000);
}

static int plain_memfd(size_t bytes)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    return fd;
}

static ps_err offer(const ps_shm_door *door, ps_shm_offer o, int params, int grads)
{
    int fd;
    PS_TRY(ps_shm_connect(ps_shm_door_name(door), soon(), &fd));
    ps_err err = ps_shm_offer_send(fd, &o, (const int[PS_SHM_FDS]){params, grads});
    if (err == PS_OK) err = ps_shm_answer_recv(fd, -1, soon(), NULL, 0);
    close(fd);
    return err;
}

static void refused(const ps_shm_door *door, ps_shm_offer o, int params, int grads,
                    const char *says)
{
    assert_error(offer(door, o, params, grads), PS_ERR_PEER, says);
    assert_null(ps_shm_door_params(door, 0));
}

TEST(takes_what_fits_and_nothing_else)
{
    ps_shm_door *door;
    assert_ok(ps_shm_door_create(nonce, RANKS, BYTES, NULL, &door));
    ps_shared_mem p, g, small;
    assert_ok(ps_shared_mem_init(&p, BYTES, "p"));
    assert_ok(ps_shared_mem_init(&g, BYTES, "g"));
    assert_ok(ps_shared_mem_init(&small, 4096, "small"));
    const ps_shm_offer good = {.nonce = nonce, .bytes = BYTES};
    ps_shm_offer bad = good;
    bad.nonce++;
    refused(door, bad, p.fd, g.fd, "another job");
    bad = good, bad.rank = RANKS;
    refused(door, bad, p.fd, g.fd, "unknown worker");
    bad = good, bad.bytes = 4096;
    refused(door, bad, small.fd, small.fd, "another size");
    refused(door, good, small.fd, g.fd, "4096 bytes");
    refused(door, good, p.fd, small.fd, "4096 bytes");
    int unsealed = plain_memfd(BYTES);
    refused(door, good, unsealed, g.fd, "not sealed");
    refused(door, good, p.fd, unsealed, "not sealed");
    refused(door, good, STDIN_FILENO, g.fd, "not sealed");
    close(unsealed);

    assert_ok(offer(door, good, p.fd, g.fd));
    assert_null(ps_shm_door_params(door, 1));
    assert_null(ps_shm_door_grads(door, RANKS + 5));
    ((float *)g.base)[7] = 2.5f;
    assert_true(ps_shm_door_grads(door, 0)[7] == 2.5f);
    ps_shm_door_params(door, 0)[BYTES / 4 - 1] = -1.0f;
    assert_true(((float *)p.base)[BYTES / 4 - 1] == -1.0f);
    assert_int_not_equal(ftruncate(p.fd, 0), 0); // sealed: no SIGBUS for the server
    assert_int_equal(offer(door, good, p.fd, g.fd), PS_ERR_PEER); // a worker offers once
    ps_shared_mem_fini(&p);
    ps_shared_mem_fini(&g);
    ps_shared_mem_fini(&small);
    assert_true(ps_shm_door_grads(door, 0)[7] == 2.5f); // the server still has it
    ps_shm_door_destroy(&door);
}

/* Rings are taken when they have the size that the server expects; the worker gets the
 * shards' events. */
TEST(rings_come_with_the_shards_events)
{
    enum { RING_BYTES = 4096, SHARDS = 2 };
    ps_event events[SHARDS];
    int wakes[SHARDS], got[SHARDS], fd;
    for (int i = 0; i < SHARDS; i++) {
        assert_ok(ps_event_init(&events[i]));
        wakes[i] = ps_event_fd(&events[i]);
    }
    const ps_shm_door_rings rings = {RING_BYTES, wakes, SHARDS};
    ps_shm_door *door;
    assert_ok(ps_shm_door_create(nonce, RANKS, BYTES, &rings, &door));
    ps_shared_mem p, g, r;
    assert_ok(ps_shared_mem_init(&p, BYTES, "p"));
    assert_ok(ps_shared_mem_init(&g, BYTES, "g"));
    assert_ok(ps_shared_mem_init(&r, RING_BYTES, "r"));
    ps_shm_offer o = {.nonce = nonce, .bytes = BYTES, .ring_bytes = 2 * RING_BYTES};
    const int fds[PS_SHM_FDS] = {p.fd, g.fd, r.fd};
    static const char *const says[] = {"another size", "does not have 3 shards", NULL};
    for (int i = 0; i < 3; i++) {
        const int n = i == 1 ? SHARDS + 1 : SHARDS;
        int more[SHARDS + 1];
        assert_ok(ps_shm_connect(ps_shm_door_name(door), soon(), &fd));
        assert_ok(ps_shm_offer_send(fd, &o, fds));
        ps_err err = ps_shm_answer_recv(fd, -1, soon(), more, n);
        assert_int_equal(err, says[i] ? PS_ERR_PEER : PS_OK);
        if (says[i]) assert_non_null(strstr(ps_err_message(), says[i]));
        if (!says[i]) memcpy(got, more, sizeof got);
        close(fd);
        o.ring_bytes = RING_BYTES;
        o.rank = i == 1 ? 1 : 0;
    }
    assert_non_null(ps_shm_door_rings_of(door, 1));
    ((char *)r.base)[17] = 5;
    assert_int_equal(((char *)ps_shm_door_rings_of(door, 1))[17], 5);
    for (int i = 0; i < SHARDS; i++) {
        ps_event mine = ps_event_of(got[i]);
        struct pollfd item = {.fd = wakes[i], .events = POLLIN};
        assert_int_equal(poll(&item, 1, 0), 0);
        ps_event_set(&mine);
        assert_int_equal(poll(&item, 1, 0), 1);
        ps_event_fini(&mine);
    }
    ps_shm_door_destroy(&door);
    ps_shared_mem_fini(&p), ps_shared_mem_fini(&g), ps_shared_mem_fini(&r);
    for (int i = 0; i < SHARDS; i++)
        ps_event_fini(&events[i]);
}

TEST(nonsense_is_survived)
{
    ps_shm_door *door;
    assert_ok(ps_shm_door_create(nonce, RANKS, BYTES, NULL, &door));
    for (size_t n = 0; n < 64; n += 7) {
        int fd;
        char noise[64];
        memset(noise, 0x5a, sizeof noise);
        assert_ok(ps_shm_connect(ps_shm_door_name(door), soon(), &fd));
        assert_true(n == 0 || send(fd, noise, n, 0) == (ssize_t)n);
        if (n == 0) shutdown(fd, SHUT_WR);
        assert_int_equal(ps_shm_answer_recv(fd, -1, soon(), NULL, 0), PS_ERR_PEER);
        close(fd);
    }
    ps_shared_mem p, g;
    assert_ok(ps_shared_mem_init(&p, BYTES, "p"));
    assert_ok(ps_shared_mem_init(&g, BYTES, "g"));
    const ps_shm_offer good = {.rank = 1, .nonce = nonce, .bytes = BYTES};
    assert_ok(offer(door, good, p.fd, g.fd));
    ps_shared_mem_fini(&p);
    ps_shared_mem_fini(&g);
    ps_shm_door_destroy(&door);
    assert_int_equal(ps_shm_connect("pstrain-nobody", soon(), &(int){0}), PS_ERR_PEER);
}

/* The kernel connects to a peer that is stopped, but the peer never answers. */
TEST(a_wait_for_an_answer_can_be_ended)
{
    int ends[2], news[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    assert_int_equal(pipe(news), 0);
    assert_int_equal(write(news[1], "x", 1), 1);
    assert_error(ps_shm_answer_recv(ends[0], news[0], soon(), NULL, 0), PS_ERR_PEER,
                 "ended");
    assert_ok(ps_shm_answer_send(ends[1], NULL, NULL, 0));
    assert_ok(ps_shm_answer_recv(ends[0], news[0], soon(), NULL, 0));
    for (int i = 0; i < 2; i++)
        close(ends[i]), close(news[i]);
}

/* This many calls of accept4 fail as if the process had no descriptor left. */
static atomic_int accepts_to_fail;

int accept4(int fd, struct sockaddr *restrict address, socklen_t *restrict bytes,
            int flags)
{
    static int (*real)(int, struct sockaddr *, socklen_t *, int);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "accept4");
    if (atomic_load(&accepts_to_fail) > 0) {
        atomic_fetch_sub(&accepts_to_fail, 1);
        errno = EMFILE;
        return -1;
    }
    return real(fd, address, bytes, flags);
}

TEST(a_lack_of_descriptors_closes_no_door)
{
    ps_shm_door *door;
    ps_shared_mem p, g;
    assert_ok(ps_shared_mem_init(&p, BYTES, "p"));
    assert_ok(ps_shared_mem_init(&g, BYTES, "g"));
    assert_ok(ps_shm_door_create(nonce, RANKS, BYTES, NULL, &door));
    atomic_store(&accepts_to_fail, 3);
    const ps_shm_offer good = {.rank = 1, .nonce = nonce, .bytes = BYTES};
    assert_ok(offer(door, good, p.fd, g.fd));
    assert_int_equal(atomic_load(&accepts_to_fail), 0);
    assert_non_null(ps_shm_door_grads(door, 1));
    ps_shm_door_destroy(&door);
    ps_shared_mem_fini(&p);
    ps_shared_mem_fini(&g);
}

/* A listener that accepts no connection and whose queue is full. */
TEST(connecting_has_a_deadline)
{
    enum { MOST = 1000 };
    char name[PS_SHM_NAME_MAX];
    int listener, fds[MOST], n = 0;
    assert_ok(ps_shm_listen(name, &listener));
    ps_err err = PS_OK;
    while (n < MOST && err == PS_OK) {
        err = ps_shm_connect(name, ps_deadline_in_ms(200), &fds[n]);
        n += err == PS_OK;
    }
    assert_true(n > 0 && n < MOST);
    assert_int_equal(err, PS_ERR_PEER);
    while (n > 0)
        close(fds[--n]);
    close(listener);
}

/* A listener keeps the user that it had when it began to listen. */
TEST(another_users_door_is_named)
{
    char name[PS_SHM_NAME_MAX];
    int listener, fd;
    if (seteuid(65534) != 0) skip(); // not root
    ps_err err = ps_shm_listen(name, &listener);
    assert_int_equal(seteuid(0), 0);
    assert_ok(err);
    assert_error(ps_shm_connect(name, soon(), &fd), PS_ERR_PEER, "not permitted");
    assert_int_equal(fd, -1);
    close(listener);
}

/* The peer knows the name and the nonce, but belongs to another user of the host. */
TEST(another_user_is_not_let_in)
{
    enum { NOBODY = 65534 };
    if (geteuid() != 0) skip(); // only root can become somebody else
    ps_shm_door *door;
    ps_shared_mem p, g;
    assert_ok(ps_shm_door_create(nonce, RANKS, BYTES, NULL, &door));
    assert_ok(ps_shared_mem_init(&p, BYTES, "p"));
    assert_ok(ps_shared_mem_init(&g, BYTES, "g"));
    const ps_shm_offer good = {.nonce = nonce, .bytes = BYTES};
    pid_t pid = fork();
    if (pid == 0) {
        if (setresuid(NOBODY, NOBODY, NOBODY) != 0) _exit(2);
        _exit(offer(door, good, p.fd, g.fd) == PS_ERR_PEER ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_null(ps_shm_door_params(door, 0));
    assert_ok(offer(door, good, p.fd, g.fd));
    ps_shared_mem_fini(&p);
    ps_shared_mem_fini(&g);
    ps_shm_door_destroy(&door);
}
